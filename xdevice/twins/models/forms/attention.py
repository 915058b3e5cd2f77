"""Joins the linear layers of an attention into one layer if the attentions of the other model have a different form. A
model is a `Twin` here: a list of layers, and the variables of these layers.

An attention may have one of these forms:

- one layer;
- four linear layers, as in the package transformers;
- three linear layers: one for query, one for key and value together, and one for the output;
- two linear layers: one for query, key and value together, and one for the output. In timm, the biases of the first
  layer may be separate tensors.
"""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Final

from xdevice.twins.contract import layouts
from xdevice.twins.contract.layouts import Layer, Part
from xdevice.twins.models.reading import last_name, parent_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from xdevice.twins.models.reading import Twin

    Group = Sequence[Layer]
    """The layers of one attention: either the attention itself, or linear layers, the last of which computes the
    output."""

_WORDS: Final = {
    "q": ("q", "query", "queries", "wq"),
    "k": ("k", "key", "keys", "wk"),
    "v": ("v", "value", "values", "wv"),
    "kv": ("kv", "wkv"),
    "out": ("o", "out", "output", "wo", "proj"),
}
"""The words in the name of a linear layer that reveal its role. The first role that fits is used, so q_proj is a query
and not an output."""
# words in the name of a linear layer that computes query, key and value together
_FUSED_WORDS: Final = frozenset({"qkv", "attn", "wqkv", "pack", "kqv"})
_SEPARATE: Final = ("q", "k", "v")
_HALF_FUSED: Final = ("q", "kv")
_FUSED: Final = ("qkv",)
_ROLES: Final = {len(roles): roles for roles in (_SEPARATE, _HALF_FUSED, _FUSED)}
"""The roles of the linear layers before the output layer, by the number of these layers."""


def with_same_attentions(source: Twin, target: Twin) -> tuple[Twin, Twin]:
    """Returns both models with linear layers joined into attentions, if the models have the same number of attentions.
    An attention that has the same form in both models is left unchanged."""
    # the fused form (query, key and value in one layer, followed by the output layer) is tried last, because any two
    # consecutive linear layers look like it
    for with_fused in (False, True):
        ours, theirs = (_attentions(twin, with_fused) for twin in (source, target))
        if ours and len(ours) == len(theirs):
            return _joined(source, ours, target, theirs)
    return source, target


def _joined(
    source: Twin, ours: list[Group], target: Twin, theirs: list[Group]
) -> tuple[Twin, Twin]:
    """Joins the linear layers of each attention whose form differs from that of its counterpart. Returns the changed
    models. `ours` contains the attentions of the source and `theirs` the attentions of the target, in order of
    definition. Both models have the same number of attentions."""
    source_joins: list[tuple[Group, Layer]] = []
    target_joins: list[tuple[Group, Layer]] = []
    for one, other in zip(ours, theirs, strict=True):
        # attentions of equal forms keep their layers, which are paired one by one later
        if _form(source, one) == _form(target, other):
            continue
        # the numbers of rows of query, key and value, which only one of the two models may reveal; [] if neither does
        rows = _rows(source, one) or _rows(target, other)
        for twin, group, joins in ((source, one, source_joins), (target, other, target_joins)):
            # the first of two layers does not have the rows of query, key and value, or their numbers are unknown.
            # These two layers may therefore not be an attention, nor may the other groups
            if len(group) == 2 and sum(rows) != _height(twin, group[0]):
                return source, target
            if len(group) > 1:
                joins.append((group, _attention(twin, group, rows)))
    return _with_attentions(source, source_joins), _with_attentions(target, target_joins)


def _with_attentions(twin: Twin, joins: Iterable[tuple[Group, Layer]]) -> Twin:
    """Returns the twin with each group of layers replaced by its attention. Tensors that become biases of an attention
    are no longer listed as single tensors."""
    twin = twin.joined(joins)
    owned = {part.name for layer in twin.layers for part in layer.parts}
    return twin._replace(
        singles=[layer for layer in twin.singles if layer.parts[0].name not in owned]
    )


def _form(twin: Twin, group: Group) -> object:
    """Returns a value that describes the form of an attention. Two attentions with equal values can be paired layer by
    layer. The value consists of the order in which the model defines the layers, and the roles of the biases that are
    separate tensors."""
    places = _places(twin)
    # key before query is another form, although the names are the same
    in_order = sorted(range(len(group)), key=lambda number: places[id(group[number])])
    return in_order, list(_lone_biases(twin, group))


def _places(twin: Twin) -> dict[int, int]:
    """Returns a dict from the `id` of each layer to its index in the model's list of layers."""
    return {id(layer): place for place, layer in enumerate(twin.layers)}


# which layers are an attention


def _attentions(twin: Twin, with_fused: bool) -> list[Group]:
    """Returns the attentions of a model, in order of definition. Each attention is one layer, or a group of linear
    layers with names such as query, key and value. With `with_fused`, an attention may also be two linear layers: one
    for query, key and value, and one for the output."""
    groups: list[Group] = [[layer] for layer in twin.layers if layer.kind == layouts.ATTENTION]
    linear = [layer for layer in twin.layers if layer.kind == "linear"]
    groups += _by_names(linear)
    groups += _by_shapes(twin, linear) if with_fused else ()
    places = _places(twin)
    return sorted(groups, key=lambda group: min(places[id(layer)] for layer in group))


def _by_names(linear: list[Layer]) -> Iterator[Group]:
    """Yields groups of linear layers that are recognized by their names. A group starts with layers of one parent
    module that have names for query, key and value, or for query and a joint key and value. The last layer of a group
    is the output layer: the layer in the parent module that has a name for output, or else the next linear layer of the
    block. Groups without an output layer are left out."""
    for layer in linear:
        # the search for each attention starts at its query
        if _role(layer) != "q":
            continue
        parent = parent_of(layer.path)
        by_role: dict[str, list[Layer]] = {}
        for other in linear:
            if parent_of(other.path) == parent:
                by_role.setdefault(_role(other), []).append(other)
        # if one module has two queries, as for two attentions, it is unclear which belongs to which key
        unique = {role: layers[0] for role, layers in by_role.items() if len(layers) == 1}
        roles = next(
            (roles for roles in (_SEPARATE, _HALF_FUSED) if unique.keys() >= set(roles)), ()
        )
        if not roles:
            continue
        inputs = [unique[role] for role in roles]
        last = max(map(linear.index, inputs))
        # a module around the attention may own the output layer, such as BERT's `attention.output.dense`
        next_layers = [
            other for other in linear[last + 1 : last + 2] if _is_in_block(other, layer)
        ]
        # there is one output layer, or none if the next linear layer is in another block
        for output in [unique["out"]] if "out" in unique else next_layers:
            yield [*inputs, output]


def _by_shapes(twin: Twin, linear: list[Layer]) -> Iterator[Group]:
    """Yields pairs of consecutive linear layers of one block that may be an attention. The shape of the first layer (or
    its shape and name) suggests that this layer computes query, key and value. The second layer is the output layer."""
    for first, output in pairwise(linear):
        # the numbers of outputs and inputs of both layers: in an attention, the outputs of the second layer are as wide
        # as the model again, and its inputs as wide as all heads together. (0, 0) stands for a layer whose weight is in
        # another form, as under a weight norm
        (rows, model_width), (output_width, heads_width) = (
            twin.shapes(layer).get("weight", (0, 0)) for layer in (first, output)
        )
        # grouped queries have fewer keys than queries, so the rows are not three times the width
        is_named = rows > heads_width and not _FUSED_WORDS.isdisjoint(_words(first))
        if (
            output_width == model_width
            and (rows == 3 * heads_width or is_named)
            and _is_in_block(output, first)
        ):
            yield [first, output]


def _is_in_block(layer: Layer, query: Layer) -> bool:
    """Whether a layer is in the block of an attention. The attention is the module that directly contains the layer
    `query`, and the block is the module around the attention."""
    block = parent_of(parent_of(query.path))
    return layer.path.startswith(f"{block}." if block else "")


def _role(layer: Layer) -> str:
    """Returns the role of a linear layer in an attention according to the last name in its path, as a key of `_WORDS`.
    For example, the role of "q_proj" is "q". Returns "" if the name implies no role."""
    words = _words(layer)
    return next(
        (role for role, synonyms in _WORDS.items() if not words.isdisjoint(synonyms)), ""
    )


def _words(layer: Layer) -> set[str]:
    """Returns the words in the last name of the layer's path, in lowercase."""
    return set(last_name(layer.path).lower().split("_"))


# joining a group of linear layers into an attention


def _lone_biases(twin: Twin, group: Group) -> dict[str, Layer]:
    """Returns the biases of query, key and value that are separate tensors, by their roles "q", "k" and "v". Returns an
    empty dict if the linear layers themselves have biases."""
    # a layer with more than one part has a bias; the last layer is the output layer
    if all(len(layer.parts) > 1 for layer in group[:-1]):
        return {}
    parent = parent_of(group[0].path)
    return {
        role: layer
        for role in _SEPARATE
        for layer in twin.singles
        if parent_of(layer.path) == parent
        and _role(layer) == role
        and layer.path.lower().endswith("bias")
    }


def _rows(twin: Twin, group: Group) -> list[int]:
    """Returns the numbers of rows in the weights of query, key and value, in this order. Returns [] if these numbers
    are unknown. For an attention of two linear layers, they are known only if the biases of query and value are
    separate tensors."""
    if len(group) == 1:
        shapes = twin.shapes(group[0])
        return [shapes[f"{role}_proj.weight"][0] for role in _SEPARATE]
    heights = [_height(twin, layer) for layer in group[:-1]]
    if len(heights) == 3:
        return heights
    if len(heights) == 2:
        # the second layer has the rows of key and value, and key and value have equally many rows
        return [heights[0], heights[1] // 2, heights[1] // 2]
    sizes = {
        role: twin.variables[layer.parts[0].name].shape[0]
        for role, layer in _lone_biases(twin, group).items()
    }
    return (
        [sizes["q"], heights[0] - sizes["q"] - sizes["v"], sizes["v"]]
        if {"q", "v"} <= sizes.keys()
        else []
    )


def _height(twin: Twin, layer: Layer) -> int:
    """Returns the number of rows that the weight of a linear layer has in PyTorch's layout."""
    return twin.shapes(layer)["weight"][0]


def _attention(twin: Twin, group: Group, rows: Sequence[int]) -> Layer:
    """Returns the attention layer that replaces a group of linear layers. `rows` contains the numbers of rows of query,
    key and value."""
    *inputs, output = group
    parts = []
    for layer, roles in zip(inputs, _ROLES[len(inputs)], strict=True):
        # `roles` is a string such as "kv", with one letter for each projection that the layer joins
        heights = [rows[_SEPARATE.index(role)] for role in roles]
        for part in layer.parts:
            names = tuple(f"{role}_proj.{name}" for role in roles for name in part.of)
            rule = layouts.packed(heights, part.rule) if len(roles) > 1 else part.rule
            parts.append(part._replace(of=names, rule=rule))
    parts += [
        part._replace(of=tuple(f"out_proj.{name}" for name in part.of)) for part in output.parts
    ]
    for role, bias in _lone_biases(twin, group).items():
        parts.append(Part(bias.parts[0].name, (f"{role}_proj.bias",), layouts.SAME))
    # the path of the attention is the path of the innermost module around all of its layers: the names with which the
    # paths of all layers begin. `levels` has, for each level of modules, the names in these paths
    levels = zip(*(parent_of(layer.path).split(".") for layer in group), strict=False)
    shared = takewhile(lambda names: len(set(names)) == 1, levels)
    layer = Layer(".".join(names[0] for names in shared), layouts.ATTENTION, tuple(parts), {})
    settings = {"packed": layouts.is_packed(twin.shapes(layer)), layouts.ASSEMBLED: True}
    return layer._replace(settings=settings)
