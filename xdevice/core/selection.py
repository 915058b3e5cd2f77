"""Selects the backend that is used if no tensor determines the backend. This is the backend chosen by `use_backend`,
`set_backend` or XDEVICE_BACKEND. If no backend was chosen, it is a backend whose framework is imported or installed."""

from __future__ import annotations

import os
import warnings
from contextvars import ContextVar

from xdevice.base import devices, requested
from xdevice.errors import BackendNotFoundError, UnsupportedError, shown

from . import blocks, frameworks, registry

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any, Final

    from xdevice.contract import Backend

    from .frameworks import Framework

VARIABLE: Final = "XDEVICE_BACKEND"


# the backend of the innermost open block of `use_backend`, and all open blocks
_scope: ContextVar[Backend | None] = ContextVar("xdevice_backend", default=None)
_open_blocks: ContextVar[tuple[_OpenBlock, ...]] = ContextVar("xdevice_use", default=())
# the backend that was passed to `set_backend`; None if it was not called, or was called with None
_default: Backend | None = None
_resolved: Backend | None = None
"""The backend that XDEVICE_BACKEND chose or, if the variable was not set, the imported and installed frameworks."""
_resolved_from: Any = None
"""The value of XDEVICE_BACKEND when `_resolved` was chosen."""

# os.environ.get takes 0.8 us, most of the time that try_gpu may take; a look-up in the dict behind it
# takes 0.05 us
_environ: Any = getattr(os.environ, "_data", os.environ)
_encoded: Any = getattr(os.environ, "encodekey", str)
_KEY: Any = _encoded(VARIABLE)
_VIRTUAL_KEY: Any = _encoded("XDEVICE_VIRTUAL_GPUS")


def current() -> Backend:
    """Returns the selected backend. This is the backend of `use_backend`, else of `set_backend`, else of
    XDEVICE_BACKEND, else the only backend whose framework is imported, else the first backend that is installed. Raises
    `UnsupportedError` if the selected backend cannot work in this forked child, and the errors of `registry.load` if
    this call loads the backend."""
    backend = _scope.get() or _default
    if backend is None:
        # if the variable has changed since the choice, `_resolve` warns
        if _resolved is None or _resolved_from != _environ.get(_KEY):
            return _resolve()
        backend = _resolved
    if backend.refusal is not None:
        raise UnsupportedError(backend.refusal)
    return backend


def are_virtual_gpus_requested() -> bool:
    """Whether XDEVICE_VIRTUAL_GPUS is now set to a value that is not empty."""
    return bool(_environ.get(_VIRTUAL_KEY))


def explicit_choice() -> Backend | None:
    """Returns the backend that the program itself has chosen with `set_backend` or, if XDEVICE_BACKEND is not set, with
    an open block of `use_backend`. Returns None if the program has not chosen a backend."""
    # XDEVICE_BACKEND names the backend of the whole run, and a block only that of a part of the run
    return _default or (None if os.environ.get(VARIABLE) else _scope.get())


def default() -> Backend | None:
    """Returns the backend that `set_backend` made the default; None if there is no such default."""
    return _default


def restore_default(before: Backend | None) -> None:
    """Restores `before`, a value that `default` returned earlier, as the default. Unlike `set_backend(None)`, this does
    not reset the choice that was made from the environment."""
    global _default
    _default = before


def _resolve() -> Backend:
    """Returns the backend that XDEVICE_BACKEND names or, if the variable is not set, the one that `_preferred_name`
    names. If a backend was chosen before, returns that backend again, and warns that the variable has changed. Raises
    the errors of `registry.load`."""
    global _resolved, _resolved_from
    # changing the backend in the middle of a program would mix the tensors of two frameworks
    if _resolved is not None:
        _resolved_from = _environ.get(_KEY)
        warnings.warn(
            f"{VARIABLE} changed to {shown(os.environ.get(VARIABLE))}, but {_resolved.name} was chosen before and "
            f"stays in use; to change the backend of a running process, call xdevice.set_backend(name)",
            RuntimeWarning,
            # the warning names the line in the program that called a public function, which called `current`,
            # which called this one
            stacklevel=4,
        )
        # raises an error if the backend cannot work in this forked child
        return registry.load(_resolved.name)
    _resolved = _from_variable() or registry.load(_preferred_name())
    _resolved_from = _environ.get(_KEY)
    return _resolved


def _from_variable() -> Backend | None:
    """Returns the backend that XDEVICE_BACKEND names; None if the variable is empty or not set. Raises the errors of
    `registry.load`."""
    name = os.environ.get(VARIABLE, "").strip()
    if not name:
        return None
    try:
        backend = registry.load(name)
    except BackendNotFoundError as error:
        raise BackendNotFoundError(f"{VARIABLE}={name}: {error}") from None
    # some settings, such as MXNet's NumPy semantics, are changed only for a chosen backend
    backend.on_choice()
    return backend


def load_backend_of(module: str, framework: Framework) -> None:
    """Loads the backend of `module`, which the program is importing; `framework` is the `Framework` of the module's
    framework. If environment variables request virtual GPUs, blocking mode or float64, also loads the backends of the
    frameworks that the module has imported.

    Raises:
        XDeviceError: as `registry.load` does.
    """
    backend = (
        registry.backend_of_guest(module)
        if module in registry.GUESTS
        else registry.make(framework.name)
    )
    # the variable names this backend, which has the same effect as `set_backend`
    if os.environ.get(VARIABLE, "").strip().lower() in (framework.name, *framework.aliases):
        backend.on_choice()
    # a framework must get its virtual GPUs before it is used, and the program may use these frameworks
    # next
    if requested.anything():
        for name in set(framework.brings) & {
            brought.name for brought in frameworks.list_imported()
        }:
            registry.load(name)


def _preferred_name() -> str:
    """Returns the name of the only framework that the program has imported. If the program has imported none or
    several, returns the first installed framework in the order of preference."""
    imported = registry.imported_frameworks()
    # a single import shows which framework the program uses
    if len(imported) == 1:
        return imported[0]
    return next(
        framework.name for framework in registry.KNOWN if registry.is_installed(framework.name)
    )


def _to_native(device: devices.Device) -> Any:
    """Returns the value of `device.native`, which is the selected backend's own object for the device. Raises
    `DeviceNotFoundError` if the backend lacks the device."""
    chosen = current()
    return chosen.to_native(chosen.require(device))


devices.core_functions.to_native = _to_native


def backend(name: str | Backend | None = None) -> Backend:
    """Returns the backend with this name or alias; if `name` is None, the selected backend. The first use loads the
    backend.

    These attributes and methods of a backend are useful to programs: `name`, `version`, `framework` (the module:
    `torch`, `tensorflow`, ...), `count("gpu")`, `devices()` and `virtual` (how many of the GPUs are virtual). The first
    call for a backend imports the framework, so it takes seconds; later calls take less than 1 us.

    Args:
        name: "torch", "tensorflow", "paddle", "mxnet", "jax", "numpy" or the name of a third party's backend, in upper
            or lower case; "pytorch", "tf", "paddlepaddle", "mx" and "np" are aliases.

    Raises:
        BackendNotFoundError: if the name is unknown, or the backend's framework is not installed. There is no fallback.
        BackendImportError: if the framework is installed but cannot be imported, or is too old.
        UnsupportedError: if this is a forked child in which the backend cannot work.

    Example:
        >>> xdevice.backend("numpy").name
        'numpy'
    """
    if name is None:
        return current()
    from xdevice.contract import Backend

    # loaded by name, because in a forked child `load` refuses some backends that the parent has loaded
    if isinstance(name, Backend):
        return registry.load(name.name)
    if not isinstance(name, str):
        # `name` may be a module, such as `torch`, which has its name in `__name__`
        example = getattr(name, "__name__", "torch")
        raise BackendNotFoundError(
            f"{shown(name)} is not a backend: expected the name of a backend, for instance {str(example)!r:.40}"
        )
    return registry.load(name)


def backends() -> tuple[str, ...]:
    """Returns the names of the installed backends, in the order of preference, without importing their frameworks.

    Example:
        >>> "numpy" in xdevice.backends()
        True
    """
    return tuple(name for name in registry.names() if registry.is_installed(name))


def set_backend(name: str | Backend | None) -> None:
    """Makes a backend the default of the process. If `name` is None, XDEVICE_BACKEND and the installed frameworks
    decide again.

    An open `use_backend` block takes precedence. `set_backend` is meant for notebooks, which lose context variables
    between cells.

    Raises:
        BackendNotFoundError, BackendImportError: as with `backend`; in this case the default does not change.
    """
    global _default, _resolved
    if name is None:
        _default = _resolved = None
    else:
        _default = backend(name)
        _default.on_choice()


class use_backend:
    """Selects a backend for a block, in this thread or task only: `with xdevice.use_backend("paddle"): ...`.

    Blocks can be nested, and an exception also ends a block. The same object may be entered several times, and by
    several threads. The choice stays in effect across an `await`. The backend is loaded when the block is entered, and
    `as` binds it to a name.

    Raises:
        ScopeError: if a thread or asyncio task exits a block that another thread or task has entered. The backend then
            stays selected in the thread or task that entered the block.
        BackendNotFoundError, BackendImportError: on entering, as with `backend`.

    Example:
        >>> with xdevice.use_backend("numpy") as chosen:
        ...     xdevice.backend() is chosen
        True
    """

    def __init__(self, name: str | Backend) -> None:
        self._name = name

    def __enter__(self) -> Backend:
        chosen = backend(self._name)
        chosen.on_choice()
        _open_blocks.set((*_open_blocks.get(), _OpenBlock(self, chosen)))
        _scope.set(chosen)
        return chosen

    def __exit__(self, *_: object) -> None:
        entered = _open_blocks.get()
        # blocks may be exited in a different order from the one in which they were entered
        index = blocks.index_in(entered, self, f"use_backend({self._name!r})")
        # all blocks but this one, which need not be the last
        remaining = entered[:index] + entered[index + 1 :]
        _open_blocks.set(remaining)
        _scope.set(remaining[-1].chosen if remaining else None)


class _OpenBlock:
    """An open block of `use_backend`: the object that was entered (`key`), the thread and task
    that entered it (`owner`), and the backend that it chose."""

    def __init__(self, key: use_backend, chosen: Backend) -> None:
        self.key = key
        self.owner = blocks.thread_and_task()
        self.chosen = chosen
