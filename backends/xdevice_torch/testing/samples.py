"""Networks, gradients and other samples for the conformance suite (the tests in
`xdevice.testing` that every adapter must pass), written only with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from xdevice.base import devices
from xdevice.testing.contract.samples import Samples, Work
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xdevice.base.devices import Device
    from xdevice.testing.contract.samples import Modes, Step


_sleep = private["torch.cuda._sleep"]


class TorchSamples(Samples):
    """PyTorch's samples. `Samples` describes what the suite expects of each method."""

    # the memory of a tensor is allocated before the tensor is computed
    makes_memory_first = True

    def other_device(self) -> Device:
        """Returns a second device for the tests."""
        # meta exists without any hardware
        return devices.of("gpu") if self.backend.virtual else devices.of("meta")

    def native_ones(self, *shape: int) -> torch.Tensor:
        """Returns a tensor of ones with this shape, created by PyTorch's own function."""
        return torch.ones(*shape)

    def address(self, x: torch.Tensor) -> int:
        """Returns the address at which the memory of a tensor begins."""
        return x.data_ptr()

    def gradient(self, function: Callable[[Any], Any], x: torch.Tensor) -> torch.Tensor:
        """Returns the gradient of `sum(function(x))` with respect to `x`."""
        leaf = x.detach().requires_grad_()
        torch.autograd.backward(function(leaf).sum())
        assert leaf.grad is not None
        return leaf.grad

    def requires_grad(self, x: torch.Tensor) -> bool:
        """Whether a tensor is marked as requiring a gradient."""
        return x.requires_grad

    def marked(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that has the values of `x` and requires a gradient."""
        return x.detach().requires_grad_()

    def modes(self) -> Modes:
        """Returns a dict of the modes that each thread sets separately in PyTorch. For each mode the dict contains a
        function that returns a context manager for the mode, and a function that returns whether the mode is active in
        this thread."""
        return {"no_grad": (torch.no_grad, lambda: not torch.is_grad_enabled())}

    def draw(self) -> list[float]:
        """Returns a few random numbers from PyTorch's default generator."""
        numbers: list[float] = torch.rand(5).tolist()
        return numbers

    def determinism(self) -> tuple[bool, ...]:
        """Returns the current values of the settings that deterministic mode changes."""
        cudnn = torch.backends.cudnn
        return (
            torch.are_deterministic_algorithms_enabled(),
            cudnn.deterministic,
            not cudnn.benchmark,
        )

    def network(self, inputs: int, outputs: int) -> nn.Module:
        """Returns a linear layer from `inputs` to `outputs` features."""
        return nn.Sequential(nn.Linear(inputs, outputs))

    def settings(self) -> nn.Module:
        """Returns a model whose layers have settings, which the suite compares."""
        # the suite expects these numbers, which are exact in binary
        block = nn.Sequential(nn.Dropout(0.375), nn.MaxPool2d((3, 2), (1, 2)))
        return nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.25), block)

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns a dict that maps the name of each kind of model to a function that creates a
        model of that kind."""
        return {
            "linear": lambda: nn.Linear(4, 1),
            "buffers": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
            "lazy": lambda: nn.Sequential(nn.LazyLinear(2)),
        }

    def variables(self, model: Any) -> Mapping[str, torch.Tensor]:
        """Returns the parameters and buffers of a model, by name."""
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # lazy parameters have no shape yet
        return {name: x for name, x in tensors.items() if not nn.parameter.is_lazy(x)}

    def tied(self) -> tuple[Any, Callable[[Any], bool]]:
        """Returns a model whose two layers share one weight, and a function that returns whether the layers of a given
        model share their weight."""
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        return nn.Sequential(first, second), lambda net: net[0].weight is net[1].weight

    def sharing(self) -> tuple[Any, Any, Callable[[], bool]]:
        """Returns two models that share a buffer, and a function that returns whether the two models still share the
        buffer."""
        norm = nn.BatchNorm1d(3)
        other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        # a buffer, because `Module.to` replaces a buffer by a new tensor, while a parameter
        # remains the same object
        norm.running_mean = other[1].running_mean = torch.arange(3.0, device="cpu") / 3
        return norm, other, lambda: norm.running_mean is other[1].running_mean

    def spread(self, device: Device) -> nn.Module:
        """Returns a model with one layer on cpu:0 and another layer on `device`."""
        native = self.backend.to_native(device)
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(native))

    def optimized(self) -> tuple[Any, Any, Step]:
        """Returns a model, its optimizer, and a function that makes one training step with the
        inputs `x` and the targets `y`, and returns the loss."""
        net = nn.Linear(4, 1)
        # two calls must create equal models
        nn.init.constant_(net.weight, 0.5)
        nn.init.constant_(net.bias, 0.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> float:
            # after the suite has moved the model, moves the optimizer too, as users do in their own loops
            device = self.backend.from_native(net.weight.device)
            if device is not None and not self.backend.is_all_on(optimizer, device):
                self.backend.move_model(optimizer, device)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            torch.autograd.backward(loss)
            optimizer.step()
            return loss.item()

        return net, optimizer, step

    def long_work(self, device: Device) -> Work | None:
        """Starts long-running work on a GPU. Returns the result of the work, and a function that returns whether the
        work is done. Returns None for other devices."""
        if device.kind != "gpu" or not torch.cuda.is_available():
            return None
        x = torch.ones(8, device=torch.device("cuda", device.index))
        # CUDA loads a kernel at its first use, and then waits for the GPU, so the kernel is
        # used once before the work begins
        _ = x + 1
        stream = torch.cuda.current_stream(device.index)
        # nothing else may be in progress, because `is_done` tells whether the whole stream is idle
        torch.cuda.synchronize(device.index)
        with torch.cuda.device(device.index):
            _sleep(500_000_000)  # clock cycles: about 0.3 s
        return Work(x + 1, stream.query)
