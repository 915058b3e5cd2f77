"""Which backend a test runs on, and what the test's markers say about that backend. (PYTEST_DONT_REWRITE: it asserts
nothing.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from xdevice.core import registry

if TYPE_CHECKING:
    from xdevice.base.devices import Device

_DEVICE_FIXTURES: Final = {"xd_device", "xd_devices", "xd_other_device"}

placed: Final[pytest.StashKey[dict[str, Device]]] = pytest.StashKey()
"""For each backend's name, the device that the fixture `xd_device` has given to tests on that backend."""


class BackendName(str):
    """A value of the parameter `xd`. A project's own parameter of that name has values of other types."""

    __slots__ = ()


NOWHERE: Final = BackendName("none")
"""The value of `xd` for a test that no backend of this run may run: the test is reported as skipped, not dropped."""


def backend_of(item: pytest.Item) -> str | None:
    """The backend that a test runs on; None if the test does not use `xd`."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("xd") if callspec is not None else None
    # a project's own parameter `xd` is none of ours
    return name if isinstance(name, BackendName) else None


def tolerances(item: pytest.Item) -> dict[str, Any]:
    """The arguments for `assert_parity` that the test's `xd_tol` markers give for the backend it runs on. The marker
    closest to the test takes precedence."""
    name = backend_of(item)
    options: dict[str, Any] = {}
    # the closest marker comes first, so it is applied last
    for mark in reversed(list(item.iter_markers("xd_tol"))):
        if not mark.args or name in named_by(mark):
            options.update(mark.kwargs)
    return options


def named_by(mark: pytest.Mark) -> tuple[str, ...]:
    return tuple(registry.canonical(name) for name in mark.args)


def needs_gpu(item: pytest.Item) -> bool:
    return item.get_closest_marker("xd_needs_gpu") is not None


def about(item: pytest.Item, name: str) -> dict[str, Any]:
    """The facts about a test that the summary needs, as a dict. The test's reports carry it, also between processes."""
    # plain strings: execnet, which carries reports between processes, refuses subclasses
    facts: dict[str, Any] = {"backend": str(name), "version": None, "on_gpu": False}
    for backend in registry.list_loaded():
        # the version is known only of a backend that was loaded
        if backend.name == name:
            facts["version"] = str(backend.version)
            facts["on_gpu"] = needs_gpu(item) or _is_placed_on_gpu(item, name)
    return facts


def _is_placed_on_gpu(item: pytest.Item, name: str) -> bool:
    """Whether a test has a GPU from one of the plugin's fixtures."""
    device = item.config.stash.get(placed, {}).get(name)
    is_placed = not _DEVICE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return is_placed and device is not None and device.kind == "gpu"
