"""What the suite needs of `toyframe` beside the contract."""

from __future__ import annotations

import numpy as np
import toyframe

import xdevice
from xdevice.base import devices
from xdevice.testing.contract.samples import Samples, Work


class ToySamples(Samples):
    can_block = True
    makes_memory_first = True

    def other_device(self):
        return devices.of("gpu") if toyframe.gpu_count() else None

    def native_devices(self):
        return toyframe.places()

    def native_ones(self, *shape):
        return toyframe.ones(*shape)

    def address(self, x):
        return x.address

    def gradient(self, function, x):
        leaf = self.marked(x)
        function(leaf).sum().backward()
        return leaf.grad

    def requires_grad(self, x):
        return x.value.requires_grad if isinstance(x, toyframe.Variable) else x.requires_grad

    def marked(self, x):
        leaf = x.detach()
        leaf.requires_grad = True
        return leaf

    def network(self, inputs, outputs):
        return toyframe.Sequential(toyframe.Linear(inputs, outputs))

    def settings(self):
        block = toyframe.Sequential(toyframe.Dropout(0.375), toyframe.MaxPool((3, 2), (1, 2)))
        return toyframe.Sequential(toyframe.Linear(3, 4), toyframe.LeakyReLU(0.25), block)

    def models(self):
        return {
            "linear": lambda: toyframe.Linear(4, 1),
            "buffers": lambda: toyframe.Sequential(toyframe.Linear(4, 3), toyframe.Norm(3)),
            "variable": lambda: toyframe.Variable(
                toyframe.array(np.float32([1.5, -0.0, 1e-40]), toyframe.CPU)
            ),
        }

    def variables(self, model):
        return (
            {"value": model.value}
            if isinstance(model, toyframe.Variable)
            else dict(model.named())
        )

    def tied(self):
        first, second = toyframe.Linear(3, 3), toyframe.Linear(3, 3)
        second.own["weight"] = first.own["weight"]
        layers = toyframe.Sequential(first, second)
        return (
            layers,
            lambda net: net.children["0"].own["weight"] is net.children["1"].own["weight"],
        )

    def sharing(self):
        one, other = toyframe.Norm(3), toyframe.Norm(3)
        other.buffers["mean"] = one.buffers["mean"]
        return (
            one,
            toyframe.Sequential(other),
            lambda: other.buffers["mean"] is one.buffers["mean"],
        )

    def spread(self, device):
        first, second = toyframe.Linear(2, 2), toyframe.Linear(2, 2)
        xdevice.backend("toyframe").move_model(second, device)
        return toyframe.Sequential(first, second)

    def unbuilt(self):
        return toyframe.Sequential(toyframe.Linear(None, 2))

    def optimized(self):
        net = toyframe.Linear(4, 1)
        optimizer = toyframe.SGD(net.parameters(), 0.05)

        def step(x, y):
            error = net(x) - y
            loss = (error * error).sum() * (1 / 16)
            loss.backward()
            optimizer.step()
            return loss.item()

        return net, optimizer, step

    def holders(self, x):
        return {"padded": (toyframe.Padded(x, "kept"), lambda held: (held.rows, held.lengths))}

    def modes(self):
        return {"no_grad": (toyframe.no_grad, lambda: not toyframe.state.grad)}

    def draw(self):
        return toyframe.draw()

    def determinism(self):
        return toyframe.is_deterministic

    def loader(self, items):
        return toyframe.Loader(items)

    def failing_work(self):
        def fail(x):
            raise toyframe.ToyError("planned")

        return toyframe.compute(fail, toyframe.full((4,), 1, toyframe.CPU))

    def settle(self):
        for stream in toyframe._streams:
            stream.run()
            stream.errors.clear()

    def long_work(self, device):
        place = xdevice.backend("toyframe").to_native(device)
        result = toyframe.sleep(0.12, place)
        stream, position = result._block.last
        return Work(result, lambda: stream.done >= position)
