"""Compares what two values have besides their numbers: which leaves there are, and their kinds, shapes, dtypes and
devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdevice.errors import listed
from xdevice.twins.contract import layouts

from .comparison import Comparison, at, difference, source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .comparison import Problem
    from .readings import Reading
    from .tolerances import Rule


def compare_paths(actual: Sequence[Reading], expected: Sequence[Reading]) -> Comparison | None:
    mine, theirs = ways(expected), ways(actual)
    missing, extra = _without(mine, theirs), _without(theirs, mine)
    if not missing and not extra:
        return None
    what = [f"actual has no {name_some(missing)}"] * bool(missing) + [f"expected has no {name_some(extra)}"] * bool(
        extra
    )
    text = f"the structures differ{between(actual, expected)}: {'; '.join(what)}{_hint(actual, expected)}"
    return difference("structure", (missing + extra)[0], extra, missing, text)


def _hint(actual: Sequence[Reading], expected: Sequence[Reading]) -> str:
    """What to write where one side is a tensor and the other a list of numbers, each of which is a leaf."""
    for side, numbers, others in (("expected", expected, actual), ("actual", actual, expected)):
        is_list = all(one.owner == "Python" and one.is_number and one.path.startswith("[") for one in numbers)
        if is_list and numbers and [one.path for one in others] == [""]:
            return f"; {side} is a container of numbers, and np.asarray(...) makes one array of a list"
    return ""


def counters_of_one(actual: Sequence[Reading], expected: Sequence[Reading]) -> set[str]:
    """The paths of counts of batches that only one side has. PyTorch's batch norms keep such counts; they change no
    result."""
    paths, others = ({reading.path for reading in side} for side in (actual, expected))
    return {path for path in paths ^ others if path.rstrip("'\"]").endswith(layouts.COUNTER)}


def ways(leaves: Sequence[Reading]) -> list[str]:
    """The leaves' paths, made unique: two keys of a dict may have the same text, and the second path then gets a
    number."""
    seen: dict[str, int] = {}
    found = []
    for leaf in leaves:
        seen[leaf.path] = number = seen.get(leaf.path, 0) + 1
        found.append(leaf.path if number == 1 else f"{leaf.path} (number {number})")
    return found


def _without(paths: list[str], others: list[str]) -> list[str]:
    known = set(others)
    return [path for path in paths if path not in known]


def name_some(paths: list[str]) -> str:
    return listed((path or "tensor by itself" for path in paths), 5)


def between(actual: Sequence[Reading], expected: Sequence[Reading]) -> str:
    first, second = _name_owners(actual), _name_owners(expected)
    return f" (actual: {first}, expected: {second})"


def _name_owners(leaves: Sequence[Reading]) -> str:
    return ", ".join(sorted({leaf.owner for leaf in leaves} - {"Python"})) or "Python"


def compare_pairs(pairs: Sequence[tuple[Reading, Reading]], rule: Rule) -> Comparison | None:
    checks: list[Callable[[Reading, Reading], Comparison | None]] = [_kind, _shape]
    checks += [_dtype] if rule.check_dtype else []
    checks += [_device] if rule.check_device else []
    return next((found for check in checks for pair in pairs if (found := check(*pair)) is not None), None)


def _kind(actual: Reading, expected: Reading) -> Comparison | None:
    """A structural difference if one leaf is a tensor or number and the other leaf is not; otherwise None."""
    if actual.is_number == expected.is_number:
        return None
    text = (
        f"the structures differ{at(expected.path)}{between([actual], [expected])}: "
        f"actual is {actual.value!r:.100} ({actual.dtype}), expected {expected.value!r:.100} ({expected.dtype})"
    )
    return difference("structure", expected.path, actual.value, expected.value, text)


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
        f"the {problem}s differ{at(expected.path)}: "
        f"actual is {mine} ({source(actual)}), expected {theirs} ({source(expected)}){hint}"
    )
    return difference(problem, expected.path, mine, theirs, text)
