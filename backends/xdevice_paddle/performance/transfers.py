"""Detects Paddle's transfers (reads of tensors by the host, and copies between devices) by replacing methods of
`paddle.Tensor`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from xdevice.performance.contract.hooks import Hooks
from xdevice.performance.contract.transfers import Transfers
from xdevice_paddle import staging
from xdevice_paddle.private import NEWER_READS, READS, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.performance.contract.transfers import Transfer


# the method that `to`, `cpu`, `cuda` and `pin_memory` call
_tensor, _move = private.place("paddle.Tensor._copy_to")


class PaddleTransfers(Transfers):
    """Reports reads by the host, and copies between devices."""

    @contextmanager
    def watch(self, report: Callable[[Transfer], None]) -> Iterator[None]:
        """While the block is open, `report` is called for each transfer."""
        private.require_names_for("transfers")
        with Hooks(self, report, staging.size) as hooks:
            # records transfers by xdevice's own functions under the names that the program calls
            hooks.verbs()
            # these methods include `__array__`, with which NumPy reads a tensor
            hooks.reads(_tensor, *READS, *NEWER_READS)
            hooks.moves(
                _tensor,
                _move,
                lambda x, place, *args, **kwargs: self.from_native(place),
                how="to",
            )
            yield
