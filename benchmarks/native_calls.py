"""Each framework's own way of doing what a verb does, for the ratios: what a user would write without xdevice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Native(NamedTuple):
    """Calls that take nothing and do what the verb of their name does, on the same tensors."""

    to_device: Callable[[], Any]
    to_device_says: str
    move: Callable[[], Any]
    copy_to: Callable[[], Any]
    device_of: Callable[[], Any]
    same_device: Callable[[], Any]


def torch(x: Any, xs: list[Any], here: Any, there: Any) -> Native:
    def same() -> bool:
        first = xs[0].device
        return all(y.device == first for y in xs)

    return Native(
        lambda: x.to(here),
        "x.to(d)",
        lambda: x.to(there),
        lambda: x.to(here, copy=True),
        lambda: x.device,
        same,
    )


def tensorflow(x: Any, xs: list[Any], here: Any, there: Any) -> Native:
    import tensorflow as tf

    def identity(place: Any) -> Any:
        with tf.device(place):
            return tf.identity(x)

    def same() -> bool:
        first = xs[0].backing_device
        return all(y.backing_device == first for y in xs)

    return Native(
        lambda: identity(here),
        "tf.identity in a scope",
        lambda: identity(there),
        lambda: tf.raw_ops.DeepCopy(x=x),
        lambda: x.backing_device,
        same,
    )


def paddle(x: Any, xs: list[Any], here: Any, there: Any) -> Native:
    to = (lambda: x.cuda(here.get_device_id())) if "gpu" in str(here).lower() else x.cpu

    def same() -> bool:
        first = xs[0].place
        return all(y.place == first for y in xs)

    return Native(
        to,
        "x.cpu() or x.cuda(i)",
        lambda: x._copy_to(there, True),
        x.clone,
        lambda: x.place,
        same,
    )


def mxnet(x: Any, xs: list[Any], here: Any, there: Any) -> Native:
    def same() -> bool:
        first = xs[0].ctx
        return all(y.ctx == first for y in xs)

    return Native(
        lambda: x.as_in_ctx(here),
        "x.as_in_ctx(c)",
        lambda: x.as_in_ctx(there),
        lambda: x.copyto(here),
        lambda: x.ctx,
        same,
    )


def jax(x: Any, xs: list[Any], here: Any, there: Any) -> Native:
    import jax

    def same() -> bool:
        first = xs[0].device
        return all(y.device == first for y in xs)

    return Native(
        lambda: jax.device_put(x, here),
        "jax.device_put(x, d)",
        lambda: jax.device_put(x, there),
        lambda: jax.device_put(x, here, may_alias=False),
        lambda: x.device,
        same,
    )


def numpy(x: Any, xs: list[Any], here: Any, there: Any) -> Native:
    import numpy as np

    return Native(
        lambda: np.asarray(x),
        "np.asarray(x)",
        lambda: x.copy(),
        lambda: x.copy(),
        lambda: None,
        lambda: True,
    )
