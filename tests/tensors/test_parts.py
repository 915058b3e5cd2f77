"""Layers and variables of a model beside it in a container, and those that two models share, on every framework."""

from __future__ import annotations

import pytest

import xdevice


def torch_net():
    nn = xdevice.backend("torch").framework.nn
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return net, lambda net: [net[0], net[0].weight, net[1].running_mean]


def tensorflow_net():
    keras = xdevice.backend("tensorflow").framework.keras
    net = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2), keras.layers.BatchNormalization()]
    )
    return net, lambda net: [net.layers[0], net.layers[0].kernel, net.layers[1].moving_mean]


def tensorflow_module():
    tf = xdevice.backend("tensorflow").framework
    net, inner = tf.Module(), tf.Module()
    inner.w, net.inner = tf.Variable([1.0, 2.0]), inner
    return net, lambda net: [net.inner, net.inner.w]


def paddle_net():
    nn = xdevice.backend("paddle").framework.nn
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1D(2))
    return net, lambda net: [net[0], net[0].weight, net[1]._mean]


def gluon_net():
    mx = xdevice.backend("mxnet").framework
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, in_units=2), mx.gluon.nn.BatchNorm(in_channels=2))
    net.initialize(ctx=mx.cpu())
    return net, lambda net: [net[0], net[0].weight, net[1].running_mean]


NETS = pytest.mark.parametrize(
    "make", [torch_net, tensorflow_net, tensorflow_module, paddle_net, gluon_net]
)


@NETS
def test_parts_beside_a_copied_model_are_those_of_the_copy(make):
    net, parts = make()
    before = {"parts": parts(net), "net": net}
    after = xdevice.copy_to(before, "cpu")
    assert after["net"] is not net
    for copied, old, new in zip(
        after["parts"], before["parts"], parts(after["net"]), strict=True
    ):
        assert copied is new
        assert copied is not old


@NETS
def test_two_models_that_share_a_layer_are_not_copied_apart(make):
    one, parts = make()
    other, _ = make()
    layer = parts(one)[0]
    if make is tensorflow_module:
        other.inner = layer
    elif hasattr(other, "add"):
        other.add(layer)
    else:
        other.append(layer)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"\['one'\].*\['other'\]|\['other'\].*\['one'\]"
    ):
        xdevice.copy_to({"one": one, "other": other}, "cpu")
    moved = xdevice.to_device({"one": one, "other": other}, "cpu")
    assert moved["one"] is one
