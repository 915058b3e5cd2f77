"""Watching transfers: reads by the host, and copies between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from xdevice.base.devices import Device


class Transfer(NamedTuple):
    """One read by the host, or one copy between devices, that a program has made. The core adds file and line."""

    backend: str
    kind: Literal["read", "move"]
    how: str
    """The call that made it: "item", "numpy", "print", "to_device", ..."""
    source: Device
    destination: Device
    nbytes: int
    physical: bool
    """False for a read on the CPU, where nothing is moved; on a GPU the same read would be a copy."""
    explicit: bool = False
    """Whether the program asked for it by a name that says so: `to_device`, `to_numpy`, `item`, `x.to(...)`, `x.cpu()`.
    False for transfers that happen in passing: `float(x)`, `if x`, `np.asarray(x)`, `print(x)`, an operation that
    copies."""
    file: str = ""
    line: int = 0


class Transfers(Primitives):
    """The capability of watching transfers. Each transfer is reported once, whether the program makes it through
    xdevice or through the framework itself. Afterwards the framework's functions are as before."""

    needs: ClassVar[tuple[str, ...]] = ("watch",)

    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        """Returns a context manager. Inside the block, `report` is called for every read by the host and every copy
        between devices, implicit ones included. For that, an adapter puts functions of its own in place of the
        framework's, and removes them afterwards; `xdevice.performance.contract.hooks` has tools for it."""
        raise self.unsupported(
            "watching transfers", "build its watch() on xdevice.performance.contract.hooks"
        )
