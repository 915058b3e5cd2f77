"""The characters of virtual GPUs. The character of a virtual GPU consists of its limits: the dtypes that it lacks, the
size of its memory, and its default float dtype.

One string, in XDEVICE_VIRTUAL_GPUS or in a call of `virtual_gpus`, describes all virtual GPUs:

| string | virtual GPUs |
|---|---|
| `2` | two that support every dtype of the framework |
| `2:no_float64,memory=256MB` | two without float64 and complex128, each with 256 MB of memory |
| `1+1:mps` | one without limits, and one with the limits of Apple's GPUs |
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from xdevice.base.dtypes import SHORT_FLOATS

_WIDE_FLOATS: Final = ("float64", "complex128")

LACKS: Final = {
    "no_float64": _WIDE_FLOATS,
    "no_x64": (*_WIDE_FLOATS, "int64", "uint64"),
    "no_float8": SHORT_FLOATS,
}
"""The words that describe a device, each with the dtypes that the device lacks. A device without float64 also lacks
complex128, because a complex128 number consists of two float64 numbers."""

SETS: Final = {
    # Apple's GPUs: no float64 (https://github.com/pytorch/pytorch/issues/122602), and no 8-bit
    # floats in PyTorch
    "mps": "no_float64,no_float8,float32_default",
    # Ascend: no float64 (https://github.com/huggingface/diffusers/pull/10123)
    "npu": "no_float64,float32_default",
    # no float64 in hardware, and no complex128 (https://github.com/jax-ml/jax/issues/10158); one
    # chip of TPU v5e has 16 GB (https://docs.cloud.google.com/tpu/docs/v5e)
    "tpu": "no_float64,float32_default,memory=16GB",
}
"""Kinds of hardware, each with the words that describe it. In a description, a kind may be written in place of its
words."""

_UNITS: Final = {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
# `re.ASCII`, because \d would also match the digits of other scripts
_MEMORY: Final = re.compile(r"memory=(\d+)([A-Za-z]+)", re.ASCII)
_GROUP: Final = re.compile(r"(\d+)(?::(.+))?", re.ASCII)
"""Matches a number of virtual GPUs with the words for their limits, if there are any: "2", or
"2:no_float64,memory=256MB"."""


class Character(NamedTuple):
    """The limits of one virtual GPU: the dtypes that it lacks, the size of its memory, and its default float dtype."""

    lacks: frozenset[str] = frozenset()
    """The dtypes that no tensor on the virtual GPU can have."""
    memory: int | None = None
    """The size of its memory in bytes; None if the memory is not limited."""
    is_float32_default: bool = False
    """Whether floats on the virtual GPU are float32 unless the program names a dtype, even if XDEVICE_FLOATS requests
    float64."""

    def __bool__(self) -> bool:
        """Whether the virtual GPU has any limits. With this method, `any(characters)` is true if one of several virtual
        GPUs has limits."""
        return self != _UNLIMITED


_UNLIMITED: Final = Character()


def parse(text: str) -> tuple[Character, ...]:
    """Returns the character of each virtual GPU that a string such as "2" or "1+1:mps" describes.

    Raises:
        ValueError: if the string does not describe virtual GPUs. The message names the invalid part, and lists the
            words that are expected.

    Example:
        >>> from xdevice.virtual.contract import characters
        >>> [one.memory for one in characters.parse("1+1:memory=2KB")]
        [None, 2000]
    """
    described: list[Character] = []
    for group in text.split("+"):
        match = _GROUP.fullmatch(group.strip())
        if match is None:
            raise ValueError(
                f"{group!r} is neither a number of virtual GPUs nor a number with limits, such as 2:no_float64"
            )
        described += [_character(match[2] or "")] * int(match[1])
    return tuple(described)


def _character(words: str) -> Character:
    """Returns the character that `words`, the words after a colon, describe. `words` is a string such as
    "no_float64,memory=256MB"; "" describes a character without limits. Raises `ValueError` for an unknown word."""
    lacks: set[str] = set()
    memory = None
    is_float32_default = False
    for word in _individual_words(words):
        match = _MEMORY.fullmatch(word)
        # a word with an unknown unit is refused below, with a message that lists the units
        if match is not None and match[2] in _UNITS:
            memory = int(match[1]) * _UNITS[match[2]]
        elif word in LACKS:
            lacks.update(LACKS[word])
        elif word == "float32_default":
            is_float32_default = True
        else:
            expected = ", ".join((*LACKS, "float32_default", *SETS))
            raise ValueError(
                f"{word!r} is not a limit of virtual GPUs; expected {expected}, or memory=256MB ({'/'.join(_UNITS)})"
            )
    return Character(frozenset(lacks), memory, is_float32_default)


def _individual_words(words: str) -> list[str]:
    """Returns the individual words of a description. A name in `SETS` is replaced by the words of its set. The order is
    preserved: in "tpu,memory=8GB", the last word replaces the memory of the set "tpu"."""
    individual: list[str] = []
    # `filter` removes empty words, such as those in "no_float64," and " "
    for word in filter(None, map(str.strip, words.split(","))):
        individual += SETS[word].split(",") if word in SETS else [word]
    return individual
