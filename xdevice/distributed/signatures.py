"""Texts that describe the tensors of a collective. The ranks compare them in the vote before
the collective."""

from __future__ import annotations

import hashlib
from enum import Enum
from numbers import Number
from typing import TYPE_CHECKING, Any, Final

from xdevice.containers import trees
from xdevice.core import registry
from xdevice.replicas.operands import dtype_of, first_overlap, read, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdevice.replicas.operands import Operand

_MAX_CHARACTERS: Final = 60
"""Numbers and texts of at most this many characters are sent in full, and longer ones as a
digest."""
_MAX_TEXTS: Final = 10_000
"""The most numbers and texts that are sent individually. If there are more, one digest is sent for each thousand of
them."""


def signatures(operands: list[Operand], are_uneven: Sequence[bool] = ()) -> str:
    """Returns the text for several tensors. The text marks a tensor that occurs again, because each tensor is sent
    only once. `are_uneven` says, for each tensor, whether the length of its first axis may differ between ranks; if it
    is empty, no length may differ."""
    first_indices: dict[int, int] = {}
    texts = []
    for i, operand in enumerate(operands):
        # a rank with one tensor in two places and a rank with two equal tensors would send
        # different numbers of tensors
        is_again = first_indices.setdefault(id(operand.value), i) != i
        is_uneven = bool(are_uneven) and are_uneven[i]
        texts.append(
            signature(operand, is_uneven)
            + (f" is tensor {first_indices[id(operand.value)]}" if is_again else "")
        )
    return "; ".join(texts)


def signature(operand: Operand, is_uneven: bool = False) -> str:
    """Returns the text for one tensor: its name, dtype, shape and kind of device, such as
    "x['a'] float32 [2, 3] on gpu". The name "x", of a tensor that is the whole argument, and
    the device "cpu" are left out. With `is_uneven`, "any" replaces the length of the first
    axis."""
    lengths = [str(length) for length in shape_of(operand)]
    if is_uneven:
        lengths[0] = "any"
    text = f"{dtype_of(operand)} [{', '.join(lengths)}]"
    # a tensor that is the whole argument is named "x" on every rank
    if operand.name != "x":
        text = f"{operand.name} {text}"
    device = operand.backend.device_of(read(operand))
    # not the index, because each rank has its own GPU
    return text if device.kind == "cpu" else f"{text} on {device.kind}"


def overlap(parts: list[Operand]) -> str:
    """Returns a text that names two tensors that share memory; "" if there are none. The ranks
    compare it, because writing one of the two changes both."""
    twins = first_overlap(parts) if len(parts) > 1 else None
    return f"; {twins[0]} and {twins[1]} share memory" if twins is not None else ""


def others_text(x: Any) -> str:
    """Returns a text for the numbers, strings and other objects in a container that are not
    tensors; "" if there are none. The ranks compare it, because these objects are not sent and
    must be the same on all ranks."""
    # a tensor or model is not a container
    if registry.kind_of(type(x)) is not None:
        return ""
    others = [leaf for leaf in trees.leaves(x) if registry.kind_of(type(leaf.value)) is None]
    texts = sorted(f"; x{leaf.path} is {_same_everywhere(leaf.value)}" for leaf in others)
    # because the size of a message of the control connection is limited
    if len(texts) > _MAX_TEXTS:
        parts = [
            texts[i : i + _MAX_TEXTS // 10] for i in range(0, len(texts), _MAX_TEXTS // 10)
        ]
        texts = [
            f"{part[0]}, and {len(part) - 1} after it: sha256 {_digest(''.join(part))}"
            for part in parts
        ]
    return "".join(texts)


def _same_everywhere(value: Any) -> str:
    """Returns a text for an object: equal objects have the same text on all ranks. For an
    object that is not None, a number, a string, bytes or a member of an enum, the text is only
    the name of the object's type, because its `repr` may contain a memory address."""
    import numpy as np

    if value is None or isinstance(value, Number | str | bytes | np.generic | Enum):
        return _shorten(repr(value))
    return f"a {type(value).__qualname__}"


def _shorten(text: str) -> str:
    """Returns a text of at most 60 characters unchanged, and for a longer text its first 60
    characters, its length and a digest."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters, sha256 {_digest(text)})"


def _digest(text: str) -> str:
    """Returns the first 16 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
