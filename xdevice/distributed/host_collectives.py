"""The collectives that need no engine, because they send everything over the control connection: `barrier`, `first`,
`split_range` and `all_gather_object`. `split_range` assigns indices of a data set to each rank, and `all_gather_object`
gathers small values of Python's built-in types. None of these collectives waits for devices.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from xdevice.errors import ArgumentError, PeerError, shown

from .control import describe_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .session import Session

_BLOCK_OF_FIRST: Final = "first(), where the ranks run one after another"
"""The name of the block of `first` in error messages. A collective raises such an error if it is called in the
block."""
_MAX_BYTES: Final = 16 * 2**20
"""The maximum total size of the values of all ranks, in bytes. One message on the control
connection contains all of these values."""


def barrier(session: Session) -> None:
    """Does the work of `World.barrier`."""
    session.require_ready("barrier")
    if session.size > 1:
        with session.exclusive("barrier"):
            # the hub answers when all ranks have voted
            session.line.vote("barrier")


@contextmanager
def first(session: Session) -> Iterator[bool]:
    """Does the work of `World.first`, with one vote. Rank 0 runs its block and then votes; if
    the block has raised an error, the vote contains the error's text. The other ranks vote at
    once, so they wait for rank 0 before they run their blocks."""
    session.require_ready("first")
    if session.size == 1:
        with session.forbid_collectives(_BLOCK_OF_FIRST):
            yield True
        return
    line = session.line
    # the other ranks wait here, in the vote, until rank 0 has left its block
    if session.rank != 0:
        with session.exclusive("first"):
            payloads = line.vote("first")
        # the payload of rank 0 is the text of its error; without an error no rank sends a payload, and the list is
        # empty
        if payloads and payloads[0]:
            raise PeerError(f"rank 0 raised {payloads[0]} in first()", rank=0, why="raised")
    # rank 0 may spend any length of time in its block, so it is considered to be working
    line.is_first_busy = session.rank == 0
    try:
        with session.forbid_collectives(_BLOCK_OF_FIRST):
            yield session.rank == 0
    except BaseException as error:
        line.is_first_busy = False
        # any other exception, such as Ctrl-C, leaves the world, which informs the other ranks
        if session.rank == 0 and isinstance(error, Exception):
            # another rank may have failed in the meantime, but this rank raises its own error
            with suppress(PeerError):
                line.vote("first", describe_error(error))
        raise
    line.is_first_busy = False
    if session.rank == 0:
        line.vote("first")


def split_range(
    session: Session, count: int, pad: bool, seed: int | None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Does the work of `World.split_range`: returns this rank's part of the indices. With a seed, the indices are
    permuted first; every rank draws the same permutation from the seed. The ranks vote only on the arguments.
    """
    _require_non_negative_int("count", count)
    if type(pad) is not bool:
        raise ArgumentError(f"pad must be True or False, not {shown(pad)}")
    if seed is not None:
        _require_non_negative_int("seed", seed)
    session.require_ready("split_range")
    with session.exclusive("split_range"):
        session.agree_on_call(lambda: f"split_range of {count}, pad={pad}, seed={seed}")
    rank = session.rank
    length, remainder = divmod(count, session.size)
    if pad:
        # every part has the length of the longest
        length += remainder > 0
        start, stop = rank * length, (rank + 1) * length
    else:
        # the first `remainder` ranks have one index more than the others
        start = rank * length + min(rank, remainder)
        stop = start + length + (rank < remainder)
    indices = np.arange(start, stop, dtype=np.int64)
    if pad and count:
        # the padding repeats the first indices
        indices %= count
    return (
        indices
        if seed is None
        else np.random.Generator(np.random.Philox(seed)).permutation(count)[indices]
    )


def _require_non_negative_int(name: str, value: object) -> None:
    """Raises `ArgumentError` if `value`, the argument called `name`, is not a non-negative int."""
    # compares the type exactly, because bool is a subclass of int
    if type(value) is not int or value < 0:
        raise ArgumentError(f"{name} must be a non-negative int, not {shown(value)}")


def all_gather_object(session: Session, value: Any) -> list[Any]:
    """Does the work of `World.all_gather_object`: returns the values of all ranks. Each rank
    sends its value as the payload of a vote, because the hub returns the payloads of all ranks
    to every rank."""
    _require_json(value, "value")
    text = json.dumps(value)
    # every rank receives the values of all ranks
    if len(text) * session.size > _MAX_BYTES:
        raise ArgumentError(
            f"value needs {len(text)} bytes as JSON, but the values of all {session.size} ranks together may need at "
            f"most {_MAX_BYTES} bytes; put numbers in a tensor and call all_gather"
        )
    session.require_ready("all_gather_object")
    if session.size == 1:
        # goes through JSON, so that the result is a new object, as it is with several ranks
        return [json.loads(text)]
    with session.exclusive("all_gather_object"):
        return [json.loads(payload) for payload in session.line.vote("all_gather_object", text)]


def _require_json(value: object, name: str) -> None:
    """Raises `ArgumentError` if JSON would change the value; for example, JSON turns a tuple
    into a list. `name` states where the value is, for example "value[0]"."""
    # compares the types exactly, because JSON turns a value of a subclass into a plain one
    if value is None or type(value) in (bool, int, float, str):
        return
    if type(value) is list:
        for i, item in enumerate(value):
            _require_json(item, f"{name}[{i}]")
        return
    if type(value) is not dict:
        raise ArgumentError(
            f"{name} is of type {type(value).__qualname__}, but value may contain only None, bool, int, float, str, "
            "list or dict; use broadcast or all_gather for tensors"
        )
    for key, item in value.items():
        if type(key) is not str:
            raise ArgumentError(
                f"{name} has the key {shown(key)}, but in JSON all keys must be strings"
            )
        _require_json(item, f"{name}[{shown(key)}]")
