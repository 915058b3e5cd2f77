"""Which generator is drawn from: blocks, threads, asyncio tasks, `parallel.run`, `prefetch`, processes, tests."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
import threading

import pytest
from helpers.environment import printed, python

import xdevice
from xdevice import random
from xdevice.core import generators


@pytest.fixture(autouse=True)
def _numpy():
    with xdevice.use_backend("numpy"), generators.keep_generator():
        yield


def take(n=3):
    return random.uniform(n).tolist()


def of(n, count=3):
    with random.seed(n):
        return take(count)


# blocks


def test_a_seed_begins_anew():
    random.seed(1)
    first = take()
    assert take() != first
    random.seed(1)
    assert take() == first == of(1)
    assert of(2) != first


def test_without_a_seed_numbers_differ_in_each_process(monkeypatch):
    monkeypatch.delenv("XDEVICE_SEED", raising=False)
    code = "import xdevice; xdevice.set_backend('numpy'); print(xdevice.random.uniform(3).tolist())"
    said = [printed("-c", code) for _ in range(2)]
    assert said[0] != said[1]


def test_a_block_leaves_the_generator_outside_untouched():
    random.seed(1)
    expected = take(6)
    random.seed(1)
    got = take(2)
    with random.seed(2):
        assert take() == of(2)
    got += take(2)
    with pytest.raises(ZeroDivisionError):
        fails_in_a_block()
    assert got + take(2) == expected


def fails_in_a_block():
    with random.seed(3):
        raise ZeroDivisionError(take())


def test_blocks_nest_and_restore():
    with random.seed(1):
        first = take(2)
        with random.seed(2):
            inner = take(2)
            with random.seed(1):
                assert take(2) == first
            inner += take(2)
        assert first + take(2) == of(1, 4)
    assert inner == of(2, 4)


def test_a_seed_in_a_block_is_that_of_the_block():
    random.seed(1)
    with random.seed(2):
        random.seed(3)
        assert take() == of(3)
    assert take() == of(1)


def test_a_block_may_be_entered_again():
    block = random.seed(4)
    with block:
        first = take()
        with block:
            assert take() == first
    with block:
        assert take() == first


def test_a_seed_that_is_kept_and_entered_later_takes_nothing_back_that_came_after():
    random.seed(1)
    kept = random.seed(2)
    assert take() == of(2), "it holds before it is entered"
    random.seed(3)
    with kept:
        assert take() == of(2)
    assert take() == of(3)


def test_a_block_that_is_left_elsewhere_is_refused():
    block = random.seed(1)
    with pytest.raises(
        xdevice.errors.ScopeError, match=r"seed\(1\) was exited in a thread or asyncio task"
    ):
        block.__exit__(None, None, None)


def test_frameworks_generators_stay_as_they_are():
    import numpy as np

    np.random.seed(0)
    expected = np.random.random_sample()
    np.random.seed(0)
    random.seed(5)
    take()
    assert np.random.random_sample() == expected


# threads and tasks


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def numpy_in_thread(function):
    def run():
        with xdevice.use_backend("numpy"):
            return function()

    return in_thread(run)


def test_threads_draw_from_the_process_and_a_block_is_its_threads_own():
    random.seed(1)
    first = take(2)
    assert first + numpy_in_thread(lambda: take(2)) == of(1, 4)
    random.seed(1)
    with random.seed(2):
        assert numpy_in_thread(lambda: take(2)) == first
        assert take() == of(2)
    assert numpy_in_thread(lambda: of(2)) == of(2)


def test_threads_that_draw_at_once_get_every_number_once():
    random.seed(1)
    found = []

    def run():
        with xdevice.use_backend("numpy"):
            found.extend([random.integers(high=2**62).item() for _ in range(300)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    random.seed(1)
    assert sorted(found) == sorted(random.integers((1200,), high=2**62).tolist())


def test_tasks_of_parallel_draw_the_same_whichever_is_first():
    def run(order):
        begun = [threading.Event() for _ in range(4)]

        def task(number):
            before = order.index(number) - 1
            if before >= 0:
                begun[order[before]].wait(60)
            drawn = take(2)
            begun[number].set()
            return drawn + take(2)

        random.seed(1)
        results = xdevice.parallel.run(
            *(lambda number=number: task(number) for number in range(4))
        )
        return results, take(2)

    results, after = run([0, 1, 2, 3])
    assert run([3, 1, 2, 0]) == (results, after)
    assert len({tuple(drawn) for drawn in results}) == 4
    assert after == of(1, 2), "tasks take nothing from their caller"


def test_calls_and_tasks_of_tasks_draw_other_numbers():
    random.seed(1)
    drawn = [numbers for _ in range(2) for numbers in xdevice.parallel.run(take, take)]
    both = xdevice.parallel.run(
        lambda: xdevice.parallel.run(take, take), lambda: xdevice.parallel.run(take, take)
    )
    drawn += [*both[0], *both[1]]
    assert len({tuple(numbers) for numbers in drawn}) == 8


def test_parallel_in_a_block_follows_the_block():
    def run():
        with random.seed(9):
            return xdevice.parallel.run(take, take)

    first = run()
    random.seed(1)
    assert run() == first


def test_a_seed_in_a_task_is_that_of_the_task():
    random.seed(1)
    assert xdevice.parallel.run(lambda: (random.seed(2), take())[1], take)[0] == of(2)
    assert take() == of(1)


def test_the_source_of_prefetch_draws_the_same_however_far_ahead_it_is():
    def run(depth):
        random.seed(1)
        batches, own = [], []
        for batch in xdevice.prefetch(
            (random.uniform(2) for _ in range(5)), "cpu", depth=depth
        ):
            batches.append(batch.tolist())
            own += take(1)
        return batches, own

    assert run(1) == run(4)
    assert run(1)[1] == of(1, 5)


def test_asyncio_tasks_draw_from_where_they_began():
    async def main():
        random.seed(1)
        both = asyncio.Event()

        async def seeded(n):
            with random.seed(n):
                drawn = take(2)
                if n == 2:
                    both.set()
                await both.wait()
                return drawn + take(2)

        blocks = await asyncio.gather(seeded(5), seeded(2))
        with random.seed(7):
            here = (
                take(1)
                + await asyncio.create_task(coroutine())
                + await asyncio.to_thread(lambda: take(1))
            )
        return blocks, here, take()

    async def coroutine():
        return take(1)

    blocks, here, outside = asyncio.run(main())
    assert blocks == [of(5, 4), of(2, 4)]
    assert here == of(7, 3)
    assert outside == of(1)


# processes

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

FORKING = """
import json, os, sys
import xdevice
from xdevice import random

xdevice.set_backend("numpy")


def child():
    read, write = os.pipe()
    if os.fork() == 0:
        with random.seed(3):
            block = random.uniform(3).tolist()
        os.write(write, json.dumps([random.uniform(3).tolist(), block]).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(read, 10000))


random.seed(1)
of_process = [child(), child()]
mine = random.uniform(3).tolist()
with random.seed(2):
    of_block = [child()]
    block = random.uniform(3).tolist()
print(json.dumps([of_process, of_block, mine, block]))
"""


@pytest.mark.slow
@needs_fork
def test_forked_processes_draw_their_own_numbers_each_time_the_same():
    said = [json.loads(printed("-c", FORKING)) for _ in range(2)]
    assert said[0] == said[1]
    of_process, of_block, mine, block = said[0]
    assert mine == of(1)
    assert block == of(2)
    drawn = [numbers for numbers, _ in (*of_process, *of_block)] + [mine, block]
    assert len({tuple(numbers) for numbers in drawn}) == 5
    assert all(seeded == of(3) for _, seeded in (*of_process, *of_block))


def test_xdevice_seed_is_what_a_process_begins_with():
    code = "import xdevice; xdevice.set_backend('numpy'); print(xdevice.random.uniform(3).tolist())"

    def run(value):
        return python("-c", code, XDEVICE_SEED=value)

    assert json.loads(run("11").stdout) == of(11)
    wrong = run("-1")
    assert (
        "SettingError: XDEVICE_SEED must be a non-negative int, not '-1'; set XDEVICE_SEED=0, or unset it"
        in wrong.stderr
    )


# in a script, because a worker that cannot import the function makes a pool wait for ever
SPAWNING = """
import json, multiprocessing
import xdevice


def take(_):
    with xdevice.use_backend("numpy"):
        return xdevice.random.uniform(3).tolist()


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(json.dumps(pool.map(take, [None])))
"""


def test_a_spawned_worker_begins_with_xdevice_seed(tmp_path):
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    assert json.loads(printed(script, XDEVICE_SEED="12")) == [of(12)]


def test_importing_and_seeding_need_no_numpy():
    code = "import sys, xdevice; xdevice.random.seed(0); print('numpy' in sys.modules)"
    assert printed("-c", code) == "False"
    code = "import sys, xdevice; print('xdevice.random' in sys.modules)"
    assert printed("-c", code) == "False"


# what seeds by itself


@pytest.mark.slow
def test_a_parity_run_draws_the_same_on_every_backend(tmp_path, monkeypatch):
    monkeypatch.delenv("XDEVICE_SEED", raising=False)
    names = [name for name in ("jax", "torch") if name in xdevice.backends()][:1]
    script = tmp_path / "script.py"
    script.write_text(
        "import xdevice\n"
        "xdevice.parity.log('x', xdevice.random.normal(100))\n"
        "task = lambda: xdevice.random.uniform(3)\n"
        "xdevice.parity.log('tasks', xdevice.parallel.run(task, task))\n"
        "xdevice.parity.log('first', xdevice.random.integers((5,), high=1000, dtype='int32'))\n"
    )
    exactly = ("--rtol", "0", "--atol", "0", "--save", tmp_path / "run")
    done = python(
        "-m", "xdevice", "parity", script, "--backends", ",".join(["numpy", *names]), *exactly
    )
    assert done.returncode == 0, done.stdout + done.stderr
    from xdevice.twins.parity.record_files import Recording

    recorded = Recording(tmp_path / "run" / "numpy").entries[0].read()[0].value
    with random.seed(0):
        assert random.normal(100).tolist() == recorded.tolist()


@pytest.mark.slow
def test_each_test_and_its_fixtures_begin_with_their_seeds(pytester, monkeypatch):
    monkeypatch.delenv("XDEVICE_SEED", raising=False)
    pytester.makepyfile(
        textwrap.dedent(
            """
            import threading
            import pytest
            import xdevice
            from xdevice import random

            def of(n):
                with random.seed(n):
                    return xdevice.to_numpy(random.uniform(3)).tolist()

            def take():
                return xdevice.to_numpy(random.uniform(3)).tolist()

            @pytest.fixture
            def made(xd):
                return take()

            def test_without_xd():
                random.seed(5)

            def test_fixture(xd, made):
                assert made == of(1)
                assert take() == of(0)

            def test_body(xd):
                found = []
                thread = threading.Thread(target=lambda: found.append(take()))
                thread.start()
                thread.join()
                assert found == [of(0)]
                random.seed(9)

            def test_again(xd):
                assert take() == of(0)

            def test_outside_is_untouched():
                with xdevice.use_backend("numpy"):
                    assert take() == of(5)
            """
        )
    )
    pytester.runpytest_subprocess(
        "--xd-backends=numpy", "-p", "no:cacheprovider", "-p", "no:randomly"
    ).assert_outcomes(passed=5)


def test_a_state_goes_on_in_another_process_with_tasks_too():
    code = (
        "import pickle, xdevice; from xdevice import random; random.seed(3); random.normal(2); "
        "state = pickle.loads(pickle.dumps(random.get_state())); "
        "draw = lambda: [random.integers((4,), high=99).tolist(), "
        "*xdevice.parallel.run(*[lambda: random.integers((4,), high=99).tolist()] * 2)]; "
        "first = draw(); assert draw() != first; random.set_state(state); assert draw() == first; "
        "print(first)"
    )
    assert printed("-c", code, XDEVICE_BACKEND="numpy")


def test_a_wrong_state_or_seed_changes_nothing():
    with random.seed(5):
        state = random.get_state()
        for wrong in ({}, None, {**state, "bits": {"bit_generator": "MT19937"}}):
            with pytest.raises(
                xdevice.errors.ArgumentError, match="set_state expects a state from get_state"
            ):
                random.set_state(wrong)
        with pytest.raises(xdevice.errors.ArgumentError, match="from 0 to"):
            random.seed_all(2**32)
        assert random.get_state() == state
