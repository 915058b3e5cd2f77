"""Strings that describe the tensors of a collective. The ranks compare these strings in the
vote before the collective."""

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
"""A number or string of at most this many characters is sent in full. A longer one is sent as
its beginning and a digest."""
_MAX_TEXTS: Final = 10_000
"""The maximum number of objects whose descriptions are sent individually."""
_GROUP_LENGTH: Final = 1000
"""The number of descriptions for which one digest is sent if there are more than `_MAX_TEXTS` descriptions."""


def signatures(operands: list[Operand], are_uneven: Sequence[bool] = ()) -> str:
    """Returns a string that describes several tensors. A tensor that occurs again is marked as such, because each
    tensor is sent only once. `are_uneven` contains, for each tensor, whether the length of its first axis may differ
    between ranks. If `are_uneven` is empty, no length may differ."""
    # maps the `id` of each tensor to the index of its first place
    first_indices: dict[int, int] = {}
    texts = []
    for i, operand in enumerate(operands):
        # otherwise a rank that has one tensor in two places and a rank that has two equal
        # tensors would agree in the vote, but send different numbers of tensors
        first = first_indices.setdefault(id(operand.value), i)
        is_uneven = bool(are_uneven) and are_uneven[i]
        texts.append(
            signature(operand, is_uneven) + (f" is tensor {first}" if first != i else "")
        )
    return "; ".join(texts)


def signature(operand: Operand, is_uneven: bool = False) -> str:
    """Returns a string that describes one tensor by its name, dtype, shape and kind of device, such as "x['a'] float32
    [2, 3] on gpu". The string omits the device "cpu". It also omits the name "x", because a tensor has this name if it
    is the whole argument. If `is_uneven` is true, "any" replaces the length of the first axis.
    """
    lengths = [str(length) for length in shape_of(operand)]
    if is_uneven:
        lengths[0] = "any"
    text = f"{dtype_of(operand)} [{', '.join(lengths)}]"
    # a tensor that is the whole argument is named "x" on every rank
    if operand.name != "x":
        text = f"{operand.name} {text}"
    device = operand.backend.device_of(read(operand))
    # only the kind, without the index, because each rank has its own GPU
    return text if device.kind == "cpu" else f"{text} on {device.kind}"


def overlap_text(operands: list[Operand]) -> str:
    """Returns a string that names the first two tensors that share memory, or "" if no tensors
    do. The ranks compare this string, because writing one of the two tensors changes both."""
    names = first_overlap(operands) if len(operands) > 1 else None
    return f"; {names[0]} and {names[1]} share memory" if names is not None else ""


def non_tensors_text(x: Any) -> str:
    """Returns a string that describes all objects in a container that are not tensors, such as numbers and strings, or
    "" if there are none. The ranks compare this string, because these objects are not sent and must be the same on all
    ranks."""
    # a tensor or model is not a container
    if registry.owner_and_kind(type(x)) is not None:
        return ""
    others = [
        leaf for leaf in trees.leaves(x) if registry.owner_and_kind(type(leaf.value)) is None
    ]
    # sorted, because two ranks may have filled a dict in different orders
    texts = sorted(
        f"; x{leaf.path} is {_text_same_on_all_ranks(leaf.value)}" for leaf in others
    )
    # the size of a message on the control connection is limited
    if len(texts) > _MAX_TEXTS:
        groups = [texts[i : i + _GROUP_LENGTH] for i in range(0, len(texts), _GROUP_LENGTH)]
        texts = [
            f"{group[0]}, and {len(group) - 1} after it: sha256 {_digest(''.join(group))}"
            for group in groups
        ]
    return "".join(texts)


def _text_same_on_all_ranks(value: Any) -> str:
    """Returns a string that describes an object, and is the same for equal objects on all ranks. None, a number, a
    string, bytes or a member of an enum is described by its `repr`. Any other object is described only by the name of
    its type, because its `repr` may contain a memory address."""
    import numpy as np

    if value is None or isinstance(value, Number | str | bytes | np.generic | Enum):
        return _shorten(repr(value))
    return f"a {type(value).__qualname__}"


def _shorten(text: str) -> str:
    """Returns `text` unchanged if it has at most 60 characters. Otherwise returns its first 60
    characters, its length and a digest."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters, sha256 {_digest(text)})"


def _digest(text: str) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 digest of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
