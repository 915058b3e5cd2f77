"""Processes that fail, each in one of nine ways, and what the others make of it. They fork from one that has imported.

    # every failure 20 times on every backend: the record of the docs
    python tests/helpers/process_failures.py
    python tests/helpers/process_failures.py --backends jax --runs 2 --failures stuck

A run is two ranks, which meet and call something together; then rank 1 fails. Rank 0 has to raise what names it, in the
time that was promised, and nobody may hang: who is still there after 30 s is killed, and counts as hung.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LATE: Final = 2.0
"""Seconds that a rank may be late here; 30 is usual."""
_HUNG: Final = 30.0
_DAMP: Final = 1.0
"""Seconds beyond a promise that a loaded machine may take; the promise itself is a second beyond the deadline."""


class Outcome(NamedTuple):
    """What became of one rank."""

    status: int | None
    """As `subprocess` counts, None if it had to be killed."""
    said: dict[str, Any]
    """What it reported, by name."""
    printed: str


# what a rank does; each function runs in a process of its own

_report_into = -1


def report(**facts: Any) -> None:
    os.write(_report_into, json.dumps(facts).encode() + b"\n")


@contextmanager
def _reported() -> Iterator[None]:
    """What is raised is told at once: leaving the block takes time."""
    import xdevice

    try:
        yield
    except xdevice.errors.XDeviceError as error:
        report(
            at=time.monotonic(), error=type(error).__name__, text=str(error),
            peer=getattr(error, "rank", None), why=getattr(error, "why", None), calls=getattr(error, "calls", None),
        )  # fmt: skip
        raise


@contextmanager
def met(**options: Any) -> Iterator[Any]:
    """A world that has worked once."""
    import xdevice

    with ExitStack() as stack:
        with _reported():
            world = stack.enter_context(
                xdevice.distributed.processes(**{"timeout": LATE, **options})
            )
        stack.enter_context(_reported())
        x = world.all_reduce(xdevice.ones(3))
        assert xdevice.to_numpy(x).tolist() == [world.size] * 3
        yield world


def killed() -> None:
    import xdevice

    with met() as world:
        if world.rank == 1:
            report(failed=time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)
        world.all_reduce(xdevice.ones(3))


def killed_in_the_middle() -> None:
    import xdevice

    def die() -> None:
        report(failed=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    with met() as world:
        x = xdevice.zeros(1 << 22)
        if world.rank == 1:
            threading.Timer(0.2, die).start()
        while True:
            world.all_reduce(x)


def stopped_in_the_middle() -> None:
    """A call is long enough for both ranks to have told the hub that they are in it."""
    import xdevice

    def stop() -> None:
        report(failed=time.monotonic())
        os.kill(os.getpid(), signal.SIGSTOP)

    with met() as world:
        x = xdevice.zeros(1 << 26)
        if world.rank == 1:
            threading.Timer(1.0, stop).start()
        while True:
            world.all_reduce(x)


def raises() -> None:
    import xdevice

    with met() as world:
        if world.rank == 1:
            report(failed=time.monotonic())
            raise ValueError("a bug in rank 1")
        world.all_reduce(xdevice.ones(3))


def stuck() -> None:
    import xdevice

    with met() as world:
        if world.rank == 1:
            report(failed=time.monotonic())
            time.sleep(1000)
        world.all_reduce(xdevice.ones(3))


def never_joins() -> None:
    if os.environ["XDEVICE_RANK"] == "1":
        time.sleep(1000)
    report(failed=time.monotonic())
    with met(join_timeout=LATE):
        pass


def _differs(*calls: Callable[[Any, Any], Any]) -> None:
    """Each rank calls its own; then all call the same."""
    import numpy as np

    import xdevice

    with met() as world:
        x = xdevice.ones(4)
        report(failed=time.monotonic())
        with suppress(xdevice.errors.CollectiveMismatchError), _reported():
            calls[world.rank](world, x)
        report(written=not np.array_equal(xdevice.to_numpy(x), np.ones(4)))
        report(after=xdevice.to_numpy(world.all_reduce(xdevice.ones(3))).tolist())


def shape() -> None:
    import xdevice

    _differs(
        lambda world, x: world.all_reduce(x), lambda world, x: world.all_reduce(xdevice.ones(5))
    )


def dtype() -> None:
    import xdevice

    _differs(
        lambda world, x: world.all_reduce(x),
        lambda world, x: world.all_reduce(xdevice.ones(4, dtype="int32")),
    )


def op() -> None:
    _differs(lambda world, x: world.all_reduce(x), lambda world, x: world.all_reduce(x, "max"))


def order() -> None:
    _differs(lambda world, x: world.all_reduce(x), lambda world, x: world.broadcast(x))


class Failure(NamedTuple):
    """One way to fail, and what rank 0 has to raise."""

    run: Callable[[], None]
    error: str
    why: str | None
    within: float
    """Seconds from the failure until the error."""
    words: str
    """What its text names."""


FAILURES: Final = {
    "killed": Failure(killed, "PeerError", "died", 1.0, "rank 1"),
    "killed in the middle": Failure(killed_in_the_middle, "PeerError", "died", 1.0, "rank 1"),
    "stopped in the middle": Failure(
        stopped_in_the_middle, "PeerError", "silent", LATE + 1.0, "rank 1"
    ),
    "raises": Failure(raises, "PeerError", "raised", 1.0, "ValueError: a bug in rank 1"),
    "stuck": Failure(stuck, "PeerError", "late", LATE + 1.0, "rank 1"),
    "never joins": Failure(never_joins, "PeerError", "never joined", LATE + 1.0, "1"),
    "shapes differ": Failure(shape, "CollectiveMismatchError", None, 1.0, "5"),
    "dtypes differ": Failure(dtype, "CollectiveMismatchError", None, 1.0, "int32"),
    "operations differ": Failure(op, "CollectiveMismatchError", None, 1.0, "max"),
    "order differs": Failure(order, "CollectiveMismatchError", None, 1.0, "broadcast"),
}


def fault(name: str, outcomes: Sequence[Outcome]) -> str:
    """What is wrong with how the ranks of a failure ended, in a few words; nothing if all is as promised."""
    failure, (first, second) = FAILURES[name], outcomes
    if first.status is None:
        return "rank 0 hung"
    said = first.said
    if said.get("error") != failure.error:
        return f"rank 0 raised {said.get('error')}: {said.get('text') or first.printed[-300:]}"
    if failure.why is not None and (said["why"], said["peer"]) != (failure.why, 1):
        return f"rank 0 says that rank {said['peer']} {said['why']}: {said['text']}"
    if failure.words not in said["text"]:
        return f"rank 0 does not say {failure.words!r}: {said['text']}"
    if took(outcomes) > failure.within + _DAMP:
        return (
            f"rank 0 knew after {took(outcomes):.1f} s, and {failure.within:g} s are promised"
        )
    return _fault_of_the_end(failure, first, second)


def took(outcomes: Sequence[Outcome]) -> float:
    """Seconds from the failure until rank 0 knew, if it did: the later of two calls that differ is the failure."""
    at = outcomes[0].said.get("at")
    failed = [outcome.said["failed"] for outcome in outcomes if "failed" in outcome.said]
    return at - max(failed) if at and failed else 0.0


def _fault_of_the_end(failure: Failure, first: Outcome, second: Outcome) -> str:
    if failure.error == "PeerError":
        if first.status != 1:
            return f"rank 0 ended with status {first.status}"
        if failure.why == "raised" and second.status != 1:
            return f"rank 1 ended with status {second.status}"
        return ""
    for rank, outcome in enumerate((first, second)):
        if outcome.status is None:
            return f"rank {rank} hung"
        if outcome.said.get("error") != failure.error or len(outcome.said["calls"]) != 2:
            return f"rank {rank} raised {outcome.said.get('error')}: {outcome.printed[-300:]}"
        if outcome.said.get("written"):
            return f"rank {rank} was written to"
        if outcome.said.get("after") != [2.0] * 3 or outcome.status != 0:
            return f"rank {rank} could not go on: {outcome.printed[-300:]}"
    return ""


# the process from which ranks fork


class Zygote:
    """A process that has imported a backend and runs nothing, and forks ranks when it is asked to."""

    def __init__(self, backend: str, *modules: str, **variables: str) -> None:
        if not hasattr(os, "fork"):
            import pytest

            pytest.skip("these ranks are forked, and there is no fork here")
        command = [sys.executable, "-W", "ignore", __file__, "--serve", *modules]
        here = os.pathsep.join(
            [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        environment = {
            **os.environ,
            "PYTHONPATH": here,
            "XDEVICE_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        # the ranks would take each other's cores
        environment.setdefault("OMP_NUM_THREADS", "1")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, **variables},
            text=True,
        )

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()
        self._process.kill()
        self._process.wait()

    def run(
        self,
        name: str,
        size: int = 2,
        setup: str = "",
        patience: float = _HUNG,
        **variables: str,
    ) -> list[Outcome]:
        """What became of each rank. `name` is a failure, or "module:function"; `setup` a function that runs before."""
        job = {
            "name": name,
            "size": size,
            "setup": setup,
            "patience": patience,
            "variables": variables,
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process from which ranks fork has died"
        return [Outcome(**one) for one in json.loads(answer)]


def serve(modules: Sequence[str]) -> Callable[[], None]:
    """Forks ranks until nobody asks for more; comes back in each rank with what it is to do, and it ends as any program
    does."""
    from importlib import import_module

    import xdevice

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print
    assert xdevice.backend().framework
    for module in ("xdevice.distributed.process_group", *modules):
        import_module(module)
    gc.freeze()  # a rank that ends would look at all that was imported
    for line in sys.stdin:
        job = json.loads(line)
        folder = Path(tempfile.mkdtemp())
        ranks = []
        for rank in range(job["size"]):
            log = folder / str(rank)
            log.touch()
            reads, writes = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reads)
                return partial(become, rank, job, writes, log)
            os.close(writes)
            ranks.append(_Rank(pid, reads, log))
        outcomes = collect(ranks, job["name"], job["patience"])
        shutil.rmtree(folder)
        answers.write(json.dumps([one._asdict() for one in outcomes]) + "\n")
        answers.flush()
    return lambda: None


def become(rank: int, job: dict[str, Any], pipe: int, log: Path) -> None:
    """This process is a rank from here on."""
    global _report_into
    _report_into = pipe
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(job["variables"])
    size = job["size"]
    for name, value in (
        ("RANK", rank),
        ("SIZE", size),
        ("LOCAL_RANK", rank),
        ("LOCAL_SIZE", size),
    ):
        os.environ[f"XDEVICE_{name}"] = str(value)
    if job["setup"]:
        _function(job["setup"])()
    _function(job["name"])()


def _function(name: str) -> Callable[[], None]:
    from importlib import import_module

    module, colon, function = name.partition(":")
    if not colon:
        return FAILURES[name].run
    found: Callable[[], None] = getattr(import_module(module), function)
    return found


class _Rank:
    """A rank that was forked, seen from where it came from."""

    def __init__(self, pid: int, pipe: int, log: Path) -> None:
        self.pid, self.status = pid, None
        self.is_over = False
        self._pipe, self._log, self._read = pipe, log, b""
        os.set_blocking(pipe, False)

    def look(self) -> None:
        with suppress(BlockingIOError):
            while read := os.read(self._pipe, 65536):
                self._read += read
        if not self.is_over:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.is_over, self.status = True, os.waitstatus_to_exitcode(status)

    def end(self) -> Outcome:
        """Kills it if it is still there, and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self.is_over:
            os.waitpid(self.pid, 0)
            self.is_over = True
        self.look()
        os.close(self._pipe)
        said: dict[str, Any] = {}
        for line in self._read.splitlines():
            said.update(json.loads(line))
        return Outcome(self.status, said, self._log.read_text(errors="replace"))


def collect(ranks: Sequence[_Rank], name: str, patience: float) -> list[Outcome]:
    """Waits until all have ended. A rank 1 that is stuck or stopped by design is killed when rank 0 has ended."""
    needed = ranks[:1] if name in ("stuck", "never joins", "stopped in the middle") else ranks
    until = time.monotonic() + patience
    while not all(rank.is_over for rank in needed) and time.monotonic() < until:
        for rank in ranks:
            rank.look()
        time.sleep(0.005)
    return [rank.end() for rank in ranks]


# the record


def record(
    backends: Sequence[str],
    failures: Sequence[str],
    runs: int,
    jobs: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """For each backend and failure, how many runs were as promised, and the longest time until the error."""
    found: dict[str, Any] = {}

    def of(backend: str) -> None:
        with Zygote(backend, "xdevice_torch.distributed.processes") as zygote:
            for name in failures:
                found[f"{backend}, {name}"] = cell = _cell(zygote, name, runs)
                say(
                    f"{backend}, {name}: {cell['good']} of {runs}, at most {cell['longest']:.2f} s"
                )
                for why in cell["faults"]:
                    say(f"{backend}, {name}: {why}")

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        list(pool.map(of, backends))
    return {
        f"{backend}, {name}": found[f"{backend}, {name}"]
        for backend in backends
        for name in failures
    }


def _cell(zygote: Zygote, name: str, runs: int) -> dict[str, Any]:
    all_outcomes = [zygote.run(name) for _ in range(runs)]
    faults = [why for outcomes in all_outcomes for why in [fault(name, outcomes)] if why]
    return {
        "runs": runs,
        "good": runs - len(faults),
        "longest": max(map(took, all_outcomes)),
        "faults": faults,
    }


def table(found: dict[str, Any]) -> str:
    """The record as in docs/reference/processes.md."""
    names = list(dict.fromkeys(key.partition(", ")[0] for key in found))
    failures = list(dict.fromkeys(key.partition(", ")[2] for key in found))
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for failure in failures:
        cells = [found[f"{name}, {failure}"] for name in names]
        texts = ["{good}/{runs}, {longest:.2f} s".format(**cell) for cell in cells]
        lines.append(f"| {failure} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", default="torch,tensorflow,paddle,mxnet,jax,numpy")
    parser.add_argument("--failures", default=",".join(FAILURES))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2, help="how many backends at a time")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    found = record(
        given.backends.split(","), given.failures.split(","), given.runs, given.jobs, say
    )
    print(table(found))
    faults = [why for one in found.values() for why in one["faults"]]
    print(f"{sum(one['runs'] for one in found.values())} runs, {len(faults)} not as promised, "
          f"{sum('hung' in why for why in faults)} hung")  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    sys.modules["helpers.process_failures"] = sys.modules["__main__"]
    # ranks import other modules of tests/ by their names
    sys.path[0] = str(Path(__file__).parent.parent)
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])()
    else:
        sys.exit(main(sys.argv[1:]))
