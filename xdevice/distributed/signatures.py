"""The texts for the tensors of a collective, on which the ranks vote."""

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

_LONGEST: Final = 60
"""Numbers and texts of at most this many characters are sent in full, longer ones as a digest."""
_MOST: Final = 10_000
"""The most numbers and texts that are sent one by one; of more, a digest for each thousand."""


def signatures(tensors: list[Operand], but_lengths: Sequence[bool] = ()) -> str:
    """The text for several tensors, on which the ranks vote before a collective. It says which tensors are the same
    object, because such a tensor is sent only once."""
    first: dict[int, int] = {}
    texts = []
    for i, one in enumerate(tensors):
        # a tensor held twice on one rank and two equal tensors on another would send different numbers of tensors
        is_again = first.setdefault(id(one.value), i) != i
        but_length = bool(but_lengths) and but_lengths[i]
        texts.append(
            signature(one, but_length)
            + (f" is tensor {first[id(one.value)]}" if is_again else "")
        )
    return "; ".join(texts)


def signature(one: Operand, but_length: bool = False) -> str:
    """The text for one tensor, on which the ranks vote before a collective: its name, dtype, shape and kind of device.
    With `but_length` the length of the first axis is left out."""
    lengths = [str(length) for length in shape_of(one)]
    if but_length:
        lengths[0] = "any"
    text = f"{dtype_of(one)} [{', '.join(lengths)}]"
    if one.name != "x":
        text = f"{one.name} {text}"
    device = one.backend.device_of(read(one))
    # the kind, not the index: each rank has a GPU of its own
    return text if device.kind == "cpu" else f"{text} on {device.kind}"


def overlap(parts: list[Operand]) -> str:
    """A text that names two tensors that share memory, or "". The ranks vote on it, because writing one of the two
    changes both."""
    twins = first_overlap(parts) if len(parts) > 1 else None
    return f"; {twins[0]} and {twins[1]} share memory" if twins is not None else ""


def others_text(x: Any) -> str:
    """A text for the numbers, strings and other objects in a container that are not tensors. They are not sent, so the
    ranks compare this text in the vote."""
    # a lone tensor or model has nothing around it
    if registry.kind_of(type(x)) is not None:
        return ""
    others = [leaf for leaf in trees.leaves(x) if registry.kind_of(type(leaf.value)) is None]
    texts = sorted(f"; x{leaf.path} is {_same_everywhere(leaf.value)}" for leaf in others)
    if len(texts) > _MOST:  # a frame of the control connection has a largest size
        parts = [texts[i : i + _MOST // 10] for i in range(0, len(texts), _MOST // 10)]
        texts = [
            f"{part[0]}, and {len(part) - 1} after it: sha256 {_digest(''.join(part))}"
            for part in parts
        ]
    return "".join(texts)


def _same_everywhere(value: Any) -> str:
    """A text for an object that is the same on all ranks if the object is the same. For an unknown type it is only the
    type's name, because the object's `repr` may contain a memory address."""
    import numpy as np

    if value is None or isinstance(value, Number | str | bytes | np.generic | Enum):
        return _shorten(repr(value))
    return f"a {type(value).__qualname__}"


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text)} characters, sha256 {_digest(text)})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
