"""`xdevice.compile`: what the function gives, what it refuses, and that it never repeats what has changed."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from helpers.environment import BACKENDS, printed

import xdevice

HERE = Path(__file__).parent
COMPILING = [name for name in ("jax", "tensorflow", "torch") if name in BACKENDS]
WITH_GRADIENTS = [name for name in BACKENDS if name != "numpy"]
rate = 0.1


@dataclass
class Net:
    weight: object
    bias: object
    name: str = "net"


class State(NamedTuple):
    weight: object
    steps: object = 0


class Schedule:
    def __init__(self):
        self.rate = 0.5

    def __call__(self, g):
        return self.rate * g


@dataclass
class Slow:
    x: object
    factor = 0.5

    def scaled(self):
        return self.x * self.factor

    @property
    def own(self):
        return self.x * rate


class Slower(Slow):
    def scaled(self):
        return 0.5 * super().scaled()


times = 2.0


def decorated(function):
    @wraps(function)
    def wrapper(x):
        return times * function(x)

    return wrapper


@pytest.fixture(params=COMPILING)
def compiling(request):
    with xdevice.use_backend(request.param) as chosen:
        yield chosen


def values(x):
    return xdevice.to_numpy(x).tolist()


def squares():
    return xdevice.tensor([1.0, 2.0, 3.0])


def loss(net, x, y):
    xp = xdevice.array_namespace(x)
    return xdevice.nn.cross_entropy(xp.add(xp.matmul(x, net.weight), net.bias), y)


def step(params, x, y, rule):
    def f(params):
        return loss(Net(**params), x, y)

    value, grads = xdevice.math.value_and_grad(f)(params)
    return {
        "params": xdevice.math.update(params, grads, rule),
        "loss": value,
        "names": ["w", "b"],
    }


def slower(p, g):
    return p - rate * g


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_a_whole_step_gives_what_it_gives_uncompiled(name):
    with xdevice.use_backend(name):
        draw = np.random.default_rng(0)
        x, y = (
            xdevice.tensor(draw.normal(size=(8, 4)).astype("float32")),
            xdevice.tensor([0, 1, 2] * 2 + [0, 1]),
        )
        params = {"weight": xdevice.zeros(4, 3), "bias": xdevice.zeros(3)}
        compiled, one, other = xdevice.compile(step), params, params
        for _ in range(4):
            made, wanted = compiled(one, x, y=y, rule=slower), step(other, x, y, slower)
            one, other = made["params"], wanted["params"]
            assert list(made) == list(wanted)
            assert made["names"] == ["w", "b"]
            np.testing.assert_allclose(
                xdevice.item(made["loss"]), xdevice.item(wanted["loss"]), rtol=1e-6
            )
        np.testing.assert_allclose(
            xdevice.to_numpy(one["weight"]), xdevice.to_numpy(other["weight"]), rtol=1e-5
        )


def test_containers_keep_their_type_and_what_is_no_tensor_in_them(compiling):
    made = xdevice.compile(
        lambda net, *more: (Net(net.weight * 2, more, net.name), {"x": [net.bias, None, 1.5]})
    )
    net, rest = made(Net(squares(), squares(), "given"), "text", squares())
    assert (type(net), net.name, values(net.weight), net.bias[0]) == (
        Net,
        "given",
        [2.0, 4.0, 6.0],
        "text",
    )
    assert (values(rest["x"][0]), rest["x"][1:]) == ([1.0, 2.0, 3.0], [None, 1.5])
    state = xdevice.compile(lambda x: State(2 * x)._replace(steps=x))(squares())
    assert (type(state), values(state.weight), values(state.steps)) == (
        State,
        [2.0, 4.0, 6.0],
        [1.0, 2.0, 3.0],
    )


def test_a_result_is_built_as_the_function_gives_it(compiling):
    def nested(x):
        pair = (x, [2 * x, {"three": 3 * x}])
        return {"pair": pair, "alone": {"x": x}, "none": ()}

    x = squares()
    for function in (nested, lambda x: x, lambda x: (x, 7)):
        for _ in range(2):
            made = xdevice.compile(function)(x)
            xdevice.assert_parity(made, function(x))
    compiled = xdevice.compile(nested)
    assert compiled(x)["pair"] is not compiled(x)["pair"]


def test_python_runs_once_for_each_shape_dtype_and_other_value(compiling, capsys):
    @xdevice.compile
    def power(x, n):
        print(tuple(x.shape), n)
        return x**n

    for x, n in (
        (squares(), 2),
        (squares(), 3),
        (squares(), 2),
        (squares()[:2], 2),
        (squares(), 2.0),
        (squares(), 2),
    ):
        np.testing.assert_allclose(values(power(x, n)), np.array(values(x)) ** n)
    assert capsys.readouterr().out.splitlines() == ["(3,) 2", "(3,) 3", "(2,) 2", "(3,) 2.0"]


def test_python_runs_once_for_each_shape_dtype_and_other_value_of_zeros_sign(compiling):
    sign = xdevice.compile(lambda x, zero: x * float(np.copysign(1, zero)))
    assert values(sign(squares(), 0.0)) == [1.0, 2.0, 3.0]
    assert values(sign(squares(), -0.0)) == [-1.0, -2.0, -3.0]


# what is outside the arguments


class Agreeing:
    """Compares a compiled function with the function itself, of which the values are to be others each time."""

    def __init__(self, function):
        self._function, self._compiled, self._before = function, xdevice.compile(function), []

    def __call__(self):
        now = [values(one)[0] for one in self._compiled(squares())]
        np.testing.assert_allclose(
            now, [values(one)[0] for one in self._function(squares())], rtol=1e-6
        )
        assert now != self._before
        self._before = now


def test_a_variable_that_has_changed_counts(compiling, monkeypatch):
    here = xdevice.tensor([1.0])
    factors, settings = [2.0], {"rate": 0.5}

    def function(x, default=factors):
        return [x * rate, x * here, x * factors[0], x * default[0], x * settings["rate"]]

    agree = Agreeing(function)
    agree()
    monkeypatch.setitem(globals(), "rate", 7.0)
    agree()
    here = xdevice.tensor([3.0])
    agree()
    factors[0] = 11.0
    agree()
    settings["rate"] = 13.0
    agree()


def test_a_function_that_has_changed_counts(compiling, monkeypatch):
    def helper(x, *, factor=3.0):
        return x * factor

    @decorated
    def around(x):
        return x * later

    agree = Agreeing(lambda x: [helper(x), around(x)])
    later = 23.0
    agree()
    helper.__kwdefaults__["factor"] = 17.0
    agree()
    helper.__code__ = (lambda x, *, factor: -x * factor).__code__
    agree()
    later = 29.0
    agree()
    monkeypatch.setitem(globals(), "times", 31.0)
    agree()
    helper = decorated(around)
    agree()


def test_a_class_that_has_changed_counts(compiling, monkeypatch):
    agree = Agreeing(lambda x: [Slower(x).scaled(), Slower(x).own])
    agree()
    monkeypatch.setitem(globals(), "rate", 7.0)
    agree()
    monkeypatch.setattr(Slow, "factor", 41.0)
    agree()
    monkeypatch.setattr(Slow, "scaled", lambda self: self.x * 43.0)
    agree()
    monkeypatch.setattr(Slow, "own", property(lambda self: self.x * 47.0))
    agree()


def test_a_variable_of_an_argument_that_is_code_counts(compiling, monkeypatch):
    compiled = xdevice.compile(lambda net, x, cls, f: [net.scaled(), cls(x).scaled(), f(x)])

    def by_rate(x):
        return x * rate

    def now():
        return [values(one)[0] for one in compiled(Slower(squares()), squares(), Slow, by_rate)]

    assert now() == [0.25, 0.5, np.float32(0.1)]
    monkeypatch.setattr(Slow, "factor", 4.0)
    monkeypatch.setitem(globals(), "rate", 8.0)
    assert now() == [2.0, 4.0, 8.0]


def test_programs_are_told_apart_by_the_structure_of_the_arguments(compiling):
    first = xdevice.compile(lambda xs: [x if type(x) is int else x * 2 for x in xs])
    assert values(first([squares(), 2])[0]) == [2.0, 4.0, 6.0]
    assert first([2, squares()])[0] == 2
    keys = xdevice.compile(lambda xs: [(key, xs[key]) for key in xs])
    one, other = squares(), squares() * 2
    assert [(key, values(x)[0]) for key, x in keys({"a": one, "b": other})] == [
        ("a", 1.0),
        ("b", 2.0),
    ]
    assert [(key, values(x)[0]) for key, x in keys({"b": one, "a": other})] == [
        ("b", 1.0),
        ("a", 2.0),
    ]


def read(x):
    return x * xdevice.item(x[0])


def decide(x):
    return x if x[0] > 0 else -x


def draw(x):
    return x + xdevice.random.normal(3)


def draw_by_numpy(x):
    return x + float(np.random.normal())


def draw_by_python(x):
    return x + random.random()


def ask(x):
    return x + (1.0 if xdevice.device_of(x) is xdevice.cpu() else 0.0)


seen = []
table = np.ones(3, "float32")


def note(x):
    seen.append(1)
    return x


def write(params):
    params["x"] = params["x"] * 2
    return params["x"]


def use_array(x):
    return x * xdevice.tensor(table)


def give_array(x):
    return x, np.ones(3)


def wait_for(x, lock=__import__("threading").Lock()):  # noqa: B008
    with lock:
        return x


schedule, kept = Schedule(), lru_cache(lambda x: x * rate)


class Scale(float):
    pass


class Factors(list):
    pass


scale, factors, settings = Scale(2.0), Factors([2.0]), SimpleNamespace(rate=2.0)
module = ModuleType("settings_of_mine")


def use_object(x):
    return schedule(x)


def use_method(x, call=schedule.__call__):
    return call(x)


def use_cache(x):
    return kept(x)


def use_number_with_attributes(x):
    return x * scale


def use_list_with_attributes(x):
    return x * factors[0]


def use_namespace(x):
    return x * settings.rate


def use_module(x):
    return x * module.rate


def use_import(x):
    import settings_of_mine

    return x * settings_of_mine.rate


def look_up(x):
    return x * globals()["rate"]


REFUSED = {
    read: "while", decide: "", draw: "draw the numbers outside", draw_by_numpy: "draws random numbers",
    draw_by_python: "draws random numbers", ask: "while", note: "changes seen", write: "changes a container",
    use_array: "table is .* of type ndarray", give_array: "return [a-z]+ tensors, numbers", wait_for: "of type lock",
    use_object: "schedule is .* of type Schedule", use_method: "of type Schedule",
    use_cache: "of type .*_lru_cache_wrapper",
    use_number_with_attributes: "of type Scale", use_list_with_attributes: "of type Factors",
    use_namespace: "of type SimpleNamespace", use_module: "of type module", use_import: "settings_of_mine is",
    look_up: "globals is",
}  # fmt: skip


@pytest.mark.parametrize("function", REFUSED, ids=lambda one: one.__name__)
def test_what_a_program_would_repeat_wrongly_is_refused(compiling, function, monkeypatch):
    monkeypatch.setitem(sys.modules, "settings_of_mine", module)
    argument = {"x": squares()} if function is write else squares()
    compiled = xdevice.compile(function)
    for _ in range(2):
        # of a decision the framework's own error names the line
        with pytest.raises(
            (xdevice.errors.UnsupportedError, TypeError), match=REFUSED[function] or None
        ):
            compiled(argument)


def test_functions_of_xdevice_are_compiled_themselves(compiling):
    x, relu = squares(), xdevice.nn.relu
    reshape = xdevice.array_namespace().reshape
    assert values(xdevice.compile(relu)(-x)) == [0.0, 0.0, 0.0]
    assert values(xdevice.compile(lambda x: reshape(relu(x), (1, 3)))(x)) == [[1.0, 2.0, 3.0]]
    total, square = xdevice.array_namespace().sum, xdevice.array_namespace().square
    assert values(xdevice.compile(lambda x: total(square(x)))(x)) == 14.0


def test_a_function_of_the_program_inside_of_one_of_xdevice_counts(compiling):
    factor = 2.0
    graded = xdevice.math.value_and_grad(lambda x: xdevice.array_namespace().sum(x * factor))
    compiled = xdevice.compile(lambda x: graded(x)[1])
    assert values(compiled(squares())) == [2.0, 2.0, 2.0]
    factor = 3.0
    assert values(compiled(squares())) == [3.0, 3.0, 3.0]
    partly = xdevice.math.value_and_grad(
        partial(lambda more, x: xdevice.array_namespace().sum(x * factor * more), 2.0)
    )
    compiled = xdevice.compile(lambda x: partly(x)[1])
    for factor in (1.0, 4.0):  # the function reads it
        assert values(compiled(squares())) == [factor * 2] * 3


def test_a_model_outside_is_refused(compiling):
    models = compiling.samples().models()
    if not models:
        pytest.skip("has no models")
    model = next(iter(models.values()))()
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"(?s)model is .*; pass the tensors and numbers"
    ):
        xdevice.compile(lambda x: model(x))(xdevice.ones(1, 2))


# its arguments


def test_wrong_arguments_are_refused_on_every_backend(backend):
    add = xdevice.compile(lambda *xs: xs)
    for option in (
        {"donate_argnums": 0},
        {"static_argnums": (1,)},
        {"mode": "max-autotune"},
        {"jit_compile": True},
    ):
        with pytest.raises(
            xdevice.errors.ArgumentError,
            match=f"no argument '{next(iter(option))}': .* nothing is don",
        ):
            xdevice.compile(lambda x: x, **option)
    with pytest.raises(xdevice.errors.ArgumentError, match="compile expects a function, not 3"):
        xdevice.compile(3)
    with pytest.raises(
        xdevice.errors.ArgumentError, match="needs at least one tensor among its arguments"
    ):
        add(1, 2)
    with pytest.raises(
        xdevice.errors.ArgumentError, match=r"argument\[0\]\[1\]\['a'\] is .* of type object"
    ):
        add(squares(), {"a": object()})
    if backend.name != "numpy":
        with pytest.raises(
            xdevice.errors.ArgumentError, match=r"argument\[0\]\[1\] belongs to numpy"
        ):
            add(squares(), np.ones(2))


def test_tensors_that_are_not_dense_are_refused():
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="convert these arguments to dense tensors"
    ):
        xdevice.compile(lambda x: x)(tf.sparse.eye(2))


def test_arguments_are_looked_at_as_closely_after_many_calls(compiling):
    def scaled(params, by):
        return [params["x"] * by, params["y"]]

    compiled, two = xdevice.compile(scaled), xdevice.tensor(2.0)

    def again():
        made = compiled({"x": squares(), "y": 1.5}, two)
        assert (values(made[0]), made[1]) == ([2.0, 4.0, 6.0], 1.5)

    for params, by in (
        ({"x": squares(), "y": 2.5}, two), ({"y": 1.5, "x": squares()}, two), ({"x": squares(), "y": 1.5}, 3),
        ({"x": two, "y": squares()}, two), ({"x": squares(), "y": [1.5]}, two),
    ):  # fmt: skip
        again()
        xdevice.assert_parity(compiled(params, by), scaled(params, by))
    again()
    xdevice.assert_parity(compiled(by=two, params={"x": squares(), "y": 0}), [squares() * 2, 0])
    for error, said, params, more in (
        (
            xdevice.errors.ArgumentError,
            "of the same framework",
            {"x": np.ones(3), "y": 1.5},
            {},
        ),
        (KeyError, "x", {"z": squares(), "y": 1.5}, {}),
        (TypeError, "unexpected keyword", {"x": squares(), "y": 1.5}, {"more": two}),
    ):
        again()
        with pytest.raises(error, match=said):
            compiled(params, two, **more)


def test_many_programs_for_one_function_are_warned_of(compiling):
    power = xdevice.compile(lambda x, n: x * n)
    for n in range(7):
        power(squares(), n)
    with pytest.warns(
        RuntimeWarning, match=r"compiled 8 times.*\(now \[7\]\).*as tensors"
    ) as warned:
        power(squares(), 7)
    assert warned[0].filename == __file__
    power(squares(), 8)  # it was said once


# with other verbs


def test_gradients_flow_through_a_compiled_function(compiling):
    cubes = xdevice.compile(lambda x: xdevice.array_namespace(x).sum(x * x * x))
    value, grads = xdevice.math.value_and_grad(cubes)(squares())
    assert (xdevice.item(value), values(grads)) == (36.0, [3.0, 12.0, 27.0])
    slope = xdevice.compile(xdevice.math.grad(cubes))
    assert values(slope(squares())) == [3.0, 12.0, 27.0]
    assert values(xdevice.compile(lambda x: cubes(x) + cubes(x))(squares())) == 72.0


def test_a_program_runs_where_its_tensors_are(compiling):
    other = compiling.samples().other_device()
    if other is None:
        pytest.skip("has one device here")

    def function(x):
        return x * 2, xdevice.array_namespace(x).ones_like(x)

    compiled = xdevice.compile(function)
    for place in (other, xdevice.cpu()):
        made = compiled(xdevice.to_device(squares(), place))
        assert [xdevice.device_of(one) for one in made] == [place, place]
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"argument\[0\]\[1\] is on"):
        xdevice.compile(lambda x, y: x)(squares(), xdevice.to_device(squares(), other))
    both = xdevice.compile(lambda x, y: x + y)
    here, there = squares(), xdevice.to_device(squares(), other)
    for _ in range(2):
        both(here, here), both(there, there)
    movable = compiling.framework.numpy.ones(3) if compiling.name == "jax" else here
    for pair in ((here, there), (there, here), (there, movable)):
        for _ in range(2):
            with pytest.raises(
                xdevice.errors.DeviceMismatchError, match=r"argument\[0\]\[1\] is on"
            ):
                both(*pair)


def test_threads_compile_side_by_side(compiling):
    double = xdevice.compile(lambda x, n: x * n)
    made = xdevice.parallel.run(*[partial(double, squares(), n) for n in range(5)])
    assert [values(one) for one in made] == [[n * 1.0, n * 2.0, n * 3.0] for n in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILING)
def test_replicas_train_by_compiled_functions(name):
    code = HERE / "programs_of_many.py"
    assert (
        printed(code, "replicas", XDEVICE_BACKEND=name, XDEVICE_VIRTUAL_GPUS="2")
        == "equal True"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILING)
def test_processes_train_by_compiled_functions_with_the_exchange_between_them(name):
    said = printed(
        "-m",
        "xdevice",
        "launch",
        "-n",
        2,
        HERE / "programs_of_many.py",
        "processes",
        XDEVICE_BACKEND=name,
    )
    for rank in (0, 1):
        assert f"[{rank}] equal True" in said
        assert f"[{rank}] world is <world: rank {rank} of 2" in said
    assert said.count("a compiled function would not notice if this value changed") == 2


def test_a_variable_is_an_argument_of_which_the_value_counts():
    if "tensorflow" not in COMPILING:
        pytest.skip("needs tensorflow")
    import tensorflow as tf

    with xdevice.use_backend("tensorflow"):
        double, variable = xdevice.compile(lambda params: params["w"] * 2), tf.Variable([1.0])
        assert values(double({"w": variable})) == [2.0]
        variable.assign([3.0])
        assert values(double({"w": variable})) == [6.0]
