"""The second device of the tests of containers."""

from __future__ import annotations

import pytest


@pytest.fixture
def there(backend):
    """A device beside cpu:0."""
    device = backend.samples().other_device()
    if device is None:
        pytest.skip(f"{backend.name} has one device here")
    return device
