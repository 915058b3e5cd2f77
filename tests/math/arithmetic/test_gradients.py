"""`value_and_grad`, `grad` and `update` on every framework that has gradients."""

from __future__ import annotations

import re
import threading
from collections import namedtuple
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS, ROOT, SHIMS, WITH_MODELS, sampled, with_64_bit

import xdevice

DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(params=sampled(FRAMEWORKS, each_time=("torch",), slow=SHIMS, others="long"))
def name(request):
    """A framework, selected; MXNet with NumPy's semantics, for this test only."""
    with xdevice.use_backend(request.param) as backend:
        if request.param == "mxnet":
            backend.framework.npx.set_np()
        yield request.param
        if request.param == "mxnet":
            backend.framework.npx.reset_np()


@pytest.fixture
def xp(name):
    return xdevice.array_namespace()


def read(x: Any) -> Any:
    return xdevice.to_numpy(x)


def lists(x: Any) -> Any:
    return read(x).tolist()


@pytest.fixture
def squares(xp):
    """The sum of squares of a tensor."""
    return lambda x: xp.sum(xp.multiply(x, x))


# what comes back


Pair = namedtuple("Pair", "first second")


@dataclass
class Layer:
    w: Any
    b: Any


def test_gradients_come_in_a_container_as_the_parameters(xp):
    # keys that are not in order: JAX sorts those of its dicts
    params = {
        "w": xdevice.tensor([1.0, 2.0]),
        "b": [xdevice.tensor(3.0), (xdevice.tensor([[4.0]]),)],
        "a": Pair(xdevice.tensor([5.0]), Layer(xdevice.tensor([6.0]), xdevice.tensor([7.0]))),
    }

    def loss(p):
        assert list(p) == ["w", "b", "a"]
        assert type(p["a"].second) is Layer
        whole = xp.sum(p["w"] * p["w"]) * p["b"][0]
        return (
            whole + xp.sum(p["b"][1][0] * 10.0) + xp.sum(p["a"].first * p["a"].second.w) * 100.0
        )

    value, grads = xdevice.math.value_and_grad(loss)(params)
    assert xdevice.item(value) == 5 * 3 + 40 + 3000
    assert list(grads) == ["w", "b", "a"]
    assert lists(grads["w"]) == [6.0, 12.0]
    assert lists(grads["b"][0]) == 5.0
    assert lists(grads["b"][1][0]) == [[10.0]]
    assert type(grads["a"]) is Pair
    assert lists(grads["a"].first) == [600.0]
    assert lists(grads["a"].second.w) == [500.0]
    assert lists(grads["a"].second.b) == [0.0]


def test_other_arguments_are_handed_on_and_a_tensor_may_stand_alone(xp):
    value, slope = xdevice.math.value_and_grad(lambda x, y, *, z: xp.sum(x * y) * z)(
        xdevice.tensor([1.0, 2.0]), xdevice.tensor([3.0, 4.0]), z=2.0
    )
    assert xdevice.item(value) == 22.0
    assert lists(slope) == [6.0, 8.0]
    assert tuple(value.shape) == ()


def test_what_is_given_beside_the_loss_comes_back_as_numbers(xp):
    x = xdevice.tensor([1.0, 2.0])

    def loss(x):
        doubled = x * 2.0
        return xp.sum(doubled), {"doubled": doubled, "note": "text", "nothing": None}

    (value, aux), slope = xdevice.math.value_and_grad(loss, has_aux=True)(x)
    assert xdevice.item(value) == 6.0
    assert lists(aux["doubled"]) == [2.0, 4.0]
    assert (aux["note"], aux["nothing"]) == ("text", None)
    assert lists(slope) == [2.0, 2.0]
    slope, aux = xdevice.math.grad(loss, has_aux=True)(x)
    assert lists(slope) == [2.0, 2.0]
    with pytest.raises(xdevice.errors.ArgumentError, match=r"\(loss, aux\)"):
        xdevice.math.grad(xp.sum, has_aux=True)(x)


def test_a_tensor_in_two_places_is_a_parameter_in_each(xp):
    x = xdevice.tensor([1.0, 2.0])
    first, second = xdevice.math.grad(lambda p: xp.sum(p[0] * p[0] + p[1] * 3.0))([x, x])
    assert (lists(first), lists(second)) == ([2.0, 4.0], [3.0, 3.0])


def test_what_the_function_has_from_elsewhere_is_a_constant(xp):
    x = xdevice.tensor([1.0, 2.0])
    assert lists(xdevice.math.grad(lambda p: xp.sum(p * x))(x)) == [1.0, 2.0]


def test_a_parameter_that_is_not_used_has_zeros(xp):
    params = [
        xdevice.tensor([1.0]),
        xdevice.tensor([[1.0, 2.0]], dtype="float16"),
        xdevice.zeros(0, 3),
    ]
    _, unused, empty = xdevice.math.grad(lambda p: xp.sum(p[0]))(params)
    assert lists(unused) == [[0.0, 0.0]]
    assert (read(unused).dtype, read(empty).shape) == ("float16", (0, 3))


@pytest.mark.parametrize("function", ["ones_like", "empty_like", "matrix_power"])
def test_a_constant_that_is_made_from_a_parameter_is_one(xp, function):
    make = (
        (lambda x: xp.linalg.matrix_power(x, 0))
        if function == "matrix_power"
        else getattr(xp, function)
    )
    params = xdevice.tensor([[4.0, 1.0], [2.0, 3.0]])
    value, grads = xdevice.math.value_and_grad(lambda x: xp.sum(xp.multiply(x, make(x))))(
        params
    )
    wanted = np.eye(2) if function == "matrix_power" else read(make(params))
    assert read(value) == np.sum(wanted * read(params))
    assert lists(grads) == wanted.tolist()


@pytest.mark.parametrize(
    "whole",
    [
        lambda xp, x: xp.astype(x, xp.int32),
        lambda xp, x: xp.astype(x, xp.bool),
        lambda xp, x: xp.asarray(x, dtype=xp.int64),
        lambda xp, x: xp.sum(x, dtype=xp.int64),
        lambda xp, x: xp.cumulative_sum(x, dtype=xp.int64),
        lambda xp, x: xp.count_nonzero(x),
        lambda xp, x: xp.floor_divide(x, 0.7),
    ],
    ids=["int32", "bool", "asarray", "sum", "cumulative_sum", "count_nonzero", "floor_divide"],
)
def test_no_gradient_goes_through_whole_numbers(xp, whole):
    def loss(x):
        return xp.add(xp.sum(xp.astype(whole(xp, x), xp.float32)), xp.sum(x))

    assert lists(xdevice.math.grad(loss)(xdevice.tensor([1.5, -2.25, 0.5]))) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_parameters_without_elements_have_gradients_without(xp, shape):
    x = xp.zeros(shape)
    value, grad = xdevice.math.value_and_grad(lambda x: xp.sum(xp.sum(x, axis=0)))(x)
    assert xdevice.item(value) == 0
    assert tuple(grad.shape) == shape


def test_take_has_a_dense_gradient(xp):
    x, places = xdevice.tensor([[1.0], [2.0], [3.0]]), xdevice.tensor([2, 0, 2])
    slope = xdevice.math.grad(lambda x: xp.sum(xp.take(x, places, axis=0)))(x)
    assert lists(slope) == [[1.0], [0.0], [2.0]]


def test_dtypes_and_views(name, xp):
    with with_64_bit(name):
        for dtype in DTYPES:
            if dtype not in xdevice.backend().dtypes:
                continue
            x = xdevice.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=dtype)
            slope = read(xdevice.math.grad(lambda x: x[0, 1])(x))
            assert slope.dtype == read(x).dtype
            assert slope.astype("float32").tolist() == [[0.0, 1.0], [0.0, 0.0]]
        turned = xp.matrix_transpose(xdevice.tensor([[1.0, 2.0], [3.0, 4.0]]))
        assert lists(xdevice.math.grad(lambda x: xp.sum(x * x))(turned)) == [
            [2.0, 6.0],
            [4.0, 8.0],
        ]


# what is left as it was


def test_parameters_keep_their_flags_and_gradients(name, xp):
    framework = xdevice.backend().framework
    x, constant = (xdevice.tensor([1.0, 2.0]) for _ in range(2))
    if name == "mxnet":
        for tensor in (x, constant):
            tensor.attach_grad()
            tensor.grad[:] = 7.0
    if name == "torch":
        for tensor in (x, constant):
            tensor.requires_grad_().grad = framework.full((2,), 7.0)
    if name == "paddle":
        for tensor in (x, constant):
            tensor.stop_gradient = False
            (tensor * 7.0).sum().backward()

    def fails(p):
        xp.sum(p * constant)
        raise KeyError("on purpose")

    def writes(p):
        p *= 3.0
        return xp.sum(p)

    grads = xdevice.math.grad(lambda p: xp.sum(p * constant * 3.0))(x)
    with pytest.raises(KeyError, match="on purpose"):
        xdevice.math.grad(fails)(x)
    with suppress(Exception):  # the framework's own, where it writes at all
        xdevice.math.grad(writes)(x)
    new = xdevice.math.update(x, grads, lambda p, g: p - g)
    for tensor in (x, constant):
        assert lists(tensor) == [1.0, 2.0]
        if name in ("torch", "paddle", "mxnet"):
            assert lists(tensor.grad) == [7.0, 7.0]
    if name == "torch":
        assert x.requires_grad
        assert x.grad_fn is None
        assert not any(one.requires_grad for one in (grads, new))
    if name == "paddle":
        assert not x.stop_gradient
        assert all(one.stop_gradient for one in (grads, new))
    if name == "mxnet":
        assert not framework.autograd.is_recording()
    assert lists(xdevice.math.grad(lambda p: xp.sum(p * p))(new)) == [-4.0, -8.0]


def test_replicas_have_gradients(xp, squares):
    (params,) = xdevice.parallel.replicate({"w": xdevice.tensor([1.0, 2.0])}, ["cpu"])
    grads = xdevice.math.grad(lambda p: squares(p["w"]))(params)
    assert lists(grads["w"]) == [2.0, 4.0]
    new = xdevice.math.update(params, grads, lambda p, g: p - 0.5 * g)
    assert lists(new["w"]) == [0.0, 0.0]
    assert lists(params["w"]) == [1.0, 2.0]


# the step


def test_a_rule_may_write_into_what_it_is_given(xp, squares):
    params = {"w": xdevice.tensor([1.0, 2.0]), "b": [xdevice.tensor(3.0)]}
    grads = {"b": [xdevice.tensor(10.0)], "w": xdevice.tensor([4.0, 8.0])}  # in another order

    def rule(p, g):
        g *= 0.5
        p -= g
        return p

    new = xdevice.math.update(params, grads, rule)
    assert (lists(new["w"]), lists(new["b"][0])) == ([-1.0, -2.0], -2.0)
    assert (lists(params["w"]), lists(params["b"][0])) == ([1.0, 2.0], 3.0)
    assert (lists(grads["w"]), lists(grads["b"][0])) == ([4.0, 8.0], 10.0)
    # PyTorch's and Paddle's own, where `-=` makes a new tensor
    if hasattr(params["w"], "subtract_"):
        assert lists(xdevice.math.update(params, grads, lambda p, g: p.subtract_(g))["w"]) == [
            -3.0,
            -6.0,
        ]
        assert lists(params["w"]) == [1.0, 2.0]
    velocity = xdevice.math.update(grads, grads, lambda v, g: 0.9 * v + g)
    assert lists(xdevice.math.update(params, velocity, lambda p, v: p - v)["b"][0]) == -16.0


@pytest.mark.parametrize(
    "backend", sampled(("torch", "mxnet", "paddle", "numpy"), each_time=("torch",))
)
def test_what_a_rule_gives_back_is_not_the_parameter(backend):
    with xdevice.use_backend(backend):
        w, g = xdevice.tensor([1.0, 2.0]), xdevice.tensor([2.0, 4.0])
        for rule in (lambda p, g: p, lambda p, g: p if g is g else p - g, lambda p, g: p[:]):
            (new,) = xdevice.math.update([w], [g], rule)
            new += 1.0
            assert lists(w) == [1.0, 2.0]


@pytest.mark.parametrize("backend", sampled(xdevice.backends(), each_time=("numpy", "torch")))
def test_numbers_are_updated_on_numpy_too(backend):
    with xdevice.use_backend(backend):
        new = xdevice.math.update(
            (xdevice.tensor(1.0),), (xdevice.tensor(2.0),), lambda p, g: p - g
        )
        assert lists(new[0]) == -1.0
        assert xdevice.backend().classify(type(new[0])) == "tensor"


def test_rules_and_gradients_that_do_not_fit_are_refused(xp):
    params, array = {"w": xdevice.tensor([1.0, 2.0])}, np.ones(2, "float32")
    # then arrays have been parameters: of another backend
    xdevice.math.update(array, array, lambda p, g: p - g)
    for rule, error, text in (
        (
            lambda p, g: array,
            xdevice.errors.NotATensorError,
            r"the rule returned .*ndarray for params\['w'\]",
        ),
        (
            lambda p, g: None,
            xdevice.errors.NotATensorError,
            r"the rule returned None .* for params\['w'\]",
        ),
        (
            lambda p, g: xp.sum(p),
            xdevice.errors.ShapeError,
            r"of shape \(\) for params\['w'\], whose shape is \(2,\)",
        ),
        (
            lambda p, g: xp.astype(p, xp.int32),
            xdevice.errors.DTypeError,
            r"int32 for params\['w'\], whose dtype is float32",
        ),
    ):
        with pytest.raises(error, match=text):
            xdevice.math.update(params, params, rule)
    for grads, error, text in (
        (
            {"w": params["w"], "b": params["w"]},
            xdevice.errors.ContainerError,
            r"grads\['b'\] belongs to no parameter",
        ),
        ({"v": params["w"]}, xdevice.errors.ContainerError, r"params\['w'\] has no gradient"),
        ([params["w"]], xdevice.errors.ContainerError, r"params\['w'\] has no gradient"),
        (params["w"], xdevice.errors.ContainerError, r"params\['w'\] has no gradient"),
        ({"w": None}, xdevice.errors.NotATensorError, r"grads\['w'\] is None"),
        (
            {"w": array},
            xdevice.errors.ArgumentError,
            "params belongs to .*, but grads belongs to numpy",
        ),
        ({}, xdevice.errors.NotATensorError, "grads must contain at least one tensor"),
    ):
        with pytest.raises(error, match=text):
            xdevice.math.update(params, grads, lambda p, g: p)
    with pytest.raises(xdevice.errors.ArgumentError, match="expects a function"):
        xdevice.math.update(params, params, 0.1)


# what is refused


def test_parameters_that_are_not_floats_are_refused(xp):
    x = xdevice.tensor([1.0])
    for params, error, text in (
        (
            {"w": x, "i": xdevice.tensor([1])},
            xdevice.errors.DTypeError,
            r"params\['i'\] has dtype int",
        ),
        (xdevice.tensor([True]), xdevice.errors.DTypeError, "params has dtype bool"),
        (
            {"w": x, "rate": 0.1},
            xdevice.errors.NotATensorError,
            r"params\['rate'\] is 0.1 of type float",
        ),
        ({"w": x, "b": None}, xdevice.errors.NotATensorError, r"params\['b'\] is None"),
        (
            {"w": x, "a": np.ones(2, "float32")},
            xdevice.errors.ArgumentError,
            r"params\['a'\] belongs to numpy",
        ),
        ({"w": []}, xdevice.errors.NotATensorError, "params must contain at least one tensor"),
        ("w", xdevice.errors.NotATensorError, "expected a tensor"),
    ):
        with pytest.raises(error, match=text):
            xdevice.math.grad(lambda p: xp.sum(p["w"]))(params)
    with pytest.raises(xdevice.errors.ArgumentError, match="expects a function"):
        xdevice.math.grad(x)


def test_a_loss_that_is_not_one_float_is_refused(xp):
    x = xdevice.tensor([1.0, 2.0])
    for function, error, text in (
        (lambda x: x, xdevice.errors.ShapeError, r"a loss of shape \(2,\)"),
        (
            lambda x: xp.sum(xp.astype(x, xp.int32)),
            xdevice.errors.DTypeError,
            "a loss of dtype int",
        ),
        (lambda x: 3.0, xdevice.errors.NotATensorError, r"returned 3.0 of type float"),
        (lambda x: None, xdevice.errors.NotATensorError, "returned None"),
        (
            lambda x: np.ones((), "float32"),
            xdevice.errors.ArgumentError,
            "the loss belongs to numpy",
        ),
    ):
        with pytest.raises(error, match=text):
            xdevice.math.value_and_grad(function)(x)


def test_a_loss_without_its_graph_is_refused(name, xp):
    x = xdevice.tensor([1.0, 2.0])
    framework = xdevice.backend().framework
    with pytest.raises(xdevice.errors.ArgumentError, match="does not depend on any parameter"):
        xdevice.math.grad(lambda p: xdevice.tensor(1.0))([x, x])
    with pytest.raises(
        xdevice.errors.XDeviceError, match=r"does not depend on any parameter|has no values"
    ):
        xdevice.math.grad(lambda p: xdevice.tensor(read(p).sum()))(x)
    cut = {
        "torch": lambda p: p.detach(),
        "paddle": lambda p: p.detach(),
        "mxnet": lambda p: p.detach(),
        "tensorflow": lambda p: framework.stop_gradient(p),
        "jax": lambda p: framework.lax.stop_gradient(p),
    }[name]
    with pytest.raises(xdevice.errors.ArgumentError, match="does not depend on any parameter"):
        xdevice.math.grad(lambda p: xp.sum(cut(p)))(x)
    assert lists(xdevice.math.grad(lambda p: xp.sum(cut(p) * p))(x)) == [1.0, 2.0]


def test_numpy_has_no_gradients():
    with (
        xdevice.use_backend("numpy"),
        pytest.raises(
            xdevice.errors.UnsupportedError, match="numpy does not support gradients"
        ),
    ):
        xdevice.math.grad(lambda x: x.sum())(xdevice.ones(2))


# where it is called


def test_gradients_nest_or_are_refused(name, xp):
    x = xdevice.tensor(2.0)
    second = xdevice.math.grad(xdevice.math.grad(lambda x: x * x * x))
    # through the inner value, the inner gradient, and what the inner function has from outside
    mixed = xdevice.math.grad(
        lambda x: _mixed(*xdevice.math.value_and_grad(lambda y: y * y * x)(x))
    )
    step = xdevice.math.grad(lambda x: xdevice.math.update(x, x, lambda p, g: p * g))
    if name == "mxnet":
        for function in (second, mixed):
            with pytest.raises(xdevice.errors.UnsupportedError, match="no second gradient"):
                function(x)
        assert xdevice.item(step(x)) == 4.0
        return
    assert xdevice.item(second(x)) == 12.0
    assert xdevice.item(mixed(x)) == 3 * 4 + 4 * 2
    assert xdevice.item(step(x)) == 4.0
    with pytest.raises(xdevice.errors.ArgumentError, match="does not depend on any parameter"):
        xdevice.math.grad(lambda x: xdevice.math.grad(lambda y: x * x)(x))(x)


def _mixed(value, slope):
    return value + slope


def test_recording_that_is_switched_off_around_is_on_inside(name, squares):
    x = xdevice.tensor([1.0, 2.0])
    framework = xdevice.backend().framework
    for off in {
        "torch": (framework.no_grad, framework.inference_mode) if name == "torch" else (),
        "paddle": (framework.no_grad,) if name == "paddle" else (),
        "mxnet": (framework.autograd.pause,) if name == "mxnet" else (),
    }.get(name, (nullcontext,)):
        with off():
            assert lists(xdevice.math.grad(squares)(x)) == [2.0, 4.0]
            assert lists(xdevice.math.grad(squares)(xdevice.tensor([1.0]))) == [2.0]


def test_the_frameworks_own_gradient_around_goes_through_or_raises(name, xp, squares):
    """Of the sum of squares of the gradient of a sum of squares: 8 x, and 24 x with 3 x in between."""
    framework = xdevice.backend().framework
    x = xdevice.tensor([1.0, 2.0])
    slope = xdevice.math.grad(squares)
    if name == "jax":
        assert lists(framework.grad(lambda x: squares(slope(x)))(x)) == [8.0, 16.0]
    if name == "tensorflow":
        with framework.GradientTape() as tape:
            tape.watch(x)
            y = squares(slope(x))
        assert lists(tape.gradient(y, x)) == [8.0, 16.0]
    if name == "mxnet":
        x.attach_grad()
        with (
            framework.autograd.record(),
            pytest.raises(
                xdevice.errors.UnsupportedError, match="while MXNet records operations"
            ),
        ):
            slope(x)
    if name == "torch":
        x.requires_grad_()
        squares(slope(x * 3.0)).backward()
        assert lists(x.grad) == [72.0, 144.0]
        with pytest.raises(RuntimeError, match="does not require grad"):
            squares(slope(x)).backward()
        with pytest.raises(xdevice.errors.UnsupportedError, match=r"torch\.func"):
            framework.func.grad(lambda x: squares(slope(x)))(x.detach())
    if name == "paddle":
        x.stop_gradient = False
        squares(slope(x * 3.0)).backward()
        assert lists(x.grad) == [72.0, 144.0]
        assert squares(slope(x)).stop_gradient


def test_what_has_no_second_gradient_on_paddle_is_named(name, xp):
    if name != "paddle":
        pytest.skip("all other frameworks that nest have them")
    peak = xdevice.math.grad(lambda x: xp.max(x) * xp.max(x))
    with pytest.raises(xdevice.errors.UnsupportedError, match=r"amax_grad|max_grad"):
        xdevice.math.grad(lambda x: xp.sum(peak(x)))(xdevice.tensor([1.0, 2.0]))


def test_what_has_no_second_gradient_on_torch_is_named(name, xp):
    if name != "torch":
        pytest.skip("all other frameworks that nest have it, but for paddle")
    slope = xdevice.math.grad(lambda x: xp.sum(xdevice.nn.attention(x, x, x)))
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"gradient of this gradient: derivative for .*flash_attention",
    ):
        xdevice.math.grad(lambda x: xp.sum(slope(x)))(xdevice.ones(1, 2, 3, 4))
    with suppress(
        xdevice.errors.UnsupportedError
    ):  # PyTorch 2.14 takes the same kernel for three dimensions, 2.13 did not
        assert (
            lists(xdevice.math.grad(lambda x: xp.sum(slope(x)))(xdevice.ones(1, 3, 4)))[0][0]
            == [0.0] * 4
        )


def test_gradients_in_threads(name, squares):
    x = xdevice.tensor([1.0, 2.0])
    slope = xdevice.math.grad(squares)
    assert [lists(one) for one in xdevice.parallel.run(*[lambda: slope(x)] * 4)] == [
        [2.0, 4.0]
    ] * 4
    found = []

    def task():
        if name == "mxnet":
            xdevice.backend("mxnet").framework.npx.set_np()
        # two at once crashed Paddle after some
        found.extend(lists(slope(x)) for _ in range(50))

    threads = [threading.Thread(target=task) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[2.0, 4.0]] * 100


@pytest.mark.slow
def test_a_whole_step_is_compiled_or_refused(name, xp):
    params = {"w": xdevice.tensor([1.0, 2.0]), "unused": xdevice.tensor([3.0])}

    def step(params):
        value, grads = xdevice.math.value_and_grad(lambda p: xp.sum(p["w"] * p["w"]))(params)
        return value, xdevice.math.update(params, grads, lambda p, g: p - 0.25 * g)

    framework = xdevice.backend().framework
    compiled = {
        "jax": lambda: framework.jit(step),
        "tensorflow": lambda: framework.function(step),
        "torch": lambda: framework.compile(step, backend="eager"),
        "paddle": lambda: framework.jit.to_static(step, full_graph=True),
        "mxnet": lambda: step,
    }[name]()
    if name == "paddle":
        with pytest.raises(xdevice.errors.UnsupportedError, match=r"to_static traces"):
            compiled(params)
        return
    value, new = compiled(params)
    assert xdevice.item(value) == 5.0
    assert (lists(new["w"]), lists(new["unused"])) == ([0.5, 1.0], [3.0])


# several devices


@pytest.mark.virtual
def test_a_step_on_several_devices_is_one_on_all_of_the_batch(name, xp):
    gpus = xdevice.try_all_gpus()[:2]
    with xdevice.random.seed(0):
        params = {"w": xdevice.random.normal(3, 2), "b": xdevice.zeros(2)}
        x, y = xdevice.random.normal(8, 3), xdevice.random.normal(8, 2)

    def loss(p, x, y):
        h = xp.tanh(xp.add(xp.matmul(x, p["w"]), p["b"]))
        return xp.mean(xp.square(xp.subtract(h, y)))

    step = xdevice.math.value_and_grad(loss)
    replicas, xs, ys = (
        xdevice.parallel.replicate(params, gpus),
        xdevice.split_batch(x, gpus),
        xdevice.split_batch(y, gpus),
    )
    for _ in range(3):
        value, grads = step(params, x, y)
        params = xdevice.math.update(params, grads, lambda p, g: p - 0.5 * g)
        found = [step(*replica) for replica in zip(replicas, xs, ys, strict=True)]
        assert [xdevice.device_of(one) for one in found] == gpus
        total = xdevice.parallel.all_reduce([grads for _, grads in found], "mean")
        replicas = [
            xdevice.math.update(p, g, lambda p, g: p - 0.5 * g)
            for p, g in zip(replicas, total, strict=True)
        ]
        assert np.isclose(
            sum(xdevice.item(value) for value, _ in found) / 2, xdevice.item(value), rtol=1e-5
        )
    assert [xdevice.device_of(replica) for replica in replicas] == gpus
    for replica in replicas:
        xdevice.assert_parity(replica, params)


@pytest.mark.parametrize("reduced", ["sum", "mean", "std", "var"])
def test_one_number_is_reduced_with_a_gradient(xp, reduced):
    reduce = getattr(xp, reduced)
    # MXNet's einsum fails in its gradient for no dimensions by what it has seen before
    for _ in range(20):
        xdevice.math.grad(lambda x: xp.sum(xp.sum(x, axis=0)))(xp.ones((3, 4)))
        value, slope = xdevice.math.value_and_grad(
            lambda x: xp.add(xp.sum(reduce(x)), xp.sum(xp.exp(x)))
        )(xdevice.tensor(0.0))
        # what MXNet's engine failed at would be raised here, or later
        xdevice.sync(value, slope)
        assert [xdevice.item(value)] == [1.0]
        assert reduced == "std" or xdevice.item(slope) == (1.0 if reduced == "var" else 2.0)


@pytest.mark.virtual
def test_gradients_cross_devices_and_are_where_their_parameters_are(xp):
    gpus = xdevice.try_all_gpus()[:2]
    params = [
        xdevice.tensor([float(i + 1), 2.0], device=gpu)
        for i, gpu in enumerate([*gpus, gpus[0]])
    ]
    value, grads = xdevice.math.value_and_grad(
        lambda p: xp.sum(xp.multiply(xdevice.to_device(p[0], gpus[1]), p[1]))
    )(params)
    assert xdevice.device_of(value) is gpus[1]
    assert [xdevice.device_of(one) for one in grads] == [*gpus, gpus[0]]
    assert [lists(one) for one in grads] == [[2.0, 2.0], [1.0, 2.0], [0.0, 0.0]]
    new = xdevice.math.update(params, grads, lambda p, g: p - g)
    assert [xdevice.device_of(one) for one in new] == [*gpus, gpus[0]]
    constant, unused = xdevice.math.grad(lambda p: xp.sum(p[0]))(params[:2])
    assert [xdevice.device_of(constant), xdevice.device_of(unused)] == gpus
    with pytest.raises(
        xdevice.errors.DeviceMismatchError,
        match="params is on gpu:0, but its gradient is on gpu:1",
    ):
        xdevice.math.update(params[0], params[1], lambda p, g: p - g)


# the page


PAGE = (
    (ROOT / "docs" / "reference" / "arithmetic.md")
    .read_text(encoding="utf-8")
    .partition("\n## Gradients\n")[2]
)


def test_the_page_prints_what_it_shows(name, capsys):
    names, examples = (
        {},
        re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL),
    )
    assert len(examples) == 2
    for example, shown in examples:
        exec(example, names)
        assert capsys.readouterr().out == shown


def test_kinks_have_the_gradients_of_the_page(name, xp):
    head, *rows = re.findall(
        r"^\| (.*) \|$",
        re.split(r"\n##", PAGE.partition("### Where a gradient")[2])[0],
        re.MULTILINE,
    )
    place = [cell.strip() for cell in head.split("|")].index(name)
    found, told = {}, {}
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        function = eval(f"lambda x: xp.sum({cells[0].strip('`')})", {"xp": xp})
        found[cells[0]] = [
            f"{one:g}" for one in lists(xdevice.math.grad(function)(xdevice.tensor([0.0, 0.0])))
        ]
        told[cells[0]] = [cells[place]] * 2
    assert len(rows) > 10
    assert found == told


# constants


def test_what_is_stopped_is_a_constant(xd):
    x = xdevice.tensor([1.0, 2.0])
    stopped = xdevice.math.stop_gradient({"x": x, "note": "text", "n": [3, None]})
    assert (lists(stopped["x"]), stopped["note"], stopped["n"]) == (
        [1.0, 2.0],
        "text",
        [3, None],
    )
    assert xdevice.device_of(stopped["x"]) == xdevice.device_of(x)
    if xd.name == "numpy":
        assert stopped["x"] is x
        return
    xp = xdevice.array_namespace(x)

    def loss(x):
        return xp.sum(x * xdevice.math.stop_gradient([x * x])[0])

    assert lists(xdevice.math.grad(loss)(x)) == [1.0, 4.0]
    assert lists(xdevice.compile(lambda x: xdevice.math.grad(loss)(x))(x)) == [1.0, 4.0]
    with pytest.raises(xdevice.errors.ArgumentError, match="does not depend on any parameter"):
        xdevice.math.grad(lambda x: xp.sum(xdevice.math.stop_gradient(x)))(x)


def test_only_tensors_can_be_stopped(xd):
    for nothing in (3.0, {"a": [None]}, ()):
        with pytest.raises(xdevice.errors.NotATensorError, match="but there is none in"):
            xdevice.math.stop_gradient(nothing)
    if xd.name in WITH_MODELS:
        with pytest.raises(xdevice.errors.NotATensorError, match="not models such as"):
            xdevice.math.stop_gradient([xd.samples().network(2, 1)])


@pytest.mark.virtual
def test_what_is_stopped_stays_where_it_is(xd):
    if xd.name == "numpy" or not xdevice.num_gpus():
        pytest.skip("no GPU")
    assert xdevice.device_of(
        xdevice.math.stop_gradient(xdevice.ones(2, device="gpu:0"))
    ) == xdevice.gpu(0)


def test_a_gradient_belongs_to_the_parameter_of_its_path_also_in_an_inner_container(backend):
    if backend.name == "numpy":
        pytest.skip("has no gradients")
    one, two = xdevice.tensor([1.0]), xdevice.tensor([2.0])
    made = xdevice.math.update(
        {"in": {"x": one, "y": two}}, {"in": {"y": two, "x": one}}, lambda p, g: p + g
    )
    assert [xdevice.to_numpy(made["in"][name]).tolist() for name in ("x", "y")] == [
        [2.0],
        [4.0],
    ]


def test_parameters_in_the_place_of_has_aux_are_refused():
    for differentiate in (xdevice.math.value_and_grad, xdevice.math.grad):
        with pytest.raises(TypeError, match="1 positional argument"):
            differentiate(lambda params: params, {"w": 1.0})
