"""`barrier` and `first`: collectives that use only the control connection, and wait for no device."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from xdevice.errors import PeerError

from .control import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .session import Session


def barrier(session: Session) -> None:
    if session.size > 1:
        session.ready("barrier")
        with session.alone("barrier"):
            session.line.vote("barrier")


@contextmanager
def first(session: Session) -> Iterator[bool]:
    if session.size == 1:
        yield True
        return
    session.ready("first")
    line = session.line
    if session.rank != 0:
        with session.alone("first"):
            error = line.vote("first")
        if error and error[0]:
            raise PeerError(f"rank 0 raised {error[0]} in first()", 0, "raised")
    line.is_first_busy = session.rank == 0
    try:
        with session.inside("first(), where the ranks are not side by side"):
            yield session.rank == 0
    except BaseException as error:
        line.is_first_busy = False
        if session.rank == 0 and isinstance(error, Exception):
            with suppress(PeerError):  # another rank may have ended by this error already: here it is raised itself
                line.vote("first", describe(error))
        raise
    line.is_first_busy = False
    if session.rank == 0:
        line.vote("first")
