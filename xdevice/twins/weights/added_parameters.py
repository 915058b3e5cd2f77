"""Recognizes the parameters that LoRA and quantizers add to a model, by their names, and suggests how to handle
them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.errors import StateError, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# a name matches if one of these words is a whole part of it, separated by dots, as in `0.lora_A.weight`
_LORA: Final = (
    # used by peft and diffusers
    "lora_A", "lora_B", "lora_down", "lora_up", "base_layer",
    # used by Keras's `enable_lora`
    "lora_kernel_a", "lora_kernel_b", "lora_embeddings_a", "lora_embeddings_b",
)  # fmt: skip
_QUANTISED: Final = (
    # used by GPTQ and AWQ, by bitsandbytes and by PyTorch; the last three by float8 checkpoints and by Keras
    "qweight", "qzeros", "SCB", "absmax", "quant_map", "quant_state", "_packed_params", "zero_point", "weight_scale",
    "kernel_scale", "embeddings_scale",
)  # fmt: skip
_PARAMETRISED: Final = ("parametrizations", "*_l0_orig", "*_l0_raw", "*_l0_g", "*_l0_v")
"""Components (separated by dots) of the names of parameters with a parametrization that xdevice does not know, such as
a norm of a recurrent layer's weights. A `*` matches any characters."""
_ADDED: Final = (
    (
        _LORA,
        "parameters of LoRA",
        "merge them into the weights first: with peft, call model.merge_and_unload() (for a checkpoint, after "
        "PeftModel.from_pretrained(base, folder)); with Keras, call save_weights(), and load its file into a model "
        "without LoRA",
    ),
    (
        _QUANTISED,
        "parameters of a quantized model",
        "convert the original checkpoint, before quantization, or the result of model.dequantize() of transformers",
    ),
)
"""One entry for each library or method that adds parameters: the names of its parameters, their description, and the
advice in the error message."""


def advice_on_added(names: Iterable[str]) -> str:
    """Returns the advice about parameters that LoRA or a quantizer added; "" if `names` contains none of them."""
    # a list, because it is searched twice
    names = list(names)
    for words, description, instead in _ADDED:
        if added := _names_with(words, names):
            return f"{listed(map(repr, added), 2)} are {description}; {instead}"
    return ""


def advice_of_tensor(name: str) -> str:
    """Returns the advice about a parameter outside any known layer; "" if the name of the parameter does not reveal its
    origin."""
    if _names_with(_PARAMETRISED, [name]):
        return (
            "it belongs to a norm or parametrization that xdevice does not know; remove the norm or parametrization "
            "first, as torch.nn.utils.parametrize.remove_parametrizations does"
        )
    return advice_on_added([name])


def require_merged_lora(source: Iterable[str], target: Iterable[str]) -> None:
    """Raises `StateError` if only one of two models has LoRA parameters, because converting only the layers that both
    models have would lose LoRA's changes. `source` and `target` are the names of the models' parameters."""
    in_source, in_target = _names_with(_LORA, source), _names_with(_LORA, target)
    if in_source and not in_target:
        raise StateError(advice_on_added(in_source))
    if in_target and not in_source:
        raise StateError(
            f"{listed(map(repr, in_target), 2)} of like= are parameters of LoRA, but the source has none; pass a "
            f"model without LoRA as like=, and add LoRA afterwards"
        )


def _names_with(words: Sequence[str], names: Iterable[str]) -> list[str]:
    """Returns the names with a component that equals one of `words`; components are separated by dots or slashes. A
    word that begins with `*` matches every component with the same ending."""
    ends = tuple(word[1:] for word in words if word.startswith("*"))

    def is_meant(name: str) -> bool:
        """Whether one of the words matches a component of the name."""
        # `endswith` returns False for an empty tuple
        return any(
            part in words or part.endswith(ends) for part in name.replace("/", ".").split(".")
        )

    return [name for name in names if is_meant(name)]
