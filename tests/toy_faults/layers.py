"""Faults of layers: what they are, what they compute, and seeing their calls."""

from __future__ import annotations

import contextlib

from xdevice.twins.contract import calls as common
from xdevice.twins.contract import layouts

from .planting import (
    HOMES,
    after,
    swap,
    wrong,
)

swap(
    "layers",
    "mistakes a layer for one of another kind",
    "a_layout_says_what_a_layer_computes",
    lambda layers, adapter: (
        lambda model: [layer._replace(kind="conv") for layer in layers(model)]
    ),
)
swap(
    "layers",
    "returns a layer twice",
    "a_layout_says_what_a_layer_computes",
    lambda layers, adapter: lambda model: [*layers(model)] * 2,
)


_SETTINGS = "layers_without_parameters_say_what_they_are_set_to"


def _told(does, change):
    """A fault in what each layer without parameters is said to be: `change(layer)`."""
    swap(
        "operations",
        does,
        _SETTINGS,
        lambda operations, adapter: (
            lambda *of: [layer if layer.parts else change(layer) for layer in operations(*of)]
        ),
        HOMES[:1],
    )


def _set(**settings):
    return lambda layer: layer._replace(
        settings={
            **layer.settings,
            **{name: value for name, value in settings.items() if name in layer.settings},
        }
    )


_told("reports the default slope instead of the layer's", _set(slope=0.01))
_told("reports the share that a dropout keeps, not the share that it drops", _set(p=0.625))
_told("reports strides that make windows adjacent", _set(stride=(3, 2)))
_told("swaps the height and width of windows", _set(kernel=(2, 3)))
_told("leaves out settings", lambda layer: layer._replace(settings={}))
_told(
    "mistakes a layer for one of another kind", lambda layer: layer._replace(kind="activation")
)
_told("uses different paths", lambda layer: layer._replace(path=layer.path.replace(".", "/")))


def _backwards(layers):
    return [*layers[:2], *reversed(layers[2:])]


for _does, _change in {
    "leaves out the layers in a block": lambda layers: layers[:2],
    "returns the layers of a block in reverse order": _backwards,
    "returns a layer twice": lambda layers: [*layers, layers[-1]],
    "leaves out the layers with parameters": lambda layers: [
        layer for layer in layers if not layer.parts
    ],
}.items():
    swap("operations", _does, _SETTINGS, after(_change), HOMES[:1])


_CALLS = "a_call_of_a_layer_is_seen_as_it_was"


@wrong("calls", "continues to record after the block", _CALLS)
def calls_goes_on_behind_the_block(adapter, patch, suite):
    blocks = []
    original = adapter.calls

    @contextlib.contextmanager
    def calls(model):
        blocks.append(original(model))
        yield blocks[-1].__enter__()

    patch.setattr(adapter, "calls", calls)


@wrong("calls", "keeps memory that may be overwritten", _CALLS)
def calls_keeps_what_may_be_overwritten(adapter, patch, suite):
    patch.setattr(common.Watch, "_copy", lambda self, x: x)


swap(
    "calls",
    "sees no layer with parameters",
    _CALLS,
    lambda calls, adapter: lambda model: contextlib.nullcontext([]),
)
swap(
    "outermost",
    "does not intercept any call",
    "the_call_of_a_model_goes_through_one_function",
    lambda outermost, adapter: lambda around: contextlib.nullcontext(),
    raises=(TypeError,),
)
swap(
    "infer",
    "records for gradients",
    "a_model_is_called_without_its_gradients",
    lambda infer, adapter: lambda model, inputs: model(*inputs),
)
swap(
    "has_channels_last",
    "says that every model takes images with the channels last",
    "a_model_is_called_without_its_gradients",
    lambda has, adapter: lambda model: True,
)


@wrong("parts", "describes the weight as transposed", "a_layout_says_what_a_layer_computes")
def parts_has_the_weight_the_other_way_round(adapter, patch, suite):
    patch.setattr(adapter, "parts", lambda kind, settings: layouts.parts(kind, settings))
