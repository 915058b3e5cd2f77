"""Recognizes the parameters that LoRA and quantizers add to a model by their names, and says what to do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.errors import StateError, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# a name counts if one of these is a whole part of it between dots, as in `0.lora_A.weight`
_LORA: Final = (
    # of peft and diffusers
    "lora_A", "lora_B", "lora_down", "lora_up", "base_layer",
    # of Keras's `enable_lora`
    "lora_kernel_a", "lora_kernel_b", "lora_embeddings_a", "lora_embeddings_b",
)  # fmt: skip
_QUANTISED: Final = (
    # of GPTQ and AWQ, of bitsandbytes, of PyTorch; the last three of float8 checkpoints and of Keras
    "qweight", "qzeros", "SCB", "absmax", "quant_map", "quant_state", "_packed_params", "zero_point", "weight_scale",
    "kernel_scale", "embeddings_scale",
)  # fmt: skip
_PARAMETRISED: Final = ("parametrizations", "*_l0_orig", "*_l0_raw", "*_l0_g", "*_l0_v")
"""Names of parameters under parametrizations that xdevice does not know, such as norms of the weights of recurrent
layers. A `*` matches any text."""
_ADDED: Final = (
    (
        _LORA,
        "parameters of LoRA",
        "merge them first: with peft call model.merge_and_unload(), after PeftModel.from_pretrained(base, folder) "
        "for a checkpoint; in Keras call save_weights(), and load its file into a model without LoRA",
    ),
    (
        _QUANTISED,
        "parameters of a quantized model",
        "convert the checkpoint from which it was quantized, or model.dequantize() of transformers",
    ),
)
"""For each origin of added parameters: the names of these parameters, the words for them, and the advice in an
error."""


def advice(names: Iterable[str]) -> str:
    """The advice about parameters that LoRA or a quantizer has added; "" if there are none among `names`."""
    # a list, because it is searched twice
    names = list(names)
    for words, description, instead in _ADDED:
        if added := _with(words, names):
            return f"{listed(map(repr, added), 2)} are {description}; {instead}"
    return ""


def advice_of_tensor(name: str) -> str:
    """The advice about a parameter that belongs to no known layer; "" if its name does not show what it is."""
    if _with(_PARAMETRISED, [name]):
        return (
            "it belongs to a norm or parametrization that xdevice does not know; remove that first, as "
            "torch.nn.utils.parametrize.remove_parametrizations does"
        )
    return advice([name])


def require_merged(source: Iterable[str], target: Iterable[str]) -> None:
    """Raises `StateError` if only one of two models has LoRA parameters. `source` and `target` are the names of the
    models' parameters. Converting the layers that both have would lose what LoRA adds."""
    in_source, in_target = _with(_LORA, source), _with(_LORA, target)
    if in_source and not in_target:
        raise StateError(advice(in_source))
    if in_target and not in_source:
        raise StateError(
            f"{listed(map(repr, in_target), 2)} of like= are parameters of LoRA, but the source has none; pass the "
            f"model without them, and add them afterwards"
        )


def _with(words: Sequence[str], names: Iterable[str]) -> list[str]:
    """The names that have one of `words` as a part between dots or slashes. In a word, a `*` at the beginning matches
    any text."""
    ends = tuple(word[1:] for word in words if word.startswith("*"))

    def is_meant(name: str) -> bool:
        """Whether one of the words is a part of the name."""
        # `endswith` of an empty tuple is false
        return any(
            part in words or part.endswith(ends) for part in name.replace("/", ".").split(".")
        )

    return [name for name in names if is_meant(name)]
