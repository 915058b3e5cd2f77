"""The settings of layers without parameters. PyTorch's settings describe the layers of every framework.

An adapter states in a `Table` how the settings of each class of layers are read, and lists the modules of a model. The
function `read` describes each layer, and unifies different spellings of a setting. The setting `ndim` is the number of
axes of a layer's input, if it is known. It makes an `axis` counted from the end comparable with an `axis` counted from
the front.

| kind | settings |
|---|---|
| activation | `function`; `slope`, `alpha`, `beta`, `scale`, `approximate`, `axis`, `ndim`, `min`, `max`, `threshold` |
| dropout | `p`, `mode`, `axes` |
| max_pool | `kernel`, `stride`, `padding`, `dilation`, `ceil_mode` |
| avg_pool | `kernel`, `stride`, `padding`, `ceil_mode`, `count_include_pad`, `divisor` |
| adaptive_avg_pool, adaptive_max_pool | `output_size` |
| upsample | `size`, `scale_factor`, `mode`, `align_corners` |
| pad | `padding` (before and after the image, for each of its axes), `mode`, `value` |
| pixel_shuffle, pixel_unshuffle | `factor` |
| channel_shuffle | `groups` |
| local_response_norm | `size`, `alpha`, `beta`, `k` |
| batch_norm, group_norm, instance_norm | the same as for a norm with parameters |
| layer_norm, rms_norm | `eps`, and `axes`: the number of normalized axes |
| rescaling | `scale`, `offset` |
| flatten, unless it flattens all axes but the first | `first`, `last` |
| unflatten | `axis`, `size` |
| other, a layer of an unknown class | `type` |
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
    padding_per_axis,
    parts_of_single_cell,
    per_axis,
    same_padding,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

OTHER: Final = "other"
"""The kind of an entry for a layer of an unknown class, or for a fact that no setting expresses."""
WIRING: Final = "wiring"
"""The kind of an entry that names the layers whose outputs a layer uses. Such entries are compared only between two
models of one framework, because in other frameworks the code of the model chooses the inputs of its layers."""
WHOLE: Final = "the whole model"
"""The name of the line (a sequence of layers, see `_Lines`) if all layers of a model form a single line."""
OUTSIDE_TOO: Final = "with windows that begin after the end of the image"
"""The ceil_mode of a pool that computes the last window even if it begins beyond the end of the image. PyTorch leaves
out such a window."""
UPSCALE: Final = "upscale_in_train"
"""The usual mode of a dropout: in training, the outputs are divided by 1 - p; in evaluation, they equal the inputs."""

_OF_EVERY_LAYER: Final = (
    "training", "deterministic", "use_running_average",  # the state of training
    "name", "seed", "trainable", "built", "autocast", "supports_masking", "supports_jit", "stateful", "losses",
    "activity_regularizer", "call_signature_parameters",  # these two lines are of Keras
)  # fmt: skip
"""Names of attributes that say nothing about what a layer computes."""
# PyTorch's names of activation functions, by the lowercase names that other frameworks use
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
"""PyTorch's default settings of each activation, by PyTorch's name of the activation. Activations without settings are
left out."""


Row = Callable[[str, Any], Layer | None]
"""A function that is called with the path of a layer and the layer, and returns the layer's description. It returns
None if there is nothing to report about the layer."""
Attribute = str | Callable[[Any], Any]
"""The name of an attribute of a layer, or a function that reads the attribute, such as the result of
`private.field(...)`."""


class Table(NamedTuple):
    """An adapter's description of its framework's modules. It says how the settings of the layers of each class are
    read, and which classes have a special role."""

    package: str
    """The framework's top-level package, such as "torch". A layer is passed to `describe` only if its class is from
    this package."""
    rows: Mapping[type, Row | None]
    """The functions that read layers, by the class of the layer. A layer of any other class is read as a layer of its
    nearest base class. None means that there is nothing to report about layers of the class."""
    methods: tuple[str, ...]
    """The names of the methods with which a layer computes. If a class from outside the framework defines one of these
    methods, its layers are not read, because its code may compute anything."""
    describe: Callable[[Any], str] = lambda layer: ""
    """Returns a string with the settings of one of the framework's own layers that has no row."""
    foreign: tuple[str, ...] = ()
    """The names of classes from outside the framework whose computation is known, so they are read in spite of their
    own code. A name has the form `package.module.Class`."""
    lines: tuple[type, ...] = ()
    """The classes of modules that call their children in sequence, unless a user has overridden their code."""
    blocks: tuple[type, ...] = ()
    """The classes of modules that need no entry for their own code. Everything that such a module computes follows from
    the settings of the layers with parameters inside it."""
    lists_inside: bool = False
    """Whether modules inside a layer with parameters are listed too, because these modules compute with the output of
    the layer."""
    follow: Callable[[Layer], Iterable[Layer]] = lambda layer: ()
    """Returns the operations, such as an activation, that a layer with parameters applies to its own output."""
    observers: tuple[str, ...] = ()
    """The names of packages whose hooks need no entry, because these hooks change no output or only compute a
    weight."""

    def read(self, path: str, layer: Any) -> Layer | None:
        """Returns the description of a layer without parameters, or None if there is nothing to report about the
        layer."""
        if self.is_rewritten(layer):
            return with_attributes(unknown_layer(path, layer), layer)
        # the nearest base class with a row: a subclass without its own code computes the same as its base class
        base = next((cls for cls in type(layer).__mro__ if cls in self.rows), None)
        if base is not None:
            row = self.rows[base]
            return None if row is None else row(path, layer)
        # the repr of a user's class may raise, or print addresses
        is_own = _root(type(layer)) == self.package
        details = self.describe(layer) if is_own else ""
        entry = unknown_layer(path, layer, details)
        return entry if details else with_attributes(entry, layer)

    def is_rewritten(self, layer: Any) -> bool:
        """Whether a layer's class is from outside the framework, is not in the table's attribute `foreign`, and
        has its own code for calls."""
        name = f"{type(layer).__module__}.{type(layer).__name__}"
        return name not in self.foreign and is_rewritten(layer, self.package, *self.methods)

    def is_line(self, module: Any) -> bool:
        """Whether a module only calls its children in sequence."""
        return isinstance(module, self.lines) and not self.is_rewritten(module)


class Module(NamedTuple):
    """A module of a model, either a layer or a group of layers, as listed by the adapter."""

    path: str
    """The dotted path from the model to the module; "" for the model itself."""
    itself: Any
    """The module, as the framework's object."""
    children: Sequence[Any]
    """The modules directly inside this module. A child with two names is listed twice."""
    has_parameters: bool
    """Whether the module has parameters that belong to none of its children."""
    hooks: Sequence[object] = ()
    """The functions that the framework calls with the inputs or outputs of this module."""
    tensors: Sequence[tuple[str, Any]] = ()
    """The buffers and tensor attributes of this module itself, as pairs of a name and a tensor."""


def read(
    modules: Sequence[Module], layers: Iterable[Layer], table: Table, saved: Iterable[Any] = ()
) -> Iterator[Layer]:
    """Yields the layers that `Operations.operations` returns for a model. `modules` are the model's modules, with the
    model itself first. `layers` are its layers with parameters, and `saved` are the tensors in its state."""
    by_path = {layer.path: layer for layer in layers}
    # before the layers are read, because a line depends on the whole tree of modules
    lines = _Lines(modules, by_path, table).names()
    for layer in _entries(modules, by_path, table, saved=set(map(id, saved))):
        # the path of an entry for a layer's own code or hooks is the layer's path and "()"; the entry belongs to the
        # layer's line
        path = layer.path.removesuffix("()")
        # an entry for a part of a layer, such as its activation, belongs to the line of that layer
        yield layer._replace(line=lines.get(path, lines.get(path.rpartition(".")[0], "")))


def _entries(
    modules: Iterable[Module], by_path: Mapping[str, Layer], table: Table, saved: Container[int]
) -> Iterator[Layer]:
    """Yields the same layers as `read`, but without the names of their lines (`Layer.line`). `by_path` contains the
    layers with parameters by path, and `saved` contains the `id`s of the tensors in the model's state."""
    blocks: set[str] = set()
    for module in modules:
        path, itself = module.path, module.itself
        # a hook may change the inputs or outputs of the module
        if any(_root(hook) not in table.observers for hook in module.hooks):
            yield unknown_layer(f"{path}()", itself, details="a hook")
        # the other tensors of a layer with parameters are ignored: they may be counters, or the states of dropouts
        if path in by_path:
            yield by_path[path]
            if table.is_rewritten(itself):
                yield entry_for_own_code(path, itself)
            yield from table.follow(by_path[path])
            continue
        yield from (_stateless(path, name) for name, x in module.tensors if id(x) not in saved)
        # the layers inside a block describe it completely
        if isinstance(itself, table.blocks):
            blocks.add(path)
            continue
        # the code of a group of layers is not read, nor the code of a model that has its own parameters
        is_group = module.children or (path == "" and module.has_parameters)
        is_described = path.rpartition(".")[0] in blocks or (
            not table.lists_inside and _is_inside(path, by_path)
        )
        # the description of a block, or of a layer with parameters, covers the layers inside it
        operation = None if is_group or is_described else table.read(path, itself)
        if operation is not None:
            yield operation


def _is_inside(path: str, layers: Container[str]) -> bool:
    """Whether the module at `path` is inside one of the modules whose paths are in `layers`. The path of the
    model, which contains every module, is ""."""
    names = path.split(".")
    return "" in layers or any(
        ".".join(names[:count]) in layers for count in range(1, len(names))
    )


def _stateless(path: str, name: str) -> Layer:
    """Returns the entry for a tensor that is not in the state of its layer, such as a buffer that is not persistent, or
    an attribute. `path` is the path of the layer, and `name` the name of the tensor in the layer."""
    # if the path is empty (the model itself), the name would begin with a dot
    return Layer(
        f"{path}.{name}".lstrip("."), OTHER, (), {"type": f"tensor {name} (in no state)"}
    )


def _root(thing: object) -> str:
    """Returns the top-level package in which a class or function is defined; "" for an object without `__module__`."""
    return str(getattr(thing, "__module__", "")).partition(".")[0]


class _Lines:
    """Finds the line to which each layer of a model belongs. A line consists of layers that are called in sequence,
    with nothing in between. A layer that is called in several places ends the line, because the list of layers contains
    this layer only once. A line has a name, such as "in features" or "after pool"."""

    def __init__(
        self, modules: Sequence[Module], by_path: Container[str], table: Table
    ) -> None:
        self._model, self._known, self._table = modules[0].itself, by_path, table
        self._modules = {id(module.itself): module for module in modules}
        # in how many places each module is called, by the `id` of the module
        self._uses: Counter[int] = Counter()
        # the name of each layer's line, by the path of the layer
        self._names: dict[str, str] = {}

    def names(self) -> dict[str, str]:
        """Returns a dict that maps the path of each layer in a line to the name of the line. May be called only
        once."""
        self._count(self._model)
        if not self._table.is_line(self._model):
            self._in_code(self._model)
            return self._names
        # the line that reaches the end of the model
        end = self._in_line(self._model, WHOLE)
        # a line is called WHOLE only if it reaches the end of the model; a shorter line is renamed to "begin"
        return {
            path: "begin" if line == WHOLE and end != WHOLE else line
            for path, line in self._names.items()
        }

    def _inside(self, module: Any) -> list[Module]:
        """Returns the modules directly inside `module`, which is the framework's own object."""
        return [self._modules[id(child)] for child in self._modules[id(module)].children]

    def _count(self, module: Any) -> None:
        """Counts the places in which `module` and all modules inside it are called."""
        self._uses[id(module)] += 1
        # every place is counted, even inside a module that is itself called in two places
        for child in self._inside(module):
            self._count(child.itself)

    def _in_line(self, module: Any, line: str) -> str:
        """Records the line of each layer in `module`, a module that calls its children in sequence. `line` is the name
        of the line to which the first child belongs. Returns the name of the line that continues after the last
        child."""
        for path, child, children, *_ in self._inside(module):
            # a module that is called in two places is listed once, so the list does not show the order of its calls.
            # The lines after the two places need different names, so each name includes the name of the line before
            if self._uses[id(child)] > 1:
                line = f"after {path} of {line}"
            elif self._table.is_line(child):
                line = self._in_line(child, line)
            elif path in self._known or not children:
                self._names[path] = line
            # a group with its own code may call anything, so it is not known which layers are called next to the group
            else:
                line = f"after {path}"
                self._in_code(child)
        return line

    def _in_code(self, module: Any) -> None:
        """Records the lines of the layers inside `module`, a module with its own code for calls. A layer belongs to a
        line only if it is inside a child that calls its own children in sequence (`Table.is_line`)."""
        for path, child, *_ in self._inside(module):
            # no line begins in a module that is called in several places, or in a layer with parameters
            if self._uses[id(child)] > 1 or path in self._known:
                continue
            if self._table.is_line(child):
                self._in_line(child, f"in {path}")
            else:
                self._in_code(child)


def function_name(name: str) -> str:
    """Returns PyTorch's name of an activation function, such as "silu" for "swish". `name` is the name in any
    framework. An unknown name is returned in lowercase."""
    return _SAME_FUNCTIONS.get(name.lower(), name.lower())


def activation(path: str, name: str, **settings: object) -> Layer:
    """Returns the entry for an activation function. `name` is its name in any framework. A setting that is not passed
    has PyTorch's default value."""
    function = function_name(name)
    # these settings remain integers
    integers = ("axis", "ndim")
    stated = {
        # 1 and 1.0 are the same setting
        key: float(value) if isinstance(value, int) and key not in integers else value
        for key, value in settings.items()
    }
    # Keras has no class for ReLU6: the adapter passes its ReLU(max_value=6) as a hardtanh from 0 to 6
    if function == "hardtanh" and (stated.get("min"), stated.get("max")) == (0.0, 6.0):
        return Layer(path, "activation", (), {"function": "relu6"})
    return Layer(
        path, "activation", (), {"function": function, **_DEFAULTS.get(function, {}), **stated}
    )


def activations(rows: Mapping[type, Mapping[str, Attribute]]) -> dict[type, Row | None]:
    """Returns rows of a `Table` for classes of activation layers that are named after their functions. `rows` maps each
    class to a dict, which maps the name of each setting to the attribute with its value."""
    return {cls: partial(_activation_of, cls, attributes) for cls, attributes in rows.items()}


def _activation_of(
    cls: type, attributes: Mapping[str, Attribute], path: str, layer: Any
) -> Layer:
    """Returns the entry for an activation layer of the class `cls` or of a subclass. For a subclass that may compute
    something else, returns the entry for an unknown layer."""
    # a layer of a subclass is listed as unknown if the class has no settings that could show a difference, and the
    # subclass is the framework's own. A user's subclass with its own code is handled earlier
    if not attributes and type(layer) is not cls and _root(type(layer)) == _root(cls):
        # for example PyTorch's quantized ReLU6, which is a subclass of ReLU
        return unknown_layer(path, layer)
    return activation(path, cls.__name__, **_settings(layer, attributes))


def row(kind: str, shared: Settings = MappingProxyType({}), /, **attributes: Attribute) -> Row:
    """Returns a row of a `Table` for layers of the given kind. Their settings are the settings in `shared`, and one
    setting for each keyword argument. The value of the keyword argument is the attribute from which the setting is
    read."""
    return lambda path, layer: Layer(path, kind, (), {**shared, **_settings(layer, attributes)})


def cell(kind: str, **attributes: Attribute) -> Row:
    """Returns a row of a `Table` for recurrent layers that are single cells. Their parameters must have the names that
    PyTorch and Paddle use. Each keyword argument names a setting; its value is the attribute from which the setting is
    read."""
    return lambda path, layer: Layer(
        path, kind, parts_of_single_cell(kind), {**ONE_CELL, **_settings(layer, attributes)}
    )


def read_each(
    rows: Mapping[type | str, Row], modules: Iterable[tuple[str, Any]]
) -> list[tuple[Any, Layer]]:
    """Returns the modules that `rows` describes, as pairs of a module and its description. The row may be for the
    module's class or for a base class. A module for which the row returns None is left out. `modules` are pairs of a
    path and a module. A key of `rows` is a class or, if the package should not be imported, the name of a class:
    `package.module.Class`."""
    described = []
    for path, module in modules:
        # the nearest class first, so that a row for a subclass takes precedence
        classes = type(module).__mro__
        keys = (key for cls in classes for key in (cls, f"{cls.__module__}.{cls.__name__}"))
        row = next((rows[key] for key in keys if key in rows), None)
        layer = None if row is None else row(path, module)
        if layer is not None:
            described.append((module, layer))
    return described


def for_1d_to_3d(
    module: object, name: str, row: Callable[[int, str, Any], Layer | None]
) -> dict[type, Row | None]:
    """Returns rows of a `Table` for a family of layers that has one class for each number of axes: one, two and three.
    `name` is the pattern of the names of these classes, such as "MaxPool{}d". A class that the Python module `module`
    lacks is left out. `row` is called with the number of axes, the path and the layer."""
    names = {axes: name.format(axes) for axes in (1, 2, 3)}
    return {
        getattr(module, class_name): partial(row, axes)
        for axes, class_name in names.items()
        if hasattr(module, class_name)
    }


def _settings(layer: Any, attributes: Mapping[str, Attribute]) -> dict[str, object]:
    """Returns the settings of a layer, by name. `attributes` maps the name of each setting to the attribute with its
    value."""
    return {
        setting: getattr(layer, attribute) if isinstance(attribute, str) else attribute(layer)
        for setting, attribute in attributes.items()
    }


def dropout(path: str, p: float, mode: str = UPSCALE, axes: object = "each number") -> Layer:
    """Returns the entry for a dropout. `p` is the probability that a number becomes 0, and `mode` is `UPSCALE` or the
    framework's name of another mode. `axes` says which numbers are dropped together: "each number" (every number is
    dropped independently), "whole channels", or the axes of the mask."""
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
    """Returns the entry for a max pool. `axes` is the number of axes of the window. `kernel`, `stride` and `dilation`
    are each a single number for all axes, or a sequence with one number per axis. `padding` may also be a sequence with
    one pair per axis, or a string. `image` contains the sizes of the pool's input along these axes if they are known,
    because padding="same" depends on these sizes. `ceil_mode` is a truth value or `OUTSIDE_TOO`."""
    settings = _window(axes, kernel, stride, padding, image)
    # computed from the window, which determines whether ceil_mode changes the output
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
    """Returns the entry for an average pool, with arguments as in `max_pool`. `count_include_pad` is ignored if the
    pool has no padding. `divisor` is the number by which the sum of a window is divided; None means the number of
    values in the window."""
    settings = _window(axes, kernel, stride, padding, image)
    settings |= {"ceil_mode": _ceil(ceil_mode, settings), "divisor": divisor}
    # whether padding is counted matters only if there is any
    is_padded = settings["padding"] != (0,) * axes
    return Layer(
        path,
        "avg_pool",
        (),
        settings | ({"count_include_pad": bool(count_include_pad)} if is_padded else {}),
    )


def adaptive_pool(kind: str, size: Attribute, axes: int, path: str, layer: Any) -> Layer:
    """Returns the entry for `layer`, a pool of the kind "avg" or "max" whose output has a given size. `size` is the
    name of the attribute with the size, or a function that reads the size. The size is a single number for all axes, or
    one number per axis. `axes` is the number of axes, and `path` is the path of the layer."""
    settings = _settings(layer, {"output_size": size})
    settings["output_size"] = per_axis(settings["output_size"], axes)
    return Layer(path, f"adaptive_{kind}_pool", (), settings)


def global_pool(kind: str, axes: int, path: str, layer: Any) -> Layer:
    """Returns the entry for a pool of the kind "avg" or "max" over the whole image. The pool is described as an
    adaptive pool with the output size 1. Nothing is read from `layer`."""
    return adaptive_pool(kind, lambda _: 1, axes, path, layer)


def upsample(
    path: str,
    size: Any,
    scale_factor: Any,
    mode: str,
    align_corners: object = False,
) -> Layer:
    """Returns the entry for an upsampling layer. `size` is the size of the output, and `scale_factor` is the factor by
    which the image grows. One of them is None; the other is a single number or one number per axis. `mode` is the mode
    in the spelling of any framework. `align_corners` is a truth value, or a string that describes another way of
    aligning pixels."""
    # equal factors for all axes become a single number, the way in which most programs write them
    scale = scale_factor
    if isinstance(scale, list | tuple):
        scale = tuple(map(float, scale)) if len(set(scale)) > 1 else float(scale[0])
    elif scale is not None:
        scale = float(scale)
    sizes = tuple(size) if isinstance(size, list | tuple) else size
    # PyTorch has different names of the linear mode for two and three axes; other frameworks always call it "linear"
    mode = {"bilinear": "linear", "trilinear": "linear", "cubic": "bicubic"}.get(mode, mode)
    settings: dict[str, object] = {"size": sizes, "scale_factor": scale, "mode": mode}
    # 1 and True are the same setting, but a string is kept; the mode "nearest" has no corners to align
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
    """Returns the entry for a padding layer. `around` contains one pair for each axis of the image, beginning with the
    first axis. A pair contains the numbers of pixels added before and after the image. `value` is the value of these
    pixels in the mode "constant"."""
    settings: dict[str, object] = {
        "padding": tuple((int(start), int(end)) for start, end in around),
        "mode": mode,
    }
    # in the other modes, the new pixels repeat or reflect pixels of the image, and `value` has no meaning
    fill = value if mode == "constant" else None
    return Layer(
        path,
        "pad",
        (),
        settings | {"value": float(fill) if isinstance(fill, int | float) else fill},
    )


def padding_pairs(padding: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the padding as one pair per axis, for the two sides of the axis, beginning with the first axis. `padding`
    is a flat list in the form of PyTorch and Paddle, which begins with the last axis."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return pairs[::-1]


def flatten(path: str, first: int, last: int) -> Layer | None:
    """Returns the entry for a layer that flattens the axes from `first` to `last`. Returns None if the layer flattens
    all axes but the first, because most models flatten these axes with a function, not with a layer."""
    return None if (first, last) == (1, -1) else plain(path, "flatten", first=first, last=last)


def plain(path: str, kind: str, **settings: object) -> Layer:
    """Returns the entry for a layer of the given kind that has no parameters. The settings are stored unchanged."""
    return Layer(path, kind, (), settings)


def unknown_layer(path: str, layer: object, details: str = "") -> Layer:
    """Returns the entry for a layer of an unknown class, or for a fact about a layer that no setting expresses, such as
    a hook. `details` is a string that describes the layer or the fact. Two entries for the same framework are treated
    as equal if their `details` and their classes are equal."""
    cls = type(layer)
    text = f"{cls.__name__}({details})" if details else cls.__name__
    return Layer(
        path, OTHER, (), {"type": text, "class": f"{cls.__module__}.{cls.__qualname__}"}
    )


def with_attributes(entry: Layer, layer: object) -> Layer:
    """Returns the entry for a layer that nothing else describes with one more setting, "attributes". This is a string
    with the plain values in the layer's public attributes, as "name=value, ...". They may be all that distinguishes two
    layers of one class, such as `delta` of PyTorch's HuberLoss. The state of training is left out, because it is
    compared for the whole model."""
    values = vars(layer) if hasattr(layer, "__dict__") else {}
    text = ", ".join(
        f"{name}={value!r}"
        for name, value in sorted(values.items())
        if not name.startswith("_") and name not in _OF_EVERY_LAYER and _is_plain(value)
    )
    return entry._replace(settings={**entry.settings, "attributes": text})


def _is_plain(value: object) -> bool:
    """Whether a value is None, a number or a string, or a tuple or list of such values."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str)


def is_rewritten(layer: object, package: str, *methods: str) -> bool:
    """Whether a layer runs code from outside the framework, so that its computation is unknown. To decide,
    looks up the first class in the method resolution order that defines one of `methods`. Returns True if this class is
    not from `package`, the framework's package. Also returns True if the layer has none of these methods."""
    # the class whose code runs: the first class, among the layer's class and its bases, that defines one of the methods
    owner = next(
        (cls for cls in type(layer).__mro__ if any(name in vars(cls) for name in methods)),
        object,
    )
    return _root(owner) != package


def entry_for_own_code(path: str, layer: object) -> Layer:
    """Returns the entry for a layer's own code. This entry follows a layer with parameters if the layer's class is from
    outside the framework and has its own code."""
    return unknown_layer(f"{path}()", layer, details="its own code")


def _ceil(mode: object, window: Mapping[str, Any]) -> object:
    """Returns the setting ceil_mode of a pool: True, False, or a string. PyTorch leaves out a last window that begins
    beyond the end of the image. The adapter of a framework that computes this window passes `OUTSIDE_TOO` as `mode`.
    Then the result is a string if the pool can have such a window, and True otherwise. `window` contains the pool's
    kernel, stride and padding, which determine whether the pool can have such a window."""
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
    """Returns the kernel, stride and padding of a pool in PyTorch's terms, each as a tuple with one item for each axis.
    Instead of a tuple, the padding is "same" if its size is not known, or if the two sides of an axis have different
    paddings. A stride of None or [] means that the stride equals the kernel size."""
    sizes = per_axis(kernel, axes)
    # in every framework, the default stride of a pool is its kernel size
    steps = sizes if stride is None or stride == [] else per_axis(stride, axes)
    around = padding.lower() if isinstance(padding, str) else padding_per_axis(padding, axes)
    # "valid" is Keras's name for no padding
    if around == "valid":
        around = (0,) * axes
    # only PyTorch's max pool has a dilation, and it has no padding "same", so the dilation is 1 here
    if around == "same":
        around = same_padding(sizes, steps, (1,) * axes, image)
    return {"kernel": tuple(sizes), "stride": tuple(steps), "padding": around}
