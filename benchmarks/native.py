"""The five frameworks as they are used directly: the words of a loss, and a training step with each one's own tools.

`WORDS[name]()` has a framework's own functions under common names, so that a loss is written once. `STEPS[name]` makes
a training step of such a loss, on the current device: with the framework's own gradients and optimizers, and on JAX
and TensorFlow compiled. JAX has no optimizers, so they are written out there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy

import xdevice

Loss = Callable[..., Any]
"""What weights, running averages and a batch cost. It changes the averages in place."""
Step = Callable[..., Any]
"""A step on a batch, which gives the loss. It keeps its weights."""
EPS = 1e-5
"""Of layer norms and batch norms."""


class Rule(NamedTuple):
    """How a chapter improves its weights."""

    name: str
    """sgd, momentum (0.9), adam, or adamw (with a decay of 0.01)."""
    rate: float
    factor: Callable[[Any, Any], Any] | None = None
    """Of the rate, from the number of steps so far, in the functions of a module: its `minimum` and `cos`."""
    clip: float | None = None
    """The largest norm of all gradients together."""


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: mapped(change, value) for key, value in tree.items()}
    return [mapped(change, value) for value in tree] if isinstance(tree, list) else change(tree)


def leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    mapped(found.append, tree)
    return found


def earlier(length: int) -> Any:
    """True where a token may look: at itself, and at those before it."""
    return numpy.tril(numpy.ones((length, length), bool))


# words


def torch_words() -> SimpleNamespace:
    import torch
    from torch.nn import functional as f

    def batch_norm(x: Any, gamma: Any, beta: Any, running: Any) -> Any:
        return f.batch_norm(
            x, running["mean"], running["variance"], gamma, beta, training=True, eps=EPS
        )

    def layer_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
        return f.layer_norm(x, x.shape[-1:], weight, bias, EPS)

    attention = f.scaled_dot_product_attention
    return SimpleNamespace(
        **{
            name: getattr(f, name)
            for name in ("cross_entropy", "embedding", "gelu", "mse_loss", "relu")
        },
        **{
            name: getattr(torch, name)
            for name in ("add", "matmul", "reshape", "sigmoid", "stack", "sum", "tanh")
        },
        attention=attention,
        batch_norm=batch_norm,
        causal_attention=partial(attention, is_causal=True),
        conv2d=partial(f.conv2d, padding=1),
        layer_norm=layer_norm,
        max_pool2d=partial(f.max_pool2d, kernel_size=2),
        one_hot=lambda x, size: f.one_hot(x, size).float(),
        permute_dims=torch.permute,
        soft_cross_entropy=f.cross_entropy,
        split=lambda x, parts: torch.chunk(x, parts, -1),
        unstack=torch.unbind,
        where=torch.where,
    )


def tensorflow_words() -> SimpleNamespace:
    import tensorflow as tf

    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5
        return tf.matmul(tf.nn.softmax(tf.where(mask, scores, -1e9)), v)

    def layer_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, bias, weight, EPS)

    def batch_norm(x: Any, gamma: Any, beta: Any, running: Any) -> Any:
        moments = dict(zip(("mean", "variance"), tf.nn.moments(x, 0), strict=True))
        for name, one in moments.items():
            running[name].assign(0.9 * running[name] + 0.1 * one)
        return tf.nn.batch_normalization(x, *moments.values(), beta, gamma, EPS)

    def cross_entropy(scores: Any, labels: Any) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))

    return SimpleNamespace(
        **{
            name: getattr(tf, name)
            for name in ("add", "matmul", "one_hot", "reshape", "stack", "unstack", "where")
        },
        **{name: getattr(tf.nn, name) for name in ("gelu", "relu", "sigmoid", "tanh")},
        attention=attention,
        batch_norm=batch_norm,
        causal_attention=lambda q, k, v: attention(q, k, v, earlier(q.shape[-2])),
        conv2d=lambda x, kernel, bias: tf.nn.conv2d(x, kernel, 1, "SAME") + bias,
        cross_entropy=cross_entropy,
        embedding=lambda indices, table: tf.gather(table, indices),
        layer_norm=layer_norm,
        max_pool2d=lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
        mse_loss=lambda x, y: tf.reduce_mean(tf.math.squared_difference(x, y)),
        permute_dims=tf.transpose,
        soft_cross_entropy=lambda s, truth: tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(truth, s)
        ),
        split=lambda x, parts: tf.split(x, parts, -1),
        sum=tf.reduce_sum,
    )


def paddle_words() -> SimpleNamespace:
    import paddle
    from paddle.nn import functional as f

    least = paddle.to_tensor(-1e9)
    before = cache(lambda length: paddle.to_tensor(earlier(length)))

    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = paddle.matmul(q, k, transpose_y=True) / q.shape[-1] ** 0.5
        return paddle.matmul(f.softmax(paddle.where(mask, scores, least)), v)

    def batch_norm(x: Any, gamma: Any, beta: Any, running: Any) -> Any:
        return f.batch_norm(
            x, running["mean"], running["variance"], gamma, beta, training=True, epsilon=EPS
        )

    def layer_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
        return f.layer_norm(x, x.shape[-1:], weight, bias, EPS)

    return SimpleNamespace(
        **{
            name: getattr(f, name)
            for name in ("cross_entropy", "embedding", "gelu", "mse_loss", "relu", "sigmoid")
        },
        **{
            name: getattr(paddle, name)
            for name in ("add", "matmul", "reshape", "stack", "sum", "tanh", "where")
        },
        attention=attention,
        batch_norm=batch_norm,
        causal_attention=lambda q, k, v: attention(q, k, v, before(q.shape[-2])),
        conv2d=partial(f.conv2d, padding=1),
        layer_norm=layer_norm,
        max_pool2d=partial(f.max_pool2d, kernel_size=2),
        one_hot=f.one_hot,
        permute_dims=paddle.transpose,
        soft_cross_entropy=partial(f.cross_entropy, soft_label=True),
        split=lambda x, parts: paddle.split(x, parts, -1),
        unstack=paddle.unbind,
    )


def mxnet_words() -> SimpleNamespace:
    from mxnet import np, npx

    before = cache(lambda length: np.array(earlier(length), dtype=bool))

    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]  # batch_dot takes three axes
        scores = npx.batch_dot(*flat[:2], transpose_b=True) / q.shape[-1] ** 0.5
        least = np.full_like(scores, -1e9)  # beside a number `where` gives wrong gradients
        return npx.batch_dot(npx.softmax(np.where(mask, scores, least)), flat[2]).reshape(
            q.shape
        )

    def batch_norm(x: Any, gamma: Any, beta: Any, running: Any) -> Any:
        return npx.batch_norm(
            x, gamma, beta, running["mean"], running["variance"], EPS, 0.9, fix_gamma=False
        )

    def layer_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
        plain = weight is None
        return npx.layer_norm(
            x, *((np.ones(x.shape[-1]), np.zeros(x.shape[-1])) if plain else (weight, bias))
        )

    def conv2d(x: Any, kernel: Any, bias: Any) -> Any:
        return npx.convolution(
            x, kernel, bias, kernel=kernel.shape[2:], num_filter=kernel.shape[0], pad=(1, 1)
        )

    return SimpleNamespace(
        **{
            name: getattr(np, name)
            for name in ("add", "reshape", "stack", "sum", "tanh", "where")
        },
        **{name: getattr(npx, name) for name in ("one_hot", "relu", "sigmoid")},
        attention=attention,
        batch_norm=batch_norm,
        causal_attention=lambda q, k, v: attention(q, k, v, before(q.shape[-2])),
        conv2d=conv2d,
        cross_entropy=lambda scores, labels: -npx.pick(npx.log_softmax(scores), labels).mean(),
        embedding=lambda indices, table: npx.embedding(indices, table, *table.shape),
        gelu=lambda x: npx.leaky_relu(x, act_type="gelu"),
        layer_norm=layer_norm,
        matmul=np.dot,
        max_pool2d=lambda x: npx.pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max"),
        mse_loss=lambda x, y: np.square(x - y).mean(),
        permute_dims=np.transpose,
        soft_cross_entropy=lambda scores, truth: (
            -(npx.log_softmax(scores) * truth).sum(1).mean()
        ),
        split=lambda x, parts: np.split(x, parts, -1),
        unstack=list,
    )


def jax_words() -> SimpleNamespace:
    from jax import lax
    from jax import nn as layers
    from jax import numpy as jnp

    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ jnp.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
        return layers.softmax(jnp.where(mask, scores, -1e9)) @ v

    def causal_attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (jnp.swapaxes(part, 1, 2) for part in (q, k, v))
        return jnp.swapaxes(layers.dot_product_attention(q, k, v, is_causal=True), 1, 2)

    def layer_norm(x: Any, weight: Any = 1.0, bias: Any = 0.0) -> Any:
        return layers.standardize(x, epsilon=EPS) * weight + bias

    def batch_norm(x: Any, gamma: Any, beta: Any, running: Any) -> Any:
        moments = {"mean": x.mean(0), "variance": x.var(0)}
        running |= {name: 0.9 * running[name] + 0.1 * one for name, one in moments.items()}
        return layers.standardize(x, 0, epsilon=EPS, **moments) * gamma + beta

    def conv2d(x: Any, kernel: Any, bias: Any) -> Any:
        return lax.conv(x, kernel, (1, 1), "SAME") + bias[:, None, None]

    def max_pool2d(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    return SimpleNamespace(
        **{
            name: getattr(jnp, name)
            for name in ("add", "matmul", "reshape", "stack", "sum", "tanh", "where")
        },
        **{name: getattr(layers, name) for name in ("one_hot", "relu", "sigmoid")},
        attention=attention,
        batch_norm=batch_norm,
        causal_attention=causal_attention,
        conv2d=conv2d,
        cross_entropy=lambda s, labels: (
            -jnp.take_along_axis(layers.log_softmax(s), labels[:, None], 1).mean()
        ),
        embedding=lambda indices, table: table[indices],
        gelu=partial(layers.gelu, approximate=False),
        layer_norm=layer_norm,
        max_pool2d=max_pool2d,
        mse_loss=lambda x, y: jnp.square(x - y).mean(),
        permute_dims=jnp.transpose,
        soft_cross_entropy=lambda s, truth: -(layers.log_softmax(s) * truth).sum(1).mean(),
        split=lambda x, parts: jnp.split(x, parts, -1),
        unstack=list,
    )


WORDS: dict[str, Callable[[], SimpleNamespace]] = {
    "torch": torch_words,
    "tensorflow": tensorflow_words,
    "paddle": paddle_words,
    "mxnet": mxnet_words,
    "jax": jax_words,
}


# steps


def torch_step(loss: Loss, weights: Any, running: Any, rule: Rule) -> Step:
    import torch
    from torch import optim

    weights = mapped(lambda value: xdevice.tensor(value).requires_grad_(), weights)
    running, params = mapped(xdevice.tensor, running), leaves(weights)
    made: Any = {
        "sgd": optim.SGD,
        "momentum": partial(optim.SGD, momentum=0.9),
        "adam": optim.Adam,
    }
    optimizer = (made | {"adamw": optim.AdamW})[rule.name](params, lr=rule.rate)
    factor = rule.factor
    schedule = factor and optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: factor(step, numpy)
    )

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        value = loss(weights, running, *batch)
        value.backward()
        if rule.clip:
            torch.nn.utils.clip_grad_norm_(params, rule.clip)
        optimizer.step()
        if schedule:
            schedule.step()
        return value.detach()

    return step


def keras_optimizer(rule: Rule) -> Any:
    """TensorFlow's own optimizers are those of Keras."""
    import keras

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            assert rule.factor
            return rule.rate * rule.factor(keras.ops.cast(step, "float32"), keras.ops)

    own = keras.optimizers
    made = {
        "sgd": own.SGD,
        "momentum": partial(own.SGD, momentum=0.9),
        "adam": partial(own.Adam, epsilon=1e-8),
    }
    made["adamw"] = partial(own.AdamW, epsilon=1e-8, weight_decay=0.01)
    return made[rule.name](Schedule() if rule.factor else rule.rate, global_clipnorm=rule.clip)


def tensorflow_step(loss: Loss, weights: Any, running: Any, rule: Rule) -> Step:
    import tensorflow as tf

    weights, running = (
        mapped(tf.Variable, weights),
        mapped(partial(tf.Variable, trainable=False), running),
    )
    params, optimizer = leaves(weights), keras_optimizer(rule)
    optimizer.build(params)

    @tf.function
    def step(*batch: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(weights, running, *batch)
        grads = map(
            tf.convert_to_tensor, tape.gradient(value, params)
        )  # those of embeddings are rows, repeated ones too
        optimizer.apply_gradients(zip(grads, params, strict=True))
        return value

    return step  # type: ignore[no-any-return]


def paddle_step(loss: Loss, weights: Any, running: Any, rule: Rule) -> Step:
    import paddle
    from paddle import optimizer as own

    weights = mapped(lambda value: paddle.to_tensor(value, stop_gradient=False), weights)
    running, factor = mapped(paddle.to_tensor, running), rule.factor
    schedule = factor and own.lr.LambdaDecay(rule.rate, lambda step: float(factor(step, numpy)))
    made = {"sgd": own.SGD, "momentum": partial(own.Momentum, momentum=0.9), "adam": own.Adam}
    clip = paddle.nn.ClipGradByGlobalNorm(rule.clip) if rule.clip else None
    optimizer = (made | {"adamw": own.AdamW})[rule.name](
        learning_rate=schedule or rule.rate, parameters=leaves(weights), grad_clip=clip
    )

    def step(*batch: Any) -> Any:
        value = loss(weights, running, *batch)
        value.backward()
        optimizer.step()
        optimizer.clear_grad()
        if schedule:
            schedule.step()
        return value

    return step


def mxnet_step(loss: Loss, weights: Any, running: Any, rule: Rule) -> Step:
    from mxnet import autograd, gluon, init, np

    held: list[Any] = []

    def parameter(value: Any) -> Any:
        one = gluon.Parameter(f"weight{len(held)}", shape=value.shape)
        one.initialize(init.Zero())
        one.set_data(np.array(value))
        held.append(one)
        return one.data()

    weights, running = mapped(parameter, weights), mapped(np.array, running)
    decay = 0.01 if rule.name == "adamw" else 0.0  # of which MXNet 1.9 knows nothing
    settings = {"learning_rate": rule.rate} | (
        {"momentum": 0.9} if rule.name == "momentum" else {}
    )
    trainer = gluon.Trainer(
        held, {"momentum": "sgd", "adamw": "adam"}.get(rule.name, rule.name), settings
    )
    count, rate = 0, rule.rate

    def step(*batch: Any) -> Any:
        nonlocal count, rate
        if rule.factor:
            rate = float(rule.rate * rule.factor(count, numpy))
            trainer.set_learning_rate(rate)
        count += 1
        with autograd.record():
            value = loss(weights, running, *batch)
        value.backward()
        if rule.clip:
            grads = [one.grad() for one in held]
            factor = rule.clip / np.maximum(
                rule.clip, np.sqrt(sum((g * g).sum() for g in grads))
            )
            for g in grads:
                g *= factor
        for one in held if decay else ():
            data = one.data()
            data *= 1 - rate * decay
        trainer.step(1)
        return value

    return step


def jax_step(loss: Loss, weights: Any, running: Any, rule: Rule) -> Step:
    import jax
    from jax import numpy as jnp
    from jax import tree

    def norm(grads: Any) -> Any:
        return jnp.sqrt(sum(jnp.vdot(g, g) for g in tree.leaves(grads)))

    def momentum(weights: Any, grads: Any, state: Any, rate: Any) -> tuple[Any, Any]:
        state = tree.map(lambda m, g: 0.9 * m + g, state, grads)
        return tree.map(lambda p, m: p - rate * m, weights, state), state

    def adam(
        weights: Any, grads: Any, state: Any, rate: Any, decay: float = 0.0
    ) -> tuple[Any, Any]:
        step, mean, square = state
        mean = tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, grads)
        first, second = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)

        def moved(p: Any, m: Any, s: Any) -> Any:
            return p - rate * (m / first / (jnp.sqrt(s / second) + 1e-8) + decay * p)

        return tree.map(moved, weights, mean, square), (step + 1, mean, square)

    def sgd(weights: Any, grads: Any, state: Any, rate: Any) -> tuple[Any, Any]:
        return tree.map(lambda p, g: p - rate * g, weights, grads), state

    @jax.jit
    def whole(weights: Any, running: Any, state: Any, count: Any, *batch: Any) -> Any:
        def kept(weights: Any) -> Any:
            averages = mapped(lambda x: x, running)
            return loss(weights, averages, *batch), averages

        (value, averages), grads = jax.value_and_grad(kept, has_aux=True)(weights)
        if rule.clip:
            factor = jnp.minimum(1.0, rule.clip / norm(grads))
            grads = tree.map(lambda g: g * factor, grads)
        rate = rule.rate * (rule.factor(count, jnp) if rule.factor else 1.0)
        weights, state = update(weights, grads, state, rate)
        return weights, averages, state, count + 1, value

    update = {
        "sgd": sgd,
        "momentum": momentum,
        "adam": adam,
        "adamw": partial(adam, decay=0.01),
    }[rule.name]
    weights, running = mapped(xdevice.tensor, weights), mapped(xdevice.tensor, running)
    zeros = tree.map(jnp.zeros_like, weights)
    count = jnp.asarray(0.0)
    state = {"sgd": None, "momentum": zeros}.get(rule.name, (count, zeros, zeros))

    def step(*batch: Any) -> Any:
        nonlocal weights, running, state, count
        weights, running, state, count, value = whole(weights, running, state, count, *batch)
        return value

    return step


STEPS: dict[str, Callable[[Loss, Any, Any, Rule], Step]] = {
    "torch": torch_step,
    "tensorflow": tensorflow_step,
    "paddle": paddle_step,
    "mxnet": mxnet_step,
    "jax": jax_step,
}
