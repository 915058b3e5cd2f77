"""`processes` and `World`: the verbs between processes, and the block in which they work.

Each verb checks what it was given, says what it is about to do and waits until all have said the same, and only then
starts the engine, whose call another thread makes: so that a rank which has failed ends the wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from contextlib import contextmanager, nullcontext
from enum import Enum
from math import prod
from numbers import Number
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.dtypes import host_dtype
from xdevice.containers import trees
from xdevice.contract.processes import Group
from xdevice.core import registry, selection
from xdevice.errors import (
    ArgumentError,
    CollectiveMismatchError,
    LaunchError,
    PeerError,
    ScopeError,
    ShapeError,
    UnsupportedError,
    shown,
)
from xdevice.replicas import operands
from xdevice.replicas.launch import local_device
from xdevice.replicas.operands import Operand, rebuilt

from . import buckets, carrying, control, endings, engines, launchers
from .carrying import OPS, Carrier, Weight, signatures
from .hub import LEAVE
from .runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device

    from .control import Line
    from .launchers import Launch

_SLOWEST: Final = 10e6
"""Bytes a second that an engine moves at least: a call has this much time beside the timeout."""
_LONGEST: Final = 60
"""Characters of a number or text that are told to the others as they are."""
_COUNTED: Final = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
"""The verbs of engines that all ranks call."""
_NO_WEIGHT: Final = "the weights of all ranks are 0, and a mean of nothing is not a number"
_ALONE: Final = launchers.Launch("none", 0, 1, 0, 1, launchers.LOOPBACK, None, "")

_current: World | None = None


def processes(
    *,
    engine: str | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    check: bool | None = None,
) -> World:
    """The processes that a launcher has started, as a block in which they work together; a world of one without any.

    Young: it may change in a minor version.

    A block inside the block gives the same world. docs/reference/processes.md says which launchers there are, and when
    a rank counts as late: one that the others wait for while nothing happens in it.

    Args:
        engine: what moves the tensors: "auto", a framework ("paddle"), or one of its engines ("torch:gloo"). "auto",
            the default, is PyTorch's gloo on the host, and the framework's own on GPUs; `world.engine` names it.
        timeout: seconds after which a rank counts as late: 30 by default.
        join_timeout: seconds in which all processes have to enter the block: 300 by default.
        check: whether the ranks vote before each collective on what they call: by default they do.
        XDEVICE_ENGINE, XDEVICE_TIMEOUT, XDEVICE_JOIN_TIMEOUT and XDEVICE_CHECK (1 or 0) set what is left out.

    Raises:
        LaunchError: the launcher's variables are incomplete or contradict each other; no secret; no engine.
        PeerError, CollectiveMismatchError: a process has not come, or has failed; it came with other arguments.
        ArgumentError: a wrong argument, or one that differs from that of the block around.

    Costs 20 ms and the start of the engine, which may import PyTorch; a world of one starts nothing.

    Example:
        >>> with xdevice.processes() as world:
        ...     assert xdevice.item(world.all_reduce(xdevice.tensor(3.0))) == 3 * world.size
    """
    options = _Options(
        engines.setting(engine, "XDEVICE_ENGINE", "auto", str, "a framework or 'auto'"),
        engines.require_seconds(engines.setting(timeout, "XDEVICE_TIMEOUT", 30.0, float, "seconds"), "timeout"),
        engines.require_seconds(
            engines.setting(join_timeout, "XDEVICE_JOIN_TIMEOUT", 300.0, float, "seconds"), "join_timeout"
        ),
        engines.setting(check, "XDEVICE_CHECK", True, {"1": True, "0": False}.__getitem__, "1 or 0"),
    )
    if not isinstance(options.engine, str) or type(options.check) is not bool:
        raise ArgumentError(f"engine is a text and check True or False, not {shown(engine)} and {shown(check)}")
    if _current is None:
        return World(options)
    given = (engine, timeout, join_timeout, check)
    differs = any(value is not None and value != own for value, own in zip(given, _current.options, strict=True))
    if differs:
        raise ArgumentError(f"this is inside of a block of processes already, with {_current.options}; leave it first")
    return _current


def world() -> World:
    """The world whose block this process is in.

    Young: it may change in a minor version.

    Raises:
        LaunchError: it is in none.

    Example:
        >>> with xdevice.processes() as world:
        ...     xdevice.world() is world
        True
    """
    if _current is None:
        raise LaunchError("this process is not in a block of processes: with xdevice.processes() as world:")
    return _current


class _Options(tuple):  # type: ignore[type-arg]
    __slots__ = ()

    def __new__(cls, engine: str, timeout: float, join_timeout: float, check: bool) -> _Options:
        return super().__new__(cls, (engine, timeout, join_timeout, check))

    engine = property(lambda self: self[0])
    timeout = property(lambda self: self[1])
    join_timeout = property(lambda self: self[2])
    check = property(lambda self: self[3])

    def __str__(self) -> str:
        return f"engine={self[0]!r}, timeout={self[1]:g}, join_timeout={self[2]:g}, check={self[3]}"


class _OnAllError(ArgumentError):
    """What all ranks raise at the same point, so that they are still side by side."""


class _Alone:
    """One verb at a time. What is raised in the middle of one, other than by another rank, ends the world."""

    __slots__ = ("_verb", "_world")

    def __init__(self, world: World, verb: str) -> None:
        self._world = world
        self._verb = verb

    def __enter__(self) -> None:
        world = self._world
        if not world.busy.acquire(blocking=False):
            raise ScopeError(
                f"{self._verb} while another thread is in {world.verb}: the order of the two would not be that of the "
                "other ranks; call the verbs of a world from one thread"
            )
        world.verb = self._verb
        world.came_by(threading.current_thread())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        try:
            if error is not None and not isinstance(error, PeerError | CollectiveMismatchError | _OnAllError):
                self._world.broke_off(self._verb, error)
        finally:
            self._world.busy.release()


class World:
    """The processes that work together, seen from one of them: what `xdevice.processes()` gives.

    Young: it may change in a minor version.

    Its attributes are `rank`, `size`, `local_rank`, `local_size`, `launcher`, `device`, which is what
    `xdevice.local_device()` gives, and `engine`, the name of what moves the tensors ("none" in a world of one).

    Every rank calls the same verbs in the same order, from one thread. Each verb takes tensors of any backend, on
    `device` or on the host, and containers of them. Each raises PeerError where a rank has failed or is late; the world
    is closed then: the tensors of that call may hold anything, and each later verb raises the same at once. Each raises
    CollectiveMismatchError where the ranks call different things; then nothing was sent or written. No gradients flow
    through any of them.
    """

    def __init__(self, options: _Options) -> None:
        self.options = options
        place = launchers.place() or _ALONE
        self.rank, self.size = place.rank, place.size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        self.launcher = place.launcher
        self.engine = "none"
        self._place = place
        self._check = options.check
        self._depth = 0
        self._line: Line | None = None
        self._carrier: Carrier | None = None
        self._runner: Runner | None = None
        self._waits: tuple[Callable[[], str], list[Operand]] = str, []
        self.busy = threading.Lock()
        self.verb = ""
        self._in_first = False
        self._pid = os.getpid()
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The device of this process: `xdevice.local_device()`."""
        if self._device is None:
            self._device = local_device()
        return self._device

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def __repr__(self) -> str:
        state = "" if self._depth else ", closed"
        return f"<world: rank {self.rank} of {self.size} by {self.launcher}, engine {self.engine}{state}>"

    # the block

    def __enter__(self) -> World:
        global _current
        if self._depth == 0:
            if _current is not None:
                raise ScopeError("this process is in the block of another world; leave it first")
            self._open(self._place)
            _current = self
        self._depth += 1
        return self

    def _open(self, place: Launch) -> None:
        if _failed is not None:
            raise _failed
        if self.size == 1:
            return
        self._line = control.join(place, self.options.timeout, self.options.join_timeout)
        self._runner = Runner()
        self._line.signs.ours.append(self._runner)
        try:
            self._line.vote(f"processes({self.options})")
            asked = engines.candidates(self.options.engine, selection.current(), self.device)
            self.engine = engines.agree(self._line.exchange(json.dumps(asked)))
            if self.engine.endswith(":nccl"):
                engines.require_gpu_each(self.engine, self._line.exchange(engines.gpu_of(self.device)))
            self._carrier = self._through("", lambda: f"the start of {self.engine}", self._start, [])
        except BaseException as error:
            self._shut(error)
            raise

    def _start(self) -> Carrier:
        place, line = self._place, self._needed_line()
        group = Group(
            place.rank, place.size, place.local_rank, place.local_size, self.device, line.host, self.options.timeout,
            line.exchange, self._wait,
        )  # fmt: skip
        backend, engine = engines.start(self.engine, group)
        return Carrier(backend, engine, self.size, self.device)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        global _current
        self._depth -= 1
        if self._depth > 0:
            return
        _current = None
        if self._line is None or os.getpid() != self._pid:
            return
        is_quiet = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        if not is_quiet or self._line.failure is not None:
            self._shut(error)
            return
        try:
            self._line.vote(LEAVE)
        except BaseException as failure:
            self._shut(failure)
            raise
        self._close()

    def _close(self) -> None:
        """In good order: all have left."""
        runner, carrier, line = self._runner, self._carrier, self._line
        self._line = self._carrier = self._runner = None
        try:
            if runner is not None and carrier is not None:
                runner.begin(carrier.engine.close)
                if not runner.ends_within(self.options.timeout):
                    endings.arm(None)
                    return
                runner.result()
                runner.stop()
        finally:
            if line is not None:
                line.close()

    def _shut(self, error: BaseException | None) -> None:
        """After a failure, of this rank's or of another's."""
        global _failed
        line = self._line
        if line is None:
            return
        if line.failure is None and error is not None:
            line.fail("raised", f"rank {self.rank} raised {_describe(error)}")
            line.end(PeerError(f"rank {self.rank} raised {_describe(error)}", self.rank, "raised"))
        if self._carrier is not None:
            self._carrier.engine.abort()
        endings.arm(error)
        line.close()
        _failed = line.failure

    # the verbs

    def all_reduce(self, x: Any, op: str = "sum", weight: float | None = None) -> Any:
        """The sum, mean, max or min over all ranks, on each of them, bit for bit the same. Use the result.

        Where a tensor can be written it is written, and comes back: `xdevice.all_reduce` lists which can. 16-bit floats
        are added as float32 and rounded once; integers wrap around.

        Args:
            x: a tensor, or a container of tensors, with the same keys, dtypes and shapes on each rank.
            op: "sum", "mean", "max" or "min". Bools have only the last two, complex numbers only the first two.
            weight: with "mean", what this rank's `x` counts, as the number of its samples: sum(weight * x) divided by
                sum(weight). 0 where this rank has none; then its values do not matter, NaN included.

        Raises:
            NotATensorError, DTypeError, ArgumentError, UnsupportedError: as `xdevice.all_reduce`. ArgumentError also
                for a weight below 0, or weights of 0 on all ranks.
        """
        if self.size == 1 and _is_known(x, op) and (weight is None or (op == "mean" and _is_plain(weight))):
            return x
        if op not in OPS:
            raise ArgumentError(f"all_reduce makes one of {', '.join(OPS)}, not {shown(op)}")
        own = None if weight is None else carrying.weight_of(weight)
        if own is not None and op != "mean":
            raise ArgumentError(f"a weight counts in op='mean', and op is {shown(op)}")
        x = registry.as_array(x)
        found = _sort(_summands(x))
        if self.size == 1:
            for held in found:
                carrying.check_op(held, op)
            _require_weight(own)
            _know(x, op)
            return x
        return self._all_reduce(x, found, op, own)

    def _all_reduce(self, x: Any, found: list[Operand], op: str, own: float | None) -> Any:
        carrier = self._ready("all_reduce")
        for held in found:
            carrier.require(held, "all_reduce", op)
        if len(found) > 1:
            operands.refuse_overlaps(found)

        def call() -> str:
            return f"all_reduce {op}{' weighted' if own is not None else ''}: {signatures(found)}"

        with _Alone(self, "all_reduce"):
            weight = self._agree(call, own)
            if len(found) == 1:
                new = self._through("all_reduce", call, lambda: carrier.all_reduce(found[0], op, weight), found)
                if new is x:
                    return x
                return rebuilt(x, found, [new])
            unique = list({id(held.value): held for held in found}.values())
            rows = self._through(
                "all_reduce", call, lambda: _each(unique, lambda h: carrier.all_reduce(h, op, weight)), unique
            )
        return rebuilt(x, found, [rows[id(held.value)] for held in found])

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """One rank's values on all. Use the result.

        Args:
            x: a tensor, a model, or a container of them, with the same keys, dtypes and shapes on each rank. Of a model
                all variables are written in place, running statistics included. Tensors are written where they can be.
                Numbers and texts in a container are not sent: they must be the same on all ranks, or it is a
                CollectiveMismatchError. Make a tensor of a number that only one rank knows.
            root: the rank whose values they are.

        Raises:
            NotATensorError: nothing that holds a tensor. NotBuiltError: a model without variables yet. ArgumentError:
                a root that is not a rank.
        """
        self._require_rank(root, "root")
        if self.size == 1 and _is_known(x, "all_gather"):
            return x
        x = registry.as_array(x)
        operands.refuse_strangers(x)
        found = _sort(operands.leaves_in(x, "x"))
        if not found:
            operands.tensors_in(x, "x", "broadcast")
        operands.require_built(found)
        if self.size == 1:
            _know(x, "all_gather")
            return x
        carrier = self._ready("broadcast")
        parts = [part for held in found for part in _variables(held)]
        for part in parts:
            carrier.require(part, "broadcast")
        unique = list({id(part.value): part for part in parts}.values())

        def call() -> str:
            return f"broadcast from {root}: {signatures(parts)}{_tell_overlap(parts)}{_unsent(x)}"

        with _Alone(self, "broadcast"):
            self._agree(call)
            new = self._through("broadcast", call, lambda: _each(unique, lambda h: carrier.broadcast(h, root)), unique)
        return rebuilt(x, found, [new.get(id(held.value), held.value) for held in found])

    def all_gather(self, x: Any, even: bool = True) -> Any:
        """The tensors of all ranks joined along the first axis, in the order of ranks, on each of them. New tensors.

        Args:
            x: a tensor, or a container of tensors, alike on each rank; 0-d tensors become a vector. Numbers and texts
                in a container are not sent, as in `broadcast`.
            even: True: all have the same shape. False: the lengths of the first axis may differ, 0 included.

        Raises:
            NotATensorError: a model, or nothing that holds a tensor.
        """
        if self.size == 1 and _is_known(x, "all_gather"):
            return x
        x = registry.as_array(x)
        found = _sort(operands.tensors_in(x, "x", "all_gather"))
        for held in found:
            operands.refuse_symbol(held)
        if self.size == 1:
            numbers = [held for held in found if not operands.shape_of(held)]
            new = {id(held.value): held.backend.join([held.value]) for held in numbers}
            _know(x, "all_gather")
            return rebuilt(x, found, [new.get(id(held.value), held.value) for held in found]) if new else x
        carrier = self._ready("all_gather")
        for held in found:
            carrier.require(held, "all_gather")
        uneven = [not even and bool(operands.shape_of(held)) for held in found]

        def call() -> str:
            return f"all_gather: {signatures(found, uneven)}{_unsent(x)}"

        with _Alone(self, "all_gather"):
            lengths: list[list[int] | None] = [None] * len(found)
            if any(uneven):
                lengths = self._lengths(call(), found)
            else:
                self._agree(call)
            rows = list(zip(found, lengths, strict=True))
            new_ones = self._through(
                "all_gather", call, lambda: [carrier.all_gather(*row) for row in rows], found * self.size
            )
        return rebuilt(x, found, new_ones)

    def _lengths(self, call: str, found: list[Operand]) -> list[list[int] | None]:
        """For each tensor the length that each rank has, which are told in the vote."""
        own = [operands.shape_of(held)[:1] for held in found]
        rows = [json.loads(text) for text in self._vote(call, json.dumps(own))]
        return [[row[i][0] for row in rows] if own[i] else None for i in range(len(found))]

    def reduce_scatter(self, x: Any, op: str = "sum") -> Any:
        """This rank's part, along the first axis, of what `all_reduce` gives. New tensors; `x` stays as it is.

        Raises:
            ShapeError: a length of the first axis that the number of ranks does not divide. Others as `all_reduce`.
        """
        if self.size == 1 and _is_known(x, op):
            return x
        if op not in OPS:
            raise ArgumentError(f"reduce_scatter makes one of {', '.join(OPS)}, not {shown(op)}")
        x = registry.as_array(x)
        found = _sort(_summands(x))
        for held in found:
            carrying.check_op(held, op)
            length = operands.length_of([held])
            if length % self.size:
                raise ShapeError(
                    f"{held.name} has {length} along its first axis, which {self.size} ranks do not divide evenly"
                )
        if self.size == 1:
            _know(x, op)
            return x
        carrier = self._ready("reduce_scatter")
        for held in found:
            carrier.require(held, "reduce_scatter", op)

        def call() -> str:
            return f"reduce_scatter {op}: {signatures(found)}"

        with _Alone(self, "reduce_scatter"):
            self._agree(call)
            new = self._through(
                "reduce_scatter", call, lambda: [carrier.reduce_scatter(held, op) for held in found], found
            )
        return rebuilt(x, found, new)

    def send(self, x: Any, to: int) -> None:
        """Gives a tensor, or a container of tensors, to one rank, which calls `recv` with one like it.

        The two agree before, also with `check=False`; the others do not take part. Numbers and texts in a container are
        not sent, as in `broadcast`.
        """
        self._pair("send", x, to, "to")

    def recv(self, like: Any, source: int) -> Any:
        """What one rank gives by `send`. Use the result: `like` is written where it can be, else a new tensor comes."""
        return self._pair("recv", like, source, "source")

    def _pair(self, verb: str, x: Any, other: int, name: str) -> Any:
        self._require_rank(other, name)
        if other == self.rank:
            raise ArgumentError(f"{name} is {other}, which is this rank; {verb} is between two")
        x = registry.as_array(x)
        found = _sort(operands.tensors_in(x, "x", verb))
        carrier = self._ready(verb)
        for held in found:
            carrier.require(held, verb)
        what = signatures(found) + _unsent(x)

        def call() -> str:
            return f"{verb} with rank {other}: {what}"

        with _Alone(self, verb):
            self._needed_line().pair(verb, other, what)
            if verb == "send":
                self._through("send", call, lambda: carrier.send(found, other), found)
                return None
            new = self._through("recv", call, lambda: [carrier.recv(held, other) for held in found], found)
        return rebuilt(x, found, new)

    def barrier(self) -> None:
        """Waits until all ranks are here. The hosts wait, by the control connection; no device is waited for."""
        if self.size == 1:
            return
        self._ready("barrier")
        with _Alone(self, "barrier"):
            self._needed_line().vote("barrier")

    def split_batch(self, x: Any, even: bool = True) -> Any:
        """This rank's part of a batch that all ranks have, along the first axis, where it is. Nothing is sent.

        Args:
            x, even: as `xdevice.split_batch`: with `even=False` the first parts may be longer by one, and the last ones
                empty.

        Raises:
            ShapeError, NotATensorError, UnsupportedError: as `xdevice.split_batch`.
        """
        if self.size == 1 and _is_known(x, "all_gather"):
            return x
        x = registry.as_array(x)
        found = operands.tensors_in(x, "x", "split")
        sizes = operands.sizes_of(operands.length_of(found), self.size, even, "ranks")
        if self.size == 1:
            _know(x, "all_gather")
            return x
        parts = {id(held.value): held.backend.split(held.value, sizes)[self.rank] for held in found}
        return rebuilt(x, found, [parts[id(held.value)] for held in found])

    def average_gradients(self, model_or_gradients: Any, weight: float | None = None) -> Any:
        """The mean of each gradient over all ranks, on each of them. Use the result.

        Args:
            model_or_gradients: a model that keeps its gradients (torch, paddle, mxnet), which are written; or a
                container of gradients, in which each is written where it can be.
            weight: as in `all_reduce`: the number of samples of this rank, where they differ.

        A gradient that is None on all ranks stays None; one that is None on some is a CollectiveMismatchError, which
        names it. Small gradients go together, in buckets of one dtype and of 25 MB at most.

        Raises:
            UnsupportedError: a model of a framework that keeps gradients apart: pass them. NotATensorError, DTypeError,
                ArgumentError: as `all_reduce`.
        """
        own = None if weight is None else carrying.weight_of(weight)
        if self.size == 1:
            _require_weight(own)
            return model_or_gradients
        gradients = sorted(buckets.gradients_in(model_or_gradients), key=lambda one: one.name)
        found = [one.held for one in gradients if one.held is not None]
        for held in found:
            carrying.check_op(held, "mean")
        carrier = self._ready("average_gradients")
        for held in found:
            carrier.require(held, "all_reduce", "mean")

        def call() -> str:
            nones = "".join(f"; {one.name} None" for one in gradients if one.held is None)
            return f"average_gradients{' weighted' if own is not None else ''}: {signatures(found)}{nones}"

        with _Alone(self, "average_gradients"):
            weights = self._agree(call, own)
            filled = buckets.fill(found)
            rows = self._through(
                "all_reduce", call, lambda: [buckets.average(carrier, one, weights) for one in filled], found
            )
        new = {key: value for row in rows for key, value in row.items()}
        if registry.kind_of(type(model_or_gradients)) is not None and id(model_or_gradients) not in new:
            return model_or_gradients
        return rebuilt(model_or_gradients, found, [new[id(held.value)] for held in found])

    def first(self) -> AbstractContextManager[bool]:
        """Rank 0 runs the block while the others wait before theirs; gives whether this is rank 0.

        So that rank 0 downloads and the others find what it has: `with world.first(): data = load()`. What is to run on
        rank 0 alone, such as saving, asks: `with world.first() as is_first: if is_first: xdevice.save(...)`. Rank 0
        may take as long as it likes, as long as its process lives. What it raises there is raised on all: on the others
        as a PeerError, after which the world can still be used. No verb of the world can be called inside.
        """
        return nullcontext(True) if self.size == 1 else self._first()

    @contextmanager
    def _first(self) -> Iterator[bool]:
        self._ready("first")
        line = self._needed_line()
        if self.rank != 0:
            with _Alone(self, "first"):
                error = line.vote("first")
            if error and error[0]:
                raise PeerError(f"rank 0 raised {error[0]} in first()", 0, "raised")
        self._in_first = True
        line.is_first_busy = self.rank == 0
        try:
            yield self.rank == 0
        except BaseException as error:
            self._leave_first(line)
            if self.rank == 0 and isinstance(error, Exception):
                line.vote("first", _describe(error))
            raise
        self._leave_first(line)
        if self.rank == 0:
            line.vote("first")

    def _leave_first(self, line: Line) -> None:
        self._in_first = line.is_first_busy = False

    # how a verb goes

    def _ready(self, verb: str) -> Carrier:
        """Raises where no verb can be called."""
        if os.getpid() != self._pid:
            raise UnsupportedError(
                f"{verb} in a forked child: rank {self.rank} of this world is the process {self._pid}; call it there"
            )
        line = self._line
        if line is not None and line.failure is not None:
            raise line.failure.with_traceback(None)
        if line is None or self._carrier is None or not self._depth:
            raise LaunchError(f"{verb} outside of the block of this world: with xdevice.processes() as world:")
        if self._in_first:
            raise ScopeError(f"{verb} inside of first(), where the ranks are not side by side; call it after the block")
        return self._carrier

    def _needed_line(self) -> Line:
        if self._line is None:
            raise LaunchError("this world is closed: its block was left")
        return self._line

    def came_by(self, thread: threading.Thread) -> None:
        """A thread calls a verb: it is where signs of life are looked for."""
        self._needed_line().signs.thread = thread

    def broke_off(self, verb: str, error: BaseException) -> None:
        """This rank has left a verb in the middle of what all have begun."""
        line = self._needed_line()
        if line.failure is None:
            text = f"rank {self.rank} raised {_describe(error)} in {verb}"
            line.fail("raised", text)
            line.end(PeerError(text, self.rank, "raised"))

    def _vote(self, call: str, payload: str = "") -> list[str]:
        line = self._needed_line()
        payloads = line.vote(call, payload)
        line.started += 1
        return payloads

    def _agree(self, call: Callable[[], str], own: float | None = None) -> Weight | None:
        """The vote, or without one only the count; gives the weights where there are any."""
        if own is not None:
            total = sum(map(float, self._vote(call(), repr(own))))
            if total == 0:
                raise _OnAllError(_NO_WEIGHT)
            return Weight(own, total)
        if self._check:
            self._vote(call())
        else:
            self._needed_line().started += 1
        return None

    def _through(self, verb: str, call: Callable[[], str], job: Callable[[], Any], found: list[Operand]) -> Any:
        """What the engine gives, unless a rank fails; `verb` is the engine's."""
        self._waits = call, found
        try:
            if self._carrier is not None and verb in self._carrier.engine.in_steps:
                return job()
            runner, line = self._runner, self._needed_line()
            if runner is None:
                raise LaunchError("this world is closed: its block was left")
            runner.begin(job)
            line.wait(runner.ends_within, self._tell_call, verb in _COUNTED)
            return runner.result()
        except PeerError:
            raise
        except Exception:
            self._needed_line().raise_reason()  # raises the reason if that is another rank
            raise

    def _tell_call(self) -> tuple[str, float]:
        """The engine's call, and the seconds that it may take."""
        call, found = self._waits
        return call(), self.options.timeout + _bytes_of(found) * self.size / _SLOWEST

    def _wait(self, done: Callable[[float], bool]) -> None:
        """What an engine waits by that works in the program's thread."""
        self._needed_line().wait(done, self._tell_call, True)

    def _require_rank(self, value: object, name: str) -> None:
        if type(value) is not int or not 0 <= value < self.size:
            raise ArgumentError(f"{name} is a rank from 0 to {self.size - 1}, not {shown(value)}")


_failed: BaseException | None = None
"""What has ended a world of this process: the others have ended too, so that there is no second one."""


_known: set[tuple[type, Any, str]] = set()
"""Types and dtypes that a world of one has let through a verb: checking them takes longer than there is to do."""


def _is_known(x: Any, what: str) -> bool:
    return (type(x), getattr(x, "dtype", None), what) in _known and len(x.shape) > 0


def _is_plain(weight: object) -> bool:
    return type(weight) in (int, float) and 0 < weight < float("inf")  # type: ignore[operator]


def _know(x: Any, what: str) -> None:
    owner = registry.kind_of(type(x))
    if owner is not None and owner.kind == "tensor":
        _known.add((type(x), x.dtype, what))


def _summands(x: Any) -> list[Operand]:
    owner = registry.kind_of(type(x))
    if owner is not None and owner.kind == "tensor":
        return [Operand("x", x, *owner)]
    found = operands.summands_in(x, "x", "this rank")
    if not found:
        operands.tensors_in(x, "x", "all_reduce")
    return found


def _unsent(x: Any) -> str:
    """What is in a container and is not sent, and so must be the same: numbers and texts, long ones by a digest."""
    if registry.kind_of(type(x)) is not None:
        return ""
    others = [leaf for leaf in trees.leaves(x) if registry.kind_of(type(leaf.value)) is None]
    return "".join(sorted(f"; x{leaf.path} is {_same_everywhere(leaf.value)}" for leaf in others))


def _same_everywhere(value: Any) -> str:
    """What to call a thing on all ranks. Of one that is not known only its type: its text may have an address in it."""
    import numpy as np

    if value is None or isinstance(value, Number | str | bytes | np.generic | Enum):
        return _short(repr(value))
    return f"a {type(value).__qualname__}"


def _sort(found: list[Operand]) -> list[Operand]:
    """By their places: a dict is the same whatever the order in which a rank has filled it."""
    return sorted(found, key=lambda held: held.name) if len(found) > 1 else found


def _tell_overlap(parts: list[Operand]) -> str:
    """Two tensors that share memory, which has to be so on all ranks: the second one written changes the first."""
    twins = operands.first_overlap(parts) if len(parts) > 1 else None
    return f"; {twins[0]} and {twins[1]} share memory" if twins is not None else ""


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _variables(held: Operand) -> list[Operand]:
    """A tensor, or the variables of a model, each once."""
    backend = held.backend
    if held.kind != "model" or backend.tensor_of(held.value) is not None:
        return [held]
    unique = {id(value): (name, value) for name, value in backend.variables(held.value)}
    return [Operand(f"{held.name}.{name}", value, *_owner(value, held)) for name, value in unique.values()]


def _owner(value: Any, held: Operand) -> Sequence[Any]:
    return registry.kind_of(type(value)) or (held.backend, "tensor")


def _each(parts: list[Operand], one: Callable[[Operand], Any]) -> dict[int, Any]:
    return {id(held.value): one(held) for held in {id(held.value): held for held in parts}.values()}


def _bytes_of(found: list[Operand]) -> int:
    return sum(prod(operands.shape_of(held)) * host_dtype(operands.dtype_of(held)).itemsize for held in found)


def _require_weight(total: float | None) -> None:
    if total == 0:
        raise ArgumentError(_NO_WEIGHT)


def _describe(error: BaseException) -> str:
    """An error in a line, with where it was raised."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" ({where.tb_frame.f_code.co_filename}:{where.tb_lineno})" if where is not None else ""
    try:
        text = str(error)[:2000]
    except Exception as unsaid:  # what cannot be printed has to be told all the same
        text = f"its text cannot be had: {type(unsaid).__name__}"
    return f"{type(error).__name__}: {text}{place}"
