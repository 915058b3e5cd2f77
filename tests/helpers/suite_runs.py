"""The conformance suite in tests of ours: checks that run without pytest, for adapters with planted faults, and those
that take long."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from xdevice.testing.suite.base import homes_of, on_one_device
from xdevice.testing.suite.capabilities import lacking


class Failure(NamedTuple):
    """A check that failed or was skipped, its error, and the device that its tensors began on."""

    check: str
    error: BaseException
    home: str


def failures(cls, name):
    """The failures of one check of a suite: of each home and each parameter."""
    test = getattr(cls, name)
    found = []
    for home in homes_of(cls, test):
        suite = cls()
        suite.home = home
        if suite.has_home():
            found += [
                one
                for arguments in _parameters(test)
                for one in _failure(suite, name, arguments)
            ]
    return found


def _failure(suite, name, arguments):
    try:
        with suite.select():
            if absent := lacking(suite.adapter, getattr(suite, name)):
                pytest.skip(f"{suite.backend} lacks {', '.join(absent)}")
            getattr(suite, name)(*arguments)
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        return [Failure(name, error, suite.home)]
    return []


def _parameters(test):
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            return [(value,) for value in mark.args[1]]
    return [()]


class ProcessesAreLong:
    """Beside `Conformance`: its tests that import the framework in fresh processes are left to `-m long`."""

    @pytest.mark.long
    @on_one_device
    def test_virtual_gpus_are_devices_of_their_own(self) -> None:
        super().test_virtual_gpus_are_devices_of_their_own()  # type: ignore[misc]

    @pytest.mark.long
    @on_one_device
    def test_forking_after_loading_and_counting(self) -> None:
        super().test_forking_after_loading_and_counting()  # type: ignore[misc]

    @pytest.mark.long
    @on_one_device
    def test_loading_is_light_locked_and_safe_to_fork(self) -> None:
        super().test_loading_is_light_locked_and_safe_to_fork()  # type: ignore[misc]

    @pytest.mark.long
    def test_a_process_ends_in_the_middle_of_a_prefetch(self) -> None:
        super().test_a_process_ends_in_the_middle_of_a_prefetch()  # type: ignore[misc]
