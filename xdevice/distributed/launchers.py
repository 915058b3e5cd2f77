"""Reads this process's rank, the number of ranks and the address of rank 0 from the environment variables of launchers.

If two launchers have set their variables, those of the inner launcher count, as in `xdevice.distributed.local_device`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.errors import LaunchError, SettingError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK: Final = "127.0.0.1"
_FIRST_PORT: Final = 20000
_PORTS: Final = 12768
"""How many ports rank 0 can choose from. The last is 32767: operating systems assign the ports from 32768 on."""
_TRIES: Final = 16


class Launch(NamedTuple):
    """The rank of this process and the address of rank 0, as a launcher's environment variables give them. Made by
    `place`."""

    launcher: str
    """The launcher's name, as `xdevice info` shows it: "torchrun", "srun", "xdevice launch"."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    """The host at which the other ranks reach rank 0; "127.0.0.1" if all are on one machine."""
    port: int | None
    """The port that rank 0 listens on, if an environment variable gives it; otherwise rank 0 tries those of
    `ports()`."""
    run: str
    """A text that identifies this run: no other run on the same machines has the same."""

    def ports(self) -> list[int]:
        """The ports that rank 0 tries to listen on, in this order."""
        if self.port is not None:
            return [self.port]
        # crc32 is the same in every process, and Python's hash of a text is not
        return [
            _FIRST_PORT + zlib.crc32(f"{self.run}/{i}".encode()) % _PORTS for i in range(_TRIES)
        ]


def place() -> Launch | None:
    """Reads this process's rank from the environment variables of its launcher; None if no launcher has set any.

    `XDEVICE_ADDRESS=host:port` overrides the address that any of these launchers gives. If all processes are on one
    machine, rank 0 listens on loopback whatever address the launcher gives. A port that the launcher names is in use by
    the launcher, so rank 0 listens on another one, unless `XDEVICE_ADDRESS` names a port. That other port is a hash of
    the launcher's variables; up to 16 of them are tried.

    Raises:
        LaunchError: the variables are incomplete, or contradict each other, or are those of a launcher that is
            recognised and not served. SettingError: a variable that should hold
            a number holds something else.
    """
    for launcher in _LAUNCHERS:
        # whoever sets TF_CONFIG may run inside a Slurm job, and counts before it
        if launcher is _SRUN:
            _refuse_cluster()
        process = _read(launcher)
        if process is not None:
            return _launch(process)
    stray = next((name for name in ("XDEVICE_SIZE", "WORLD_SIZE") if _text(name)), None)
    if stray is not None and _number(stray).value > 1:
        rank = stray.removeprefix("WORLD_").replace("SIZE", "RANK")
        raise LaunchError(
            f"{stray} is {_text(stray)}, and {rank} is not set: a launcher sets both"
        )
    return None


class _Number(NamedTuple):
    """A number that a launcher has set, and the environment variable that it is in, which errors name."""

    variable: str
    value: int


class _Launcher(NamedTuple):
    """The environment variables that a launcher sets for each process."""

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    host: str = ""
    run: tuple[str, ...] = ()
    """The variables that tell two runs of this launcher apart."""
    is_served: bool = True
    """Whether `processes` works under this launcher; if not, it raises, because a world of one would be wrong."""

    def is_there(self) -> bool:
        return _text(self.rank) is not None


_SRUN: Final = _Launcher(
    "srun",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    run=("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
_MPICH: Final = _Launcher(
    "mpiexec (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"
)
_LAUNCHERS: Final = (
    _Launcher(
        "xdevice launch",
        "XDEVICE_RANK",
        "XDEVICE_SIZE",
        "XDEVICE_LOCAL_RANK",
        "XDEVICE_LOCAL_SIZE",
    ),
    _Launcher(
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ),
    _Launcher(
        "paddle.distributed.launch", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", is_served=False
    ),
    _Launcher(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        run=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _MPICH,
    _Launcher(
        "mpirun (MVAPICH2)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", is_served=False
    ),
    _Launcher(
        "the program that set JAX's variables",
        "JAX_PROCESS_ID",
        "JAX_NUM_PROCESSES",
        is_served=False,
    ),
    _SRUN,
)
"""The launchers that are recognised. The first whose rank is set counts: one that was started by another stands
before it."""


class _Process(NamedTuple):
    """The rank and address of this process, as the environment gives them."""

    launcher: str
    rank: _Number
    size: _Number
    local_rank: _Number | None
    local_size: _Number | None
    host: str | None
    run: str


def _read(launcher: _Launcher) -> _Process | None:
    """The values that the launcher has set; None if it has not started this process, or not as one of several that are
    served."""
    if not launcher.is_there():
        return None
    is_under_srun = _text(_SRUN.size) is not None
    if launcher is _SRUN and not is_under_srun:
        return None  # this process is a Slurm job's script, or a shell in one: srun has not started it
    if launcher is _MPICH and is_under_srun and _text(launcher.local_rank) is None:
        return None  # srun --mpi=pmi2 sets PMI_RANK too, but not the local rank
    if _text(launcher.size) is None:
        raise LaunchError(
            f"{launcher.rank} is {_text(launcher.rank)}, and {launcher.size} is not set: {launcher.name} sets both"
        )
    rank, size = _number(launcher.rank), _number(launcher.size)
    if not launcher.is_served:
        if size.value > 1:
            raise _not_served(
                launcher.name, f"{rank.variable}={rank.value}, {size.variable}={size.value}"
            )
        return None
    process = _Process(
        launcher.name,
        rank,
        size,
        _number(launcher.local_rank) if _text(launcher.local_rank) else None,
        _number(launcher.local_size) if _text(launcher.local_size) else None,
        _text(launcher.host),
        "/".join([launcher.name, *(f"{os.environ.get(name)}" for name in launcher.run)]),
    )
    return _with_nodes(process) if launcher is _SRUN else process


def _with_nodes(process: _Process) -> _Process:
    """Adds rank 0's host and the number of processes on this machine, for which srun has only lists of all nodes."""
    nodes = _text("SLURM_STEP_NODELIST") or _text("SLURM_NODELIST") or ""
    process = process._replace(host=_first_node(nodes))
    tasks = list(_tasks_per_node(_text("SLURM_STEP_TASKS_PER_NODE") or ""))
    node = _text("SLURM_NODEID")
    if node is not None and node.isdigit() and int(node) < len(tasks):
        return process._replace(
            local_size=_Number("SLURM_STEP_TASKS_PER_NODE", tasks[int(node)])
        )
    if _text("SLURM_STEP_NUM_NODES") == "1":
        return process._replace(local_size=process.size)
    return process


def _not_served(launcher: str, variables: str) -> LaunchError:
    return LaunchError(
        f"{launcher} says that this process is one of several ({variables}), and xdevice does not work under it: start "
        "the program by xdevice launch, torchrun, mpirun or srun, or set XDEVICE_RANK, XDEVICE_SIZE, "
        "XDEVICE_LOCAL_RANK, XDEVICE_LOCAL_SIZE and XDEVICE_ADDRESS for each process"
    )


def _refuse_cluster() -> None:
    """Raises if TensorFlow's TF_CONFIG names several tasks. One task, as Vertex AI sets it, is a world of one."""
    text = _text("TF_CONFIG")
    if text is None:
        return
    try:
        count = sum(len(tasks) for tasks in json.loads(text)["cluster"].values())
    except (ValueError, TypeError, KeyError, AttributeError):
        raise LaunchError(
            f"TF_CONFIG is {shown(text)}; it should be JSON with a cluster, or unset"
        ) from None
    if count > 1:
        raise _not_served("TF_CONFIG", f"{count} tasks")


def _launch(process: _Process) -> Launch:
    rank, size = process.rank, process.size
    local_rank, local_size = process.local_rank, process.local_size
    _check_numbers(rank, size, local_rank, local_size)
    address, port = _address()
    host = address or process.host
    on_this_machine = _count_here(size.value, local_size, host)
    if on_this_machine == size.value and (address is None or is_loopback(address)):
        host = LOOPBACK
    if host is None:
        raise LaunchError(
            f"{process.launcher} says that there are {size.value} processes, but not the address of rank 0; "
            "set XDEVICE_ADDRESS=host:port, the same for all, with a free port of rank 0's machine"
        )
    default = rank.value if on_this_machine == size.value else 0
    has_address = process.host is not None or address is not None
    return Launch(
        process.launcher,
        rank.value,
        size.value,
        local_rank.value if local_rank is not None else default,
        on_this_machine or 1,
        host,
        port,
        process.run
        if has_address
        else f"{process.run}/{_starter(rank.variable, size.variable)}",
    )


def _check_numbers(
    rank: _Number, size: _Number, local_rank: _Number | None, local_size: _Number | None
) -> None:
    if size.value < 1 or rank.value >= size.value:
        raise LaunchError(
            f"{rank.variable} is {rank.value} and {size.variable} is {size.value}: ranks are 0 to {size.variable} - 1"
        )
    if local_size is None:
        return
    if not 1 <= local_size.value <= size.value:
        raise LaunchError(
            f"{local_size.variable} is {local_size.value}, and there are {size.value} processes by {size.variable}"
        )
    if local_rank is not None and local_rank.value >= local_size.value:
        raise LaunchError(
            f"{local_rank.variable} is {local_rank.value} and {local_size.variable} is {local_size.value}: too few"
        )


def _count_here(size: int, local_size: _Number | None, host: str | None) -> int:
    """How many of the processes are on this machine; 0 if that is not known."""
    if local_size is not None:
        return local_size.value
    is_one_machine = size == 1 or (host is not None and is_loopback(host))
    return size if is_one_machine else 0


def _starter(*names: str) -> int:
    """The id of the process that started the ranks of this machine: the nearest ancestor whose environment does not
    have this process's rank; a shell script that runs the program has it. If the system does not show environments, the
    parent's id."""
    own = [_environment_entry("self", name) for name in (*names, "PMI_FD")]
    pid = os.getppid()
    while (
        pid > 1
        and any(own)
        and [_environment_entry(pid, name) for name in (*names, "PMI_FD")] == own
    ):
        pid = _parent_of(pid)
    return pid


def _environment_entry(pid: int | str, name: str) -> bytes | None:
    """The entry "name=value" in the environment that a process was started with; None if the variable was not set."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return next(
            (one for one in file.read().split(b"\0") if one.startswith(f"{name}=".encode())),
            None,
        )
    return None


def _parent_of(pid: int) -> int:
    with (
        suppress(OSError, ValueError),
        open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file,
    ):
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def _address() -> tuple[str | None, int | None]:
    text = _text("XDEVICE_ADDRESS")
    if text is None:
        return None, None
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, ""
    host = host.strip("[]")
    if not host or (
        colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)
    ):
        raise LaunchError(
            f"XDEVICE_ADDRESS is {shown(text)}; it should be host:port, such as 10.0.0.1:29400"
        )
    return host, int(port) if colon else None


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback interface, which no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _text(name: str) -> str | None:
    """The environment variable without spaces around it; None if it is empty or not set."""
    return (os.environ.get(name) or "").strip() or None


def _number(name: str) -> _Number:
    text = _text(name) or ""
    if not (text.isascii() and text.isdigit()):
        raise SettingError(f"{name} is {shown(text)}; it should be a number of 0 or more")
    return _Number(name, int(text))


def _first_node(nodes: str) -> str | None:
    """The first name in Slurm's list of nodes: a01 for `a[01-03,07],b2`."""
    first = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?([^,]*)", nodes)
    return first[1] + (first[2] or "") + (first[3] if first[2] else "") if first else None


def _tasks_per_node(text: str) -> Iterator[int]:
    """Yields the number of tasks on each node, from Slurm's notation: 2, 2, 2, 1 for `2(x3),1`."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(count)] * int(times or 1)
