"""Layers without parameters: what they compute, in the terms of PyTorch's settings, which are the common form here.

An adapter states in a `Table` how the settings of each class of layers are read, and lists a
model's modules; `read` does the rest. Different spellings of a setting are unified here. `ndim`
is the number of axes of a layer's input, if that is known: with `ndim`, an `axis` counted from
the end can be compared with one counted from the front.

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
"""The kind of an entry for a layer of an unknown class, or for a fact that no setting expresses."""
WHOLE: Final = "the whole model"
"""The name of the line in a model whose layers form only one line."""
OUTSIDE_TOO: Final = "with windows that begin after the end of the image"
"""The ceil_mode of a pool that keeps a last window even if that window begins beyond the image;
PyTorch leaves such a window out."""
UPSCALE: Final = "upscale_in_train"
"""The usual mode of a dropout: outputs in training are divided by 1 - p, and outputs in evaluation are the inputs."""

# PyTorch's names, by the lowercase names that other frameworks use
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
"""PyTorch's default settings of activations, by PyTorch's names. Activations without settings are left out."""


Row = Callable[[str, Any], Layer | None]
"""A function that is given a layer's path and the layer, and returns its description. It returns None if there is
nothing to report about the layer."""
Attribute = str | Callable[[Any], Any]
"""The name of an attribute, or a function that reads it: `private.field(...)`."""


class Table(NamedTuple):
    """An adapter's description of its framework's modules: how the settings of a layer are read, by its class, and
    which role a class of modules has."""

    package: str
    """The framework's top-level package, such as "torch". Only layers of its classes are given to `describe`."""
    rows: Mapping[type, Row | None]
    """How the layers of each class are read; a layer of another class is read as its nearest base is. None means that
    there is nothing to report about layers of the class."""
    methods: tuple[str, ...]
    """The names of the methods with which a layer computes. A class from outside the framework that defines one of them
    is not read, because its code may compute anything."""
    describe: Callable[[Any], str] = lambda layer: ""
    """Returns a text with the settings of a layer that is one of the framework's own and has no row."""
    foreign: tuple[str, ...] = ()
    """Classes from outside the framework that are read although they have code of their own, because it is known what
    they compute. Each is spelled `package.module.Class`."""
    lines: tuple[type, ...] = ()
    """Classes of modules that call their children one after another, unless their code is rewritten."""
    blocks: tuple[type, ...] = ()
    """Classes of modules whose own code needs no entry: the settings of the layers with parameters inside say
    everything that the module does between them."""
    lists_inside: bool = False
    """Whether modules inside a layer with parameters are listed too, because they compute with the output of that
    layer."""
    follow: Callable[[Layer], Iterable[Layer]] = lambda layer: ()
    """Returns the operations, such as an activation, that a layer with parameters applies to its own output."""
    observers: tuple[str, ...] = ()
    """Packages whose hooks need no entry, because they change no output, or only compute a weight."""

    def read(self, path: str, layer: Any) -> Layer | None:
        """Returns the description of a layer without parameters; None if there is nothing to report about it."""
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
        """Whether a layer's class is from outside the framework, is not in `foreign`, and has code of its own for
        calls."""
        name = f"{type(layer).__module__}.{type(layer).__name__}"
        return name not in self.foreign and is_rewritten(layer, self.package, *self.methods)

    def is_line(self, module: Any) -> bool:
        """Whether a module calls its children one after another, and does nothing else."""
        return isinstance(module, self.lines) and not self.is_rewritten(module)


class Module(NamedTuple):
    """A module of a model as its adapter finds it: a layer, or a group of layers."""

    path: str
    """The path from the model to the module, with dots; "" for the model itself."""
    itself: Any
    """The framework's own object."""
    children: Sequence[Any]
    """The modules directly inside it. A module that is inside under two names is listed twice."""
    has_parameters: bool
    """Whether it has parameters that are in none of its children."""
    hooks: Sequence[object] = ()
    """The functions that the framework calls with the inputs or outputs of this module."""
    tensors: Sequence[tuple[str, Any]] = ()
    """The tensors that are directly in this module, as buffers or attributes, each with its name."""


def read(
    modules: Sequence[Module], layers: Iterable[Layer], table: Table, saved: Iterable[Any] = ()
) -> Iterator[Layer]:
    """Yields the result of `Operations.operations` for a model. `modules` are the model's modules, the model itself
    first; `layers` are its layers with parameters, and `saved` the tensors that are in its state."""
    by_path = {layer.path: layer for layer in layers}
    # before the layers are read, because a line depends on the whole tree of modules
    lines = _Lines(modules, by_path, table).names()
    for layer in _entries(modules, by_path, table, set(map(id, saved))):
        # an entry for a layer's own code or hooks has the layer's path and "()", and is in the layer's line
        path = layer.path.removesuffix("()")
        # an entry for a part of a layer, such as its activation, is in the line of that layer
        yield layer._replace(line=lines.get(path, lines.get(path.rpartition(".")[0], "")))


def _entries(
    modules: Iterable[Module], by_path: Mapping[str, Layer], table: Table, saved: Container[int]
) -> Iterator[Layer]:
    """Yields the layers that `read` yields, without their lines. `by_path` has the layers with parameters by path, and
    `saved` the `id`s of the tensors that are in the model's state."""
    blocks: set[str] = set()
    for module in modules:
        path, itself = module.path, module.itself
        # a hook may change what the module takes or gives
        if any(_root(hook) not in table.observers for hook in module.hooks):
            yield other(f"{path}()", itself, "a hook")
        # a layer with parameters, whose other tensors do not count: they may be counters, or the states of dropouts
        if path in by_path:
            yield by_path[path]
            if table.is_rewritten(itself):
                yield own_code(path, itself)
            yield from table.follow(by_path[path])
            continue
        yield from (_stateless(path, name) for name, x in module.tensors if id(x) not in saved)
        # the layers inside a block say everything about it
        if isinstance(itself, table.blocks):
            blocks.add(path)
            continue
        # the code of a group of layers, or of a model that computes with parameters of its own, is not read
        is_group = module.children or (path == "" and module.has_parameters)
        is_described = path.rpartition(".")[0] in blocks or (
            not table.lists_inside and _is_inside(path, by_path)
        )
        # the description of a block, or of a layer with parameters, covers the layers inside it
        operation = None if is_group or is_described else table.read(path, itself)
        if operation is not None:
            yield operation


def _is_inside(path: str, layers: Container[str]) -> bool:
    """Whether the module at a path is inside one of the modules at the paths `layers`. The path "" is the model, which
    contains every module."""
    names = path.split(".")
    return "" in layers or any(
        ".".join(names[:count]) in layers for count in range(1, len(names))
    )


def _stateless(path: str, name: str) -> Layer:
    """Returns the entry for a tensor `name`, in the layer at `path`, that is not in the layer's state: a buffer that is
    not persistent, or an attribute."""
    # the path of the model is empty, and would leave a dot in front
    return Layer(
        f"{path}.{name}".lstrip("."), OTHER, (), {"type": f"tensor {name} (in no state)"}
    )


def _root(thing: object) -> str:
    """The top-level package in which a class or function is defined; "" for an object without `__module__`."""
    return str(getattr(thing, "__module__", "")).partition(".")[0]


class _Lines:
    """Finds the line of each layer in a model. A line consists of layers that are called one
    after another, with nothing in between. A layer that is called in two places ends a line,
    because such a layer is listed only once. A line has a name, such as "in features" or "after
    pool"."""

    def __init__(
        self, modules: Sequence[Module], by_path: Container[str], table: Table
    ) -> None:
        self._model, self._known, self._table = modules[0].itself, by_path, table
        self._modules = {id(module.itself): module for module in modules}
        # in how many places each module is called, by its `id`
        self._uses: Counter[int] = Counter()
        # the line of each layer, by its path
        self._names: dict[str, str] = {}

    def names(self) -> dict[str, str]:
        """Returns, by the path of each layer that is in a line, the name of that line. May be
        called only once."""
        self._count(self._model)
        if not self._table.is_line(self._model):
            self._in_code(self._model)
            return self._names
        # the line that the last layer is in
        end = self._in_line(self._model, WHOLE)
        # only a line that reaches the end of the model is called WHOLE; a shorter one is the beginning. The comparison
        # below is true if `line` is WHOLE and `end` is not
        return {
            path: "begin" if line == WHOLE != end else line
            for path, line in self._names.items()
        }

    def _inside(self, module: Any) -> list[Module]:
        """The modules directly inside the framework's own object `module`."""
        return [self._modules[id(child)] for child in self._modules[id(module)].children]

    def _count(self, module: Any) -> None:
        """Counts the places in which `module` and all modules inside it are called."""
        self._uses[id(module)] += 1
        # every place counts, also within a module that is itself used twice
        for child in self._inside(module):
            self._count(child.itself)

    def _in_line(self, module: Any, line: str) -> str:
        """Names the line of each layer in `module`, which calls its children one after another. `line` is the name of
        the line that the first child is in. Returns the name of the line to which a layer after the last child
        belongs."""
        for path, child, children, *_ in self._inside(module):
            # a module that is called in two places is listed once, so the list does not show
            # the order of its calls. The name of the line after it includes that of the line
            # before it, because the lines after the two places need different names
            if self._uses[id(child)] > 1:
                line = f"after {path} of {line}"
            elif self._table.is_line(child):
                line = self._in_line(child, line)
            elif path in self._known or not children:
                self._names[path] = line
            # a group with code of its own may call anything, so it is not known what is called
            # next to it
            else:
                line = f"after {path}"
                self._in_code(child)
        return line

    def _in_code(self, module: Any) -> None:
        """Names the lines of the layers in `module`, whose own code decides what is called: only the modules of a line
        class inside it have lines."""
        for path, child, *_ in self._inside(module):
            # no line begins at a module that is called in several places, or in a layer with
            # parameters
            if self._uses[id(child)] > 1 or path in self._known:
                continue
            if self._table.is_line(child):
                self._in_line(child, f"in {path}")
            else:
                self._in_code(child)


def function_name(name: str) -> str:
    """Returns PyTorch's name of an activation function, given the name in any framework: "silu"
    for "swish". An unknown name is returned in lowercase."""
    return _SAME_FUNCTIONS.get(name.lower(), name.lower())


def activation(path: str, name: str, **settings: object) -> Layer:
    """Returns the entry for an activation function with any framework's `name`. Settings that are not stated have
    PyTorch's defaults."""
    function = function_name(name)
    # the settings that remain integers
    integers = ("axis", "ndim")
    stated = {
        # 1 and 1.0 are one setting
        key: float(value) if isinstance(value, int) and key not in integers else value
        for key, value in settings.items()
    }
    # Keras has no class for a ReLU6: its ReLU(max_value=6) comes here as a hardtanh from 0 to 6
    if function == "hardtanh" and (stated.get("min"), stated.get("max")) == (0.0, 6.0):
        return Layer(path, "activation", (), {"function": "relu6"})
    return Layer(
        path, "activation", (), {"function": function, **_DEFAULTS.get(function, {}), **stated}
    )


def activations(rows: Mapping[type, Mapping[str, Attribute]]) -> dict[type, Row | None]:
    """Returns rows of a `Table` for classes of activations that are named after their
    functions. For each class, `rows` gives, by the name of a setting, the attribute of the
    layer from which the setting is read."""
    return {cls: partial(_activation_of, cls, attributes) for cls, attributes in rows.items()}


def _activation_of(
    cls: type, attributes: Mapping[str, Attribute], path: str, layer: Any
) -> Layer:
    """Returns the entry for an activation that is a layer of the class `cls` or of a subclass;
    for a layer of a subclass that may compute something else, the entry for an unknown
    layer."""
    # listed as unknown under three conditions: the class has no settings, which could show a difference; the layer is
    # of a subclass; and the subclass is the framework's own, because a user's with code of its own does not come here
    if not attributes and type(layer) is not cls and _root(type(layer)) == _root(cls):
        # as PyTorch's quantized ReLU6, which is a subclass of ReLU
        return other(path, layer)
    return activation(path, cls.__name__, **_settings(layer, attributes))


def row(kind: str, shared: Settings = MappingProxyType({}), /, **attributes: Attribute) -> Row:
    """Returns a row of a `Table` for layers of this kind. Their settings are those in `shared`,
    and one setting for each keyword, read from the attribute that is the keyword's value."""
    return lambda path, layer: Layer(path, kind, (), {**shared, **_settings(layer, attributes)})


def cell(kind: str, **attributes: Attribute) -> Row:
    """Returns a row of a `Table` for recurrent layers that are single cells, with the parameter names of PyTorch and
    Paddle. Each keyword gives the attribute from which a setting is read."""
    return lambda path, layer: Layer(
        path, kind, of_single_cell(kind), {**ONE_CELL, **_settings(layer, attributes)}
    )


def read_each(
    rows: Mapping[type | str, Row], modules: Iterable[tuple[str, Any]]
) -> list[tuple[Any, Layer]]:
    """Returns each module that has a row for its class or for a base class, with its description, unless the row
    returns None. `modules` are pairs of a path and a module. A row may be listed by the name of a class,
    `package.module.Class`, so that the package is not imported for it."""
    described = []
    for path, module in modules:
        # nearest first, so that a row for a subclass wins
        classes = type(module).__mro__
        keys = (key for cls in classes for key in (cls, f"{cls.__module__}.{cls.__name__}"))
        row = next((rows[key] for key in keys if key in rows), None)
        layer = None if row is None else row(path, module)
        if layer is not None:
            described.append((module, layer))
    return described


def over_axes(
    module: object, name: str, row: Callable[[int, str, Any], Layer | None]
) -> dict[type, Row | None]:
    """Returns rows of a `Table` for a family of layers with a class each for one, two and three
    axes. `name` is the pattern of the names of the classes, such as "MaxPool{}d"; classes that
    the Python module `module` lacks are left out. `row` is called with the number of axes, the
    path and the layer."""
    names = {axes: name.format(axes) for axes in (1, 2, 3)}
    return {
        getattr(module, class_name): partial(row, axes)
        for axes, class_name in names.items()
        if hasattr(module, class_name)
    }


def _settings(layer: Any, attributes: Mapping[str, Attribute]) -> dict[str, object]:
    """Returns the settings of a layer, by name: `attributes` gives, for each setting, the
    attribute from which its value is read."""
    return {
        setting: getattr(layer, attribute) if isinstance(attribute, str) else attribute(layer)
        for setting, attribute in attributes.items()
    }


def dropout(path: str, p: float, mode: str = UPSCALE, axes: object = "each number") -> Layer:
    """Returns the entry for a dropout. `p` is the probability of a zero, and `mode` is `UPSCALE` or the framework's
    name of another mode. `axes` says which numbers are dropped together: "each number" (alone), "whole channels", or
    the axes of the mask."""
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
    """Returns the entry for a max pool over this number of axes. `kernel`, `stride` and `dilation` are one number for
    all axes, or one for each; `padding` may also have a pair for each axis, or be a text. `image` has the sizes of the
    pool's input along these axes, if they are known: padding="same" depends on them. `ceil_mode` is a truth value or
    `OUTSIDE_TOO`."""
    settings = _window(axes, kernel, stride, padding, image)
    # computed from the window: whether ceil_mode changes the output depends on it
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
    """Returns the entry for an average pool, with arguments as in `max_pool`.
    `count_include_pad` is ignored if the pool has no padding. `divisor` is the number by which
    the sum of a window is divided, or None for the number of values in the window."""
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
    """Returns the entry for a pool of the kind "avg" or "max" whose output has a given size. `size` is the attribute of
    the layer that has the size; one number applies to all `axes`."""
    settings = _settings(layer, {"output_size": size})
    settings["output_size"] = per_axis(settings["output_size"], axes)
    return Layer(path, f"adaptive_{kind}_pool", (), settings)


def global_pool(kind: str, axes: int, path: str, layer: Any) -> Layer:
    """Returns the entry for a pool of the kind "avg" or "max" over the whole image: an adaptive
    pool of output size 1. Nothing is read from `layer`."""
    return adaptive_pool(kind, lambda _: 1, axes, path, layer)


def upsample(
    path: str,
    axes: int | None,
    size: Any,
    scale_factor: Any,
    mode: str,
    align_corners: object = False,
) -> Layer:
    """Returns the entry for an upsampling. `axes` is the number of axes of the image, or None
    if the framework does not report it. Either `size` or `scale_factor` is None.
    `align_corners` is a truth value, or a text that describes how a framework aligns pixels in
    any other way."""
    scale = (
        per_axis(scale_factor, axes) if axes and isinstance(scale_factor, int) else scale_factor
    )
    # equal factors for all axes are one number, as most programs write them
    if isinstance(scale, list | tuple):
        scale = tuple(map(float, scale)) if len(set(scale)) > 1 else float(scale[0])
    elif scale is not None:
        scale = float(scale)
    sizes = tuple(size) if isinstance(size, list | tuple) else size
    # the names of one mode for one, two and three axes, which other frameworks call "linear" for any number
    mode = {
        "linear": "linear",
        "bilinear": "linear",
        "trilinear": "linear",
        "cubic": "bicubic",
    }.get(mode, mode)
    settings: dict[str, object] = {"size": sizes, "scale_factor": scale, "mode": mode}
    # 1 and True are one setting, but a text is kept
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
    """Returns the entry for a padding. `around` has a pair for each axis of the image, the
    first axis first: how many pixels are added at the beginning of the axis, and how many at
    its end. `value` is the value of these pixels in the mode "constant"."""
    settings: dict[str, object] = {
        "padding": tuple((int(start), int(end)) for start, end in around),
        "mode": mode,
    }
    # in the other modes, the new pixels repeat or reflect those of the image, and `value` has no meaning
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
    """Returns the entry for a layer that flattens the axes from `first` to `last`; None if it
    flattens all axes but the first, because most models call a function for that."""
    return None if (first, last) == (1, -1) else plain(path, "flatten", first=first, last=last)


def plain(path: str, kind: str, **settings: object) -> Layer:
    """Returns the entry for a layer of this kind without parameters, with the settings as they are."""
    return Layer(path, kind, (), settings)


def other(path: str, layer: object, details: str = "") -> Layer:
    """Returns the entry for a layer of an unknown class, or for a fact about a layer that no
    setting expresses, such as a hook. `details` is a text about the layer or the fact. Two such
    entries of one framework with the same text and class count as equal."""
    cls = type(layer)
    text = f"{cls.__name__}({details})" if details else cls.__name__
    return Layer(
        path, OTHER, (), {"type": text, "class": f"{cls.__module__}.{cls.__qualname__}"}
    )


def is_rewritten(layer: object, package: str, *methods: str) -> bool:
    """Whether one of these methods of a layer is defined outside the framework's package, in which case it is unknown
    what the layer computes. Also true for a layer that has none of these methods."""
    # the class whose code is run: the first of the layer's class and its bases that defines one of the methods
    owner = next(
        (cls for cls in type(layer).__mro__ if any(name in vars(cls) for name in methods)),
        object,
    )
    return _root(owner) != package


def own_code(path: str, layer: object) -> Layer:
    """Returns the entry that follows a layer with parameters if the layer's class is from
    outside the framework and has its own code."""
    return other(f"{path}()", layer, "its own code")


def _ceil(mode: object, window: Mapping[str, Any]) -> object:
    """Returns the setting ceil_mode of a pool: True, False, or a text. PyTorch leaves out a
    last window that begins beyond the image. An adapter of a framework that keeps this window
    gives the mode `OUTSIDE_TOO`. The result is then a text if the pool can have such a window,
    given its kernel, stride and padding in `window`, and otherwise True."""
    if mode == OUTSIDE_TOO and isinstance(window["padding"], tuple):
        each = zip(window["kernel"], window["stride"], window["padding"], strict=True)
        # the last window can begin beyond the image only if the stride exceeds the kernel minus the padding
        if any(
            step > size - (max(pad) if isinstance(pad, tuple) else pad)
            for size, step, pad in each
        ):
            return f"True, {OUTSIDE_TOO}"
    return bool(mode)


def _window(
    axes: int, kernel: Any, stride: Any, padding: Any, image: Sequence[int | None] = ()
) -> dict[str, object]:
    """Returns kernel, stride and padding of a pool in PyTorch's terms, each a tuple with an item for each axis. The
    padding is "same" if its size is not known or differs between the two sides of an axis. A stride of None or []
    means the size of the kernel."""
    sizes = per_axis(kernel, axes)
    # in all frameworks, a pool's stride is its kernel unless it is given
    steps = sizes if stride is None or stride == [] else per_axis(stride, axes)
    around = padding.lower() if isinstance(padding, str) else sides(padding, axes)
    # as Keras calls no padding
    if around == "valid":
        around = (0,) * axes
    if around == "same":
        around = same_padding(sizes, steps, (1,) * axes, image)
    return {"kernel": tuple(sizes), "stride": tuple(steps), "padding": around}
