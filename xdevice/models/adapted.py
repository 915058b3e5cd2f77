"""Knows the parameters that adapters and quantisers add to a model, and says what to do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.errors import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

_ADAPTED: Final = (
    (
        ("lora_A", "lora_B", "lora_down", "lora_up", "base_layer"),
        "LoRA's",
        "merge them first: peft's merge_and_unload()",
    ),
    (
        (
            "qweight",
            "qzeros",
            "SCB",
            "absmax",
            "quant_map",
            "quant_state",
            "_packed_params",
            "zero_point",
            "weight_scale",
        ),
        "of a quantised model",
        "convert the checkpoint that it was quantised from, or model.dequantize() of transformers",
    ),
)
"""Names of parameters that no layer has by itself: what they are, and what to do."""


def advice(names: Iterable[str]) -> str:
    """What to do about parameters that an adapter or a quantiser has added; "" if there are none among `names`."""
    split = [(name, name.replace("/", ".").split(".")) for name in names]
    for words, what, instead in _ADAPTED:
        found = [name for name, parts in split if any(part in words for part in parts)]
        if found:
            return f"{listed(map(repr, found), 2)} are {what}: {instead}"
    return ""
