"""What the environment says of this process and the others: `Place`, read from what launchers set."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """What a launcher has told this process."""

    launcher: str
    """Which launcher it is, as `xdevice info` names it: "torchrun", "srun", "xdevice launch"."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    """Where rank 0 is reached by the others; "127.0.0.1" where all are on one machine."""
    port: int | None
    """Where rank 0 listens, if that was said; else `run` gives the ports to try."""
    run: str
    """What tells this run from others on the same machines."""


def place() -> Place | None:
    """Where this process stands among those that a launcher has started; None where no launcher says anything.

    Raises:
        LaunchError: what is said is incomplete, or contradicts itself. SettingError: a number that is not one.
    """
    raise NotImplementedError
