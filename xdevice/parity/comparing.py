"""`assert_parity` and `compare`: whether two values hold the same numbers, and where they first do not."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from xdevice.errors import ArgumentError, ParityError, listed

from . import structures
from .comparison import Comparison, difference
from .models import read_pair
from .running import run_pair
from .structures import between, name_some, ways
from .tolerances import Rule
from .values import compare_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .models import Pair
    from .readings import Reading
    from .running import Both

_LISTED: Final = 20
"""How many parameters without a counterpart a message names."""
_LONGEST: Final = 1100
"""How many characters these may take."""
_WHAT_IS_WHAT: Final = (
    "\n  note      names= and kinds= of convert_state say what is what: "
    "assert_parity(convert_state(actual, backend, like=expected, names=..., kinds=...), expected)"
)
_BOTH: Final = (
    "\n  note      inputs=x runs both models and compares what they return; "
    "assert_parity(convert_state(actual, backend, like=expected), expected) compares the parameters alone"
)


def assert_parity(
    actual: object,
    expected: object,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    check_device: bool = False,
    check_dtype: bool = True,
    equal_nan: bool = False,
    inputs: object = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Asserts that two values hold the same numbers, whatever frameworks they belong to.

    Compares the structure, then shapes, dtypes, devices if asked, then values. Of containers only the ways to the
    leaves count: a list equals a tuple of the same leaves. Python numbers count too, as whatever dtype they meet.

    Models of one framework are compared by the names of their variables; so is what `convert_state` gives beside a
    model. Models of two frameworks are compared as `convert_state(actual, ..., like=expected)` pairs their layers, in
    the layouts of `expected`; of `actual` where that has one bias for the sum of two, as the LSTM of Keras. What it
    cannot map is a difference. PyTorch's `num_batches_tracked` is compared only where both have it. If all variables
    agree, the settings of the layers must agree too: eps, padding, pools, activations. A layer is a difference if
    nothing tells whether the other model has it too, and so is an activation that only one of two layers has inside.
    Functions that a `forward` calls are not seen: `inputs` compares what models return. Optimizers and lone variables
    go by their names.

    An element is equal if `|actual - expected|` is at most

    | coarser dtype of the two | allowed |
    |---|---|
    | float64, complex128 | `1e-10 * |expected| + 1e-12 * max(1, max|expected|)` |
    | float32, complex64, two Python floats | `1e-5 * |expected| + 1e-6 * max(1, max|expected|)` |
    | float16 | `8e-3 * |expected| + 2e-3 * max|expected|` |
    | bfloat16 | `6e-2 * |expected| + 1.6e-2 * max|expected|` |
    | ints, bools | 0 |

    where `max|expected|` is over the leaf. The distance in ULP is shown and decides nothing. Infinities equal
    only themselves. Up to three times that may be rounding alone, which the message then says: in float64 it would
    vanish.

    Args:
        actual: a tensor, model, container or number, of any backend.
        expected: what it should be, of any backend.
        rtol: instead of the factor of `|expected|`. Ints and bools stay exact.
        atol: instead of all that follows the plus.
        check_device: whether tensors must be on the same device too.
        check_dtype: whether they must have the same dtype. A Python number has none, and goes with every dtype of its
            kind.
        equal_nan: whether NaN equals NaN.
        inputs: for two models: a tensor of any framework, or a tuple of them, as `actual` takes them. Both models are
            run on it, in evaluation mode, and what they return is compared instead of their variables; the error names
            the first layer that differs, or the gap between two layers in which it lies. Where one model has the
            channels of images last, its inputs and outputs are transposed.
        names: with `inputs`, which layer of `actual` is which of `expected`, where that is not clear, as in
            `convert_state`.

    Raises:
        ParityError: they differ. It names the leaf, both backends and versions, the worst element with both values,
            its absolute and relative error and its distance in ULP, and how many elements are off. It is an
            `AssertionError` too, and its `comparison` is what `compare` returns.
        ArgumentError: a tolerance that is negative or not a number. DTypeError: a dtype that has no rule, or that the
            framework of the other model lacks.
        UnsupportedError: a symbolic tensor. NotBuiltError: a model without variables yet.

    Costs a copy of both to the host and some passes over it in float64: 30 ms for a million elements. With `inputs`, a
    traced run of each model, and where they differ, three passes over what the layers gave.

    Example:
        >>> xdevice.assert_parity({"w": xdevice.ones(2)}, {"w": xdevice.tensor([1, 1 + 1e-7])})
        >>> xdevice.assert_parity({"w": xdevice.ones(2)}, {"w": xdevice.tensor([1, 1.001])})
        Traceback (most recent call last):
        ...
        xdevice.errors.ParityError: the values differ at ['w']: 1 of 2 elements is off
        ...
    """
    __tracebackhide__ = True  # pytest shows the line of the test and the text, and nothing between
    rule = Rule(rtol, atol, check_device, check_dtype, equal_nan)
    found = _compare(actual, expected, rule, inputs, names)
    if not found.ok:
        raise ParityError(found.text, found)


def compare(
    actual: object,
    expected: object,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    check_device: bool = False,
    check_dtype: bool = True,
    equal_nan: bool = False,
    inputs: object = None,
    names: Mapping[str, str] | None = None,
) -> Comparison:
    """Whether two values hold the same numbers, and the worst error, also where they do: `assert_parity` as a result.

    Young: it may change in a minor version.

    Arguments, rule and cost are those of `assert_parity`.

    Raises:
        ArgumentError, DTypeError, UnsupportedError, NotBuiltError: as `assert_parity` does. A difference is a result.

    Example:
        >>> found = xdevice.compare(xdevice.tensor([1, 2]), xdevice.tensor([1, 3]))
        >>> found.ok, found.worst, found.abs, found.off, found.total
        (False, (1,), 1, 1, 2)
    """
    return _compare(actual, expected, Rule(rtol, atol, check_device, check_dtype, equal_nan), inputs, names)


def _compare(
    actual: object, expected: object, rule: Rule, inputs: object, names: Mapping[str, str] | None
) -> Comparison:
    rule.check()
    if inputs is not None:
        return _of_runs(run_pair(actual, expected, inputs, names or {}), rule)
    if names is not None:
        raise ArgumentError("names= says which layers inputs= pairs; give both, or convert_state(..., names=...)")
    pair = read_pair(actual, expected)
    if pair.unmapped:
        return _report_unmapped(pair)
    found = compare_readings(pair.actual, pair.expected, rule)
    return _settings(pair) if found.ok and pair.settings else found


def compare_readings(actual: Sequence[Reading], expected: Sequence[Reading], rule: Rule) -> Comparison:
    """As `compare`, of values that were read before: the pytest plugin and the reports compare recordings by it."""
    left_out = structures.counters_of_one(actual, expected)
    if left_out:
        actual, expected = ([one for one in side if one.path not in left_out] for side in (actual, expected))
        rest = compare_readings(actual, expected, rule)
        note = f"\n  note      not compared, because only one has it: {listed(sorted(left_out), 3)}, a count of batches"
        return rest._replace(text=f"{rest.text}{note}".lstrip())
    found = structures.compare_paths(actual, expected)
    if found is not None:
        return found
    theirs, mine = dict(zip(ways(actual), actual, strict=True)), ways(expected)
    pairs = [(theirs[way], reading) for way, reading in zip(mine, expected, strict=True)]
    found = structures.compare_pairs(pairs, rule)
    if found is not None:
        return found
    noises = [rule.noise.get(way, 0.0) if rule.noise is not None else None for way in mine]
    return _worst_of([compare_values(*pair, rule, noise) for pair, noise in zip(pairs, noises, strict=True)])


def _of_runs(both: Both, rule: Rule) -> Comparison:
    """Two models by what they return."""
    found = compare_readings(both.actual, both.expected, rule)
    return found if found.ok else found._replace(text=f"{found.text}\n{both.where()}")


def _worst_of(found: list[Comparison]) -> Comparison:
    if not found:
        return Comparison(True, None, "", None, None, None, 0.0, 0.0, 0, None, 0.0, 0, 0, "")
    worst = max(found, key=lambda comparison: comparison.excess)
    off = [comparison.leaf for comparison in found if not comparison.ok]
    if len(off) < 2:
        return worst
    others = name_some([leaf for leaf in off if leaf != worst.leaf])
    return worst._replace(text=f"{worst.text}\n{len(off)} of {len(found)} leaves are off, this one most; also {others}")


def _report_unmapped(pair: Pair) -> Comparison:
    """Parameters of a model that have no counterpart in the other framework's."""
    lines = [f"\n  {path}: {why}" if path else f"\n  {why}" for path, why in pair.unmapped.items()]
    text = f"the models differ{between(pair.actual, pair.expected)}:{_first_of(lines)}{_WHAT_IS_WHAT}"
    return difference("structure", next(iter(pair.unmapped)), None, None, text)


def _settings(pair: Pair) -> Comparison:
    """Models that hold the same numbers and may compute something else with them."""
    lines = _first_of([f"\n  {line}" for line in pair.settings])
    text = (
        f"the parameters agree, and the layers are not shown to be set alike; not compared, or set differently:{lines}"
    )
    text += _BOTH
    return difference("settings", pair.settings[0].partition(":")[0], None, None, text)


def _first_of(lines: list[str]) -> str:
    """As many of them as a message may hold, and how many more there are."""
    ends = list(accumulate(map(len, lines)))
    count = max(1, min(_LISTED, sum(end <= _LONGEST for end in ends)))
    rest = f"\n  and {len(lines) - count} more" if len(lines) > count else ""
    return "".join(lines[:count]) + rest
