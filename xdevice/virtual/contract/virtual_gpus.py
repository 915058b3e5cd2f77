"""Virtual GPUs: devices in host memory that appear as GPUs to a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from xdevice.base.devices import Device
    from xdevice.virtual.contract.characters import Character


class VirtualGpus(Primitives):
    """The capability of virtual GPUs. They refuse what real GPUs refuse: a tensor on one of them cannot be used
    together with a tensor on another."""

    needs: ClassVar[tuple[str, ...]] = ("why_no_virtual_gpus", "make_virtual_gpus")

    characters: tuple[Character, ...] = ()
    """The limits of each virtual GPU, in the order of their indices."""

    def why_no_virtual_gpus(self) -> str | None:
        """Returns why the framework cannot have virtual GPUs, or can no longer have them, and what to do about it; None
        if it can have them."""
        return "its adapter does not have make_virtual_gpus()"

    def make_virtual_gpus(self, n: int) -> None:
        """Makes `n` additional devices of the framework in host memory, which become its gpu:0
        to gpu:{n-1}. The only CPU is then cpu:0, and real GPUs are hidden. A second instance of
        the adapter may call this again with the same number. The default raises
        `UnsupportedError`."""
        raise self.unsupported("virtual GPUs", "use it without XDEVICE_VIRTUAL_GPUS")

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        """Receives the limits of each virtual GPU, such as the dtypes that it lacks; called after `make_virtual_gpus`.
        `LimitedGpus` has the part that is the same for every framework. The default raises `UnsupportedError` if a
        virtual GPU has limits."""
        # a `Character` is true if it has limits; without limits there is nothing to do
        if any(characters):
            raise self.unsupported(
                "limits of virtual GPUs", "set only their number: XDEVICE_VIRTUAL_GPUS=2"
            )
        self.characters = characters

    def take_for_cuda(
        self, device: Device, has_default: Callable[[FrameType], bool] | None = None
    ) -> bool:
        """Makes the name "cuda" mean `device`, one of the framework's virtual GPUs, until the process ends. Returns
        False, and changes nothing, if the framework's devices are not called "cuda" in programs, as by default.

        With `has_default`, a default device that the program sets applies only to calls from
        frames for which `has_default` returns True, if the adapter can find the calling
        frame."""
        return False
