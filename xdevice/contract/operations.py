"""Layers without parameters: what a setting of one framework is in PyTorch's terms, which are the common ones here.

An adapter states the kind and the settings of each; what is the same under two spellings is made one here.

| kind | settings |
|---|---|
| activation | `function`, and `slope`, `alpha`, `beta`, `approximate`, `axis`, `min`, `max` or `threshold` |
| dropout | `p`, `mode`, `axes` |
| max_pool | `kernel`, `stride`, `padding`, `dilation`, `ceil_mode` |
| avg_pool | `kernel`, `stride`, `padding`, `ceil_mode`, `count_include_pad`, `divisor` |
| adaptive_avg_pool, adaptive_max_pool | `output_size` |
| upsample | `size`, `scale_factor`, `mode`, `align_corners` |
| pad | `padding` of the first and the last side of each axis of the image, `mode`, `value` |
| pixel_shuffle, pixel_unshuffle | `factor` |
| channel_shuffle | `groups` |
| local_response_norm | `size`, `alpha`, `beta`, `k` |
| batch_norm, layer_norm, group_norm, instance_norm | as with parameters |
| rescaling | `scale`, `offset` |
| flatten, of other axes than all but the first | `first`, `last` |
| unflatten | `axis`, `size` |
| other | `type`: of a class that nobody knows here |
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from .layouts import Layer, per_axis, same_padding

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

OTHER: Final = "other"
UPSCALE: Final = "upscale_in_train"
"""The usual mode of a dropout: outputs in training are divided by 1 - p, and in evaluation are the inputs."""

_SAME_FUNCTIONS: Final = MappingProxyType(
    {
        "swish": "silu", "hard_swish": "hardswish", "hard_silu": "hardswish", "hard_sigmoid": "hardsigmoid",
        "hard_tanh": "hardtanh", "softrelu": "softplus", "soft_shrink": "softshrink", "hard_shrink": "hardshrink",
        "tanh_shrink": "tanhshrink", "logsigmoid": "log_sigmoid", "logsoftmax": "log_softmax",
        "leakyrelu": "leaky_relu", "softmax2d": "softmax",
    }
)  # fmt: skip
_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "elu": {"alpha": 1.0},
        "celu": {"alpha": 1.0},
        "gelu": {"approximate": "none"},
        "softplus": {"beta": 1.0},
        "silu": {"beta": 1.0},
        "hardtanh": {"min": -1.0, "max": 1.0},
        "hardshrink": {"threshold": 0.5},
        "softshrink": {"threshold": 0.5},
        "softmax": {"axis": -1},
        "log_softmax": {"axis": -1},
        "glu": {"axis": -1},
    }
)
"""What a function takes that is not told otherwise."""


def is_inside(path: str, layers: Container[str]) -> bool:
    """Whether one of these layers contains the one at this path."""
    ways = path.split(".")
    return "" in layers or any(".".join(ways[:count]) in layers for count in range(1, len(ways)))


def function_name(name: str) -> str:
    """PyTorch's name of a function of activation, by a framework's: `swish` is `silu`."""
    return _SAME_FUNCTIONS.get(name.lower(), name.lower())


def activation(path: str, name: str, **settings: object) -> Layer:
    function = function_name(name)
    told = {key: float(value) if isinstance(value, int) and key != "axis" else value for key, value in settings.items()}
    if function == "hardtanh" and (told.get("min"), told.get("max")) == (0.0, 6.0):
        return Layer(path, "activation", (), {"function": "relu6"})
    return Layer(path, "activation", (), {"function": function, **_DEFAULTS.get(function, {}), **told})


def dropout(path: str, p: float, mode: str = UPSCALE, axes: object = "each number") -> Layer:
    """`axes` says what is dropped together: "each number", "whole channels", or the axes of the mask."""
    return Layer(path, "dropout", (), {"p": float(p), "mode": mode, "axes": axes})


def max_pool(
    path: str, axes: int, kernel: Any, stride: Any, padding: Any, ceil_mode: object = False, dilation: Any = 1
) -> Layer:
    settings = _window(axes, kernel, stride, padding) | {"ceil_mode": bool(ceil_mode)}
    return Layer(path, "max_pool", (), settings | {"dilation": per_axis(dilation, axes)})


def avg_pool(
    path: str,
    axes: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: object = False,
    count_include_pad: object = True,
    divisor: object = None,
) -> Layer:
    settings = _window(axes, kernel, stride, padding) | {"ceil_mode": bool(ceil_mode), "divisor": divisor}
    is_padded = settings["padding"] != (0,) * axes  # else there is nothing to count
    return Layer(path, "avg_pool", (), settings | ({"count_include_pad": bool(count_include_pad)} if is_padded else {}))


def adaptive_pool(path: str, kind: str, axes: int, output_size: Any) -> Layer:
    return Layer(path, f"adaptive_{kind}_pool", (), {"output_size": per_axis(output_size, axes)})


def upsample(
    path: str, axes: int | None, size: Any, scale_factor: Any, mode: str, align_corners: object = False
) -> Layer:
    """`axes` is None where the framework does not tell it."""
    scale = per_axis(scale_factor, axes) if axes and isinstance(scale_factor, int) else scale_factor
    if isinstance(scale, list | tuple):
        scale = tuple(map(float, scale)) if len(set(scale)) > 1 else float(scale[0])
    elif scale is not None:
        scale = float(scale)
    sizes = tuple(size) if isinstance(size, list | tuple) else size
    mode = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "cubic": "bicubic"}.get(mode, mode)
    settings: dict[str, object] = {"size": sizes, "scale_factor": scale, "mode": mode}
    return Layer(path, "upsample", (), settings | ({} if mode == "nearest" else {"align_corners": bool(align_corners)}))


def pad(path: str, sides: Sequence[tuple[int, int]], mode: str = "constant", value: object = 0.0) -> Layer:
    """`sides` are those of each axis of the image, the first axis first."""
    settings: dict[str, object] = {"padding": tuple((int(one), int(two)) for one, two in sides), "mode": mode}
    known = value if mode == "constant" else None
    return Layer(path, "pad", (), settings | {"value": float(known) if isinstance(known, int | float) else known})


def last_axis_first(padding: Sequence[int]) -> list[tuple[int, int]]:
    """The sides of each axis, of a flat list that begins with those of the last axis, as PyTorch and Paddle have it."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return pairs[::-1]


def plain(path: str, kind: str, **settings: object) -> Layer:
    return Layer(path, kind, (), settings)


def other(path: str, layer: object, told: str = "") -> Layer:
    """One of a class that nobody knows here, or what is told of a layer that is in no setting. Of one framework, two
    with the same settings are the same."""
    name = type(layer).__name__
    return Layer(path, OTHER, (), {"type": f"{name}({told})" if told else name})


def stateless(path: str, name: str) -> Layer:
    """A tensor that a layer holds and its state does not: a buffer that is not persistent, or a mere attribute."""
    return Layer(f"{path}.{name}".lstrip("."), OTHER, (), {"type": f"tensor {name} (in no state)"})


def _window(axes: int, kernel: Any, stride: Any, padding: Any) -> dict[str, object]:
    sizes = per_axis(kernel, axes)
    steps = sizes if stride is None or stride == [] else per_axis(stride, axes)
    around = padding.lower() if isinstance(padding, str) else per_axis(padding, axes)
    if around == "valid":
        around = (0,) * axes
    if around == "same":
        around = same_padding(sizes, steps, (1,) * axes)
    if isinstance(around, tuple) and len(around) == 2 * axes and axes > 1:
        sides = list(zip(around[::2], around[1::2], strict=True))
        around = tuple(one for one, _ in sides) if all(one == two for one, two in sides) else tuple(sides)
    return {"kernel": tuple(sizes), "stride": tuple(steps), "padding": around}
