"""Which backend is used if no tensor decides that: the one chosen by `use_backend`, by
`set_backend` or by XDEVICE_BACKEND; otherwise one whose framework is imported or installed."""

from __future__ import annotations

import os
import warnings
from contextvars import ContextVar

from xdevice.base import devices
from xdevice.errors import BackendNotFoundError, UnsupportedError, shown

from . import blocks, frameworks, registry

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any, Final

    from xdevice.contract import Backend

    from .frameworks import Known

VARIABLE: Final = "XDEVICE_BACKEND"


# the backend of the innermost open block of `use_backend`, and all open blocks
_scope: ContextVar[Backend | None] = ContextVar("xdevice_backend", default=None)
_open_blocks: ContextVar[tuple[_OpenBlock, ...]] = ContextVar("xdevice_use", default=())
# the backend that `set_backend` was given; None if it was not called, or with None
_default: Backend | None = None
_resolved: Backend | None = None
"""The backend that was chosen by XDEVICE_BACKEND, or else by what is imported and installed."""
_resolved_from: Any = None
"""The value of XDEVICE_BACKEND when `_resolved` was chosen."""

# os.environ.get takes 0.8 us, most of the time that try_gpu may take; the dict behind it takes
# 0.05 us
_environ: Any = getattr(os.environ, "_data", os.environ)
_encoded: Any = getattr(os.environ, "encodekey", str)
_KEY: Any = _encoded(VARIABLE)
_VIRTUAL_KEY: Any = _encoded("XDEVICE_VIRTUAL_GPUS")


def current() -> Backend:
    """Returns the selected backend: that of `use_backend`, else of `set_backend`, else of
    XDEVICE_BACKEND, else the only one whose framework is imported, else the first one that is
    installed. Raises `UnsupportedError` if that backend cannot work in this forked child, and
    the errors of `registry.load` if it is loaded now."""
    backend = _scope.get() or _default
    if backend is None:
        # a variable that has changed since gives a warning in `_resolve`
        if _resolved is None or _resolved_from != _environ.get(_KEY):
            return _resolve()
        backend = _resolved
    if backend.refusal is not None:
        raise UnsupportedError(backend.refusal)
    return backend


def names_virtual_gpus() -> bool:
    """Whether XDEVICE_VIRTUAL_GPUS is now set to a text that is not empty."""
    return bool(_environ.get(_VIRTUAL_KEY))


def explicit_choice() -> Backend | None:
    """Returns the backend that the program itself has chosen by `set_backend`, or by an open
    block of `use_backend` if XDEVICE_BACKEND is not set; None if it has chosen none."""
    return _default or (None if os.environ.get(VARIABLE) else _scope.get())


def default() -> Backend | None:
    """Returns the backend given to `set_backend`; None if there is none."""
    return _default


def restore_default(before: Backend | None) -> None:
    """Makes `before`, which `default` returned earlier, the default again. Unlike `set_backend(None)`, it keeps the
    backend that the environment chose."""
    global _default
    _default = before


def _resolve() -> Backend:
    """Returns the backend that XDEVICE_BACKEND names; if it names none, the one that `_prefer`
    names. If a backend was chosen before, returns that backend again, and warns that the
    variable has changed. Raises the errors of `registry.load`."""
    global _resolved, _resolved_from
    # changing the backend in the middle of a program would mix the tensors of two frameworks
    if _resolved is not None:
        _resolved_from = _environ.get(_KEY)
        warnings.warn(
            f"{VARIABLE} changed to {shown(os.environ.get(VARIABLE))}, but {_resolved.name} was chosen before and "
            f"stays in use; to change the backend of a running process, call xdevice.set_backend()",
            RuntimeWarning,
            # 4: the warning names the line of the program that called the public function that
            # called `current`
            stacklevel=4,
        )
        # raises the error if the backend cannot work in a forked child
        return registry.load(_resolved.name)
    _resolved = _from_variable() or registry.load(_prefer())
    _resolved_from = _environ.get(_KEY)
    return _resolved


def _from_variable() -> Backend | None:
    """Returns the backend that XDEVICE_BACKEND names; None if the variable is not set or empty.
    Raises what `registry.load` raises."""
    name = os.environ.get(VARIABLE, "").strip()
    if not name:
        return None
    try:
        backend = registry.load(name)
    except BackendNotFoundError as error:
        raise BackendNotFoundError(f"{VARIABLE}={name}: {error}") from None
    # some settings are changed only if the backend is chosen, such as MXNet's NumPy semantics
    backend.on_choice()
    return backend


def hand_over(module: str, framework: Known) -> None:
    """Loads the backend of a module that the program is importing. `framework` is the `Known`
    of the module's framework. If environment variables request virtual GPUs, blocking mode or
    float64, also loads the backends of the frameworks that the module has imported.

    Raises:
        XDeviceError: as `registry.load` does.
    """
    from xdevice.contract import environment

    backend = (
        registry.host_of(module) if module in registry.GUESTS else registry.make(framework.name)
    )
    # the variable chooses this backend, as `set_backend` would
    if os.environ.get(VARIABLE, "").strip().lower() in (framework.name, *framework.aliases):
        backend.on_choice()
    # virtual GPUs must be given before a framework is used, and the program may use these next
    if environment.has_requests():
        for name in set(framework.brings) & {
            brought.name for brought in frameworks.list_imported()
        }:
            registry.load(name)


def _prefer() -> str:
    """Returns the name of the only framework that the program has imported. If it has imported
    none or several, returns the first installed one in the order of preference."""
    imported = registry.imported_frameworks()
    # a single import shows which framework the program uses
    if len(imported) == 1:
        return imported[0]
    return next(
        framework.name for framework in registry.KNOWN if registry.is_installed(framework.name)
    )


def _to_native(device: devices.Device) -> Any:
    """Returns the selected backend's own object for a device: the value of `Device.native`.
    Raises `DeviceNotFoundError` if the backend lacks the device."""
    chosen = current()
    return chosen.to_native(chosen.require(device))


devices.core_functions.to_native = _to_native


def backend(name: str | Backend | None = None) -> Backend:
    """Returns the backend with a name or alias, loaded on first use; without a name, the selected backend.

    Its `name`, `version`, `framework` (the module: `torch`, `tensorflow`, ...), `count("gpu")`, `devices()` and
    `virtual` (how many of its GPUs are virtual) are useful to programs. Loading imports the framework, so it takes
    seconds the first time and under 1 us after.

    Args:
        name: "torch", "tensorflow", "paddle", "mxnet", "jax", "numpy" or a third party's, in any case; "pytorch",
            "tf", "paddlepaddle", "mx" and "np" are aliases.

    Raises:
        BackendNotFoundError: if the name is unknown, or its framework is not installed. There is no fallback.
        BackendImportError: if the framework is installed but cannot be imported, or is too old.
        UnsupportedError: if this is a forked child in which the backend cannot work.

    Example:
        >>> xdevice.backend("numpy").name
        'numpy'
    """
    if name is None:
        return current()
    from xdevice.contract import Backend

    # by name, because a forked child refuses some backends that its parent has loaded
    if isinstance(name, Backend):
        return registry.load(name.name)
    if not isinstance(name, str):
        # a module, such as `torch`, has its name in `__name__`
        example = getattr(name, "__name__", "torch")
        raise BackendNotFoundError(
            f"{shown(name)} is not a backend: expected the name of a backend, for instance {str(example)!r:.40}"
        )
    return registry.load(name)


def backends() -> tuple[str, ...]:
    """Returns the names of the installed backends, in the order of preference. Imports none of their frameworks.

    Example:
        >>> "numpy" in xdevice.backends()
        True
    """
    return tuple(name for name in registry.names() if registry.is_installed(name))


def set_backend(name: str | Backend | None) -> None:
    """Makes a backend the default of the process; None lets XDEVICE_BACKEND and the installed frameworks decide again.

    An open `use_backend` takes precedence. Meant for notebooks, which lose context variables between cells.

    Raises:
        BackendNotFoundError, BackendImportError: as with `backend`; the default does not change.
    """
    global _default, _resolved
    if name is None:
        _default = _resolved = None
    else:
        _default = backend(name)
        _default.on_choice()


class use_backend:
    """Selects a backend for the block: `with xdevice.use_backend("paddle"): ...`, for this thread or task only.

    Blocks can be nested, and end even after an exception. One object may be entered several times, and by several
    threads. The choice stays in effect across an `await`. The backend is loaded when the block is entered, and `as`
    gives it a name.

    Raises:
        ScopeError: if the block is exited in a different thread or asyncio task than the one that
            entered it; the thread or task that entered it then keeps the backend.
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
        # all but this block, which need not be the last one
        remaining = entered[:index] + entered[index + 1 :]
        _open_blocks.set(remaining)
        _scope.set(remaining[-1].chosen if remaining else None)


class _OpenBlock:
    """An open block of `use_backend`: the object that was entered (`key`), the thread and task
    that entered it (`owner`), and the backend that it chose."""

    def __init__(self, key: use_backend, chosen: Backend) -> None:
        self.key = key
        self.owner = blocks.owner()
        self.chosen = chosen
