"""Compares everything except the numbers of two values: which leaves the values have, and the kinds, shapes, dtypes and
devices of these leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdevice.errors import listed
from xdevice.twins.contract import layouts

from .comparison import Comparison, at, difference
from .host_leaves import PYTHON, unique_paths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .comparison import Problem
    from .host_leaves import HostLeaf
    from .tolerances import Strictness

    Leaves = list[HostLeaf]


def compare_paths(actual: Leaves, expected: Leaves) -> Comparison | None:
    """Returns a structural difference if one of two values has leaves that the other lacks; otherwise None."""
    # dicts, not sets, so that messages name the paths in program order
    ours, theirs = (dict.fromkeys(unique_paths(side)) for side in (actual, expected))
    missing = [path for path in theirs if path not in ours]
    extra = [path for path in ours if path not in theirs]
    if not missing and not extra:
        return None
    sentences = [f"actual has no {name_some(missing)}"] if missing else []
    sentences += [f"expected has no {name_some(extra)}"] if extra else []
    hint = _hint(actual, expected)
    text = f"the structures differ{owners_text(actual, expected)}: {'; '.join(sentences)}{hint}"
    # the paths that only one side has take the place of the values that differ
    return difference(
        "structure", text, leaf=(missing + extra)[0], actual=extra, expected=missing
    )


def _hint(actual: Leaves, expected: Leaves) -> str:
    """Returns advice for a message if one side is a single tensor, and the other is a list of numbers. The numbers of a
    list are compared as separate leaves. Otherwise returns ""."""
    for side, numbers, others in (("expected", expected, actual), ("actual", actual, expected)):
        # such as `[0]`, the path of an item
        is_list = all(
            leaf.owner == PYTHON and leaf.is_number and leaf.path.startswith("[")
            for leaf in numbers
        )
        if is_list and numbers and [leaf.path for leaf in others] == [""]:
            return f"; {side} is a container of numbers; convert a list to one array with np.asarray(...)"
    return ""


def counters_of_one_side(actual: Leaves, expected: Leaves) -> set[str]:
    """Returns the paths of batch counts that only one side has. PyTorch's batch norms store such counts, which do not
    affect any result."""
    ours, theirs = ({leaf.path for leaf in side} for side in (actual, expected))
    # a path may end with a quote and a bracket, as in `['0.num_batches_tracked']`
    return {path for path in ours ^ theirs if path.rstrip("'\"]").endswith(layouts.COUNTER)}


def name_some(paths: Iterable[str]) -> str:
    """Returns a string with the first five paths and the number of remaining paths."""
    return listed((path or "tensor by itself" for path in paths), 5)


def owners_text(actual: Leaves, expected: Leaves) -> str:
    """Returns a string with the frameworks of both sides, such as " (actual: torch 2.13.0, expected: jax 0.7.2)"."""
    owners = [
        ", ".join(sorted({leaf.owner for leaf in side} - {PYTHON})) or PYTHON
        for side in (actual, expected)
    ]
    return f" (actual: {owners[0]}, expected: {owners[1]})"


def compare_pairs(
    pairs: list[tuple[HostLeaf, HostLeaf]], rule: Strictness
) -> Comparison | None:
    """Returns the first difference between the two leaves of any pair; None if there is no difference. All pairs are
    compared by kind first, then by shape, by dtype and by device. Dtypes and devices are compared only if `rule`
    requires it. In each pair, the actual leaf comes first."""
    # each check covers all leaves before the next check starts, because a difference in kind or shape explains more
    # than a difference in dtype or device
    checks = [_compare_kinds, _compare_shapes]
    checks += [_compare_dtypes] if rule.check_dtype else []
    checks += [_compare_devices] if rule.check_device else []
    return next(
        (
            mismatch
            for check in checks
            for pair in pairs
            if (mismatch := check(*pair)) is not None
        ),
        None,
    )


def _compare_kinds(actual: HostLeaf, expected: HostLeaf) -> Comparison | None:
    """Returns a structural difference if only one of the two leaves is a tensor or number; otherwise None."""
    if actual.is_number == expected.is_number:
        return None
    text = (
        f"the structures differ{at(expected.path)}{owners_text([actual], [expected])}: "
        f"actual is {actual.value!r:.100} ({actual.dtype}), expected {expected.value!r:.100} ({expected.dtype})"
    )
    return difference("structure", text, expected.path, actual.value, expected.value)


def _compare_shapes(actual: HostLeaf, expected: HostLeaf) -> Comparison | None:
    """Returns the difference between the shapes of two leaves; None if they are equal."""
    if actual.shape == expected.shape:
        return None
    # it is often the weight of a linear layer, which PyTorch stores as (out, in) and Keras as (in, out)
    hint = "; one is the transpose of the other" if actual.shape == expected.shape[::-1] else ""
    return _attribute_difference("shape", actual, expected, hint)


def _compare_dtypes(actual: HostLeaf, expected: HostLeaf) -> Comparison | None:
    """Returns the difference between the dtypes of two leaves; None if they are equal or the leaves are not numbers. A
    Python number matches any dtype of its kind: a Python float matches float32, and a Python int matches uint8."""
    if actual.dtype == expected.dtype or not actual.is_number:
        return None
    # exactly one leaf is a Python number, which adopts the dtype of the tensor, as in the frameworks
    is_weak = PYTHON in (actual.owner, expected.owner) and actual.owner != expected.owner
    if is_weak and _category(actual.dtype) == _category(expected.dtype):
        return None
    return _attribute_difference(
        "dtype", actual, expected, "; pass check_dtype=False to compare only the values"
    )


def _category(dtype: str) -> str:
    """Returns the kind of a dtype: `int` for uint8 and int64, `float` for bfloat16, float32 and Python's float."""
    # the b of bfloat16 and the u of uint8 are removed, because they do not change the kind; "bool" would lose its first
    # letter
    return dtype if dtype == "bool" else dtype.lower().lstrip("bu").rstrip("0123456789")


def _compare_devices(actual: HostLeaf, expected: HostLeaf) -> Comparison | None:
    """Returns the difference between the devices of two leaves; None if they are equal, or if a leaf has no device."""
    # a Python number has no device
    if actual.device == expected.device or None in (actual.device, expected.device):
        return None
    return _attribute_difference("device", actual, expected)


def _attribute_difference(
    problem: Problem, actual: HostLeaf, expected: HostLeaf, hint: str = ""
) -> Comparison:
    """Returns the difference between two leaves in the attribute `problem`, which is "shape", "dtype" or "device". The
    message ends with `hint`."""
    ours, theirs = getattr(actual, problem), getattr(expected, problem)
    text = (
        f"the {problem}s differ{at(expected.path)}: "
        f"actual is {ours} ({actual.source}), expected {theirs} ({expected.source}){hint}"
    )
    return difference(problem, text, expected.path, ours, theirs)
