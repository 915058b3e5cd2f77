"""One architecture as several libraries have it, and as one writes it oneself: what `convert_state` makes of them.

    python benchmarks/families.py                # all pairs, as a table
    python benchmarks/families.py vit timm keras # those of this family between these two
    python benchmarks/families.py --new          # further pairs
    python benchmarks/families.py --json

Needs timm, torchvision and transformers (`pip install --no-deps` where a wheel does not fit PyTorch). The models have
few layers and random weights, also in what is no layer (class tokens, layer scales); nothing is downloaded. What is
listed is mended as benchmarks/zoos.py does it, whose words for the verdicts these are.
"""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import plain
import zoos
from rich.console import Console

from xdevice.core import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE, WIDTH, HEADS, DEPTH, CLASSES = 32, 32, 4, 2, 10
"""Of the images, and of the models."""
WORDS, LENGTH = 50, 12


def pairs(names: str, *libraries: str) -> Iterator[tuple[str, str, str]]:
    """Each family (of `names`, separated by blanks) between each two of the libraries, both ways."""
    for name in names.split():
        yield from (
            (name, one, other) for one in libraries for other in libraries if one != other
        )


PAIRS = [
    *pairs("vit", "timm", "torchvision", "transformers", "torch", "paddle", "keras"),
    *pairs("deit", "timm", "transformers"),
    *pairs("swin", "timm", "torchvision", "transformers"),
    *pairs("convnext", "timm", "torchvision", "transformers", "keras"),
    *pairs("bert", "transformers", "torch", "paddle", "keras"),
    *pairs("gpt2", "transformers", "nanogpt", "torch", "paddle", "keras"),
    *pairs("llama", "transformers", "torch", "paddle", "keras"),
    *pairs("t5", "transformers", "torch", "paddle", "keras"),
    # convolutions: section by section what was tried before
    ("resnet50", "torchvision", "transformers"),
    ("resnet50", "timm", "paddle"),
    ("resnetv2_50", "timm", "keras"),
    ("resnetv2_50", "keras", "timm"),
    ("resnetv2_50", "timm", "gluon"),
    ("resnetv2_50", "gluon", "keras"),
    ("mobilenetv1", "timm", "paddle"),
    ("mobilenetv1", "gluon", "keras"),
    ("mobilenet_v3_large", "timm", "paddle"),
    ("mobilenet_v3_small", "paddle", "timm"),
    ("mobilenet_v3_small", "torchvision", "timm"),
    ("mobilenet_v3_small_minimal", "timm", "keras"),
    ("efficientnet_b0", "timm", "keras"),
    ("efficientnetv2_b0", "timm", "keras"),
    ("inception_v3", "timm", "paddle"),
    ("inception_v3", "timm", "gluon"),
    ("inception_v3", "gluon", "timm"),
    ("googlenet", "paddle", "torchvision"),
    ("densenet169", "torchvision", "gluon"),
    ("squeezenet1_1", "gluon", "torchvision"),
    ("shufflenet_v2_x0_5", "torchvision", "paddle"),
    ("resnet34", "torchvision", "paddle"),
]
NEW = [
    *pairs("dinov2", "timm", "transformers"),
    *pairs("swinv2", "timm", "torchvision", "transformers"),
    *pairs("convnextv2", "timm", "transformers"),
    *pairs("pvtv2", "timm", "transformers"),
    *pairs("mistral", "transformers", "torch", "paddle", "keras"),
    *pairs("roberta", "transformers", "torch", "paddle"),
    *pairs("resnet18", "timm", "torchvision", "paddle"),
    *pairs("mobilenet_v2", "timm", "torchvision", "paddle"),
    *pairs("regnet", "timm", "torchvision"),
    *pairs("vgg11", "timm", "torchvision"),
    *pairs("densenet121", "timm", "torchvision"),
]
NAMES = {("roberta", "transformers"): {"embeddings.position_embeddings[2:]": "positions"}}
"""What is to be said of a family of one library, with any other: RoBERTa's positions begin at 2."""
BACKENDS = {"paddle": "paddle", "keras": "tensorflow", "gluon": "mxnet"}
"""Of the libraries that are not PyTorch's."""
TEXTS = ("bert", "gpt2", "llama", "t5", "mistral", "roberta")


# builders


def torchvision() -> Any:
    return zoos.torchvision_models()


def _vit(library: str) -> Any:
    if library == "torchvision":
        return torchvision().VisionTransformer(
            image_size=SIZE, patch_size=8, num_layers=DEPTH, num_heads=HEADS, hidden_dim=WIDTH, mlp_dim=2 * WIDTH,
            num_classes=CLASSES,
        )  # fmt: skip
    if library == "timm":
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=SIZE,
            patch_size=8,
            embed_dim=WIDTH,
            depth=DEPTH,
            num_heads=HEADS,
            mlp_ratio=2,
            num_classes=CLASSES,
        )
    if library == "transformers":
        return _hugging("ViT", "ForImageClassification", image_size=SIZE, patch_size=8)
    return plain.vit(library)


def _hugging(name: str, what: str, **extra: Any) -> Any:
    import transformers

    settings = {"num_labels": CLASSES, **extra}
    if name not in ("Swin", "Swinv2", "ConvNext", "ConvNextV2", "ResNet", "PvtV2"):
        sizes = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
        settings = {**sizes, "intermediate_size": 2 * WIDTH, **settings}
    config = getattr(transformers, f"{name}Config")(**settings)
    config.return_dict = True
    config.use_cache = False
    config._attn_implementation = "eager"
    return getattr(transformers, f"{name}{what}")(config)


def _deit(library: str) -> Any:
    if library == "timm":
        from timm.models.deit import VisionTransformerDistilled

        return VisionTransformerDistilled(
            img_size=SIZE,
            patch_size=8,
            embed_dim=WIDTH,
            depth=DEPTH,
            num_heads=HEADS,
            mlp_ratio=2,
            num_classes=CLASSES,
        )
    return _hugging("DeiT", "ForImageClassificationWithTeacher", image_size=SIZE, patch_size=8)


def _swin(library: str) -> Any:
    if library == "torchvision":
        return torchvision().SwinTransformer(
            patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], mlp_ratio=2.0,
            num_classes=CLASSES,
        )  # fmt: skip
    if library == "timm":
        from timm.models.swin_transformer import SwinTransformer

        return SwinTransformer(
            img_size=SIZE, patch_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4, mlp_ratio=2.0,
            num_classes=CLASSES,
        )  # fmt: skip
    return _hugging(
        "Swin", "ForImageClassification", image_size=SIZE, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
        window_size=4, mlp_ratio=2.0,
    )  # fmt: skip


def _convnext(library: str) -> Any:
    depths, widths = (1, 2, 1, 1), (8, 16, 24, 32)
    if library == "torchvision":
        block = torchvision().convnext.CNBlockConfig
        stages = [block(*one) for one in zip(widths, (*widths[1:], None), depths, strict=True)]
        return torchvision().ConvNeXt(stages, num_classes=CLASSES)
    if library == "timm":
        from timm.models.convnext import ConvNeXt

        return ConvNeXt(depths=depths, dims=widths, num_classes=CLASSES)
    if library == "keras":
        from keras.src.applications import convnext

        return convnext.ConvNeXt(
            depths=list(depths), projection_dims=list(widths), drop_path_rate=0.0, weights=None, classes=CLASSES,
            input_shape=(SIZE, SIZE, 3), classifier_activation=None, include_preprocessing=False, name="convnext",
            weights_name="",
        )  # fmt: skip
    return _hugging(
        "ConvNext", "ForImageClassification", depths=list(depths), hidden_sizes=list(widths)
    )


def _text(family: str, library: str) -> Any:
    if library != "transformers":
        return getattr(plain, {"mistral": "llama", "roberta": "bert"}.get(family, family))(
            library
        )
    sizes: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": LENGTH}
    if family == "bert":
        # with a pooler, which nobody else has
        return _hugging("Bert", "Model", type_vocab_size=1, **sizes)
    if family == "gpt2":
        return _hugging(
            "GPT2",
            "LMHeadModel",
            n_embd=WIDTH,
            n_layer=DEPTH,
            n_head=HEADS,
            n_positions=LENGTH,
            **sizes,
        )
    if family in ("llama", "mistral"):
        return _hugging(family.capitalize(), "ForCausalLM", num_key_value_heads=2, **sizes)
    if family == "roberta":  # whose positions begin at 2
        sizes["max_position_embeddings"] = LENGTH + 2
        return _hugging("Roberta", "Model", type_vocab_size=1, pad_token_id=1, **sizes)
    return _hugging(
        "T5", "EncoderModel", d_model=WIDTH, d_kv=8, d_ff=2 * WIDTH, num_layers=DEPTH, num_heads=HEADS,
        vocab_size=WORDS, relative_attention_num_buckets=8, relative_attention_max_distance=16,
    )  # fmt: skip


def _dinov2(library: str) -> Any:
    if library == "timm":
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=SIZE, patch_size=8, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS, mlp_ratio=4, num_classes=0,
            init_values=1.0, global_pool="",
        )  # fmt: skip
    return _hugging("Dinov2", "Model", image_size=SIZE, patch_size=8)


def _swinv2(library: str) -> Any:
    if library == "torchvision":
        from torchvision.models import swin_transformer as swin

        return swin.SwinTransformer(
            patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], mlp_ratio=2.0,
            num_classes=CLASSES, block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2,
        )  # fmt: skip
    if library == "timm":
        from timm.models.swin_transformer_v2 import SwinTransformerV2

        return SwinTransformerV2(
            img_size=SIZE, patch_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4, mlp_ratio=2.0,
            num_classes=CLASSES,
        )  # fmt: skip
    return _hugging(
        "Swinv2", "ForImageClassification", image_size=SIZE, patch_size=4, embed_dim=16, depths=[2, 2],
        num_heads=[2, 4], window_size=4, mlp_ratio=2.0,
    )  # fmt: skip


def _convnextv2(library: str) -> Any:
    depths, widths = [1, 2, 1, 1], [8, 16, 24, 32]
    if library == "timm":
        from timm.models.convnext import ConvNeXt

        return ConvNeXt(
            depths=depths, dims=widths, num_classes=CLASSES, use_grn=True, ls_init_value=None
        )
    return _hugging("ConvNextV2", "ForImageClassification", depths=depths, hidden_sizes=widths)


def _pvtv2(library: str) -> Any:
    if library == "timm":
        import timm

        return timm.create_model("pvt_v2_b0", num_classes=CLASSES)
    return _hugging("PvtV2", "ForImageClassification", image_size=SIZE)


TIMM = {
    "resnet18": "resnet18", "mobilenet_v2": "mobilenetv2_100", "regnet": "regnety_004", "vgg11": "vgg11",
    "densenet121": "densenet121",
    "resnet50": "resnet50", "resnetv2_50": "resnetv2_50", "mobilenetv1": "mobilenetv1_100",
    "mobilenet_v3_large": "mobilenetv3_large_100", "mobilenet_v3_small": "mobilenetv3_small_100",
    "mobilenet_v3_small_minimal": "tf_mobilenetv3_small_minimal_100", "efficientnet_b0": "tf_efficientnet_b0",
    "efficientnetv2_b0": "tf_efficientnetv2_b0", "inception_v3": "inception_v3",
}  # fmt: skip
TORCHVISION = {"regnet": "regnet_y_400mf"}
KERAS = {
    "resnetv2_50": "ResNet50V2", "mobilenetv1": "MobileNet", "efficientnet_b0": "EfficientNetB0",
    "efficientnetv2_b0": "EfficientNetV2B0", "mobilenet_v3_small_minimal": "MobileNetV3Small",
}  # fmt: skip
GLUON = {
    "resnetv2_50": "resnet50_v2", "mobilenetv1": "mobilenet1.0", "densenet169": "densenet169",
    "squeezenet1_1": "squeezenet1.1", "inception_v3": "inceptionv3",
}  # fmt: skip


def _convolutional(family: str, library: str) -> Any:
    size = size_of(family)
    if library == "timm":
        import timm

        return timm.create_model(TIMM[family])
    if library == "transformers":
        return _hugging(
            "ResNet",
            "ForImageClassification",
            num_labels=1000,
            hidden_sizes=[256, 512, 1024, 2048],
        )
    if library == "keras":
        import keras

        extra = {"minimalistic": True} if "minimal" in family else {}
        extra |= (
            {"include_preprocessing": False} if "minimal" in family or "v2_b0" in family else {}
        )
        return getattr(keras.applications, KERAS[family])(
            weights=None, classifier_activation=None, input_shape=(size, size, 3), **extra
        )
    if library == "gluon":
        import mxnet as mx

        model = mx.gluon.model_zoo.vision.get_model(GLUON[family])
        model.initialize()
        model(mx.np.zeros((1, 3, size, size)).as_nd_ndarray())
        return model
    if library == "paddle" and family == "mobilenetv1":
        import paddle

        return paddle.vision.models.mobilenet_v1()
    return zoos.build(
        "torch" if library == "torchvision" else library, TORCHVISION.get(family, family)
    )


IMAGES = {
    "vit": _vit, "deit": _deit, "swin": _swin, "convnext": _convnext, "dinov2": _dinov2, "swinv2": _swinv2,
    "convnextv2": _convnextv2, "pvtv2": _pvtv2,
}  # fmt: skip


def build(family: str, library: str) -> Any:
    if family in IMAGES:
        model = IMAGES[family](library)
    elif family in TEXTS:
        model = _text(family, library)
    else:
        model = _convolutional(family, library)
    if hasattr(model, "eval"):
        model.eval()
    return model


def size_of(family: str) -> int:
    return SIZE if family in IMAGES else 299 if family == "inception_v3" else 224


def inputs_of(family: str) -> Any:
    if family in TEXTS:
        return np.random.default_rng(0).integers(0, WORDS, (2, LENGTH))
    return zoos.images(size_of(family))


def try_pair(family: str, source: str, target: str) -> zoos.Row:
    here, there = (BACKENDS.get(library, "torch") for library in (source, target))
    for backend in (here, there):
        registry.load(backend)
    if "torch" in (here, there):
        torchvision()  # timm imports it, and must find it mended
    theirs, ours = build(family, target), build(family, source)
    for seed, model in enumerate((ours, theirs)):
        zoos.scatter(model, seed + 1)
        if family in IMAGES or family in TEXTS:
            scatter_rest(model, seed + 1)
    names = named(NAMES, family, source, target)
    found = zoos.convert((here, ours), (there, theirs), inputs_of(family), names)
    return zoos.Row(source, target, family, *found)


def named(
    names: dict[tuple[str, str], dict[str, str]], family: str, source: str, target: str
) -> dict[str, str]:
    back = {there: here for here, there in names.get((family, target), {}).items()}
    return names.get((family, source), {}) or back


def scatter_rest(model: Any, seed: int) -> None:
    """Gives the parameters that are in no layer, and the weights of linear layers and embeddings, values that matter.
    Buffers that PyTorch's modules have computed, as tables of places, stay."""
    backend = registry.owner_and_kind(type(model)).backend
    known = {part.name: layer.kind for layer in backend.layers(model) for part in layer.parts}
    computed = {name for name, _ in model.named_buffers()} if backend.name == "torch" else set()
    random = np.random.default_rng(seed)
    for name, variable in backend.variables(model):
        shape = tuple(variable.shape)
        if "float" not in str(variable.dtype) or known.get(name, "linear") not in (
            "linear",
            "embedding",
            ATTENTION,
        ):
            continue
        if (len(shape) < 2 and name in known) or name in computed:
            continue
        values = random.standard_normal(shape) / np.sqrt(
            shape[0] if name in known and shape[0] < 4000 else 4
        )
        if len(shape) < 2:
            values = random.uniform(0.7, 1.3, shape)
        backend.write(
            variable, backend.from_numpy(values.astype("float32"), backend.device_of(variable))
        )


ATTENTION = "multihead_attention"


@click.command()
@click.argument("words", nargs=-1)
@click.option("--new", is_flag=True, help="The further pairs.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One line of JSON for each pair, instead of the table.",
)
def main(words: tuple[str, ...], new: bool, as_json: bool) -> None:
    rows = []
    for family, source, target in NEW if new else PAIRS:
        if all(word in (family, source, target) for word in words):
            rows.append(try_pair(family, source, target))
            gc.collect()
            if as_json:
                print(json.dumps(rows[-1]._asdict()), flush=True)
    if not as_json:
        Console().print(zoos.table(rows))


if __name__ == "__main__":
    main()
