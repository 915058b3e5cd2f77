"""The functions inside compiled ones: the same numbers, the rules that shapes and dtypes tell, no check of labels."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from helpers.environment import sampled

import xdevice
from xdevice import nn

SHAPES = {"images": (2, 1, 8, 7), "kernel": (3, 1, 3, 2), "bias": (3,)}
TRACED = [
    name for name in xdevice.backends() if name in ("torch", "tensorflow", "paddle", "jax")
]


def step(images, kernel, bias, labels, mask):
    """A loss by way of every function but `one_hot`."""
    xp = xdevice.array_namespace(images)
    x = nn.sigmoid(nn.avg_pool2d(nn.relu(nn.conv2d(images, kernel, bias, padding=1)), 2))
    x = nn.dropout(x, mask, 0.5)
    x = nn.max_pool2d(x, 2, stride=1, padding=1)
    x = xp.mean(x, axis=(2, 3))
    words = nn.layer_norm(nn.gelu(nn.embedding(labels, x)))
    words = nn.batch_norm(words, *nn.moments(words))
    parts = xp.expand_dims(words, axis=2)
    mask = xp.ones((3, 3), dtype=xp.bool)
    words = xp.squeeze(nn.attention(parts, parts, parts, mask=mask, causal=True), axis=2)
    more = nn.cross_entropy(
        words, labels, reduction="sum"
    ) + nn.binary_cross_entropy_with_logits(words, words)
    return (
        xp.add(nn.cross_entropy(x, labels), xp.mean(nn.softmax(nn.log_softmax(x), axis=0)))
        + more
    )


def arguments():
    draw = np.random.default_rng(0)
    with xdevice.random.seed(0):
        mask = xdevice.random.bernoulli(2, 3, 4, 4)
    floats = [
        xdevice.tensor(draw.normal(size=shape).astype("float32")) for shape in SHAPES.values()
    ]
    return [*floats, xdevice.tensor([0, 1]), mask]


def pooled(x):
    return nn.max_pool2d(x, 2)


def compiled(name, function):
    if name == "torch":
        import torch

        return torch.compile(function, backend="eager")
    if name == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    if name == "paddle":
        import paddle

        return paddle.jit.to_static(function, full_graph=True)
    import jax

    return jax.jit(function)


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface")  # paddle.where's own
@pytest.mark.parametrize("name", sampled(TRACED, each_time=()))
def test_compiled_functions_give_the_same(name):
    with xdevice.use_backend(name):
        given = arguments()
        wanted = xdevice.item(step(*given))
        got = xdevice.item(compiled(name, step)(*given))
    with xdevice.use_backend("numpy"):
        reference = xdevice.item(step(*arguments()))
    assert got == pytest.approx(wanted, rel=1e-5)
    assert got == pytest.approx(reference, rel=1e-5)


@pytest.mark.parametrize("name", sampled(TRACED, each_time=("torch",)))
def test_what_shapes_and_dtypes_tell_is_refused_while_tracing(name):
    with xdevice.use_backend(name):
        x = xdevice.ones(2, 3)
        with pytest.raises(
            Exception, match=r"x must have the shape \(batch, channels, height, width\)"
        ):
            compiled(name, pooled)(x)
        with pytest.raises(Exception, match="relu accepts real floats, not int"):
            compiled(name, nn.relu)(xdevice.tensor([1]))


@pytest.mark.slow
@pytest.mark.skipif("tensorflow" not in TRACED, reason="TensorFlow is not installed")
def test_a_batch_whose_size_is_not_known():
    import tensorflow as tf

    with xdevice.use_backend("tensorflow"):
        images, kernel, bias, labels, mask = arguments()
        signature = [
            tf.TensorSpec((None, *x.shape[1:]), x.dtype)
            for x in (images, kernel, bias, labels, mask)
        ]
        traced = tf.function(step, input_signature=signature)
        assert xdevice.item(traced(images, kernel, bias, labels, mask)) == pytest.approx(
            xdevice.item(step(images, kernel, bias, labels, mask)), rel=1e-5
        )


@pytest.mark.skipif("jax" not in TRACED, reason="JAX is not installed")
def test_labels_that_are_no_classes_in_jit():
    import jax

    with xdevice.use_backend("jax"):
        for label in (3, -1, -4):
            labels = xdevice.tensor([0, label])
            loss = jax.jit(nn.cross_entropy)(xdevice.ones(2, 3), labels)
            each = jax.jit(partial(nn.cross_entropy, reduction="none"))(
                xdevice.ones(2, 3), labels
            )
            rows = jax.jit(nn.embedding)(labels, xdevice.ones(3, 2))
            classes = jax.jit(lambda labels: nn.one_hot(labels, 3))(labels)
            assert np.isnan(xdevice.item(loss))
            for result in (each, rows, classes):
                assert np.isfinite(xdevice.to_numpy(result[0])).all()
                assert np.isnan(xdevice.to_numpy(result[1])).all()


@pytest.mark.skipif("tensorflow" not in TRACED, reason="TensorFlow is not installed")
@pytest.mark.parametrize("label", [3, -1, -4])
def test_indices_out_of_range_in_a_tf_function_are_no_finite_numbers(label):
    import tensorflow as tf

    functions = (
        lambda labels: nn.embedding(labels, xdevice.ones(3, 2)),
        lambda labels: nn.one_hot(labels, 3),
        lambda labels: nn.cross_entropy(xdevice.ones(2, 3), labels, reduction="none"),
    )
    with xdevice.use_backend("tensorflow"):
        for function in functions:
            try:
                wrong = xdevice.to_numpy(tf.function(function)(xdevice.tensor([0, label])))[1]
            except tf.errors.InvalidArgumentError:
                continue
            assert np.isnan(wrong).all()


@pytest.mark.skipif("torch" not in TRACED, reason="PyTorch is not installed")
def test_labels_that_are_no_classes_under_torch_compile():
    with (
        xdevice.use_backend("torch"),
        pytest.raises(IndexError, match="index 3 is out of range; expected 0 to 2"),
    ):
        compiled("torch", nn.cross_entropy)(xdevice.ones(2, 3), xdevice.tensor([0, 3]))


@pytest.mark.skipif("torch" not in TRACED, reason="PyTorch is not installed")
def test_torch_traces_and_exports():
    import torch

    class Module(torch.nn.Module):
        def forward(self, *given):
            return step(*given)

    with xdevice.use_backend("torch"):
        given = arguments()
        wanted = xdevice.item(step(*given))
        assert xdevice.item(
            torch.export.export(Module(), tuple(given)).module()(*given)
        ) == pytest.approx(wanted)


@pytest.mark.skipif("jax" not in TRACED, reason="JAX is not installed")
def test_on_jax_each_function_and_its_gradient_is_one_program(caplog):
    """A first step has to compile each program that it calls."""
    import jax

    def loss(p, x, y):
        xp = xdevice.array_namespace(x)
        hidden = nn.relu(xp.add(xp.matmul(x, p["w1"]), p["b1"]))
        return nn.cross_entropy(xp.add(xp.matmul(nn.gelu(hidden), p["w2"]), p["b2"]), y)

    with xdevice.use_backend("jax"):
        shapes = {"w1": (7, 11), "b1": (11,), "w2": (11, 3), "b2": (3,)}
        params = {name: xdevice.random.normal(*shape) for name, shape in shapes.items()}
        x, y = xdevice.random.normal(13, 7), xdevice.random.integers((13,), high=3)
        with jax.log_compiles(), caplog.at_level("WARNING", "jax"):
            xdevice.math.value_and_grad(loss)(params, x, y)
    made = [line for line in caplog.messages if line.startswith("Finished XLA compilation")]
    assert len(made) <= 2 * 7 + 1, made  # the last one is the gradient of the loss itself, 1.0
