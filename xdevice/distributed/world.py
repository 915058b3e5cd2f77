"""`processes` and `World`: the verbs between processes, and the block in which they work."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from xdevice.base.devices import Device

__all__ = ["World", "processes", "world"]


def processes(
    *,
    engine: str = "auto",
    timeout: float = 30.0,
    join_timeout: float = 300.0,
    check: bool = True,
) -> World:
    """The processes that a launcher has started, as a block in which they work together: `with` it.

    Young: it may change in a minor version."""
    raise NotImplementedError


def world() -> World:
    """The world whose block this process is in.

    Young: it may change in a minor version."""
    raise NotImplementedError


class World:
    """The processes that work together, seen from one of them.

    Young: it may change in a minor version."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: Device
    engine: str
    """What moves the tensors: "torch:gloo", "paddle:gloo"; "none" in a world of one."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def __enter__(self) -> World:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def all_reduce(self, x: Any, op: str = "sum", weight: float | None = None) -> Any:
        raise NotImplementedError

    def broadcast(self, x: Any, root: int = 0) -> Any:
        raise NotImplementedError

    def all_gather(self, x: Any, even: bool = True) -> Any:
        raise NotImplementedError

    def reduce_scatter(self, x: Any, op: str = "sum") -> Any:
        raise NotImplementedError

    def send(self, x: Any, to: int) -> None:
        raise NotImplementedError

    def recv(self, like: Any, source: int) -> Any:
        raise NotImplementedError

    def barrier(self) -> None:
        raise NotImplementedError

    def split_batch(self, x: Any, even: bool = True) -> Any:
        raise NotImplementedError

    def average_gradients(self, model_or_gradients: Any, weight: float | None = None) -> Any:
        raise NotImplementedError

    @contextmanager
    def first(self) -> Iterator[bool]:
        """Rank 0 runs the block while the others wait before theirs; gives whether this is rank 0. What it raises
        there is raised on all, as a `PeerError` on the others."""
        raise NotImplementedError
        yield self.is_first
