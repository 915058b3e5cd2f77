"""Makes a backend report its virtual GPUs according to their characters (their limits). This code is shared by all
frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdevice.base.dtypes import NARROWER
from xdevice.contract.primitives import Memory, Primitives

from .ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.base.devices import Device
    from xdevice.virtual.contract.characters import Character


class LimitedGpus(Primitives):
    """Virtual GPUs that may lack dtypes, and whose memory may be limited. An adapter makes its framework refuse
    whatever exceeds these limits (`limit`), with the framework's own errors (`lack_error` and `memory_error`)."""

    # this class comes before the adapter's class, whose methods its own methods call with `super()`
    precedes: ClassVar[bool] = True
    characters: tuple[Character, ...] = ()
    ledger: Ledger | None = None
    """The ledger that counts the memory, if the framework itself does not count it; otherwise None."""

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        """Stores the character of each virtual GPU (the limits of its dtypes and its memory), and applies these
        limits."""
        self.characters = characters
        # called last, because the adapter's `limit` reads the characters
        self.limit()

    def limit(self) -> None:
        """Makes the framework refuse dtypes that the virtual GPUs lack, and count the memory of the virtual GPUs, until
        the process ends. Called for virtual GPUs without limits too. The default does nothing."""

    def lack_error(self, text: str) -> Exception:
        """Returns the error that the framework raises for a dtype that a device lacks."""
        return TypeError(text)

    def memory_error(self, text: str) -> Exception:
        """Returns the error that the framework raises if a GPU does not have enough memory."""
        return MemoryError(text)

    def is_limited(self) -> bool:
        """Whether the memory of at least one virtual GPU is limited."""
        return any(character.memory is not None for character in self.characters)

    def count_memory(self) -> Ledger:
        """Creates the ledger that counts the memory of the virtual GPUs, and returns it."""
        self.ledger = Ledger(
            [character.memory for character in self.characters], self.memory_error
        )
        return self.ledger

    def refuse_lacking(self, index: int, dtypes: Iterable[str]) -> None:
        """Raises the framework's error if the virtual GPU with this index lacks one of the dtypes. `dtypes` are their
        names."""
        for dtype in dtypes:
            if dtype in self.characters[index].lacks:
                raise self.lack_error(
                    f"the virtual gpu:{index} does not support {dtype}, because XDEVICE_VIRTUAL_GPUS excludes this "
                    f"dtype; use {NARROWER.get(dtype, 'float32')}, or keep the tensor on the CPU"
                )

    # hooks of the device layer

    def lacks(self, device: Device) -> frozenset[str]:
        # without virtual GPUs there are no characters, and the adapter's own method describes its real GPUs
        if not self.characters or device.kind != "gpu":
            return super().lacks(device)
        return self.characters[device.index].lacks

    def is_float32_default(self, device: Device) -> bool:
        is_described = self.characters and device.kind == "gpu"
        return bool(is_described) and self.characters[device.index].is_float32_default

    def memory(self, device: Device) -> Memory:
        if not self.characters or device.kind != "gpu":
            return super().memory(device)
        if self.ledger is not None:
            return self.ledger.memory(device.index)
        # without a ledger, the framework counts the bytes itself, but does not report the limit
        total, usage = self.characters[device.index].memory, super().memory(device)
        if total is None:
            return usage
        # the framework's peak may exceed the limit, because the framework counts a tensor before xdevice
        # refuses the tensor. A peak of None, which means that the framework does not report it, stays None
        peak = usage.peak and min(usage.peak, total)
        return usage._replace(total=total, free=total - (usage.allocated or 0), peak=peak)

    def reset_peak(self, device: Device) -> None:
        if self.ledger is None or device.kind != "gpu":
            super().reset_peak(device)
        else:
            self.ledger.reset_peak(device.index)
