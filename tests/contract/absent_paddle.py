"""The steps of `absent_names.py` that only Paddle has: its kinds of optimizers, layers, loaders and processes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import paddle

nn = paddle.nn


def made(xd: Any) -> Any:
    target = xd.try_all_gpus()[-1]
    drawn = xd.random.uniform(4, device=target)
    return (
        str(xd.device_of(drawn)),
        drawn.shape,
        xd.to_numpy(xd.ones(2, dtype="bfloat16", device=target)).tolist(),
    )


def wrapped_models(xd: Any) -> Any:
    copied = xd.copy_to(paddle.DataParallel(linear()), "cpu")
    net = linear()
    whole = paddle.Model(net)
    whole.prepare(paddle.optimizer.Adam(parameters=net.parameters()), nn.MSELoss())
    moved = xd.to_device(whole, xd.try_all_gpus()[-1])
    return (
        type(copied).__name__,
        xd.to_numpy(copied(paddle.ones([1, 3]))).tolist(),
        xd.same_device(moved),
    )


def memory(xd: Any) -> Any:
    kept = xd.ones(1000)
    xd.accelerator.reset_peak_memory_stats("cpu")
    read = xd.memory("cpu")
    return kept.shape, read.allocated >= 4000, read.peak >= read.allocated


def settings_of_optimizers(xd: Any) -> Any:
    clip = nn.ClipGradByGlobalNorm(1.0)
    decay = paddle.regularizer.L2Decay(0.25)
    rate = paddle.optimizer.lr.StepDecay(0.5, 10)
    optimizer = paddle.optimizer
    kinds = (
        optimizer.Momentum(rate, 0.75, linear().parameters(), True, decay, clip),
        optimizer.Adam(
            0.5,
            0.75,
            0.875,
            0.25,
            [{"params": linear().parameters(), "beta1": 0.5}],
            decay,
            amsgrad=True,
        ),
        optimizer.AdamW(
            0.5, parameters=linear().parameters(), apply_decay_param_fun=lambda name: False
        ),
        optimizer.RMSProp(0.5, 0.75, 0.25, 0.5, True, linear().parameters()),
    )
    read = [xd.backend().optimizer(kind) for kind in kinds]
    return [sorted((name, str(value)) for name, value in one.settings.items()) for one in read]


def state_of_optimizers(xd: Any) -> Any:
    """Loads what a step has made into an optimizer that has made none, which then makes the same second step."""
    (net, optimizer), (twin, fresh) = (trainable(), trainable())
    step(net, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        xd.save(path, {"net": net, "optimizer": optimizer})
        xd.load(path, into={"net": twin, "optimizer": fresh})
    devices = xd.try_all_gpus()
    for model, own in ((net, optimizer), (twin, fresh)):
        xd.to_device((model, own), devices[-1])
        paddle.set_device(str(model.weight.place).removeprefix("Place(").removesuffix(")"))
        step(model, own)
    paddle.set_device("cpu")
    return [
        [round(x, 5) for x in xd.to_numpy(one.weight).ravel().tolist()] for one in (net, twin)
    ]


def kinds_of_layers(xd: Any) -> Any:
    conv = nn.Conv2D(
        4, 4, 3, stride=2, padding="same", dilation=1, groups=2, padding_mode="zeros"
    )
    net = nn.Sequential(
        conv, nn.BatchNorm2D(4), nn.BatchNorm(4, act="relu"), nn.ELU(0.25), nn.GroupNorm(2, 4), nn.InstanceNorm2D(4),
        nn.AdaptiveAvgPool2D((3, None)), nn.Pad2D(1, mode="reflect"), nn.PixelShuffle(2), nn.Sequential(nn.ReLU()),
        nn.utils.weight_norm(nn.Linear(3, 2)), nn.LayerNorm([2, 3]), nn.Embedding(5, 2, 1, max_norm=2.0),
        nn.Conv1D(2, 2, 1, data_format="NLC"), nn.TransformerEncoderLayer(4, 2, 8, activation="gelu"),
    )  # fmt: skip
    net[3].register_forward_post_hook(lambda layer, inputs, output: output * 2)
    listed = [
        str((layer.path, layer.kind, sorted(layer.settings.items(), key=str)))
        for layer in operations(xd, net)
    ]
    return listed, xd.backend().has_channels_last(net)


def operations(xd: Any, net: Any) -> Any:
    backend = xd.backend()
    return backend.operations(net, backend.layers(net))


class Broken(paddle.io.Dataset):  # type: ignore[misc]
    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise KeyError("row 3")
        return paddle.ones([2]) * index

    def __len__(self) -> int:
        return 4


def loaders(xd: Any) -> Any:
    return [
        ending(xd, paddle.io.DataLoader(Broken(), batch_size=2, num_workers=workers))
        for workers in (0, 1)
    ]


def ending(xd: Any, loader: Any) -> bool:
    try:
        return len(list(xd.prefetch(loader, "cpu"))) < 0
    except KeyError as error:
        return "row 3" in str(error)


def processes(xd: Any) -> Any:
    from xdevice.distributed.contract.processes import Group

    backend = xd.backend()
    group = Group(0, 1, 0, 1, xd.cpu(), "127.0.0.1", 20.0, lambda text: [text])
    total = [1.0, 1.0]
    for name in backend.engines():  # without any, xdevice's own takes over
        engine = backend.start_engine(name, group)
        total = xd.to_numpy(engine.all_reduce(paddle.ones([2]), "sum")).tolist()
        engine.close()
    ready: list[int] = []
    net = linear()
    end = backend.watch_gradients(net.parameters(), lambda i, gradient: ready.append(i))
    net(paddle.ones([1, 3])).sum().backward()
    end()
    return total, sorted(ready)


def traced(xd: Any) -> Any:
    """The other tracer of Paddle, which follows calls by their bytecode."""
    x = paddle.to_tensor([-1.0, 2.0])
    # raises a refusal of the backend, which Paddle's tracer would turn into an UnboundLocalError
    xd.device_of(x)
    step = paddle.jit.to_static(lambda x: xd.nn.relu(x) * 2, full_graph=False)
    return [xd.to_numpy(step(x)).tolist() for _ in range(3)]


def linear() -> Any:
    constant = nn.initializer.Constant
    return nn.Linear(3, 2, weight_attr=constant(0.5), bias_attr=constant(0.25))


def trainable() -> Any:
    net = linear()
    return net, paddle.optimizer.Adam(0.1, parameters=net.parameters())


def step(net: Any, optimizer: Any) -> None:
    net(paddle.to_tensor([[1.0, 2.0, 3.0]])).sum().backward()
    optimizer.step()
    optimizer.clear_grad()


STEPS = {
    "made": ("tensors", made), "wrapped models": ("models", wrapped_models), "memory": ("memory", memory),
    "settings of optimizers": ("optimizers", settings_of_optimizers), "loaders": ("data loaders", loaders),
    "state of optimizers": ("optimizers", state_of_optimizers), "kinds of layers": ("layers", kinds_of_layers),
    "processes": ("several processes", processes), "traced": ("compile", traced),
}  # fmt: skip
