"""What ranks do in the tests of `test_worlds.py`; each function runs in every rank, in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.process_failures import LATE, met, report

import xdevice
from xdevice.distributed import carrying, session

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 2.5 * LATE


def errors_before_anything_is_said() -> None:
    """A verb that refuses its argument on one rank leaves the others to their own calls."""
    with met() as world:
        wrong = [
            (xdevice.errors.ArgumentError, lambda: world.all_reduce(np.ones(2), "median")),
            (xdevice.errors.ArgumentError, lambda: world.all_reduce(np.ones(2), weight=2)),
            (
                xdevice.errors.ArgumentError,
                lambda: world.all_reduce(np.ones(2), "mean", weight=-1),
            ),
            (xdevice.errors.ArgumentError, lambda: world.broadcast(np.ones(2), root=2)),
            (xdevice.errors.ArgumentError, lambda: world.send(np.ones(2), world.rank)),
            (xdevice.errors.DTypeError, lambda: world.all_reduce(np.ones(2, int), "mean")),
            (xdevice.errors.DTypeError, lambda: world.all_reduce(np.ones(2, bool))),
            (xdevice.errors.DTypeError, lambda: world.all_reduce(np.ones(2, complex), "max")),
            (xdevice.errors.ShapeError, lambda: world.reduce_scatter(np.ones(3))),
            (xdevice.errors.ShapeError, lambda: world.split_batch(np.ones(3))),
            (xdevice.errors.NotATensorError, lambda: world.all_reduce({"a": 1})),
            (xdevice.errors.NotATensorError, lambda: world.broadcast("text")),
            (xdevice.errors.NotATensorError, lambda: world.average_gradients([])),
            (
                xdevice.errors.ArgumentError,
                lambda: xdevice.distributed.processes(engine="paddle"),
            ),
        ]
        for error, call in wrong if world.rank == 0 else ():
            try:
                call()
            except error:
                continue
            raise AssertionError(f"no {error.__name__}")
        assert xdevice.distributed.processes() is world
        with xdevice.distributed.processes(timeout=LATE) as inner:
            assert inner is world is xdevice.distributed.world()
        world.barrier()
    report(good=True)


def weights_of_nothing() -> None:
    with met() as world:
        try:
            world.all_reduce(np.ones(2), "mean", weight=0)
        except xdevice.errors.ArgumentError:
            report(good=True)


def none_on_one() -> None:
    with met() as world:
        try:
            world.average_gradients({"w": np.ones(2), "b": np.ones(1) if world.rank else None})
        except xdevice.errors.CollectiveMismatchError as error:
            report(text=str(error))
        world.barrier()


def numbers_differ() -> None:
    """What is not sent has to be the same."""
    with met() as world:
        rank, other = world.rank, 1 - world.rank
        x = {"epoch": 5, "rate": np.float64(0.1), "name": "n" * 100, "w": np.full(2, rank)}
        assert world.broadcast(x)["w"].tolist() == [0, 0]
        told = []
        for own in (5 + rank, np.int64(5 + rank), "n" * 100 + str(rank)):
            x = {"epoch": own, "w": np.full(2, rank)}
            told += [_mismatch(world.broadcast, x), _mismatch(world.all_gather, x)]
            told += [
                _mismatch(world.recv, x, other) if rank else _mismatch(world.send, x, other)
            ]
            assert x["w"].tolist() == [rank, rank]
        report(text=told[0] if all(told) else f"not noticed: {told}")
        world.barrier()


def _mismatch(verb: Callable[..., object], *given: object) -> str:
    try:
        verb(*given)
    except xdevice.errors.CollectiveMismatchError as error:
        return str(error)
    return ""


def keys_differ() -> None:
    with met() as world:
        try:
            world.all_reduce({"ab"[world.rank]: np.ones(2)})
        except xdevice.errors.CollectiveMismatchError as error:
            report(text=str(error))
        world.barrier()


def twice_on_one() -> None:
    with met() as world:
        x = np.ones(2)
        try:
            world.all_reduce([x, x] if world.rank else [x, np.ones(2)])
        except xdevice.errors.CollectiveMismatchError as error:
            told = str(error)
        assert world.all_reduce(np.ones(2)).tolist() == [2, 2]
    report(text=told)


def shared_on_one() -> None:
    """What one rank writes into the second tensor would change its first."""
    with met() as world:
        x = np.arange(4.0)
        told = _mismatch(world.broadcast, [x, x[2:]] if world.rank else [x, np.ones(2)])
        assert x.tolist() == [0, 1, 2, 3]
        assert world.broadcast([x, x[2:]])[1].tolist() == [2, 3]
    report(text=told)


def many_small_tensors() -> None:
    """Small tensors travel together, with the results of one by one; large and rare ones go alone."""
    with met() as world:
        engine = world._session.carrier.engine
        plain, calls = {"all_reduce": engine.all_reduce, "broadcast": engine.broadcast}, []
        for verb, own in plain.items():
            setattr(engine, verb, lambda *given, own=own: calls.append(1) or own(*given))

        def tensors(rank: int) -> list[Any]:
            dtypes = "float32", "float64", "float16", "int32", "int64", "uint8", "int8"
            shapes: list[tuple[int, ...]] = [(), (3,), (0, 2), (2, 2)]
            small = [np.full(shapes[i % 4], rank + i % 5, dtypes[i % 7]) for i in range(280)]
            large = np.full((200, 200), rank + 1.0)
            frozen = np.full(3, rank + 2.0)
            frozen.flags.writeable = False
            return [*small, large, frozen, large[:0]]

        rows = [tensors(rank) for rank in range(world.size)]
        for wanted, call in (
            (
                [sum(one).astype(one[0].dtype) for one in zip(*rows, strict=True)],
                world.all_reduce,
            ),
            (
                [np.max(one, axis=0) for one in zip(*rows, strict=True)],
                lambda x: world.all_reduce(x, "max"),
            ),
            (rows[1], lambda x: world.broadcast(x, root=1)),
        ):
            x = tensors(world.rank)
            calls.clear()
            new = call(x)
            assert len(calls) < 110, len(calls)  # 80 of uint8 and int8, one by one
            for given, got, one in zip(x, new, wanted, strict=True):
                np.testing.assert_array_equal(got, one, strict=True)
                assert (got is given) == given.flags.writeable
    report(good=True)


class Name(str):
    def __repr__(self) -> str:
        return str(self)


def line_breaks_in_names() -> None:
    with met() as world:
        try:
            world.all_reduce(
                {Name("a\nb"): np.ones(2, "int64")}
                if world.rank
                else {Name("a\nc"): np.ones(2)}
            )
        except xdevice.errors.CollectiveMismatchError as error:
            told = str(error)
        assert world.all_reduce({Name("a\nb"): np.ones(2)}, "mean", weight=1)[
            "a\nb"
        ].tolist() == [1, 1]
    report(text=told)


class UnsaidError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def error_without_a_text() -> None:
    try:
        with met() as world:
            if world.rank == 1:
                raise UnsaidError
            world.barrier()
    except xdevice.errors.PeerError as error:
        report(error="PeerError", why=error.why, peer=error.rank, text=str(error))
        raise


def not_a_number_in_max_and_min() -> None:
    with met() as world:
        rows = np.array(
            [
                [0, np.nan, 2],
                [np.nan, 0, -1],
                [-0.0, 0, 0],
                [1, -np.inf, np.nan],
                [-3, -2, -5],
                [-1, 2, 3],
            ]
        )
        for dtype in ("float16", "float32", "float64"):
            table = rows.astype(dtype)
            table[0, 1] = np.copysign(table[0, 1], -1)
            for op, plain in (("max", np.max), ("min", np.min)):
                expected = plain(table, axis=1)
                np.testing.assert_array_equal(
                    world.all_reduce(table[:, world.rank].copy(), op), expected
                )
                part = world.reduce_scatter(table[:, world.rank], op)
                np.testing.assert_array_equal(part, expected[2 * world.rank :][:2])
    report(good=True)


def child_of_a_rank() -> None:
    """A child that a rank starts has the rank's variables."""
    with met() as world:
        if world.rank == 1:
            code = "import xdevice\nwith xdevice.distributed.processes():\n    pass"
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=False
            )
            report(text=done.stderr.splitlines()[-1])
        world.barrier()


def first_child() -> None:
    """The same of rank 0, whose child would listen in its place."""
    with xdevice.distributed.processes() as world:
        if world.is_first:
            code = "import xdevice\nwith xdevice.distributed.processes():\n    pass"
            done = subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            print(done.stderr.splitlines()[-1])
        world.barrier()


def tensors_of_torch() -> None:
    import pytest
    import torch

    with met() as world:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        world.all_reduce(y.detach())
        with pytest.raises(RuntimeError, match="inplace"):
            y.sum().backward()
        negative = torch.tensor([1 + 2j]).conj().imag if world.rank else torch.tensor([5.0])
        assert world.all_reduce(negative, "max").tolist() == [5]
        assert world.all_gather(torch.ones((0, 2), dtype=torch.complex64)).shape == (0, 2)
        assert world.broadcast(torch.arange(4.0)[::2][1:] + world.rank).tolist() == [2]
        one = torch.arange(4.0)[:1].as_strided((1,), (2,))
        assert world.all_gather(one).tolist() == [0, 0]
        for mapped in (torch.func.grad, torch.vmap):
            with pytest.raises(
                xdevice.errors.UnsupportedError, match="stands for a tensor while"
            ):
                mapped(lambda x: world.all_reduce(x.sum()))(torch.ones(2))
        with torch.inference_mode():
            assert world.all_reduce(torch.ones(2), "mean").tolist() == [1, 1]
    report(good=True)


def two_worlds() -> None:
    for _ in range(3):
        with met() as world:
            world.barrier()
    refused = 0
    for call in (
        world.barrier,
        lambda: world.split_batch(np.ones(2)),
        lambda: world.split_range(2),
    ):
        try:
            call()
        except xdevice.errors.LaunchError:  # noqa: PERF203  # each is to raise
            refused += 1
    report(good=refused == 3)


def first_raises() -> None:
    with met() as world:
        try:
            with world.first() as is_first:
                if is_first:
                    raise OSError("the disk is full")
        except (OSError, xdevice.errors.PeerError) as error:
            report(text=str(error), error=type(error).__name__)
        assert world.all_reduce(np.ones(1)).tolist() == [2]
    report(good=True)


def first_raises_and_all_end() -> None:
    """What rank 1 makes of the error comes to rank 0 together with the answer to its own."""
    try:
        with met() as world, world.first() as is_first:
            if is_first:
                line = world._session.line
                poll = line._poll
                line._poll = lambda seconds: time.sleep(0.5) or poll(seconds)
                raise OSError("the disk is full")
    except OSError as error:
        if type(error) is OSError:  # PeerError is one as well
            report(error="OSError")
        raise


def indices_and_objects() -> None:
    with met() as world:
        for count in (0, 1, 2, 3, 7, 12):
            for pad in (False, True):
                for seed in (None, 0, 2**40):
                    own = world.split_range(count, pad=pad, seed=seed)
                    rows = world.all_gather_object(own.tolist())
                    assert rows[world.rank] == own.tolist()
                    _check_indices(rows, count, pad, seed)
        batch = np.arange(10)
        assert world.split_batch(batch, even=False).tolist() == world.split_range(10).tolist()
        told = _mismatch(lambda: world.split_range(10, seed=world.rank))
        assert "split_range of 10, pad=False, seed=2" in told, told
        value = {
            "loss": 0.1,
            "names": ["a\n", "é"],
            "none": None,
            "rank": world.rank,
            "deep": [[], {"x": True}],
        }
        assert world.all_gather_object(value) == [{**value, "rank": rank} for rank in range(3)]
        assert (
            world.all_gather_object("the first's" if world.is_first else None)[0]
            == "the first's"
        )
    report(good=True)


def _check_indices(rows: list[list[int]], count: int, pad: bool, seed: int | None) -> None:
    found = [i for row in rows for i in row]
    expected = list(range(count))
    if seed is not None:
        with xdevice.random.seed(seed):
            expected = xdevice.to_numpy(xdevice.random.permutation(count)).tolist()
    assert found == (expected * len(rows))[: len(found)]
    assert 0 <= len(found) - count < len(rows) * pad + (not pad)
    assert max(map(len, rows)) - min(map(len, rows)) <= (not pad)


def verb_in_first() -> None:
    with met() as world, world.first():
        try:
            world.barrier()
        except xdevice.errors.ScopeError:
            report(good=True)


# what takes long and is not late


def computes() -> None:
    with met() as world:
        until = time.monotonic() + LONG * world.rank
        while time.monotonic() < until:
            pass
        world.barrier()
    report(good=True)


def loads_slowly() -> None:
    with met() as world:
        for _ in range(int(LONG / 0.05) * world.rank):
            time.sleep(0.05)
        world.barrier()
    report(good=True)


def waits_for_a_child() -> None:
    with met() as world:
        if world.rank:
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"import time\nend = time.monotonic() + {LONG}\nwhile time.monotonic() < end: pass",
                ],
                check=True,
            )
        world.barrier()
    report(good=True)


def long_first() -> None:
    with met() as world:
        with world.first() as is_first:
            if is_first:
                time.sleep(LONG)
        world.barrier()
    report(good=True)


# what ends it


def stopped() -> None:
    with met() as world:
        pids = world.all_gather(np.array(os.getpid()))
        if world.rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        report(failed=time.monotonic())
        try:
            world.barrier()
        finally:
            os.kill(int(pids[1]), signal.SIGKILL)


def holds_pythons_lock() -> None:
    """A call into C that keeps Python's lock: the thread that answers the hub cannot run."""
    with met() as world:
        pids = world.all_gather(np.array(os.getpid()))
        report(failed=time.monotonic())
        if world.rank:
            ctypes.PyDLL(None).sleep(1000)
        try:
            world.barrier()
        finally:
            os.kill(int(pids[1]), signal.SIGKILL)


def stands_still_and_is_stopped() -> None:
    """The line that it stood at before is not where it is."""
    with met() as world:
        pids = world.all_gather(np.array(os.getpid()))
        report(failed=time.monotonic())
        if world.rank:
            threading.Timer(LATE / 2, os.kill, (os.getpid(), signal.SIGSTOP)).start()
            time.sleep(1000)
        try:
            world.barrier()
        finally:
            os.kill(int(pids[1]), signal.SIGKILL)


def first_rank_stopped() -> None:
    with met() as world:
        pids = world.all_gather(np.array(os.getpid()))
        if world.rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        report(failed=time.monotonic())
        try:
            world.barrier()
        finally:
            os.kill(int(pids[0]), signal.SIGKILL)


def first_rank_killed() -> None:
    with met() as world:
        report(failed=time.monotonic())
        if world.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        world.all_reduce(np.ones(3))


def stopped_in_the_engine() -> None:
    """Unchecked: the others are in the engine already."""
    with met(check=False) as world:
        pids = world.all_gather(np.array(os.getpid()))
        if world.rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        report(failed=time.monotonic())
        try:
            world.all_reduce(np.ones(3))
        finally:
            os.kill(int(pids[1]), signal.SIGKILL)


def stopped_while_another_copies() -> None:
    """The tensor cannot be written, so the engine is given a copy of it, which takes long."""
    x = np.ones(3)
    x.flags.writeable = False
    session._LARGE_COPY_BYTES, convert = 0, carrying.convert

    def slowly(*given: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP) if world.rank else time.sleep(2 * LONG)
        return convert(*given, **options)

    with met() as world:
        pids = world.all_gather(np.array(os.getpid()))
        carrying.convert = slowly
        report(failed=time.monotonic())
        try:
            world.all_reduce(x)
        finally:
            os.kill(int(pids[1]), signal.SIGKILL)


def order_unchecked() -> None:
    with met(check=False) as world:
        report(failed=time.monotonic())
        world.all_reduce(np.ones(3)) if world.rank else world.broadcast(np.ones(300))
        world.barrier() if world.rank else world.all_reduce(np.ones(3))
        world.barrier()


def stuck_unchecked() -> None:
    with met(check=False) as world:
        report(failed=time.monotonic())
        if world.rank:
            threading.Event().wait(8)
        world.all_reduce(np.ones(3))


def leaves() -> None:
    with met() as world:
        report(failed=time.monotonic())
        if world.rank == 0:
            world.all_reduce(np.ones(3))


def exits_with_0() -> None:
    with met() as world:
        if world.rank:
            sys.exit(0)
        report(failed=time.monotonic())
        world.all_reduce(np.ones(3))


def all_exit_with_0() -> None:
    with met():
        report(good=True)
        sys.exit(0)


def exits_with_3() -> None:
    with met() as world:
        if world.rank:
            sys.exit(3)
        world.all_reduce(np.ones(3))


def ends_without_a_word() -> None:
    with met() as world:
        if world.rank:
            os._exit(0)
        report(failed=time.monotonic())
        world.all_reduce(np.ones(3))


def interrupted() -> None:
    with met() as world:
        if world.rank == 0:
            report(failed=time.monotonic())
            world.all_reduce(np.ones(3))
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)


def interrupted_while_waiting() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with met() as world:
        if world.rank:
            threading.Event().wait(1)
            world.barrier()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        world.barrier()


def closed_for_good() -> None:
    with met() as world:
        if world.rank:
            os._exit(0)
        told = []
        for call in (
            world.barrier,
            lambda: world.all_reduce(np.ones(2)),
            lambda: world.broadcast(np.ones(2)),
        ):
            try:
                call()
            except xdevice.errors.PeerError as error:  # noqa: PERF203  # each is to raise
                told.append(error)
        report(good=len(told) == 3 and len(set(map(id, told))) == 1)
        report(begun=time.monotonic())
    try:
        with xdevice.distributed.processes():
            pass
    except xdevice.errors.PeerError:
        report(again=True)


def forks() -> None:
    """A child that outlives its parent does not hide its death, and cannot speak for it."""
    with met() as world:
        if world.rank:
            pid = os.fork()
            if pid == 0:
                try:
                    world.barrier()
                except xdevice.errors.UnsupportedError as error:
                    report(child=str(error))
                time.sleep(5)
                os._exit(0)
            time.sleep(0.3)
            report(failed=time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)
        world.all_reduce(np.ones(3))


def two_threads() -> None:
    with met() as world:
        raised = []

        def other() -> None:
            try:
                world.barrier()
            except xdevice.errors.ScopeError as error:
                raised.append(error)

        if world.rank == 0:
            thread = threading.Timer(0.3, other)
            thread.start()
            world.barrier()
            thread.join()
            report(good=len(raised) == 1)
        else:
            time.sleep(0.8)
            world.barrier()


def hanging_hooks() -> None:
    """As JAX's: a hook that waits for a rank which has died."""
    import atexit

    with met() as world:
        atexit.register(time.sleep, 1000)
        if world.rank:
            raise ValueError("a bug in rank 1")
        world.barrier()


def hanging_hooks_and_caught() -> None:
    import atexit

    try:
        with met() as world:
            atexit.register(time.sleep, 1000)
            if world.rank:
                os._exit(0)
            world.barrier()
    except xdevice.errors.PeerError:
        report(good=True)


def options_differ() -> None:
    rank = int(os.environ["XDEVICE_RANK"])
    with met(check=rank == 0):
        pass
