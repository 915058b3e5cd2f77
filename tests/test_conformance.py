"""Every adapter of ours is held to the suite, in one process."""

from xdevice.testing import Conformance


class TestTorch(Conformance):
    backend = "torch"


class TestTensorflow(Conformance):
    backend = "tensorflow"


class TestPaddle(Conformance):
    backend = "paddle"


class TestMxnet(Conformance):
    backend = "mxnet"


class TestJax(Conformance):
    backend = "jax"


class TestNumpy(Conformance):
    backend = "numpy"
