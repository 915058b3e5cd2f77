"""Reads this process's rank, the number of ranks and the address of rank 0 from the environment variables of launchers.

If two launchers have set their variables, those of the inner launcher count, as in `xdevice.local_device`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import zlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.errors import LaunchError, SettingError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        return [_FIRST_PORT + zlib.crc32(f"{self.run}/{i}".encode()) % _PORTS for i in range(_TRIES)]


def place() -> Launch | None:
    """Reads this process's rank from the environment variables of its launcher; None if no launcher has set any.

    `XDEVICE_ADDRESS=host:port` overrides the address that any of these launchers gives. If all processes are on one
    machine, rank 0 listens on loopback whatever address the launcher gives. A port that the launcher names is in use by
    the launcher, so rank 0 listens on another one, unless `XDEVICE_ADDRESS` names a port. That other port is a hash of
    the launcher's variables; up to 16 of them are tried.

    Raises:
        LaunchError: the variables are incomplete, or contradict each other. SettingError: a variable that should hold
            a number holds something else.
    """
    for read in _READERS:
        said = read()
        if said is not None:
            return _check(said)
    stray = next((name for name in ("XDEVICE_SIZE", "WORLD_SIZE") if _text(name)), None)
    if stray is not None and _number(stray) > 1:
        rank = stray.removeprefix("WORLD_").replace("SIZE", "RANK")
        raise LaunchError(f"{stray} is {_text(stray)}, and {rank} is not set: a launcher sets both")
    return None


class _Said(NamedTuple):
    launcher: str
    rank: tuple[str, int]
    """The name of an environment variable and the number in it; `size`, `local_rank` and `local_size` are such pairs
    too."""
    size: tuple[str, int]
    local_rank: tuple[str, int] | None
    local_size: tuple[str, int] | None
    host: str | None
    run: str


def _torchrun() -> _Said | None:
    return _numbers(
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", _text("MASTER_ADDR"),
        "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    )  # fmt: skip


def _paddle() -> _Said | None:
    master = (_text("PADDLE_MASTER") or _text("PADDLE_TRAINER_ENDPOINTS") or "").split(",")[0]
    return _numbers(
        "paddle.distributed.launch", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_LOCAL_RANK",
        "PADDLE_LOCAL_SIZE", _host_of(master), "PADDLE_MASTER", "PADDLE_TRAINER_ENDPOINTS",
    )  # fmt: skip


def _mpich() -> _Said | None:
    if not _text("MPI_LOCALRANKID") and _text("SLURM_STEP_NUM_TASKS"):
        return None  # srun --mpi=pmi2 sets PMI_RANK too, but not the local rank
    return _numbers("mpiexec (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", None)


def _jax() -> _Said | None:
    address = _text("JAX_COORDINATOR_ADDRESS")
    return _numbers(
        "JAX's variables", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_LOCAL_PROCESS_ID", "JAX_LOCAL_NUM_PROCESSES",
        _host_of(address), "JAX_COORDINATOR_ADDRESS",
    )  # fmt: skip


def _tensorflow() -> _Said | None:
    text = _text("TF_CONFIG")
    if text is None:
        return None
    try:
        told = json.loads(text)
        workers = [str(worker) for worker in told["cluster"]["worker"]]
        task = told["task"]
        kind, index = str(task["type"]), int(task["index"])
    except (ValueError, TypeError, KeyError) as error:
        raise LaunchError(
            f"TF_CONFIG is not what TensorFlow's is, a cluster with workers and a task: {type(error).__name__}: {error}"
        ) from None
    if kind != "worker" or set(told["cluster"]) != {"worker"}:
        raise LaunchError(f"TF_CONFIG has a {shown(kind)} among {sorted(told['cluster'])}; xdevice knows workers only")
    hosts = [_host_of(worker) for worker in workers]
    ours = [i for i, host in enumerate(hosts) if index < len(hosts) and host == hosts[index]]
    return _Said(
        "TF_CONFIG",
        ("TF_CONFIG", index),
        ("TF_CONFIG", len(workers)),
        ("TF_CONFIG", ours.index(index)) if index in ours else None,
        ("TF_CONFIG", len(ours)) if index in ours else None,
        hosts[0],
        ",".join(workers),
    )


def _srun() -> _Said | None:
    if _text("SLURM_STEP_NUM_TASKS") is None:
        return None  # this process is a Slurm job's script, or a shell in one: srun has not started it
    nodes = _text("SLURM_STEP_NODELIST") or _text("SLURM_NODELIST") or ""
    said = _numbers(
        "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", _first_node(nodes),
        "SLURM_JOB_ID", "SLURM_STEP_ID",
    )  # fmt: skip
    if said is None:
        return None
    tasks = list(_tasks_per_node(_text("SLURM_STEP_TASKS_PER_NODE") or ""))
    node = _text("SLURM_NODEID")
    if node is not None and node.isdigit() and int(node) < len(tasks):
        return said._replace(local_size=("SLURM_STEP_TASKS_PER_NODE", tasks[int(node)]))
    if _text("SLURM_STEP_NUM_NODES") == "1":
        return said._replace(local_size=said.size)
    return said


def _numbers(
    launcher: str, rank: str, size: str, local_rank: str, local_size: str, host: str | None = None, *run: str
) -> _Said | None:
    if _text(rank) is None:
        return None
    if _text(size) is None:
        raise LaunchError(f"{rank} is {_text(rank)}, and {size} is not set: {launcher} sets both")
    return _Said(
        launcher,
        (rank, _number(rank)),
        (size, _number(size)),
        (local_rank, _number(local_rank)) if _text(local_rank) else None,
        (local_size, _number(local_size)) if _text(local_size) else None,
        host,
        "/".join([launcher, *(f"{os.environ.get(name)}" for name in run)]),
    )


_READERS: Final[tuple[Callable[[], _Said | None], ...]] = (
    partial(_numbers, "xdevice launch", "XDEVICE_RANK", "XDEVICE_SIZE", "XDEVICE_LOCAL_RANK", "XDEVICE_LOCAL_SIZE"),
    _torchrun,
    _paddle,
    partial(
        _numbers, "mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", None, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
    ),
    _mpich, _jax, _tensorflow, _srun,
)  # fmt: skip
"""What reads the variables of each launcher, the first of which counts."""


def _check(said: _Said) -> Launch:
    (rank_name, rank), (size_name, size) = said.rank, said.size
    if size < 1 or rank >= size:
        raise LaunchError(f"{rank_name} is {rank} and {size_name} is {size}: ranks are 0 to {size_name} - 1")
    local_rank, local_size = said.local_rank, said.local_size
    if local_size is not None and not 1 <= local_size[1] <= size:
        raise LaunchError(f"{local_size[0]} is {local_size[1]}, and there are {size} processes by {size_name}")
    if local_rank is not None and local_size is not None and local_rank[1] >= local_size[1]:
        raise LaunchError(f"{local_rank[0]} is {local_rank[1]} and {local_size[0]} is {local_size[1]}: too few")
    address, port = _address()
    host = address or said.host
    known = local_size[1] if local_size is not None else (size if host is not None and is_loopback(host) else None)
    if known is None:
        known = 1 if size == 1 else 0
    if size > 1 and known == size and (address is None or is_loopback(address)):
        host = LOOPBACK
    if host is None:
        if size > 1:
            raise LaunchError(
                f"{said.launcher} says that there are {size} processes and not where rank 0 is reached; "
                "set XDEVICE_ADDRESS=host:port, the same for all, with a free port of rank 0's machine"
            )
        host = LOOPBACK
    return Launch(
        said.launcher,
        rank,
        size,
        local_rank[1] if local_rank is not None else (rank if known == size else 0),
        known or 1,
        host,
        port,
        f"{said.run}/{_starter(rank_name, size_name)}" if said.host is None and address is None else said.run,
    )


def _starter(*names: str) -> int:
    """The id of the process that started the ranks of this machine: the nearest ancestor whose environment does not
    have this process's rank; a shell script that runs the program has it. If the system does not show environments, the
    parent's id."""
    own = [_told_to("self", name) for name in (*names, "PMI_FD")]
    pid = os.getppid()
    while pid > 1 and any(own) and [_told_to(pid, name) for name in (*names, "PMI_FD")] == own:
        pid = _parent_of(pid)
    return pid


def _told_to(pid: int | str, name: str) -> bytes | None:
    """The entry "name=value" in the environment that a process was started with; None if the variable was not set."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return next((one for one in file.read().split(b"\0") if one.startswith(f"{name}=".encode())), None)
    return None


def _parent_of(pid: int) -> int:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
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
    if not host or (colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise LaunchError(f"XDEVICE_ADDRESS is {shown(text)}, and should be host:port, as 10.0.0.1:29400")
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
    return (os.environ.get(name) or "").strip() or None


def _number(name: str) -> int:
    text = _text(name) or ""
    if not (text.isascii() and text.isdigit()):
        raise SettingError(f"{name} is {shown(text)}, and should be a number of 0 or more")
    return int(text)


def _host_of(address: str | None) -> str | None:
    if not address:
        return None
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]") or address


def _first_node(nodes: str) -> str | None:
    """The first name in Slurm's list of nodes: a01 for `a[01-03,07],b2`."""
    first = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?([^,]*)", nodes)
    return first[1] + (first[2] or "") + (first[3] if first[2] else "") if first else None


def _tasks_per_node(text: str) -> Iterator[int]:
    """Yields the number of tasks on each node, from Slurm's notation: 2, 2, 2, 1 for `2(x3),1`."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(count)] * int(times or 1)
