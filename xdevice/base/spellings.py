"""Errors about arguments that other libraries use, such as PyTorch's `dim`. These errors say what to write instead.

A function that raises these errors declares `**misspelled: NoReturn`, so that type checkers report any call with such
an argument.
"""

from __future__ import annotations

from xdevice.errors import ArgumentError

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final, NoReturn

# advice that several arguments share
_SHAPE: Final = "pass the shape first, without a name: {function}(2, 3)"
_SEED: Final = "put the call in a block `with xdevice.random.seed(n):`"
_GRADIENTS: Final = "compute gradients with xdevice.math.value_and_grad, for any tensor"
_FIRST: Final = "pass the tensor first, without a name"

_ADVICE: Final = {
    **dict.fromkeys(("dim", "dims", "axes"), "write axis="),
    **dict.fromkeys(("keepdim", "keep_dims"), "write keepdims="),
    **dict.fromkeys(("size", "shape"), _SHAPE),
    **dict.fromkeys(("requires_grad", "stop_gradient", "trainable"), _GRADIENTS),
    **dict.fromkeys(("ctx", "context", "place"), "write device="),
    **dict.fromkeys(("generator", "key", "seed", "rng"), _SEED),
    **dict.fromkeys(("mean", "mu"), "write loc="),
    **dict.fromkeys(("std", "stddev", "sigma"), "write scale="),
    **dict.fromkeys(("minval", "min", "a"), "write low="),
    **dict.fromkeys(("maxval", "max", "b"), "write high="),
    **dict.fromkeys(("num_classes", "depth"), "write n="),
    **dict.fromkeys(("input", "x", "tensor", "values"), _FIRST),
    **dict.fromkeys(("unbiased", "ddof"), "write correction=1 to divide by n - 1"),
    "replace": "choice always draws with replacement",
    "out": "functions return a new tensor",
    "where": "select the elements first with xp.where(condition, x, 0)",
    "name": "tensors have no names here",
    "copy": "to_device copies a tensor that is on another device; copy_to always copies",
    "memory_format": "change the memory format with the framework's own function",
    "layout": "create sparse tensors with the framework's own functions",
    "pin_memory": "to_device copies large tensors to a GPU through page-locked memory",
    "training": "omit the call when nothing should be dropped",
    "inplace": "functions return a new tensor",
    "weight": "pass reduction='none', and multiply the losses by the weights",
    "ignore_index": "before the call, select the rows to include",
    "from_logits": "the function takes logits, never probabilities",
    "label_smoothing": "compute the smoothed loss from log_softmax and one_hot",
}


def refuse(function: str, misspelled: Iterable[str], takes: str) -> NoReturn:
    """Raises the `ArgumentError` for the first name in `misspelled`, which lists arguments that a function does not
    have. `function` is the name of this function, and `takes` describes, in words, the arguments that it has."""
    name = next(iter(misspelled))
    advice = _ADVICE.get(name, "").format(function=function)
    raise ArgumentError(
        f"{function} has no argument {name!r}: {advice or f'it accepts {takes}'}"
    )
