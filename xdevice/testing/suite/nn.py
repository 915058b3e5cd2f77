"""The conformance suite's checks of the kernels that `xdevice.nn` is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xdevice
from xdevice.errors import UnsupportedError
from xdevice.math.contract import nn as contract

from .base import Suite, in_thread
from .capabilities import needs


class LayerFunctionChecks(Suite):
    """Checks of neural-network functions. An adapter may refuse them all, by an `UnsupportedError`; if it has any, all
    must be right."""

    @needs("nn")
    def test_functions_of_layers_are_whole_and_right_or_refused(self) -> None:
        try:
            kernels = self.adapter.nn()
        except UnsupportedError:
            return
        missing = [name for name in contract.KERNELS if not hasattr(kernels, name)]
        assert not missing, f"nn() lacks {', '.join(missing)}"
        self.needs_kernels()
        in_thread(self.compute_in_use, self.patience)  # settings that are made for this thread end with it

    def compute_in_use(self) -> None:
        with xdevice.use(self.backend):
            self.compute_layers()

    def compute_layers(self) -> None:
        nn = xdevice.nn
        # exp(-200) is zero in float32: a softmax before its logarithm would give -inf
        x, labels = self.make([[0.0, -200.0], [-3.0, -3.0]]), self.make([1, 0])
        image = self.make([[[[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]]])
        # powers of ten show in the result which element met which, and that the kernel is not flipped
        kernel, bias = self.make([[[[1.0, 10.0], [100.0, 1000.0]]]]), self.make([0.5])
        about_log_2 = 0.69315
        expected: list[tuple[Any, Any]] = [
            (nn.relu(self.make([-1.0, 0.0, 2.5])), [0.0, 0.0, 2.5]),
            (nn.sigmoid(self.make([-1000.0, 0.0, 1000.0])), [0.0, 0.5, 1.0]),
            (nn.softmax(x), [[1.0, 0.0], [0.5, 0.5]]),
            (nn.log_softmax(x), [[0.0, -200.0], [-about_log_2, -about_log_2]]),
            (nn.cross_entropy(x, labels), (200 + about_log_2) / 2),
            (nn.one_hot(labels, 3), [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
            (nn.conv2d(image, kernel, bias, stride=2), [[[[-5420.5]]]]),
            (nn.conv2d(image, kernel, padding=(0, 1)), [[[[-4010.0, -5421.0, -6532.0, -603.0]]]]),
            (nn.max_pool2d(image, 2, stride=1, padding=1), [[[[-1, -1, -2, -3]] * 2 + [[-4, -4, -5, -6]]]]),
            (nn.max_pool2d(image, 2), [[[[-1.0]]]]),
            (nn.avg_pool2d(image, 2, padding=(0, 1)), [[[[-1.25, -4.0]]]]),
            (nn.layer_norm(x, self.make([1.0, 2.0]), self.make([0.0, 0.5])), [[1.0, -1.5], [0.0, 0.5]]),
            (nn.batch_norm(x, *nn.moments(x)), [[1.0, -1.0], [-1.0, 1.0]]),
            (nn.gelu(self.make([-1.0, 0.0, 3.0]), approximate=True), [-0.158808, 0.0, 2.996363]),
            (nn.embedding(labels, x), [[-3.0, -3.0], [0.0, -200.0]]),
            (nn.attention(x, x, x, causal=True), [[0.0, -200.0], [0.0, -200.0]]),
            (nn.cross_entropy(x, labels, reduction="none"), [200.0, about_log_2]),
            (nn.mse_loss(x, x, reduction="sum"), 0.0),
            (nn.binary_cross_entropy_with_logits(self.make([0.0, 200.0]), self.make([1.0, 0.5])), 50.346575),
            (nn.dropout(self.make([1.0, 3.0]), self.make([False, True]), 0.25), [0.0, 4.0]),
        ]
        for place, (result, numbers) in enumerate(expected):
            assert xdevice.device_of(result) is self.here, f"result {place} is on {xdevice.device_of(result)}"
            self.assert_near(result, numbers)
        assert xdevice.to_numpy(nn.one_hot(labels, 2, dtype="int32")).dtype == "int32"
        # -100 is the label that PyTorch and Paddle ignore unless they are told otherwise
        for label in (2, -1, -100):
            wrong, message = self.make([0, label]), f"there is no index {label}; expected 0 to 1"
            with pytest.raises(IndexError, match=message):
                nn.cross_entropy(x, wrong)
            with pytest.raises(IndexError, match=message):
                nn.one_hot(wrong, 2)

    def assert_near(self, result: Any, numbers: Any) -> None:
        array = xdevice.to_numpy(result)
        assert array.dtype == "float32"
        assert array.shape == np.shape(numbers), f"{array.shape}, expected {np.shape(numbers)}"
        assert np.allclose(array, numbers, rtol=1e-5, atol=1e-5), f"{array.tolist()}, expected {numbers}"
