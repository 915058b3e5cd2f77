"""Every verb in every dtype on every backend of ours, between two processes: the suite that ships for third parties."""

from __future__ import annotations

import pytest

from xdevice.testing import SeveralProcesses


@pytest.mark.slow
class TestNumpy(SeveralProcesses):
    backend = "numpy"


@pytest.mark.long
class TestTorch(SeveralProcesses):
    backend = "torch"


@pytest.mark.long
class TestJax(SeveralProcesses):
    backend = "jax"


@pytest.mark.long
class TestTensorflow(SeveralProcesses):
    backend = "tensorflow"


@pytest.mark.long
class TestPaddle(SeveralProcesses):
    backend = "paddle"


@pytest.mark.long
class TestMxnet(SeveralProcesses):
    backend = "mxnet"


@pytest.mark.long
class TestPaddleByItsOwn(SeveralProcesses):
    backend = "paddle"
    engine = "paddle:gloo"


@pytest.mark.long
class TestJaxByItsOwn(SeveralProcesses):
    backend = "jax"
    engine = "jax"


@pytest.mark.long
class TestTensorflowByItsOwn(SeveralProcesses):
    backend = "tensorflow"
    engine = "tensorflow"
