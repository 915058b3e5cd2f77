"""A function on one side: its outputs are compared, what it names by `record`, and where it parts from a model."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from helpers.environment import BACKENDS

import xdevice
from xdevice.twins.tracing.traces import RECORD

pytestmark = pytest.mark.skipif("torch" not in BACKENDS, reason="the models here are PyTorch's")

X = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
WITH_OPERATIONS = [name for name in ("jax", "tensorflow", "paddle") if name in BACKENDS]


def network():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    )  # fmt: skip


def weights(name, net):
    """The weights of the network in another framework, as users of JAX have them: a nested dict."""
    backend = xdevice.backend(name)
    tree = {}
    for path, x in net.state_dict().items():
        layer, _, last = path.partition(".")
        tree.setdefault(layer, {})[last] = backend.from_numpy(np.array(x), xdevice.cpu())
    return tree


def written(name):
    """The network as a function of a framework and its weights, with its faults."""
    backend = xdevice.backend(name)
    if name == "jax":
        import jax
        import jax.numpy as xp

        gelu, tanh, mean, sqrt = (
            partial(jax.nn.gelu, approximate=False),
            xp.tanh,
            partial(xp.mean, axis=-1),
            xp.sqrt,
        )
    elif name == "tensorflow":
        import tensorflow as tf

        gelu, tanh, mean, sqrt = tf.nn.gelu, tf.tanh, partial(tf.reduce_mean, axis=-1), tf.sqrt
    else:
        import paddle

        gelu, tanh, mean, sqrt = (
            paddle.nn.functional.gelu,
            paddle.tanh,
            partial(paddle.mean, axis=-1),
            paddle.sqrt,
        )

    def apply(weights, x, fault=""):
        assert not isinstance(x, np.ndarray)
        dense = lambda x, w: x @ turned(w["weight"]) + w["bias"]  # noqa: E731
        x = dense(x, weights["0"])
        xdevice.parity.log("embedded", x)
        centred = x - mean(x)[..., None]
        x = centred / sqrt(
            mean(centred * centred)[..., None] + (1e-3 if fault == "eps" else 1e-5)
        )
        x = x * weights["1"]["weight"] + weights["1"]["bias"]
        xdevice.parity.log("normed", x)
        x = (
            gelu(x)
            if fault != "relu"
            else x * backend.from_numpy(np.float32(0.5), xdevice.cpu())
        )
        x = dense(x, weights["3"])
        x = tanh(x) if fault != "no tanh" else x
        return dense(x, weights["5"]) + (0.01 if fault == "shift" else 0.0)

    def turned(x):
        return x.T if name == "jax" else backend.framework.transpose(x, [1, 0])

    return apply


def difference(actual, expected, **how):
    with pytest.raises(xdevice.errors.ParityError) as caught:
        xdevice.assert_parity(actual, expected, inputs=X, **how)
    return str(caught.value)


@pytest.mark.parametrize("name", WITH_OPERATIONS)
def test_a_function_in_any_of_its_forms_equals_its_model(name):
    net = network()
    apply, tree = written(name), weights(name, net)
    framework = xdevice.backend(name).framework
    compilers = {"jax": "jit", "tensorflow": "function"}
    compile = (
        getattr(framework, compilers[name]) if name in compilers else framework.jit.to_static
    )
    for function in (
        partial(apply, tree),
        lambda x: apply(tree, x),
        compile(lambda x: apply(tree, x)),
        (apply, tree),
    ):
        xdevice.assert_parity(function, net, inputs=X)
        xdevice.assert_parity(net, function, inputs=X)
    assert xdevice.parity.compare(partial(apply, tree), lambda x: apply(tree, x), inputs=X)


@pytest.mark.parametrize(
    ("fault", "layer"),
    [
        ("eps", "1 (LayerNorm)"),
        ("relu", "2 (GELU)"),
        ("no tanh", "4 (Tanh)"),
        ("shift", ""),
        ("weight", "3 (Linear)"),
    ],
)
@pytest.mark.parametrize("name", WITH_OPERATIONS)
def test_the_layer_and_the_line_from_which_a_function_parts_are_named(name, fault, layer):
    net = network()
    apply, tree = written(name), weights(name, net)
    if fault == "weight":
        tree["3"]["weight"] = tree["3"]["weight"] * 1.01
    text = difference(partial(apply, tree, fault=fault), net)
    assert "the first operation that" in text
    assert "test_functions.py:" in text
    assert (
        f"the first layer of torch that differs is {layer}" in text
        if layer
        else "5 (Linear)" not in text
    )
    if layer and fault != "weight":
        assert f"the first layer of torch that differs is {layer}" in difference(
            net, partial(apply, tree, fault=fault)
        )


def test_what_both_name_is_compared_first_and_names_pair_a_layer():
    net = network()
    apply, tree = written(WITH_OPERATIONS[0]), weights(WITH_OPERATIONS[0], net)
    function = partial(apply, tree, fault="eps")
    text = difference(function, lambda x: net(x), names={"embedded": "0", "normed": "1"})
    assert "the first named value that differs is 1: it is off by" in text
    assert "0, before it, agrees" in text
    text = difference(
        partial(apply, tree, fault="no tanh"), net, names={"embedded": "0", "normed": "1"}
    )
    assert "all 2 named values agree, the last of which is 1" in text


def test_what_a_function_names_is_traced():
    apply, tree = written(WITH_OPERATIONS[0]), weights(WITH_OPERATIONS[0], network())
    x = xdevice.backend(WITH_OPERATIONS[0]).from_numpy(X, xdevice.cpu())
    with xdevice.parity.capture_intermediates(partial(apply, tree)) as traced:
        apply(tree, x)
    assert [(call.path, call.type, call.outputs[0].shape) for call in traced.calls] == [
        ("embedded", RECORD, (5, 8)), ("normed", RECORD, (5, 8)),
    ]  # fmt: skip
    assert str(traced).startswith("written.apply of")
    net = network()
    with xdevice.parity.capture_intermediates(
        lambda x: net(x)
    ) as traced:  # the layers of the model that a function calls
        net(xdevice.backend("torch").from_numpy(X, xdevice.cpu()))
    assert [call.path for call in traced.calls] == list("012345")


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="Keras has its channels last")
def test_a_method_of_a_model_takes_what_the_model_takes_and_another_function_what_is_given():
    import keras
    import tensorflow as tf
    import torch

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    ).eval()

    def twin(eps):
        norm = keras.layers.BatchNormalization(epsilon=eps, momentum=0.9)
        model = keras.Sequential(
            [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), norm, keras.layers.ReLU()]
        )
        xdevice.load(xdevice.models.convert_state(net, "tensorflow", like=model), into=model)
        return model

    images = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")
    last = np.ascontiguousarray(np.moveaxis(images, 1, -1))
    same = twin(1e-5)
    xdevice.assert_parity(same.call, net, inputs=last)
    xdevice.assert_parity(net.forward, same.call, inputs=images)
    turned = lambda x: net(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # noqa: E731
    xdevice.assert_parity(turned, same, inputs=last)
    xdevice.assert_parity(tf.function(lambda x: same(x, training=False)), turned, inputs=last)
    xdevice.assert_parity(torch.compile(net, backend="eager"), same, inputs=images)
    with pytest.raises(
        xdevice.errors.ParityError,
        match="the first layer of tensorflow that differs is batch_normalization",
    ):
        xdevice.assert_parity(twin(1e-2).call, net.forward, inputs=last)


def test_what_says_nothing_is_refused_by_name():
    import torch

    with pytest.raises(
        xdevice.errors.ArgumentError, match=r"refers to no framework; pass functools\.partial"
    ):
        xdevice.assert_parity(lambda x: x + 1, network(), inputs=X)
    jax = pytest.importorskip("jax")
    with pytest.raises(
        xdevice.errors.ArgumentError, match="refers to jax, torch, so its framework"
    ):
        xdevice.assert_parity(
            lambda x: torch.as_tensor(np.array(jax.numpy.tanh(x))), network(), inputs=X
        )
    with pytest.raises(xdevice.errors.ArgumentError, match="inputs="):
        xdevice.assert_parity(lambda x: torch.tanh(x), network())
    with pytest.raises(xdevice.errors.NotATensorError, match="models or functions, not 3"):
        xdevice.assert_parity(3, network(), inputs=X)
    with pytest.raises(xdevice.errors.NotATensorError, match=r"<generator .* expected tensors"):
        xdevice.assert_parity(
            lambda x: (torch.tanh(x) for _ in "a"),
            lambda x: (torch.sin(x) for _ in "a"),
            inputs=X,
        )
    xdevice.assert_parity(torch.tanh, np.tanh, inputs=X)
    assert "the first operation that differs could not be found: numpy" in difference(
        np.sinh, torch.tanh
    )
