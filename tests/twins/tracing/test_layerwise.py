"""How far apart two arrays are, and where two runs part."""

from __future__ import annotations

import re

import numpy as np
import pytest

from xdevice.twins.contract.layouts import Layer
from xdevice.twins.tracing import distances, layerwise
from xdevice.twins.tracing.traces import LayerCall


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), 0.0),
        (np.full((2, 3), 1.5), np.full((2, 3), 2.0), 0.25),
        (
            np.arange(24.0).reshape(2, 3, 4, 1),
            np.arange(24.0).reshape(2, 3, 4, 1).transpose(0, 2, 3, 1),
            0.0,
        ),
        (np.ones((2, 3, 1, 1)), np.ones((2, 3)), 0.0),
        (np.ones((2, 3, 4, 4)), np.ones((2, 3, 5, 5)), np.inf),
        (np.ones((2, 12)), np.ones((2, 3, 4)), None),
        (np.ones((2, 0)), np.ones((2, 0)), None),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), 0.0),
        (np.array([np.nan, 1.0]), np.array([1.0, 1.0]), np.inf),
        (np.array([np.inf, 1.0]), np.array([np.inf, 1.5]), 1 / 3),
        (np.array([1, 2]), np.array([1, 3]), np.inf),
        (np.zeros(2), np.zeros(2), 0.0),
    ],
)
def test_errors_are_parts_of_the_greatest_value(actual, expected, error):
    found = distances.distance_in_any_order(actual, expected)
    assert found is None if error is None else found == pytest.approx(error)


def test_the_cause_is_where_the_error_arises_not_where_it_is_first_too_large():
    def call(path, given, made):
        arrays = [np.array([1.0, x], "float32") for x in (given, made)]
        return LayerCall(path, 0, "Linear", (arrays[0],), (arrays[1],), (None,))

    layers = [Layer(path, "linear", (), {}) for path in "abc"]
    exact = layerwise.TracedRun(
        "torch", [call("a", 0, 0), call("b", 0, 0), call("c", 0, 0)], []
    )
    off = layerwise.TracedRun(
        "paddle", [call("a", 0, 1e-6), call("b", 1e-6, 5e-5), call("c", 6e-5, 2e-4)], []
    )
    place = layerwise.TwoRuns(
        off, exact, [(layer, layer) for layer in layers]
    ).first_difference()
    assert place.path == "b"
    assert re.search(r"off by 5e-05", place.text)


@pytest.mark.parametrize(
    ("shape", "is_of_shapes"),
    [((2, 4, 4, 3), False), ((2, 3, 4, 4), False), ((2, 3, 5, 5), True)],
)
def test_axes_in_another_order_are_no_difference_of_shapes(shape, is_of_shapes):
    image = np.ones((2, 3, 4, 4), "float32")
    runs = [
        layerwise.TracedRun(
            name, [LayerCall("a", 0, "Conv2D", (image,), (output,), (None,))], [output]
        )
        for name, output in (("tensorflow", np.zeros(shape, "float32")), ("torch", image))
    ]
    layer = Layer("a", "conv", (), {})
    place = layerwise.TwoRuns(*runs, [(layer, layer)]).first_difference()
    assert (place.path, place.is_of_shapes) == ("a", is_of_shapes)


@pytest.mark.parametrize(
    ("gradient", "text", "is_of_shapes"),
    [
        ([1.0, 2.0], "off by 0.5 of its largest value", False),
        ([np.nan, 4.0], "different: a NaN, an infinity or an integer differs", False),
        ([1.0, 4.0, 9.0], "of the shape (3,), expected (2,)", True),
    ],
)
def test_a_gradient_that_differs_is_reported_as_an_output_is(gradient, text, is_of_shapes):
    def run(name, of_b):
        one = np.ones(2, "float32")
        gradients = {"a": of_b, "b": of_b, "c": [3.0, 4.0]}
        return layerwise.TracedRun(
            name,
            [
                LayerCall(path, 0, "Linear", (one,), (one,), (np.array(values, "float32"),))
                for path, values in gradients.items()
            ],
            [],
        )

    layers = [Layer(path, "linear", (), {}) for path in "abc"]
    runs = layerwise.TwoRuns(
        run("paddle", gradient), run("torch", [1.0, 4.0]), [(layer, layer) for layer in layers]
    )
    assert runs.first_difference() is None
    place = runs.first_gradient()
    assert (place.path, place.is_of_shapes) == ("b", is_of_shapes)
    assert place.text.endswith(
        f"the gradient of the output of b (Linear), which is {text}; the cause is between this layer and c (Linear)"
    )
