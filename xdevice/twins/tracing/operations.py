"""The operations that a program runs, and the first of them at which two programs differ.

Two frameworks compute the same value with different operations: a softmax is one call here and four there. So
operations are not paired by their names, but by the numbers that they return. An operation is right if the other
program has computed the same numbers, in any order of axes, or if an operation that uses its output is right. The two
programs part at the first operation that is not right, among those that lead to the program's results: all its inputs
are right.

The numbers also show which operation uses which output: so views, and writes in place, need no rules.
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
"""How many operations are kept; a program may run more."""
_MOST_BYTES: Final = 1 << 30
_ALIKE: Final = 1e-2
"""Only arrays whose norms differ by at most this share are compared."""
_ROUNDING: Final = 1 / 500
"""Errors below this share of the limit count as rounding when their growth is measured."""
_SHARES: Final = (1.0, 0.1, 0.01)
"""The limits at which operations are judged, as shares of the usual limit: a fault may be small where it begins."""
_STANDARD: Final = sysconfig.get_paths()["stdlib"]
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
    """One operation that a program has run, or the gradient that has reached an output of an operation."""

    name: str
    line: str
    """The program's line, such as `/home/ann/train.py:41`; empty if there is none."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """The keys of the tensors that it took and returned."""
    is_backward: bool = False

    def __str__(self) -> str:
        name = f"the gradient of {self.name}" if self.is_backward else self.name
        return f"{name} ({self.line})" if self.line else name


class Gradient(NamedTuple):
    """The gradient of a parameter, or of an input, that a program has computed."""

    name: str
    value: str
    gradient: str
    """`value` and `gradient` are keys."""


class Log:
    """The operations of a program, in order, and the numbers that they took and returned."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.operations: list[Operation] = []
        self.gradients: list[Gradient] = []
        self.roots: list[str] = []
        """The keys of the program's results: the values that it has recorded."""
        self.arrays: dict[str, Array] = {}
        """The arrays by their keys, each once."""
        self.is_full = False
        self._bytes = 0

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.is_full = len(self.operations) >= _MOST or self._bytes >= _MOST_BYTES

    def ends(self) -> list[str]:
        """The keys of the program's results: the values that it has recorded, or else the ones from which it ran
        backward, or else its last output."""
        if self.roots or not self.operations:
            return self.roots
        # going backward begins right behind the loss
        neighbors = zip(self.operations, self.operations[1:], strict=False)
        losses = [one for one, other in neighbors if other.is_backward and not one.is_backward]
        return [
            key for operation in losses or self.operations[-1:] for key in operation.outputs
        ]

    def key(self, array: Array) -> str:
        """Keeps an array, and returns its key: equal for equal shapes and numbers."""
        # bfloat16 and 8-bit floats, which NumPy cannot calculate with
        if array.dtype.kind not in "biufc":
            array = array.astype("float32")
        shape = array.shape
        # reshaped, because `ascontiguousarray` adds an axis to an array that has none
        array = numpy.ascontiguousarray(array).reshape(shape)
        # a hash, because most arrays are compared with thousands of others
        key = hashlib.blake2b(
            array.view("uint8").data if array.ndim else array.tobytes(), digest_size=12
        ).hexdigest()
        # equal bytes of another shape or dtype are other numbers
        key = f"{key}{array.shape}{array.dtype}"
        if key not in self.arrays:
            # a copy, because the program may write into the array
            self.arrays[key] = array.copy()
            self._bytes += array.nbytes
        return key


class LogWriter:
    """Keeps the operations of a backend in a log; `Backend.operation_calls` calls it."""

    def __init__(self, backend: Backend, log: Log) -> None:
        self._backend, self._log = backend, log
        self._is_inside = False
        # with the object itself, since an id is one object's only as long as the object lives
        self._names: dict[int, tuple[str, Any]] = {}
        self._users: dict[str, list[int]] = {}
        """By a tensor's key, the numbers of the operations that took it."""
        self._gradients: dict[int, list[str]] = {}
        """By an operation's number, the keys of the gradients that reached its outputs."""

    def run(
        self,
        name: str,
        arguments: Any,
        go: Callable[[], Any],
        follow: Any = None,
        is_backward: bool = False,
    ) -> Any:
        """Returns `go()`, and keeps it as an operation. `follow(result, put)` makes sure that `put(number, gradient)`
        is called with each gradient that reaches an output."""
        # an operation inside another is part of it: a softmax is one call of the program
        if self._is_inside or self._log.is_full:
            return go()
        # what a framework computes while xdevice reads a tensor is not the program's
        inputs = self._keys(arguments)
        self._is_inside = True
        try:
            result = go()
        finally:
            self._is_inside = False
        outputs = self._keys(result)
        # it gave no tensor, but for example a shape, which says nothing about the numbers
        if not outputs:
            return result
        self._add(Operation(name, program_line(), inputs, outputs, is_backward))
        return result if follow is None else self._followed(result, follow)

    def name_all(self, names: Iterable[tuple[str, Any]]) -> None:
        """Sets the names that tensors have in a model."""
        for name, x in names:
            self._names[id(x)] = name, x

    def leaf(self, x: Any, gradient: Any, name: str = "") -> None:
        """Keeps the gradient of `x`, which the program has computed."""
        if self._log.is_full:
            return
        # one tensor each, or none with numbers
        (value, *_), (key, *_) = self._keys(x) or ("",), self._keys(gradient) or ("",)
        if not value or not key:
            return
        name, _ = self._names.get(id(x), (name, x))
        if not name:
            # a tensor without a name is described by the operation that takes it
            user = next(iter(self._users.get(value, [])), None)
            taker = f" of {self._log.operations[user]}" if user is not None else ""
            name = f"input{taker}, {self._log.arrays[value].shape}"
        self._log.gradients.append(Gradient(name, value, key))

    def named(self, name: str, value: object) -> None:
        """Keeps a value that the program records, as one of its results."""
        if not self._log.is_full:
            self._log.roots += self._keys(value)

    def _add(self, operation: Operation) -> None:
        for key in operation.inputs:
            self._users.setdefault(key, []).append(len(self._log.operations))
        self._log.add(operation)

    def _followed(self, result: Any, follow: Any) -> Any:
        """Returns the result of the last operation as `follow` gives it. A gradient that reaches one of its outputs is
        kept as an operation of its own."""
        last = len(self._log.operations) - 1
        operation = self._log.operations[last]

        def put(number: int, gradient: Any) -> None:
            # outputs without numbers have no key, and so no number here
            if self._log.is_full or number >= len(operation.outputs):
                return
            # an output's gradient is computed from the gradients of the operations that took the output
            users = self._users.get(operation.outputs[number], [])
            inputs = tuple(key for user in users for key in self._gradients.get(user, []))
            keys = self._keys(gradient)
            self._gradients.setdefault(last, []).extend(keys)
            self._log.add(operation._replace(inputs=inputs, outputs=keys, is_backward=True))

        return follow(result, put)

    def _keys(self, value: Any) -> tuple[str, ...]:
        # reading a tensor runs operations of the framework, which are not the program's
        self._is_inside, before = True, self._is_inside
        try:
            tensors = list(layer_calls.tensors(self._backend, value))
            return tuple(map(self._log.key, self._read(tensors)))
        finally:
            self._is_inside = before

    def _read(self, tensors: Iterable[Any]) -> Iterator[Array]:
        for x in tensors:
            if isinstance(x, numpy.ndarray):
                yield x
                continue
            # handles of variables, sparse tensors and the like have no numbers to compare
            with suppress(UnsupportedError):
                yield numpy.asarray(self._backend.to_numpy(x))


def program_line() -> str:
    """The innermost line that is neither a framework's, nor Python's, nor ours."""
    frame: FrameType | None = sys._getframe(1)
    installed = ""
    while frame is not None:
        root = (frame.f_globals.get("__name__") or "").partition(".")[0]
        file = frame.f_code.co_filename
        is_program = (
            root not in _FRAMES
            and not root.startswith("xdevice_")
            and not file.startswith(("<", _STANDARD))
        )
        # code of the user's, found at last
        if is_program and "site-packages" not in file:
            return f"{os.path.abspath(file)}:{frame.f_lineno}"
        # the fallback: a package that is neither a framework nor the standard library
        if is_program and not installed:
            installed = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return installed


# where two programs part


class Errors(NamedTuple):
    """How far an array is from the one that it should equal."""

    abs: float
    rel: float
    """The largest error of an element, as a share of that element."""
    share: float
    """The largest error of an element, as a share of the largest element."""
    cosine: float
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
    """None if the expected program computes everything that the actual one does: then the actual one leaves something
    out."""
    expected: Operation | None
    closest: tuple[Operation, Operation] | None
    """The operations of the two, none of them right and one of them the first, whose outputs are closest; None if none
    gives as many numbers as the first of the other side."""
    errors: Errors | None
    """How far the outputs of `closest` are apart."""
    share: float
    """The limit at which the two were judged, as a share of the usual one."""


class TwoPrograms:
    """Two programs to be compared."""

    def __init__(self, actual: Log, expected: Log) -> None:
        self.actual, self.expected = actual, expected
        self.judges = Judge(actual, expected), Judge(expected, actual)
        """They say which operations of the actual program, and which of the expected one, are right."""
        self.limit = distances.OFF["float32"]

    def part(self, is_backward: bool = False) -> Parting | None:
        """The first operation of each program that is not right; None if both programs are right throughout. Only
        operations that lead to the results of the program count, or all of them if none does. Tries several limits, and
        takes the operations at which the error grows most."""
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
            # an operation without a counterpart is right if those behind it are, and at a smaller limit these may only
            # be off by rounding
            if best is not None and not any(
                judge.is_close(operation) for judge, operation in sides
            ):
                continue
            # a fault may begin small, and rounding may be as large: the cause is where the error grows most
            if growth > most_growth:
                closest = self._closest(actual, expected, limit)
                best, most_growth = Parting(actual, expected, *closest, share), growth
        return best

    def gradients(self) -> list[tuple[str, Errors | None]]:
        """For each gradient of the expected program, in the order of its backward pass, the name of the tensor that it
        belongs to, and how far the closest gradient of the actual program is from it; None if none has its size. If the
        values show which parameter it is, that parameter's gradient is taken."""
        every = [
            key for one in self.actual.operations if one.is_backward for key in one.outputs
        ]
        every += [one.gradient for one in self.actual.gradients]
        rows = []
        for its in self.expected.gradients:
            value, wanted = self.expected.arrays[its.value], self.expected.arrays[its.gradient]
            same = [
                one.gradient for one in self.actual.gradients if self._is_same(one.value, value)
            ]
            ways = [
                way
                for key in dict.fromkeys(same or every)
                for way in _axis_orders(self.actual.arrays[key], wanted)
            ]
            best = min(ways, key=lambda way: distances.apart(way, wanted), default=None)
            rows.append((its.name, None if best is None else errors(best, wanted)))
        return rows

    def _is_same(self, key: str, value: Array) -> bool:
        mine = self.actual.arrays[key]
        return _is_distinctive(value) and any(
            distances.apart(way, value) <= self.limit for way in _axis_orders(mine, value)
        )

    def _closest(
        self, one: Operation | None, other: Operation | None, limit: float
    ) -> tuple[tuple[Operation, Operation] | None, Errors | None]:
        if one is None or other is None:
            return None, None
        ours, theirs = (judge.wrong(limit) for judge in self.judges)
        pairs = [(mine, other) for mine in ours] + [(one, its) for its in theirs]
        best, closest, nearest = numpy.inf, None, None
        for mine, its in pairs:
            if mine.is_backward != its.is_backward:
                continue
            wanted = self.expected.arrays[its.outputs[0]]
            for x in _axis_orders(self.actual.arrays[mine.outputs[0]], wanted):
                distance = distances.apart(x, wanted)
                if distance < best:
                    best, closest, nearest = distance, (mine, its), errors(x, wanted)
        return closest, nearest


def errors(actual: Array, expected: Array) -> Errors:
    """How far an array is from the expected one, which has the same shape."""
    ours, theirs = distances.wide(actual), distances.wide(expected)
    off, size = numpy.abs(ours - theirs), numpy.abs(theirs)
    with numpy.errstate(all="ignore"):
        rel = float(numpy.nanmax(numpy.where(off > 0, off / size, 0.0), initial=0.0))
        norms = numpy.linalg.norm(ours) * numpy.linalg.norm(theirs)
        cosine = float(numpy.vdot(ours, theirs).real / norms) if norms else float(not off.any())
    # the rule of `assert_parity` for float32, which a user knows; `share` decides
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
    """Decides whether each operation of one program is right, by the numbers of another."""

    def __init__(self, log: Log, other: Log) -> None:
        self._log = log
        self._other = _Index(other.arrays.values())
        self._distances: dict[str, float] = {}
        """For a tensor's key, how far the closest tensor of the other program is from the tensor."""
        self._right: dict[float, list[bool]] = {}
        """For each limit, whether each operation is right."""
        self._makers: dict[str, int] = {
            key: n for n, one in enumerate(log.operations) for key in one.outputs
        }
        """For a tensor's key, the number of the operation that returned the tensor."""

    def first(self, limit: float, is_backward: bool) -> Operation | None:
        """The first operation that is not right, among those that lead to the program's results."""
        right, leads = self._judge(limit), self._on_the_way(is_backward)
        for number, operation in enumerate(self._log.operations):
            if operation.is_backward == is_backward and leads[number] and not right[number]:
                return operation
        return None

    def is_close(self, operation: Operation) -> bool:
        """Whether the other program has an output that may be the operation's output with an error."""
        return any(
            numpy.isfinite(self._distance(key)) for key in self._distinctive_outputs(operation)
        )

    def growth(self, operation: Operation) -> float:
        """How many times larger the error of an operation is than the largest error of its inputs."""
        taken = (
            self._distance(key)
            for key in operation.inputs
            if _is_distinctive(self._log.arrays[key])
        )
        before = max((error for error in taken if error <= 1), default=0.0)
        error = max(
            (self._distance(key) for key in self._distinctive_outputs(operation)), default=0.0
        )
        # arrays further apart than `_ALIKE` are not compared, so their error is only known to be larger
        return min(error, _ALIKE) / max(before, distances.OFF["float32"] * _ROUNDING)

    def wrong(self, limit: float) -> list[Operation]:
        right = self._judge(limit)
        return [
            operation
            for number, operation in enumerate(self._log.operations)
            if not right[number]
        ]

    def is_right(self, key: str, limit: float) -> bool:
        maker = self._makers.get(key)
        if not _is_distinctive(self._log.arrays.get(key)) or self._distance(key) <= limit:
            return True
        return maker is not None and self._judge(limit)[maker]

    def _judge(self, limit: float) -> list[bool]:
        if limit in self._right:
            return self._right[limit]
        users: dict[str, list[int]] = {}
        for number, operation in enumerate(self._log.operations):
            for key in operation.inputs:
                users.setdefault(key, []).append(number)
        right = [False] * len(self._log.operations)
        proves = list(right)
        """Whether an operation shows that those before it are right: not if its output tells nothing."""
        for number in reversed(range(len(right))):
            outputs = self._distinctive_outputs(self._log.operations[number])
            behind = (user for key in outputs for user in users.get(key, ()) if user > number)
            proves[number] = any(self._distance(key) <= limit for key in outputs) or any(
                proves[user] for user in behind
            )
            right[number] = proves[number] or not outputs
        self._right[limit] = right
        return right

    def _distinctive_outputs(self, operation: Operation) -> list[str]:
        """The outputs whose numbers tell something. A single number with no inputs is a constant in the code."""
        keys = [key for key in operation.outputs if _is_distinctive(self._log.arrays[key])]
        if any(_is_distinctive(self._log.arrays[key]) for key in operation.inputs):
            return keys
        return [key for key in keys if self._log.arrays[key].size > 1]

    def _on_the_way(self, is_backward: bool) -> list[bool]:
        """Whether each operation leads to the program's results; in the backward pass, to the gradients that it has
        computed."""
        # what is computed on the way for the gradients alone is no step to the outputs
        gradients = [one.gradient for one in self._log.gradients]
        keys = gradients if is_backward else self._log.ends()
        wanted = {key for key in keys if key in self._makers}
        # gradients that are followed from the outputs all lead to parameters
        leads = [not wanted] * len(self._log.operations)
        for number in reversed(range(len(leads))):
            operation = self._log.operations[number]
            # a constant, which many operations give, leads nowhere
            if wanted.intersection(self._distinctive_outputs(operation)):
                leads[number] = True
                wanted.update(operation.inputs)
        return leads

    def _distance(self, key: str) -> float:
        if key not in self._distances:
            self._distances[key] = self._other.distance(self._log.arrays[key])
        return self._distances[key]


class _Index:
    """Arrays by their sizes and norms, to find one with the same numbers."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._by_size: dict[int, list[tuple[float, Array]]] = {}
        for array in arrays:
            if _is_distinctive(array):
                self._by_size.setdefault(array.size, []).append((_norm(array), array))

    def distance(self, expected: Array) -> float:
        """How far the closest of the arrays is from `expected`, in any order of axes."""
        best, norm = numpy.inf, _norm(expected)
        for other, array in self._by_size.get(expected.size, ()):
            if abs(other - norm) > norm * _ALIKE:
                continue
            for way in _axis_orders(array, expected):
                best = min(best, distances.apart(way, expected))
                # no limit is below this, so a closer array would change nothing
                if best < 1e-9:
                    return float(best)
        return float(best)


def _norm(x: Array) -> float:
    with numpy.errstate(all="ignore"):
        norm = float(numpy.linalg.norm(distances.wide(x).ravel()))
    return norm if numpy.isfinite(norm) else 0.0


def _is_distinctive(x: Array | None) -> bool:
    """Whether the numbers are too specific to occur by chance: not flags, counts or constants."""
    if x is None or x.dtype.kind not in "fc" or not x.size:
        return False
    first = x.flat[0]
    if x.size == 1:
        return bool(numpy.isfinite(first)) and float(abs(first)) not in (0.0, 0.5, 1.0, 2.0)
    return bool((x != first).any())


def _axis_orders(x: Array, expected: Array) -> Iterator[Array]:
    """The array in each order of its axes that has the expected shape, and as it is, apart from axes of one element."""
    if x.size != expected.size:
        return
    yield x.reshape(expected.shape)
    sizes = [size for size in x.shape if size > 1]
    wanted = tuple(size for size in expected.shape if size > 1)
    if len(sizes) > 4 or sorted(sizes) != sorted(wanted):
        return
    narrow = x.reshape(sizes)
    for order in permutations(range(len(sizes))):
        if order != tuple(range(len(sizes))) and tuple(sizes[axis] for axis in order) == wanted:
            yield narrow.transpose(order).reshape(expected.shape)
