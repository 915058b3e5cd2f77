"""Networks, gradients and other samples for the conformance suite (the tests in
`xdevice.testing` that every adapter must pass), written with Paddle's own functions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.base import devices
from xdevice.testing.contract.samples import Samples, Work
from xdevice_paddle import copying, models, virtual_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xdevice.base.devices import Device
    from xdevice.testing.contract.samples import Modes, Step


class PaddleSamples(Samples):
    """The samples of Paddle. `xdevice.testing.contract.samples` describes each method."""

    # a tensor has memory before its values are computed
    makes_memory_first = True

    def other_device(self) -> Device | None:
        """Returns a second device for the tests, or None if there is none."""
        return (
            devices.of("gpu")
            if paddle.device.cuda.device_count() or virtual_devices.registered_count()
            else None
        )

    def native_ones(self, *shape: int) -> paddle.Tensor:
        """Returns a tensor of ones with this shape, made by Paddle's own function."""
        return paddle.ones(shape)

    def address(self, x: paddle.Tensor) -> int:
        """Returns the address at which the memory of a tensor begins."""
        return int(x.data_ptr())

    def gradient(self, function: Callable[[Any], Any], x: paddle.Tensor) -> paddle.Tensor:
        """Returns the gradient of `sum(function(x))` with respect to `x`."""
        leaf = self.marked(x)
        function(leaf).sum().backward()
        assert leaf.grad is not None
        # detached, because Paddle's gradients have stop_gradient=False, although they no longer
        # belong to a graph
        return leaf.grad.detach()

    def requires_grad(self, x: paddle.Tensor) -> bool:
        """Whether a tensor is marked as requiring a gradient."""
        return not x.stop_gradient

    def marked(self, x: paddle.Tensor) -> paddle.Tensor:
        """Returns a tensor with the values of `x` that is marked as requiring a gradient."""
        # `detach` returns another object with the same memory, so the flag of `x` is not changed
        leaf = x.detach()
        leaf.stop_gradient = False
        return leaf

    def modes(self) -> Modes:
        """Returns a dict of the modes that Paddle keeps separately for each thread. The value of each mode is a pair of
        functions. The first returns a context manager that enables the mode; the second returns whether the mode is
        enabled in this thread."""
        return {"no_grad": (paddle.no_grad, lambda: not paddle.is_grad_enabled())}

    def draw(self) -> list[float]:
        """Returns a few random numbers from Paddle's default generator."""
        return [float(number) for number in paddle.rand([5])]

    def network(self, inputs: int, outputs: int) -> paddle.nn.Layer:
        """Returns a model on the CPU with a single linear layer, from `inputs` to `outputs`
        features."""
        return _on_cpu(lambda: paddle.nn.Sequential(paddle.nn.Linear(inputs, outputs)))

    def settings(self) -> paddle.nn.Layer:
        """Returns a model whose layers have settings, which the suite compares."""
        return _on_cpu(_with_settings)

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns a dict that maps the name of each kind of model to a function that creates such a
        model."""
        nn = paddle.nn
        kinds: dict[str, Callable[[], Any]] = {
            "linear": lambda: nn.Linear(4, 1),
            "buffers": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1D(3)),
            "recurrent": lambda: nn.LSTM(4, 3),
        }
        return {name: partial(_on_cpu, make) for name, make in kinds.items()}

    def variables(self, model: Any) -> Mapping[str, paddle.Tensor]:
        """Returns a dict that maps the names of a model's variables to their tensors."""
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # parameters that were created under LazyGuard have no memory that could be read
        return {name: x for name, x in tensors.items() if models.has_memory(x)}

    def tied(self) -> tuple[Any, Callable[[Any], bool]]:
        """Returns a model whose two layers share one weight, and a function that returns whether the
        two layers of a given model share their weight."""
        first, second = _on_cpu(lambda: (paddle.nn.Linear(3, 3), paddle.nn.Linear(3, 3)))
        second.weight = first.weight
        return paddle.nn.Sequential(first, second), lambda net: net[0].weight is net[1].weight

    def spread(self, device: Device) -> paddle.nn.Layer:
        """Returns a model with one part on cpu:0 and another part on `device`."""
        first, second = _on_cpu(lambda: (paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2)))
        # only one of the two layers
        second.to(device=virtual_devices.name_of(device))
        return paddle.nn.Sequential(first, second)

    def unbuilt(self) -> paddle.nn.Layer:
        """Returns a model that has no variables yet."""
        # under LazyGuard a layer's parameters have no memory until `initialize()`
        with paddle.LazyGuard():
            return paddle.nn.Linear(4, 1)

    def optimized(self) -> tuple[Any, Any, Step]:
        """Returns a model, its optimizer, and a function `step(x, y)` that makes one training step
        of the model and returns the loss."""
        # the suite expects the same initial weights at each call
        half = paddle.nn.initializer.Constant(0.5)
        net = _on_cpu(lambda: paddle.nn.Linear(4, 1, weight_attr=half))
        optimizer = paddle.optimizer.Momentum(
            learning_rate=0.1, momentum=0.9, parameters=net.parameters()
        )

        def step(x: paddle.Tensor, y: paddle.Tensor) -> float:
            # as in a user's own loop, the optimizer is moved after the model has been moved
            device = self.backend.from_native(net.weight.place)
            if device is not None and not self.backend.is_all_on(optimizer, device):
                self.backend.move_model(optimizer, device)
            loss = paddle.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            return float(loss)

        return net, optimizer, step

    def long_work(self, device: Device) -> Work | None:
        """Starts long-running work on a device. Returns the result of the work, and a function
        that returns whether the work is done. Returns None for devices other than real GPUs."""
        if device.kind != "gpu" or virtual_devices.registered_count():
            return None
        # the work consists of copies, because copies need no kernel, and Paddle may have been built
        # without kernels for this GPU. 400 copies of 1 GiB take longer than the tenth of a second
        # that the suite expects
        place = paddle.CUDAPlace(device.index)
        x = copying.copy_to(
            paddle.to_tensor([0.0] * 1024, place=paddle.CPUPlace()).tile([1 << 18]), place
        )
        result = x
        for _ in range(400):
            result = copying.copy_to(x, place, is_blocking=False)
        return Work(result, paddle.device.current_stream(place).query)


def _with_settings() -> paddle.nn.Layer:
    """Returns a model with the layers and settings that the suite expects. The dropout and the pool
    are in an inner block."""
    nn = paddle.nn
    block = nn.Sequential(nn.Dropout(0.375), nn.MaxPool2D((3, 2), (1, 2)))
    return nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.25), block)


def _on_cpu(make: Callable[[], Any]) -> Any:
    """Returns `make()`, called with the CPU as Paddle's current device."""
    # Paddle creates parameters on its current device, which by default is a GPU if there is one
    previous_device = paddle.get_device()
    paddle.set_device("cpu")
    try:
        return make()
    finally:
        paddle.set_device(previous_device)
