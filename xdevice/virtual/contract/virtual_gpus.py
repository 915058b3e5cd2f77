"""Virtual GPUs: devices in host memory that look like GPUs to a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from xdevice.base.devices import Device
    from xdevice.virtual.contract.characters import Character


class VirtualGpus(Primitives):
    """The capability of creating virtual GPUs. An adapter that has it makes virtual GPUs refuse the operations that
    real GPUs refuse. For example, a tensor on one virtual GPU cannot be used together with a tensor on another."""

    needs: ClassVar[tuple[str, ...]] = ("why_no_virtual_gpus", "make_virtual_gpus")

    characters: tuple[Character, ...] = ()
    """The limits of each virtual GPU, in the order of their indices."""

    def why_no_virtual_gpus(self) -> str | None:
        """Returns the reason why the framework cannot have virtual GPUs, or can no longer have them, with advice.
        Returns None if the framework can have virtual GPUs."""
        return "its adapter does not have make_virtual_gpus()"

    def make_virtual_gpus(self, n: int) -> None:
        """Creates `n` additional devices of the framework in host memory, which become its gpu:0 to gpu:{n-1}. After
        this call, cpu:0 is the only CPU, and real GPUs are hidden. May be called again with the same number on a second
        instance of the adapter. The default raises `UnsupportedError`."""
        raise self.unsupported("virtual GPUs", "use it without XDEVICE_VIRTUAL_GPUS")

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        """Stores and applies the limits of each virtual GPU, such as the dtypes that it lacks. Called after
        `make_virtual_gpus`. `LimitedGpus` contains the code that all frameworks share. The default raises
        `UnsupportedError` if a virtual GPU has limits."""
        # a `Character` is true if it has limits; without limits, the characters only have to be stored
        if any(characters):
            raise self.unsupported(
                "limits of virtual GPUs", "set only their number: XDEVICE_VIRTUAL_GPUS=2"
            )
        self.characters = characters

    def take_for_cuda(
        self, device: Device, has_default: Callable[[FrameType], bool] | None = None
    ) -> bool:
        """Makes the name "cuda" mean `device`, one of the framework's virtual GPUs, until the process ends. Returns
        True. The default changes nothing and returns False, because programs do not use the name "cuda" for the devices
        of most frameworks.

        If `has_default` is not None, a default device that the program sets applies only to calls from frames for which
        `has_default` returns True, provided that the adapter can determine the calling frame."""
        return False
