"""Finds the adapters that exist, loads their backends, and determines to which backend a type belongs."""

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
"""The group of entry points in which packages list their adapters."""


probes: Final[dict[type, Callable[[Any], devices.Device]]] = {}
"""For each tensor type that was looked up, the `probe` of its backend: a function that returns the device of such a
tensor. This cache makes `device_of` fast."""

movable: Final[dict[type, Backend]] = {}
"""The backend of each tensor type that was looked up, except types whose tensors are always on the host."""

on_load: Final[list[Callable[[Backend], None]]] = []
"""Functions that are called with each backend when it is loaded."""

_creation_lock = _thread.RLock()
"""Held while a backend is created, and set up according to environment variables, so that only one thread does this at
a time."""
_loaded: dict[str, Backend] = {}
_compilers: Final[list[tuple[Callable[[], bool] | None, Backend]]] = []
"""A pair for each loaded backend whose adapter overrides `eagerly`: the adapter's `is_compiling`, and the backend."""
_owners: dict[int, Owned | None] = {}
"""The backend and kind of each type that was looked up, by the type's `id`; None for a type that belongs to no backend.
The kind is None if the type belongs to a framework, but the type's objects are neither tensors nor symbols nor
models."""
# the default of a look-up in `_owners`, where the value None has a meaning of its own
_UNSEEN: Final = object()
# the result of the first call of `entry_points`; None before it
_entry_points: dict[str, EntryPoint] | None = None


# names of backends


def canonical(name: str) -> str:
    """Returns the name of the backend that has this name or alias, in upper or lower case. Raises
    `BackendNotFoundError` if there is no such backend."""
    # the values of environment variables often have spaces or capitals
    wanted = name.strip().lower() if isinstance(name, str) else ""
    for framework in KNOWN:
        if wanted == framework.name or wanted in framework.aliases:
            return framework.name
    for third_party in entry_points():
        if wanted == third_party.lower():
            return third_party
    # cut, because comparing a long string with each name would take long
    raise BackendNotFoundError(
        f"there is no backend {shown(name)}{_nearest(wanted[:100])}; {_overview()}"
    )


def names() -> tuple[str, ...]:
    """Returns the names of all known backends: the built-in ones in order of preference, then third-party ones."""
    built_in = tuple(framework.name for framework in KNOWN)
    return built_in + tuple(sorted(set(entry_points()) - set(built_in)))


def is_installed(name: str) -> bool:
    """Whether a backend can be loaded. For a built-in backend, this means that its framework is installed, which is
    checked without importing the framework. For any other name, this means that an adapter of that name is
    installed."""
    framework = frameworks.find(name)
    if framework is None:
        return name in entry_points()
    # a module that is imported needs no search of the file system
    if _is_imported(framework.modules[0]):
        return True
    # imported only here, to keep `import xdevice` fast
    from importlib.util import find_spec

    return find_spec(framework.modules[0]) is not None


def install_hint(name: str) -> str:
    """Returns the command that installs the framework of a built-in backend, or the package of a third party's
    adapter."""
    framework = frameworks.find(name)
    if framework is not None:
        return framework.install
    distribution = entry_points()[name].dist
    return f"pip install {distribution.name if distribution else name}"


def imported_frameworks() -> tuple[str, ...]:
    """Returns the names of the built-in backends whose frameworks the program has imported. Ignores NumPy, because all
    frameworks import NumPy, and ignores frameworks that other imported frameworks import."""
    imported = frameworks.list_imported()
    # TensorFlow imports JAX if JAX is installed, which says nothing about the program
    imported_by_others = {name for framework in imported for name in framework.brings}
    return tuple(
        framework.name for framework in imported if framework.name not in imported_by_others
    )


def _is_imported(module: str) -> bool:
    """Whether a module is imported. (The value None in `sys.modules` blocks an import.)"""
    return sys.modules.get(module) is not None


def entry_points() -> dict[str, EntryPoint]:
    """Returns the entry points of all installed adapters, built-in and third-party, by backend name, without importing
    the adapters. Raises `ContractError` if two adapters claim the same name."""
    global _entry_points
    if _entry_points is None:
        from importlib.metadata import entry_points as installed

        points: dict[str, EntryPoint] = {}
        for point in installed(group=GROUP):
            _refuse_conflict(point, points.get(point.name))
            points[point.name] = point
        _entry_points = points
        if (clash := namesake_warning()) is not None:
            import warnings

            warnings.warn(clash, RuntimeWarning, stacklevel=2)
    return _entry_points


def namesake_warning() -> str | None:
    """Returns the text of a warning if PyPI's unrelated package `xdevice` is also installed, because both packages
    contain a file `xdevice/__init__.py`. Returns None if that package is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        its_version = version("xdevice")
    except PackageNotFoundError:
        return None
    return (
        f"another package, xdevice {its_version}, is also installed; it and xdevice-dl (the package in use) overwrite "
        "each other's files. To keep xdevice-dl, run `pip uninstall xdevice`, and then `pip install "
        "--force-reinstall --no-deps xdevice-dl`"
    )


def _refuse_conflict(new: EntryPoint, old: EntryPoint | None) -> None:
    """Raises `ContractError` if the adapter `new` claims an alias of a built-in backend, or the name of a different
    adapter `old`. `old` is None if no other adapter has that name yet."""
    # an adapter that is listed twice does not conflict with itself
    if old is not None and (old.value, _distribution(old)) != (new.value, _distribution(new)):
        raise ContractError(
            f"two adapters claim the backend name {new.name!r}: {_source(old)} and {_source(new)}; uninstall one"
        )
    for framework in KNOWN:
        if new.name in framework.aliases:
            raise ContractError(
                f"{_source(new)} claims the name {new.name!r}, an alias of the built-in {framework.name!r}; "
                "uninstall that package"
            )


def _distribution(point: EntryPoint) -> str:
    """Returns the name and version of the package that contains an adapter, as errors show them. `point` is the
    adapter's entry point."""
    # an entry point that was not read from an installed package has no `dist`
    return (
        f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
    )


def _source(point: EntryPoint) -> str:
    """Returns the class and the package of an adapter, as errors show them: "a_module:Class of package 1.0". `point` is
    the adapter's entry point."""
    return f"{point.value} of {_distribution(point)}"


def _nearest(name: str) -> str:
    """Returns a hint for the error about an unknown backend name. The hint says that the name is empty, names the
    backend to which a library of this name belongs, or suggests the most similar known name. Returns "" if there is no
    hint."""
    if not name:
        return ": the name is empty (is a variable such as $XDEVICE_BACKEND unset?)"
    # `name` may be a module or library of the framework: "keras", "jaxlib", "flax"
    owner = next(
        (framework.name for framework in KNOWN if name in framework.modules),
        frameworks.LIBRARIES.get(name),
    )
    if owner is not None:
        return f": the backend for {name} is called {owner!r}"
    import difflib

    aliases = [alias for framework in KNOWN for alias in framework.aliases]
    # the similarity of "jxa" and "jax" is 0.67
    close = difflib.get_close_matches(name, [*names(), *aliases], n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _overview() -> str:
    """Returns a string for errors that lists the known and the installed backends."""
    installed = [name for name in names() if is_installed(name)]
    return f"known: {', '.join(names())}; installed: {', '.join(installed)}"


# loading backends


def load(name: str) -> Backend:
    """Returns the backend for a name or alias. Imports its framework on first use.

    Several threads may call this function at once, and the thread that loads a backend may end before other threads use
    the backend. Python's import locks and `loader.importing` guard the import; `_creation_lock` guards the steps that
    follow.

    Raises:
        BackendNotFoundError: if the name is unknown, or the framework is not installed. BackendImportError: if the
            framework cannot be imported, or is too old.
        ContractError: if the adapter breaks the contract.
        SettingError: if an environment variable has an invalid value. UnsupportedError: if this is a forked child in
            which the backend cannot work.
    """
    backend = _loaded.get(name) or _load_untraced(name)
    if backend.refusal is not None:
        raise UnsupportedError(backend.refusal)
    return backend


def list_loaded() -> tuple[Backend, ...]:
    """Returns the backends that have been loaded so far, in the order of loading."""
    return tuple(_loaded.values())


def _load_untraced(name: str) -> Backend:
    """Returns the backend for a name or alias. torch.compile does not trace the loading of a backend. Otherwise, if the
    first call of xdevice is in a compiled function, torch.compile would trace the import of the adapter. This took 22 s
    instead of 2.5 s (PyTorch 2.13)."""
    dynamo = sys.modules.get("torch._dynamo")
    load_backend: Callable[[str], Backend] = _load if dynamo is None else dynamo.disable(_load)
    return load_backend(canonical(name))


def _load(name: str) -> Backend:
    """Returns the backend of this name, which is not an alias. If the backend is not loaded yet, imports its framework
    and creates the backend. Raises the errors of `load`."""
    if name in _loaded:
        return _loaded[name]
    if not is_installed(name):
        raise BackendNotFoundError(
            f"the backend {name!r} is not installed here; run {install_hint(name)}; {_overview()}"
        )
    from xdevice.contract import environment

    environment.check()
    framework = frameworks.find(name)
    # a third party's adapter imports its framework itself, so "sys", which is always imported, takes
    # the place of the module
    module = framework.modules[0] if framework is not None else "sys"
    # if the adapter has no entry point, the framework is not imported, and `make` raises the error
    if not _is_imported(module) and name in entry_points():
        from importlib import import_module

        # tells xdevice's import hook, which intercepts the imports of the program, that this import is
        # xdevice's own
        frameworks.wanted.add(name)
        try:
            import_module(module)
        # not an error of the framework: the hook has found a variable with an invalid value
        except SettingError:
            raise
        except Exception as error:
            raise _import_failed(name, error) from error
    return make(name)


def make(name: str) -> Backend:
    """Returns the backend of this name, which is not an alias. Creates the backend if it is not loaded yet. The
    framework must have been imported, or this thread must be importing it. Raises the errors of `load`."""
    if name in _loaded:
        return _loaded[name]
    from xdevice.contract import check, environment

    framework = frameworks.find(name)
    # Paddle can replace the module `torch` by a proxy
    stand_in = frameworks.stand_in(framework.modules[0]) if framework is not None else None
    if framework is not None and stand_in is not None:
        raise BackendImportError(
            f"the backend {name!r} cannot be imported, because `import {framework.modules[0]}` imports {stand_in} in "
            f"this process, as it does after paddle.enable_compat(); select the backend {stand_in!r}, or call "
            f"paddle.disable_compat() before {framework.modules[0]} is imported"
        )
    point = entry_points().get(name)
    if point is None:
        raise BackendNotFoundError(
            f"the adapter of {name!r}, which is part of xdevice, is not installed; reinstall xdevice"
        )
    environment.check()
    try:
        cls = point.load()
    # a variable that only the adapter reads has an invalid value
    except SettingError:
        raise
    # a broken installation may raise any error: OSError, AttributeError, RuntimeError
    except Exception as error:
        raise _import_failed(name, error) from error
    adapter = check(cls, name, _source(point))
    with _creation_lock:
        # another thread has made the backend while this thread waited for the lock
        if name in _loaded:
            return _loaded[name]
        try:
            backend = adapter()
        except Exception as error:
            raise _import_failed(name, error) from error
        _refuse_too_old(backend)
        # virtual GPUs, float64 and blocking mode, if the program or the environment requests them
        environment.set_up(backend)
        _register(backend)
        return backend


_PLUGINS_VARIABLE: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""The environment variable that disables the plugins of other vendors. PyTorch loads these plugins when it is imported,
and its error names the variable if a plugin fails."""


def _import_failed(name: str, error: Exception) -> BackendImportError:
    """Returns the error to raise if the framework or the adapter of the backend `name` cannot be imported because of
    `error`. The message says how to fix the problem."""
    # reinstalling the framework, as the message below advises, would not help in this case
    if _PLUGINS_VARIABLE in str(error):
        return BackendImportError(
            f"the backend {name!r} cannot be imported, because a third-party device plugin failed to load: {error}; "
            f"install what the plugin requires, such as a driver, or set {_PLUGINS_VARIABLE}=0 to load no plugins"
        )
    return BackendImportError(
        f"the backend {name!r} is installed but cannot be imported: {type(error).__name__}: {error}; "
        f"`xdevice info {name}` shows the details; to reinstall it, run {install_hint(name)}"
    )


def _refuse_too_old(backend: Backend) -> None:
    """Raises `BackendImportError` if the version of the framework is older than the adapter
    needs."""
    import re

    # "2.6.0+cpu" and "2.6.0rc1" are both treated as (2, 6, 0)
    installed = tuple(int(part) for part in re.findall(r"\d+", backend.version)[:3])
    if installed < backend.minimum:
        wanted = ".".join(map(str, backend.minimum))
        raise BackendImportError(
            f"{backend.name} {backend.version} is too old: xdevice needs {wanted} or newer; run "
            f"{install_hint(backend.name).replace('install', 'install --upgrade', 1)}"
        )


def _register(backend: Backend) -> None:
    """Registers a new backend, so that the types of its framework belong to it from now on. Also calls the functions in
    `on_load`."""
    # in a forked child whose parent had imported the framework, the framework may not work
    if _imported_before_fork & set(backend.modules):
        backend.refusal = backend.after_fork()
    devices.KINDS.update(backend.kinds)
    dtypes.register_names(backend.dtype_names)
    import copyreg

    from xdevice.contract import Backend

    # data loaders pickle the arguments of the processes that they start, and these arguments may
    # include backends
    copyreg.pickle(type(backend), _by_name)
    _loaded[backend.name] = backend
    # only an adapter that overrides `eagerly` has a compiler that would trace xdevice's code
    if type(backend).eagerly is not Backend.eagerly:
        _compilers.append((backend.is_compiling, backend))
    # a type that belonged to no backend may belong to this one
    _owners.clear()
    for function in tuple(on_load):
        function(backend)


def _by_name(backend: Backend) -> tuple[Callable[[str], Backend], tuple[str]]:
    """Returns the function and the arguments with which pickle restores a backend. The backend is restored by its name,
    because each process has its own backend of that name."""
    return load, (backend.name,)


# the backends of types


def owner_of(cls: type) -> Backend | None:
    """Returns the backend to which a type belongs, or None if the type belongs to no backend. This depends on the
    modules that define the type and its bases. Loads the backend if necessary, and raises `UnsupportedError` if the
    backend cannot work in this process."""
    owned = _look_up(cls)
    return owned.backend if owned is not None else None


def owner_and_kind(cls: type) -> Owned | None:
    """Returns the backend and the kind of a type of tensors, symbols or models; None for any other type, even if a
    framework defines it. Loads the backend if necessary, and raises `UnsupportedError` if the backend cannot work in
    this process."""
    owned = _look_up(cls)
    return owned if owned is not None and owned.kind is not None else None


def _from_native(native: object) -> devices.Device | None:
    """Returns the device for a framework's own device object; None for any other object."""
    owner = owner_of(type(native))
    return owner.from_native(native) if owner is not None else None


devices.core_functions.from_native = _from_native


def remember(facts: dict[int, Any], cls: type, fact: Any) -> None:
    """Stores a fact about a type in `facts`, under the type's `id`, for as long as the type exists. A
    `WeakKeyDictionary` would be three times slower to read."""
    from weakref import finalize

    facts[id(cls)] = fact
    # removed with the type, because another type may later get the same id; at the exit of the process
    # this does not matter
    finalize(cls, facts.pop, id(cls), None).atexit = False


def cached_by_type(learn: Callable[[type], _Fact]) -> Callable[[type], _Fact]:
    """Decorates `learn`, a function of a type, so that each result is cached for as long as the type exists.
    `functools.cache` would keep the types alive, and cannot handle a type whose metaclass makes the type unhashable."""
    facts: dict[int, _Fact] = {}

    def look_up(cls: type) -> _Fact:
        """Returns `learn(cls)`, which is computed only at the first call for each type."""
        if id(cls) not in facts:
            remember(facts, cls, learn(cls))
        return facts[id(cls)]

    look_up.__doc__ = learn.__doc__
    return look_up


def forget_types() -> None:
    """Empties the caches of types: `probes`, `movable` and `_owners`. Called after the devices have changed, because
    the `probe` of a type may depend on the devices."""
    probes.clear()
    movable.clear()
    _owners.clear()


def as_array(x: Any) -> Any:
    """Converts a NumPy scalar, such as the result of `x.sum()`, to a 0-d array. Returns any other
    object unchanged. (In a container, a NumPy scalar is treated as a number instead.)"""
    numpy = sys.modules.get("numpy")
    # without NumPy there are no NumPy scalars
    if numpy is None or not issubclass(type(x), numpy.generic):
        return x
    array = numpy.asarray(x)
    # strings, bytes, objects, times and records are not numbers, so they are not tensors
    return x if array.dtype.kind in "USOMm" or array.dtype.names is not None else array


def _look_up(cls: type) -> Owned | None:
    """Returns the backend and the kind of a type, or None if the type belongs to no backend. The result comes from
    `_owners` if the type was looked up before. Raises `UnsupportedError` if the backend cannot work in this process."""
    owned: Any = _owners.get(id(cls), _UNSEEN)
    if owned is _UNSEEN:
        owned = call_outside_compilers(lambda: _learn(cls))
    # the process is a forked child, where the framework would hang
    if owned is not None and owned.backend.refusal is not None:
        raise UnsupportedError(owned.backend.refusal)
    return owned  # type: ignore[no-any-return]


for _function in (load, _look_up):
    # if a tf.function calls this function, AutoGraph would try to convert it, and warn; this mark
    # prevents that
    vars(_function)["autograph_info__"] = {}


def _learn(cls: type) -> Owned | None:
    """Returns the backend and the kind of a type, or None if the type belongs to no backend. Stores the result in
    `_owners`."""
    owned = _classify(cls)
    remember(_owners, cls, owned)
    return owned


def call_outside_compilers(function: Callable[[], Any]) -> Any:
    """Calls `function` outside the compilers of all loaded backends, and returns its result. The compilers could not
    compile the call: torch.compile fails when types are looked up, and when containers are walked."""
    for is_compiling, backend in _compilers:
        # if `is_compiling` is None, the backend cannot determine this quickly, so its `eagerly` is always
        # used
        if is_compiling is None or is_compiling():
            function = partial(backend.eagerly, function)
    return function()


def _classify(cls: type) -> Owned | None:
    """Returns the backend and the kind of a type, or None if the type belongs to no backend. If the framework that
    defines the type assigns no kind to the type, the framework of a base class decides."""
    from xdevice.contract.backend import Owned

    owner = None
    # each package is tried once, in the order in which Python looks methods up
    for root in dict.fromkeys(base.__module__.partition(".")[0] for base in cls.__mro__):
        backend = _owner_of_module(root)
        if backend is None:
            continue
        # if no backend assigns a kind to the type, the type belongs to the first backend
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
    # without a kind, for a type such as a framework's device or dtype
    return Owned(owner, kind=None) if owner is not None else None  # type: ignore[arg-type]


def _owner_of_module(root: str) -> Backend | None:
    """Returns the backend to which the top-level module `root` belongs, and loads the backend if necessary. Returns
    None if the module belongs to no backend, or is not imported."""
    # the `__module__` of a class may name a module that does not exist, so nothing is imported because
    # of that name
    if root == "builtins" or not _is_imported(root):
        return None
    if root in GUESTS:
        return backend_of_guest(root)
    for framework in KNOWN:
        if root in framework.modules:
            return load(framework.name)
    # adapters of third parties that are already loaded
    for backend in list_loaded():
        if root in backend.modules:
            return backend
    return load(root) if root in entry_points() else None


def backend_of_guest(guest: str) -> Backend:
    """Returns the backend that `guest` is running on. `guest` is the name of a library that runs on several frameworks,
    such as Keras. Raises `UnsupportedError` if that backend cannot move the library's models, and the errors of
    `load`."""
    from importlib import import_module

    module, function = GUESTS[guest]
    host = load(getattr(import_module(module), function)())
    if guest not in host.guests:
        raise UnsupportedError(
            f"{guest} is running on {host.name}, where xdevice cannot move {guest}'s models; run {guest} on another "
            f"framework (KERAS_BACKEND=tensorflow), or place the models with {guest}'s own device scope"
        )
    return host


# in a forked child


_imported_before_fork: frozenset[str] = frozenset()
"""In a forked child, the modules that the parent had imported; otherwise empty. If the backend of one of these modules
is loaded only in the child, the backend's `after_fork` is called at that point."""


@forks.in_child
def _after_fork() -> None:
    """Asks each loaded backend whether it works in this forked child. If a backend does not, removes its types from
    `probes` and `movable`, so that `_look_up` refuses these types."""
    global _imported_before_fork, _creation_lock
    # a new lock, because a thread of the parent may hold the old lock, and cannot release it in the
    # child
    _creation_lock = _thread.RLock()
    _imported_before_fork = frozenset(sys.modules)
    for backend in list_loaded():
        backend.refusal = backend.after_fork()
        if backend.refusal is not None:
            for cls, probe in tuple(probes.items()):
                # a type whose tensors are always on the host is not in `movable`; its entry in `probes` is a method
                # of its backend
                if backend in (movable.get(cls), getattr(probe, "__self__", None)):
                    del probes[cls]
                    movable.pop(cls, None)
