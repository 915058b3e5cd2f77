"""Handles the order of the pixels in a flattened image. This order depends on whether the images of a model have their
channels first or last. If the pixels of a parameter are known to have the channels last, the attribute `order` of its
rule says so (see `layouts.with_pixels_reordered`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.twins.contract import layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer
    from xdevice.twins.models.reading import Twin


def has_channels_last(twin: Twin) -> bool:
    """Whether the images of a model have their channels last. A dict is treated as a PyTorch model, which does not have
    its channels last."""
    return twin.model is not None and bool(twin.backend.has_channels_last(twin.model))


def puts_channels_last(target: Backend) -> bool:
    """Whether the models of a framework usually have their channels last. That is the case if the window axes of
    kernels come first, as in Keras and Flax."""
    return any(part.rule is layouts.KERNEL_FIRST for part in target.parts("conv", {}))


def reordered(
    layer: Layer, counterpart: Layer | None, is_last: Callable[[], bool]
) -> tuple[Layer, list[str]]:
    """Returns `layer`, and a line for each of its parameters whose pixels are reordered for the other model.
    `counterpart` is the layer of the other model, or None without such a model. A parameter needs no reordering if both
    layers are known to count its pixels with the channels last. `is_last` returns whether the other model has its
    channels last. If it does, it may already count pixels in this order. All parameters that would be reordered are
    then marked as not convertible, and there are no lines."""
    # the parameters whose pixels the counterpart is known to count with the channels last
    names = (
        {name for part in counterpart.parts if part.rule.order for name in part.of}
        if counterpart is not None
        else set()
    )
    rules = {
        part.name: part.rule
        for part in layer.parts
        if part.rule.order and not names.issuperset(part.of)
    }
    if not rules or not is_last():
        return layer, [f"{name}: reordered; {rule.order}" for name, rule in rules.items()]
    refused = {
        name: layouts.refused(rule, f"{rule.order}; {layouts.BY_HAND}")
        for name, rule in rules.items()
    }
    parts = tuple(part._replace(rule=refused.get(part.name, part.rule)) for part in layer.parts)
    return layer._replace(parts=parts), []


def doubts(source: Twin, target: Backend) -> Iterator[str]:
    """Yields a line for each layer that may follow a flattened image. Yields nothing if source and target both have
    their channels last, or if neither has. A layer may follow a flattened image if it is the first linear layer after a
    convolution and has several inputs for each channel."""
    # both models count pixels in the same order
    if has_channels_last(source) == puts_channels_last(target):
        return
    # the channels of the last layer with an image; 0 if the next linear layer does not follow such a layer
    channels = 0
    for layer in source.layers:
        shape: Any = source.shapes(layer).get("weight", ())
        if layer.kind in ("conv", "batch_norm") and shape:
            channels = shape[0]
        elif layer.kind == "linear" and shape:
            # there is such a part, because the weight has a shape
            part = next(part for part in layer.parts if "weight" in part.of)
            is_known = part.rule.order or part.rule.refusal
            if channels and shape[1] > channels and shape[1] % channels == 0 and not is_known:
                yield (
                    f"{layer.path}: without like=, the order of the pixels after a Flatten is not known, so the "
                    f"weight may have to be reordered"
                )
            channels = 0
