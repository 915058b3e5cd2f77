"""Networks, gradients and other samples for the conformance suite (the tests in `xdevice.testing` that every adapter
must pass). They are written with MXNet's own functions.

Each thread has its own flag for NumPy's semantics. The samples enable it with `use_np`, so that they run in any
thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet.gluon import Trainer, nn
from mxnet.util import use_np

from xdevice.base import devices
from xdevice.testing.contract.samples import Samples, Work
from xdevice_mxnet.library import library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xdevice.base.devices import Device
    from xdevice.testing.contract.samples import Modes, Step


class MxnetSamples(Samples):
    """MXNet's samples. `xdevice.testing.contract.samples` describes each method."""

    def other_device(self) -> Device:
        """Returns a second device for the tests: a virtual GPU if there is one, and otherwise MXNet's second CPU
        device."""
        return devices.of("gpu") if self.backend.virtual else devices.of("cpu", 1)

    @use_np  # type: ignore[untyped-decorator]
    def native_ones(self, *shape: int) -> Any:
        """Returns a tensor of ones with the given shape, created by MXNet's own function."""
        return mx.np.ones(shape)

    def floats(self) -> None:
        # MXNet has no default dtype that could be changed
        return None

    @use_np  # type: ignore[untyped-decorator]
    def add(self, x: Any, y: Any) -> Any:
        """Returns `x + y`."""
        return x + y

    def address(self, x: Any) -> int | None:
        """Returns the address at which the memory of an array begins."""
        x.wait_to_read()  # before an array is computed, it has no memory
        pointer = ctypes.c_void_p()
        mx.base.check_call(library.MXNDArrayGetData(x.handle, ctypes.byref(pointer)))
        return pointer.value

    @use_np  # type: ignore[untyped-decorator]
    def gradient(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Returns the gradient of `sum(function(x))` with respect to `x`."""
        leaf = x.copy()
        leaf.attach_grad()
        with mx.autograd.record():
            total = function(leaf).sum()
        total.backward()
        return leaf.grad

    def requires_grad(self, x: Any) -> bool:
        """Whether an array is marked as requiring a gradient."""
        return x.grad is not None

    @use_np  # type: ignore[untyped-decorator]
    def marked(self, x: Any) -> Any:
        """Returns an array that has the values of `x`, and is marked as requiring a gradient."""
        # a copy, because `attach_grad` marks the array itself, which belongs to the suite
        leaf = x.copy()
        leaf.attach_grad()
        return leaf

    def modes(self) -> Modes:
        """Returns a dict with the modes that MXNet stores separately for each thread. The value of each mode is a pair
        of functions. The first returns a context manager that enables the mode; the second returns whether the mode is
        enabled in this thread."""
        return {"record": (mx.autograd.record, mx.autograd.is_recording)}

    def draw(self) -> list[float]:
        """Returns a list of random numbers from MXNet's default generator."""
        numbers: list[float] = mx.np.random.uniform(size=5).tolist()
        return numbers

    def determinism(self) -> str | None:
        """Returns the current value of the setting that deterministic mode changes."""
        return os.environ.get("MXNET_ENFORCE_DETERMINISM")

    def network(self, inputs: int, outputs: int) -> Any:
        """Returns a model on the CPU that consists of a linear layer with `inputs` input features and `outputs`
        output features."""
        return _built(nn.Dense(outputs, in_units=inputs))

    def settings(self) -> Any:
        """Returns a model whose layers have settings, which the suite compares."""
        # the suite expects these numbers, and the last two layers in a separate block
        block = nn.HybridSequential()
        block.add(nn.Dropout(0.375), nn.MaxPool2D((3, 2), (1, 2)))
        return _built(nn.Dense(4, in_units=3, flatten=False), nn.LeakyReLU(0.25), block)

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns a dict that maps the name of each kind of model to a function that creates a model of that kind."""
        return {
            "layer": lambda: _built(nn.Dense(1, in_units=4)),
            "running statistics": lambda: _built(
                nn.Dense(3, in_units=4), nn.BatchNorm(in_channels=3)
            ),
            "hybridized": _hybridized,
            "deferred": lambda: _run(_built(nn.Dense(3))),
            "legacy arrays": _legacy,
            "constant": _Scaled,
            "Parameter": lambda: _built(nn.Dense(1, in_units=4))[0].weight,
            "ParameterDict": lambda: _built(nn.Dense(1, in_units=4)).collect_params(),
        }

    @use_np  # type: ignore[untyped-decorator]
    def variables(self, model: Any) -> Mapping[str, Any]:
        """Returns a dict that maps the names of a model's variables to their arrays."""
        if isinstance(model, mx.gluon.Parameter):
            return {model.name: model.data()}
        # a ParameterDict is iterated over directly
        parameters = model.collect_params() if isinstance(model, mx.gluon.Block) else model
        return {name: parameter.data() for name, parameter in parameters.items()}

    def tied(self) -> tuple[Any, Callable[[Any], bool]]:
        """Returns a model whose two layers share a weight, and a function that returns whether the layers of a given
        model share their weight."""
        first = nn.Dense(3, in_units=3)
        # `params` makes the second layer use the parameters of the first
        second = nn.Dense(3, in_units=3, params=first.params)
        return _built(first, second), lambda net: net[0].weight is net[1].weight

    def spread(self, device: Device) -> Any:
        """Returns a model with one part on cpu:0 and another part on `device`."""
        net = _built(nn.Dense(3, in_units=4), nn.Dense(2, in_units=3))
        # moves only one of the two layers
        net[1].collect_params().reset_ctx(self.backend.to_native(device))
        return net

    def unbuilt(self) -> Any:
        """Returns a model that has no variables yet."""
        return nn.Dense(3)

    @use_np  # type: ignore[untyped-decorator]
    def optimized(self) -> tuple[Any, Any, Step]:
        """Returns a model, its optimizer, and a function that trains the model for one step on a batch (x, y), and
        returns the loss."""
        # the suite expects the same initial weights at each call
        net = _built(nn.Dense(1, in_units=4, weight_initializer=mx.init.Constant(0.1)))
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
        return net, trainer, lambda x, y: _step(net, trainer, x, y)

    @use_np  # type: ignore[untyped-decorator]
    def failing_work(self) -> Any:
        """Starts work on the CPU that will fail, and returns the result of that work."""
        # the matrix is not positive definite, which MXNet reports only when the program waits
        # for the result
        return mx.np.linalg.cholesky(-mx.np.eye(3))

    def long_work(self, device: Device) -> Work | None:
        """Starts long-running work on a device. Returns the result of the work, and a function that returns whether
        the work is done. Returns None for a GPU."""
        native = self.backend.to_native(device)
        if native.device_type == "gpu":
            return None  # MXNet's last wheel for GPUs has no kernels for GPUs made after 2020
        x = mx.np.ones((1200, 1200), ctx=native)
        # waits, so that only the products below are in progress
        mx.nd.waitall()
        # products of large matrices, which together take a tenth of a second
        for _ in range(10):
            x = mx.np.dot(x, x) / 1200
        # MXNet has no function that returns whether an array has been computed, so a thread
        # waits for it
        waiting = threading.Thread(target=x.wait_to_read, daemon=True)
        waiting.start()

        def is_done() -> bool:
            # waits for 20 ms, because the thread needs a moment to notice that the array has
            # been computed
            waiting.join(0.02)
            return not waiting.is_alive()

        return Work(x, is_done)


@use_np
class _Net(nn.HybridSequential):  # type: ignore[misc]
    """A sequence of layers that works with `mx.np` arrays in any thread."""


def _built(*layers: Any) -> Any:
    """Returns a sequence of the given layers, initialized on the CPU."""
    net = _Net()
    net.add(*layers)
    net.initialize()
    return net


def _run(net: Any) -> Any:
    """Returns a model after it has run on a batch, so that its parameters have shapes."""
    net(mx.np.ones((2, 4)))
    return net


def _hybridized() -> Any:
    """Returns a model that has been compiled. Because of `static_alloc`, its graph keeps its arrays."""
    net = _built(nn.Dense(3, in_units=4), nn.BatchNorm(in_channels=3))
    net.hybridize(static_alloc=True, static_shape=True)
    return _run(net)


def _legacy() -> Any:
    """Returns a model with legacy arrays. The model was created while NumPy's arrays were disabled."""
    with mx.util.np_array(False):
        net = nn.Dense(1, in_units=4)
        net.initialize()
        net(mx.nd.ones((2, 4)))
    return net


@use_np
class _Scaled(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A model with a constant, which is a parameter that is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.params.get_constant("scale", mx.np.arange(4))
        self.initialize()

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:  # noqa: N803
        return x * scale


@use_np  # type: ignore[untyped-decorator]
def _step(net: Any, trainer: Any, x: Any, y: Any) -> float:
    """Trains a model for one step on a batch, and returns the mean squared error before the step."""
    with mx.autograd.record():
        loss = ((net(x) - y) ** 2).mean()
    loss.backward()
    # 1, because the loss is already a mean, and must not be divided by the batch size again
    trainer.step(1)
    return float(loss.item())
