"""The options of a run. (PYTEST_DONT_REWRITE: this module contains no assertions.)"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from xdevice.base import devices
from xdevice.core import registry, selection
from xdevice.errors import BackendNotFoundError, DeviceError, XDeviceError

if TYPE_CHECKING:
    from .recordings import Recordings


class Settings:
    """The options of this run, from the command line and the ini file. `pytest_configure` creates this object. Raises
    `pytest.UsageError` for a wrong value."""

    def __init__(self, config: pytest.Config) -> None:
        self.device: str | None = config.getoption("xd_device")
        self.recordings: Recordings | None = None
        # the command line takes precedence over the ini file
        option = config.getoption("xd_backends")
        self._text: str = config.getini("xd_backends") if option is None else option
        self._names: tuple[str, ...] | None = None
        self.is_auto = self._text.strip() == "auto"
        if not self.is_auto:
            self._names = _backend_names(self._text)
        if self.device is not None:
            _check_device(self.device, self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the backends on which tests run. If the option is "auto", the names are looked up at the first
        use."""
        if self._names is None:
            self._names = selection.backends()
        return self._names


def _backend_names(text: str) -> tuple[str, ...]:
    """Returns the names of the backends in the value of --xd-backends. Raises `pytest.UsageError` if there is no name,
    or if a backend is unknown or not installed."""
    if not text.strip():
        raise pytest.UsageError(
            "--xd-backends names no backend; write auto, or names such as torch,paddle"
        )
    # an empty word, as in "torch,,jax", is kept, so that it is reported as an unknown name
    words = [word for part in text.split(",") for word in part.split() or [""]]
    try:
        # each backend is listed once, even if the option contains two of its names
        names = tuple(dict.fromkeys(map(registry.canonical, words)))
    except BackendNotFoundError as error:
        raise pytest.UsageError(f"--xd-backends={text}: {error}") from None
    for name in names:
        if not registry.is_installed(name):
            hint = registry.install_hint(name)
            raise pytest.UsageError(
                f"--xd-backends={text}: {name} is not installed here; {hint}"
            )
    return names


def _check_device(text: str, settings: Settings) -> None:
    """Raises `pytest.UsageError`, before the first test runs, if the value of --xd-device does
    not name a device."""
    # the usual case, in which no framework is loaded: a name that xdevice knows
    with suppress(DeviceError):
        devices.parse(text)
        return
    # loading an adapter may make the name known, because it may be the framework's own name for
    # a device. For a mistake such as "gpu1", no framework is loaded
    for name in settings.names if text.partition(":")[0].isalpha() else ():
        with suppress(XDeviceError):
            registry.load(name)
    try:
        devices.parse(text)
    except DeviceError as error:
        raise pytest.UsageError(f"--xd-device={text}: {error}") from None


settings_key: Final[pytest.StashKey[Settings]] = pytest.StashKey()
"""The key of the options in `config.stash`."""
