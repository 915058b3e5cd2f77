"""What only MXNet does, for `absent_names.py`."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.gluon import nn, rnn
from mxnet.gluon.contrib.nn import PixelShuffle1D, PixelShuffle2D


def compiled(xd: Any) -> Any:
    """A compiled graph keeps its arrays, so it must not outlive a move."""
    net = _ready(nn.Dense(2, in_units=3, weight_initializer="ones"))
    net.hybridize(static_alloc=True, static_shape=True)
    before = xd.to_numpy(net(xd.ones(2, 3))).tolist()
    copied = xd.copy_to(net, "cpu")
    xd.to_device(net, xd.cpu(1))
    net.weight.set_data(net.weight.data() * 2)
    return before, [
        xd.to_numpy(one(xd.ones(2, 3, device=xd.device_of(one)))).tolist()
        for one in (copied, net)
    ]


def with_gradient(xd: Any) -> Any:
    """A model that is moved between the backward pass and the step."""
    net = _ready(nn.Dense(2, in_units=3, weight_initializer="ones"))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
    with mx.autograd.record():
        loss = net(xd.ones(2, 3)).sum()
    loss.backward()
    xd.to_device(net, xd.cpu(1))
    trainer.step(1)
    return xd.to_numpy(net.weight.data()).tolist()


def layers_of_many_kinds(xd: Any) -> Any:
    image = nn.HybridSequential()
    image.add(
        nn.ReflectionPad2D(1),
        nn.Conv2D(8, 3, in_channels=3),
        nn.BatchNorm(in_channels=8),
        nn.MaxPool2D(),
    )
    image.add(nn.GroupNorm(2), nn.InstanceNorm(in_channels=8), PixelShuffle2D(2))
    line = nn.HybridSequential()
    line.add(
        nn.Dense(4, in_units=3),
        nn.LayerNorm(in_channels=4),
        nn.LeakyReLU(0.2),
        nn.Swish(),
        nn.Dropout(0.3),
    )
    line.add(nn.Activation("tanh"), nn.Conv1D(2, 1, in_channels=4), PixelShuffle1D(2))
    nets = [
        image,
        line,
        rnn.LSTM(4, 2, input_size=3),
        rnn.RNN(4, input_size=3, bidirectional=True),
    ]
    states = [xd.models.convert_state(net, "mxnet", like=net) for net in map(_ready, nets)]
    return [
        (sorted(state.unmapped), [str(line) for line in state.differences]) for state in states
    ]


def _ready(net: Any) -> Any:
    net.initialize()
    return net


STEPS = {
    "compiled models": ("models", compiled),
    "moving a gradient": ("models", with_gradient),
    "layers of many kinds": ("layers", layers_of_many_kinds),
}
