"""Defines `assert_parity` and `compare`, which check whether two values contain the same numbers. If not, they report
the leaf, element or layer that differs. (A leaf is one tensor or number in a value.) Both values are first read into
host memory (`host_leaves`, or `model_pairs` for two models). Then their structures are compared (`structures`), and
then their elements (`elements`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from xdevice.errors import (
    ArgumentError,
    NotATensorError,
    ParityError,
    XDeviceError,
    listed,
    shown,
)
from xdevice.twins.models.reading import check_skip
from xdevice.twins.tracing import functions

from . import structures
from .comparison import Comparison, difference
from .elements import compare_elements, note_on_relation
from .explaining import is_statistic
from .host_leaves import leaves, unique_paths
from .model_pairs import read_pair, read_settings, run_pair
from .tolerances import Strictness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .host_leaves import HostLeaf
    from .model_pairs import ModelOutputs, ReadPair

    Names = Mapping[str, str]

_LISTED: Final = 20
"""The maximum number of lines that a message lists, such as parameters without a counterpart, or settings."""
_LONGEST: Final = 1100
"""The maximum number of characters in the list in a message."""
# added to the message if the layers of two models could not be paired
_PAIRING_ADVICE: Final = (
    "\n  note      pass names= or kinds= to convert_state to pair them: "
    "assert_parity(convert_state(actual, backend, like=expected, names=..., kinds=...), expected); "
    "or pass skip= to compare all other layers"
)
# added to the message if only the settings of two models differ
_ADVICE: Final = (
    "\n  note      inputs=x runs both models and compares their outputs; "
    "assert_parity(convert_state(actual, backend, like=expected), expected) compares only the parameters"
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
    """Asserts that two values contain the same numbers, even if they belong to different frameworks.

    Compares structure, shapes, dtypes and values, within the tolerances that docs/reference/parity.md lists for each
    dtype. A list equals a tuple with the same contents. The layers of two models of different frameworks are paired as
    in `convert_state`, and their settings must agree too. Copies both values to the host and reads them several times,
    which takes 30 ms for a million elements. With `inputs`, both models also run.

    Args:
        actual, expected: tensors, models, containers or numbers, of any backend.
        rtol, atol: override the tolerances of the dtype, unless they are None. Ints and bools must always be equal.
        check_device, check_dtype: whether the tensors must have the same device, and the same dtype.
        equal_nan: whether NaN equals NaN.
        inputs: a tensor, a tuple or a dict of keywords to call two models, functions or pairs `(apply, parameters)`
            with; their outputs are compared. Models run in evaluation mode.
        names: with `inputs`, a dict that maps layers or logged names of `actual` to those of `expected`.
        skip: without `inputs`, paths of layers of two models that are not compared, as in `convert_state`.

    Raises:
        ParityError: if the values differ. It is an `AssertionError` with the result of `compare` as `comparison`.
        ArgumentError: if a tolerance is invalid, two arguments cannot be combined, or a model fails on `inputs`.
        NotATensorError: `inputs` without models or functions that return tensors. DTypeError: a dtype has no tolerance.
        UnsupportedError, NotBuiltError: if a tensor is symbolic, or a model is not built. ContainerError: as in `log`.

    Example:
        >>> xdevice.assert_parity({"w": xdevice.ones(2)}, {"w": xdevice.tensor([1, 1 + 1e-7])})
    """
    # makes pytest show the line of the test and the message, without the lines of this function
    __tracebackhide__ = True
    comparison = compare(
        actual, expected, rtol=rtol, atol=atol, check_device=check_device, check_dtype=check_dtype,
        equal_nan=equal_nan, inputs=inputs, names=names, skip=skip,
    )  # fmt: skip
    if not comparison.ok:
        raise ParityError(comparison.text, comparison)
    if comparison.settings and inputs is not None:
        warnings.warn(comparison.text, UserWarning, stacklevel=2)


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
    """Compares two values as `assert_parity` does. Returns a `Comparison`, which contains the worst error even if the
    values agree.

    Experimental: it may change in a minor version.

    The arguments, the tolerances and the cost are the same as for `assert_parity`.

    Raises:
        ArgumentError, NotATensorError, ContainerError, DTypeError, UnsupportedError, NotBuiltError: as in
            `assert_parity`. A difference does not raise an error.

    Example:
        >>> found = xdevice.parity.compare(xdevice.tensor([1, 2]), xdevice.tensor([1, 3]))
        >>> found.ok, found.worst, found.abs, found.off, found.total
        (False, (1,), 1, 1, 2)
    """
    # arguments are checked before anything is read or run, so that a wrong argument costs no time
    rule = Strictness(rtol, atol, check_device, check_dtype, equal_nan).check()
    skipped = check_skip(skip)
    if inputs is not None:
        if skipped:
            raise ArgumentError(
                "skip= leaves layers out when parameters are compared, but with inputs= the outputs of the models are "
                "compared; pass only one of the two"
            )
        return _compare_outputs(actual, expected, rule, inputs, names or {})
    for side, x in (("actual", actual), ("expected", expected)):
        # a plain function is a leaf. A partial, or a callable dataclass, is a container, whose contents can be compared
        if (
            callable(x)
            and functions.is_function(x)
            and [leaf.value for leaf in leaves(x)] == [x]
        ):
            raise ArgumentError(
                f"{side} is the function {functions.name_of(x)}, but functions are compared by their outputs; pass "
                f"inputs=x to call both with x"
            )
    # names= without inputs= would be ignored, and the user would not notice
    if names is not None:
        raise ArgumentError(
            "names= has an effect only together with inputs=, which was not passed; pass both, or pair the layers of "
            "two models with convert_state(..., names=...)"
        )
    pair = read_pair(actual, expected, skipped)
    # if the rest were compared, it would go unnoticed that some parameters have no counterpart
    if pair.unmapped:
        return _unmapped_difference(pair)
    comparison = compare_leaves(pair.actual, pair.expected, rule)
    if not comparison.ok:
        # settings that differ are often the reason why the numbers differ, so the text begins with these settings
        return _with_settings(comparison, pair.settings + pair.modes, pair.stated_by_both)
    # a difference in training mode alone is not a failure, but is listed
    return (
        _settings_difference(pair.settings, pair.modes)
        if pair.settings
        else comparison._replace(settings=tuple(pair.modes))
    )


def _compare_outputs(
    actual: object, expected: object, rule: Strictness, inputs: object, names: Names
) -> Comparison:
    """Returns the `Comparison` of the outputs of two models or functions for the same `inputs`."""
    # settings are read before the run, because the run may change them, or fail because of them
    settings, different = read_settings(actual, expected, names)
    try:
        outputs = run_pair(actual, expected, inputs, names)
    except XDeviceError as error:
        # a setting that differs may have caused the failure, so the error lists such settings
        if different and hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"these settings differ:{_listed(different)}")
        raise
    if len(outputs.actual) != len(outputs.expected):
        return _with_settings(_unequal_counts(outputs, inputs, rule), settings, different)
    # without this, outputs of which nothing can be compared, such as those of two generators, would agree
    if not outputs.expected:
        raise NotATensorError(
            f"the models return {shown(outputs.runs[0].result)} and {shown(outputs.runs[1].result)}; expected tensors "
            "or containers of tensors, because nothing else is compared"
        )
    comparison = compare_leaves(outputs.actual, outputs.expected, rule)
    if not comparison.ok:
        comparison = comparison._replace(text=f"{comparison.text}\n{outputs.where()}")
        return _with_settings(comparison, settings, different)
    # settings that could not be compared do not matter if the outputs agree
    if not different:
        return comparison
    # settings that differ are listed nevertheless, because some have no effect in evaluation mode, such as those of a
    # dropout or the momentum of a batch norm
    text = (
        f"the outputs agree, in evaluation mode, but these settings differ:{_listed(different)}"
    )
    return comparison._replace(settings=tuple(different), text=text)


def _unequal_counts(outputs: ModelOutputs, inputs: object, rule: Strictness) -> Comparison:
    """Returns the `Comparison` of two models that return different numbers of tensors. Its text lists the tensors of
    both models and the pairs that agree, and suggests a call of `assert_parity` that compares one tensor of each
    model."""
    ours, theirs = outputs.actual, outputs.expected
    # every output is compared with every output of the other model: one model may return a tuple, and the other a dict
    # in another order. `aligned` also gives both leaves the same path, without which they would not be compared
    agreeing = [
        (mine, its)
        for mine in ours
        for its in theirs
        if compare_leaves([outputs.aligned(mine, its)], [its], rule).ok
    ]
    text = f"the models return {len(ours)} and {len(theirs)} tensors{structures.owners_text(ours, theirs)}"
    # the shapes usually show the reader which outputs belong together
    for side, side_leaves in (("actual  ", ours), ("expected", theirs)):
        shapes = structures.name_some(
            f"{leaf.path or 'a tensor'} {leaf.shape}" for leaf in side_leaves
        )
        text += f"\n  {side}  {shapes or 'no tensor'}"
    for mine, its in agreeing[:_LISTED]:
        text += f"\n  agree     {mine.path or 'the tensor'} of actual and {its.path or 'the tensor'} of expected"
    # the call needs a tensor on each side
    if ours and theirs:
        # the example call uses a pair that agrees, or otherwise the first tensor of each side
        example = agreeing[0] if agreeing else (ours[0], theirs[0])
        # the functions in the example accept any number of inputs; a dict passes them by keyword
        x = "**x" if isinstance(inputs, Mapping) else "*x"
        calls = ", ".join(
            f"lambda {x}: {side}({x}){leaf.path}" if leaf.path else side
            for side, leaf in zip(("actual", "expected"), example, strict=True)
        )
        text += f"\n  note      pass functions to compare one tensor of each: assert_parity({calls}, inputs=...)"
    # at least one output of the side with fewer outputs has no equal on the other side, and a layer may be the cause.
    # The smaller count is used, because two outputs of one side may agree with the same output of the other
    if min(len({pair[side].path for pair in agreeing}) for side in (0, 1)) < min(
        len(ours), len(theirs)
    ):
        text += f"\n{outputs.where()}"
    return difference("structure", text)


def _with_settings(
    comparison: Comparison, settings: list[str], different: list[str]
) -> Comparison:
    """Adds the lines about settings to the comparison's field `settings`, and returns the new comparison. If some
    settings differ, its text begins with the lines about them (`different`), followed by the lines about settings that
    could not be compared."""
    if not different:
        return comparison._replace(settings=tuple(settings))
    not_compared = [line for line in settings if line not in different]
    text = (
        f"these settings differ:{_listed(different)}{_listed(not_compared)}\n{comparison.text}"
    )
    return comparison._replace(settings=tuple(settings), text=text)


def compare_leaves(
    actual: list[HostLeaf], expected: list[HostLeaf], rule: Strictness
) -> Comparison:
    """Compares two values whose leaves are already on the host, such as values from two recordings. If structures,
    shapes or other properties differ, returns the `Comparison` of the first such difference. Otherwise returns the
    `Comparison` of the leaf with the worst error."""
    # the paths of PyTorch's counts of batches if only one side has them. They are left out, because other frameworks
    # count no batches, and the text says so
    counters = structures.counters_of_one_side(actual, expected)
    if counters:
        ours, theirs = (
            [leaf for leaf in side if leaf.path not in counters] for side in (actual, expected)
        )
        comparison = compare_leaves(ours, theirs, rule)
        note = (
            f"\n  note      not compared, because only one side has it: {listed(sorted(counters), 3)}, "
            f"a count of batches"
        )
        return comparison._replace(text=f"{comparison.text}{note}".lstrip())
    mismatch = structures.compare_paths(actual, expected)
    if mismatch is not None:
        return mismatch
    # leaves are paired by path, because two dicts may have their keys in different orders
    by_path = dict(zip(unique_paths(actual), actual, strict=True))
    paths = unique_paths(expected)
    pairs = [(by_path[path], leaf) for path, leaf in zip(paths, expected, strict=True)]
    mismatch = structures.compare_pairs(pairs, rule)
    if mismatch is not None:
        return mismatch
    # Paddle stores the momentum of its batch norms in float32, so the means and variances are up to 3e-7 off even in
    # the first step of a run in float64: they always have the tolerance of a later step
    rule_of_statistics = rule if rule.float64_step is None else rule._replace(float64_step=1)
    comparisons = []
    for path, (mine, its) in zip(paths, pairs, strict=True):
        # in a calibrated run, the noise of a leaf is 0 if none was measured; in any other run it is None
        noise = rule.noise.get(path, 0.0) if rule.noise is not None else None
        comparisons.append(
            compare_elements(
                mine, its, rule_of_statistics if is_statistic(path) else rule, noise
            )
        )
    # two empty containers, or models without parameters, are equal
    if not comparisons:
        return Comparison(True, abs=0.0, rel=0.0, ulp=0)
    # `excess` is a multiple of the leaf's own tolerance, so it is comparable between leaves of any dtype and size
    worst, pair = max(
        zip(comparisons, pairs, strict=True), key=lambda compared: compared[0].excess
    )
    if not worst.ok:
        worst = worst._replace(text=worst.text + note_on_relation(*pair, rule))
    off = [comparison.leaf for comparison in comparisons if not comparison.ok]
    # if no other leaf is off, the message is complete
    if len(off) < 2:
        return worst
    others = structures.name_some(leaf for leaf in off if leaf != worst.leaf)
    more = f"{len(off)} of {len(comparisons)} leaves are off, and this leaf is off the most; the others are {others}"
    return worst._replace(text=f"{worst.text}\n{more}")


def _unmapped_difference(pair: ReadPair) -> Comparison:
    """Returns the `Comparison` of two models with parameters that have no counterpart in the other model."""
    lines = [f"{path}: {why}" if path else why for path, why in pair.unmapped.items()]
    owners = structures.owners_text(pair.actual, pair.expected)
    text = f"the models differ{owners}:{_listed(lines)}{_PAIRING_ADVICE}"
    return difference("structure", text, leaf=next(iter(pair.unmapped)))


def _settings_difference(settings: list[str], modes: list[str]) -> Comparison:
    """Returns the `Comparison` of two models whose parameters are equal, but whose layers have settings that differ or
    could not be compared. `settings` has at least one line; `modes` contains the lines about training mode."""
    lines = [*settings, *modes]
    text = f"the parameters agree, but these settings differ or could not be compared:{_listed(lines)}{_ADVICE}"
    # a line begins with the path of its layer and a colon
    comparison = difference("settings", text, leaf=settings[0].partition(":")[0])
    return comparison._replace(settings=tuple(lines))


def _listed(lines: list[str]) -> str:
    """Returns as many of the lines as fit into a message, each one indented on a separate line, followed by the number
    of remaining lines."""
    texts = [f"\n  {line}" for line in lines]
    # the number of texts that fit within the limit if they are written one after the other
    fitting = sum(end <= _LONGEST for end in accumulate(map(len, texts)))
    # a single line, however long, is better than no line
    count = max(1, min(_LISTED, fitting))
    more = f"\n  and {len(texts) - count} more" if len(texts) > count else ""
    return "".join(texts[:count]) + more
