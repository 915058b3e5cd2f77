"""Gradients where operands are broadcast, on every framework, against finite differences in NumPy's float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.environment import FRAMEWORKS, SHIMS, framework, sampled

import xdevice

STACKS = [
    ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((4, 2, 3), (3, 2)), ((2, 3), (4, 3, 2)),
    ((4, 2, 3), (4, 3, 2)), ((1, 2, 3), (4, 3, 2)), ((4, 2, 3), (1, 3, 2)), ((2, 1, 2, 3), (4, 3, 2)),
    ((2, 1, 2, 3), (1, 4, 3, 2)), ((4, 2, 3), (2, 1, 3, 2)), ((2, 4, 2, 3), (4, 3, 2)), ((3,), (4, 3, 2)),
    ((2, 4, 2, 3), (3,)), ((1, 1, 2, 3), (3, 2)), ((2, 1, 1, 2, 3), (1, 2, 1, 3, 2)), ((1, 4, 1, 3), (2, 1, 3, 1)),
    ((2, 2, 3), (1, 1, 3, 2)),
]  # fmt: skip
"""Operands of `matmul`: none, one or both of them are broadcast over the stacks."""
SQUARES = [
    ((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (3,)), ((3, 3), (4, 3, 2)), ((4, 3, 3), (3, 1)),
    ((2, 1, 3, 3), (4, 3, 2)), ((1, 3, 3), (2, 3, 1)),
]  # fmt: skip
PAIRS = [
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((4, 1, 3), (2, 1)),
    ((), (2, 3)),
    ((1, 1), (2,)),
    ((2, 3), (2, 3)),
]
LAST_OF_3 = [((2, 3), (3,)), ((2, 1, 3), (4, 3)), ((1, 3), (2, 3))]
ELEMENTWISE = (
    "add", "atan2", "copysign", "divide", "hypot", "logaddexp", "maximum", "minimum", "multiply", "pow", "remainder",
    "subtract",
)  # fmt: skip


def called(name, xp, a, b):
    return getattr(xp, name)(a, b)


CASES: dict[str, tuple[Any, list[Any]]] = {
    "matmul": (lambda xp, a, b: xp.matmul(a, b), STACKS),
    "linalg.matmul": (lambda xp, a, b: xp.linalg.matmul(a, b), STACKS[9:12]),
    "einsum": (lambda xp, a, b: xdevice.math.einsum("...ij,...jk->...ik", a, b), [STACKS[i] for i in (3, 4, 6, 12)]),
    "linalg.solve": (lambda xp, a, b: xp.linalg.solve(dominant(xp, a), b), SQUARES),
    "where": (lambda xp, a, b: xp.where(xp.greater(a, b), xp.multiply(a, 2.0), b), PAIRS),
    "clip": (lambda xp, a, b: xp.clip(a, b, 1.2), [((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 3), ())]),
    "vecdot": (lambda xp, a, b: xp.vecdot(a, b), LAST_OF_3),
    "tensordot": (
        lambda xp, a, b: xp.tensordot(a, b, axes=1), [((2, 3), (3, 2)), ((4, 2, 3), (3,)), ((3,), (3, 1, 2))]
    ),
    "linalg.cross": (lambda xp, a, b: xp.linalg.cross(a, b), LAST_OF_3),
    "linalg.outer": (lambda xp, a, b: xp.linalg.outer(a, b), [((2,), (3,)), ((1,), (2,))]),
    "broadcast_arrays": (lambda xp, a, b: xp.multiply(*xp.broadcast_arrays(a, b)), PAIRS),
    "broadcast_to": (
        lambda xp, a, b: xp.multiply(xp.broadcast_to(a, (4, 2, 3)), b),
        [((1, 3), (4, 2, 3)), ((), (2, 1)), ((2, 1), (4, 1, 3))],
    ),
    **{name: (partial(called, name), PAIRS) for name in ELEMENTWISE},
}  # fmt: skip


@pytest.fixture(params=sampled(FRAMEWORKS, each_time=("torch",), slow=SHIMS, others="long"))
def name(request):
    with xdevice.use_backend(request.param) as backend:
        if request.param == "mxnet":
            backend.framework.npx.set_np()
        yield request.param
        if request.param == "mxnet":
            backend.framework.npx.reset_np()


def dominant(xp, a):
    """Matrices that have an inverse."""
    return xp.add(a, xp.multiply(xp.eye(3, dtype=a.dtype), 4.0))


def values(shape, first):
    count = int(np.prod(shape))
    return ((np.arange(count) * 0.3719 + first) % 1.0 + 0.5).reshape(shape)


def loss_of(function, xp, weights):
    def loss(operands):
        result = function(xp, *operands)
        return xp.sum(
            xp.multiply(result, xp.asarray(weights(result.shape), dtype=result.dtype))
        )

    return loss


def weights(shape):
    return values(tuple(shape), 0.1) - 0.7


def differences(loss, operands, step=1e-5):
    """The gradients of a loss with respect to arrays, by what it changes with each of their numbers."""
    gradients = []
    for i, x in enumerate(operands):
        gradient = np.zeros_like(x)
        for place in np.ndindex(x.shape):
            around = []
            for sign in (1, -1):
                moved = x.copy()
                moved[place] += sign * step
                around.append(float(loss([*operands[:i], moved, *operands[i + 1 :]])))
            gradient[place] = (around[0] - around[1]) / (2 * step)
        gradients.append(gradient)
    return gradients


# Paddle's `copysign` warns of what it broadcasts
@pytest.mark.filterwarnings("ignore:The shape of broadcast output:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_broadcast_operands_are_those_of_finite_differences(name, case):
    function, shapes = CASES[case]
    wrong = []
    for pair in shapes:
        operands = [
            values(shape, first) for shape, first in zip(pair, (0.0313, 0.2971), strict=True)
        ]
        with xdevice.use_backend("numpy"):
            expected = differences(
                loss_of(function, xdevice.array_namespace(), weights), operands
            )
        # no gradient flows to where `copysign` takes only signs from
        for constant in (None, 1) if case == "copysign" else (None, 0, 1):
            tensors = [xdevice.tensor(x) for x in operands]
            loss = loss_of(function, xdevice.array_namespace(tensors[0]), weights)
            gradients = gradients_of(loss, tensors, constant)
            for i, gradient in gradients.items():
                if gradient.shape != expected[i].shape or not np.allclose(
                    gradient, expected[i], 1e-3, 1e-3
                ):
                    wrong.append(
                        f"{pair}, of operand {i}, constant {constant}: {gradient.tolist()} {expected[i].tolist()}"
                    )
    assert not wrong, "\n".join(wrong)


def gradients_of(loss, tensors, constant):
    """The gradients with respect to all tensors but one, as arrays by place."""
    if constant is None:
        return dict(enumerate(map(xdevice.to_numpy, xdevice.math.grad(loss)(tensors))))
    other = 1 - constant
    place = [None, None]

    def of_one(x):
        place[other], place[constant] = x, tensors[constant]
        return loss(place)

    return {other: xdevice.to_numpy(xdevice.math.grad(of_one)(tensors[other]))}


@pytest.mark.parametrize("constant", [0, 1])
def test_solve_has_second_gradients_where_paddle_has_none(constant):
    """Its own kernel ends the process where one operand is constant."""
    framework("paddle")
    with xdevice.use_backend("paddle"):
        xp = xdevice.array_namespace()
        matrix, right = (
            xdevice.tensor([[2.3, 0.2], [0.1, 2.7]]),
            xdevice.tensor([[1.0, 0.5], [0.3, 0.2]]),
        )

        def loss(t):
            operands = [matrix, right]
            operands[1 - constant] = xp.add(
                operands[1 - constant], xp.multiply(right, xp.multiply(t, t))
            )
            return xp.sum(xp.square(xp.linalg.solve(*operands)))

        def slope(t):
            return xdevice.item(xdevice.math.grad(loss)(xdevice.tensor(t)))

        expected = (slope(0.71) - slope(0.69)) / 0.02
        actual = xdevice.item(xdevice.math.grad(xdevice.math.grad(loss))(xdevice.tensor(0.7)))
        assert actual == pytest.approx(expected, rel=1e-2)
