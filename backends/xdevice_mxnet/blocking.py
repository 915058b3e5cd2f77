"""Blocking mode for MXNet: waits after each call of MXNet's C library that starts work.

MXNet's Python code calls the functions of a single library object, which return a status. In blocking mode, the
functions that start work are replaced by functions that also wait, and return the status of the wait. An error is then
raised at the line that caused it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xdevice.contract.blocking import Blocking
from xdevice.contract.patching import Patches

from .library import library
from .private import CALLS, private

if TYPE_CHECKING:
    from collections.abc import Iterator


def _waiting(call: Any) -> Any:
    """Returns a function that calls `call`, a function of the library, and then waits for all work. The returned
    function returns the status of `call`, or, if that is 0 (success), the status of the wait."""
    wait_for_all = library.MXNDArrayWaitAll

    def call_and_wait(*args: Any) -> int:
        """Calls the function, waits if the call succeeded, and returns the status."""
        # 0 means success, so `or` waits only then
        return int(call(*args) or wait_for_all())

    return call_and_wait


class MxnetBlocking(Blocking):
    """Implements blocking mode for MXNet."""

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Opens a block in which each operation, in any thread, returns only after its result has been computed."""
        private.require_names_for("blocking")
        with Patches() as patches:
            # MXNet looks the functions up in its library at each call
            for name in CALLS:
                patches.replace(library, name, _waiting)
            yield
