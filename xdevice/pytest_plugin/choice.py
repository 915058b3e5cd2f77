"""Which backend a test runs on, and what the test's markers say about that backend. (PYTEST_DONT_REWRITE: it asserts
nothing.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from xdevice.core import registry, selection
from xdevice.errors import BackendNotFoundError

if TYPE_CHECKING:
    from xdevice.base.devices import Device

    from .recordings import Recordings

_DEVICE_FIXTURES: Final = {"xd_device", "xd_devices", "xd_other_device"}

placed: Final[pytest.StashKey[dict[str, Device]]] = pytest.StashKey()
"""By the name of each backend: the device that the fixture `xd_device` has given to tests on it."""


class Settings:
    """The options of this run that the command line and the ini file give. `pytest_configure` makes it."""

    def __init__(self, config: pytest.Config) -> None:
        self.device: str | None = config.getoption("xd_device")
        self.recordings: Recordings | None = None
        asked = config.getoption("xd_backends")
        self._text: str = config.getini("xd_backends") if asked is None else asked
        self._names: tuple[str, ...] | None = None
        self.is_auto = self._text.strip() == "auto"
        if not self.is_auto:
            self._names = _named(self._text)

    @property
    def names(self) -> tuple[str, ...]:
        """The backends that tests are run on. With "auto" they are looked up at the first use."""
        if self._names is None:
            self._names = selection.backends()
        return self._names

    def only(self, name: str) -> None:
        self._names = (name,)


def _named(text: str) -> tuple[str, ...]:
    try:
        names = tuple(dict.fromkeys(registry.canonical(name) for name in text.replace(",", " ").split()))
    except BackendNotFoundError as error:
        raise pytest.UsageError(f"--xd-backends={text}: {error}") from None
    if not names:
        raise pytest.UsageError("--xd-backends names no backend: give auto, or names such as torch,paddle")
    for name in names:
        if not registry.is_installed(name):
            hint = registry.install_hint(name)
            raise pytest.UsageError(f"--xd-backends={text}: {name} is not installed here; {hint}")
    return names


settings_key: Final[pytest.StashKey[Settings]] = pytest.StashKey()


class BackendName(str):
    """A value of the parameter `xd`. A project's own parameter of that name has values of other types."""

    __slots__ = ()


NOWHERE: Final = BackendName("none")
"""The value of `xd` for a test that no backend of this run may run: the test is reported as skipped, not dropped."""


def backend_of(item: pytest.Item) -> str | None:
    """The backend that a test runs on; None if the test does not use `xd`."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("xd") if callspec is not None else None
    return name if isinstance(name, BackendName) else None


def tolerances(item: pytest.Item) -> dict[str, Any]:
    """The arguments for `assert_parity` that the test's `xd_tol` markers give for the backend it runs on. The marker
    closest to the test takes precedence."""
    name = backend_of(item)
    given: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("xd_tol"))):
        if not mark.args or name in named_by(mark):
            given.update(mark.kwargs)
    return given


def named_by(mark: pytest.Mark) -> tuple[str, ...]:
    return tuple(registry.canonical(name) for name in mark.args)


def needs_gpu(item: pytest.Item) -> bool:
    return item.get_closest_marker("xd_needs_gpu") is not None


def about(item: pytest.Item, name: str) -> dict[str, Any]:
    """The facts about a test that the summary needs, as a dict. The test's reports carry it, also between processes."""
    backend = next((backend for backend in registry.list_loaded() if backend.name == name), None)
    if backend is None:
        return {"backend": str(name), "version": None, "on_gpu": False}
    device = item.config.stash.get(placed, {}).get(name)
    is_placed = not _DEVICE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    on_gpu = needs_gpu(item) or (is_placed and device is not None and device.kind == "gpu")
    # plain strings: execnet, which carries reports between processes, refuses subclasses
    return {"backend": str(name), "version": str(backend.version), "on_gpu": on_gpu}
