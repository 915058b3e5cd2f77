"""Blocks that threads and asyncio tasks share, leave elsewhere, or leave in another order: they hold, or say so."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import io
import threading

import pytest
from helpers.environment import BACKENDS

import xdevice
from xdevice.contract import patching
from xdevice.core import scopes


@pytest.fixture(autouse=True)
def _nothing_stays_patched():
    before = dict(patching._replaced)
    yield
    assert patching._replaced == before


def patched(backend):
    """What a block has replaced, and what the framework keeps for it in this thread."""
    if backend.name == "torch":
        return len(patching._replaced), backend.framework._C._len_torch_dispatch_stack()
    if backend.name == "tensorflow":
        from tensorflow.python.eager import context, execute

        return len(patching._replaced), len(context.context().op_callbacks), execute.execute
    return len(patching._replaced), None


def other(backend):
    return backend.samples().other_device() or xdevice.cpu()


def place(backend):
    """Where the framework's own creator puts a tensor."""
    return xdevice.device_of(backend.samples().native_ones(1))


def in_thread(act):
    found = []

    def run():
        try:
            found.append(act())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def blocks(backend):
    return [
        xdevice.use_backend(backend),
        other(backend),
        xdevice.transfers(),
        xdevice.accelerator.blocking(backend),
    ]


# threads


def test_one_block_shared_by_threads_that_overlap(backend):
    before = patched(backend)
    for block in blocks(backend):
        lines = threading.Barrier(4, timeout=200)
        failed = []

        def work(block=block, lines=lines, failed=failed):
            try:
                with xdevice.use_backend(backend):
                    for _ in range(20):
                        lines.wait()
                        with block:
                            lines.wait()
            except BaseException as error:
                failed.append(error)
                lines.abort()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
    assert patched(backend) == before


def test_use_and_device_left_in_another_thread_are_refused_and_stay(backend):
    for block in (xdevice.use_backend(backend), other(backend)):
        block.__enter__()
        error = in_thread(lambda block=block: block.__exit__(None, None, None))
        assert isinstance(error, xdevice.errors.ScopeError)
        assert "exited in a thread or asyncio task that had not entered it" in str(error)
        # knows of the block, and is not where it was entered
        copied = contextvars.copy_context()
        assert isinstance(
            in_thread(lambda c=copied, b=block: c.run(b.__exit__, None, None, None)),
            xdevice.errors.ScopeError,
        )
        assert xdevice.backend() is backend
        block.__exit__(None, None, None)
    assert scopes.current() is None


def test_transfers_left_in_another_thread_takes_its_hooks_off(backend):
    before = patched(backend)
    block = xdevice.transfers("disallow_explicit")
    log = block.__enter__()
    assert in_thread(lambda: block.__exit__(None, None, None)) is None
    assert patched(backend)[0] == before[0]
    assert xdevice.item(xdevice.ones(1)) == 1.0
    assert len(log) == 0
    with xdevice.transfers() as log:
        xdevice.item(xdevice.ones(1))
    assert len(log) == (backend.name != "numpy")
    assert patched(backend) == before


def test_blocking_left_in_another_thread_ends_and_says_so(backend):
    before = patched(backend)
    block = xdevice.accelerator.blocking(backend)
    block.__enter__()
    error = in_thread(lambda: block.__exit__(None, None, None))
    assert isinstance(error, xdevice.errors.ScopeError)
    with xdevice.accelerator.blocking(backend):
        pass
    assert patched(backend) == before


def test_what_was_not_entered_is_named(backend):
    for block in blocks(backend):
        with pytest.raises(
            xdevice.errors.ScopeError, match=r"had not entered|without having been entered"
        ):
            block.__exit__(None, None, None)


# any order


def test_overlapping_transfers_lose_nothing(backend):
    before = patched(backend)
    x = xdevice.ones(1)
    first, second = xdevice.transfers(), xdevice.transfers()
    one = first.__enter__()
    two = second.__enter__()
    xdevice.item(x)
    first.__exit__(None, None, None)
    xdevice.item(x)
    print(x, file=io.StringIO())
    second.__exit__(None, None, None)
    xdevice.item(x)
    reads = backend.name != "numpy"
    assert (len(one), len(two)) == (reads * 1, reads * 3)
    assert patched(backend) == before


@pytest.mark.skipif("torch" not in BACKENDS, reason="torch is not installed")
def test_overlapping_transfers_go_on_seeing_what_cpp_reads():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Users(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    first, second, users = xdevice.transfers(), xdevice.transfers(), Users()
    first.__enter__()
    users.__enter__()
    log = second.__enter__()
    first.__exit__(None, None, None)
    torch.equal(x, x)
    second.__exit__(None, None, None)
    assert [record.how for record in log] == ["aten.equal"]
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == [users]
    users.__exit__(None, None, None)


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="tensorflow is not installed")
def test_a_thread_of_tensorflow_that_leaves_first_does_not_end_what_another_one_sees():
    with xdevice.use_backend("tensorflow") as backend:
        elsewhere = other(backend)
        x = xdevice.ones(3)
        transfers, inside, leave = xdevice.transfers, threading.Event(), threading.Event()

        def work():
            with transfers():
                inside.set()
                leave.wait(200)

        thread = threading.Thread(target=work)
        thread.start()
        inside.wait(200)
        with transfers() as log, elsewhere:
            leave.set()
            thread.join()
            backend.framework.identity(x)
        assert [record.how for record in log] == ["Identity"]


@pytest.mark.skipif("paddle" not in BACKENDS, reason="paddle is not installed")
def test_overlapping_blocks_of_paddles_flag(monkeypatch):
    with xdevice.use_backend("paddle") as backend:
        monkeypatch.setattr(backend, "_gpus", 1)
        monkeypatch.setattr(backend, "virtual", 0)

        def flag():
            return backend.framework.get_flags("FLAGS_benchmark")["FLAGS_benchmark"]

        first, second = xdevice.accelerator.blocking(), xdevice.accelerator.blocking()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert flag()
        second.__exit__(None, None, None)
        assert not flag()


def test_scopes_of_generators_may_end_in_any_order(backend):
    before = place(backend)
    elsewhere = other(backend)

    def block(device):
        with device, xdevice.use_backend(backend):
            yield

    first, second = block(elsewhere), block(xdevice.cpu())
    next(first)
    next(second)
    first.close()
    assert scopes.current() is xdevice.cpu()
    assert place(backend) is xdevice.cpu()
    second.close()
    assert scopes.current() is None
    assert place(backend) is before
    assert xdevice.backend() is backend


# asyncio


def test_a_device_across_an_await_is_refused_at_the_end_and_leaks_to_no_task(backend):
    elsewhere = other(backend)
    before = place(backend)
    seen, after = [], []

    async def waits():
        with elsewhere, xdevice.cpu(), elsewhere:
            assert place(backend) is elsewhere
            await asyncio.sleep(0)
            after.append(place(backend))

    async def works():
        await asyncio.sleep(0)
        for _ in range(3):
            seen.append((place(backend), scopes.current(), xdevice.device_of(xdevice.ones(1))))
            await asyncio.sleep(0)

    async def main():
        first, second = asyncio.ensure_future(waits()), asyncio.ensure_future(works())
        with pytest.raises(
            xdevice.errors.ScopeError, match=r"contains an `await`.*asyncio\.to_thread"
        ):
            await first
        await second

    asyncio.run(main())
    assert seen == [(before, None, xdevice.cpu())] * 3
    assert after == [before]
    assert place(backend) is before


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
def test_an_error_after_the_await_is_the_one_that_is_raised(backend, error):
    elsewhere = other(backend)

    async def main():
        with elsewhere:
            await asyncio.sleep(0)
            raise error

    with pytest.raises(error):
        asyncio.run(main())


def test_a_device_between_awaits_and_around_the_loop_holds(backend):
    elsewhere = other(backend)

    async def works():
        for _ in range(5):
            with elsewhere:
                assert place(backend) is elsewhere
            await asyncio.sleep(0)
        return place(backend), await asyncio.to_thread(scopes.current)

    async def main():
        return await asyncio.gather(works(), works())

    before = place(backend)
    assert asyncio.run(main()) == [(before, None)] * 2
    with elsewhere:
        assert asyncio.run(main()) == [(elsewhere, elsewhere)] * 2
    assert place(backend) is before


def test_a_server_of_many_tasks(backend):
    elsewhere = other(backend)
    before = place(backend)

    async def serve(reader, writer):
        number = int(await reader.readline())
        with xdevice.use_backend(backend if number % 2 else "numpy") as wanted:
            await asyncio.sleep(0)
            with elsewhere if number % 2 else xdevice.cpu():
                x = xdevice.to_device(xdevice.tensor(float(number), device="cpu"), "cpu")
            await writer.drain()
            assert xdevice.backend() is wanted
            writer.write(b"%d\n" % xdevice.item(x))
        writer.close()

    async def ask(port, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"%d\n" % number)
        answer = int(await reader.readline())
        writer.close()
        return answer

    async def main():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.gather(*(ask(port, number) for number in range(50)))

    assert asyncio.run(main()) == list(range(50))
    assert place(backend) is before


CELLS = {
    "with elsewhere: there = place()": None,
    "with elsewhere: there = place()\nawait asyncio.sleep(0)\nassert place() is before": None,
    "with elsewhere: await asyncio.sleep(0)": "ScopeError",
    "steps = generator()\nnext(steps)": None,
    "assert place() is before": None,
    "next(steps, None)": "ScopeError",
    "steps = generator()\nnext(steps)\nawait asyncio.sleep(0)": None,
    "steps.close()": None,
    "elsewhere.__enter__()": None,
    "assert place() is before  # again": None,
    "elsewhere.__exit__(None, None, None)": "ScopeError",
    "with elsewhere: assert place() is elsewhere": None,
}
"""Cells of a notebook, and what each raises."""


def test_cells_of_a_notebook_which_run_in_one_task(backend):
    elsewhere, before = other(backend), place(backend)

    def generator():
        with elsewhere:
            yield

    space = {
        "asyncio": asyncio, "generator": generator, "elsewhere": elsewhere, "before": before,
        "place": lambda: place(backend),
    }  # fmt: skip

    async def run(cell):
        running = eval(compile(cell, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
        if running is not None:
            await running

    async def kernel():
        raised = []
        for cell in CELLS:
            try:
                await run(cell)
                raised.append(None)
            except BaseException as error:
                raised.append(type(error).__name__)
            # for the next cell; whatever cancels the task here ends the kernel
            await asyncio.sleep(0)
        return raised

    assert asyncio.run(kernel()) == list(CELLS.values())
    assert place(backend) is before


def test_a_device_across_the_await_of_an_asynchronous_generator_is_refused(backend):
    elsewhere = other(backend)

    async def batches():
        with elsewhere:
            await asyncio.sleep(0)
            yield

    async def main():
        async for _ in batches():
            pass

    with pytest.raises(xdevice.errors.ScopeError, match=r"contains an `await`"):
        asyncio.run(main())


def test_use_transfers_and_blocking_hold_in_interleaved_tasks(backend):
    before = patched(backend)
    x = xdevice.ones(1)

    async def reads(number):
        chosen, block = (
            xdevice.use_backend(backend if number % 2 else "numpy"),
            xdevice.accelerator.blocking(backend),
        )
        with chosen as wanted, xdevice.transfers() as log, block:
            for _ in range(number):
                await asyncio.sleep(0)
                xdevice.item(x)
                assert xdevice.backend() is wanted
        return len(log)

    async def main():
        return await asyncio.gather(*map(reads, (3, 1, 4, 2, 5)))

    counts = [3, 1, 4, 2, 5] if backend.name != "numpy" else [0] * 5
    assert asyncio.run(main()) == counts
    assert patched(backend) == before


def test_a_block_left_in_another_task(backend):
    before = patched(backend)

    async def main():
        for block in blocks(backend):

            async def enter(block=block):
                block.__enter__()

            async def leave(block=block):
                block.__exit__(None, None, None)

            await asyncio.ensure_future(enter())
            if isinstance(block, xdevice.use_backend | xdevice.Device):
                with pytest.raises(xdevice.errors.ScopeError):
                    await asyncio.ensure_future(leave())
            else:
                await asyncio.ensure_future(leave())

    asyncio.run(main())
    assert scopes.current() is None
    assert patched(backend) == before


def test_a_block_of_the_cpu_costs_torch_no_mode_and_holds_against_other_defaults():
    torch = pytest.importorskip("torch")
    with xdevice.use_backend("torch"):
        with xdevice.cpu():
            assert torch._C._len_torch_function_stack() == 0
            assert torch.ones(1).device.type == "cpu"
        with torch.device("meta"), xdevice.cpu():
            assert torch.ones(1).device.type == "cpu"
        with xdevice.device("meta"), xdevice.cpu():
            assert torch.ones(1).device.type == "cpu"
