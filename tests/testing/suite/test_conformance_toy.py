"""A third party's adapter is held to the whole suite by the three lines of docs/reference/adapters.md."""

from __future__ import annotations

import pytest

from xdevice.testing import Conformance


@pytest.fixture(scope="module", autouse=True)
def _installed(toy_installed):
    """Without an installation there is no such backend."""


class TestToyframe(Conformance):
    backend = "toyframe"
