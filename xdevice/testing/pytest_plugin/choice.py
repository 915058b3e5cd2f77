"""Finds the backend that a test runs on, and the settings of the test's markers for that backend.
(PYTEST_DONT_REWRITE: it asserts nothing.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from xdevice.core import registry

if TYPE_CHECKING:
    from xdevice.base.devices import Device

_DEVICE_FIXTURES: Final = {"xd_device", "xd_devices", "xd_other_device"}
"""The fixtures that give a test a device."""

used_devices: Final[pytest.StashKey[dict[str, Device]]] = pytest.StashKey()
"""For each backend's name, the device that the fixture `xd_device` has given to tests on that
backend."""


class BackendName(str):
    """A value of the parameter `xd`. A project's own parameter of that name has values of other
    types."""

    __slots__ = ()


NOWHERE: Final = BackendName("none")
"""The value of `xd` for a test that no backend of this run may run. Such a test is reported as
skipped."""


def backend_of(item: pytest.Item) -> str | None:
    """Returns the name of the backend that a test runs on; None if the test does not use
    `xd`."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("xd") if callspec is not None else None
    # not the value of a project's own parameter with the name `xd`
    return name if isinstance(name, BackendName) else None


def tolerances(item: pytest.Item) -> dict[str, Any]:
    """Returns the arguments for `assert_parity` that the test's `xd_tol` markers set for its
    backend; {} if there are none. A marker that names no backend applies to all. The marker
    closest to the test takes precedence."""
    name = backend_of(item)
    options: dict[str, Any] = {}
    # pytest yields the closest marker first, so in reverse it is applied last
    for mark in reversed(list(item.iter_markers("xd_tol"))):
        if not mark.args or name in named_by(mark):
            options.update(mark.kwargs)
    return options


def named_by(mark: pytest.Mark) -> tuple[str, ...]:
    """Returns the names of the backends in a marker's arguments, each in xdevice's own
    spelling. Raises `BackendNotFoundError` for an unknown name."""
    return tuple(registry.canonical(name) for name in mark.args)


def needs_gpu(item: pytest.Item) -> bool:
    """Whether a test has the marker `xd_needs_gpu`."""
    return item.get_closest_marker("xd_needs_gpu") is not None


def facts_of(item: pytest.Item, name: str) -> dict[str, Any]:
    """Returns the facts about a test on the backend `name` that the summary needs: the name of
    the backend, its version (None if it is not loaded), and whether the test used a GPU. They
    are added to the reports of the test, which xdist sends to another process."""
    # `str`, because execnet, by which xdist sends reports, refuses subclasses of it
    facts: dict[str, Any] = {"backend": str(name), "version": None, "on_gpu": False}
    for backend in registry.list_loaded():
        # without loading one, which could fail: a test that was skipped may not have loaded it
        if backend.name == name:
            facts["version"] = str(backend.version)
            facts["on_gpu"] = needs_gpu(item) or _is_placed_on_gpu(item, name)
    return facts


def _is_placed_on_gpu(item: pytest.Item, name: str) -> bool:
    """Whether a fixture of the plugin has given a GPU to this test on the backend `name`."""
    device = item.config.stash.get(used_devices, {}).get(name)
    is_placed = not _DEVICE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return is_placed and device is not None and device.kind == "gpu"
