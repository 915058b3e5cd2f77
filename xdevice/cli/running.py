"""What several commands do: find the backend that is asked for, and run a child process that Ctrl-C ends."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from xdevice.core import selection
from xdevice.errors import BackendNotFoundError, XDeviceError

if TYPE_CHECKING:
    from xdevice.contract import Backend


def backend_called(name: str | None) -> Backend:
    """The backend called `name`, or the selected backend if that is None. A wrong name is a usage error, with exit
    status 2."""
    try:
        return selection.backend(name)
    except BackendNotFoundError as error:
        raise click.UsageError(str(error)) from error
    except XDeviceError as error:
        raise click.ClickException(str(error)) from error


def run_child(command: list[str], alone: bool, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a child process, and kills it if this process is interrupted. With `alone`, the child leads a process group,
    which is killed as a whole and does not get Ctrl-C from the terminal, so that only this process reports the
    interrupt."""
    with subprocess.Popen(command, text=True, start_new_session=alone, **options) as child:
        try:
            out, _ = child.communicate()
        except BaseException:
            if alone and os.name == "posix":
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, out)
