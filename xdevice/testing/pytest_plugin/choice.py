"""Finds the backend on which a test runs, and the settings for this backend in the test's markers.
(PYTEST_DONT_REWRITE: this module contains no assertions.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from xdevice.core import registry

if TYPE_CHECKING:
    from xdevice.base.devices import Device

_DEVICE_FIXTURES: Final = {"xd_device", "xd_devices", "xd_other_device"}
"""The fixtures that provide a device for a test."""

used_devices: Final[pytest.StashKey[dict[str, Device]]] = pytest.StashKey()
"""For each backend's name, the device that the fixture `xd_device` has returned to tests on that backend."""


class BackendName(str):
    """A value of the parameter `xd`. If a project has its own parameter of that name, its values have other types."""

    __slots__ = ()


NOWHERE: Final = BackendName("none")
"""The value of `xd` for a test that must not run on any of the run's backends. Such a test is reported as skipped."""


def backend_of(item: pytest.Item) -> str | None:
    """Returns the name of the backend on which a test runs; None if the test does not use `xd`."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("xd") if callspec is not None else None
    # a value of another type belongs to a project's own parameter `xd`
    return name if isinstance(name, BackendName) else None


def tolerances(item: pytest.Item) -> dict[str, Any]:
    """Returns the arguments for `assert_parity` that the test's `xd_tol` markers set for its backend; {} if there are
    no such markers. A marker that names no backend applies to all backends. The marker that is closest to the test
    takes precedence."""
    name = backend_of(item)
    options: dict[str, Any] = {}
    # pytest yields the closest marker first; in reverse order, this marker is applied last
    for mark in reversed(list(item.iter_markers("xd_tol"))):
        if not mark.args or name in backends_in_marker(mark):
            options.update(mark.kwargs)
    return options


def backends_in_marker(mark: pytest.Mark) -> tuple[str, ...]:
    """Returns the names of the backends in a marker's arguments, in xdevice's own spelling. Raises
    `BackendNotFoundError` for an unknown name."""
    return tuple(registry.canonical(name) for name in mark.args)


def needs_gpu(item: pytest.Item) -> bool:
    """Whether a test has the marker `xd_needs_gpu`."""
    return item.get_closest_marker("xd_needs_gpu") is not None


def summary_facts(item: pytest.Item, name: str) -> dict[str, Any]:
    """Returns the facts that the summary needs about a test on the backend `name`: this name, the backend's version
    (None if it is not loaded), and whether the test used a GPU. These facts are added to the reports of the test, which
    xdist sends to another process."""
    # `str`, because xdist sends reports through execnet, which refuses subclasses of `str`
    facts: dict[str, Any] = {"backend": str(name), "version": None, "on_gpu": False}
    for backend in registry.list_loaded():
        # the backend of a skipped test may not be loaded, and loading it here could fail
        if backend.name == name:
            facts["version"] = str(backend.version)
            facts["on_gpu"] = needs_gpu(item) or _is_placed_on_gpu(item, name)
    return facts


def _is_placed_on_gpu(item: pytest.Item, name: str) -> bool:
    """Whether the fixture `xd_device` has returned a GPU to this test on the backend `name`. The other fixtures of
    devices also use `xd_device`."""
    device = item.config.stash.get(used_devices, {}).get(name)
    is_placed = not _DEVICE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return is_placed and device is not None and device.kind == "gpu"
