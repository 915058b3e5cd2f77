"""The control connection without a framework: who may join, strangers, and what many ranks cost."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from helpers.environment import python

import xdevice
from xdevice.distributed import control, hub, launchers
from xdevice.distributed.control import Terms
from xdevice.distributed.hub import Hub

PLACE = launchers.Launch("xdevice launch", 1, 2, 1, 2, "127.0.0.1", None, "a run")


@pytest.fixture
def serving():
    """A hub of two ranks, rank 0 attached, and its port."""
    hubs = []

    def serve(key="", size=2, join_timeout=20.0, timeout=1.0):
        listener = socket.create_server(("127.0.0.1", 0))
        found = Hub(listener, Terms(key, "a run", 1, size), timeout, join_timeout)
        (vote, hubs_vote), (pulse, hubs_pulse) = socket.socketpair(), socket.socketpair()
        found.add_rank_0(hubs_vote, hubs_pulse)
        found.start()
        hubs.append((found, listener, vote, pulse))
        return listener.getsockname()[1], control.Line(vote, pulse, "127.0.0.1", timeout, None)

    yield serve
    for found, listener, vote, pulse in hubs:
        for one in (vote, pulse):
            one.close()
        found.join(5)
        listener.close()
        assert not found.is_alive()


def connect(port, line="vote", key="", run="a run", world=1, size=2, rank=1):
    place = PLACE._replace(port=port, rank=rank, size=size)
    return control.open_connection(place, port, Terms(key, run, world, size), line)


def joined(port, key="", rank=1, size=2):
    vote, pulse = (connect(port, line, key, rank=rank, size=size) for line in ("vote", "pulse"))
    return control.Line(vote, pulse, "127.0.0.1", 1.0, None)


def test_who_has_the_token_joins(serving):
    port, first = serving(key="a secret")
    second = joined(port, "a secret")
    thread = threading.Thread(target=lambda: second.vote("a call"))
    thread.start()
    assert first.vote("a call") == []
    thread.join()
    second.close()


@pytest.mark.parametrize("key", ["", "another", "a secret "])
def test_who_lacks_the_token_is_refused(serving, key):
    port, _ = serving(key="a secret")
    with pytest.raises(xdevice.errors.LaunchError, match="XDEVICE_TOKEN"):
        connect(port, key=key)


def test_a_hub_that_lacks_the_token_is_refused(serving):
    """Who listens there in rank 0's place learns nothing, and is told nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard = []

    def pretend():
        sock, _ = listener.accept()
        conn = control.Conn(sock)
        conn.send(b"H", f"{control.PROTOCOL}{control.new_nonce()}")
        while not (frames := list(conn.frames())):
            time.sleep(0.01)
        heard.append(frames[0][1])
        conn.send(b"K", control.proof("another", "x", "hub"))
        while conn.is_open:
            list(conn.frames())
            time.sleep(0.01)
        conn.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(xdevice.errors.LaunchError, match="XDEVICE_TOKEN"):
        connect(listener.getsockname()[1], key="a secret")
    thread.join()
    listener.close()
    assert "a secret" not in heard[0]


@pytest.mark.parametrize("wrong", [{"run": "another"}, {"world": 2}])
def test_another_run_is_passed_by(serving, wrong):
    port, _ = serving()
    assert connect(port, **wrong) is None


def test_who_does_not_say_who_it_is_is_dropped(serving, monkeypatch):
    monkeypatch.setattr(hub, "_HANDSHAKE", 0.05)
    port, _ = serving()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        while stranger.recv(4096):  # the greeting, and then the end
            pass


def test_a_rank_that_is_there_twice_ends_the_wait_for_the_others(serving):
    port, first = serving(size=3)
    there = connect(port, size=3)
    with pytest.raises(xdevice.errors.LaunchError, match="already has rank 1"):
        connect(port, size=3)
    with pytest.raises(
        xdevice.errors.PeerError,
        match="a process of this run cannot join: another process already has rank 1",
    ):
        first.wait_until_all_joined(20)
    there.close()


def test_a_rank_of_another_size_ends_the_wait_for_the_others(serving):
    port, first = serving(size=3)
    with pytest.raises(xdevice.errors.LaunchError, match="rank 1 of 2, but this world has 3"):
        connect(port)
    with pytest.raises(
        xdevice.errors.PeerError, match="cannot join: it is rank 1 of 2"
    ) as raised:
        first.wait_until_all_joined(20)
    assert raised.value.why == "never joined"


def test_who_lacks_the_token_ends_nothing_and_is_told_of_at_the_end(serving, caplog):
    port, first = serving(key="a secret", join_timeout=0.5)
    with pytest.raises(xdevice.errors.LaunchError, match="XDEVICE_TOKEN"):
        connect(port, key="another")
    with pytest.raises(
        xdevice.errors.PeerError, match="refused connections with a different XDEVICE_TOKEN: 1"
    ):
        first.wait_until_all_joined(0.5)
    assert "rank 0 has refused a process" in caplog.text


def test_who_comes_after_all_is_refused(serving):
    port, _ = serving()
    there = joined(port)
    with pytest.raises(xdevice.errors.LaunchError, match="already has rank 1"):
        connect(port)
    there.close()


def test_a_mismatch_is_told_before_what_it_led_to():
    (own, others), (pulse, others_pulse) = socket.socketpair(), socket.socketpair()
    line, other = control.Line(own, pulse, "127.0.0.1", 1.0, None), control.Conn(others)
    other.send(b"M", '{"0": "a call", "1": "another"}')
    other.send(b"E", '{"rank": 0, "why": "raised", "text": "rank 0 raised an error"}')
    with pytest.raises(xdevice.errors.CollectiveMismatchError):
        line.vote("another")
    with pytest.raises(xdevice.errors.PeerError, match="rank 0 raised"):
        line.vote("the next")
    for one in (other, others_pulse, line):
        one.close()


DEEP = b'{"rank": ' + b"[" * 960 + b"]" * 960 + b"}"


@pytest.mark.parametrize(
    "hello", [b'{"proof": "\\ud800"}', DEEP, b"[" * 4000, b'{"rank": 1e999, "proof": "x"}']
)
def test_what_strangers_say_of_themselves_disturbs_nobody(serving, hello):
    port, first = serving(key="a secret")
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.sendall(len(hello).to_bytes(4, "big") + b"h" + hello)
    while stranger.recv(4096):  # until it is refused
        pass
    stranger.close()
    second = joined(port, "a secret")
    thread = threading.Thread(target=lambda: second.vote("a call"))
    thread.start()
    assert first.vote("a call") == []
    thread.join()
    second.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xffh",
        b"\0\0\0\2h{}",
        b"\0\0\0\3h\xff\xfe{",
    ],
)
def test_strangers_disturb_nobody(serving, said):
    port, first = serving(key="a secret")
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    for stranger in strangers:
        stranger.sendall(said)
    strangers[0].close()
    second = joined(port, "a secret")
    thread = threading.Thread(target=lambda: second.vote("a call"))
    thread.start()
    first.vote("a call")
    thread.join()
    second.close()
    for stranger in strangers:
        stranger.close()


def test_what_the_control_connection_cannot_read_ends_the_world(serving, caplog):
    port, first = serving()
    second = joined(port)
    second._vote.send(b"V", "no number")
    with pytest.raises(
        xdevice.errors.PeerError, match="control connection has failed: ValueError"
    ):
        first.vote("a call")
    second.close()
    assert "has failed" in caplog.text


def test_a_proof_is_not_a_proof_of_anything_else():
    proof = control.proof("a secret", "nonce", 1, "vote")
    assert control.is_proof(proof, "a secret", "nonce", 1, "vote")
    for claimed, key, *parts in (
        (proof, "a secret", "nonce", 2, "vote"),
        (proof, "a secret", "another", 1, "vote"),
        (proof, "", "nonce", 1, "vote"),
        (None, "a secret", "nonce", 1, "vote"),
        ("é", "a secret", "nonce", 1, "vote"),
    ):
        assert not control.is_proof(claimed, key, *parts)


def test_frames_of_all_sizes_arrive(serving):
    here, there = map(control.Conn, socket.socketpair())
    texts = ["", "é", "x" * 70_000, "y" * 3_000_000]
    for text in texts:
        here.send(b"V", text)
    got = []
    while len(got) < len(texts):
        here.flush()
        got += [text for _, text in there.frames()]
    assert got == texts
    for conn in (here, there):
        conn.close()


def test_a_frame_that_is_too_long_ends_the_connection():
    here, there = socket.socketpair()
    conn = control.Conn(there, max_frame=100)
    here.sendall((101).to_bytes(4, "big") + b"h")
    assert list(conn.frames()) == []
    assert not conn.is_open
    here.close()
    conn.close()


def test_who_never_comes_is_named(serving):
    _, first = serving(size=4, join_timeout=0.3)
    with pytest.raises(
        xdevice.errors.PeerError, match=r"ranks 1, 2, 3 have not joined within 0\.3 s"
    ) as raised:
        first.vote("a call")
    assert (raised.value.rank, raised.value.why) == (1, "never joined")


def test_engines_say_goodbye_after_all_have_left(serving):
    port, first = serving()
    second = joined(port)
    heard = []

    def leave(line):
        line.vote(control.LEAVE)
        heard.extend(line.exchange("goodbye"))
        line.vote(control.GOODBYE)

    thread = threading.Thread(target=leave, args=(second,))
    thread.start()
    leave(first)
    thread.join()
    assert heard == ["goodbye"] * 4
    second.close()


# calls of the engine that take long


def in_engine(lines, ends_after, seconds):
    """What each rank raises, if it does, in a call of an engine that takes `ends_after` seconds and may take
    `seconds`."""
    until, raised = time.monotonic() + ends_after, [None] * len(lines)

    def call(rank):
        try:
            lines[rank].wait(
                lambda step: time.sleep(step) or time.monotonic() > until,
                lambda: ("a call", seconds),
                True,
            )
        except xdevice.errors.PeerError as error:
            raised[rank] = error

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(len(lines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.slow
def test_an_engine_that_works_on_is_not_late_however_slow_it_is(serving, monkeypatch):
    port, first = serving()
    second = joined(port)
    monkeypatch.setattr(second.liveness, "has_engine_moved", lambda: True)
    # one that works is enough
    monkeypatch.setattr(first.liveness, "has_engine_moved", lambda: False)
    assert in_engine([first, second], 2.5, 0.5) == [None, None]
    second.close()


@pytest.mark.slow
def test_an_engine_that_stands_still_on_all_ranks_is_late(serving, monkeypatch):
    port, first = serving()
    second = joined(port)
    for line in (first, second):
        monkeypatch.setattr(line.liveness, "has_engine_moved", lambda: False)
    for error in in_engine([first, second], 20, 0.5):
        assert error.why == "late"
        assert "the engine has not finished a call, and has made no progress" in str(error)
    second.close()


def test_a_rank_may_leave_while_the_others_are_in_their_last_call(serving):
    port, first = serving()
    second = joined(port)
    first.started = second.started = 1
    leaving = threading.Thread(target=second.vote, args=(control.LEAVE,))
    leaving.start()
    assert in_engine([first], 0.5, 60) == [None]
    assert first.vote(control.LEAVE) == []
    leaving.join()
    second.close()


def test_a_rank_that_stands_still_behind_the_call_of_the_others_is_not_late(
    serving, monkeypatch
):
    port, first = serving(timeout=0.5)
    second = joined(port)
    first.started = second.started = 1  # the other one's part of the call has ended
    monkeypatch.setattr(first.liveness, "has_engine_moved", lambda: True)
    monkeypatch.setattr(second.liveness, "has_moved", lambda: False)
    assert in_engine([first], 1.2, 60) == [None]
    second.started = 0
    assert in_engine([first], 10, 60)[0].why == "late"
    second.close()


def test_a_rank_whose_link_is_cut_in_the_engine_is_named_in_time(serving):
    port, first = serving()
    vote, pulse = (connect(port, line) for line in ("vote", "pulse"))
    mine, unheard = socket.socketpair()  # what the hub asks this rank stays in the connection
    second = control.Line(vote, mine, "127.0.0.1", 1.0, None)
    begun = time.monotonic()
    error, _ = in_engine([first, second], 20, 60)
    assert (error.rank, error.why) == (1, "silent")
    # the timeout, a second as promised, and one for a loaded machine
    assert time.monotonic() - begun < 1 + 1 + 1
    second.close()
    for one in (pulse, unheard):
        one.close()


def test_beyond_this_machine_a_token_is_needed(monkeypatch):
    monkeypatch.delenv("XDEVICE_TOKEN", raising=False)
    for rank in (0, 1):
        with pytest.raises(xdevice.errors.LaunchError, match="XDEVICE_TOKEN"):
            hub.join_world(PLACE._replace(rank=rank, host="10.0.0.1", port=29400), 1, 1)


def test_time_in_which_the_process_did_not_run_does_not_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(control.time, "monotonic", lambda: now[0])
    clock = control.Clock(2.0)
    for step in (1.0, 3600.0, 0.5):
        now[0] += step
        clock.tick()
    assert clock.now == 3.5


def test_a_world_of_one_starts_and_imports_nothing():
    done = python(
        "-c",
        "import sys, threading, numpy as np, xdevice\n"
        "with xdevice.distributed.processes() as world:\n"
        "    x = np.ones(3)\n"
        "    assert world.all_reduce(x, 'mean', weight=2) is x and world.broadcast(x) is x\n"
        "    assert world.all_gather(x) is x and world.average_gradients([x])[0] is x\n"
        "    assert world.reduce_scatter(x) is x and world.split_batch(x) is x\n"
        "    world.barrier()\n"
        "    with world.first() as is_first: assert is_first\n"
        "    assert (world.rank, world.size, world.engine, world.is_first) == (0, 1, 'none', True)\n"
        "    assert world.all_gather(np.float32(2)).tolist() == [2]\n"
        "    try: world.send(x, 1)\n"
        "    except xdevice.errors.ArgumentError: pass\n"
        "    else: raise AssertionError\n"
        "assert threading.active_count() == 1\n"
        "assert not {'torch', 'jax', 'tensorflow', 'paddle', 'mxnet', 'torch.distributed'} & set(sys.modules)\n",
    )
    assert done.returncode == 0, done.stderr
