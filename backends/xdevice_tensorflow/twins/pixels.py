"""Finds the layers of a Keras model whose features are in the order rows, columns, channels. Here, this is called
Keras's order. In other frameworks, the order is channels, rows, columns.

A Flatten, or a Reshape that flattens an image, produces features in Keras's order, and a Reshape into an image consumes
such features. All these layers are called reshapes here. The outputs of a layer before a Reshape into an image are in
Keras's order, and so are the inputs of a layer after a Flatten. Layers in between that keep the order of the features,
such as a BatchNormalization or a PReLU, are affected in the same way.

How the layers next to a reshape are found:
- In a functional model, the graph is followed from layer to layer, including the layers of inner models.
- A subclassed model calls its layers like functions, so their order is not known. There, every layer with a matching
  number of features is treated as if it were next to the reshape.
- `Flatten(data_format="channels_first")` moves the channels to the end before it flattens.

In a functional model, the order of the pixels is certain under two conditions. The result of the reshape must have only
one axis of features. No layer that moves axes may be between the last convolutions and the reshape, or between the
reshape and the layer in question."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from keras import layers as kl

from xdevice.twins.contract import operations
from xdevice_tensorflow.parts import layers_in, nodes_of
from xdevice_tensorflow.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Shape = tuple[Any, ...]

history_of = private.field("keras.src.ops.node.Node._keras_history")
_RESHAPES: Final = ("Flatten", "Reshape", "Ravel")
"""The names of the classes of layers that reshape, and of the classes that represent reshaping functions of
`keras.ops`. Names are used because Keras's classes for functions are private."""
CONVS: Final = (
    kl.Conv1D, kl.Conv2D, kl.Conv3D, kl.Conv1DTranspose, kl.Conv2DTranspose, kl.Conv3DTranspose,
    kl.DepthwiseConv1D, kl.DepthwiseConv2D, kl.SeparableConv1D, kl.SeparableConv2D,
)  # fmt: skip
_CONVS_OF_SEQUENCES: Final = (
    kl.Conv1D, kl.Conv1DTranspose, kl.DepthwiseConv1D, kl.SeparableConv1D,
)  # fmt: skip
MAKERS: Final = (
    *CONVS,
    kl.Dense,
    kl.EinsumDense,
    kl.Embedding,
    kl.RNN,
    kl.Bidirectional,
    kl.MultiHeadAttention,
)
"""Layers that compute new features, whose order does not depend on the order of the inputs."""
_KEEPERS: Final = (kl.BatchNormalization, kl.LayerNormalization, kl.PReLU)
"""Layers that keep the features of their input, and have a parameter for each feature."""
RMS_NORMS: Final = tuple(filter(None, [getattr(kl, "RMSNormalization", None)]))
"""Keras's class of RMS norms. The tuple is empty for the first versions of Keras 3, which do not have this class."""
_FEATUREWISE: Final = (*_KEEPERS, *RMS_NORMS, kl.GroupNormalization)
"""Layers with a parameter for each feature of their input. GroupNormalization and RMS norms are no keepers, because the
order of the pixels is not certain behind them."""
_STILL: Final = (
    *_KEEPERS, kl.InputLayer, kl.Dropout, kl.Activation, kl.ReLU, kl.LeakyReLU, kl.ELU, kl.Identity,
)  # fmt: skip
"""Layers that move neither axes nor features."""
_OF_IMAGES: Final = (
    *_STILL, kl.GroupNormalization, kl.MaxPooling1D, kl.MaxPooling2D, kl.MaxPooling3D, kl.AveragePooling1D,
    kl.AveragePooling2D, kl.AveragePooling3D, kl.SpatialDropout1D, kl.SpatialDropout2D, kl.SpatialDropout3D,
    kl.ZeroPadding1D, kl.ZeroPadding2D, kl.ZeroPadding3D, kl.Add, kl.Concatenate,
)  # fmt: skip
"""Layers that return an image if their input is an image, with the axes in the same order."""


_FUNCTIONS: Final = (
    "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "Silu", "Sigmoid", "HardSigmoid", "HardSilu",
    "HardTanh", "LogSigmoid", "Softplus", "Softsign", "Tanh", "TanhShrink", "HardShrink", "SoftShrink", "Add",
    "Subtract", "Multiply", "Divide", "TrueDivide", "Negative", "Abs", "Exp", "Sqrt", "Square", "Clip",
    "Maximum", "Minimum",
)  # fmt: skip
"""The names of the classes that represent elementwise functions of `keras.ops`, which treat each number separately."""


class Order(NamedTuple):
    """The reason why the outputs or the inputs of a layer are in Keras's order, and the image that contains the
    features."""

    why: str
    """A string that names the reshape. If `image` is empty, it may also say why the image is not certain."""
    outputs: bool
    """True if the outputs are in Keras's order; False if the inputs are in this order."""
    image: Shape = ()
    """The numbers of rows, columns and channels of the image, or () if the order of the pixels is not certain."""


class _Reshape(NamedTuple):
    """A Flatten or Reshape that turns the axes of an image into one axis of features, or one axis of features into an
    image."""

    op: Any
    """The layer, or the object that represents a function."""
    shape: Shape
    """The lengths of the image's axes, or () if they are not known."""
    size: int | None
    """The number of features on the flat side, or None if it is not known."""
    makes_image: bool
    """True if the image is the output of `op`; False if the image is the input of `op`."""


def all_layers(model: Any) -> Iterator[Any]:
    """Yields every layer of a model once, in the order of definition. The model itself comes first."""
    # Keras's own `_flatten_layers` reverses the layers inside a layer
    visited: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in visited:
            visited[id(layer)] = layer
            waiting += reversed(layers_in(layer))
    yield from visited.values()


def orders(model: Any) -> dict[int, Order]:
    """Finds the layers with features in Keras's order. Returns a dict that maps the `id` of each such layer to its
    `Order`. The `image` of an `Order` is () for the order of outputs, for all layers of subclassed models, and if
    `_doubt_before` or `_doubt_after` returns a reason."""
    layers = list(all_layers(model))
    graph = graph_of(layers)
    reshapes = [
        reshape
        for op in graph.ops
        for node in nodes_of(op)
        if (reshape := _reshape_of(op, node, graph))
    ]
    reshapes.sort(key=_concerns_inputs)
    by_id: dict[int, Order] = {}
    for reshape in reshapes:
        # a path ends at a reshape in the other direction, which undoes this one
        stops = {id(other.op) for other in reshapes if other.makes_image != reshape.makes_image}
        for op in reached(
            reshape.op, graph.before if reshape.makes_image else graph.after, stops
        ):
            doubt = _doubt_before(reshape, graph) or _doubt_after(reshape, op, graph)
            order = _order(reshape)
            if doubt:
                order = order._replace(why=f"{order.why}; {doubt}")
            # only the first reshape is used. If there is one that concerns outputs, it comes
            # first
            by_id.setdefault(
                id(unwrapped(op)), order._replace(image=() if doubt else reshape.shape)
            )
    # the layers of subclassed models, which are in no graph (see the top of this file)
    followed = {id(unwrapped(op)) for op in graph.ops}
    has_conv = any(isinstance(layer, CONVS) for layer in layers)
    # a Flatten or Reshape outside the graph may be several reshapes, all of which are
    # considered
    outside = [
        reshape
        for layer in layers
        if id(layer) not in followed
        for reshape in _reshapes_outside_graph(layer, has_conv)
    ]
    for layer in layers:
        # a layer in the graph may also be next to a reshape outside it, and a layer outside the
        # graph may be next to any reshape
        candidates = outside if id(layer) in followed else reshapes + outside
        for reshape in sorted(candidates, key=_concerns_inputs):
            if _may_be_next(layer, reshape):
                by_id.setdefault(id(layer), _order(reshape, how="judging by its size, "))
    return by_id


def _concerns_inputs(reshape: _Reshape) -> bool:
    """Whether a reshape concerns the inputs of layers, and not their outputs. As a sort key, this function puts
    reshapes that concern outputs first. For a reshape that concerns outputs, all parts of a layer are refused; for any
    other reshape, often only some parts are refused."""
    return not reshape.makes_image


def _order(reshape: _Reshape, how: str = "") -> Order:
    """Returns the `Order` of a layer next to a reshape. Its `image` is left empty: the caller adds the image if the
    order of the pixels is certain. The attribute `why` of the result begins with `how`, which says how the layer was
    found."""
    name = f"{type(reshape.op).__name__}{f' of {reshape.shape}' if reshape.shape else ''} {reshape.op.name!r}"
    verb, side = ("goes into", "outputs") if reshape.makes_image else ("follows", "inputs")
    return Order(
        f"{how}it {verb} the {name}: Keras orders its {side} by rows, columns and channels, but other frameworks by "
        f"channels, rows and columns",
        outputs=reshape.makes_image,
    )


# functional models


class Graph(NamedTuple):
    """The layers and functions of functional models. Inner models are replaced with their contents."""

    ops: list[Any]
    """The layers and functions."""
    before: Callable[[Any], Iterable[Any]]
    """Returns the ops whose outputs an op uses."""
    after: Callable[[Any], Iterable[Any]]
    """Returns the ops that use the outputs of an op."""


def graph_of(layers: list[Any]) -> Graph:
    """Returns the graph of the functional models in `layers`. The graph consists of the layers and functions (ops) of
    these models, and is empty for subclassed models."""
    # maps the `id` of each Input to the models that begin with it: several models may begin
    # with the same Input
    models_by_input: dict[int, list[Any]] = {}
    for layer in filter(is_functional, layers):
        for tensor in layer.inputs:
            models_by_input.setdefault(id(history_of(tensor).operation), []).append(layer)

    def before(op: Any) -> list[Any]:
        """Returns the ops whose outputs an op uses."""
        # the Input of an inner model stands for the model: the ops before the Input are those before the model
        called = models_by_input.get(id(op), [op])
        nodes = chain.from_iterable(map(nodes_of, called))
        parents = chain.from_iterable(node.parent_nodes for node in nodes)
        return list(chain.from_iterable(_last_ops(parent.operation) for parent in parents))

    ops: dict[int, Any] = {}
    following: dict[int, list[Any]] = {}
    # functions are not in `layers`, so they are found by walking back from the layers
    waiting = [layer for layer in layers if nodes_of(layer) and not is_functional(layer)]
    while waiting:
        op = waiting.pop()
        if id(op) in ops:
            continue
        ops[id(op)] = op
        for parent in before(op):
            following.setdefault(id(parent), []).append(op)
            waiting.append(parent)
    return Graph(list(ops.values()), before, lambda op: following.get(id(op), []))


def is_functional(op: Any) -> bool:
    """Whether an op is a functional model, which may be inside another model."""
    return bool(getattr(op, "outputs", None)) and hasattr(op, "inputs")


def _last_ops(op: Any) -> Iterator[Any]:
    """If `op` is a model, yields the layers that compute the outputs of the model, even layers inside inner models.
    Otherwise, yields `op` itself."""
    if not is_functional(op):
        yield op
        return
    for tensor in op.outputs:
        yield from _last_ops(history_of(tensor).operation)


def _reshape_of(op: Any, node: Any, graph: Graph) -> _Reshape | None:
    """Returns the `_Reshape` for a call of `op`. `node` is the node of this call in the graph. Returns None if the call
    does not reshape an image, or if the features are in the same order as in other frameworks."""
    # a call with several inputs or outputs is not a plain reshape
    if not is_reshape(op) or len(node.input_tensors) != 1 or len(node.output_tensors) != 1:
        return None
    # the shapes before and after the reshape, without the batch
    old, new = (
        _with_channels_last(op, tuple(node.input_tensors[0].shape[1:])),
        tuple(node.output_tensors[0].shape[1:]),
    )
    # there are no axes besides the batch; or the size of the last axis is not known; or it stays the same, so that the
    # channels are not joined with other axes
    if not old or not new or None in (old[-1], new[-1]) or old[-1] == new[-1]:
        return None
    # if the last axis becomes shorter, one axis of features is divided into the axes of an
    # image
    makes_image = new[-1] < old[-1]
    shape = _image_axes(new, old[-1]) if makes_image else _image_axes(old, new[-1])
    neighbours = reached(op, graph.after if makes_image else graph.before, stops=set())
    convs = [conv for conv in map(unwrapped, neighbours) if isinstance(conv, CONVS)]
    # if the channels of an image are first, its features are in the same order as in other
    # frameworks
    is_channels_first = (
        bool(convs) and all(map(has_channels_first, convs)) and not has_channels_first(op)
    )
    if is_channels_first or not _has_channels(shape, has_conv=bool(convs)):
        return None
    return _Reshape(
        op, shape, size=old[-1] if makes_image else new[-1], makes_image=makes_image
    )


def _doubt_before(reshape: _Reshape, graph: Graph) -> str:
    """Returns the reason why the order of the pixels is not certain before a reshape, or "" if it is certain. It can be
    certain only if the reshape turns an image that comes from convolutions into one axis. The ops before the reshape
    are followed back to the nearest convolutions."""
    # one message for three reasons: the reshape makes an image; the sizes of the image's axes are not known, or their
    # product is not the number of features; the reshape is called in several places, perhaps with images of different
    # sizes
    is_known = reshape.size is not None and reshape.size == _product(reshape.shape)
    if reshape.makes_image or not is_known or not _is_called_once(reshape.op):
        return "the shape of the reshape does not show which number belongs to which pixel"
    # an axis that is kept, such as that of a sequence, may be an axis of the image
    if len(nodes_of(reshape.op)[0].output_tensors[0].shape) != 2:
        return "the result of the reshape has more than one axis"
    waiting, convs = list(graph.before(reshape.op)), []
    while waiting:
        op = waiting.pop()
        if not (_is_one_of(op, (*CONVS, *_OF_IMAGES)) or _is_elementwise_function(op)):
            return f"{_class_and_name(op)}, which may move axes, comes before the reshape"
        # the walk ends at a convolution, because the order of its outputs does not depend on the ops before it
        if isinstance(op, CONVS):
            convs.append(op)
        # None stands for the model's input: there is no op before this op, so the image does not come from a
        # convolution
        else:
            waiting += graph.before(op) or [None]
    # `convs` is not empty, because every way back has ended at a convolution
    return (
        ""
        if {has_channels_first(conv) for conv in convs} == {has_channels_first(reshape.op)}
        else "the convolutions have a different order of axes"
    )


def _class_and_name(op: Any) -> str:
    """Returns the class and the name of an op, for a message. If `op` is None, it stands for
    the model's input."""
    return "the model's input" if op is None else f"{type(op).__name__} {op.name!r}"


def _is_elementwise_function(op: Any) -> bool:
    """Whether an op is a function of `keras.ops` that treats each number separately."""
    is_own = type(op).__module__.partition(".")[0] == "keras"
    return is_own and type(op).__name__ in _FUNCTIONS and not isinstance(op, kl.Layer)


def _is_called_once(op: Any) -> bool:
    """Whether an op is called in only one place. Returns False for a TimeDistributed, which calls a layer for each
    step."""
    return op is unwrapped(op) and len(nodes_of(op)) == 1


def _is_one_of(op: Any, classes: tuple[type, ...]) -> bool:
    """Whether an op is a layer of one of these classes, without a `call` method of the user."""
    return isinstance(op, classes) and not operations.is_rewritten(op, "keras", "call")


def _doubt_after(reshape: _Reshape, op: Any, graph: Graph) -> str:
    """Returns the reason why the input of an op after a reshape may differ from the result of the reshape, or may be in
    another order. Returns "" if there is no such reason. Each op between the reshape and this op must have one input,
    and must not move features."""
    while op is not reshape.op:
        before = list(graph.before(op))
        if len(before) != 1 or not (
            _is_one_of(op, (kl.Dense, *_STILL)) or _is_elementwise_function(op)
        ):
            return f"{_class_and_name(op)}, which may reorder numbers or have several inputs, follows the reshape"
        op = before[0]
    return ""


def size_of_image(layer: Any) -> tuple[int | None, ...]:
    """Returns the size of the images that are the input of a layer in a functional model, without batch and channels.
    An axis of unknown size is None in the result. Returns () if no size is known. That is the case in a subclassed
    model, if the layer is called with inputs of different sizes, or if settings of layers have changed since the model
    was built."""
    shapes = {tuple(node.input_tensors[0].shape) for node in nodes_of(layer)}
    if len(shapes) != 1 or not _is_as_built(layer):
        return ()
    (shape,) = shapes
    return shape[2:] if has_channels_first(layer) else shape[1:-1]


def _is_as_built(layer: Any) -> bool:
    """Whether the layers before `layer` still return the shapes that Keras recorded when the model was built. A user
    may have changed a setting, such as a stride, since then."""
    waiting, visited = [layer], {id(layer)}
    while waiting:
        nodes = nodes_of(waiting.pop())
        for op in [parent.operation for node in nodes for parent in node.parent_nodes]:
            if id(op) in visited:
                continue
            visited.add(id(op))
            waiting.append(op)
            # only models, and layers with a window, can change their shapes
            may_change = hasattr(op, "strides") or hasattr(op, "layers")
            if may_change and not _has_recorded_shapes(op):
                return False
    return True


def _has_recorded_shapes(op: Any) -> bool:
    """Whether `op` would still return, with its current settings, the shapes that Keras recorded when it was called."""
    # if the user has written `call`, it may compute other shapes
    if operations.is_rewritten(op, "keras", "call"):
        return False
    # a call with several inputs or outputs is not checked
    nodes = [
        node
        for node in nodes_of(op)
        if len(node.input_tensors) == len(node.output_tensors) == 1
    ]
    return all(
        tuple(op.compute_output_shape(node.input_tensors[0].shape))
        == tuple(node.output_tensors[0].shape)
        for node in nodes
    )


def is_reshape(op: Any) -> bool:
    """Whether an op is a Flatten, a Reshape or a similar function. It may be inside a TimeDistributed."""
    return type(unwrapped(op)).__name__ in _RESHAPES


def unwrapped(op: Any) -> Any:
    """Returns the layer inside a TimeDistributed. Returns any other op itself."""
    return op.layer if isinstance(op, kl.TimeDistributed) else op


def has_channels_first(op: Any) -> bool:
    """Whether an op has the channels of its images first."""
    return getattr(unwrapped(op), "data_format", None) == "channels_first"


def _with_channels_last(op: Any, shape: Shape) -> Shape:
    """Returns a shape (without batch) with its axes in the order in which the op flattens them. With
    `data_format="channels_first"`, the op first moves the channels to the end."""
    return (*shape[1:], shape[0]) if len(shape) > 1 and has_channels_first(op) else shape


def _image_axes(shape: Shape, features: int) -> Shape:
    """Returns the last axes of a shape with sizes whose product is `features`. Returns all axes if no number of last
    axes has this product."""
    for start in reversed(range(len(shape))):
        if _product(shape[start:]) == features:
            return shape[start:]
    return shape


def reached(op: Any, adjacent: Callable[[Any], Iterable[Any]], stops: set[int]) -> list[Any]:
    """Returns the ops that can be reached from `op` in one direction. `adjacent` returns the ops next to an op in this
    direction; it is `graph.after` or `graph.before`. Each path ends with the first layer that computes new features, or
    before an op whose `id` is in `stops`."""
    visited: dict[int, Any] = {}
    waiting = list(adjacent(op))
    while waiting:
        neighbour = waiting.pop()
        if id(neighbour) in visited or id(neighbour) in stops:
            continue
        visited[id(neighbour)] = neighbour
        # the features beyond a layer that computes new features have nothing to do with the
        # reshape
        if not isinstance(unwrapped(neighbour), MAKERS):
            waiting += adjacent(neighbour)
    return list(visited.values())


def _has_channels(shape: Shape, has_conv: bool) -> bool:
    """Whether a shape (without batch) is the shape of an image with several pixels and several channels. A shape with
    two axes may also be the shape of a sequence; it is taken to be an image if the model has convolutions."""
    # if there is only one pixel or one channel, both orders are the same
    if len(shape) == 1 or (shape and (shape[-1] == 1 or all(size == 1 for size in shape[:-1]))):
        return False
    return len(shape) > 2 or has_conv


# subclassed models


def _reshapes_outside_graph(layer: Any, has_conv: bool) -> Iterator[_Reshape]:
    """Yields each `_Reshape` that may describe a Flatten or Reshape in a subclassed model. There may be several,
    because the layers before and after the Flatten or Reshape are not known. Yields nothing for any other layer."""
    if not is_reshape(layer):
        return
    built = layer.get_build_config() or {}
    image = _with_channels_last(layer, tuple(built.get("input_shape") or ())[1:])
    # () for a Flatten
    target = tuple(getattr(layer, "target_shape", ()))
    # a Flatten, or a Reshape into one axis, of an image
    if len(target) < 2 and _has_channels(image, has_conv):
        yield _Reshape(layer, image, _product(image), makes_image=False)
    # a sequence of steps by features that may consist of the rows of an image, which is not known
    if len(target) == 2 and has_conv:
        yield _Reshape(layer, shape=(), size=_product(target[-1:]), makes_image=False)
    # a Reshape into an image
    if len(target) > 1 and _has_channels(target, has_conv):
        yield _Reshape(layer, target, _product(target), makes_image=True)


def _product(shape: Shape) -> int | None:
    """Returns the product of the sizes in a shape, or None if the shape is empty or a size is not known."""
    is_complete = shape and all(size is not None and size > 0 for size in shape)
    return math.prod(shape) if is_complete else None


def _may_be_next(layer: Any, reshape: _Reshape) -> bool:
    """Whether a layer may be next to a reshape, according to its number of features. A layer before the reshape has as
    many outputs as the reshape has features. A layer after it has at least as many inputs, because other features may
    have been concatenated. Returns False if `_count_features` cannot count the features of the layer. Otherwise,
    returns True if the size of the reshape is not known."""
    # the result of a Flatten has no axis of steps or pixels, which every convolution needs; after a Reshape into an
    # image, the axes are in order again
    if isinstance(layer, CONVS) and (
        reshape.shape or not isinstance(layer, _CONVS_OF_SEQUENCES)
    ):
        return False
    count = _count_features(layer, reshape.makes_image)
    # if the size of the reshape is not known, every layer with features may be next to it
    if count is None or reshape.size is None:
        return count is not None
    return count == reshape.size if reshape.makes_image else count >= reshape.size


def _count_features(layer: Any, of_outputs: bool) -> int | None:
    """Returns the number of features in the outputs of a layer if `of_outputs`, else in its inputs. Returns None if the
    layer has no parameters, or if layers of its kind are never converted. Also returns None for the inputs of an
    Embedding, which are indices, and for a norm of images."""
    if not layer.weights:
        return None
    # the first weight is the kernel, (inputs, outputs)
    if isinstance(layer, kl.Dense | kl.LSTM | kl.GRU | kl.SimpleRNN):
        return int(layer.units if of_outputs else layer.weights[0].shape[0])
    if isinstance(layer, kl.Bidirectional):
        in_one_direction = _count_features(layer.forward_layer, of_outputs)
        # the outputs of both directions are concatenated, but both directions have the same
        # inputs
        return 2 * in_one_direction if of_outputs and in_one_direction else in_one_direction
    if isinstance(layer, CONVS):
        (channels,) = layer.input_spec.axes.values()
        return int(layer.filters if of_outputs else channels)
    if isinstance(layer, kl.EinsumDense):
        return _count_features_of_einsum(layer, of_outputs)
    if isinstance(layer, kl.MultiHeadAttention):
        return _count_features_of_attention(layer, of_outputs)
    if isinstance(layer, kl.Embedding):
        return int(layer.output_dim) if of_outputs else None
    # a norm of images has a parameter for each channel, and not for each feature. An input with at most three axes
    # (batch, steps, features) is not an image; neither is an input whose number of axes the layer does not state
    is_flat = (
        isinstance(layer, _FEATUREWISE) and (getattr(layer.input_spec, "ndim", 2) or 2) <= 3
    )
    return int(layer.weights[0].shape[-1]) if is_flat else None


def _count_features_of_attention(layer: Any, of_outputs: bool) -> int:
    """Returns the number of features in the outputs of a MultiHeadAttention if `of_outputs`, else in its inputs."""
    if of_outputs:
        return int(layer.output_dense.kernel.shape[-1])
    # the queries, keys and values may have different numbers of features
    inputs = (layer.query_dense, layer.key_dense, layer.value_dense)
    return max(int(dense.kernel.shape[0]) for dense in inputs)


def _count_features_of_einsum(layer: Any, of_outputs: bool) -> int:
    """Returns the number of features in the outputs of an EinsumDense if `of_outputs`, else in its inputs."""
    operands, _, result = layer.equation.partition("->")
    sizes = dict(zip(operands.partition(",")[2], layer.kernel.shape, strict=True))
    # in "abc,cd->abd", c is summed, and d is an axis of the outputs
    return math.prod(size for axis, size in sizes.items() if (axis in result) is of_outputs)
