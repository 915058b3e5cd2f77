"""`xdevice launch`: runs a program as several processes, which it starts itself or through another launcher."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from xdevice.contract.collectives import address
from xdevice.core import selection
from xdevice.distributed import spawning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run(program: Sequence[str], is_module: bool, size: int, host: str, via: str | None, told: Mapping[str, str]) -> int:
    """Runs the program as `size` processes, through the launcher `via` if it is given. Returns the exit status of the
    run."""
    secret = {"XDEVICE_TOKEN": spawning.new_token()}
    if via is None:
        return spawning.launch([sys.executable, *["-m"] * is_module, *program], size, host, {**told, **secret})
    command = _command(via, program, is_module, size)
    with spawning.reserve(host) as port:
        told = {**told, "XDEVICE_ADDRESS": address(host, port)}
        click.echo(" ".join([*(f"{name}={shlex.quote(text)}" for name, text in told.items()), shlex.join(command)]))
        return spawning.follow(command, size, {**told, **secret})


def variables(backend: str | None, engine: str | None, timeout: float | None) -> dict[str, str]:
    """The environment variables for all processes that the options `--backend`, `--engine` and `--timeout` set."""
    told = {
        selection.VARIABLE: backend,
        "XDEVICE_ENGINE": engine,
        "XDEVICE_TIMEOUT": None if timeout is None else f"{timeout:g}",
    }
    return {name: text for name, text in told.items() if text is not None}


def _command(via: str, program: Sequence[str], is_module: bool, size: int) -> list[str]:
    """The command of the launcher `via` that starts `size` processes on this machine."""
    module = ["-m"] * is_module
    if via == "torchrun":
        _require("torch", via)
        return [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", *module, *program
        ]  # fmt: skip
    if via == "paddle":
        _require("paddle", via)
        if is_module:
            raise click.UsageError("paddle.distributed.launch runs scripts only; name the file instead of -m")
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            raise click.UsageError("paddle.distributed.launch fails where CUDA_VISIBLE_DEVICES is empty; unset it")
        return [sys.executable, "-m", "paddle.distributed.launch", f"--nproc_per_node={size}", *program]
    mpirun = _mpirun()
    # without mpi4py's own runner the others hang when one rank raises
    runner = ["-m", "mpi4py"] if find_spec("mpi4py") else []
    return [mpirun, "-n", str(size), sys.executable, *runner, *module, *program]


def _require(module: str, via: str) -> None:
    if find_spec(module) is None:
        raise click.UsageError(f"--via {via} needs {module}, which is not installed in {sys.prefix}")


def _mpirun() -> str:
    beside = os.path.dirname(sys.executable)
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=beside) or shutil.which(name)
        if found:
            return found
    raise click.UsageError("--via mpirun needs an MPI, and there is no mpirun on PATH; pip install mpich brings one")
