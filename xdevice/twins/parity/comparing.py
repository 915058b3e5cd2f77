"""`assert_parity` and `compare`: whether two values hold the same numbers, and if not, which leaf, element or layer
differs."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from xdevice.errors import ArgumentError, ParityError, listed
from xdevice.twins.models.reading import check_skip

from . import structures
from .comparison import Comparison, difference
from .explaining import is_statistic
from .models import read_pair
from .running import run_pair
from .structures import between, name_some, ways
from .tolerances import Rule
from .values import compare_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .models import Pair
    from .readings import Reading
    from .running import Both

_LISTED: Final = 20
"""How many parameters without a counterpart a message names."""
_LONGEST: Final = 1100
"""How many characters the lines about such parameters may take in a message, all together."""
_WHAT_IS_WHAT: Final = (
    "\n  note      names= and kinds= of convert_state say what is what: "
    "assert_parity(convert_state(actual, backend, like=expected, names=..., kinds=...), expected); "
    "skip= leaves layers out, and compares the others"
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
    skip: Iterable[str] = (),
) -> None:
    """Asserts that two values hold the same numbers, whatever frameworks they belong to.

    Compares structure, shapes, dtypes and values, within the tolerances that docs/reference/parity.md lists for each
    dtype. A list equals a tuple of the same leaves. The layers of two models of different frameworks are paired as
    `convert_state` pairs them, and their settings must agree too. Copies both values to the host and reads them several
    times: 30 ms for a million elements. With `inputs` both models run too.

    Args:
        actual: a tensor, model, container or number, of any backend.
        expected: the value that `actual` should equal, of any backend.
        rtol, atol: replace the tolerances of the dtype. Ints and bools must be equal in any case.
        check_device, check_dtype: whether the tensors must be on the same device, and of the same dtype.
        equal_nan: whether NaN equals NaN.
        inputs: a tensor, a tuple or a dict of keywords, for two models: what they return for it is compared instead.
        names: with `inputs`, which layer of `actual` corresponds to which of `expected`, as in `convert_state`.
        skip: without `inputs`, paths of layers of two models that are not compared, as in `convert_state`.

    Raises:
        ParityError: the values differ. Its text names the leaf, the worst element and the error, or the first layer
            that differs; it is an `AssertionError`, and its `comparison` is what `compare` returns.
        ArgumentError: a tolerance is not a number of 0 or more. DTypeError: a dtype has no tolerances.
        UnsupportedError: a symbolic tensor. NotBuiltError: a model has no variables yet.

    Example:
        >>> xdevice.assert_parity({"w": xdevice.ones(2)}, {"w": xdevice.tensor([1, 1 + 1e-7])})
    """
    __tracebackhide__ = True  # pytest shows the line of the test and the text, and nothing between
    rule = Rule(rtol, atol, check_device, check_dtype, equal_nan)
    found = _compare(actual, expected, rule, inputs, names, skip)
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
    skip: Iterable[str] = (),
) -> Comparison:
    """Compares two values as `assert_parity` does, and returns the result, with the worst error even if they agree.

    Young: it may change in a minor version.

    The arguments, the tolerances and the cost are those of `assert_parity`.

    Raises:
        ArgumentError, DTypeError, UnsupportedError, NotBuiltError: as in `assert_parity`. A difference raises nothing.

    Example:
        >>> found = xdevice.compare(xdevice.tensor([1, 2]), xdevice.tensor([1, 3]))
        >>> found.ok, found.worst, found.abs, found.off, found.total
        (False, (1,), 1, 1, 2)
    """
    return _compare(actual, expected, Rule(rtol, atol, check_device, check_dtype, equal_nan), inputs, names, skip)


def _compare(
    actual: object,
    expected: object,
    rule: Rule,
    inputs: object,
    names: Mapping[str, str] | None,
    skip: Iterable[str],
) -> Comparison:
    rule.check()
    left_out = check_skip(skip)
    if inputs is not None and left_out:
        raise ArgumentError("skip= leaves out parameters, and inputs= compares what both models return; give one")
    if inputs is not None:
        return _of_runs(run_pair(actual, expected, inputs, names or {}), rule)
    if names is not None:
        raise ArgumentError("names= says which layers inputs= pairs; give both, or convert_state(..., names=...)")
    pair = read_pair(actual, expected, left_out)
    if pair.unmapped:
        return _report_unmapped(pair)
    found = compare_readings(pair.actual, pair.expected, rule)
    return _settings(pair) if found.ok and pair.settings else found


def compare_readings(actual: Sequence[Reading], expected: Sequence[Reading], rule: Rule) -> Comparison:
    """Compares two values whose leaves have been read to the host before, such as those of two recordings."""
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
    statistics = rule._replace(float64_as=rule.statistics_as)
    rules = [statistics if is_statistic(way) else rule for way in mine]
    each = zip(pairs, rules, noises, strict=True)
    return _worst_of([compare_values(*pair, how, noise) for pair, how, noise in each])


def _of_runs(both: Both, rule: Rule) -> Comparison:
    """Compares the outputs of two models. If the outputs differ, the result's text names the first layer that
    differs."""
    found = compare_readings(both.actual, both.expected, rule)
    return found if found.ok else found._replace(text=f"{found.text}\n{both.where()}")


def _worst_of(found: list[Comparison]) -> Comparison:
    if not found:
        return Comparison(True, abs=0.0, rel=0.0, ulp=0)
    worst = max(found, key=lambda comparison: comparison.excess)
    off = [comparison.leaf for comparison in found if not comparison.ok]
    if len(off) < 2:
        return worst
    others = name_some([leaf for leaf in off if leaf != worst.leaf])
    return worst._replace(text=f"{worst.text}\n{len(off)} of {len(found)} leaves are off, this one most; also {others}")


def _report_unmapped(pair: Pair) -> Comparison:
    """Makes the `Comparison` for two models with parameters that have no counterpart in the other model."""
    lines = [f"\n  {path}: {why}" if path else f"\n  {why}" for path, why in pair.unmapped.items()]
    text = f"the models differ{between(pair.actual, pair.expected)}:{_first_of(lines)}{_WHAT_IS_WHAT}"
    return difference("structure", next(iter(pair.unmapped)), None, None, text)


def _settings(pair: Pair) -> Comparison:
    """Makes the `Comparison` for two models whose parameters agree, but whose layers' settings differ or could not be
    compared."""
    lines = _first_of([f"\n  {line}" for line in pair.settings])
    text = (
        f"the parameters agree, and the layers are not shown to be set alike; not compared, or set differently:{lines}"
    )
    text += _BOTH
    return difference("settings", pair.settings[0].partition(":")[0], None, None, text)


def _first_of(lines: list[str]) -> str:
    """The first of the lines, as many as a message may hold, and how many more there are."""
    ends = list(accumulate(map(len, lines)))
    count = max(1, min(_LISTED, sum(end <= _LONGEST for end in ends)))
    rest = f"\n  and {len(lines) - count} more" if len(lines) > count else ""
    return "".join(lines[:count]) + rest
