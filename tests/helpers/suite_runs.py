"""Runs checks of the conformance suite in a test, without a run of pytest, for adapters with planted faults."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from xdevice.testing.suite.base import homes_of
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
            found += [one for arguments in _parameters(test) for one in _failure(suite, name, arguments)]
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
