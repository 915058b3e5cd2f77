"""Which adapters exist, which of them are loaded, and to which backend a type belongs."""

from __future__ import annotations

import _thread  # importing threading would take a third of the time of `import xdevice`
import sys
from functools import partial

from xdevice.base import devices, dtypes, forks
from xdevice.errors import (
    BackendImportError,
    BackendNotFoundError,
    ContractError,
    SettingError,
    UnsupportedError,
    shown,
)

from . import frameworks
from .frameworks import GUESTS as GUESTS
from .frameworks import KNOWN as KNOWN

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from typing import Any, Final, TypeVar

    from xdevice.contract import Backend
    from xdevice.contract.backend import Owned

    _Fact = TypeVar("_Fact")

GROUP: Final = "xdevice.backends"


probes: Final[dict[type, Callable[[Any], devices.Device]]] = {}
"""For each tensor type seen so far, the `probe` of its backend, with which `device_of` is fast."""

movable: Final[dict[type, Backend]] = {}
"""The backend of each tensor type seen so far, except backends whose tensors are always on the host."""

on_load: Final[list[Callable[[Backend], None]]] = []
"""Functions that are called with every backend that is loaded from now on."""

_making = _thread.RLock()
"""Held while an adapter is created and set up as environment variables ask, so that only one thread does it."""
_loaded: dict[str, Backend] = {}
_compiling: Final[list[tuple[Callable[[], bool] | None, Backend]]] = []
"""The loaded backends that have an `eagerly` of their own, each with its `is_compiling`."""
_owners: dict[int, Owned | None] = {}
"""The backend and kind of each type seen so far, by the type's `id`. The kind is None for a type of a framework that is
neither a tensor nor a model."""
_UNSEEN: Final = object()
_found: dict[str, EntryPoint] | None = None


# names


def canonical(name: str) -> str:
    """Returns the backend's own name for a name or alias in upper or lower case; raises `BackendNotFoundError` for an
    unknown one."""
    # environment variables often have spaces or capitals
    wanted = name.strip().lower() if isinstance(name, str) else ""
    for framework in KNOWN:
        if wanted == framework.name or wanted in framework.aliases:
            return framework.name
    for third_party in entry_points():
        if wanted == third_party.lower():
            return third_party
    raise BackendNotFoundError(
        f"there is no backend {shown(name)}{_nearest(wanted[:100])}; {_overview()}"
    )


def names() -> tuple[str, ...]:
    """Returns the names of all known backends: the built-in ones in order of preference, then third-party ones."""
    built_in = tuple(framework.name for framework in KNOWN)
    return built_in + tuple(sorted(set(entry_points()) - set(built_in)))


def is_installed(name: str) -> bool:
    """Whether the framework of a backend can be found, without importing it."""
    framework = frameworks.find(name)
    if framework is None:
        return name in entry_points()
    # what is imported needs no search of the file system
    if _is_imported(framework.modules[0]):
        return True
    # imported only here, since `import xdevice` takes milliseconds
    from importlib.util import find_spec

    return find_spec(framework.modules[0]) is not None


def install_hint(name: str) -> str:
    """Returns the command that installs the framework of a backend."""
    framework = frameworks.find(name)
    if framework is not None:
        return framework.install
    distribution = entry_points()[name].dist
    return f"pip install {distribution.name if distribution else name}"


def imported_frameworks() -> tuple[str, ...]:
    """Returns the built-in backends whose framework the user has imported. NumPy does not count, because all frameworks
    import it, nor does a framework that was imported only by another framework."""
    imported = frameworks.list_imported()
    # TensorFlow imports JAX if it is installed, which says nothing about the program
    brought = {name for framework in imported for name in framework.brings}
    return tuple(framework.name for framework in imported if framework.name not in brought)


def _is_imported(module: str) -> bool:
    return sys.modules.get(module) is not None


def entry_points() -> dict[str, EntryPoint]:
    """Returns the entry points of the adapters that are installed, built-in and third-party, by backend name. Imports
    none of them."""
    global _found
    if _found is None:
        from importlib.metadata import entry_points as installed

        points: dict[str, EntryPoint] = {}
        for point in installed(group=GROUP):
            _refuse_conflict(point, points.get(point.name))
            points[point.name] = point
        _found = points
        if (clash := namesake()) is not None:
            import warnings

            warnings.warn(clash, RuntimeWarning, stacklevel=2)
    return _found


def namesake() -> str | None:
    """The problem where PyPI's package `xdevice` is installed too; it has an `xdevice/__init__.py` of its own."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        other = version("xdevice")
    except PackageNotFoundError:
        return None
    return (
        f"another package, called xdevice {other}, is installed too, and it and this one, xdevice-dl, overwrite each "
        "other's files; to keep this one: pip uninstall xdevice, and then install xdevice-dl again (pip install "
        "--force-reinstall --no-deps)"
    )


def _refuse_conflict(new: EntryPoint, old: EntryPoint | None) -> None:
    """Raises `ContractError` if an adapter claims a name that another one has, or that is an alias of a built-in
    one."""
    # the same adapter may be listed twice, and contradicts nobody
    if old is not None and (old.value, _distribution(old)) != (new.value, _distribution(new)):
        raise ContractError(
            f"two adapters claim the backend name {new.name!r}: {_source(old)} and {_source(new)}; uninstall one"
        )
    for framework in KNOWN:
        if new.name in framework.aliases:
            raise ContractError(
                f"{_source(new)} claims the name {new.name!r}, an alias of the built-in {framework.name!r}; "
                "uninstall it"
            )


def _distribution(point: EntryPoint) -> str:
    return (
        f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
    )


def _source(point: EntryPoint) -> str:
    return f"{point.value} of {_distribution(point)}"


def _nearest(name: str) -> str:
    """Returns the end of the error for an unknown name: the name that may have been meant."""
    if not name:
        return ", a name is missing: is a variable such as $XDEVICE_BACKEND unset?"
    owner = next(
        (framework.name for framework in KNOWN if name in framework.modules),
        frameworks.LIBRARIES.get(name),
    )
    if owner is not None:
        return f": {name} is {owner!r} here"
    import difflib

    aliases = [alias for framework in KNOWN for alias in framework.aliases]
    close = difflib.get_close_matches(
        name, [*names(), *aliases], n=1, cutoff=0.6
    )  # the likeness of "jxa" and "jax" is 0.67
    return f" (did you mean {close[0]!r}?)" if close else ""


def _overview() -> str:
    installed = [name for name in names() if is_installed(name)]
    return f"known: {', '.join(names())}; installed: {', '.join(installed)}"


# loading


def load(name: str) -> Backend:
    """Returns the backend for a name or alias, and imports it on first use.

    Several threads may call this at once, and the thread that loads a backend may end before the others use it.
    Python's import locks and `loader.importing` guard the import, and a lock of this module guards what follows it.
    """
    backend = _loaded.get(name) or _load(canonical(name))
    if backend.refusal is not None:
        raise UnsupportedError(backend.refusal)
    return backend


def list_loaded() -> tuple[Backend, ...]:
    """Returns the backends loaded so far."""
    return tuple(_loaded.values())


def _load(name: str) -> Backend:
    """Imports the framework of a backend, if it is not imported yet, and makes the backend."""
    if name in _loaded:
        return _loaded[name]
    if not is_installed(name):
        raise BackendNotFoundError(
            f"the backend {name!r} is not installed here; {install_hint(name)}; {_overview()}"
        )
    from xdevice.contract import environment

    environment.check()
    framework = frameworks.find(name)
    module = framework.modules[0] if framework is not None else "sys"
    if not _is_imported(module) and name in entry_points():
        from importlib import import_module

        # tells the import hook that xdevice asked for it
        frameworks.wanted.add(name)
        try:
            import_module(module)
        except SettingError:
            raise
        except Exception as error:
            raise _import_failed(name, error) from error
    return make(name)


def make(name: str) -> Backend:
    """Returns the backend of a name, and makes it if it is not loaded yet. The framework has been imported before, or
    this thread is importing it."""
    if name in _loaded:
        return _loaded[name]
    from xdevice.contract import check, environment

    framework = frameworks.find(name)
    # Paddle can put a proxy in PyTorch's place
    other = frameworks.stand_in(framework.modules[0]) if framework is not None else None
    if framework is not None and other is not None:
        raise BackendImportError(
            f"the backend {name!r} does not import, because `import {framework.modules[0]}` gives {other} in this "
            f"process, as after paddle.enable_compat(); select the backend {other!r}, or call paddle.disable_compat() "
            f"before {framework.modules[0]} is imported"
        )
    point = entry_points().get(name)
    if point is None:
        raise BackendNotFoundError(
            f"the adapter of {name!r} is not installed; reinstall it: {install_hint(name)}"
        )
    environment.check()
    try:
        cls = point.load()
    except SettingError:  # the adapter reads a variable of its own, which is wrong
        raise
    except (
        Exception
    ) as error:  # a broken install raises anything: OSError, AttributeError, RuntimeError
        raise _import_failed(name, error) from error
    adapter = check(cls, name, _source(point))
    with _making:
        # made while this thread waited for the lock
        if name in _loaded:
            return _loaded[name]  # another thread was faster
        try:
            backend = adapter()
        except Exception as error:
            raise _import_failed(name, error) from error
        _refuse_too_old(backend)
        environment.provide(backend)
        _register(backend)
        return backend


_PLUGINS_VARIABLE: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""The variable that frameworks name in their error if a plugin that they load at import fails."""


def _import_failed(name: str, error: Exception) -> BackendImportError:
    """Returns the error for a framework or adapter that cannot be imported. The error says how to fix that."""
    if _PLUGINS_VARIABLE in str(error):  # installing the framework again would not fix that
        return BackendImportError(
            f"the backend {name!r} does not import, because another vendor's plugin does not load: {error}; install "
            f"its requirements, such as a driver, or leave plugins out: set {_PLUGINS_VARIABLE}=0"
        )
    return BackendImportError(
        f"the backend {name!r} is installed but does not import: {type(error).__name__}: {error}; "
        f"`xdevice info {name}` shows the details, and this reinstalls it: {install_hint(name)}"
    )


def _refuse_too_old(backend: Backend) -> None:
    import re

    here = tuple(int(part) for part in re.findall(r"\d+", backend.version)[:3])
    if here < backend.minimum:
        wanted = ".".join(map(str, backend.minimum))
        raise BackendImportError(
            f"{backend.name} {backend.version} is too old: {wanted} or newer is needed; {install_hint(backend.name)}"
        )


def _register(backend: Backend) -> None:
    """Makes a new backend known: from now on types belong to it, and code that waits for new backends is notified."""
    if _imported_before_fork & set(backend.modules):
        backend.refusal = backend.after_fork()
    devices.KINDS.update(backend.kinds)
    dtypes.state(backend.dtype_names)
    import copyreg

    from xdevice.contract import Backend

    # processes that data loaders start get their arguments by pickle
    copyreg.pickle(type(backend), _by_name)
    _loaded[backend.name] = backend
    # only these have a compiler that would trace xdevice's own code
    if type(backend).eagerly is not Backend.eagerly:
        _compiling.append((backend.is_compiling, backend))
    # a type that belonged to nobody may belong to this backend
    _owners.clear()
    for tell in tuple(on_load):
        tell(backend)


def _by_name(backend: Backend) -> tuple[Callable[[str], Backend], tuple[str]]:
    """Returns how a backend is pickled: by name, because each process has its own backend of that name."""
    return load, (backend.name,)


# types


def owner_of(cls: type) -> Backend | None:
    """Returns the backend that a type belongs to, found by the modules in which the type and its bases are defined;
    None if there is none. Loads the adapter if need be."""
    owned = _look_up(cls)
    return owned.backend if owned is not None else None


def kind_of(cls: type) -> Owned | None:
    """Returns the backend and the kind of a type of tensors, symbols or models; None for any other type."""
    owned = _look_up(cls)
    return owned if owned is not None and owned.kind is not None else None


def _from_native(native: object) -> devices.Device | None:
    owner = owner_of(type(native))
    return owner.from_native(native) if owner is not None else None


devices.answers.from_native = _from_native


def remember(facts: dict[int, Any], cls: type, fact: Any) -> None:
    """Stores a fact about a type in `facts`, under the type's `id`, for as long as the type lives. A
    `WeakKeyDictionary` would be three times slower to read."""
    from weakref import finalize

    facts[id(cls)] = fact
    finalize(cls, facts.pop, id(cls), None).atexit = False


def kept_by_type(learn: Callable[[type], _Fact]) -> Callable[[type], _Fact]:
    """Decorates a function that takes a type: its result is cached for as long as the type lives. `functools.cache`
    would keep the types alive, and cannot take those whose metaclass refuses to be hashed."""
    facts: dict[int, _Fact] = {}

    def look_up(cls: type) -> _Fact:
        if id(cls) not in facts:
            remember(facts, cls, learn(cls))
        return facts[id(cls)]

    look_up.__doc__ = learn.__doc__
    return look_up


def forget_types() -> None:
    """Forgets which backend and kind each type has, because that depends on the devices, which have changed."""
    probes.clear()
    movable.clear()
    _owners.clear()


def as_array(x: Any) -> Any:
    """Returns a NumPy scalar, such as `x.sum()` gives, as an array without dimensions, and everything else as it is.
    (In a container, a NumPy scalar counts as a number.)"""
    numpy = sys.modules.get("numpy")
    if numpy is None or not issubclass(type(x), numpy.generic):
        return x
    array = numpy.asarray(x)
    return x if array.dtype.kind in "USOMm" or array.dtype.names is not None else array


def _look_up(cls: type) -> Owned | None:
    owned: Any = _owners.get(id(cls), _UNSEEN)
    if owned is _UNSEEN:
        owned = eagerly(lambda: _learn(cls))
    # in a forked child, where the framework would hang
    if owned is not None and owned.backend.refusal is not None:
        raise UnsupportedError(owned.backend.refusal)
    return owned  # type: ignore[no-any-return]


for _function in (load, _look_up):
    # AutoGraph would convert this function too, and warn, where a tf.function calls it; this mark prevents that
    vars(_function)["autograph_info__"] = {}


def _learn(cls: type) -> Owned | None:
    owned = _classify(cls)
    remember(_owners, cls, owned)
    return owned


def eagerly(function: Callable[[], Any]) -> Any:
    """Returns `function()`, called outside every loaded backend's compiler, which could not compile it:
    torch.compile fails at looking up types and at walking containers."""
    for is_compiling, backend in _compiling:
        if is_compiling is None or is_compiling():
            function = partial(backend.eagerly, function)
    return function()


def _classify(cls: type) -> Owned | None:
    """Returns the backend and the kind of a type. A base class of another framework decides where the type's own one
    has no kind for it."""
    from xdevice.contract.backend import Owned

    owner = None
    # each package once, in the order in which Python looks methods up
    for root in dict.fromkeys(base.__module__.partition(".")[0] for base in cls.__mro__):
        backend = _owner_of_module(root)
        if backend is None:
            continue
        owner = owner or backend
        kind = backend.classify(cls)
        if kind is not None:
            if kind == "tensor":
                probes[cls] = backend.probe(cls)
                if not backend.is_host_only:
                    movable[cls] = backend
            return Owned(backend, kind)
        # Keras's classes belong to the framework on which it runs
        if root in GUESTS:
            break
    return Owned(owner, None) if owner is not None else None  # type: ignore[arg-type]


def _owner_of_module(root: str) -> Backend | None:
    """Returns the backend to which a top-level module belongs, and loads it if need be; None if there is none."""
    if root == "builtins" or not _is_imported(root):
        return None
    if root in GUESTS:
        return host_of(root)
    for framework in KNOWN:
        if root in framework.modules:
            return load(framework.name)
    # third-party adapters that are loaded already
    for backend in list_loaded():
        if root in backend.modules:
            return backend
    return load(root) if root in entry_points() else None


def host_of(guest: str) -> Backend:
    """Returns the backend on which a guest, a library over several frameworks such as Keras, is running."""
    from importlib import import_module

    module, function = GUESTS[guest]
    host = load(getattr(import_module(module), function)())
    if guest not in host.guests:
        raise UnsupportedError(
            f"{guest} is running on {host.name} here, where xdevice cannot move its models; "
            f"run it on another framework (KERAS_BACKEND=tensorflow), or place it by {guest}'s own device scope"
        )
    return host


# fork


_imported_before_fork: frozenset[str] = frozenset()
"""The modules that a forked child has from its parent: if an adapter for one is loaded only now, its `after_fork` is
called."""


@forks.in_child
def _after_fork() -> None:
    """Asks each backend whether it works in this forked child, and drops the fast paths to those that do not."""
    global _imported_before_fork, _making
    # a thread of the parent that held the old one is not there to release it
    _making = _thread.RLock()
    _imported_before_fork = frozenset(sys.modules)
    for backend in list_loaded():
        backend.refusal = backend.after_fork()
        if backend.refusal is not None:
            for cls, probe in tuple(probes.items()):
                if backend in (movable.get(cls), getattr(probe, "__self__", None)):
                    del probes[cls]
                    movable.pop(cls, None)
