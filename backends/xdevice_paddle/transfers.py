"""Sees Paddle's transfers (tensors read by the host, and copies between devices) by replacing methods of
`paddle.Tensor`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.base.devices import CPU, of
from xdevice.contract.hooks import Hooks
from xdevice.contract.transfers import Transfers

from . import staging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Transfer
    from xdevice.contract.primitives import Primitives


READS = (
    "numpy", "item", "tolist", "__array__", "__float__", "__int__", "__long__", "__bool__", "__nonzero__",
    "__index__", "__complex__", "__repr__", "__str__", "__format__",
)  # fmt: skip


def _named(backend: Primitives, name: str) -> Device | None:
    """Returns the device that Paddle calls `name`. "gpu" means the current GPU, or the first GPU if a CPU is current.
    None if `name` is the name of a dtype, or of a device that does not exist."""
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return CPU
    if kind in backend.hardware():
        return of("gpu", int(index or 0))
    if kind != "gpu" or not backend.count("gpu"):
        return None  # for a device that does not exist Paddle raises
    current = paddle.get_device()
    return backend.from_native(paddle.CUDAPlace(int(index or current.partition(":")[2] or 0)))


class PaddleTransfers(Transfers):
    @contextmanager
    def watch(self, report: Callable[[Transfer], None]) -> Iterator[None]:
        def target(x: paddle.Tensor, *args: Any, **kwargs: Any) -> Device | None:
            wanted = args[0] if args else kwargs.get("place", kwargs.get("device", kwargs.get("other")))
            if isinstance(wanted, paddle.Tensor):
                return self.device_of(wanted)
            if isinstance(wanted, str):
                return _named(self, wanted)
            return self.from_native(wanted)

        def gpu(x: paddle.Tensor, device_id: int | None = None, *args: Any, **kwargs: Any) -> Device | None:
            return _named(self, "gpu" if device_id is None else f"gpu:{device_id}")

        with Hooks(self, report, staging.size) as hooks:
            hooks.verbs()
            hooks.reads(paddle.Tensor, *READS)
            hooks.moves(paddle.Tensor, "cpu", lambda x, *args, **kwargs: CPU)
            hooks.moves(paddle.Tensor, "cuda", gpu)
            hooks.moves(paddle.Tensor, "to", target)
            hooks.moves(paddle.Tensor, "_copy_to", target, how="copy_to")
            yield
