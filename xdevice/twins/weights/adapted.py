"""Knows the parameters that adapters and quantisers add to a model, and says what to do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.errors import StateError, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LORA: Final = ("lora_A", "lora_B", "lora_down", "lora_up", "base_layer")
_ADAPTED: Final = (
    (
        _LORA,
        "LoRA's",
        "merge them first, with peft: model.merge_and_unload(), where a model of a checkpoint is "
        "PeftModel.from_pretrained(base, folder)",
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
    names = list(names)
    for words, what, instead in _ADAPTED:
        found = _with(words, names)
        if found:
            return f"{listed(map(repr, found), 2)} are {what}: {instead}"
    return ""


def require_merged(ours: Iterable[str], theirs: Iterable[str] | None) -> None:
    """Raises `StateError` if only one of two models has adapters: the layers that both have do not say what it
    computes. `theirs` is None if there is no second model."""
    if theirs is None:
        return
    adapters, others = (_with(_LORA, names) for names in (ours, theirs))
    if adapters and not others:
        raise StateError(advice(adapters))
    if others and not adapters:
        raise StateError(
            f"{listed(map(repr, others), 2)} of like= are LoRA's, and the source has none: give the model without "
            "them, and add them afterwards"
        )


def _with(words: Sequence[str], names: Iterable[str]) -> list[str]:
    return [name for name in names if any(part in words for part in name.replace("/", ".").split("."))]
