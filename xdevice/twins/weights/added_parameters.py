"""Knows the parameters that adapters and quantisers add to a model, and says what to do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.errors import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LORA: Final = ("lora_A", "lora_B", "lora_down", "lora_up", "base_layer")
_QUANTISED: Final = (
    "qweight", "qzeros", "SCB", "absmax", "quant_map", "quant_state", "_packed_params", "zero_point", "weight_scale",
)  # fmt: skip
_ADDED: Final = (
    (
        _LORA,
        "LoRA's",
        "merge them first, with peft: model.merge_and_unload(), where a model of a checkpoint is "
        "PeftModel.from_pretrained(base, folder)",
    ),
    (
        _QUANTISED,
        "of a quantised model",
        "convert the checkpoint that it was quantised from, or model.dequantize() of transformers",
    ),
)
"""Names of parameters that no layer has by itself: what they are, and what to do."""


def advice(names: Iterable[str]) -> str:
    """What to do about parameters that an adapter or a quantiser has added; "" if there are none among `names`."""
    names = list(names)
    for words, what, instead in _ADDED:
        if added := _with(words, names):
            return f"{listed(map(repr, added), 2)} are {what}: {instead}"
    return ""


def lora_in(names: Iterable[str]) -> list[str]:
    """Those of the names that are of LoRA's parameters."""
    return _with(_LORA, names)


def _with(words: Sequence[str], names: Iterable[str]) -> list[str]:
    return [name for name in names if any(part in words for part in name.replace("/", ".").split("."))]
