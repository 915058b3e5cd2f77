"""Gradients of JAX, which gets a list: its dicts come back with sorted keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Callable


def value_and_grad(
    leaves: list[Any], call: Callable[[list[Any]], tuple[Any, list[Any]]], nested: bool
) -> tuple[Any, list[Any], list[Any]]:
    depends = False

    def traced(inputs: list[Any]) -> tuple[Any, list[Any]]:
        nonlocal depends
        loss, rest = call(inputs)
        depends = type(loss) is type(inputs[0])
        return loss, rest

    (loss, rest), gradients = jax.value_and_grad(traced, has_aux=True)(leaves)
    return loss, gradients if depends else [None] * len(leaves), rest


def update(leaves: list[Any], grads: list[Any], rule: Callable[[Any, Any], Any], nested: bool) -> list[Any]:
    return [rule(x, g) for x, g in zip(leaves, grads, strict=True)]
