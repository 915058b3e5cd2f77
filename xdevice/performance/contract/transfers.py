"""Recording transfers: reads by the host, and copies between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from xdevice.base.devices import Device


class Transfer(NamedTuple):
    """One read by the host, or one copy between devices, that a program causes. An adapter omits `file` and `line`,
    because xdevice adds both."""

    backend: str
    kind: Literal["read", "move"]
    how: str
    """The name of the call that causes the transfer, such as "item", "print" or "to_device"."""
    source: Device
    destination: Device
    nbytes: int
    physical: bool
    """False for a read on the CPU, which moves nothing; on a GPU, the same read would be a copy."""
    explicit: bool = False
    """Whether the program called a function whose name says that it transfers: `to_device`, `to_numpy`, `item`,
    `x.to(...)`, `x.cpu()`. False for a side effect: `float(x)`, `if x`, `np.asarray(x)`, `print(x)`, or an operation
    that copies its operands."""
    file: str = ""
    line: int = 0


class Transfers(Primitives):
    """The capability to record transfers. Each transfer is reported once, whether the program calls xdevice or the
    framework. After the block, the framework's functions are the same as before."""

    needs: ClassVar[tuple[str, ...]] = ("watch",)

    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        """Returns a context manager. Inside its block, `report` is called for every read by the host and every copy
        between devices, including implicit ones. For this, the adapter replaces functions of the framework, and
        restores the original functions afterwards. `xdevice.performance.contract.hooks` contains tools for replacing
        functions."""
        raise self.unsupported(
            "watching transfers", "build its watch() on xdevice.performance.contract.hooks"
        )
