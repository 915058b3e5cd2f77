"""Describes in words how a process has ended."""

from __future__ import annotations

import signal


def status_text(status: int) -> str:
    """Returns the words that follow "ended" in a message about a process. `status` is an exit status, or the negative
    number of a signal, as in `subprocess`.

    Example:
        >>> from xdevice.base.statuses import status_text
        >>> status_text(3), status_text(-9)
        ('with exit status 3', 'by SIGKILL')
    """
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    # real-time signals, such as 40 on Linux, have no names
    except ValueError:
        return f"by signal {-status}"
