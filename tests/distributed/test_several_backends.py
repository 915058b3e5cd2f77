"""Every backend of ours between two processes, held to the suite that ships for third parties."""

from __future__ import annotations

import pytest

from xdevice.testing import SeveralProcesses
from xdevice.testing.suite.worlds import FAILURES


class TestNumpy(SeveralProcesses):
    backend = "numpy"

    @pytest.mark.slow
    def test_every_verb_in_every_dtype_and_a_step_that_equals_that_of_one_process(self):
        super().test_every_verb_in_every_dtype_and_a_step_that_equals_that_of_one_process()

    @pytest.mark.long
    @pytest.mark.parametrize("failure", FAILURES)
    def test_a_failure_of_a_rank_is_named_on_the_others(self, failure):
        super().test_a_failure_of_a_rank_is_named_on_the_others(failure)


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
