"""What the control connection costs rank 0 in worlds of 8 to 4,096 ranks: joining, a vote, and the questions to ranks.

    python benchmarks/scale.py                      # the hub with that many connections; about a minute
    python benchmarks/scale.py --processes 64 256   # that many real processes join and vote, without an engine

The hub is rank 0's own, in its thread, and the connections are real ones on loopback. The ranks are simulated by one
other thread, so that their time does not count: what is measured is the processor time of the hub's thread.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import click
from rich.console import Console
from rich.table import Table

from xdevice.distributed import control, hub, launchers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = (8, 64, 512, 4096)
CALL = "all_reduce sum: float32 [1000, 1000]"
TRIP = 50e-6
"""Seconds that a message takes from one machine to another and back, in the estimates."""
FAN = 64
"""How many connections each node of a tree would have, in the estimates."""


class Cost(NamedTuple):
    """What a world of `size` ranks costs rank 0, in seconds of its processor."""

    size: int
    join: float
    vote: float
    beat: float
    """The questions to all ranks in a long call of the engine, and their answers: four times a second."""
    kilobytes: float
    """The memory of the hub for all ranks."""

    @property
    def star(self) -> float:
        """The estimated seconds from the call of the last rank until all may go on, as it is."""
        return TRIP + self.vote

    @property
    def tree(self) -> float:
        """The same if the ranks were a tree with `FAN` connections to each node."""
        levels = max(1, math.ceil(math.log(self.size, FAN)))
        return levels * (TRIP + min(FAN, self.size) * self.vote / self.size)


class World:
    """The hub and the other ends of its connections."""

    def __init__(self, size: int) -> None:
        hub._raise_file_limit(4 * size + 256)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        launch = launchers.Launch(
            "xdevice launch", 1, size, 1, size, "127.0.0.1", listener.getsockname()[1], "a run"
        )
        terms = control.Terms("", "a run", 1, size)
        self.size = size
        self.hub = hub.Hub(listener, terms, 30.0, 600.0)
        pairs = [socket.socketpair() for _ in range(2)]
        self.hub.add_rank_0(pairs[0][1], pairs[1][1])
        self.hub.start()
        self.votes, self.pulses = [control.Conn(pairs[0][0])], [control.Conn(pairs[1][0])]
        for rank in range(1, size):
            for line, conns in (("vote", self.votes), ("pulse", self.pulses)):
                sock = control.open_connection(
                    launch._replace(rank=rank), launch.port or 0, terms, line
                )
                assert sock is not None
                conns.append(control.Conn(sock))
        self.hear(self.votes, b"J")
        listener.close()

    def spent(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self.hub.ident or 0))

    def say(self, conns: Sequence[control.Conn], kind: bytes, text: str) -> None:
        for conn in conns:
            conn.send(kind, text)

    def hear(self, conns: Sequence[control.Conn], wanted: bytes) -> None:
        """Waits until each rank has been told `wanted`."""
        waiting = set(conns)
        with selectors.DefaultSelector() as selector:
            for conn in conns:
                selector.register(conn, selectors.EVENT_READ)
            while waiting:
                for key, _ in selector.select():
                    conn = cast("control.Conn", key.fileobj)
                    if any(kind == wanted for kind, _ in conn.frames()):
                        waiting.discard(conn)

    def vote(self, number: int) -> None:
        self.say(self.votes, b"V", f"{number}\n{CALL}\n")
        self.hear(self.votes, b"G")

    def beats(self, count: int) -> float:
        """The processor time of one beat while all ranks are in a call of the engine."""
        self.say(self.votes, b"S", f"1000\n{CALL}\n600")
        spent = 0.0
        for i in range(count + 1):
            if i == 1:
                spent = self.spent()
            self.hear(self.pulses, b"p")
            self.say(
                self.pulses,
                b"a",
                json.dumps({"moved": True, "at": "train.py:30 in step", "started": 1000}),
            )
        spent = (self.spent() - spent) / count
        self.say(self.votes, b"D", "")
        return spent

    def close(self) -> None:
        for conn in self.votes + self.pulses:
            conn.close()
        self.hub.join(10)


def resident() -> float:
    return (
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    )


def cost_of(size: int, rounds: int) -> Cost:
    before = resident()
    world = World(size)
    joined, kilobytes = world.spent(), resident() - before
    world.vote(0)
    votes = []
    for number in range(1, rounds + 1):
        spent = world.spent()
        world.vote(number)
        votes.append(world.spent() - spent)
    beat = world.beats(4)
    world.close()
    return Cost(size, joined, statistics.median(votes), beat, kilobytes)


# real processes


def run_processes(size: int, rounds: int) -> dict[str, float]:
    """Forks `size` processes, which join and vote, and returns the times that rank 0 has measured."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        os.environ.update(
            XDEVICE_SIZE=str(size), XDEVICE_LOCAL_SIZE=str(size), XDEVICE_TOKEN="a secret"
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ["XDEVICE_ADDRESS"] = f"127.0.0.1:{free.getsockname()[1]}"
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                os._exit(
                    _guarded(
                        lambda rank=rank: be_rank(rank, rounds, Path(folder) / "found.json")
                    )
                )
            children.append(pid)
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
        if failed:
            raise click.ClickException(f"{failed} of {size} processes have failed")
        found: dict[str, float] = json.loads((Path(folder) / "found.json").read_text())
        return found


def be_rank(rank: int, rounds: int, into: Path) -> None:
    os.environ.update(XDEVICE_RANK=str(rank), XDEVICE_LOCAL_RANK=str(rank))
    launch = launchers.find_launch()
    assert launch is not None
    begun = time.perf_counter()
    line = hub.join_world(launch, 120.0, 600.0)
    joined = time.perf_counter() - begun
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        line.vote(CALL)
        times.append(time.perf_counter() - begun)
    if rank == 0:
        into.write_text(
            json.dumps(
                {"join": joined, "least": min(times), "median": statistics.median(times)}
            )
        )
    line.vote(control.GOODBYE)
    line.close()


def _guarded(job: Callable[[], None]) -> int:
    try:
        job()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


# what is shown


def show(costs: Sequence[Cost]) -> None:
    table = Table(title="The control connection: processor time of rank 0's hub, and estimates")
    headings = (
        "ranks",
        "join",
        "vote",
        "beat",
        "of a core",
        "memory",
        "star",
        f"tree of {FAN}",
        "a vote is 1 % of",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for one in costs:
        times = [_text(seconds) for seconds in (one.join, one.vote, one.beat)]
        shares = [f"{4 * one.beat:.1%}", f"{one.kilobytes / 1024:.1f} MB"]
        table.add_row(
            f"{one.size:,}",
            *times,
            *shares,
            _text(one.star),
            _text(one.tree),
            _text(100 * one.star),
        )
    Console(width=120).print(table)


def _text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


@click.command()
@click.argument("sizes", type=click.IntRange(min=2), nargs=-1)
@click.option("--processes", is_flag=True, help="Real processes instead of connections.")
@click.option("--rounds", default=20, show_default=True, help="How many votes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def main(sizes: tuple[int, ...], processes: bool, rounds: int, as_json: bool) -> None:
    """Measures worlds of so many ranks: 8, 64, 512 and 4,096 if none is named."""
    if processes:
        for size in sizes or (8, 64):
            found = run_processes(size, rounds)
            told = ", ".join(f"{name} {_text(seconds)}" for name, seconds in found.items())
            click.echo(
                json.dumps({"size": size, **found}) if as_json else f"{size} processes: {told}"
            )
        return
    costs = [cost_of(size, rounds) for size in sizes or SIZES]
    if as_json:
        click.echo(json.dumps([one._asdict() for one in costs], indent=2))
    else:
        show(costs)


if __name__ == "__main__":
    main()
