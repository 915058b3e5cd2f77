"""Every adapter of ours is held to the suite, in one process."""

from __future__ import annotations

import pytest

from xdevice.testing import Conformance
from xdevice.testing.base import once


class Ours(Conformance):
    """What starts a process that imports the framework once more, and has other tests of ours, is for `-m slow`."""

    @pytest.mark.slow
    @once
    def test_virtual_gpus_are_devices_of_their_own(self):
        super().test_virtual_gpus_are_devices_of_their_own()

    @pytest.mark.slow
    @once
    def test_forking_after_loading_and_counting(self):
        super().test_forking_after_loading_and_counting()


class TestTorch(Ours):
    backend = "torch"


class TestTensorflow(Ours):
    backend = "tensorflow"


class TestPaddle(Ours):
    backend = "paddle"


class TestMxnet(Ours):
    backend = "mxnet"


class TestJax(Ours):
    backend = "jax"


class TestNumpy(Ours):
    backend = "numpy"
