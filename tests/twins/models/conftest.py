"""The models of a test have the same weights in any order of the tests: whether a batch exercises a function depends on
them."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _the_same_weights() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
    keras = sys.modules.get("keras")
    if keras is not None:
        keras.utils.set_random_seed(0)
