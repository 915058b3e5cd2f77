"""The import hook that loads a backend when the program itself imports a framework after `import xdevice`. The
program's own `import mxnet`, for example, loads xdevice's backend for MXNet.

`import xdevice` imports this module, so this module must not import anything that takes time.

While Python asks the finders of `sys.meta_path` for a module, it holds a lock that every import needs for a moment. So
if a finder imports a module that another thread has begun to import, the two threads may wait for each other forever.
Therefore the code that `_Finder.find_spec` calls must not import anything.

Python holds a lock for each module that is being imported. To avoid deadlocks, all code that loads a backend acquires
locks in this order: the lock of the framework's module, the lock of the adapter's module, and then
`loader.import_lock`. `registry.load` therefore begins by importing the framework.
"""

from __future__ import annotations

import _thread
import sys
import time

from xdevice.base import forks, requested

from . import frameworks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Final

    from .frameworks import Framework

# the modules whose import this hook may take over: not NumPy (the last of `KNOWN`), which all
# frameworks import
_intercepted: Final = {
    framework.modules[0]: framework for framework in frameworks.KNOWN[:-1]
} | {
    guest: framework
    for guest in frameworks.GUESTS
    for framework in frameworks.KNOWN
    if guest in framework.modules
}
_being_handed_over: Final[list[tuple[int, Framework]]] = []
"""The frameworks whose import is being handed over to xdevice, each with the thread that is importing the framework."""
_being_looked_up: Final[list[tuple[int, Framework]]] = []
"""The frameworks whose specs are being requested from the other finders of `sys.meta_path`, each with the thread that
makes the request."""


class _Finder:
    """Hands the import of a framework to xdevice if an ordinary import may not be enough. It may not be enough if
    environment variables of xdevice apply to every framework, if xdevice itself has loaded or is loading the backend,
    or if another framework has been imported. An ordinary import may also fail or break the framework
    (`Framework.is_fragile`)."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a framework, with a `_Loader` as its loader. Returns None to leave the import to the
        other finders. Python calls this method for each import."""
        # most imports are imports of other modules, and return here
        framework = _intercepted.get(name)
        if framework is None or name in sys.modules:
            return None
        entry = _thread.get_ident(), framework
        # if this thread is already inside `find_spec` below or inside the loader, the framework's own
        # loader has to do the import
        if (
            entry in _being_handed_over
            or entry in _being_looked_up
            or not _is_needed(framework)
        ):
            return None
        _being_looked_up.append(entry)
        try:
            spec = _find_with_others(name, path, target)
        finally:
            _being_looked_up.remove(entry)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, framework)  # type: ignore[assignment]
        return spec


def _find_with_others(
    name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Returns the spec that the first of the other finders of `sys.meta_path` finds, or None. Those finders may ask all
    finders again; this module's finder then returns None, because of the entry in `_being_looked_up`."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path, target) if finder is not _finder else None
        if spec is not None:
            return spec
    return None


class _Loader:
    """Wraps the loader of a framework, so that xdevice creates the framework's backend while the framework is being
    imported."""

    def __init__(self, loader: object, framework: Framework) -> None:
        self._loader = loader
        self._known = framework

    # other methods, such as `get_source`, are those of the framework's own loader
    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports the framework with its own loader, and returns its module. xdevice creates the backend before this
        import. For a library that runs on several frameworks, such as Keras, it creates the backend after the
        import."""
        from importlib import import_module

        entry = _thread.get_ident(), self._known
        _being_handed_over.append(entry)
        try:
            if spec.name not in frameworks.GUESTS and not self._is_brought_by_another():
                self._wait_for_brought_frameworks()
                self._hand_over(spec.name)
            # `find_spec` leaves this import to the framework's own loader, because of the entry
            module = import_module(spec.name)
            # after the import: the adapter may need the finished module
            if spec.name in frameworks.GUESTS:
                self._hand_over(spec.name)
        finally:
            _being_handed_over.remove(entry)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the `__spec__` of the module. Does not run the module, because
        `create_module` has already done so."""
        # Python has replaced the module's own spec by the spec that has this loader
        module.__spec__ = self._spec

    def _is_brought_by_another(self) -> bool:
        """Whether a framework that is being imported also imports this framework, as TensorFlow imports JAX. Creating a
        backend could then deadlock, because the thread that imports the other framework may hold `import_lock` while it
        waits for this import."""
        return any(self._known.name in other.brings for _, other in tuple(_being_handed_over))

    def _wait_for_brought_frameworks(self) -> None:
        """Waits until no other thread is importing a framework that this framework will import too. Otherwise this
        thread would acquire `import_lock` and then wait for the other thread's import, which waits for
        `import_lock`."""
        this_thread = _thread.get_ident()
        # copied into a tuple, because other threads change the list
        while any(
            thread != this_thread and other.name in self._known.brings
            for thread, other in tuple(_being_handed_over)
        ):
            time.sleep(0.01)

    def _hand_over(self, name: str) -> None:
        """Creates the backend of the module called `name`, which is being imported. Ignores errors of xdevice's
        adapter, which are raised again when the program first uses the backend.

        Raises:
            SettingError: if an environment variable of xdevice has an invalid value.
            Exception: the framework's own error, if the framework cannot be imported.
        """
        from xdevice.errors import BackendImportError, SettingError

        from . import selection

        try:
            selection.load_backend_of(name, self._known)
        # continuing would silently ignore the variable
        except SettingError:
            raise
        except BackendImportError as error:
            # if the framework could not be imported, raise its own error, as `import` does without xdevice.
            # Otherwise only the adapter has failed, which does not matter yet
            if name not in sys.modules:
                raise (error.__cause__ or error) from None
        # a program that only imports the framework is not interrupted; the error is raised again when the
        # backend is first used
        except Exception:
            pass


_finder: Final = _Finder()


def _is_needed(framework: Framework) -> bool:
    """Whether xdevice has to take over the import of a framework, because an ordinary import may fail, or would ignore
    settings in xdevice's environment variables."""
    # the adapter itself imports its framework, and in the right way
    if f"xdevice_{framework.name}" in sys.modules:
        return False
    if (
        framework.is_fragile
        or framework.name in frameworks.wanted
        or any(other is not framework for other in frameworks.list_imported())
    ):
        return True
    return requested.anything()


def install() -> None:
    """Installs the finder. From now on, xdevice takes over an import of a framework if this is necessary (see
    `_is_needed`)."""
    # `importlib.reload(xdevice)` calls this again
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


# in a forked child


@forks.in_child
def _after_fork() -> None:
    """Removes the entries of other threads from `_being_handed_over` and `_being_looked_up`, because these threads do
    not exist in the forked child."""
    for entries in (_being_handed_over, _being_looked_up):
        entries[:] = [entry for entry in entries if entry[0] == _thread.get_ident()]
