"""`xdevice launch`: whole lines by rank, the first failure ends all, and nobody is left behind, however it ends."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from click.testing import CliRunner
from helpers.environment import NEEDS_PROC, family, needs, python, wait_for

from xdevice.cli import main as cli
from xdevice.distributed import output, spawning
from xdevice.distributed.contract.collectives import address, free_port

SCRIPT = """
import os, signal, subprocess, sys, time
rank, size = int(os.environ["XDEVICE_RANK"]), int(os.environ["XDEVICE_SIZE"])

def hangs(ignores=False):
    if ignores:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    print("hangs", flush=True)
    time.sleep(1000)
"""
# a shell starts what it runs in the background, this suite maybe, with SIGINT ignored, and children inherit that
MAIN = """
import signal
from xdevice.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.fixture
def launch(tmp_path):
    """Runs some lines as `size` processes, after those of SCRIPT."""

    def run(code, *arguments, size=2, options=(), **more):
        path = tmp_path / "script.py"
        path.write_text(SCRIPT + code)
        return python("-m", "xdevice", "launch", "-n", size, *options, path, *arguments, **more)

    return run


@contextmanager
def launching(path, code, size=2, main=MAIN):
    """A launcher that runs, and a function that finds every process that has come of it."""
    path.write_text(SCRIPT + code)
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", main, "launch", "-n", str(size), str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "XDEVICE_TEST_MARK": mark},
    )  # fmt: skip
    try:
        for _ in range(size):
            assert "hangs" in process.stdout.readline()
        yield process, lambda: family(mark, process.pid)
    finally:
        process.kill()
        process.communicate()
        for pid in family(mark):
            os.kill(pid, signal.SIGKILL)


# what the processes are told


def test_each_rank_is_told_its_place_in_both_languages(launch):
    names = [f"XDEVICE_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    code = f"print(*map(os.environ.get, {[*names, 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE']}))"
    done = launch(code, size=3)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {f'{rank} 3 ' * 3}{rank} 3" for rank in range(3)
    ]


def test_all_ranks_are_told_the_same_addresses_and_secret(launch):
    code = "print(*map(os.environ.get, ('XDEVICE_ADDRESS', 'MASTER_ADDR', 'MASTER_PORT', 'XDEVICE_TOKEN')))"
    said = {
        line.partition("] ")[2] for line in launch(code, XDEVICE_TOKEN="").stdout.splitlines()
    }
    assert len(said) == 1
    address, host, port, token = said.pop().split()
    assert address.startswith("127.0.0.1:")
    assert host == "127.0.0.1"
    assert address != f"{host}:{port}"
    assert len(token) >= 16


def test_the_options_reach_the_processes(launch):
    code = "print(*map(os.environ.get, ('XDEVICE_BACKEND', 'XDEVICE_ENGINE', 'XDEVICE_TIMEOUT')), sys.argv[1:])"
    options = ("--backend", "pytorch", "--engine", "torch:gloo", "--timeout", "2.5")
    done = launch(code, "-n", "x", "--backend", size=1, options=options)
    assert done.stdout == "[0] torch torch:gloo 2.5 ['-n', 'x', '--backend']\n"


def test_a_module_runs_as_by_python(tmp_path):
    (tmp_path / "trains.py").write_text(
        "import os, sys; print(__name__, os.environ['RANK'], *sys.argv[1:])"
    )
    done = python(
        "-m",
        "xdevice",
        "launch",
        "-n",
        "2",
        "-m",
        "trains",
        "--rate",
        "1",
        PYTHONPATH=path_with(tmp_path),
    )
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] __main__ {rank} --rate 1" for rank in range(2)
    ]


def path_with(folder):
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "2", "nowhere.py"], "there is no file nowhere.py"),
        (["-n", "0", __file__], "0 is not in the range"),
        ([__file__], "-n is missing"),
        (["-n", "2"], "Missing argument"),
        (["-n", "2", "--backend", "tortch", __file__], "tortch"),
        (["-n", "2", "--timeout", "0", __file__], "0.0 is not in the range"),
        (
            ["-n", "2", "--node-rank", "1", __file__],
            "--node-rank is 1, but must be less than --nnodes, which is 1",
        ),
        (["-n", "2", "--nnodes", "2", __file__], "--nnodes needs --port"),
        (
            ["-n", "2", "--nnodes", "2", "--port", "29400", __file__],
            "needs a secret in XDEVICE_TOKEN",
        ),
    ],
)
def test_what_cannot_be_started_is_wrong_usage(arguments, said, monkeypatch):
    monkeypatch.delenv("XDEVICE_TOKEN", raising=False)
    done = CliRunner().invoke(cli.main, ["launch", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def shares_ports():
    """Whether two sockets that do not listen can be bound to one port; on Windows they could, and so could a third."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        with suppress(OSError):
            other.bind(one.getsockname())
            return os.name == "posix"
    return False


def test_a_reserved_port_is_given_to_nobody_and_can_be_listened_on():
    if not shares_ports():
        pytest.skip("a port cannot be kept here")
    with spawning.reserve("127.0.0.1") as port:
        for _ in range(2):  # one world after another
            with (
                socket.create_server(("127.0.0.1", port)) as server,
                socket.create_connection(server.getsockname()),
            ):
                server.accept()[0].close()
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))


def test_a_port_that_cannot_be_kept_is_released(monkeypatch):
    monkeypatch.setattr(spawning, "_HAS_PROCESS_GROUPS", False)  # as on Windows
    with spawning.reserve("127.0.0.1") as port:
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7")]
)
def test_an_address_is_one_text(host, expected):
    assert address(host, 7) == expected


# what is printed


def shown(*reads):
    target = io.TextIOWrapper(io.BytesIO())
    lines = output.Lines(b"[2] ", target)
    for read in reads:
        lines.take(read)
    lines.end()
    return target.buffer.getvalue()


def test_what_has_no_line_breaks_is_not_kept():
    """Each read of a dump of bytes would copy all that came before: 30 MB took over a minute."""
    target = io.TextIOWrapper(io.BytesIO())
    lines = output.Lines(b"", target)
    for _ in range(100):
        lines.take(b"\xff\0" * 2**14)
    assert len(target.buffer.getvalue()) > 99 * 2**15 - 2**17
    lines.end()
    assert target.buffer.getvalue().count(b"\xff\0") >= 100 * 2**14


def test_lines_are_whole_and_have_a_prefix():
    assert shown(b"one\ntw", b"o\n\nthree") == b"[2] one\n[2] two\n[2] \n[2] three\n"


def test_characters_that_are_cut_by_a_read_stay_whole():
    text = "größer".encode()
    assert shown(text[:3], text[3:]) == b"[2] " + text + b"\n"


def test_a_progress_bar_is_shown_now_and_then_and_at_its_end():
    bar = [b"\r%d%%" % percent for percent in range(101)]
    assert shown(*bar, b"\n") == b"[2] 0%\n[2] 100%\n"
    assert shown(*bar) == b"[2] 0%\n[2] 100%\n"
    assert shown(b"0%\r50%\r100%\nlast\n") == b"[2] 100%\n[2] last\n"
    assert shown(b"a\r", b"b\r", b"c\r", b"\nlast") == b"[2] a\n[2] c\n[2] last\n"


def test_windows_lines_are_lines():
    assert shown(b"one\r\ntwo\r", b"\n") in (b"[2] one\n[2] two\n", b"[2] one\n[2] two\n[2] \n")


def test_a_colour_ends_with_its_line():
    assert shown(b"\x1b[31mred\nplain\n") == b"[2] \x1b[31mred\x1b[0m\n[2] plain\n"


def test_output_and_errors_are_kept_apart(launch):
    done = launch("os.write(1, b'out'); os.write(2, b'err')", size=1)
    assert (done.stdout, done.stderr) == ("[0] out\n", "[0] err\n")


def test_lines_come_as_they_are_printed(tmp_path):
    with launching(tmp_path / "script.py", "hangs()"):
        pass  # else it waits for ever


def test_rank_0_reads_what_the_launcher_reads(launch):
    done = launch("print(repr(sys.stdin.read()))", size=2, typed="data")
    assert sorted(done.stdout.splitlines()) == ["[0] 'data'", "[1] ''"]


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_stops_no_training(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(f"print('x\\n' * 200000)\nopen({str(tmp_path / 'end')!r}, 'w')\n")
    command = [sys.executable, "-m", "xdevice", "launch", "-n", "1", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
    assert (tmp_path / "end").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "redirected",
    ["> /dev/full", *(pytest.param(f"{n}>&-", marks=pytest.mark.slow) for n in "12")],
)
def test_output_that_cannot_be_shown_stops_no_training(tmp_path, redirected):
    path = tmp_path / "script.py"
    path.write_text(f"print('x\\n' * 20000)\nopen({str(tmp_path / 'end')!r}, 'w')\n")
    command = f'"{sys.executable}" -m xdevice launch -n 1 "{path}" {redirected}'
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, (tmp_path / "end").exists()) == (0, True), done.stderr
    assert ("can no longer be shown" in done.stderr) == ("full" in redirected)


@pytest.mark.slow
def test_what_each_rank_prints_is_in_a_file_of_its_own(launch, tmp_path):
    code = "print('out', rank); print('err', file=sys.stderr)"
    done = launch(code, size=2, options=["--log-dir", tmp_path / "logs"])
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert sorted((tmp_path / "logs" / f"rank_{rank}.log").read_text().splitlines()) == [
            "err",
            f"out {rank}",
        ]


# several machines, and several tries


@pytest.mark.slow
def test_two_launchers_are_two_machines(launch, tmp_path):
    needs("torch")
    code = """
import numpy, xdevice
with xdevice.distributed.processes() as world:
    assert world.all_reduce(numpy.ones(2)).tolist() == [4, 4]
    print(world.rank, world.size, world.local_rank, world.local_size, os.environ["MASTER_PORT"])
    world.barrier()
    if world.rank == 3:
        raise ValueError("a bug in rank 3")
    world.barrier()
"""
    port = str(free_port("127.0.0.1"))
    options = ["--nnodes", "2", "--port", port, "--backend", "numpy", "--node-rank"]
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(launch, code, options=[*options, node], XDEVICE_TOKEN="s")
            for node in range(2)
        ]
    first, second = (run.result() for run in runs)
    for node, done in enumerate((first, second)):
        shown = [f"[{2 * node + i}] {2 * node + i} 4 {i} 2 {int(port) + 1}" for i in range(2)]
        assert sorted(done.stdout.splitlines()) == shown, done.stderr
        assert done.returncode == 1
    assert "rank 3 failed first" in second.stderr
    assert "PeerError: rank 3 raised ValueError: a bug in rank 3" in first.stderr


@pytest.mark.parametrize(
    ("restarts", "status"), [pytest.param(0, 3, marks=pytest.mark.slow), (2, 0)]
)
def test_after_a_failure_all_are_started_again(launch, tmp_path, restarts, status):
    code = f"""
path = {str(tmp_path / "tries")!r}
if rank == 1:
    with open(path, "a") as file:
        file.write("x")
    sys.exit(3 if len(open(path).read()) < 3 else 0)
"""
    done = launch(code, options=["--max-restarts", restarts])
    assert done.returncode == status
    assert ("all ranks are restarted: restart 2 of 2" in done.stderr) == (restarts == 2)
    assert len((tmp_path / "tries").read_text()) == restarts + 1


# failures


def test_the_first_failure_ends_all_and_its_traceback_comes_last(launch):
    started = time.monotonic()
    done = launch("if rank == 1:\n    raise ValueError('a bug in rank 1')\nhangs()")
    assert done.returncode == 1
    assert time.monotonic() - started < 60
    last = done.stderr.rpartition("xdevice launch: ")[2].splitlines()
    assert last[0] == "rank 1 failed first, with exit status 1; the others were stopped"
    assert last[1] == "[1] Traceback (most recent call last):"
    assert last[-1] == "[1] ValueError: a bug in rank 1"


def test_the_exit_status_is_that_of_the_first(launch):
    assert launch("if rank == 1:\n    sys.exit(7)\nhangs()").returncode == 7


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no signals")
def test_a_rank_that_is_killed_is_a_failure(launch):
    done = launch("if rank == 0:\n    os.kill(os.getpid(), signal.SIGKILL)\nhangs()")
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0 failed first, by SIGKILL; the others were stopped" in done.stderr


def test_the_one_that_failed_by_itself_is_named(launch):
    """The others tell of it by PeerError, and may end before it."""
    code = """
class PeerError(Exception):
    pass
if rank == 0:
    raise PeerError("rank 1 raised ValueError: its own")
time.sleep(0.1)
if rank == 1:
    raise ValueError("its own")
hangs()
"""
    assert "rank 1 failed first" in launch(code).stderr


def test_ranks_may_end_at_different_times(launch):
    done = launch("time.sleep(0.2 * rank); print('end')")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("end") == 2


# nobody is left behind

_ENDS = ["SIGKILL", "SIGTERM", "SIGINT"]


@NEEDS_PROC
@pytest.mark.parametrize("name", _ENDS)
def test_a_launcher_that_is_ended_ends_all(tmp_path, name):
    number = getattr(signal, name)
    with launching(tmp_path / "script.py", "hangs()") as (process, processes):
        assert len(processes()) >= 4  # two ranks, and what they have started
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        wait_for(lambda: not processes(), "no process is left")
    assert process.returncode == (-number if name == "SIGKILL" else 128 + number), err
    assert "launch.py" not in err


@NEEDS_PROC
@pytest.mark.slow
@pytest.mark.parametrize("name", _ENDS)
def test_who_ignores_it_is_killed(tmp_path, name):
    with launching(tmp_path / "script.py", "hangs(ignores=True)") as (process, processes):
        process.send_signal(getattr(signal, name))
        process.communicate(timeout=60)
        wait_for(lambda: not processes(), "no process is left")


@NEEDS_PROC
def test_a_second_ctrl_c_does_not_wait(tmp_path):
    """The launcher here would wait ten minutes after the first one, so that a slow machine is not taken for waiting."""
    patient = f"from xdevice.distributed import spawning\nspawning.PATIENCE = 600\n{MAIN}"
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN); hangs(ignores=True)"
    with launching(tmp_path / "script.py", code, main=patient) as (process, processes):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        wait_for(lambda: not processes(), "no process is left")
    assert process.returncode == 130


@NEEDS_PROC
def test_what_a_rank_leaves_behind_ends_with_it(launch):
    mark = uuid.uuid4().hex
    code = "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(1000)'])"
    done = launch(code, size=2, XDEVICE_TEST_MARK=mark)
    assert (done.returncode, done.stderr) == (0, "")
    assert family(mark) == []


def test_all_ranks_hash_texts_alike(tmp_path):
    """Otherwise each would loop over a set of names in an order of its own, and add up other values."""
    script = tmp_path / "names.py"
    script.write_text("print(list({f'layer{i}' for i in range(50)}))")
    done = python("-m", "xdevice", "launch", "-n", "3", script)
    orders = {line.partition("] ")[2] for line in done.stdout.splitlines() if "layer" in line}
    assert len(orders) == 1, done.stdout


def test_an_engine_that_does_not_exist_is_refused_before_anything_starts(tmp_path):
    script = tmp_path / "writes.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    done = CliRunner().invoke(cli.main, ["launch", "-n", "2", "--engine", "gloo", str(script)])
    assert done.exit_code == 2
    assert "there is no engine 'gloo'; choose auto, a framework" in done.output
    assert not (tmp_path / "ran").exists()
