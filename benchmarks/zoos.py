"""Published architectures from one framework's zoo with their weights in another's: what `convert_state` makes of them.

    python benchmarks/zoos.py                     # all 47 pairs, as a table
    python benchmarks/zoos.py resnet50 tensorflow # those of this model and framework
    python benchmarks/zoos.py --json

Needs torchvision, whose C++ operators are not needed: where its wheel does not fit PyTorch, install it with
`pip install --no-deps torchvision`. Weights are random, statistics of batch norms away from 0 and 1; nothing is
downloaded. Both models run on a batch of two in evaluation. What `differences` lists is mended in the models, by the
lines as they are printed, and then they run again:

agrees: at once. by inputs: refused first, and settled by `inputs=`. mended: after the listed differences were removed.
refused: with `inputs=` too. listed: differs, for causes that are listed and that this script does not know to mend.
rounding: beyond 1e-4 with nothing listed, and no further than the source's outputs move if the images do by rounding.
SILENT: differs with nothing listed, which must not be. BLIND: the source's outputs hardly depend on the image, so that
they tell nothing, which must not be either.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import re
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import xdevice
from xdevice.core import registry
from xdevice.twins.models.reading import shapes_of

KERAS = {
    "densenet121": "DenseNet121", "mobilenet_v2": "MobileNetV2", "efficientnet_b0": "EfficientNetB0",
    "resnet50": "ResNet50", "mobilenet_v3_small": "MobileNetV3Small", "inception_v3": "InceptionV3",
    "convnext_tiny": "ConvNeXtTiny",
}  # fmt: skip
GLUON = {
    "resnet18": "resnet18_v1",
    "resnet50": "resnet50_v1",
    "mobilenet_v2": "mobilenet_v2_1_0",
    "inception_v3": "inception_v3",
}
SHUFFLE = "shufflenet_v2_x1_0"
PAIRS = {
    ("torch", "paddle"): (
        "resnet18", "resnet50", "vgg11", "vgg16", "mobilenet_v2", "densenet121", SHUFFLE, "mobilenet_v3_small",
        "mobilenet_v3_large", "resnext50_32x4d", "wide_resnet50_2", "vgg11_bn", "alexnet", "squeezenet1_0",
        "squeezenet1_1", "inception_v3", "googlenet",
    ),
    ("torch", "mxnet"): (
        "resnet18", "densenet121", "squeezenet1_0", "alexnet", "inception_v3", "vgg11_bn", "resnet50", "mobilenet_v2",
    ),
    ("torch", "tensorflow"): tuple(KERAS),
    ("paddle", "torch"): ("resnet18", "mobilenet_v2", SHUFFLE, "squeezenet1_1", "inception_v3"),
    ("paddle", "tensorflow"): ("densenet121", "mobilenet_v2", "resnet50"),
    ("mxnet", "paddle"): ("resnet18", "densenet121", "vgg11_bn", "squeezenet1_0", "mobilenet_v2"),
    ("tensorflow", "torch"): ("mobilenet_v2", "resnet50"),
}  # fmt: skip


CLOSE = 1e-4
BLIND = 1e-2
ROUNDS = 5
"""Conversions of a pair: a stride that is mended may make a padding another one."""


class Row(NamedTuple):
    """What became of one pair."""

    source: str
    target: str
    name: str
    verdict: str
    error: float | None
    """Of the outputs, relative to what the two images do not have in common."""
    seconds: float
    """Of the first `convert_state` that was not refused."""
    notes: list[str]
    """What each conversion came to."""


def torchvision_models() -> Any:
    """torchvision's models, which are Python; a wheel that does not fit lacks two operators that others use."""
    import torch

    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    found = importlib.import_module("torchvision.models")
    found.xdevice_operators = library  # they live as long as it
    return found


def build(backend: str, name: str) -> Any:
    size = 299 if name == "inception_v3" else 224
    if backend == "torch":
        extra: dict[str, Any] = (
            {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
        )
        extra |= {"aux_logits": False} if name == "inception_v3" else {}
        model = getattr(torchvision_models(), name)(weights=None, **extra)
        return model.eval()
    if backend == "paddle":
        import paddle

        if name == "vgg11_bn":
            return _evaluated(paddle.vision.models.vgg11(batch_norm=True))
        return _evaluated(getattr(paddle.vision.models, name)())
    if backend == "mxnet":
        import mxnet as mx

        model = mx.gluon.model_zoo.vision.get_model(
            GLUON.get(name, name)
            .replace("_v2_1_0", "v2_1.0")
            .replace("squeezenet1_", "squeezenet1.")
            .replace("inception_v3", "inceptionv3")
        )
        model.initialize()
        model(mx.np.zeros((1, 3, size, size)).as_nd_ndarray())
        return model
    import keras

    keras.utils.set_random_seed(0)
    found = getattr(keras.applications, KERAS[name])
    # a Normalization is listed with its numbers, and nobody else's ConvNeXt begins with one
    extra = {"include_preprocessing": False} if name == "convnext_tiny" else {}
    return found(weights=None, classifier_activation=None, input_shape=(size, size, 3), **extra)


def _evaluated(model: Any) -> Any:
    model.eval()
    return model


def scatter(model: Any, seed: int, gain: float = 4.0) -> None:
    """Gives biases, scales and statistics values that are not 0 and 1, and weights such that activations keep their
    size: with those that some libraries begin with, the outputs of deep models do not depend on the image; with larger
    ones rounding grows in others."""
    backend = registry.owner_and_kind(type(model)).backend
    variables = dict(backend.variables(model))
    generator = np.random.default_rng(seed)
    ranges = {"running_mean": (-0.1, 0.1), "running_var": (0.7, 1.4), "bias": (-0.1, 0.1)}
    for layer in backend.layers(model):
        shapes = shapes_of(variables, layer)
        for part in layer.parts:
            limits = ranges.get(part.of[0])
            if part.of == ("weight",) and layer.kind.endswith("norm"):
                limits = (0.8, 1.2)
            if part.of == ("weight",) and layer.kind in ("conv", "linear"):
                most = np.sqrt(gain / np.prod(shapes["weight"][1:]))
                limits = (-most, most)
            if limits is None:
                continue
            variable = variables[part.name]
            values = generator.uniform(*limits, tuple(variable.shape)).astype("float32")
            backend.write(variable, backend.from_numpy(values, backend.device_of(variable)))


def images(size: int) -> Any:
    """Two images with patches of their own: behind a pool, two of noise alone would hardly differ."""
    random = np.random.default_rng(0)
    patches = (
        random.standard_normal((2, 3, 4, 4)).repeat(-(-size // 4), 2).repeat(-(-size // 4), 3)
    )
    return (patches[..., :size, :size] + random.standard_normal((2, 3, size, size)) / 2).astype(
        "float32"
    )


def outputs(backend: str, model: Any, batch: Any) -> Any:
    """The first tensor that the model returns for images with their channels first, or for words."""
    is_image = batch.ndim > 2
    if backend == "torch":
        import torch

        with torch.no_grad():
            found = model(torch.from_numpy(batch))
        return (
            found if isinstance(found, torch.Tensor) else next(iter(found.values()))
        ).numpy()
    if backend == "paddle":
        import paddle

        with paddle.no_grad():
            found = model(paddle.to_tensor(batch))
        return (found[0] if isinstance(found, list | tuple) else found).numpy()
    if backend == "mxnet":
        import mxnet as mx

        return model(mx.np.array(batch).as_nd_ndarray()).asnumpy()
    return np.asarray(model(np.moveaxis(batch, 1, -1) if is_image else batch, training=False))


# mending


LINE = re.compile(
    r"^(?P<where>\S+)(?: and every other (?P<kind>\w+))?: (?P<name>\w+) is (?P<ours>.*) in \w+, (?P<theirs>.*) in \w+$"
)


def mend(
    lines: list[str], source: tuple[str, Any], target: tuple[str, Any], pairs: dict[str, str]
) -> list[str]:
    """Sets in the target what each line says, or in the source where the target cannot; gives those that it cannot."""
    left = []
    for line in lines:
        found = LINE.match(line)
        if found is None or found["name"] in ("momentum", "activation"):
            continue
        value = _value(found["ours"])
        try:
            where = _paths(target, found["where"], found["kind"])
            for path in where:
                if target[0] == "tensorflow" and found["name"] in ("padding", "padding_mode"):
                    mend_layer(
                        source[0],
                        _layer(source, pairs[path]),
                        found["name"],
                        _value(found["theirs"]),
                    )
                elif target[0] == "torch" and found["name"] == "mode":
                    mend_layer(
                        source[0],
                        _layer(source, _beside(source)),
                        "mode",
                        _value(found["theirs"]),
                    )
                else:
                    mend_layer(target[0], _layer(target, path), found["name"], value)
        except (KeyError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
            left.append(f"{line} ({type(error).__name__} {error})")
    return left


def _beside(source: tuple[str, Any]) -> str:
    """The one dropout of the source; for a setting that only the source has."""
    return _paths(source, "", "dropout")[0]


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _paths(side: tuple[str, Any], where: str, kind: str | None) -> list[str]:
    if kind is None:
        return [where]
    backend = registry.load(side[0])
    every = backend.operations(side[1], backend.layers(side[1]))
    return [layer.path for layer in every if layer.kind == kind]


def _layer(side: tuple[str, Any], path: str) -> Any:
    backend, model = side
    if backend == "tensorflow":
        from xdevice_tensorflow import names

        return next(layer for way, layer in names.layers(model) if way == path)
    for name in path.split("."):
        if backend == "mxnet":
            model = model._children[name]
        elif backend == "torch":
            model = getattr(model, name)
        else:
            model = model._sub_layers[name]
    return model


def mend_layer(backend: str, layer: Any, name: str, value: Any) -> None:
    if backend == "mxnet":
        if name == "padding" and (value == "same" or isinstance(value[0], tuple)):
            raise NotImplementedError(f"{name} of {value}")
        own = {"padding": "pad", "ceil_mode": "pooling_convention", "groups": "num_group"}.get(
            name, name
        )
        if name == "ceil_mode":
            value = "full" if value else "valid"
        if name == "p":
            layer._rate = value
        elif own in layer._kwargs:
            layer._kwargs[own] = value
        else:
            raise NotImplementedError(name)
        return
    if backend == "torch" and name == "padding":
        _pad_before(layer, value)
        return
    if (
        backend == "paddle"
        and name == "padding"
        and (value == "same" or isinstance(value[0], tuple))
    ):
        _pad_paddle(layer, value)
        return
    own = {
        "torch": {},
        "paddle": {"eps": "_epsilon", "stride": "_stride", "count_include_pad": "exclusive"},
        "tensorflow": {"eps": "epsilon", "stride": "strides", "p": "rate"},
    }[backend].get(name, name)
    if own == "exclusive":
        value = not value
    if backend == "paddle" and name == "padding" and hasattr(layer, "_updated_padding"):
        layer._padding = layer._updated_padding = list(value)
        return
    if backend == "paddle" and own == "_stride" and not hasattr(layer, own):
        own = "stride"
    getattr(layer, own)
    if (
        name == "output_size"
        and isinstance(value, tuple)
        and f"{len(value)}d" != type(layer).__name__.lower()[-2:]
    ):
        raise NotImplementedError(f"{name} of {len(value)} axes")
    setattr(layer, own, {"scale": 1.0, "offset": 0.0}.get(own) if value is None else value)


def _sides(value: Any, shape: Any, kernel: Any, stride: Any) -> list[int]:
    """What is added, the last axis first."""
    if value != "same":
        return [side for pair in value[::-1] for side in pair]
    sides = []
    for size, window, step in zip(shape[::-1], kernel[::-1], stride[::-1], strict=True):
        total = max((-(-size // step) - 1) * step + window - size, 0)
        sides += [total // 2, total - total // 2]
    return sides


def _pad_paddle(layer: Any, value: Any) -> None:
    import paddle

    layer._padding = layer._updated_padding = [0, 0]
    layer.register_forward_pre_hook(
        lambda module, given: paddle.nn.functional.pad(
            given[0], _sides(value, given[0].shape[2:], module._kernel_size, module._stride)
        )
    )


def _pad_before(layer: Any, value: Any) -> None:
    import torch

    if not type(layer).__module__.startswith("torch."):
        raise NotImplementedError(
            "a class that pads by its own code, which is listed as not compared"
        )

    if value != "same" and not isinstance(value[0], tuple):
        layer.padding = value
        return
    layer.padding = (0, 0)

    layer.register_forward_pre_hook(
        lambda module, given: torch.nn.functional.pad(
            given[0], _sides(value, given[0].shape[2:], module.kernel_size, module.stride)
        )
    )


# one pair


def try_pair(source: str, target: str, name: str) -> Row:
    for backend in (source, target):
        registry.load(backend)  # which imports it as it needs to be
    theirs, ours = build(target, name), build(source, name)
    scatter(ours, 1)
    scatter(theirs, 2)
    size = 299 if name == "inception_v3" else 224
    return Row(source, target, name, *convert((source, ours), (target, theirs), images(size)))


def convert(
    source: tuple[str, Any],
    target: tuple[str, Any],
    batch: Any,
    names: dict[str, str] | None = None,
) -> tuple[str, float | None, float, list[str]]:
    """Converts, and mends and converts again as long as there is something to mend; with inputs= where it is refused
    without, and where nothing more can be mended; and with `names`, if they are given, where it is refused without.
    Gives the last four fields of a `Row`."""
    (here, ours), (there, theirs) = source, target
    if is_blind(outputs(here, ours, batch)):
        scatter(ours, 1, gain=6.0)
        if is_blind(outputs(here, ours, batch)):
            return "BLIND", None, 0.0, ["the two images have the same outputs"]
    extra: dict[str, Any] = {}
    seconds, error, has_mended, notes = 0.0, 0.0, False, []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        try:
            state = xdevice.models.convert_state(ours, there, like=theirs, **extra)
        except xdevice.errors.StateError as refusal:
            notes.append(f"refused in {len(str(refusal))} characters: {refusal}")
            if names and "names" not in extra:
                extra["names"] = names
                continue
            if "inputs" in extra:
                return "refused", None, seconds, notes
            extra["inputs"] = as_taken(here, batch)
            continue
        seconds = seconds or time.perf_counter() - start
        xdevice.load(state, into=theirs, strict=False)
        error = distance(outputs(here, ours, batch), outputs(there, theirs, batch))
        told = [line for line in state.differences if not is_of_training(line)]
        notes.append(
            f"{error:.1e}, {len(state.unmapped)} unmapped, {len(told)} listed: {'; '.join(told)}"
        )
        if error < CLOSE:
            how = "mended" if has_mended else f"by {next(iter(extra))}" if extra else "agrees"
            return how, error, seconds, notes
        if not told and not state.unmapped:
            return (
                ("rounding" if error < noise(here, ours, batch) else "SILENT"),
                error,
                seconds,
                notes,
            )
        if mend_all(state, source, target):
            has_mended = True
            continue
        if "inputs" in extra:
            break
        extra["inputs"] = as_taken(here, batch)
    return "listed", error, seconds, notes


def is_blind(found: Any) -> bool:
    return bool(np.abs(found - found.mean(axis=0)).max() < BLIND * np.abs(found).max())


def as_taken(backend: str, batch: Any) -> Any:
    return np.moveaxis(batch, 1, -1) if backend == "tensorflow" and batch.ndim > 2 else batch


def is_of_training(line: str) -> bool:
    return "num_batches_tracked" in line or ": momentum is" in line


def mend_all(state: Any, source: tuple[str, Any], target: tuple[str, Any]) -> bool:
    """Whether anything was mended."""
    zeroed = [_zero(side[1], path) for side in (source, target) for path in state.unmapped]
    there = {layer.path: layer for layer in registry.load(target[0]).layers(target[1])}
    pairs = _pairs(state, registry.load(source[0]), source[1], there)
    lines = [
        line for line in state.differences if LINE.match(line) and not is_of_training(line)
    ]
    left = mend(lines, source, target, pairs)
    return any(zeroed) or len(left) < len(lines)


def _pairs(state: Any, backend: Any, model: Any, there: dict[str, Any]) -> dict[str, str]:
    own = {part.name: layer.path for layer in backend.layers(model) for part in layer.parts}
    return {
        path: own[state.origins[part.name][0]]
        for path, layer in there.items()
        for part in layer.parts
        if state.origins.get(part.name, ("",))[0] in own
    }


def _zero(model: Any, path: str) -> bool:
    """A bias that the source does not have is 0; whether it was another one."""
    backend = registry.owner_and_kind(type(model)).backend
    variable = dict(backend.variables(model)).get(path)
    if variable is None or path.rpartition(".")[2].rpartition("/")[2] not in ("bias", "beta"):
        return False
    zeros = np.zeros(tuple(variable.shape), "float32")
    was = backend.to_numpy(variable).any()
    backend.write(variable, backend.from_numpy(zeros, backend.device_of(variable)))
    return bool(was)


def distance(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return float("inf")
    own = np.abs(one - one.mean(axis=0)).max()  # what the two images do not have in common
    return float(np.abs(one - other).max() / (own + 1e-2 * np.abs(one).max()))


def noise(backend: str, model: Any, batch: Any) -> float:
    """How far the outputs move if the numbers of an image move by eight times their rounding, as some fifty layers
    may."""
    away = np.random.default_rng(0).uniform(-1e-6, 1e-6, batch.shape) if batch.ndim > 2 else 0.0
    moved = (batch * (1 + away)).astype(batch.dtype)
    return distance(outputs(backend, model, batch), outputs(backend, model, moved))


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
    for (source, target), names in PAIRS.items():
        for name in names:
            if not words or all(word in (source, target, name) for word in words):
                rows.append(try_pair(source, target, name))
                gc.collect()
                if as_json:
                    print(json.dumps(rows[-1]._asdict()), flush=True)
    if not as_json:
        Console().print(table(rows))


def table(rows: list[Row]) -> Table:
    made = Table(
        title=", ".join(
            f"{count} {verdict}" for verdict, count in Counter(r.verdict for r in rows).items()
        )
    )
    for column in ("from", "to", "model", "verdict", "error", "seconds", "last conversion"):
        made.add_column(column)
    for row in rows:
        error = "" if row.error is None else f"{row.error:.1e}"
        made.add_row(
            row.source,
            row.target,
            row.name,
            row.verdict,
            error,
            f"{row.seconds:.2f}",
            row.notes[-1][:200],
        )
    return made


if __name__ == "__main__":
    main()
