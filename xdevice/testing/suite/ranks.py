"""One rank of the checks of several processes: `python -m xdevice.testing.suite.ranks`, started
as a launcher would start it.

The process prints the failed checks as one line of JSON. Every rank creates the inputs of all ranks, so it can compute
the expected result itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

import xdevice
from xdevice.base.dtypes import host_dtype
from xdevice.testing.suite import values
from xdevice.testing.suite.base import assert_same
from xdevice.testing.suite.worlds import FAILURES, STOPS_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.distributed.process_group import World

    Array = np.ndarray[Any, Any]

_ROUNDING = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "complex64": 1e-6}
"""Maps dtypes to the relative difference that rounding may cause. For all other dtypes, it is 1e-15."""


class Ranks:
    """The checks of one dtype that one rank (process) runs together with the other ranks. Most
    methods check one collective."""

    def __init__(self, world: World, dtype: str) -> None:
        self.world, self.dtype = world, dtype
        self.rank, self.size = world.rank, world.size
        self.extreme_values = self.for_each_rank(values.extreme_values(dtype))
        """Input for collectives that move values: one array of extreme values for each rank. No two arrays are
        equal."""
        self.small_numbers = self.for_each_rank(values.small_numbers(dtype))
        """Input for collectives that compute: one array for each rank, of small numbers whose sums are exact in every
        dtype."""

    def for_each_rank(self, array: Array) -> list[Array]:
        """Returns one array for each rank: `array`, with its elements rotated by as many places as the rank's
        number."""
        return [np.roll(array, rank) for rank in range(self.size)]

    def tensor(self, array: Array) -> Any:
        """Returns a tensor on the CPU with the values of an array."""
        return xdevice.tensor(array, dtype=self.dtype, device="cpu")

    def own_tensor(self, arrays: list[Array]) -> Any:
        """Returns a tensor with the values of this rank's array in `arrays`."""
        return self.tensor(arrays[self.rank])

    # comparing

    def assert_equals(self, x: Any, expected: Array, name: str) -> None:
        """Checks that a tensor equals an array bit for bit. Here and in the methods below, `name` is the name of the
        tensor in errors."""
        assert_same(xdevice.to_numpy(x), expected, name)

    def assert_near(self, x: Any, expected: Array, name: str) -> None:
        """Checks that a tensor has this object's dtype, and equals an array up to the rounding
        of that dtype."""
        array = xdevice.to_numpy(x)
        assert array.dtype == host_dtype(self.dtype), (
            f"{name}: {array.dtype}, expected {self.dtype}"
        )
        # compared in the widest dtype, so that the comparison itself does not round
        off = np.abs(array.astype("complex128") - expected).max()
        assert off <= _ROUNDING.get(self.dtype, 1e-15) * max(1.0, np.abs(expected).max()), (
            f"{name}: off by {off}"
        )

    def assert_refused(self, op: str) -> None:
        """Checks that `all_reduce` with the operation `op` raises `DTypeError` for this
        dtype."""
        try:
            self.world.all_reduce(self.own_tensor(self.small_numbers), op)
        except xdevice.errors.DTypeError:
            return
        raise AssertionError(f"{op} of {self.dtype} must raise DTypeError")

    # the checks, each of which every rank runs

    def sums(self) -> None:
        """Checks sums. If the input is writable, the sum must be written into the input. Booleans must be refused."""
        if self.dtype == "bool":
            self.assert_refused("sum")
            return
        x = self.own_tensor(self.small_numbers)
        result = self.world.all_reduce(x)
        self.assert_equals(result, reduce(np.add, self.small_numbers), "sum")
        # tensors of JAX and TensorFlow cannot be written, so the result is a new tensor
        backend = xdevice.backend()
        if backend.can_write(backend.detached(x)):
            assert result is x, (
                "sum: the result is a new tensor, although the input can be written"
            )
        else:
            self.assert_equals(
                x, self.small_numbers[self.rank], "the input of sum, which cannot be written"
            )

    def means(self) -> None:
        """Checks means, and weighted means, in which each rank has its own weight. Dtypes other than floats must be
        refused."""
        if self.dtype not in values.FLOATS:
            self.assert_refused("mean")
            return
        # the mean in a wider dtype, with which the engine's mean is compared
        wide = [row.astype("complex128") for row in self.small_numbers]
        mean = self.world.all_reduce(self.own_tensor(self.small_numbers), "mean")
        self.assert_near(mean, reduce(np.add, wide) / self.size, "mean")
        # fractions, because with whole numbers the sum would be exact in any order
        weights = [rank + 0.5 for rank in range(self.size)]
        expected = np.average(wide, axis=0, weights=weights)
        weighed = self.world.all_reduce(
            self.own_tensor(self.small_numbers), "mean", weight=weights[self.rank]
        )
        self.assert_near(weighed, expected, "weighted mean")

    def extremes(self) -> None:
        """Checks the maximum and the minimum. Complex numbers must be refused."""
        if self.dtype.startswith("complex"):
            self.assert_refused("max")
            return
        for op, function in (("max", np.maximum), ("min", np.minimum)):
            expected = reduce(function, self.small_numbers)
            self.assert_equals(
                self.world.all_reduce(self.own_tensor(self.small_numbers), op), expected, op
            )

    def broadcasts(self) -> None:
        """Checks a broadcast from each rank."""
        # every rank is the root once, because an engine that ignores the root would pass with
        # rank 0, the default
        for root in range(self.size):
            result = self.world.broadcast(self.own_tensor(self.extreme_values), root=root)
            self.assert_equals(result, self.extreme_values[root], f"broadcast from {root}")

    def gathers(self) -> None:
        """Checks that the arrays of all ranks are joined in the order of the ranks, even if their
        lengths differ."""
        x = self.own_tensor(self.extreme_values)
        self.assert_equals(
            self.world.all_gather(x), np.concatenate(self.extreme_values), "all_gather"
        )
        self.assert_equals(x, self.extreme_values[self.rank], "the input of all_gather")
        # rank 0 has no rows
        uneven = [row[:rank] for rank, row in enumerate(self.extreme_values)]
        gathered = self.world.all_gather(self.own_tensor(uneven), even=False)
        self.assert_equals(gathered, np.concatenate(uneven), "uneven all_gather")

    def scatters(self) -> None:
        """Checks that each rank receives its own part of the sum. Checks nothing for booleans."""
        if self.dtype == "bool":
            return
        # each rank contributes a part for every rank
        rows = [np.concatenate([row] * self.size) for row in self.small_numbers]
        x = self.own_tensor(rows)
        expected = np.split(reduce(np.add, rows), self.size)[self.rank]
        self.assert_equals(self.world.reduce_scatter(x), expected, "reduce_scatter")
        self.assert_equals(x, rows[self.rank], "the input of reduce_scatter")

    def sends(self) -> None:
        """Checks `send` from rank 0 to rank 1."""
        if self.rank == 0:
            x = self.own_tensor(self.extreme_values)
            self.world.send(x, 1)
            self.assert_equals(x, self.extreme_values[0], "the input of send")
        elif self.rank == 1:
            like = self.tensor(np.zeros_like(self.extreme_values[0]))
            self.assert_equals(self.world.recv(like, 0), self.extreme_values[0], "recv")

    def shapes(self) -> None:
        """Checks 0-d tensors and tensors without elements, which engines are seldom tested with. Checks
        nothing for booleans."""
        if self.dtype == "bool":
            return
        kind, world = host_dtype(self.dtype), self.world
        number = world.all_reduce(self.tensor(np.array(2, kind)))
        self.assert_equals(number, np.array(2 * self.size, kind), "sum of numbers")
        numbers = np.full(self.size, 2 * self.size, kind)
        self.assert_equals(world.all_gather(number), numbers, "all_gather of numbers")
        empty = np.zeros((0, 3), kind)
        self.assert_equals(world.all_reduce(self.tensor(empty)), empty, "sum of nothing")
        self.assert_equals(world.broadcast(self.tensor(empty)), empty, "broadcast of nothing")
        rows = np.zeros((3, 0, 2), kind)
        every = np.concatenate([rows] * self.size)
        self.assert_equals(
            world.all_gather(self.tensor(rows)), every, "all_gather of rows of nothing"
        )
        scattered = world.reduce_scatter(self.tensor(every))
        self.assert_equals(scattered, rows, "reduce_scatter of rows of nothing")

    CHECKS = (sums, means, extremes, broadcasts, gathers, scatters, sends, shapes)


def failed_checks(world: World) -> Iterator[str]:
    """Runs the checks with each dtype of the backend, and yields a message for each check that failed, such as "sums of
    float16: ...". If the engine (gloo, NCCL) refuses a check, this is not a failure: the check is added to
    `refused`."""
    backend = xdevice.backend()
    for dtype in sorted(backend.dtypes):
        if backend.dtype_refusal(dtype) is not None:
            continue
        ranks = Ranks(world, dtype)
        for check in Ranks.CHECKS:
            try:
                check(ranks)
            except AssertionError as error:
                yield f"{check.__name__} of {dtype}: {error}"
            except (xdevice.errors.DTypeError, xdevice.errors.UnsupportedError) as error:
                # if the error does not mention the engine, the adapter is at fault
                if "the engine" not in str(error):
                    raise
                refused.append(f"{check.__name__} of {dtype}: {error}")
            # without this barrier, an error of a slower rank could be reported for the next
            # check
            world.barrier()


refused: list[str] = []
"""The checks that the engine refused because it does not support the dtype, with the messages of the engine's
errors."""


def training_faults(world: World) -> Iterator[str]:
    """Performs a training step in several processes, each with a part of the batch. The parts have different sizes. The
    result must equal the step of a single process with the whole batch. Yields a message for each fault."""
    backend = xdevice.backend()
    # a few units in the last place, because the sum over the parts is computed in another order
    # than the sum over the whole batch
    for dtype, tolerance in (("float32", 2e-7), ("float64", 1e-15)):
        if backend.dtype_refusal(dtype) is None and dtype in backend.dtypes:
            yield from _training_faults_in(dtype, tolerance, world)


def _training_faults_in(dtype: str, tolerance: float, world: World) -> Iterator[str]:
    """Does the work of `training_faults` in one dtype. `tolerance` is the largest relative difference that is allowed
    between the gradient of several processes and the gradient of one process."""
    # all ranks use the same seed, so that they have the same data
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2 * world.size + 1, 4))
    y = generator.normal(size=(2 * world.size + 1,))
    w = generator.normal(size=4)
    # one row more than twice the number of ranks, so that the parts are uneven
    own_x, own_y = world.split_batch([x, y], even=False)
    own = xdevice.tensor(_gradient(own_x, own_y, w), dtype=dtype, device="cpu")
    mean = xdevice.to_numpy(world.average_gradients([own], weight=len(own_y))[0])
    expected = _gradient(x, y, w)
    off = np.abs(mean - expected).max() / np.abs(expected).max()
    if not off <= tolerance:
        yield f"the gradient of {dtype} is off by {off}"
    rows = world.all_gather(xdevice.tensor(mean[None], dtype=dtype, device="cpu"))
    if len({row.tobytes() for row in xdevice.to_numpy(rows)}) != 1:
        yield f"the ranks' gradients of {dtype} differ"


def _gradient(x: Array, y: Array, w: Array) -> Array:
    """Returns the gradient of the mean of the squares of `x @ w - y` with respect to `w`; zeros if there are no
    rows."""
    return np.asarray(2 * x.T @ (x @ w - y) / max(1, len(y)))


# failures of one rank


def fail_one_rank(world: World, how: str) -> dict[str, Any]:
    """Makes one of two ranks fail while the other rank calls a collective. `how`, a key of `FAILURES`, is the kind of
    failure. Returns a report of the error that the collective raised, including the number of seconds until the error;
    {} if there was no error. A `PeerError` is reported on standard output and raised again."""
    x = xdevice.ones(4)
    # for each way, the function that the failing rank calls
    calls: dict[str, Callable[[], object]] = {
        "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "is killed as rank 0": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "is stopped in a long call": lambda: _call_for_long(world, stops=True),
        "raises": _raise,
        "stands still": lambda: time.sleep(1000),
        "has another shape": lambda: world.all_reduce(xdevice.ones(5)),
        "has another dtype": lambda: world.all_reduce(xdevice.ones(4, dtype="int32")),
        "has another operation": lambda: world.all_reduce(x, "max"),
        "has another order": lambda: world.broadcast(x),
        "leaves": lambda: None,
    }
    # in these two ways, rank 1 fails without calling a collective, so it has no error to report
    if world.rank == 1 and how in ("raises", "leaves"):
        calls[how]()
        return {}
    begun = time.monotonic()
    try:
        if world.rank == FAILURES[how].failing:
            calls[how]()
        # both ranks must be in the same call
        elif how == "is stopped in a long call":
            _call_for_long(world, stops=False)
        else:
            world.all_reduce(x)
    except xdevice.errors.CollectiveMismatchError as error:
        report: dict[str, Any] = {"error": "CollectiveMismatchError", "text": str(error)}
        report["seconds"] = time.monotonic() - begun
        # a mismatch is found before anything is written, and leaves the world open
        report["written"] = xdevice.to_numpy(x).tolist() != [1.0] * 4
        report["usable"] = (
            xdevice.to_numpy(world.all_reduce(xdevice.ones(4))).tolist() == [world.size] * 4
        )
        return report
    except xdevice.errors.PeerError as error:
        print(
            json.dumps({**_described(error), "seconds": time.monotonic() - begun}), flush=True
        )
        raise
    return {}


def _raise() -> None:
    """Raises an error, as a bug in a rank's own program would."""
    raise ValueError("a bug in rank 1")


def _call_for_long(world: World, stops: bool) -> None:
    """Calls `all_reduce` with a large tensor again and again, until a call raises an error. If `stops` is True, this
    process is stopped (SIGSTOP) after `STOPS_AFTER` seconds."""
    # 256 MB, so that the process is stopped inside a call
    x = xdevice.zeros(1 << 26)
    if stops:
        threading.Timer(STOPS_AFTER, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    while True:
        world.all_reduce(x)


def _described(error: xdevice.errors.PeerError) -> dict[str, Any]:
    """Returns a report of a `PeerError`: the name of its type, its reason, the rank that failed, and its message."""
    return {"error": "PeerError", "why": error.why, "peer": error.rank, "text": str(error)}


def main() -> None:
    """Joins the other ranks, and prints a report. If the command line names a failure, the report is about this
    failure; otherwise, it is about all other checks."""
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        with xdevice.distributed.processes() as world:
            if how:
                report = fail_one_rank(world, how)
            else:
                wrong = [*failed_checks(world), *training_faults(world)]
                report = {
                    "rank": world.rank,
                    "engine": world.engine,
                    "faults": wrong,
                    "refused": refused,
                }
    except xdevice.errors.PeerError as error:
        # `fail_one_rank` has printed the errors that were raised in the block
        if error.why == "never joined":
            print(json.dumps(_described(error)))
        raise
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
