"""The command `xdevice launch`: runs a program as several processes on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from xdevice.core import registry, selection
from xdevice.errors import XDeviceError

# an address that no other machine can reach
_LOOPBACK = "127.0.0.1"


# options after SCRIPT belong to the script, so they are neither parsed nor refused here
@click.command(
    short_help="Run a script as several processes on this machine.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENT]..."
)
# not `required=True`: Click's message would not say that options come before the script
@click.option(
    "-n",
    "size",
    type=click.IntRange(min=1),
    help="The number of processes on this machine.  [required]",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.option(
    "--backend",
    metavar="NAME",
    help="The backend of all processes; by default, the selected one.",
)
@click.option(
    "--engine",
    metavar="NAME",
    help="The engine that moves tensors between the processes; by default, auto.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="How many seconds to wait for a rank that is late; by default, 30.",
)
@click.option(
    "--host",
    default=_LOOPBACK,
    show_default=True,
    help="The address on which rank 0 listens.",
)
# the maximum is one less than the highest port, because the next port is used, too
@click.option(
    "--port",
    type=click.IntRange(1, 65534),
    help="The port on which rank 0 listens; by default, a free one. With several machines, you must name it.",
)
@click.option(
    "--nnodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of machines.",
)
@click.option(
    "--node-rank",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The number of this machine, counted from 0.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many times all processes are restarted after a failure.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write the output of each rank to a file in this folder.",
)
def launch(
    program: tuple[str, ...],
    size: int | None,
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
) -> None:
    """Runs a script as several processes on this machine. In the script, xdevice.distributed.processes() connects them.

    Each line of output begins with the rank of its process, as in [2]. If a process fails, all processes are ended. The
    exit status is that of the first process to fail, and its traceback is shown last. Ctrl-C ends all processes, with
    the status 130.

    To use several machines, run the same command on each of them, with a different --node-rank and the same secret in
    XDEVICE_TOKEN, for example with --nnodes 2 --node-rank 0 --host 10.0.0.1 --port 29400. --host is the address of the
    machine whose --node-rank is 0.
    """
    # imported here, so that `xdevice --help` does not wait for this import
    from xdevice.distributed import spawning

    if size is None:
        raise click.UsageError(
            "-n is missing; write options before the script: xdevice launch -n 2 SCRIPT"
        )
    if not is_module and not Path(program[0]).is_file():
        # users of mpirun may write `python train.py`
        hint = (
            "; leave python out: xdevice launch -n 2 SCRIPT"
            if Path(program[0]).stem.startswith("python")
            else ""
        )
        raise click.UsageError(f"there is no file {program[0]}{hint}")
    # everything is checked before the first process starts
    variables = _variables(backend, engine, timeout)
    _check_nodes(nnodes, node_rank, port)
    nodes = spawning.Nodes(nnodes, node_rank, host, port)
    # multiplying the list by a bool inserts `-m` only for a module
    command = [sys.executable, *["-m"] * is_module, *program]
    sys.exit(spawning.launch(command, size, nodes, variables, max_restarts, log_dir))


def _check_nodes(nnodes: int, node_rank: int, port: int | None) -> None:
    """Raises `UsageError` if the options for several machines contradict each other, or if an option is missing."""
    if node_rank >= nnodes:
        raise click.UsageError(
            f"--node-rank is {node_rank}, but must be less than --nnodes, which is {nnodes}"
        )
    # a free port cannot be chosen here, because the other machines would not know it
    if nnodes > 1 and port is None:
        raise click.UsageError(
            "--nnodes needs --port, with the same value on all machines; the next port must also be free"
        )
    # a secret cannot be created here, because the other machines would not know it
    if nnodes > 1 and not os.environ.get("XDEVICE_TOKEN"):
        raise click.UsageError(
            "--nnodes needs a secret in XDEVICE_TOKEN, with the same value on all machines; create one with python -c "
            "'import secrets; print(secrets.token_hex())'"
        )


def _variables(
    backend: str | None, engine: str | None, timeout: float | None
) -> dict[str, str]:
    """Returns the environment variables that pass `--backend`, `--engine` and `--timeout` to all processes. An option
    that is None sets no variable. Raises `UsageError` for an unknown backend or engine."""
    try:
        name = registry.canonical(backend) if backend else None
        _require_engine(engine)
    except XDeviceError as error:
        raise click.UsageError(str(error)) from error
    variables = {
        selection.VARIABLE: name,
        "XDEVICE_ENGINE": engine,
        "XDEVICE_TIMEOUT": None if timeout is None else f"{timeout:g}",
    }
    # if an option is None, the variable keeps its value in the user's environment
    return {name: text for name, text in variables.items() if text is not None}


def _require_engine(engine: str | None) -> None:
    """Raises `UsageError` if the value of `--engine` does not begin with a known framework. The engine after the colon,
    as in `torch:gloo`, is checked later, in the processes, because this check needs the framework."""
    if engine is None or engine == "auto":
        return
    framework = engine.partition(":")[0]
    try:
        registry.canonical(framework)
    except XDeviceError:
        raise click.UsageError(
            f"there is no engine {engine!r}; choose auto, a framework, or a framework and its engine, such as "
            f"torch:gloo, torch:nccl, jax:gloo, tensorflow:ring or paddle:gloo; `xdevice info` lists the engines"
        ) from None
