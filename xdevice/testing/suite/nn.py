"""Checks of the kernels of `xdevice.nn`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import xdevice
from xdevice.errors import UnsupportedError
from xdevice.math.contract import nn as contract

from .base import Suite
from .capabilities import needs

_LOG_2 = 0.69315
"""The natural logarithm of 2."""


class LayerFunctionChecks(Suite):
    """Checks of neural-network functions. An adapter may have no such functions, and raise `UnsupportedError`.
    Otherwise, it must have all functions, with the right results."""

    @needs("nn")
    def test_functions_of_layers_are_whole_and_right_or_refused(self) -> None:
        try:
            kernels = self.adapter.nn()
        # an adapter need not have any functions of layers
        except UnsupportedError:
            return
        missing = [name for name in contract.KERNELS if not hasattr(kernels, name)]
        assert not missing, f"nn() lacks {', '.join(missing)}"
        self.skip_without_kernels()
        # run in a new thread, so that the framework's settings for this thread end with the
        # thread
        self.in_thread(self.check_with_backend)

    def check_with_backend(self) -> None:
        """Selects the backend under test, and runs `check_layers`. Called in a new thread, in which another backend may
        be the default."""
        with xdevice.use_backend(self.backend):
            self.check_layers()

    def check_layers(self) -> None:
        """Checks functions of `xdevice.nn` against results that were computed by hand."""
        # exp(-200) is zero in float32, so the logarithm of a softmax that was computed first
        # would be -inf
        x = self.make([[0.0, -200.0], [-3.0, -3.0]])
        labels = self.make([1, 0])
        self.check_activations(x)
        self.check_losses(x, labels)
        self.check_images()
        self.check_norms(x)
        self.assert_near(xdevice.nn.embedding(labels, x), [[-3.0, -3.0], [0.0, -200.0]])
        self.assert_near(
            xdevice.nn.attention(x, x, x, causal=True), [[0.0, -200.0], [0.0, -200.0]]
        )
        mask = self.make([False, True])
        self.assert_near(xdevice.nn.dropout(self.make([1.0, 3.0]), mask, 0.25), [0.0, 4.0])
        self.assert_labels_refused(x)

    def check_activations(self, x: Any) -> None:
        """Checks the activation functions with numbers for which a naive formula would overflow. The logits in `x` are
        `[[0, -200], [-3, -3]]`."""
        nn = xdevice.nn
        self.assert_near(nn.relu(self.make([-1.0, 0.0, 2.5])), [0.0, 0.0, 2.5])
        self.assert_near(nn.sigmoid(self.make([-1000.0, 0.0, 1000.0])), [0.0, 0.5, 1.0])
        self.assert_near(nn.softmax(x), [[1.0, 0.0], [0.5, 0.5]])
        self.assert_near(nn.log_softmax(x), [[0.0, -200.0], [-_LOG_2, -_LOG_2]])
        gelu = nn.gelu(self.make([-1.0, 0.0, 3.0]), approximate=True)
        self.assert_near(gelu, [-0.158808, 0.0, 2.996363])

    def check_losses(self, x: Any, labels: Any) -> None:
        """Checks the loss functions and `one_hot`. As in `check_layers`, `x` contains two rows of logits for two
        classes, and `labels` contains the class of each row."""
        nn = xdevice.nn
        self.assert_near(nn.cross_entropy(x, labels), (200 + _LOG_2) / 2)
        self.assert_near(nn.cross_entropy(x, labels, reduction="none"), [200.0, _LOG_2])
        self.assert_near(nn.mse_loss(x, x, reduction="sum"), 0.0)
        # if the sigmoid were computed before the logarithm, this would be log(0)
        logits = self.make([0.0, 200.0])
        loss = nn.binary_cross_entropy_with_logits(logits, self.make([1.0, 0.5]))
        self.assert_near(loss, 50.346575)
        self.assert_near(nn.one_hot(labels, 3), [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
        assert xdevice.to_numpy(nn.one_hot(labels, 2, dtype="int32")).dtype == "int32"

    def check_images(self) -> None:
        """Checks convolutions and pooling on an image of two rows and three columns."""
        nn = xdevice.nn
        image = self.make([[[[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]]])
        # powers of ten, so that the digits of a result show which elements were multiplied, and
        # that the kernel is not flipped
        kernel = self.make([[[[1.0, 10.0], [100.0, 1000.0]]]])
        strided = nn.conv2d(image, kernel, self.make([0.5]), stride=2)
        self.assert_near(strided, [[[[-5420.5]]]])
        padded = nn.conv2d(image, kernel, padding=(0, 1))
        self.assert_near(padded, [[[[-4010.0, -5421.0, -6532.0, -603.0]]]])
        # the image contains only negative numbers, so padding with zeros would change the
        # maximum
        largest = nn.max_pool2d(image, 2, stride=1, padding=1)
        self.assert_near(largest, [[[[-1, -1, -2, -3], [-1, -1, -2, -3], [-4, -4, -5, -6]]]])
        self.assert_near(nn.max_pool2d(image, 2), [[[[-1.0]]]])
        self.assert_near(nn.avg_pool2d(image, 2, padding=(0, 1)), [[[[-1.25, -4.0]]]])

    def check_norms(self, x: Any) -> None:
        """Checks `layer_norm` along the rows of `x`, which is `[[0, -200], [-3, -3]]`, and
        `batch_norm` along its columns."""
        nn = xdevice.nn
        weight, bias = self.make([1.0, 2.0]), self.make([0.0, 0.5])
        self.assert_near(nn.layer_norm(x, weight, bias), [[1.0, -1.5], [0.0, 0.5]])
        self.assert_near(nn.batch_norm(x, *nn.moments(x)), [[1.0, -1.0], [-1.0, 1.0]])

    def assert_labels_refused(self, x: Any) -> None:
        """Checks that labels outside the classes raise `IndexError` instead of reading other memory. `x` contains two
        rows of logits, each for two classes."""
        # PyTorch and Paddle ignore the label -100 by default
        for label in (2, -1, -100):
            labels = self.make([0, label])
            message = f"index {label} is out of range; expected 0 to 1"
            # in blocking mode, because only then is an error of a GPU raised at the line of the
            # call
            with (
                xdevice.accelerator.blocking()
                if self.home_device.kind == "gpu"
                else nullcontext()
            ):
                with pytest.raises(IndexError, match=message):
                    xdevice.nn.cross_entropy(x, labels)
                with pytest.raises(IndexError, match=message):
                    xdevice.nn.one_hot(labels, 2)

    def assert_near(self, result: Any, numbers: Any) -> None:
        """Checks that a result is a float32 tensor on the home device, and that it has the same shape as `numbers` and
        the same values, up to rounding."""
        device = xdevice.device_of(result)
        assert device is self.home_device, f"the result is on {device}"
        array = xdevice.to_numpy(result)
        assert array.dtype == "float32"
        assert array.shape == np.shape(numbers), f"{array.shape}, expected {np.shape(numbers)}"
        assert np.allclose(array, numbers, rtol=1e-5, atol=1e-5), (
            f"{array.tolist()}, expected {numbers}"
        )
