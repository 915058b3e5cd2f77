"""Types and expectations of other libraries, tested with the real packages. They run only when they are named:

    pip install -c constraints.txt ".[all,mxnet,test,peers]"
    XDEVICE_VIRTUAL_GPUS=2 pytest -n 2 --dist loadfile tests/peers

A peer that is missing then fails; a plain `pytest` leaves them out and says so at its end.

test_torchvision.py is skipped there: the torchvision that belongs to PyTorch's CPU build is not on PyPI, and PyPI's own
does not import beside it ("operator torchvision::nms does not exist"). It passes with PyPI's own builds of both, in an
environment of their own: torch==2.14.1 torchvision==0.29.1.
"""

from __future__ import annotations

import os

import pytest

import xdevice

pytest.register_assert_rewrite("peer_laws")

PLACES = ("cpu:0", "gpu:0", "gpu:1")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("XDEVICE_VIRTUAL_GPUS") != "2":
        raise pytest.UsageError(
            "tests/peers need two virtual GPUs: XDEVICE_VIRTUAL_GPUS=2 pytest tests/peers"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`Laws` run over the peers of their class, each on all places."""
    if "peer" in metafunc.fixturenames:
        peers = metafunc.cls.peers
        metafunc.parametrize("peer", list(peers.values()), ids=list(peers))
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", [xdevice.device(name) for name in PLACES], ids=str)
