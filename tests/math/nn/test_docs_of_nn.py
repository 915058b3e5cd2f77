"""The page on functions of layers: its example prints the same on every backend, its table has every function."""

from __future__ import annotations

import re
import sys

import pytest
from helpers.environment import ROOT, printed, python, sampled

import xdevice
from xdevice.math.contract import nn as contract

COMPOSED = ("leaky_relu", "logsumexp")
WORDS = sorted(
    {
        *contract.KERNELS,
        *contract.BY_HAND,
        "binary_cross_entropy_with_logits",
        "mse_loss",
        "moments",
        *COMPOSED,
    }
)
WORDS = [name for name in WORDS if name not in ("binary_cross_entropies", "cross_entropies")]
TRAINED = """
def loss(p):
    cell = gru_cell({**weights, "wx": p["wx"]}, p["x"], xdevice.zeros(2, 1))
    ids = xdevice.tensor([0, 1])
    solved = solve_triangular(p["x"], xdevice.tensor([2.0, 9.0]))
    sums = xp.square(segment_sum(p["x"], ids, 2))
    return xp.sum(cell) + xp.sum(solved) + xp.sum(gather(p["x"], ids, ids)) + xp.sum(sums)


@xdevice.compile
def at_once(x, weights):
    first, last = xp.asarray([0, 1]), xp.asarray([1, 0])
    cell = gru_cell(weights, x, xp.zeros((2, 1)))
    return cell, gather(x, first, last), segment_sum(x, last, 2), solve_triangular(x, x)


p = {"x": x, "wx": weights["wx"]}
step = xdevice.math.value_and_grad(loss)
gathered, sums, solved = [xdevice.to_numpy(part).round(5).tolist() for part in at_once(x, weights)[1:]]
assert (gathered, sums, solved) == ([0.0, 1.0], [[1.0, 4.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
value, grads = step(p)
for name in p:
    for place in ((0, 0), (1, 1)):
        moved = [step({**p, name: xdevice.math.at(p[name])[place].add(d)})[0] for d in (0.01, -0.01)]
        apart = (xdevice.item(moved[0]) - xdevice.item(moved[1])) / 0.02
        assert abs(apart - xdevice.to_numpy(grads[name])[place]) < 0.01, (name, place)
"""
PAGE = (ROOT / "docs" / "reference" / "nn.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "backend", sampled(xdevice.backends(), each_time=("numpy",), slow=["torch"], others="long")
)
def test_the_example_prints_what_it_shows(backend):
    examples, shown = zip(
        *re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL), strict=True
    )
    assert len(examples) == 2
    done = python(
        "-c",
        "\n".join([*examples, "" if backend == "numpy" else TRAINED]),
        XDEVICE_BACKEND=backend,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(shown)


def test_the_names_are_those_of_the_page_and_of_the_contract():
    told = re.findall(
        r"`(\w+)\([^)]*\)`", PAGE.partition("## The functions")[2].partition("\n- ")[0]
    )
    assert sorted(told) == sorted(xdevice.nn.__all__) == WORDS


def test_xdevice_itself_does_not_load_it():
    code = "import xdevice, sys; assert not {'xdevice.nn', 'xdevice.math', 'numpy', 'typing'} & set(sys.modules)"
    printed("-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}")
