"""What the registry answers about a type: apart, because a NamedTuple needs typing, which `import xdevice` spares."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from xdevice.contract import Backend, Kind


class Owned(NamedTuple):
    """The backend that a type belongs to, and what it is there."""

    backend: Backend
    kind: Kind
