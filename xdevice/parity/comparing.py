"""`assert_parity` and `compare`: whether two values hold the same numbers, and where they first do not.

The rule of each dtype is what honest runs of the same training on several frameworks were seen to keep, and faults were
seen to break; docs/reference/parity.md has the measurement. The distance in ULP is told and decides nothing: honest
runs are 10,000 and more of them apart.
"""

from __future__ import annotations

import math
from itertools import accumulate
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy

from xdevice.base.dtypes import host_dtype
from xdevice.base.floats import PARTS
from xdevice.contract import layouts
from xdevice.errors import ArgumentError, DTypeError, ParityError, listed

from .models import read_pair
from .running import run_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .models import Pair
    from .readings import Reading
    from .running import Both


class Tolerance(NamedTuple):
    """What a dtype allows: `|actual - expected| <= relative * |expected| + absolute * max(least, max|expected|)`."""

    relative: float
    absolute: float
    least: float

    def __str__(self) -> str:
        size = "max|expected|" if not self.least else f"max({self.least:g}, max|expected|)"
        return f"{self.relative:g} * |expected| + {self.absolute:g} * {size}"


TOLERANCES: Final = {
    "float64": Tolerance(1e-10, 1e-12, 1.0),
    "float32": Tolerance(1e-5, 1e-6, 1.0),
    "float16": Tolerance(8e-3, 2e-3, 0.0),
    "bfloat16": Tolerance(6e-2, 1.6e-2, 0.0),
}
"""From the finest dtype to the coarsest. A complex dtype follows that of its parts; ints and bools are exact."""

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
_PYTHON: Final = ("float", "complex")
_ROUNDING: Final = 3.0
"""Honest runs of deep models were seen at up to 2.3 times what is allowed."""
_NOISES: Final = 8.0
"""How many times what rounding alone does is allowed: 4 was the least without a false alarm."""
_FLOOR: Final = 2 * 2.0**-23
"""Of max|expected|: what is allowed where rounding did nothing."""

Problem = Literal["structure", "shape", "dtype", "device", "values", "settings"]


class Rule(NamedTuple):
    """How strictly to compare; the arguments of `assert_parity`."""

    rtol: float | None = None
    atol: float | None = None
    check_device: bool = False
    check_dtype: bool = True
    equal_nan: bool = False
    pythons: Literal["float32", "float64"] = "float32"
    """What two floats of Python's own are compared as: what `xdevice.tensor` makes of them."""
    float64_as: Literal["float32", "float64"] = "float64"
    """Whose rule float64 keeps. In a run in float64 only the first step of a name keeps its own."""
    noise: Mapping[str, float] | None = None
    """What rounding alone was seen to do, by leaf; see `xdevice.parity.noise`."""

    def check(self) -> Rule:
        """Itself; raises `ArgumentError` for a wrong tolerance."""
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Real) or not value >= 0:
                raise ArgumentError(
                    f"{name} must be a number of 0 or more, not {value!r:.100}; left out, it follows the dtype"
                )
        return self


class Comparison(NamedTuple):
    """What `compare` found. True if all is equal within the tolerances.

    Young: it may change in a minor version.

    Otherwise it describes the leaf that is furthest off. The element's fields are those of its worst element, the one
    whose error is the largest multiple of what is allowed; None where nothing could be computed.
    """

    ok: bool
    problem: Problem | None
    """What differs; values are compared only where all else agrees, and settings of models where values do."""
    leaf: str
    """The way to it from the value's name: `['x'][1]`, `0.weight`; empty for a tensor that is the value itself."""
    worst: tuple[int, ...] | None
    """The index of the worst element."""
    actual: Any
    expected: Any
    """The worst element's values, or the shapes, dtypes or devices that differ."""
    abs: float | int | None
    rel: float | None
    ulp: int | None
    """How many numbers of the coarser dtype it is away."""
    allowed: float | None
    """The largest absolute error that it may have."""
    excess: float
    """Its error as a multiple of what is allowed: 1 is the limit."""
    off: int
    total: int
    """How many elements of the leaf are off, of how many."""
    text: str
    """All of it in words; if all is equal, only what was left out: a count of batches that one of them lacks."""

    def __bool__(self) -> bool:
        return self.ok

    def _repr_html_(self) -> str:
        from html import escape

        if not self.ok:
            return f"<pre>{escape(self.text)}</pre>"
        at = f" at {self.leaf}{list(self.worst) if self.worst else ''}" if self.abs else ""
        return f"equal: {self.excess:.2g} of what is allowed{escape(at)}"


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

    Compares structure, shapes, dtypes and values, within the tolerances that docs/reference/parity.md has for each
    dtype. A list equals a tuple of the same leaves. The layers of two models of two frameworks are paired as
    `convert_state` pairs them, and their settings must agree too. Costs a copy of both to the host and some passes over
    it: 30 ms for a million elements. With `inputs` both models run too.

    Args:
        actual: a tensor, model, container or number, of any backend.
        expected: what it should be, of any backend.
        rtol, atol: instead of the tolerances of the dtype. Ints and bools stay exact.
        check_device, check_dtype: whether the tensors must be on the same device, and of the same dtype.
        equal_nan: whether NaN equals NaN.
        inputs: what `actual`, a model, takes: compares what both models return on it, instead of their variables.
        names: with `inputs`, which layer of `actual` is which of `expected`, as in `convert_state`.

    Raises:
        ParityError: they differ. It names the leaf, the worst element and its error, or the first layer that differs;
            it is an `AssertionError`, and its `comparison` is what `compare` returns.
        ArgumentError, DTypeError: a tolerance that is not a number of 0 or more; a dtype without tolerances.
        UnsupportedError, NotBuiltError: a symbolic tensor; a model without variables yet.

    Example:
        >>> xdevice.assert_parity({"w": xdevice.ones(2)}, {"w": xdevice.tensor([1, 1 + 1e-7])})
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
    left_out = _counters(actual, expected)
    if left_out:
        actual, expected = ([one for one in side if one.path not in left_out] for side in (actual, expected))
        rest = compare_readings(actual, expected, rule)
        note = f"\n  note      not compared, because only one has it: {listed(sorted(left_out), 3)}, a count of batches"
        return rest._replace(text=f"{rest.text}{note}".lstrip())
    found = _structure(actual, expected)
    if found is not None:
        return found
    theirs, mine = dict(zip(ways(actual), actual, strict=True)), ways(expected)
    pairs = [(theirs[way], reading) for way, reading in zip(mine, expected, strict=True)]
    checks: list[Callable[[Reading, Reading], Comparison | None]] = [_kind, _shape]
    checks += [_dtype] if rule.check_dtype else []
    checks += [_device] if rule.check_device else []
    for check in checks:
        for pair in pairs:
            found = check(*pair)
            if found is not None:
                return found
    noises = [rule.noise.get(way, 0.0) if rule.noise is not None else None for way in mine]
    return _worst_of([_values(*pair, rule, noise) for pair, noise in zip(pairs, noises, strict=True)])


def _of_runs(both: Both, rule: Rule) -> Comparison:
    """Two models by what they return."""
    found = compare_readings(both.actual, both.expected, rule)
    return found if found.ok else found._replace(text=f"{found.text}\n{both.where()}")


# what comes before values


def _report_unmapped(pair: Pair) -> Comparison:
    """Parameters of a model that have no counterpart in the other framework's."""
    lines = [f"\n  {path}: {why}" if path else f"\n  {why}" for path, why in pair.unmapped.items()]
    text = f"the models differ{_between(pair.actual, pair.expected)}:{_first_of(lines)}{_WHAT_IS_WHAT}"
    return _difference("structure", next(iter(pair.unmapped)), None, None, text)


def _first_of(lines: list[str]) -> str:
    """As many of them as a message may hold, and how many more there are."""
    ends = list(accumulate(map(len, lines)))
    count = max(1, min(_LISTED, sum(end <= _LONGEST for end in ends)))
    rest = f"\n  and {len(lines) - count} more" if len(lines) > count else ""
    return "".join(lines[:count]) + rest


def _settings(pair: Pair) -> Comparison:
    """Models that hold the same numbers and may compute something else with them."""
    lines = _first_of([f"\n  {line}" for line in pair.settings])
    text = (
        f"the parameters agree, and the layers are not shown to be set alike; not compared, or set differently:{lines}"
    )
    text += _BOTH
    return _difference("settings", pair.settings[0].partition(":")[0], None, None, text)


def _structure(actual: Sequence[Reading], expected: Sequence[Reading]) -> Comparison | None:
    mine, theirs = ways(expected), ways(actual)
    missing, extra = _without(mine, theirs), _without(theirs, mine)
    if not missing and not extra:
        return None
    what = [f"actual has no {_first(missing)}"] * bool(missing) + [f"expected has no {_first(extra)}"] * bool(extra)
    text = f"the structures differ{_between(actual, expected)}: {'; '.join(what)}"
    return _difference("structure", (missing + extra)[0], extra, missing, text)


def _counters(actual: Sequence[Reading], expected: Sequence[Reading]) -> set[str]:
    """The counts of batches that only one side has: bookkeeping of PyTorch's, and no weights."""
    paths, others = ({reading.path for reading in side} for side in (actual, expected))
    return {path for path in paths ^ others if path.rstrip("'\"]").endswith(layouts.COUNTER)}


def ways(leaves: Sequence[Reading]) -> list[str]:
    """Their paths, each once: keys of a dict may look the same."""
    seen: dict[str, int] = {}
    found = []
    for leaf in leaves:
        seen[leaf.path] = number = seen.get(leaf.path, 0) + 1
        found.append(leaf.path if number == 1 else f"{leaf.path} (number {number})")
    return found


def _without(paths: list[str], others: list[str]) -> list[str]:
    known = set(others)
    return [path for path in paths if path not in known]


def _first(paths: list[str]) -> str:
    return listed((path or "tensor by itself" for path in paths), 5)


def _between(actual: Sequence[Reading], expected: Sequence[Reading]) -> str:
    first, second = _owners(actual), _owners(expected)
    return f" (actual: {first}, expected: {second})"


def _owners(leaves: Sequence[Reading]) -> str:
    return ", ".join(sorted({leaf.owner for leaf in leaves} - {"Python"})) or "Python"


def _kind(actual: Reading, expected: Reading) -> Comparison | None:
    """A number beside a text, say: what the leaves are belongs to the structure."""
    if actual.is_number == expected.is_number:
        return None
    text = (
        f"the structures differ{_at(expected.path)}{_between([actual], [expected])}: "
        f"actual is {actual.value!r:.100} ({actual.dtype}), expected {expected.value!r:.100} ({expected.dtype})"
    )
    return _difference("structure", expected.path, actual.value, expected.value, text)


def _shape(actual: Reading, expected: Reading) -> Comparison | None:
    if actual.shape == expected.shape:
        return None
    hint = "; one is the other transposed" if actual.shape == expected.shape[::-1] else ""
    return _unequal("shape", actual, expected, actual.shape, expected.shape, hint)


def _dtype(actual: Reading, expected: Reading) -> Comparison | None:
    if actual.dtype == expected.dtype or not actual.is_number:
        return None
    is_weak = "Python" in (actual.owner, expected.owner) and actual.owner != expected.owner
    if is_weak and _category(actual) == _category(expected):
        return None
    hint = "; check_dtype=False compares the values all the same"
    return _unequal("dtype", actual, expected, actual.dtype, expected.dtype, hint)


def _category(reading: Reading) -> str:
    name = reading.dtype.lower().lstrip("bu") if reading.dtype != "bool" else "bool"
    return name.rstrip("0123456789")


def _device(actual: Reading, expected: Reading) -> Comparison | None:
    if actual.device == expected.device or None in (actual.device, expected.device):
        return None
    return _unequal("device", actual, expected, actual.device, expected.device)


def _unequal(
    problem: Problem, actual: Reading, expected: Reading, mine: object, theirs: object, hint: str = ""
) -> Comparison:
    text = (
        f"the {problem}s differ{_at(expected.path)}: "
        f"actual is {mine} ({_source(actual)}), expected {theirs} ({_source(expected)}){hint}"
    )
    return _difference(problem, expected.path, mine, theirs, text)


def _difference(problem: Problem, leaf: str, actual: object, expected: object, text: str) -> Comparison:
    return Comparison(False, problem, leaf, None, actual, expected, None, None, None, None, math.inf, 0, 0, text)


def of_structure(text: str) -> Comparison:
    """A difference of which a text is all that there is to tell."""
    return _difference("structure", "", None, None, text)


def _at(path: str) -> str:
    return f" at {path}" if path else ""


# values


def _worst_of(found: list[Comparison]) -> Comparison:
    if not found:
        return Comparison(True, None, "", None, None, None, 0.0, 0.0, 0, None, 0.0, 0, 0, "")
    worst = max(found, key=lambda comparison: comparison.excess)
    off = [comparison.leaf for comparison in found if not comparison.ok]
    if len(off) < 2:
        return worst
    others = _first([leaf for leaf in off if leaf != worst.leaf])
    return worst._replace(text=f"{worst.text}\n{len(off)} of {len(found)} leaves are off, this one most; also {others}")


def _values(actual: Reading, expected: Reading, rule: Rule, noise: float | None) -> Comparison:
    if not expected.is_number:
        return _things(actual, expected)
    a, b = numpy.ravel(actual.value), numpy.ravel(expected.value)
    if a.size == 0:
        return Comparison(True, None, expected.path, None, None, None, 0.0, 0.0, 0, None, 0.0, 0, 0, "")
    dtype = _coarser(actual, expected, rule.pythons)
    allowed = _allow(dtype, rule, noise)
    error, limit = _errors_of(a, b, allowed, rule.equal_nan)
    excess = _excess(error, limit)
    # where several have the same excess, as where nothing is allowed, the largest error
    place = int(numpy.where(excess == excess.max(), error, -1.0).argmax())
    index = tuple(int(i) for i in numpy.unravel_index(place, expected.shape))
    off = int(numpy.count_nonzero(excess > 1.0))
    mine, theirs = _number(a[place]), _number(b[place])
    absolute, relative = _errors(mine, theirs)
    found = Comparison(
        ok=not off, problem="values" if off else None, leaf=expected.path, worst=index,
        actual=mine, expected=theirs, abs=absolute, rel=relative,
        ulp=None if dtype is None else ulp_distance(mine, theirs, dtype),
        allowed=float(limit[place]), excess=float(excess[place]), off=off, total=a.size, text="",
    )  # fmt: skip
    if not off:
        return found
    hint = _hint(actual, expected, allowed, rule.equal_nan) + _maybe_rounding(found, dtype, rule)
    return found._replace(text=_message(found, actual, expected, dtype, allowed) + hint)


def _maybe_rounding(found: Comparison, dtype: str | None, rule: Rule) -> str:
    """What a rule that knows nothing of the computation cannot tell from a fault."""
    is_usual = rule.rtol is None and rule.atol is None and rule.noise is None
    if not is_usual or dtype in (None, "float64") or found.excess > _ROUNDING:
        return ""
    return (
        f"\n  note      {found.excess:.2g} times what is allowed may be rounding alone: "
        f"xdevice parity --float64 tells, and --calibrate allows for it"
    )


def _errors_of(a: Any, b: Any, allowed: _Allowed | None, equal_nan: bool) -> tuple[Any, Any]:
    """The error of each element, and what it may be."""
    return _exactly(a, b) if allowed is None else _nearly(a, b, allowed, equal_nan)


def _hint(actual: Reading, expected: Reading, allowed: _Allowed | None, equal_nan: bool) -> str:
    """The commonest fault of a port, if it is that: a kernel that one framework keeps transposed."""
    if len(expected.shape) < 2 or expected.shape != expected.shape[::-1]:
        return ""
    error, limit = _errors_of(actual.value.T.ravel(), expected.value.ravel(), allowed, equal_nan)
    return "" if (error > limit).any() else "\n  note      they are equal where one is transposed"


def _things(actual: Reading, expected: Reading) -> Comparison:
    """Texts, None, and what else is not a number."""
    if actual.value is expected.value or bool(actual.value == expected.value):
        return Comparison(True, None, expected.path, None, None, None, None, None, None, None, 0.0, 0, 1, "")
    text = f"the values differ{_at(expected.path)}: actual is {actual.value!r:.100}, expected {expected.value!r:.100}"
    found = _difference("values", expected.path, actual.value, expected.value, text)
    return found._replace(off=1, total=1)


def _coarser(actual: Reading, expected: Reading, pythons: str) -> str | None:
    """The coarser of two float dtypes; None if both are exact. A Python number goes along with the other."""
    names = {leaf.dtype for leaf in (actual, expected) if leaf.owner != "Python"}
    floats = {PARTS.get(name, name) for name in names if not _is_exact(name)}
    if not floats:
        floats = {pythons for leaf in (actual, expected) if leaf.dtype in _PYTHON}
    unknown = floats - set(TOLERANCES)
    if unknown:
        raise DTypeError(f"there is no rule for comparing {', '.join(sorted(unknown))}; convert it to float32 first")
    return next((name for name in reversed(TOLERANCES) if name in floats), None)


def _is_exact(name: str) -> bool:
    return name == "bool" or name.lstrip("u").startswith("int")


_DOES: Final = " that rounding alone does up to this step"


class _Allowed(NamedTuple):
    """The tolerance of a comparison: the dtype's, or a given one."""

    rtol: float
    atol: Callable[[float], float]
    """Of max|expected|."""
    text: str


def _allow(dtype: str | None, rule: Rule, noise: float | None) -> _Allowed | None:
    """None where nothing is."""
    if dtype is None:
        return _Allowed(0.0, lambda size: _NOISES * noise, f"{_NOISES:g} * {noise:.3g}{_DOES}") if noise else None
    if noise is not None and dtype == "float32":
        text = f"{_NOISES:g} * {noise:.3g}{_DOES}, + {_FLOOR:.2g} * max|expected|"
        return _Allowed(0.0, lambda size: _NOISES * noise + _FLOOR * size, text)
    usual = TOLERANCES[rule.float64_as if dtype == "float64" else dtype]
    rtol = usual.relative if rule.rtol is None else float(rule.rtol)
    if rule.atol is None:
        text = str(usual._replace(relative=rtol))
        return _Allowed(rtol, lambda size: usual.absolute * max(usual.least, size), text)
    given = float(rule.atol)
    return _Allowed(rtol, lambda size: given, f"{rtol:g} * |expected| + {given:g}")


def _nearly(a: Any, b: Any, allowed: _Allowed, equal_nan: bool) -> tuple[Any, Any]:
    wide = "complex128" if "c" in (a.dtype.kind, b.dtype.kind) else "float64"
    x, y = a.astype(wide), b.astype(wide)
    with numpy.errstate(all="ignore"):
        same = x == y
        if equal_nan:
            same |= numpy.isnan(x) & numpy.isnan(y)
        size = abs(y)
        scale = float(size.max(where=numpy.isfinite(size), initial=0.0))
        error = numpy.where(numpy.isfinite(x) & numpy.isfinite(y), abs(x - y), math.inf)
        error[same] = 0.0
        return error, allowed.rtol * numpy.where(numpy.isfinite(size), size, 0.0) + allowed.atol(scale)


def _exactly(a: Any, b: Any) -> tuple[Any, Any]:
    if a.dtype != b.dtype:  # NumPy 1.24 compares uint64 with int64 in float64, which has 53 bits
        a, b = a.astype(object), b.astype(object)
    off = numpy.asarray(a != b, dtype=bool)
    error = numpy.zeros(a.shape)
    # by Python's own ints, which do not overflow
    error[off] = abs(a[off].astype(object) - b[off].astype(object))
    return error, numpy.zeros(a.shape)


def _excess(error: Any, limit: Any) -> Any:
    with numpy.errstate(all="ignore"):
        excess = error / limit
    excess[numpy.isinf(error) | numpy.isnan(excess)] = math.inf
    excess[error == 0] = 0.0
    return excess


def _number(x: Any) -> Any:
    """An element as Python's own bool, int, float or complex."""
    if isinstance(x, bool | numpy.bool_):
        return bool(x)
    if isinstance(x, complex | numpy.complexfloating):
        return complex(x)
    return int(x) if isinstance(x, int | numpy.integer) else float(x)


def _errors(actual: Any, expected: Any) -> tuple[float | int, float]:
    """Absolute and relative error of one element; NaN where one is NaN."""
    if actual == expected:
        return 0, 0.0
    error = abs(actual - expected)
    return error, error / abs(expected) if expected else math.inf


def ulp_distance(actual: Any, expected: Any, dtype: str) -> int | None:
    """How many steps from one number of a float dtype to the next lie between two; None if one is NaN or infinite.

    Of complex numbers the larger distance of the two parts.

    Example:
        >>> from xdevice.parity.comparing import ulp_distance
        >>> ulp_distance(1.0, 1.0 + 2**-23, "float32"), ulp_distance(0.0, -0.0, "float64")
        (1, 0)
    """
    if isinstance(actual, complex) or isinstance(expected, complex):
        a, b = complex(actual), complex(expected)
        parts = ulp_distance(a.real, b.real, dtype), ulp_distance(a.imag, b.imag, dtype)
        return None if None in parts else max(part for part in parts if part is not None)
    places = _place_among(actual, dtype), _place_among(expected, dtype)
    return None if places[0] is None or places[1] is None else abs(places[0] - places[1])


def _place_among(x: Any, dtype: str) -> int | None:
    """The number's place in the row of all numbers of the dtype, 0.0 being 0."""
    with numpy.errstate(over="ignore"):
        rounded = numpy.asarray(x, dtype="float64").astype(host_dtype(dtype))
    if not numpy.isfinite(rounded):
        return None
    bits = 8 * rounded.dtype.itemsize
    pattern = int(rounded.view(f"uint{bits}"))
    sign = 1 << (bits - 1)
    return pattern if pattern < sign else sign - pattern


def _message(found: Comparison, actual: Reading, expected: Reading, dtype: str | None, allowed: _Allowed | None) -> str:
    at = f" at {list(found.worst)}" if found.worst else ""
    verb = "is" if found.off == 1 else "are"
    number = f"1 of {found.total} element" if found.off == 1 else f"{found.off} of {found.total} element"
    ulp = f", {found.ulp} ULP of {dtype}" if found.ulp is not None else ""
    limit = "exact, as ints and bools are" if allowed is None else allowed.text
    shown = [_text(value, reading.dtype) for value, reading in ((found.actual, actual), (found.expected, expected))]
    width = max(map(len, shown))
    return (
        f"the values differ{_at(found.leaf)}: {number}{'s' * (found.total > 1)} {verb} off\n"
        f"  actual    {shown[0]:<{width}}{at}  ({_source(actual)}, {actual.dtype})\n"
        f"  expected  {shown[1]:<{width}}{at}  ({_source(expected)}, {expected.dtype})\n"
        f"  error     {_text(found.abs, 'error')} absolute, {found.rel:.3g} relative{ulp}\n"
        f"  allowed   {limit}"
    )


def _source(reading: Reading) -> str:
    return f"{reading.origin} of {reading.owner}" if reading.origin else reading.owner


_DIGITS: Final = {"float16": 5, "bfloat16": 4, "float32": 9, "complex64": 9, "error": 3}


def _text(value: Any, dtype: str) -> str:
    """As many digits as the dtype can tell apart."""
    return str(value) if isinstance(value, int) else f"{value:.{_DIGITS.get(dtype, 17)}g}"
