"""Records the operations that a program runs, and finds the first of them at which two programs differ.

Two frameworks compute the same value with different operations: a softmax is one call here and four there. So
operations are not paired by their names, but by the numbers that they return. An operation is right if the other
program has computed the same numbers, in any order of axes, or if an operation that uses its output is right. The two
programs part (begin to differ) at the first operation that is not right and leads to the program's results: all its
inputs are right.

The numbers also show which operation uses which output, so views and writes in place need no rules.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from contextlib import suppress
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from xdevice.core import frameworks
from xdevice.errors import UnsupportedError
from xdevice.twins.contract import calls as layer_calls

from . import distances

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from xdevice.contract import Backend

    Array = numpy.ndarray[Any, Any]

_MOST: Final = 20_000
"""How many operations are kept at most; a program may run more."""
_MOST_BYTES: Final = 1 << 30
"""With this many bytes of arrays the log is full: no further operations are kept."""
_ALIKE: Final = 1e-2
"""Only arrays whose norms differ by at most this share are compared."""
_ROUNDING: Final = 1 / 500
"""Errors below this share of the limit count as rounding when their growth is measured."""
_SHARES: Final = (1.0, 0.1, 0.01)
"""The limits at which operations are judged, as shares of the usual limit: a fault may be small where it begins."""
_STANDARD: Final = sysconfig.get_paths()["stdlib"]
"""The folder of Python's standard library."""
_FRAMES: Final = frozenset(
    {
        *frameworks.LIBRARIES,
        *(module for one in frameworks.KNOWN for module in one.modules),
        "xdevice",
        "haiku",
        "optax",
    }
)
"""The packages whose lines do not count as the program's."""


class Operation(NamedTuple):
    """One operation that a program has run; in the backward pass, the gradient that has reached an output of an
    operation."""

    name: str
    """The name that the framework has for it."""
    line: str
    """The program's line, such as `/home/ann/train.py:41`; empty if there is none."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """`inputs` and `outputs` are the keys (`Log.key`) of the tensors that it took and returned."""
    is_backward: bool = False

    def __str__(self) -> str:
        name = f"the gradient of {self.name}" if self.is_backward else self.name
        return f"{name} ({self.line})" if self.line else name


class Gradient(NamedTuple):
    """The gradient of a parameter, or of an input, that a program has computed."""

    name: str
    value: str
    gradient: str
    """`value` and `gradient` are the keys of the tensor and of its gradient."""


class Log:
    """The operations of a program, in order, and the numbers that they took and returned."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.operations: list[Operation] = []
        self.gradients: list[Gradient] = []
        self.roots: list[str] = []
        """The keys of the program's results: the values that it has recorded, or the outputs of a run."""
        self.arrays: dict[str, Array] = {}
        """The arrays by their keys, each once."""
        self.is_full = False
        """Whether the log has as many operations or bytes as it may have, so that no more are kept."""
        self._bytes = 0

    def add(self, operation: Operation) -> None:
        """Adds an operation at the end."""
        self.operations.append(operation)
        self.is_full = len(self.operations) >= _MOST or self._bytes >= _MOST_BYTES

    def results(self) -> list[str]:
        """The keys of the program's results: `roots`, or else the losses from which the program ran backward, or else
        the outputs of its last operation. Empty if the log has no operation."""
        if self.roots or not self.operations:
            return self.roots
        # the operation right before a backward pass has computed the loss
        neighbors = zip(self.operations, self.operations[1:], strict=False)
        losses = [
            operation
            for operation, behind in neighbors
            if behind.is_backward and not operation.is_backward
        ]
        return [
            key for operation in losses or self.operations[-1:] for key in operation.outputs
        ]

    def key(self, array: Array) -> str:
        """Keeps a copy of an array, and returns its key. Arrays of the same dtype, shape and numbers have the same
        key, and only one copy is kept of them."""
        # bfloat16 and 8-bit floats, which NumPy itself cannot compute with
        if array.dtype.kind not in "biufc":
            array = array.astype("float32")
        shape = array.shape
        # reshaped, because `ascontiguousarray` gives an array without axes one axis
        array = numpy.ascontiguousarray(array).reshape(shape)
        # a hash of the bytes, so that finding equal arrays among thousands is one look-up. NumPy cannot view an array
        # without axes as bytes, so these are copied
        key = hashlib.blake2b(
            array.view("uint8").data if array.ndim else array.tobytes(), digest_size=12
        ).hexdigest()
        # the same bytes with another shape or dtype are another array
        key = f"{key}{array.shape}{array.dtype}"
        if key not in self.arrays:
            # a copy, because the program may write into its array later
            self.arrays[key] = array.copy()
            self._bytes += array.nbytes
        return key


class LogWriter:
    """Keeps the operations of a program in a log. `Backend.operation_calls` calls its methods `run` and `leaf`."""

    def __init__(self, backend: Backend, log: Log) -> None:
        self._backend, self._log = backend, log
        self._is_inside = False
        """Whether an operation is running, or a tensor is being read, so that operations called meanwhile are not
        kept."""
        # the tensor is kept too, because another one could get its id if it were freed
        self._names: dict[int, tuple[str, Any]] = {}
        """For each parameter of the program's models, by the id of the tensor, its name and the tensor."""
        self._users: dict[str, list[int]] = {}
        """Maps a tensor's key to the indices of the operations that took the tensor."""
        self._gradients: dict[int, list[str]] = {}
        """Maps an operation's index to the keys of the gradients that reached its outputs."""

    def run(
        self,
        name: str,
        arguments: Any,
        go: Callable[[], Any],
        follow: Any = None,
        is_backward: bool = False,
    ) -> Any:
        """Returns the result of `go()`, and keeps the call as an operation of this name, unless the call is made inside
        another operation or returns no tensors with numbers, or the log is full.

        `follow(result, put)`, if given, returns the result with hooks that call `put(number, gradient)` for each
        gradient that reaches one of its tensors; `number` is the index of the tensor in the result, counted from 0.
        """
        # an operation that another one calls is part of it: a softmax is one call of the program
        if self._is_inside or self._log.is_full:
            return go()
        # the keys before the call, because it may write into its arguments
        inputs = self._keys(arguments)
        self._is_inside = True
        try:
            result = go()
        finally:
            self._is_inside = False
        keys = self._all_keys(result)
        outputs = tuple(filter(None, keys))
        # a call that returns no tensor, but a shape, for example, is no operation
        if not outputs:
            return result
        self._add(Operation(name, program_line(), inputs, outputs, is_backward))
        return result if follow is None else self._with_gradients_followed(result, follow, keys)

    def name_tensors(self, names: Iterable[tuple[str, Any]]) -> None:
        """Stores the names that tensors have in a model; `names` are pairs of a name and a tensor."""
        for name, x in names:
            self._names[id(x)] = name, x

    def leaf(self, x: Any, gradient: Any, name: str = "") -> None:
        """Keeps the gradient of the tensor `x`, which the program has computed. `name` is the framework's own name for
        `x`; "" if it has none."""
        if self._log.is_full:
            return
        # the key of each of the two; "" if it has no numbers, as a sparse gradient
        (value_key, *_), (gradient_key, *_) = (
            self._keys(x) or ("",),
            self._keys(gradient) or ("",),
        )
        if not value_key or not gradient_key:
            return
        name, _ = self._names.get(id(x), (name, x))
        if not name:
            # a tensor without a name is described by the first operation that took it
            user = next(iter(self._users.get(value_key, [])), None)
            taker = f" of {self._log.operations[user]}" if user is not None else ""
            name = f"input{taker}, {self._log.arrays[value_key].shape}"
        self._log.gradients.append(Gradient(name, value_key, gradient_key))

    def add_roots(self, name: str, value: object) -> None:
        """Adds the tensors in a value, which the program records with `xdevice.parity.log` under this name, to the
        program's results (`Log.roots`)."""
        if not self._log.is_full:
            self._log.roots += self._keys(value)

    def _add(self, operation: Operation) -> None:
        """Adds an operation to the log, and to the users of the tensors that it took."""
        for key in operation.inputs:
            self._users.setdefault(key, []).append(len(self._log.operations))
        self._log.add(operation)

    def _with_gradients_followed(self, result: Any, follow: Any, keys: list[str]) -> Any:
        """Returns `follow(result, put)`, as `run` describes it: the result of the last operation, with hooks that keep
        each gradient that reaches one of its outputs as an operation of its own. `keys` are the keys of all tensors in
        the result (`_all_keys`)."""
        last = len(self._log.operations) - 1
        operation = self._log.operations[last]

        def put(number: int, gradient: Any) -> None:
            """Keeps the gradient of the output with this index as an operation."""
            # an output without numbers has no key, and its users are not known
            if self._log.is_full or not keys[number]:
                return
            # an output's gradient is computed from the gradients of the operations that took the output
            users = self._users.get(keys[number], [])
            inputs = tuple(key for user in users for key in self._gradients.get(user, []))
            outputs = self._keys(gradient)
            self._gradients.setdefault(last, []).extend(outputs)
            self._log.add(operation._replace(inputs=inputs, outputs=outputs, is_backward=True))

        return follow(result, put)

    def _keys(self, value: Any) -> tuple[str, ...]:
        """Keeps the tensors in a value that have numbers, and returns their keys."""
        return tuple(filter(None, self._all_keys(value)))

    def _all_keys(self, value: Any) -> list[str]:
        """Keeps the tensors in a value that have numbers, and returns the keys of all its tensors: "" for one without
        numbers."""
        # reading a tensor runs operations of the framework, which are not the program's
        self._is_inside, before = True, self._is_inside
        try:
            return list(self._read(layer_calls.tensors(self._backend, value)))
        finally:
            self._is_inside = before

    def _read(self, tensors: Iterable[Any]) -> Iterator[str]:
        """Keeps the tensors as NumPy arrays, and yields their keys: "" for one without numbers."""
        for x in tensors:
            # such as handles of variables and sparse tensors, which cannot be read
            key = ""
            with suppress(UnsupportedError):
                array = x if isinstance(x, numpy.ndarray) else self._backend.to_numpy(x)
                key = self._log.key(numpy.asarray(array))
            yield key


def program_line() -> str:
    """The innermost line of the running code that belongs neither to a framework, nor to the standard library, nor to
    xdevice, such as `/home/ann/train.py:41`. A line of an installed package is taken only if there is no other; "" if
    there is none."""
    frame: FrameType | None = sys._getframe(1)
    installed = ""
    while frame is not None:
        root = (frame.f_globals.get("__name__") or "").partition(".")[0]
        file = frame.f_code.co_filename
        # code whose file begins with "<" has no file, such as that which `exec` runs
        is_program = (
            root not in _FRAMES
            and not root.startswith("xdevice_")
            and not file.startswith(("<", _STANDARD))
        )
        # the user's own code
        if is_program and "site-packages" not in file:
            return f"{os.path.abspath(file)}:{frame.f_lineno}"
        # an installed package that is no framework: its innermost line, if none is the user's
        if is_program and not installed:
            installed = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return installed


# finding the first operations at which two programs differ


class Errors(NamedTuple):
    """How far an array is from the one that it should equal."""

    abs: float
    """The largest error of an element."""
    rel: float
    """The largest error of an element, as a share of that element."""
    share: float
    """The largest error of an element, as a share of the largest element."""
    cosine: float
    """The cosine of the angle between the two arrays as vectors: 1 if they have the same direction."""
    within: float
    """The share of the elements that are within the tolerance of `assert_parity` for float32."""

    def __str__(self) -> str:
        return (
            f"largest absolute error {self.abs:.3g}, largest relative error {self.rel:.3g}, cosine {self.cosine:.6f}, "
            f"{self.within:.1%} within tolerance"
        )


class Parting(NamedTuple):
    """The first operation of each program at which the two differ."""

    actual: Operation | None
    """None if all operations of the actual program are right: then it lacks an operation of the expected program."""
    expected: Operation | None
    """None if all operations of the expected program are right: then the actual program has an additional
    operation."""
    closest: tuple[Operation, Operation] | None
    """The pair of operations whose outputs are closest, of all pairs of `actual` or `expected` with a wrong operation
    of the other program; None if there is no such pair with outputs of one size."""
    errors: Errors | None
    """How far the outputs of `closest` are apart; None if `closest` is None."""
    share: float
    """The limit at which the two were judged, as a share of the usual limit: one of `_SHARES`."""


class TwoPrograms:
    """Compares two programs by the logs of their operations."""

    def __init__(self, actual: Log, expected: Log) -> None:
        self.actual, self.expected = actual, expected
        self.judges = Judge(actual, expected), Judge(expected, actual)
        """The judges of the actual program's operations and of the expected program's."""
        self.limit = distances.OFF["float32"]
        """The usual limit: an output further off than this share of its largest number is wrong."""

    def part(self, is_backward: bool = False) -> Parting | None:
        """Returns the first operation of each program that is not right; None if all are right. With `is_backward`,
        considers the gradients instead of the operations of the forward pass. Only operations that lead to the
        program's results count, or all if none does. Tries several limits, and takes the one at whose operations the
        error grows most."""
        best, most_growth = None, 0.0
        for share in _SHARES:
            limit = self.limit * share
            # each side is judged by the numbers of the other
            actual, expected = (judge.first(limit, is_backward) for judge in self.judges)
            sides = [
                (judge, operation)
                for judge, operation in zip(self.judges, (actual, expected), strict=True)
                if operation is not None
            ]
            growth = max((judge.growth(operation) for judge, operation in sides), default=0.0)
            # at a smaller limit, an operation without a counterpart may be wrong only because those behind
            # it are off by rounding
            if best is not None and not any(
                judge.is_close(operation) for judge, operation in sides
            ):
                continue
            # a fault may begin as small as rounding is, so the limit with the greatest growth is taken
            if growth > most_growth:
                closest = self._closest_pair(actual, expected, limit)
                best, most_growth = Parting(actual, expected, *closest, share), growth
        return best

    def gradients(self) -> list[tuple[str, Errors | None]]:
        """Returns a pair for each gradient of the expected program, in the order of its backward pass: the name of the
        tensor that it belongs to, and the errors of the actual program's gradient of the same tensor. Tensors are the
        same if they have the same numbers; if no tensor of the actual program has these numbers, its closest gradient
        is taken. The second item is None if the actual program has no gradient of this size."""
        # all gradients of the actual program: those of outputs, and those of parameters and
        # inputs
        all_ours = [
            key for ours in self.actual.operations if ours.is_backward for key in ours.outputs
        ]
        all_ours += [ours.gradient for ours in self.actual.gradients]
        rows = []
        for their_gradient in self.expected.gradients:
            value, wanted = (
                self.expected.arrays[their_gradient.value],
                self.expected.arrays[their_gradient.gradient],
            )
            same = [
                ours.gradient
                for ours in self.actual.gradients
                if self._is_same(ours.value, value)
            ]
            candidates = [
                candidate
                for key in dict.fromkeys(same or all_ours)
                for candidate in _axis_orders(self.actual.arrays[key], wanted)
            ]
            best = min(
                candidates,
                key=lambda candidate: distances.apart(candidate, wanted),
                default=None,
            )
            rows.append((their_gradient.name, None if best is None else errors(best, wanted)))
        return rows

    def _is_same(self, key: str, value: Array) -> bool:
        """Whether the actual program's tensor of this key has the numbers of `value`, in any order of axes. Numbers
        that may be equal by chance, such as zeros, do not count."""
        ours = self.actual.arrays[key]
        return _is_distinctive(value) and any(
            distances.apart(reordered, value) <= self.limit
            for reordered in _axis_orders(ours, value)
        )

    def _closest_pair(
        self, our_first: Operation | None, their_first: Operation | None, limit: float
    ) -> tuple[tuple[Operation, Operation] | None, Errors | None]:
        """Returns the values of `Parting.closest` and `Parting.errors`, given the first wrong operation of the actual
        program (`our_first`) and of the expected program (`their_first`). Both are None if one of the programs has
        none."""
        if our_first is None or their_first is None:
            return None, None
        # the first wrong operation of one side may correspond to any wrong operation of the
        # other
        our_wrong, their_wrong = (judge.wrong(limit) for judge in self.judges)
        pairs = [(ours, their_first) for ours in our_wrong] + [
            (our_first, theirs) for theirs in their_wrong
        ]
        best, closest, nearest = numpy.inf, None, None
        for ours, theirs in pairs:
            if ours.is_backward != theirs.is_backward:
                continue
            wanted = self.expected.arrays[theirs.outputs[0]]
            for reordered in _axis_orders(self.actual.arrays[ours.outputs[0]], wanted):
                distance = distances.apart(reordered, wanted)
                if distance < best:
                    best, closest, nearest = distance, (ours, theirs), errors(reordered, wanted)
        return closest, nearest


def errors(actual: Array, expected: Array) -> Errors:
    """Returns how far an array is from the expected one, which has the same shape. The errors of two empty arrays are
    0, and their cosine is 1."""
    ours, theirs = distances.wide(actual), distances.wide(expected)
    off, size = numpy.abs(ours - theirs), numpy.abs(theirs)
    with numpy.errstate(all="ignore"):
        # an error where 0 is expected has no relative size, and counts as infinite
        rel = float(numpy.nanmax(numpy.where(off > 0, off / size, 0.0), initial=0.0))
        norms = numpy.linalg.norm(ours) * numpy.linalg.norm(theirs)
        cosine = float(numpy.vdot(ours, theirs).real / norms) if norms else float(not off.any())
    # only for the report: the tolerance of `assert_parity` for float32, which users know
    allowed = 1e-5 * size + 1e-6 * max(1.0, float(size.max(initial=0.0)))
    most = float(off.max(initial=0.0))
    return Errors(
        most,
        rel,
        distances.apart(actual, expected),
        cosine,
        float((off <= allowed).mean()) if off.size else 1.0,
    )


class Judge:
    """Decides whether each operation of one program is right, by the numbers that another program has computed."""

    def __init__(self, log: Log, other: Log) -> None:
        self._log = log
        self._other = _Index(other.arrays.values())
        self._distances: dict[str, float] = {}
        """Maps a tensor's key to the distance between the tensor and the closest tensor of the other program."""
        self._right: dict[float, list[bool]] = {}
        """Maps each limit to a list that says whether each operation is right."""
        self._makers: dict[str, int] = {
            key: n for n, operation in enumerate(log.operations) for key in operation.outputs
        }
        """Maps a tensor's key to the index of the last operation that returned the tensor."""

    def first(self, limit: float, is_backward: bool) -> Operation | None:
        """The first operation that is not right, among those that lead to the program's results; None if all are right.
        With `is_backward`, considers the gradients instead of the operations of the forward pass."""
        right, leads = self._right_operations(limit), self._leads_to_results(is_backward)
        for number, operation in enumerate(self._log.operations):
            if operation.is_backward == is_backward and leads[number] and not right[number]:
                return operation
        return None

    def is_close(self, operation: Operation) -> bool:
        """Whether the other program has a tensor that is close to an output of the operation, so that it may be the
        same output with an error."""
        return any(
            numpy.isfinite(self._distance(key)) for key in self._distinctive_outputs(operation)
        )

    def growth(self, operation: Operation) -> float:
        """How many times larger the error of an operation is than the largest error of its inputs. Inputs without a
        close tensor in the other program are not counted."""
        taken = (
            self._distance(key)
            for key in operation.inputs
            if _is_distinctive(self._log.arrays[key])
        )
        before = max((error for error in taken if error <= 1), default=0.0)
        error = max(
            (self._distance(key) for key in self._distinctive_outputs(operation)), default=0.0
        )
        # arrays further apart than `_ALIKE` are not compared, so larger errors count as that; and inputs that are
        # equal, or have only rounding errors, count as having that much
        return min(error, _ALIKE) / max(before, distances.OFF["float32"] * _ROUNDING)

    def wrong(self, limit: float) -> list[Operation]:
        """All operations that are not right, in order."""
        right = self._right_operations(limit)
        return [
            operation
            for number, operation in enumerate(self._log.operations)
            if not right[number]
        ]

    def is_right(self, key: str, limit: float) -> bool:
        """Whether the tensor of this key is right: the other program has computed it too, the operation that returned
        it is right, or its numbers are not distinctive (`_is_distinctive`)."""
        maker = self._makers.get(key)
        if not _is_distinctive(self._log.arrays.get(key)) or self._distance(key) <= limit:
            return True
        return maker is not None and self._right_operations(limit)[maker]

    def _right_operations(self, limit: float) -> list[bool]:
        """Returns for each operation whether it is right: one of its outputs is within the limit of a tensor of the
        other program, or an operation that takes an output is right, or it has no distinctive output
        (`_is_distinctive`)."""
        if limit in self._right:
            return self._right[limit]
        users: dict[str, list[int]] = {}
        for number, operation in enumerate(self._log.operations):
            for key in operation.inputs:
                users.setdefault(key, []).append(number)
        right = [False] * len(self._log.operations)
        proves_others = list(right)
        """Whether each operation shows that those before it are right. An operation without distinctive outputs shows
        nothing."""
        # from the last operation to the first, so that the operations behind each one are
        # judged before it
        for number in reversed(range(len(right))):
            outputs = self._distinctive_outputs(self._log.operations[number])
            behind = (user for key in outputs for user in users.get(key, ()) if user > number)
            proves_others[number] = any(self._distance(key) <= limit for key in outputs) or any(
                proves_others[user] for user in behind
            )
            right[number] = proves_others[number] or not outputs
        self._right[limit] = right
        return right

    def _distinctive_outputs(self, operation: Operation) -> list[str]:
        """The keys of the outputs whose numbers are too specific to occur by chance. A single number that was computed
        without a distinctive input is a constant in the code, and is left out."""
        keys = [key for key in operation.outputs if _is_distinctive(self._log.arrays[key])]
        if any(_is_distinctive(self._log.arrays[key]) for key in operation.inputs):
            return keys
        return [key for key in keys if self._log.arrays[key].size > 1]

    def _leads_to_results(self, is_backward: bool) -> list[bool]:
        """Returns for each operation whether it leads to the program's results; with `is_backward`, to the gradients
        of parameters and inputs. All are True if no operation leads there."""
        # an operation whose result only a gradient uses does not lead to the outputs
        gradients = [gradient.gradient for gradient in self._log.gradients]
        keys = gradients if is_backward else self._log.results()
        wanted = {key for key in keys if key in self._makers}
        # without any result to lead to, all operations count
        leads = [not wanted] * len(self._log.operations)
        for number in reversed(range(len(leads))):
            operation = self._log.operations[number]
            # only specific numbers: many operations return the same constant
            if wanted.intersection(self._distinctive_outputs(operation)):
                leads[number] = True
                wanted.update(operation.inputs)
        return leads

    def _distance(self, key: str) -> float:
        """How far the closest tensor of the other program is from the tensor of this key."""
        if key not in self._distances:
            self._distances[key] = self._other.distance(self._log.arrays[key])
        return self._distances[key]


class _Index:
    """Finds the array that is closest to another one, among arrays that it keeps by their sizes and norms."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._by_size: dict[int, list[tuple[float, Array]]] = {}
        for array in arrays:
            if _is_distinctive(array):
                self._by_size.setdefault(array.size, []).append((_norm(array), array))

    def distance(self, expected: Array) -> float:
        """The distance of the closest array from `expected`, in any order of axes; infinite if no array has the size
        and about the norm of `expected`."""
        best, norm = numpy.inf, _norm(expected)
        for other_norm, array in self._by_size.get(expected.size, ()):
            # a quick test: arrays with other norms cannot be close
            if abs(other_norm - norm) > norm * _ALIKE:
                continue
            for reordered in _axis_orders(array, expected):
                best = min(best, distances.apart(reordered, expected))
                # far below every limit, so a closer array would change nothing
                if best < 1e-9:
                    return float(best)
        return float(best)


def _norm(x: Array) -> float:
    """The Euclidean norm of all numbers in an array, which no order of axes changes; 0 if it is not finite, as with NaN
    or an infinity."""
    with numpy.errstate(all="ignore"):
        norm = float(numpy.linalg.norm(distances.wide(x).ravel()))
    return norm if numpy.isfinite(norm) else 0.0


def _is_distinctive(x: Array | None) -> bool:
    """Whether the numbers of an array are too specific to be equal to others by chance. Ints, bools, arrays of one
    repeated number, and single numbers such as 0 and 1 are not."""
    if x is None or x.dtype.kind not in "fc" or not x.size:
        return False
    first = x.flat[0]
    if x.size == 1:
        return bool(numpy.isfinite(first)) and float(abs(first)) not in (0.0, 0.5, 1.0, 2.0)
    return bool((x != first).any())


def _axis_orders(x: Array, expected: Array) -> Iterator[Array]:
    """Yields the array reshaped to the expected shape, and then in each order of its axes that gives that shape. Axes
    of one element do not count. Yields nothing if the sizes differ."""
    if x.size != expected.size:
        return
    yield x.reshape(expected.shape)
    sizes = [size for size in x.shape if size > 1]
    wanted = tuple(size for size in expected.shape if size > 1)
    # five axes have 120 orders, which would take too long
    if len(sizes) > 4 or sorted(sizes) != sorted(wanted):
        return
    narrow = x.reshape(sizes)
    for order in permutations(range(len(sizes))):
        # the first order is the reshaped array, which was yielded above
        if order != tuple(range(len(sizes))) and tuple(sizes[axis] for axis in order) == wanted:
            yield narrow.transpose(order).reshape(expected.shape)
