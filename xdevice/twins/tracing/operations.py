"""Records the operations that a program runs, and finds the first operation at which two programs differ.

Two frameworks compute the same value with different operations: a softmax may be one call in one framework, and four
calls in another. Therefore operations are not paired by their names, but by the numbers that they return. An operation
is correct if the other program computed the same numbers, in any order of axes, or if an operation that uses its output
is correct. The two programs part (begin to differ) at the first incorrect operation that contributes to the program's
results and has only correct inputs.

The numbers also show which operation uses which output, so views and writes in place need no special rules.
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
"""The maximum number of operations that a log records. Later operations of the program are not recorded."""
_MOST_BYTES: Final = 1 << 30
"""A log that contains this many bytes of arrays is full, and records no more operations."""
_ALIKE: Final = 1e-2
"""Two arrays are compared only if their norms differ by at most this fraction."""
_ROUNDING: Final = 1 / 500
"""Errors below this fraction of the limit are treated as rounding errors when the growth of errors is measured."""
_SHARES: Final = (1.0, 0.1, 0.01)
"""The limits for the errors of operations, as fractions of the usual limit. Smaller limits are tried because a fault
may be small where it begins."""
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
"""The packages whose code is not treated as part of the program."""


class Operation(NamedTuple):
    """One operation that a program ran. In the backward pass, a gradient that reaches an output of an operation is also
    recorded as an operation."""

    name: str
    """The framework's name of the operation."""
    line: str
    """The line of the program that runs the operation, such as `/home/ann/train.py:41`; "" if it is not known."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """`inputs` and `outputs` are the keys (`Log.store`) of the tensors that the operation received and returned."""
    is_backward: bool = False

    def __str__(self) -> str:
        name = f"the gradient of {self.name}" if self.is_backward else self.name
        return f"{name} ({self.line})" if self.line else name


class Gradient(NamedTuple):
    """A gradient that a program computed for a parameter or an input."""

    name: str
    value: str
    gradient: str
    """`value` and `gradient` are the keys (`Log.store`) of the tensor and of its gradient."""


class Log:
    """The operations of a program, in order, with the tensors that they received and returned."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.operations: list[Operation] = []
        self.gradients: list[Gradient] = []
        self.roots: list[str] = []
        """The keys of the program's results: the values that it recorded, or the outputs of a run."""
        self.arrays: dict[str, Array] = {}
        """The arrays by their keys; equal arrays are stored once."""
        self.is_full = False
        """Whether the log has reached its largest number of operations or bytes. A full log records no more
        operations."""
        self._bytes = 0

    def add(self, operation: Operation) -> None:
        """Adds an operation at the end."""
        self.operations.append(operation)
        self.is_full = len(self.operations) >= _MOST or self._bytes >= _MOST_BYTES

    def results(self) -> list[str]:
        """Returns the keys of the program's results, which are the keys in `roots`. If `roots` is empty, the results
        are the losses from which the program ran the backward pass. If there are no losses either, the results are the
        outputs of the last operation. The list is empty if the log contains no operation."""
        if self.roots or not self.operations:
            return self.roots
        # the operation directly before a backward pass has computed the loss
        neighbours = zip(self.operations, self.operations[1:], strict=False)
        losses = [
            operation
            for operation, next_operation in neighbours
            if next_operation.is_backward and not operation.is_backward
        ]
        return [
            key for operation in losses or self.operations[-1:] for key in operation.outputs
        ]

    def store(self, array: Array) -> str:
        """Stores a copy of an array, and returns its key. Arrays with the same dtype, shape and numbers have the same
        key, and are stored only once."""
        # converts bfloat16 and 8-bit floats, with which NumPy itself cannot compute
        if array.dtype.kind not in "biufc":
            array = array.astype("float32")
        shape = array.shape
        # reshaped, because `ascontiguousarray` adds an axis to a 0-d array
        array = numpy.ascontiguousarray(array).reshape(shape)
        # a hash of the bytes, so that an equal array is found among thousands with a single look-up. NumPy cannot view
        # a 0-d array as bytes, so `tobytes` copies it
        key = hashlib.blake2b(
            array.view("uint8").data if array.ndim else array.tobytes(), digest_size=12
        ).hexdigest()
        # the key includes the shape and dtype, because arrays with the same bytes may differ in these
        key = f"{key}{array.shape}{array.dtype}"
        if key not in self.arrays:
            # a copy, because the program may write into its array later
            self.arrays[key] = array.copy()
            self._bytes += array.nbytes
        return key


class LogWriter:
    """Records the operations of a program in a log. `Backend.operation_calls` calls its methods `run` and
    `add_gradient`."""

    def __init__(self, backend: Backend, log: Log) -> None:
        self._backend, self._log = backend, log
        self._is_inside = False
        """Whether an operation is running or a tensor is being read. Operations that are called during this time are
        not recorded."""
        # the tensor is stored too, because its id could be reused if it were freed
        self._names: dict[int, tuple[str, Any]] = {}
        """Maps the id of each parameter of the program's models to the name of the parameter and the tensor."""
        self._users: dict[str, list[int]] = {}
        """Maps a tensor's key to the indices of the operations that received the tensor as an input."""
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
        """Returns the result of `go()`, and records the call as an operation with the given name. Does not record the
        call if it happens inside another operation, if it returns no tensors with numbers, or if the log is full. The
        tensors in `arguments` are the operation's inputs. `is_backward` says whether the operation is part of a
        backward pass.

        If `follow` is not None, `follow(result, put)` returns the result with hooks that call `put(number, gradient)`
        for each gradient that reaches one of its tensors. `number` is the index of the tensor in the result, counted
        from 0.
        """
        # an operation that another operation calls is part of that operation: a softmax is a single call of the program
        if self._is_inside or self._log.is_full:
            return go()
        # the keys are computed before the call, because the call may write into its arguments
        inputs = self._keys(arguments)
        self._is_inside = True
        try:
            result = go()
        finally:
            self._is_inside = False
        keys = self._all_keys(result)
        outputs = tuple(filter(None, keys))
        # a call that returns no tensors but, for example, a shape is not recorded
        if not outputs:
            return result
        self._add(Operation(name, program_line(), inputs, outputs, is_backward))
        return result if follow is None else self._with_gradients_followed(result, follow, keys)

    def name_tensors(self, names: Iterable[tuple[str, Any]]) -> None:
        """Stores the names of a model's tensors. `names` are pairs of a name and a tensor."""
        for name, x in names:
            self._names[id(x)] = name, x

    def add_gradient(self, x: Any, gradient: Any, name: str = "") -> None:
        """Records a gradient that the program computed for the tensor `x`. `name` is the framework's own name for `x`;
        "" if there is no such name."""
        if self._log.is_full:
            return
        # the keys of the tensor and of the gradient; "" for one without numbers, such as a sparse gradient
        value_key = next(iter(self._keys(x)), "")
        gradient_key = next(iter(self._keys(gradient)), "")
        if not value_key or not gradient_key:
            return
        name, _ = self._names.get(id(x), (name, x))
        if not name:
            # a tensor without a name is described by the first operation that received it
            user = next(iter(self._users.get(value_key, [])), None)
            taker = f" of {self._log.operations[user]}" if user is not None else ""
            name = f"input{taker}, {self._log.arrays[value_key].shape}"
        self._log.gradients.append(Gradient(name, value_key, gradient_key))

    def add_roots(self, name: str, value: object) -> None:
        """Adds the tensors in a value to the program's results (`Log.roots`). `name` is the name under which the
        program records the value with `xdevice.parity.log`; it is not used."""
        if not self._log.is_full:
            self._log.roots += self._keys(value)

    def _add(self, operation: Operation) -> None:
        """Adds an operation to the log, and records it as a user of each of its input tensors."""
        for key in operation.inputs:
            self._users.setdefault(key, []).append(len(self._log.operations))
        self._log.add(operation)

    def _with_gradients_followed(self, result: Any, follow: Any, keys: list[str]) -> Any:
        """Calls `follow(result, put)` (see `run`) to add hooks to `result`, the result of the last operation, and
        returns the result. The hooks record each gradient that reaches an output as a separate operation. `keys` are
        the keys of all tensors in the result, as `_all_keys` returns them."""
        last = len(self._log.operations) - 1
        operation = self._log.operations[last]

        def put(number: int, gradient: Any) -> None:
            """Records the gradient of the output with this index as an operation."""
            # an output without numbers has no key, and its users are not known
            if self._log.is_full or not keys[number]:
                return
            # an output's gradient is computed from the gradients of the operations that received the output
            users = self._users.get(keys[number], [])
            inputs = tuple(key for user in users for key in self._gradients.get(user, []))
            outputs = self._keys(gradient)
            self._gradients.setdefault(last, []).extend(outputs)
            self._log.add(operation._replace(inputs=inputs, outputs=outputs, is_backward=True))

        return follow(result, put)

    def _keys(self, value: Any) -> tuple[str, ...]:
        """Stores the tensors in a value that have numbers, and returns their keys."""
        return tuple(filter(None, self._all_keys(value)))

    def _all_keys(self, value: Any) -> list[str]:
        """Stores those tensors in `value` whose numbers can be read. Returns the keys of all its tensors, "" for each
        other tensor."""
        # reading a tensor runs operations of the framework that are not operations of the program
        self._is_inside, before = True, self._is_inside
        try:
            return list(self._read(layer_calls.tensors(self._backend, value)))
        finally:
            self._is_inside = before

    def _read(self, tensors: Iterable[Any]) -> Iterator[str]:
        """Stores the tensors as NumPy arrays, and yields their keys. The key of a tensor without numbers is ""."""
        for x in tensors:
            # the key stays "" for handles of variables, sparse tensors and others that cannot be read
            key = ""
            with suppress(UnsupportedError):
                array = x if isinstance(x, numpy.ndarray) else self._backend.to_numpy(x)
                key = self._log.store(numpy.asarray(array))
            yield key


def program_line() -> str:
    """Returns the innermost line of the running code, such as `/home/ann/train.py:41`, that is not in a framework, the
    standard library or xdevice. A line of an installed package is returned only if there is no line of the user's own
    code. Returns "" if there is no line at all."""
    frame: FrameType | None = sys._getframe(1)
    installed = ""
    while frame is not None:
        root = (frame.f_globals.get("__name__") or "").partition(".")[0]
        file = frame.f_code.co_filename
        # site-packages, or Debian's dist-packages; without a virtual environment, they are inside the folder of the
        # standard library
        is_installed = "-packages" in file
        # a file name that begins with "<" means that the code is not in a file; `exec`, for example, runs such code
        is_program = (
            root not in _FRAMES
            and not root.startswith("xdevice_")
            and not file.startswith("<")
            and (is_installed or not file.startswith(_STANDARD))
        )
        # the user's own code
        if is_program and not is_installed:
            return f"{os.path.abspath(file)}:{frame.f_lineno}"
        # the innermost line of an installed package that is not a framework, used if there is no line of the user's
        if is_program and not installed:
            installed = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return installed


# finding the first operations at which two programs differ


class Errors(NamedTuple):
    """Measures of the difference between an array and the expected array."""

    abs: float
    """The largest error of an element."""
    rel: float
    """The largest error of an element, as a fraction of the expected element."""
    share: float
    """The largest error of an element, as a fraction of the largest expected element."""
    cosine: float
    """The cosine of the angle between the two arrays, as vectors; 1 if they have the same direction."""
    within: float
    """The fraction of elements within the tolerance of `assert_parity` for float32."""

    def __str__(self) -> str:
        return (
            f"largest absolute error {self.abs:.3g}, largest relative error {self.rel:.3g}, cosine {self.cosine:.6f}, "
            f"{self.within:.1%} within tolerance"
        )


class Parting(NamedTuple):
    """The first operation of each program at which the two differ."""

    actual: Operation | None
    """The first wrong operation of the actual program. None if all its operations are correct; it then lacks an
    operation of the expected program."""
    expected: Operation | None
    """The first wrong operation of the expected program. None if all its operations are correct; the actual program
    then has an additional operation."""
    closest: tuple[Operation, Operation] | None
    """The pair of operations with the closest outputs. A pair consists of `actual` or `expected`, and a wrong operation
    of the other program. None if no pair has outputs of the same size."""
    errors: Errors | None
    """The errors between the outputs of the two operations in `closest`; None if `closest` is None."""
    share: float
    """The limit for the errors of the operations, as a fraction of the usual limit; one of `_SHARES`."""


class TwoPrograms:
    """Compares two programs by the logs of their operations."""

    def __init__(self, actual: Log, expected: Log) -> None:
        self.actual, self.expected = actual, expected
        self.judges = Judge(actual, expected), Judge(expected, actual)
        """The judges of the actual program's operations and of the expected program's operations."""
        self.limit = distances.OFF["float32"]
        """The usual limit: an output is wrong if its error exceeds this fraction of its largest number."""

    def first_parting(self, is_backward: bool = False) -> Parting | None:
        """Returns the first operation of each program that is not correct; None if all operations are correct. With
        `is_backward`, considers the gradients instead of the operations of the forward pass. Considers only operations
        that contribute to the program's results, or all operations if none does. Tries several limits, and returns the
        operations that increase the error most."""
        best, most_growth = None, 0.0
        for share in _SHARES:
            limit = self.limit * share
            # the operations of each program are judged by the numbers of the other program
            actual, expected = (judge.first_wrong(limit, is_backward) for judge in self.judges)
            sides = [
                (judge, operation)
                for judge, operation in zip(self.judges, (actual, expected), strict=True)
                if operation is not None
            ]
            growth = max((judge.growth(operation) for judge, operation in sides), default=0.0)
            # at a smaller limit, an operation without a counterpart may be treated as wrong only because rounding
            # changed the results of later operations
            if best is not None and not any(
                judge.is_close(operation) for judge, operation in sides
            ):
                continue
            # a fault may be as small as a rounding error where it begins, so the limit with the greatest growth is used
            if growth > most_growth:
                pair, pair_errors = self._closest_pair(actual, expected, limit)
                best = Parting(actual, expected, pair, pair_errors, share)
                most_growth = growth
        return best

    def gradients(self) -> list[tuple[str, Errors | None]]:
        """Returns a pair for each gradient of the expected program, in the order of its backward pass. The first item
        is the name of the tensor to which the gradient belongs. The second item contains the errors of the actual
        program's gradient of the same tensor, or is None if the actual program has no gradient of this size. Two
        tensors are treated as the same if they have the same numbers. If no tensor of the actual program has the same
        numbers, the closest gradient of the actual program is used."""
        # all gradients of the actual program: those of outputs, and those of parameters and inputs
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
                key=lambda candidate: distances.distance_between(candidate, wanted),
                default=None,
            )
            rows.append((their_gradient.name, None if best is None else errors(best, wanted)))
        return rows

    def _is_same(self, key: str, value: Array) -> bool:
        """Whether the actual program's tensor with this key has the same numbers as `value`, in any order of
        axes. Returns False for numbers that may be equal by chance, such as zeros."""
        ours = self.actual.arrays[key]
        return _is_distinctive(value) and any(
            distances.distance_between(reordered, value) <= self.limit
            for reordered in _axis_orders(ours, value)
        )

    def _closest_pair(
        self, our_first: Operation | None, their_first: Operation | None, limit: float
    ) -> tuple[tuple[Operation, Operation] | None, Errors | None]:
        """Returns the values of `Parting.closest` and `Parting.errors`. `our_first` is the first wrong operation of the
        actual program, and `their_first` is the first wrong operation of the expected program. If either is None,
        returns None for both values."""
        if our_first is None or their_first is None:
            return None, None
        # the first wrong operation of one program may correspond to any wrong operation of the other program
        our_wrong, their_wrong = (judge.all_wrong(limit) for judge in self.judges)
        pairs = [(ours, their_first) for ours in our_wrong] + [
            (our_first, theirs) for theirs in their_wrong
        ]
        least, closest, closest_errors = numpy.inf, None, None
        for ours, theirs in pairs:
            if ours.is_backward != theirs.is_backward:
                continue
            # of several outputs, only the first are compared
            wanted = self.expected.arrays[theirs.outputs[0]]
            for reordered in _axis_orders(self.actual.arrays[ours.outputs[0]], wanted):
                distance = distances.distance_between(reordered, wanted)
                if distance < least:
                    least, closest = distance, (ours, theirs)
                    closest_errors = errors(reordered, wanted)
        return closest, closest_errors


def errors(actual: Array, expected: Array) -> Errors:
    """Returns the errors of an array, compared with an expected array of the same shape. The errors of two empty arrays
    are 0, and their cosine is 1."""
    ours, theirs = distances.to_double(actual), distances.to_double(expected)
    off, size = numpy.abs(ours - theirs), numpy.abs(theirs)
    with numpy.errstate(all="ignore"):
        # where 0 is expected, the relative error is infinite
        rel = float(numpy.nanmax(numpy.where(off > 0, off / size, 0.0), initial=0.0))
        norms = numpy.linalg.norm(ours) * numpy.linalg.norm(theirs)
        # an array of zeros has no direction: the cosine is 1 if both arrays are equal, else 0
        cosine = float(numpy.vdot(ours, theirs).real / norms) if norms else float(not off.any())
    # only for the report: the tolerance of `assert_parity` for float32, with which users are familiar
    allowed = 1e-5 * size + 1e-6 * max(1.0, float(size.max(initial=0.0)))
    return Errors(
        abs=float(off.max(initial=0.0)),
        rel=rel,
        share=distances.distance_between(actual, expected),
        cosine=cosine,
        within=float((off <= allowed).mean()) if off.size else 1.0,
    )


class Judge:
    """Decides whether each operation of one program is correct, based on the numbers that another program computed."""

    def __init__(self, log: Log, other: Log) -> None:
        self._log = log
        self._other = _Index(other.arrays.values())
        self._distances: dict[str, float] = {}
        """Maps a tensor's key to the distance between the tensor and the closest tensor of the other program."""
        self._right: dict[float, list[bool]] = {}
        """Maps each limit to a list of bools, one per operation: whether the operation is correct."""
        self._makers: dict[str, int] = {
            key: number
            for number, operation in enumerate(log.operations)
            for key in operation.outputs
        }
        """Maps a tensor's key to the index of the last operation that returned the tensor."""

    def first_wrong(self, limit: float, is_backward: bool) -> Operation | None:
        """Returns the first wrong operation that contributes to the program's results; None if there is none. With
        `is_backward`, considers the gradients instead of the operations of the forward pass."""
        right, leads = self._right_operations(limit), self._leads_to_results(is_backward)
        for number, operation in enumerate(self._log.operations):
            if operation.is_backward == is_backward and leads[number] and not right[number]:
                return operation
        return None

    def is_close(self, operation: Operation) -> bool:
        """Whether the other program has a tensor that is close to an output of the operation. The close tensor
        may be the same output, computed with an error."""
        return any(
            numpy.isfinite(self._distance(key)) for key in self._distinctive_outputs(operation)
        )

    def growth(self, operation: Operation) -> float:
        """Returns the error of an operation divided by the largest error of its inputs. Inputs without a close tensor
        in the other program are ignored."""
        input_errors = (
            self._distance(key)
            for key in operation.inputs
            if _is_distinctive(self._log.arrays[key])
        )
        input_error = max((error for error in input_errors if error <= 1), default=0.0)
        error = max(
            (self._distance(key) for key in self._distinctive_outputs(operation)), default=0.0
        )
        # an error is at most `_ALIKE`, because arrays that are further apart are not compared. The error of the inputs
        # is at least a rounding error, even if they are equal
        return min(error, _ALIKE) / max(input_error, distances.OFF["float32"] * _ROUNDING)

    def all_wrong(self, limit: float) -> list[Operation]:
        """Returns all operations that are not correct, in order."""
        right = self._right_operations(limit)
        return [
            operation
            for number, operation in enumerate(self._log.operations)
            if not right[number]
        ]

    def is_right(self, key: str, limit: float) -> bool:
        """Whether the tensor with this key is correct. A tensor is correct if the other program computed it
        too, if the operation that returned it is correct, or if its numbers are not distinctive (`_is_distinctive`)."""
        maker = self._makers.get(key)
        if not _is_distinctive(self._log.arrays.get(key)) or self._distance(key) <= limit:
            return True
        return maker is not None and self._right_operations(limit)[maker]

    def _right_operations(self, limit: float) -> list[bool]:
        """Returns a list with a bool for each operation: whether the operation is correct. An operation without
        distinctive outputs (`_distinctive_outputs`) is treated as correct. Another operation is correct if the other
        program has a tensor within the limit of one of its distinctive outputs, or if a correct operation uses such an
        output and has distinctive outputs itself."""
        if limit in self._right:
            return self._right[limit]
        users: dict[str, list[int]] = {}
        for number, operation in enumerate(self._log.operations):
            for key in operation.inputs:
                users.setdefault(key, []).append(number)
        right = [False] * len(self._log.operations)
        proves_others = list(right)
        """For each operation, whether it proves that the operations before it are correct. An operation without
        distinctive outputs proves nothing."""
        # from the last operation to the first, so that the operations that use an output are judged before the
        # operation that returned the output
        for number in reversed(range(len(right))):
            outputs = self._distinctive_outputs(self._log.operations[number])
            # an earlier operation may have received equal numbers, which have the same key
            later_users = (
                user for key in outputs for user in users.get(key, ()) if user > number
            )
            proves_others[number] = any(self._distance(key) <= limit for key in outputs) or any(
                proves_others[user] for user in later_users
            )
            right[number] = proves_others[number] or not outputs
        self._right[limit] = right
        return right

    def _distinctive_outputs(self, operation: Operation) -> list[str]:
        """Returns the keys of the operation's distinctive outputs (`_is_distinctive`). If no input is distinctive,
        outputs with a single number are left out, because such numbers are constants in the code."""
        keys = [key for key in operation.outputs if _is_distinctive(self._log.arrays[key])]
        if any(_is_distinctive(self._log.arrays[key]) for key in operation.inputs):
            return keys
        return [key for key in keys if self._log.arrays[key].size > 1]

    def _leads_to_results(self, is_backward: bool) -> list[bool]:
        """Returns a list with a bool for each operation: whether it contributes to the program's results or, with
        `is_backward`, to the gradients of parameters and inputs. If no operation does, all entries are True."""
        # an operation whose result is used only by a gradient does not lead to the outputs
        gradients = [gradient.gradient for gradient in self._log.gradients]
        keys = gradients if is_backward else self._log.results()
        wanted = {key for key in keys if key in self._makers}
        # if no operation returned a result, all operations are considered
        leads = [not wanted] * len(self._log.operations)
        for number in reversed(range(len(leads))):
            operation = self._log.operations[number]
            # only distinctive outputs, because many operations return the same constant
            if wanted.intersection(self._distinctive_outputs(operation)):
                leads[number] = True
                wanted.update(operation.inputs)
        return leads

    def _distance(self, key: str) -> float:
        """Returns the distance between the tensor with this key and the closest tensor of the other program."""
        if key not in self._distances:
            self._distances[key] = self._other.distance(self._log.arrays[key])
        return self._distances[key]


class _Index:
    """Stores arrays by their sizes and norms, and finds the one that is closest to a given array."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._by_size: dict[int, list[tuple[float, Array]]] = {}
        for array in arrays:
            if _is_distinctive(array):
                self._by_size.setdefault(array.size, []).append((_norm(array), array))

    def distance(self, expected: Array) -> float:
        """Returns the distance between `expected` and the closest array, in any order of axes. Returns infinity if no
        array has the same size and about the same norm as `expected`."""
        best, norm = numpy.inf, _norm(expected)
        for other_norm, array in self._by_size.get(expected.size, ()):
            # a quick test, because arrays with different norms cannot be close
            if abs(other_norm - norm) > norm * _ALIKE:
                continue
            for reordered in _axis_orders(array, expected):
                best = min(best, distances.distance_between(reordered, expected))
                # far below every limit, so a closer array would change nothing
                if best < 1e-9:
                    return float(best)
        return float(best)


def _norm(x: Array) -> float:
    """Returns the Euclidean norm of all numbers in an array, which does not depend on the order of axes. Returns 0 if
    the norm is not finite (for NaN or an infinity, for example)."""
    with numpy.errstate(all="ignore"):
        norm = float(numpy.linalg.norm(distances.to_double(x).ravel()))
    return norm if numpy.isfinite(norm) else 0.0


def _is_distinctive(x: Array | None) -> bool:
    """Whether the numbers of an array are so specific that another array would not have the same numbers by
    chance. Returns False for ints, bools, an array of several equal numbers, and an array with a single common number
    such as 0 or 1."""
    if x is None or x.dtype.kind not in "fc" or not x.size:
        return False
    first = x.flat[0]
    if x.size == 1:
        return bool(numpy.isfinite(first)) and float(abs(first)) not in (0.0, 0.5, 1.0, 2.0)
    return bool((x != first).any())


def _axis_orders(x: Array, expected: Array) -> Iterator[Array]:
    """Yields `x` reshaped to the shape of `expected`, and then in each order of its axes that results in this shape.
    Axes of length 1 are ignored. Yields nothing if the two arrays have different numbers of elements."""
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
        # the unchanged order is left out, because the reshaped array was yielded above
        if order != tuple(range(len(sizes))) and tuple(sizes[axis] for axis in order) == wanted:
            yield narrow.transpose(order).reshape(expected.shape)
