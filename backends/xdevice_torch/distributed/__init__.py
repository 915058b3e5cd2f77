"""PyTorch's engines for several processes, and its own group of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.distributed.contract.processes import Processes

from .steps import TorchSteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdevice.distributed.contract.processes import Engine, Group, NativeGroup


class TorchProcesses(Processes):
    _gpu: str
    _gpus: int

    def engines(self) -> Sequence[str]:
        from . import processes  # torch.distributed takes 50 ms to import, and few ask for it

        return processes.names(self._gpu == "cuda" and self._gpus > 0 and not self.virtual)

    def start_engine(self, name: str, group: Group) -> Engine:
        from . import processes

        return processes.TorchEngine(name, group, self.to_native(group.device))

    def start_native_group(self, group: Group) -> NativeGroup:
        from . import native_group

        if not self.engines():
            raise self.unsupported(
                "a process group here", f"install a build that has: {self.why_no_engine()}"
            )
        return native_group.start_native_group(group, self.to_native(group.device))


MIXINS: Final = (TorchProcesses, TorchSteps)
