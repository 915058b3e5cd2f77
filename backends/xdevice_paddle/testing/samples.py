"""Networks, gradients and other samples for the conformance suite (the tests in
`xdevice.testing` that every adapter must pass), written with Paddle alone."""

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

    # a tensor has its memory before it is computed
    makes_memory_first = True

    def other_device(self) -> Device | None:
        """Returns a second device for the tests; None if there is none."""
        return (
            devices.of("gpu")
            if paddle.device.cuda.device_count() or virtual_devices.registered()
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
        # Paddle's gradients have stop_gradient=False, although no graph belongs to them any
        # more
        return leaf.grad.detach()

    def requires_grad(self, x: paddle.Tensor) -> bool:
        """Whether a tensor is marked to get a gradient."""
        return not x.stop_gradient

    def marked(self, x: paddle.Tensor) -> paddle.Tensor:
        """Returns a tensor that has the values of `x` and is marked to get a gradient."""
        # `detach` gives another object with the same memory: the suite's own keeps its flag
        leaf = x.detach()
        leaf.stop_gradient = False
        return leaf

    def modes(self) -> Modes:
        """Returns, for each mode that Paddle keeps separately for each thread, a context
        manager that enters the mode, and a function that tells whether the mode is on in this
        thread."""
        return {"no_grad": (paddle.no_grad, lambda: not paddle.is_grad_enabled())}

    def draw(self) -> list[float]:
        """Returns a few random numbers of Paddle's default generator."""
        return [float(number) for number in paddle.rand([5])]

    def network(self, inputs: int, outputs: int) -> paddle.nn.Layer:
        """Returns a model of one linear layer, from `inputs` to `outputs` features, on the
        CPU."""
        return _on_cpu(lambda: paddle.nn.Sequential(paddle.nn.Linear(inputs, outputs)))

    def settings(self) -> paddle.nn.Layer:
        """Returns a model whose layers have settings, which the suite compares."""
        return _on_cpu(_with_settings)

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns a dict from the name of each kind of model to a function that makes a model
        of that kind."""
        nn = paddle.nn
        kinds: dict[str, Callable[[], Any]] = {
            "linear": lambda: nn.Linear(4, 1),
            "buffers": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1D(3)),
            "recurrent": lambda: nn.LSTM(4, 3),
        }
        return {name: partial(_on_cpu, make) for name, make in kinds.items()}

    def variables(self, model: Any) -> Mapping[str, paddle.Tensor]:
        """Returns the variables of a model as tensors, by name."""
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # parameters that were made under LazyGuard have no memory to read
        return {name: x for name, x in tensors.items() if models.has_memory(x)}

    def tied(self) -> tuple[Any, Callable[[Any], bool]]:
        """Returns a model whose two layers share one weight, and a function that tells whether
        the layers of a given model share their weight."""
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
        """Returns a model, its optimizer, and a function that trains the model by one step on
        `x, y` and returns the loss."""
        # the suite expects the same first weights at each call
        half = paddle.nn.initializer.Constant(0.5)
        net = _on_cpu(lambda: paddle.nn.Linear(4, 1, weight_attr=half))
        optimizer = paddle.optimizer.Momentum(
            learning_rate=0.1, momentum=0.9, parameters=net.parameters()
        )

        def step(x: paddle.Tensor, y: paddle.Tensor) -> float:
            # as in a user's own loop: after the model has been moved, the optimizer is moved
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
        that tells whether the work is done. Returns None for devices other than real GPUs."""
        if device.kind != "gpu" or virtual_devices.registered():
            return None
        # copies, because they need no kernel: Paddle may have been built without kernels for
        # this GPU. 400 copies of 1 GiB take more than the tenth of a second that the suite
        # expects
        place = paddle.CUDAPlace(device.index)
        x = copying.copy_to(
            paddle.to_tensor([0.0] * 1024, place=paddle.CPUPlace()).tile([1 << 18]), place
        )
        result = x
        for _ in range(400):
            result = copying.copy_to(x, place, is_blocking=False)
        return Work(result, paddle.device.current_stream(place).query)


def _with_settings() -> paddle.nn.Layer:
    """Returns a model with the layers and settings that the suite expects; the dropout and the
    pool are in a block of their own."""
    nn = paddle.nn
    block = nn.Sequential(nn.Dropout(0.375), nn.MaxPool2D((3, 2), (1, 2)))
    return nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.25), block)


def _on_cpu(make: Callable[[], Any]) -> Any:
    """Returns `make()`, called with the CPU as Paddle's current device."""
    # Paddle makes parameters on its current device, which is a GPU by default if there is one
    before = paddle.get_device()
    paddle.set_device("cpu")
    try:
        return make()
    finally:
        paddle.set_device(before)
