"""Texts that a rank sends to the others: what it is about to do with which tensors, and which error it has raised."""

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
"""The length of the longest number or text that is sent in full; a longer one is sent as a digest."""


def signatures(tensors: list[Operand], but_lengths: Sequence[bool] = ()) -> str:
    """The tensors as the ranks vote on them. A tensor that comes twice is sent once, so that is part of the text."""
    first: dict[int, int] = {}
    told = []
    for i, one in enumerate(tensors):
        is_again = first.setdefault(id(one.value), i) != i
        but_length = bool(but_lengths) and but_lengths[i]
        told.append(signature(one, but_length) + (f" is tensor {first[id(one.value)]}" if is_again else ""))
    return "; ".join(told)


def signature(one: Operand, but_length: bool = False) -> str:
    """One tensor as the ranks vote on it: name, dtype, shape and kind of device."""
    shape = shape_of(one)
    told = f"[{', '.join(['any', *map(str, shape[1:])])}]" if but_length else str(list(shape))
    place = one.backend.device_of(read(one))
    name = one.name if one.name != "x" else ""
    return f"{name}{' ' * bool(name)}{dtype_of(one)} {told}{'' if place.kind == 'cpu' else f' on {place.kind}'}"


def overlap(parts: list[Operand]) -> str:
    """Names two tensors that share memory, if there are any. The ranks vote on it, because writing one changes both."""
    twins = first_overlap(parts) if len(parts) > 1 else None
    return f"; {twins[0]} and {twins[1]} share memory" if twins is not None else ""


def unsent(x: Any) -> str:
    """The leaves of a container that are no tensors. They are not sent, so the ranks vote on them."""
    if registry.kind_of(type(x)) is not None:
        return ""
    others = [leaf for leaf in trees.leaves(x) if registry.kind_of(type(leaf.value)) is None]
    return "".join(sorted(f"; x{leaf.path} is {_same_everywhere(leaf.value)}" for leaf in others))


def _same_everywhere(value: Any) -> str:
    """A text for an object that is the same on all ranks: of an unknown type only the name of that, because its `repr`
    may have an address in it."""
    import numpy as np

    if value is None or isinstance(value, Number | str | bytes | np.generic | Enum):
        return _shorten(repr(value))
    return f"a {type(value).__qualname__}"


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def describe(error: BaseException) -> str:
    """An error's type and text, and the file and line that raised it."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" ({where.tb_frame.f_code.co_filename}:{where.tb_lineno})" if where is not None else ""
    try:
        text = str(error)[:2000]
    except Exception as unsaid:  # an error whose text cannot be had must be told all the same
        text = f"its text cannot be had: {type(unsaid).__name__}"
    return f"{type(error).__name__}: {text}{place}"
