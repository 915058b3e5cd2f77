"""The command `xdevice launch`: runs a program as several processes, which it starts itself or through another
launcher."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xdevice.core import registry, selection
from xdevice.errors import XDeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ONE_MACHINE = "127.0.0.1"


# options behind SCRIPT are the script's own
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENT]...")
@click.option("-n", "size", type=click.IntRange(min=1), required=True, help="How many processes on this machine.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.option("--backend", metavar="NAME", help="The backend of all; else the selected one.")
@click.option("--engine", metavar="NAME", help="What moves the tensors between the processes; else auto.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds a rank may be late; else 30.")
@click.option("--host", default=_ONE_MACHINE, show_default=True, help="Where rank 0 listens.")
@click.option("--port", type=click.IntRange(1, 65534), help="Its port, which --nnodes needs; else a free one.")
@click.option("--nnodes", type=click.IntRange(min=1), default=1, show_default=True, help="How many machines.")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, help="Which one this is.")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often all are started again after a failure.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write what each rank prints into a file of this folder.",
)
@click.option("--via", type=click.Choice(("torchrun", "mpirun", "paddle")), help="Print and run its command.")
def launch(
    program: tuple[str, ...],
    size: int,
    is_module: bool,
    backend: str | None,
    engine: str | None,
    timeout: float | None,
    host: str,
    port: int | None,
    nnodes: int,
    node_rank: int,
    max_restarts: int,
    log_dir: Path | None,
    via: str | None,
) -> None:
    """Runs a script as several processes on this machine; in the script, xdevice.processes() connects them.

    Each line of output is prefixed by the process's rank, as in [2]. If a process fails, all are ended; the first one
    to fail gives the exit status, and its traceback is shown last. Ctrl-C ends all processes, with the status 130.

    On several machines, run the same command on each, with its own --node-rank, and with the same secret in
    XDEVICE_TOKEN: --nnodes 2 --node-rank 0 --host 10.0.0.1 --port 29400, where --host is the machine of node 0.
    """
    from xdevice.distributed import spawning

    if not is_module and not Path(program[0]).is_file():
        raise click.UsageError(f"there is no file {program[0]}")
    variables = _variables(backend, engine, timeout)
    if via is not None:
        if nnodes > 1 or max_restarts or log_dir is not None:
            raise click.UsageError(f"--via {via} starts processes on one machine; give {via} itself the other options")
        sys.exit(_run_via(via, program, is_module, size, host, variables))
    _check_nodes(nnodes, node_rank, port)
    nodes = spawning.Nodes(nnodes, node_rank, host, port)
    command = [sys.executable, *["-m"] * is_module, *program]
    sys.exit(spawning.launch(command, size, nodes, variables, max_restarts, log_dir))


def _check_nodes(nnodes: int, node_rank: int, port: int | None) -> None:
    if node_rank >= nnodes:
        raise click.UsageError(f"--node-rank is {node_rank}, and the ranks of {nnodes} nodes are 0 to {nnodes - 1}")
    if nnodes > 1 and port is None:
        raise click.UsageError("--nnodes needs --port, the same on all machines; the port after it is used as well")
    # beyond this machine, anybody could connect to rank 0
    if nnodes > 1 and not os.environ.get("XDEVICE_TOKEN"):
        raise click.UsageError(
            "--nnodes needs a secret in XDEVICE_TOKEN, the same on all machines, for instance of "
            "python -c 'import secrets; print(secrets.token_hex())'"
        )


def _run_via(
    via: str, program: Sequence[str], is_module: bool, size: int, host: str, variables: Mapping[str, str]
) -> int:
    """Runs the program by the command of the launcher `via`, which it prints first. Returns the exit status."""
    from xdevice.distributed import spawning
    from xdevice.distributed.contract.collectives import address

    command = _command(via, program, is_module, size)
    # the port stays reserved until the program has ended
    with spawning.reserve(host) as port:
        variables = {**variables, "XDEVICE_ADDRESS": address(host, port)}
        settings = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
        click.echo(" ".join([*settings, shlex.join(command)]))
        return spawning.follow(command, size, variables)


def _variables(backend: str | None, engine: str | None, timeout: float | None) -> dict[str, str]:
    """The environment variables for all processes that the options `--backend`, `--engine` and `--timeout` set."""
    try:
        name = registry.canonical(backend) if backend else None
    except XDeviceError as error:
        raise click.UsageError(str(error)) from error
    variables = {
        selection.VARIABLE: name,
        "XDEVICE_ENGINE": engine,
        "XDEVICE_TIMEOUT": None if timeout is None else f"{timeout:g}",
    }
    return {name: text for name, text in variables.items() if text is not None}


def _command(via: str, program: Sequence[str], is_module: bool, size: int) -> list[str]:
    """The command of the launcher `via` that starts `size` processes on this machine."""
    module = ["-m"] * is_module
    if via == "torchrun":
        _require("torch", via)
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={size}",
            *module,
            *program,
        ]
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
    # pip's mpich is beside the interpreter, whose folder need not be on PATH
    folder = os.path.dirname(sys.executable)
    for name in ("mpirun", "mpiexec"):
        path = shutil.which(name, path=folder) or shutil.which(name)
        if path:
            return path
    raise click.UsageError("--via mpirun needs an MPI, and there is no mpirun on PATH; pip install mpich brings one")
