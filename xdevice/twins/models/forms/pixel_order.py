"""The order in which two models count the pixels of a flattened image: with the channels first or last, as in their
images. If a model tells the order, the rule of a parameter has it (`layouts.by_pixels`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.twins.contract import layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer
    from xdevice.twins.models.reading import Twin


def has_channels_last(twin: Twin) -> bool:
    """Whether the images of a model have their channels last. A dict counts as PyTorch's."""
    return twin.model is not None and bool(twin.backend.has_channels_last(twin.model))


def puts_channels_last(target: Backend) -> bool:
    """Whether a framework's models have their channels last unless they say otherwise: true of frameworks whose kernels
    have the window axes first."""
    return any(part.rule is layouts.KERNEL_FIRST for part in target.parts("conv", {}))


def reordered(
    layer: Layer, counterpart: Layer | None, is_last: Callable[[], bool]
) -> tuple[Layer, list[str]]:
    """`layer`, and a line for each parameter that is reordered for the other model, whose layer is `counterpart`. If
    that model has its channels last, it may count pixels as this one does: then a parameter of `counterpart` that is
    not known to do so is refused."""
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


def in_doubt(source: Twin, target: Backend) -> Iterator[str]:
    """Yields a line for each layer that may follow a flattened image, if only one of source and target has its channels
    last: the first linear layer after a convolution, if it takes several numbers for each channel."""
    # both count pixels in one order
    if has_channels_last(source) == puts_channels_last(target):
        return
    channels = 0
    for layer in source.layers:
        shape: Any = source.shapes(layer).get("weight", ())
        if layer.kind in ("conv", "batch_norm") and shape:
            # what is flattened may have as many channels as the last layer with an image
            channels = shape[0]
        elif layer.kind == "linear" and shape:
            part = next(part for part in layer.parts if "weight" in part.of)
            is_known = part.rule.order or part.rule.refusal
            if channels and shape[1] > channels and shape[1] % channels == 0 and not is_known:
                yield (
                    f"{layer.path}: without like= the order of the pixels behind a Flatten is not known, and its "
                    "weight may have to be reordered"
                )
            channels = 0
