"""How a character changes what a backend reports: written once, for the virtual GPUs of every framework."""

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
    """Virtual GPUs that may lack dtypes and have little memory. An adapter makes its framework refuse what they lack
    (`limit`), with the framework's own errors (`lack_error` and `memory_error`)."""

    precedes: ClassVar[bool] = True
    characters: tuple[Character, ...] = ()
    ledger: Ledger | None = None
    """The counter of the memory, if the framework does not count it."""

    def take_characters(self, characters: tuple[Character, ...]) -> None:
        self.characters = characters
        self.limit()

    def limit(self) -> None:
        """Makes the framework refuse what the virtual GPUs lack, and count their memory, until the process ends. Called
        for plain virtual GPUs too."""

    def lack_error(self, text: str) -> Exception:
        """Returns the error that the framework raises for a dtype that a device lacks."""
        return TypeError(text)

    def memory_error(self, text: str) -> Exception:
        """Returns the error that the framework raises for a lack of memory on a GPU."""
        return MemoryError(text)

    def is_limited(self) -> bool:
        """Whether a virtual GPU has a limit to its memory."""
        return any(one.memory is not None for one in self.characters)

    def count_memory(self) -> Ledger:
        """Returns the ledger, which this makes, of the memory of the virtual GPUs."""
        self.ledger = Ledger([one.memory for one in self.characters], self.memory_error)
        return self.ledger

    def refuse_lacking(self, index: int, dtypes: Iterable[str]) -> None:
        """Raises the framework's error if a virtual GPU lacks one of these dtypes."""
        for dtype in dtypes:
            if dtype in self.characters[index].lacks:
                raise self.lack_error(
                    f"the virtual gpu:{index} does not have {dtype}, by XDEVICE_VIRTUAL_GPUS; use "
                    f"{NARROWER.get(dtype, 'float32')}, or stay on the CPU"
                )

    # what every backend answers

    def lacks(self, device: Device) -> frozenset[str]:
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
        total, usage = self.characters[device.index].memory, super().memory(device)
        if total is None:
            return usage
        # the framework had counted memory that was then refused
        peak = usage.peak and min(usage.peak, total)
        return usage._replace(total=total, free=total - (usage.allocated or 0), peak=peak)

    def reset_peak(self, device: Device) -> None:
        if self.ledger is None or device.kind != "gpu":
            super().reset_peak(device)
        else:
            self.ledger.reset_peak(device.index)
