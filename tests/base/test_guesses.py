"""Names and arguments of other frameworks, which users reach for: each works, or the error says the word to use."""

from __future__ import annotations

import re

import pytest
from helpers.faces import faces
from helpers.products import MISSING

import xdevice
from xdevice.base import guesses

NAMES = {
    # PyTorch
    "device_count": "xdevice.num_gpus()",
    "is_available": "xdevice.num_gpus() > 0",
    "synchronize": "xdevice.sync()",
    "manual_seed": "xdevice.random.seed(n)",
    "no_grad": "xdevice.math.stop_gradient(x)",
    "autocast": "docs/guides/mixed_precision.md",
    "pin_memory": "page-locked",
    "cuda": "xdevice.gpu(i)",
    "set_device": "xdevice.set_default_device(device)",
    "get_device_name": "xdevice.memory(device).name",
    "empty_cache": "xdevice.accelerator.empty_cache()",
    "randn": "xdevice.random.normal(2, 3)",
    "cat": "xdevice.array_namespace(x).concat",
    "float32": 'dtype="float32"',
    "Linear": "xp.matmul(x, weight) + bias",
    # JAX
    "device_put": "xdevice.to_device(x, device)",
    "device_get": "xdevice.to_numpy(x)",
    "block_until_ready": "xdevice.sync(x)",
    "jit": "xdevice.compile(function)",
    "grad": "xdevice.math.grad",
    "value_and_grad": "xdevice.math.value_and_grad",
    "PRNGKey": "xdevice.random.seed(n)",
    "vmap": "framework's own",
    # TensorFlow and Keras
    "list_physical_devices": "xdevice.devices()",
    "GradientTape": "xdevice.math.value_and_grad",
    "function": "xdevice.compile(function)",
    "constant": "xdevice.tensor(data)",
    "set_random_seed": "xdevice.random.seed_all(n)",
    # others
    "DeviceError": "xdevice.errors.DeviceError",
    "replicate": "xdevice.parallel.replicate",
    "softmax": "xdevice.nn.softmax",
    "adam": "xdevice.optim.adam",
    "matmul": "xdevice.array_namespace(x).matmul",
    "to_devcie": "did you mean xdevice.to_device?",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_another_framework_is_answered(name):
    if "math" in MISSING and NAMES[name].startswith(
        ("xdevice.math.grad", "xdevice.nn", "xdevice.optim")
    ):
        pytest.skip("needs math, which this copy does not have")
    with pytest.raises(AttributeError, match=re.escape(NAMES[name])):
        getattr(xdevice, name)


def test_a_name_that_resembles_nothing_is_not_answered():
    with pytest.raises(AttributeError, match=r"^module 'xdevice' has no attribute 'zyx'$"):
        _ = xdevice.zyx
    assert not hasattr(xdevice, "__wrapped__")


def test_no_guess_is_a_name_and_each_answer_names_what_there_is():
    assert not set(guesses._REPLACEMENTS) & set(xdevice.__all__)
    words = " ".join(guesses._REPLACEMENTS.values())
    for path in set(re.findall(r"xdevice((?:\.[a-z_]+)+)", words, re.IGNORECASE)):
        value = xdevice
        for part in path.removesuffix(".total").strip(".").split("."):
            value = getattr(value, part)
    assert len(guesses._REPLACEMENTS) > 100
    assert xdevice in faces()


X = [[1.0, 2.0], [3.0, 4.0]]
CALLS = {
    "torch.sum(x, dim=1)": (lambda xp, x: xp.sum(x, dim=1), "write axis="),
    "torch.mean(x, dim=1, keepdim=True)": (
        lambda xp, x: xp.mean(x, axis=1, keepdim=True),
        "write keepdims=",
    ),
    "torch.max(x, dim=0)": (lambda xp, x: xp.max(x, dim=0), "write axis="),
    "torch.var(x, unbiased=True)": (lambda xp, x: xp.var(x, unbiased=True), "correction=1"),
    "np.std(x, ddof=1)": (lambda xp, x: xp.std(x, ddof=1), "correction=1"),
    "torch.argmax(x, dim=1)": (lambda xp, x: xp.argmax(x, dim=1), "write axis="),
    "torch.stack(xs, dim=1)": (lambda xp, x: xp.stack([x, x], dim=1), "write axis="),
    "torch.concat(xs, dim=1)": (lambda xp, x: xp.concat([x, x], dim=1), "write axis="),
    "torch.sort(x, dim=0)": (lambda xp, x: xp.sort(x, dim=0), "write axis="),
    "torch.flip(x, dims=0)": (lambda xp, x: xp.flip(x, dims=0), "write axis="),
    "torch.unbind(x, dim=0)": (lambda xp, x: xp.unstack(x, dim=0), "write axis="),
    "np.sum(x, out=y)": (lambda xp, x: xp.sum(x, out=x), "functions return a new tensor"),
    "F.softmax(x, dim=1)": (lambda xp, x: xdevice.nn.softmax(x, dim=1), "write axis="),
    "F.log_softmax(x, dim=1)": (lambda xp, x: xdevice.nn.log_softmax(x, dim=1), "write axis="),
    "F.cross_entropy(x, y, label_smoothing=0.1)": (
        lambda xp, x: xdevice.nn.cross_entropy(x, x, label_smoothing=0.1),
        "compute the smoothed loss from log_softmax",
    ),
    "torch.tensor(x, requires_grad=True)": (
        lambda xp, x: xdevice.tensor(X, requires_grad=True),
        "value_and_grad",
    ),
    "mx.nd.array(x, ctx=cpu)": (lambda xp, x: xdevice.tensor(X, ctx="cpu"), "write device="),
    "paddle.to_tensor(x, place=cpu)": (
        lambda xp, x: xdevice.tensor(X, place="cpu"),
        "write device=",
    ),
    "paddle.to_tensor(x, stop_gradient=False)": (
        lambda xp, x: xdevice.tensor(X, stop_gradient=False),
        "value_and_grad",
    ),
    "torch.zeros(size=(2,))": (lambda xp, x: xdevice.zeros(size=(2,)), "pass the shape first"),
    "tf.ones(shape=(2,))": (lambda xp, x: xdevice.ones(shape=(2,)), "pass the shape first"),
    "x.to(device, copy=True)": (
        lambda xp, x: xdevice.to_device(x, "cpu", copy=True),
        "copy_to always copies",
    ),
    "torch.normal(size=(2,))": (
        lambda xp, x: xdevice.random.normal(size=(2,)),
        "pass the shape first",
    ),
    "torch.normal(std=2)": (lambda xp, x: xdevice.random.normal(2, std=2), "write scale="),
    "tf.random.normal((2,), mean=1)": (
        lambda xp, x: xdevice.random.normal(2, mean=1),
        "write loc=",
    ),
    "tf.random.uniform((2,), minval=1)": (
        lambda xp, x: xdevice.random.uniform(2, minval=1),
        "write low=",
    ),
    "tf.random.uniform((2,), maxval=3)": (
        lambda xp, x: xdevice.random.uniform(2, maxval=3),
        "write high=",
    ),
    "jax.random.normal(key=key)": (
        lambda xp, x: xdevice.random.normal(2, key=0),
        "xdevice.random.seed",
    ),
    "torch.randint(generator=g)": (
        lambda xp, x: xdevice.random.permutation(2, generator=0),
        "xdevice.random.seed",
    ),
    "rng.integers(2, 10)": (
        lambda xp, x: xdevice.random.integers(2, high=10),
        "integers((2,), high=...)",
    ),
    "an argument of nobody": (lambda xp, x: xdevice.nn.softmax(x, side=1), "it accepts axis="),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_in_another_spelling_is_answered(call):
    function, word = CALLS[call]
    with xdevice.use_backend("numpy"):
        x = xdevice.tensor(X)
        with pytest.raises(xdevice.errors.ArgumentError, match=re.escape(word)):
            function(xdevice.array_namespace(x), x)


def test_a_device_and_a_dtype_are_given_by_keyword_only():
    with xdevice.use_backend("numpy"), pytest.raises(TypeError, match="positional"):
        xdevice.tensor(X, "float64")
