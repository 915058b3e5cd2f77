"""Layers without parameters: what they compute, in the terms of PyTorch's settings, which are the common form here.

An adapter states in a `Table` how the settings of each class of layers are read, and lists a model's modules; `read`
does the rest. Different spellings of a setting are unified here. `ndim` is the number of axes that a layer's input has,
if a model knows it: with it, an `axis` counted from the end can be compared with one counted from the front.

| kind | settings |
|---|---|
| activation | `function`; `slope`, `alpha`, `beta`, `scale`, `approximate`, `axis`, `ndim`, `min`, `max`, `threshold` |
| dropout | `p`, `mode`, `axes` |
| max_pool | `kernel`, `stride`, `padding`, `dilation`, `ceil_mode` |
| avg_pool | `kernel`, `stride`, `padding`, `ceil_mode`, `count_include_pad`, `divisor` |
| adaptive_avg_pool, adaptive_max_pool | `output_size` |
| upsample | `size`, `scale_factor`, `mode`, `align_corners` |
| pad | `padding` of the first and the last side of each axis of the image, `mode`, `value` |
| pixel_shuffle, pixel_unshuffle | `factor` |
| channel_shuffle | `groups` |
| local_response_norm | `size`, `alpha`, `beta`, `k` |
| batch_norm, group_norm, instance_norm | as with parameters |
| layer_norm, rms_norm | `eps`, and `axes`: how many |
| rescaling | `scale`, `offset` |
| flatten, of axes other than all but the first | `first`, `last` |
| unflatten | `axis`, `size` |
| other | `type`: of a class that is not known here |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .layouts import (
    ONE_CELL,
    Layer,
    Settings,
    of_single_cell,
    per_axis,
    same_padding,
    sides,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

OTHER: Final = "other"
WHOLE: Final = "the whole model"
"""The name of the line of a model that consists of one line of layers only."""
OUTSIDE_TOO: Final = "with windows that begin behind the image"
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
_DEFAULTS: Final[Mapping[str, Settings]] = MappingProxyType(
    {
        "elu": {"alpha": 1.0},
        "celu": {"alpha": 1.0},
        "gelu": {"approximate": "none"},
        "selu": {"alpha": 1.6732632423543772, "scale": 1.0507009873554805},
        "softplus": {"beta": 1.0, "threshold": 20.0},
        "silu": {"beta": 1.0},
        "hardtanh": {"min": -1.0, "max": 1.0},
        "hardshrink": {"threshold": 0.5},
        "softshrink": {"threshold": 0.5},
        "softmax": {"axis": -1},
        "log_softmax": {"axis": -1},
        "glu": {"axis": -1},
    }
)
"""The default settings of activations."""


Row = Callable[[str, Any], Layer | None]
"""A function that reads the settings of a layer, given its path and the layer; None if there is nothing to tell about
it."""
Attribute = str | Callable[[Any], Any]
"""The name of an attribute, or a function that reads it: `private.field(...)`."""


class Table(NamedTuple):
    """An adapter's description of its framework's modules: how the settings of each class of layers are read, and
    which role each class of modules has."""

    package: str
    """The framework's package: layers of its classes can be given to `describe`."""
    rows: Mapping[type, Row | None]
    """How the layers of a class are read; for a layer of another class, its nearest base counts. None means that there
    is nothing to tell."""
    methods: tuple[str, ...]
    """The methods by which a layer computes: a class from outside the framework that has one of its own is not
    read."""
    describe: Callable[[Any], str] = lambda layer: ""
    """Returns a text with the settings of one of the framework's layers that is in no row."""
    foreign: tuple[str, ...] = ()
    """Classes from outside the framework whose code is known nevertheless: `package.module.Class`."""
    lines: tuple[type, ...] = ()
    """Classes of modules that call their children one after another, unless their code is rewritten."""
    blocks: tuple[type, ...] = ()
    """Classes of modules whose layers with parameters state, in their settings, everything that the module does between
    them."""
    lists_inside: bool = False
    """Whether modules inside a layer with parameters are listed too, because they work on the output of that layer."""
    follow: Callable[[Layer], Iterable[Layer]] = lambda layer: ()
    """The operations that a layer with parameters itself applies to its output."""
    observers: tuple[str, ...] = ()
    """Packages whose hooks change no output, or only compute a weight."""

    def read(self, path: str, layer: Any) -> Layer | None:
        """Reads a layer without parameters; None if there is nothing to tell about it."""
        if self.is_rewritten(layer):
            return other(path, layer)
        # the nearest base with a row: a subclass without code of its own computes what its base does
        base = next((cls for cls in type(layer).__mro__ if cls in self.rows), None)
        if base is not None:
            row = self.rows[base]
            return None if row is None else row(path, layer)
        # the repr of a user's class may raise, or print addresses
        is_own = _root(type(layer)) == self.package
        return other(path, layer, self.describe(layer) if is_own else "")

    def is_rewritten(self, layer: Any) -> bool:
        """Whether a layer's class is from outside the framework and has code of its own for calls."""
        name = f"{type(layer).__module__}.{type(layer).__name__}"
        return name not in self.foreign and is_rewritten(layer, self.package, *self.methods)

    def is_line(self, module: Any) -> bool:
        return isinstance(module, self.lines) and not self.is_rewritten(module)


class Module(NamedTuple):
    """A module of a model as its adapter finds it: a layer, or a group of layers."""

    path: str
    itself: Any
    children: Sequence[Any]
    """The modules directly inside it, twice if they are there under two names."""
    has_parameters: bool
    """Whether it has parameters that are in none of its children."""
    hooks: Sequence[object] = ()
    """The functions that the framework calls with its inputs or outputs."""
    tensors: Sequence[tuple[str, Any]] = ()
    """The tensors that it holds itself, buffers or attributes, by their names."""


def read(
    modules: Sequence[Module], layers: Iterable[Layer], table: Table, saved: Iterable[Any] = ()
) -> Iterator[Layer]:
    """Yields the result of `Operations.operations` for a model. `modules` are all of the model's, itself first,
    `layers` its layers with parameters, and `saved` the tensors that are in its state."""
    by_path = {layer.path: layer for layer in layers}
    # before the layers are read, because a line depends on the whole tree of modules
    lines = _Lines(modules, by_path, table).names()
    for layer in _each(modules, by_path, table, set(map(id, saved))):
        # what a layer's own code does is in the line of the layer
        path = layer.path.removesuffix("()")
        yield layer._replace(line=lines.get(path, lines.get(path.rpartition(".")[0], "")))


def _each(
    modules: Iterable[Module], by_path: Mapping[str, Layer], table: Table, saved: Container[int]
) -> Iterator[Layer]:
    """Yields the layers of a model without their lines."""
    blocks: set[str] = set()
    for module in modules:
        path, itself = module.path, module.itself
        # a hook may change what the module takes or gives
        if any(_root(hook) not in table.observers for hook in module.hooks):
            yield other(f"{path}()", itself, "a hook")
        # its own tensors do not count: they may be counters, or the states of dropouts
        if path in by_path:
            yield by_path[path]
            if table.is_rewritten(itself):
                yield own_code(path, itself)
            yield from table.follow(by_path[path])
            continue
        yield from (_stateless(path, name) for name, x in module.tensors if id(x) not in saved)
        # its layers say everything about it
        if isinstance(itself, table.blocks):
            blocks.add(path)
            continue
        # a group of layers, or a model that computes with parameters of its own: its code is not read
        is_open = module.children or (path == "" and module.has_parameters)
        is_listed = path.rpartition(".")[0] in blocks or (
            not table.lists_inside and _is_inside(path, by_path)
        )
        # a layer that another one contains is described by that one
        operation = None if is_open or is_listed else table.read(path, itself)
        if operation is not None:
            yield operation


def _is_inside(path: str, layers: Container[str]) -> bool:
    names = path.split(".")
    return "" in layers or any(
        ".".join(names[:count]) in layers for count in range(1, len(names))
    )


def _stateless(path: str, name: str) -> Layer:
    """Returns an entry for a tensor of a layer that is not in the layer's state: a buffer that is not persistent, or an
    attribute."""
    return Layer(
        f"{path}.{name}".lstrip("."), OTHER, (), {"type": f"tensor {name} (in no state)"}
    )


def _root(thing: object) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]


class _Lines:
    """Finds the line that each layer belongs to: layers that are called one after another, with nothing in between. A
    layer that is called in two places ends a line, because it is listed only once."""

    def __init__(
        self, modules: Sequence[Module], by_path: Container[str], table: Table
    ) -> None:
        self._model, self._known, self._table = modules[0].itself, by_path, table
        self._modules = {id(module.itself): module for module in modules}
        self._uses: Counter[int] = Counter()
        self._names: dict[str, str] = {}

    def names(self) -> dict[str, str]:
        """For each layer that is in a line, by its path, the name of the line."""
        self._count(self._model)
        if not self._table.is_line(self._model):
            self._in_code(self._model)
            return self._names
        # the line that the last layer is in
        end = self._in_line(self._model, WHOLE)
        # only a line that reaches the end of the model is called WHOLE; a shorter one is the beginning
        return {
            path: "begin" if line == WHOLE != end else line
            for path, line in self._names.items()
        }

    def _inside(self, module: Any) -> list[Module]:
        return [self._modules[id(child)] for child in self._modules[id(module)].children]

    def _count(self, module: Any) -> None:
        self._uses[id(module)] += 1
        # every place counts, also within a module that is itself used twice
        for child in self._inside(module):
            self._count(child.itself)

    def _in_line(self, module: Any, line: str) -> str:
        """Names the line of each layer in `module`, which calls its children one after another. Returns the line that
        continues after it."""
        for path, child, inside, *_ in self._inside(module):
            # it is listed once, so the order of the list does not show both of its calls; with the line before it in
            # its name, each line behind it has a name of its own
            if self._uses[id(child)] > 1:
                line = f"behind {path} of {line}"
            elif self._table.is_line(child):
                line = self._in_line(child, line)
            elif path in self._known or not inside:
                self._names[path] = line
            else:
                line = f"behind {path}"
                self._in_code(child)
        return line

    def _in_code(self, module: Any) -> None:
        for path, child, *_ in self._inside(module):
            if self._uses[id(child)] > 1 or path in self._known:
                continue
            if self._table.is_line(child):
                self._in_line(child, f"in {path}")
            else:
                self._in_code(child)


def function_name(name: str) -> str:
    """Returns PyTorch's name of an activation function, given any framework's name: for `swish` it is `silu`."""
    return _SAME_FUNCTIONS.get(name.lower(), name.lower())


def activation(path: str, name: str, **settings: object) -> Layer:
    """Returns the entry for an activation function, under PyTorch's name, with the defaults of settings that are not
    stated."""
    function = function_name(name)
    whole = ("axis", "ndim")
    stated = {
        # 1 and 1.0 are one setting
        key: float(value) if isinstance(value, int) and key not in whole else value
        for key, value in settings.items()
    }
    # as ReLU(max_value=6) of Keras is read, which has no class for it
    if function == "hardtanh" and (stated.get("min"), stated.get("max")) == (0.0, 6.0):
        return Layer(path, "activation", (), {"function": "relu6"})
    return Layer(
        path, "activation", (), {"function": function, **_DEFAULTS.get(function, {}), **stated}
    )


def activations(rows: Mapping[type, Mapping[str, Attribute]]) -> dict[type, Row | None]:
    """Returns rows of a `Table` for activation functions whose classes are named as the functions. For each class,
    `rows` gives the settings and the attributes of the layer from which they are read."""
    return {cls: partial(_activation_of, cls, attributes) for cls, attributes in rows.items()}


def _activation_of(
    cls: type, attributes: Mapping[str, Attribute], path: str, layer: Any
) -> Layer:
    # without settings, nothing would show that the subclass differs
    if not attributes and type(layer) is not cls and _root(type(layer)) == _root(cls):
        # a subclass within the framework, as PyTorch's quantized ReLU6 is one of ReLU
        return other(path, layer)
    return activation(path, cls.__name__, **_settings(layer, attributes))


def row(kind: str, shared: Settings = MappingProxyType({}), /, **attributes: Attribute) -> Row:
    """Returns a row of a `Table`: layers of this kind, with the settings that all of them share, and those that are
    read from the attributes given for them."""
    return lambda path, layer: Layer(path, kind, (), {**shared, **_settings(layer, attributes)})


def cell(kind: str, **attributes: Attribute) -> Row:
    """Returns a row for a recurrent layer that is a single cell, with the parameter names of PyTorch and Paddle."""
    return lambda path, layer: Layer(
        path, kind, of_single_cell(kind), {**ONE_CELL, **_settings(layer, attributes)}
    )


def read_each(
    rows: Mapping[type | str, Row], modules: Iterable[tuple[str, Any]]
) -> list[tuple[Any, Layer]]:
    """Reads those of the modules, given with their paths, that have a row for their class or a base of it. A row may be
    listed by the name of a class, `package.module.Class`, so that the package is not imported for it."""
    read = []
    for path, module in modules:
        # nearest first, so that a row for a subclass wins
        classes = type(module).__mro__
        keys = (key for cls in classes for key in (cls, f"{cls.__module__}.{cls.__name__}"))
        row = next((rows[key] for key in keys if key in rows), None)
        layer = None if row is None else row(path, module)
        if layer is not None:
            read.append((module, layer))
    return read


def over_axes(
    module: object, name: str, row: Callable[[int, str, Any], Layer | None]
) -> dict[type, Row | None]:
    """Returns rows of a `Table` for a family of layers with a class each for one, two and three axes. `name` is the
    pattern of their names, such as "MaxPool{}d"; classes that the Python module lacks are left out. `row` is called
    with the number of axes, the path and the layer."""
    names = {axes: name.format(axes) for axes in (1, 2, 3)}
    return {
        getattr(module, one): partial(row, axes)
        for axes, one in names.items()
        if hasattr(module, one)
    }


def _settings(layer: Any, attributes: Mapping[str, Attribute]) -> dict[str, object]:
    return {
        setting: getattr(layer, read) if isinstance(read, str) else read(layer)
        for setting, read in attributes.items()
    }


def dropout(path: str, p: float, mode: str = UPSCALE, axes: object = "each number") -> Layer:
    """Returns the entry for a dropout. `axes` says what is dropped together: "each number", "whole channels", or the
    axes of the mask."""
    return Layer(path, "dropout", (), {"p": float(p), "mode": mode, "axes": axes})


def max_pool(
    path: str,
    axes: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: object = False,
    dilation: Any = 1,
    image: Sequence[int | None] = (),
) -> Layer:
    """Returns the entry for a max pool. `image` is the size of the pool's input, if that is known: padding="same"
    depends on it."""
    settings = _window(axes, kernel, stride, padding, image)
    # after the window, on which its effect depends
    settings["ceil_mode"] = _ceil(ceil_mode, settings)
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
    image: Sequence[int | None] = (),
) -> Layer:
    """Returns the entry for an average pool. `divisor` replaces the number of values in a window."""
    settings = _window(axes, kernel, stride, padding, image)
    settings |= {"ceil_mode": _ceil(ceil_mode, settings), "divisor": divisor}
    # whether padding is counted matters only where there is some
    is_padded = settings["padding"] != (0,) * axes
    return Layer(
        path,
        "avg_pool",
        (),
        settings | ({"count_include_pad": bool(count_include_pad)} if is_padded else {}),
    )


def adaptive_pool(kind: str, size: Attribute, axes: int, path: str, layer: Any) -> Layer:
    """Returns the entry for a pool of the kind "avg" or "max" whose output has a given size."""
    settings = _settings(layer, {"output_size": size})
    settings["output_size"] = per_axis(settings["output_size"], axes)
    return Layer(path, f"adaptive_{kind}_pool", (), settings)


def global_pool(kind: str, axes: int, path: str, layer: Any) -> Layer:
    return adaptive_pool(kind, lambda _: 1, axes, path, layer)


def upsample(
    path: str,
    axes: int | None,
    size: Any,
    scale_factor: Any,
    mode: str,
    align_corners: object = False,
) -> Layer:
    """Returns the entry for an upsampling. `axes` is None if the framework does not tell the number of axes."""
    scale = (
        per_axis(scale_factor, axes) if axes and isinstance(scale_factor, int) else scale_factor
    )
    # equal factors for all axes are one number, as most programs write them
    if isinstance(scale, list | tuple):
        scale = tuple(map(float, scale)) if len(set(scale)) > 1 else float(scale[0])
    elif scale is not None:
        scale = float(scale)
    sizes = tuple(size) if isinstance(size, list | tuple) else size
    mode = {
        "linear": "linear",
        "bilinear": "linear",
        "trilinear": "linear",
        "cubic": "bicubic",
    }.get(mode, mode)
    settings: dict[str, object] = {"size": sizes, "scale_factor": scale, "mode": mode}
    # a text says that a framework has a third way
    corners = align_corners if isinstance(align_corners, str) else bool(align_corners)
    return Layer(
        path,
        "upsample",
        (),
        settings | ({} if mode == "nearest" else {"align_corners": corners}),
    )


def pad(
    path: str, around: Sequence[tuple[int, int]], mode: str = "constant", value: object = 0.0
) -> Layer:
    """Returns the entry for a padding. `around` has the padding of both sides of each axis of the image, the first axis
    first."""
    settings: dict[str, object] = {
        "padding": tuple((int(one), int(two)) for one, two in around),
        "mode": mode,
    }
    # reflected and repeated pixels have no value
    fill = value if mode == "constant" else None
    return Layer(
        path,
        "pad",
        (),
        settings | {"value": float(fill) if isinstance(fill, int | float) else fill},
    )


def last_axis_first(padding: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the padding of both sides of each axis, the first axis first, from a flat list that begins with the last
    axis, as PyTorch and Paddle write it."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return pairs[::-1]


def flatten(path: str, first: int, last: int) -> Layer | None:
    """Returns the entry for a layer that flattens these axes; None if it flattens all axes but the first, because most
    models call a function for that."""
    return None if (first, last) == (1, -1) else plain(path, "flatten", first=first, last=last)


def plain(path: str, kind: str, **settings: object) -> Layer:
    return Layer(path, kind, (), settings)


def other(path: str, layer: object, details: str = "") -> Layer:
    """Returns the entry for a layer of an unknown class, or for something about a layer that no setting expresses. Two
    such entries of one framework with the same text and class count as equal."""
    cls = type(layer)
    text = f"{cls.__name__}({details})" if details else cls.__name__
    return Layer(
        path, OTHER, (), {"type": text, "class": f"{cls.__module__}.{cls.__qualname__}"}
    )


def is_rewritten(layer: object, package: str, *methods: str) -> bool:
    """Whether one of these methods of a layer is defined outside the framework's package, so that it is unknown what
    the layer computes."""
    # the class whose code is run, which may be a base
    owner = next(
        (cls for cls in type(layer).__mro__ if any(name in vars(cls) for name in methods)),
        object,
    )
    return _root(owner) != package


def own_code(path: str, layer: object) -> Layer:
    """Returns the entry that follows a layer with parameters if its class is from outside the framework and has its
    own code."""
    return other(f"{path}()", layer, "its own code")


def _ceil(mode: object, window: Mapping[str, Any]) -> object:
    """Returns the setting ceil_mode of a pool. PyTorch leaves out a last window that begins beyond the image; an
    adapter of a framework that keeps such a window gives the mode `OUTSIDE_TOO`, and the setting says so if there is
    one."""
    if mode == OUTSIDE_TOO and isinstance(window["padding"], tuple):
        each = zip(window["kernel"], window["stride"], window["padding"], strict=True)
        if any(
            step > size - (max(pad) if isinstance(pad, tuple) else pad)
            for size, step, pad in each
        ):
            return f"True, {OUTSIDE_TOO}"
    return bool(mode)


def _window(
    axes: int, kernel: Any, stride: Any, padding: Any, image: Sequence[int | None] = ()
) -> dict[str, object]:
    """Returns kernel, stride and padding of a pool in PyTorch's terms."""
    sizes = per_axis(kernel, axes)
    # in all frameworks, a pool's stride is its kernel unless it is given
    steps = sizes if stride is None or stride == [] else per_axis(stride, axes)
    around = padding.lower() if isinstance(padding, str) else sides(padding, axes)
    if around == "valid":
        around = (0,) * axes
    if around == "same":
        around = same_padding(sizes, steps, (1,) * axes, image)
    return {"kernel": tuple(sizes), "stride": tuple(steps), "padding": around}
