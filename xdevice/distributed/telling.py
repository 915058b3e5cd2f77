"""What a rank tells the others, in one line each: what it is about to do with which tensors, and what it has raised."""

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
"""Characters of a number or text that are told to the others as they are."""


def signatures(tensors: list[Operand], but_lengths: Sequence[bool] = ()) -> str:
    """What is voted on of tensors. One that comes twice goes once, which has to be so on all ranks."""
    first: dict[int, int] = {}
    told = []
    for i, one in enumerate(tensors):
        is_again = first.setdefault(id(one.value), i) != i
        but_length = bool(but_lengths) and but_lengths[i]
        told.append(signature(one, but_length) + (f" is tensor {first[id(one.value)]}" if is_again else ""))
    return "; ".join(told)


def signature(one: Operand, but_length: bool = False) -> str:
    """Of one: dtype, shape, and the kind of its device."""
    shape = shape_of(one)
    told = f"[{', '.join(['any', *map(str, shape[1:])])}]" if but_length else str(list(shape))
    place = one.backend.device_of(read(one))
    name = one.name if one.name != "x" else ""
    return f"{name}{' ' * bool(name)}{dtype_of(one)} {told}{'' if place.kind == 'cpu' else f' on {place.kind}'}"


def overlap(parts: list[Operand]) -> str:
    """Two tensors that share memory, which has to be so on all ranks: the second one written changes the first."""
    twins = first_overlap(parts) if len(parts) > 1 else None
    return f"; {twins[0]} and {twins[1]} share memory" if twins is not None else ""


def unsent(x: Any) -> str:
    """What is in a container and is not sent, and so must be the same: numbers and texts, long ones by a digest."""
    if registry.kind_of(type(x)) is not None:
        return ""
    others = [leaf for leaf in trees.leaves(x) if registry.kind_of(type(leaf.value)) is None]
    return "".join(sorted(f"; x{leaf.path} is {_same_everywhere(leaf.value)}" for leaf in others))


def _same_everywhere(value: Any) -> str:
    """What to call a thing on all ranks. Of one that is not known only its type: its text may have an address in it."""
    import numpy as np

    if value is None or isinstance(value, Number | str | bytes | np.generic | Enum):
        return _shorten(repr(value))
    return f"a {type(value).__qualname__}"


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def describe(error: BaseException) -> str:
    """An error in a line, with where it was raised."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" ({where.tb_frame.f_code.co_filename}:{where.tb_lineno})" if where is not None else ""
    try:
        text = str(error)[:2000]
    except Exception as unsaid:  # what cannot be printed has to be told all the same
        text = f"its text cannot be had: {type(unsaid).__name__}"
    return f"{type(error).__name__}: {text}{place}"
