"""The answer of the registry about a type; a file of its own, because a NamedTuple imports typing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from xdevice.contract import Backend, Kind


class Owned(NamedTuple):
    """The backend that a type belongs to, and what it is there."""

    backend: Backend
    kind: Kind
