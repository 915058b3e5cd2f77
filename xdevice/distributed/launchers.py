"""Reads this process's rank, the number of ranks and the address of rank 0 from the environment variables of launchers.

If two launchers have set variables, the variables of the inner launcher are used, as in
`xdevice.distributed.local_device`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import zlib
from contextlib import suppress
from typing import Final, NamedTuple

from xdevice.errors import LaunchError, SettingError, shown

LOOPBACK: Final = "127.0.0.1"
_FIRST_PORT: Final = 20000
_PORTS: Final = 12768
"""The number of ports from which rank 0 can choose. The last of these ports is 32767, because
Linux assigns ports from 32768 on to programs that request any free port."""
_PORTS_TRIED: Final = 16
"""The number of these ports that rank 0 tries."""


class Launch(NamedTuple):
    """The rank of this process and the address of rank 0, which `find_launch` reads from the environment variables of a
    launcher."""

    launcher: str
    """The launcher's name, as `xdevice info` shows it, such as "torchrun", "srun" or "xdevice launch"."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    """The host at which the other ranks reach rank 0; "127.0.0.1" if all ranks are on one machine."""
    port: int | None
    """The port on which rank 0 listens, if XDEVICE_ADDRESS names one. Otherwise None, and rank
    0 tries the ports that `ports()` returns."""
    run: str
    """A string that identifies this run: no other run on the same machines has the same string."""

    def ports(self) -> list[int]:
        """Returns the ports on which rank 0 tries to listen, in this order."""
        if self.port is not None:
            return [self.port]
        # uses crc32, because Python's own hash of a string differs between processes
        return [
            _FIRST_PORT + zlib.crc32(f"{self.run}/{i}".encode()) % _PORTS
            for i in range(_PORTS_TRIED)
        ]


def find_launch() -> Launch | None:
    """Returns the rank of this process and the address of rank 0, from the environment
    variables of the launcher. Returns None if no launcher has set any variables.

    `XDEVICE_ADDRESS=host:port` overrides the address from the launcher. If all processes are on one machine and
    `XDEVICE_ADDRESS` does not name another address, rank 0 listens on loopback, regardless of the launcher's address.
    Rank 0 does not listen on the port that the launcher names, because the launcher itself uses that port. Unless
    `XDEVICE_ADDRESS` names a port, rank 0 tries up to 16 ports, whose numbers are hashes of the launcher's variables.

    Raises:
        LaunchError: the variables are incomplete or contradict each other, or xdevice
            recognizes the launcher but does not support it.
        SettingError: the value of a variable that must be a number is not a number.
    """
    for launcher in _LAUNCHERS:
        # a launcher that sets TF_CONFIG may run inside a Slurm job, and takes precedence over it
        if launcher is _SRUN:
            _refuse_tf_cluster()
        if _has_started_this_process(launcher):
            return _launch_of(launcher)
    # a size without a rank means that a variable was lost between the launcher and this process, for example because
    # ssh or sudo did not pass it on
    stray = next((name for name in ("XDEVICE_SIZE", "WORLD_SIZE") if _variable(name)), None)
    if stray is not None and _int_variable(stray) > 1:
        # XDEVICE_RANK for XDEVICE_SIZE, and RANK for WORLD_SIZE
        rank = stray.removeprefix("WORLD_").replace("SIZE", "RANK")
        raise LaunchError(
            f"{stray} is {_variable(stray)}, but {rank} is not set: a launcher sets both; set {rank} too, or unset "
            f"{stray}"
        )
    return None


class _Launcher(NamedTuple):
    """A launcher, with the names of the environment variables that it sets for each process.
    The name is "" for a variable that the launcher does not set."""

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    host: str = ""
    run: tuple[str, ...] = ()
    """The variables that distinguish two runs of this launcher."""
    is_supported: bool = True
    """Whether `processes` supports this launcher. If it does not, `processes` raises `LaunchError` for several
    processes, because each of them would form a world of one."""


_SRUN: Final = _Launcher(
    "srun",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
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
        host="MASTER_ADDR",
        run=("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ),
    _Launcher(
        "paddle.distributed.launch",
        "PADDLE_TRAINER_ID",
        "PADDLE_TRAINERS_NUM",
        is_supported=False,
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
        "mpirun (MVAPICH2)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", is_supported=False
    ),
    _Launcher(
        "the program that set JAX's variables",
        "JAX_PROCESS_ID",
        "JAX_NUM_PROCESSES",
        is_supported=False,
    ),
    _SRUN,
)
"""The launchers that xdevice recognizes. The first launcher whose rank variable is set is used,
so each launcher comes before the launchers that may have started it."""


def _has_started_this_process(launcher: _Launcher) -> bool:
    """Whether this launcher has started this process, and `processes` supports the launcher. Raises `LaunchError` if
    the launcher has started several processes but `processes` does not support it, or if it has set a rank without a
    size. Raises `SettingError` if the rank or the size is not a number."""
    if _variable(launcher.rank) is None:
        return False
    is_under_srun = _variable(_SRUN.size) is not None
    # this process is the script of a Slurm job, or a shell in such a job, and was not started by srun
    if launcher is _SRUN and not is_under_srun:
        return False
    # `srun --mpi=pmi2` also sets PMI_RANK, but not MPICH's variable for the local rank
    if launcher is _MPICH and is_under_srun and _variable(launcher.local_rank) is None:
        return False
    if _variable(launcher.size) is None:
        raise LaunchError(
            f"{launcher.rank} is {_variable(launcher.rank)}, but {launcher.size} is not set: {launcher.name} sets both"
        )
    rank, size = _int_variable(launcher.rank), _int_variable(launcher.size)
    if not launcher.is_supported and size > 1:
        raise _unsupported_launcher(
            launcher.name, f"{launcher.rank}={rank}, {launcher.size}={size}"
        )
    return launcher.is_supported


def _unsupported_launcher(launcher: str, variables: str) -> LaunchError:
    """Returns the error for a launcher that `processes` does not support. `launcher` is its name, and `variables` is a
    string that shows how many processes there are."""
    return LaunchError(
        f"{launcher} says that this process is one of several ({variables}), but xdevice does not work with this "
        "launcher: start the program with xdevice launch, torchrun, mpirun or srun, or set XDEVICE_RANK, XDEVICE_SIZE, "
        "XDEVICE_LOCAL_RANK, XDEVICE_LOCAL_SIZE and XDEVICE_ADDRESS for each process"
    )


def _refuse_tf_cluster() -> None:
    """Raises `LaunchError` if TensorFlow's environment variable TF_CONFIG names several tasks,
    or is not JSON with a cluster. A cluster with a single task, which Vertex AI sets, is a
    world of one and raises no error."""
    text = _variable("TF_CONFIG")
    if text is None:
        return
    try:
        count = sum(len(tasks) for tasks in json.loads(text)["cluster"].values())
    except (ValueError, TypeError, KeyError, AttributeError):
        raise LaunchError(
            f"TF_CONFIG must be JSON with a cluster, or unset, not {shown(text)}"
        ) from None
    if count > 1:
        raise _unsupported_launcher("TF_CONFIG", f"{count} tasks")


def _launch_of(launcher: _Launcher) -> Launch:
    """Returns the rank of this process and the address of rank 0, from the variables of this
    launcher. Raises `LaunchError` if the variables contradict each other, or if the address is
    missing or wrong. Raises `SettingError` if the value of a variable that must be a number is
    not a number."""
    rank, size = _int_variable(launcher.rank), _int_variable(launcher.size)
    local_rank = _int_variable(launcher.local_rank) if _variable(launcher.local_rank) else None
    # srun sets a list of all nodes, and a list with the number of processes on each node
    if launcher is _SRUN:
        launcher_host = _first_node(
            _variable("SLURM_STEP_NODELIST") or _variable("SLURM_NODELIST") or ""
        )
        local_size = _tasks_here(size)
    else:
        launcher_host = _variable(launcher.host)
        local_size = (
            _int_variable(launcher.local_size) if _variable(launcher.local_size) else None
        )
    _check_numbers(launcher, rank, size, local_rank, local_size)
    address, port = _address()
    run = "/".join([launcher.name, *(f"{os.environ.get(name)}" for name in launcher.run)])
    host = address or launcher_host
    # without an address, all ranks are on one machine (or the error below is raised), and two runs
    # of this launcher on one machine differ only in the process that started the ranks
    if host is None:
        run = f"{run}/{_starter_pid(launcher.rank, launcher.size)}"
    # how many of the processes are on this machine; 0 if this is not known
    count_here = _count_here(size, local_size, host)
    # no other machine takes part, so rank 0 need not listen on an address that other machines can reach
    if count_here == size and (address is None or is_loopback(address)):
        host = LOOPBACK
    if host is None:
        raise LaunchError(
            f"{launcher.name} says that there are {size} processes, but not where rank 0 is; set "
            "XDEVICE_ADDRESS=host:port to the same value in all processes, with a free port on rank 0's machine"
        )
    if local_rank is None:
        # if there are several machines and no local ranks, each machine is assumed to run one process
        local_rank = rank if count_here == size else 0
    # if the number is not known, this machine still has at least this process
    return Launch(
        launcher.name,
        rank,
        size,
        local_rank,
        local_size=count_here or 1,
        host=host,
        port=port,
        run=run,
    )


def _check_numbers(
    launcher: _Launcher, rank: int, size: int, local_rank: int | None, local_size: int | None
) -> None:
    """Raises `LaunchError` if the numbers contradict each other. The error names the variables
    of `launcher`. `local_rank` or `local_size` is None if the launcher does not set it."""
    if size < 1 or rank >= size:
        raise LaunchError(
            f"{launcher.rank} is {rank} and {launcher.size} is {size}, but a rank must be less "
            f"than {launcher.size}, which must be at least 1"
        )
    # the launcher does not say how many processes this machine has
    if local_size is None:
        return
    if not 1 <= local_size <= size:
        raise LaunchError(
            f"{launcher.local_size} is {local_size}, but it must be from 1 to {size}, the value of {launcher.size}"
        )
    if local_rank is not None and local_rank >= local_size:
        raise LaunchError(
            f"{launcher.local_rank} is {local_rank}, but must be less than {launcher.local_size}, which is {local_size}"
        )


def _count_here(size: int, local_size: int | None, host: str | None) -> int:
    """Returns how many of the `size` processes are on this machine, or 0 if this number is not known. `local_size` is
    the number that the launcher has set, and `host` is the host of rank 0; an unknown argument is None.
    """
    if local_size is not None:
        return local_size
    is_one_machine = size == 1 or (host is not None and is_loopback(host))
    return size if is_one_machine else 0


def _starter_pid(*names: str) -> int:
    """Returns the id of the process that started the ranks of this machine. This is the nearest ancestor in which the
    environment variables `names` differ from those of this process. The ancestor is not always the parent: if a shell
    script runs the program, the parent is the shell, which has the same variables. If the system does not show the
    environments of processes, returns the parent's id.
    """
    # PMI_FD, the number of a connection that MPICH opens for each process, is compared too
    own_entries = [_environment_entry("self", name) for name in (*names, "PMI_FD")]
    pid = os.getppid()
    while (
        # process 1 is an ancestor of every process, so it does not distinguish runs
        pid > 1
        and any(own_entries)
        and [_environment_entry(pid, name) for name in (*names, "PMI_FD")] == own_entries
    ):
        pid = _parent_of(pid)
    return pid


def _environment_entry(pid: int | str, name: str) -> bytes | None:
    """Returns the entry "name=value" of the environment with which a process was started.
    Returns None if the variable was not set, or if the system does not show the environment.
    `pid` may be "self"."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return next(
            (
                entry
                for entry in file.read().split(b"\0")
                if entry.startswith(f"{name}=".encode())
            ),
            None,
        )
    return None


def _parent_of(pid: int) -> int:
    """Returns the id of a process's parent, or 0 if the system does not report it."""
    with (
        suppress(OSError, ValueError),
        open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file,
    ):
        # the program's name, in parentheses, may contain spaces and parentheses
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def _address() -> tuple[str | None, int | None]:
    """Returns the host and the port in XDEVICE_ADDRESS. Both are None if the variable is not
    set, and the port is None if the value contains only a host. Raises `LaunchError` if the
    host is empty, or if the port is not a number from 1 to 65535."""
    text = _variable("XDEVICE_ADDRESS")
    if text is None:
        return None, None
    host, colon, port = text.rpartition(":")
    # the value contains only a host, which `rpartition` has returned as the last part
    if not colon:
        host, port = text, ""
    # IPv6 addresses are written in brackets, because they contain colons
    host = host.strip("[]")
    if not host or (
        colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)
    ):
        raise LaunchError(
            f"XDEVICE_ADDRESS must be host:port, such as 10.0.0.1:29400, not {shown(text)}"
        )
    return host, int(port) if colon else None


def is_loopback(host: str) -> bool:
    """Whether a host name or address refers to this machine's loopback interface, which no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _variable(name: str) -> str | None:
    """Returns the value of an environment variable without surrounding spaces, or None if the
    value is empty or not set."""
    return (os.environ.get(name) or "").strip() or None


def _int_variable(name: str) -> int:
    """Returns the value of an environment variable as an int. Raises `SettingError` if the
    value is not a non-negative int."""
    text = _variable(name) or ""
    # `isdigit` alone accepts digits that `int` refuses, such as superscripts
    if not (text.isascii() and text.isdigit()):
        raise SettingError(f"{name} must be a non-negative integer, not {shown(text)}")
    return int(text)


def _first_node(nodes: str) -> str | None:
    """Returns the first name in Slurm's list of nodes, such as "a01" for "a[01-03,07],b2".
    Returns None if the list is empty."""
    # the groups are the text before a bracket, the first number in the bracket, and the text after the bracket
    match = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?([^,]*)", nodes)
    if match is None:
        return None
    prefix, number, suffix = match.groups()
    # a name without a bracket has no number
    return f"{prefix}{number}{suffix}" if number else prefix


def _tasks_here(size: int) -> int | None:
    """Returns how many of srun's processes are on this machine, or None if srun's variables do not contain this number.
    `size` is the total number of processes.
    """
    # Slurm's "2(x3),1" means two processes on each of the nodes 0 to 2, and one process on node 3
    text, node = _variable(_SRUN.local_size) or "", _variable("SLURM_NODEID") or ""
    pairs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    # the number of processes on each node
    tasks = [int(count) for count, times in pairs for _ in range(int(times or 1))]
    if node.isdigit() and int(node) < len(tasks):
        return tasks[int(node)]
    return size if _variable("SLURM_STEP_NUM_NODES") == "1" else None
