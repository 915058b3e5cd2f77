"""Architectures beyond those of benchmarks/zoos.py and families.py, between libraries: what `convert_state` makes of
them.

    python benchmarks/further.py              # all pairs, as a table
    python benchmarks/further.py beit timm    # those of this architecture with this library
    python benchmarks/further.py --json

None of them was tried before the first run of this script. It needs what families.py needs, and its verdicts are those
of zoos.py, with one more: "by names" is what converts with the `names=` below, rows of a table.
"""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import click
import families
import numpy as np
import plain
import zoos
from families import CLASSES, DEPTH, HEADS, LENGTH, SIZE, WIDTH, WORDS
from rich.console import Console

from xdevice.core import registry

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH,
}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, **SMALL}
TIMM_VIT = {
    "img_size": SIZE,
    "patch_size": 8,
    "embed_dim": WIDTH,
    "depth": DEPTH,
    "num_heads": HEADS,
    "mlp_ratio": 2,
}


def hugging(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        kind = (
            name.removesuffix("Model")
            .replace("ForImageClassificationWithTeacher", "")
            .replace("ForImageClassification", "")
            .replace("ForCausalLM", "")
        )
        config = getattr(transformers, f"{kind}Config")(**settings)
        config.return_dict, config.use_cache, config._attn_implementation = True, False, "eager"
        return getattr(transformers, name)(config)

    return build


def pooled(name: str, **settings: Any) -> Callable[[], Any]:
    """An encoder of images that returns what its head makes of them."""

    def build() -> Any:
        import torch
        import transformers

        class Pooled(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                config = getattr(transformers, name.replace("Model", "Config"))(**settings)
                config._attn_implementation = "eager"
                self.vision = getattr(transformers, name)(config)

            def forward(self, images: Any) -> Any:
                return self.vision(images).pooler_output

        return Pooled()

    return build


def timm(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import timm

        return timm.create_model(name, **settings)

    return build


def torchvision(name: str) -> Callable[[], Any]:
    return lambda: getattr(zoos.torchvision_models(), name)(weights=None)


def keras(name: str, size: int = 64, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import keras

        return getattr(keras.applications, name)(
            weights=None, classifier_activation=None, input_shape=(size, size, 3), **settings
        )

    return build


def paddle(name: str) -> Callable[[], Any]:
    def build() -> Any:
        import paddle

        return getattr(paddle.vision.models, name)()

    return build


def own(name: str, *libraries: str, **settings: Any) -> dict[str, Callable[[], Any]]:
    return {
        library: lambda library=library: getattr(plain, name)(library, **settings)
        for library in libraries
    }


PLAIN = {"include_preprocessing": False}
FAMILIES: dict[str, tuple[int, dict[str, Callable[[], Any]]]] = {
    # images of so many pixels
    "efficientnetv2_s": (
        64,
        {"timm": timm("efficientnetv2_s"), "torchvision": torchvision("efficientnet_v2_s")},
    ),
    "tf_efficientnetv2_s": (
        64,
        {"timm": timm("tf_efficientnetv2_s"), "keras": keras("EfficientNetV2S", **PLAIN)},
    ),
    "efficientnet_b0": (
        64,
        {"timm": timm("efficientnet_b0"), "torchvision": torchvision("efficientnet_b0")},
    ),
    "tf_efficientnet_b0": (
        64,
        {
            "timm": timm("tf_efficientnet_b0"),
            "transformers": hugging(
                "EfficientNetForImageClassification",
                width_coefficient=1.0,
                depth_coefficient=1.0,
                hidden_dim=1280,
                image_size=64,
                num_labels=1000,
            ),
        },
    ),
    "mnasnet": (64, {"timm": timm("mnasnet_100"), "torchvision": torchvision("mnasnet1_0")}),
    "resnext50": (
        64,
        {
            "timm": timm("resnext50_32x4d"),
            "torchvision": torchvision("resnext50_32x4d"),
            "paddle": paddle("resnext50_32x4d"),
        },
    ),
    "regnetx": (
        64,
        {
            "timm": timm("regnetx_004_tv"),
            "torchvision": torchvision("regnet_x_400mf"),
            "transformers": hugging(
                "RegNetForImageClassification",
                layer_type="x",
                depths=[1, 2, 7, 12],
                hidden_sizes=[32, 64, 160, 400],
                groups_width=16,
                num_labels=1000,
            ),
        },
    ),
    "densenet121": (
        64,
        {
            "timm": timm("densenet121"),
            "keras": keras("DenseNet121"),
            "paddle": paddle("densenet121"),
        },
    ),
    "vgg16": (224, {"timm": timm("vgg16"), "keras": keras("VGG16", 224)}),
    "maxvit": (
        224,
        {
            "timm": timm("maxvit_tiny_pm_256", img_size=224),
            "torchvision": torchvision("maxvit_t"),
        },
    ),
    "mobilevit": (
        64,
        {
            "timm": timm("mobilevit_xxs", num_classes=CLASSES),
            "transformers": hugging(
                "MobileViTForImageClassification",
                hidden_sizes=[64, 80, 96],
                neck_hidden_sizes=[16, 16, 24, 48, 64, 80, 320],
                expand_ratio=2.0,
                image_size=64,
                num_labels=CLASSES,
            ),
        },
    ),
    "beit": (
        SIZE,
        {
            "timm": timm(
                "beit_base_patch16_224", num_classes=CLASSES, use_rel_pos_bias=True, **TIMM_VIT
            ),
            "transformers": hugging(
                "BeitForImageClassification",
                **SMALL,
                image_size=SIZE,
                patch_size=8,
                num_labels=CLASSES,
                use_relative_position_bias=True,
            ),
        },
    ),
    "poolformer": (
        64,
        {
            "timm": timm("poolformer_s12", num_classes=CLASSES),
            "transformers": hugging(
                "PoolFormerForImageClassification", depths=[2, 2, 6, 2], num_labels=CLASSES
            ),
        },
    ),
    "levit": (
        224,
        {
            "timm": timm("levit_128s", num_classes=CLASSES),
            "transformers": hugging(
                "LevitForImageClassificationWithTeacher",
                depths=[2, 3, 4],
                num_attention_heads=[4, 6, 8],
                num_labels=CLASSES,
            ),
        },
    ),
    "focalnet": (
        64,
        {
            "timm": timm("focalnet_tiny_srf", num_classes=CLASSES),
            "transformers": hugging(
                "FocalNetForImageClassification",
                focal_levels=[2, 2, 2, 2],
                image_size=64,
                num_labels=CLASSES,
            ),
        },
    ),
    "siglip": (
        SIZE,
        {
            "timm": timm("vit_base_patch16_siglip_224", num_classes=0, **TIMM_VIT),
            "transformers": pooled(
                "SiglipVisionModel",
                image_size=SIZE,
                patch_size=8,
                **{**SMALL, "hidden_act": "gelu"},
            ),
        },
    ),
    "clip_vision": (
        SIZE,
        {
            "timm": timm("vit_base_patch16_clip_quickgelu_224", num_classes=0, **TIMM_VIT),
            "transformers": pooled("CLIPVisionModel", image_size=SIZE, patch_size=8, **SMALL),
        },
    ),
    "mobilenet_v1": (
        64,
        {
            "timm": timm("mobilenetv1_100", num_classes=CLASSES),
            "transformers": hugging(
                "MobileNetV1ForImageClassification", num_labels=CLASSES, tf_padding=False
            ),
        },
    ),
    "mobilenet_v2": (
        64,
        {
            "timm": timm("mobilenetv2_100", num_classes=CLASSES),
            "transformers": hugging(
                "MobileNetV2ForImageClassification", num_labels=CLASSES, tf_padding=False
            ),
        },
    ),
    "bit": (
        64,
        {
            "timm": timm("resnetv2_50x1_bit", num_classes=CLASSES),
            "transformers": hugging("BitForImageClassification", num_labels=CLASSES),
        },
    ),
    "xception": (96, {"timm": timm("legacy_xception"), "keras": keras("Xception", 96)}),
    "inception_resnet_v2": (
        139,
        {"timm": timm("inception_resnet_v2"), "keras": keras("InceptionResNetV2", 139)},
    ),
    "dinov2_registers": (
        SIZE,
        {
            "timm": timm(
                "vit_small_patch14_reg4_dinov2",
                num_classes=0,
                **{**TIMM_VIT, "global_pool": ""},
            ),
            "transformers": hugging(
                "Dinov2WithRegistersModel", **SMALL, image_size=SIZE, patch_size=8, mlp_ratio=2
            ),
        },
    ),
    "dinov3": (
        SIZE,
        {
            "timm": timm(
                "vit_small_patch16_dinov3", num_classes=0, **{**TIMM_VIT, "global_pool": ""}
            ),
            "transformers": hugging("DINOv3ViTModel", **SMALL, image_size=SIZE, patch_size=8),
        },
    ),
    # words
    "electra": (
        0,
        {
            "transformers": hugging(
                "ElectraModel", embedding_size=WIDTH, type_vocab_size=1, **TEXT
            ),
            **own("bert", "torch", "paddle", "keras"),
        },
    ),
    "qwen2": (
        0,
        {
            "transformers": hugging("Qwen2ForCausalLM", num_key_value_heads=2, **TEXT),
            **own("llama", "torch", "paddle", "keras", bias=True),
        },
    ),
    "distilbert": (
        0,
        {
            "transformers": hugging(
                "DistilBertModel",
                vocab_size=WORDS,
                dim=WIDTH,
                n_layers=DEPTH,
                max_position_embeddings=LENGTH,
                n_heads=HEADS,
                hidden_dim=2 * WIDTH,
            ),
            **own("bert", "torch", "paddle", "keras", segments=0),
        },
    ),
    "opt": (
        0,
        {
            "transformers": hugging(
                "OPTForCausalLM",
                ffn_dim=4 * WIDTH,
                word_embed_proj_dim=WIDTH,
                dropout=0.0,
                **{**TEXT, "activation_function": "gelu_new"},
            ),
            **own("gpt2", "torch", "paddle", "keras"),
        },
    ),
    "bart": (
        0,
        {
            "transformers": hugging(
                "BartModel",
                d_model=WIDTH,
                encoder_layers=DEPTH,
                decoder_layers=DEPTH,
                vocab_size=WORDS,
                max_position_embeddings=LENGTH,
                encoder_attention_heads=HEADS,
                decoder_attention_heads=HEADS,
                encoder_ffn_dim=2 * WIDTH,
                decoder_ffn_dim=2 * WIDTH,
            ),
            **own("bart", "torch", "paddle"),
        },
    ),
}
NAMES = {
    ("opt", "transformers"): {"model.decoder.embed_positions[2:]": "pos_emb"},
    ("bart", "transformers"): {
        "encoder.embed_positions[2:]": "encoder_positions",
        "decoder.embed_positions[2:]": "decoder_positions",
    },
}
"""Positions that begin at 2, as in RoBERTa."""


def pairs() -> list[tuple[str, str, str]]:
    return [(name, one, other) for name, (_, found) in FAMILIES.items() for one in found for other in found
            if one != other]  # fmt: skip


def inputs_of(size: int) -> Any:
    return (
        zoos.images(size) if size else np.random.default_rng(0).integers(2, WORDS, (2, LENGTH))
    )


def try_pair(name: str, source: str, target: str) -> zoos.Row:
    here, there = (families.BACKENDS.get(library, "torch") for library in (source, target))
    for backend in (here, there):
        registry.load(backend)
    if "torch" in (here, there):
        zoos.torchvision_models()
    size, found = FAMILIES[name]
    models = [found[source](), found[target]()]
    for seed, model in enumerate(models):
        if hasattr(model, "eval"):
            model.eval()
        zoos.scatter(model, seed + 1)
        if size in (0, SIZE):
            families.scatter_rest(model, seed + 1)
    names = families.named(NAMES, name, source, target)
    if "keras" in (source, target):
        names = {
            one.replace("pos_emb", "wpe"): other.replace("pos_emb", "wpe")
            for one, other in names.items()
        }
    row = zoos.convert((here, models[0]), (there, models[1]), inputs_of(size), names)
    return zoos.Row(source, target, name, *row)


@click.command()
@click.argument("words", nargs=-1)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One line of JSON for each pair, instead of the table.",
)
def main(words: tuple[str, ...], as_json: bool) -> None:
    rows = []
    for pair in pairs():
        if all(word in pair for word in words):
            rows.append(try_pair(*pair))
            gc.collect()
            if as_json:
                print(json.dumps(rows[-1]._asdict()), flush=True)
    if not as_json:
        Console().print(zoos.table(rows))


if __name__ == "__main__":
    main()
