"""PyTorch's engines for several processes, and PyTorch's own process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.distributed.contract.processes import Processes

from .steps import TorchSteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdevice.distributed.contract.processes import Engine, Group, NativeGroup


class TorchProcesses(Processes):
    """PyTorch's engines, gloo and NCCL, and its default process group."""

    _gpu: str
    """The `type` of the `torch.device` that xdevice calls `gpu:i`, such as "cuda"."""
    _gpus: int
    """The number of such devices."""

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that this process can start, with the best first."""
        # imported here, because importing torch.distributed takes 50 ms, and few programs need it
        from . import processes

        # NCCL cannot use virtual GPUs, whose memory is the host's
        return processes.engine_names(
            self._gpu == "cuda" and self._gpus > 0 and not self.virtual
        )

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts the engine `name` for this process of `group`."""
        from . import processes

        return processes.TorchEngine(name, group, self.to_native(group.device))

    def start_native_group(self, group: Group) -> NativeGroup:
        """Creates PyTorch's default process group from the processes of `group`. Returns its scope and the functions
        that end it. Raises `UnsupportedError` if this build of PyTorch has no engine. Raises `LaunchError` if the
        program has already created a default group with different ranks or on only some of the ranks."""
        from . import native_group

        # a build of PyTorch without torch.distributed has no process groups
        if not self.engines():
            raise self.unsupported(
                f"a process group, because {self.why_no_engine()}",
                "install a build of PyTorch with torch.distributed",
            )
        return native_group.start_native_group(group, self.to_native(group.device))


MIXINS: Final = (TorchProcesses, TorchSteps)
