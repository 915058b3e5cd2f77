"""What launchers say of processes, each as it says it, and what cannot be."""

from __future__ import annotations

import copy
import json
import os
import pickle

import pytest

import xdevice
from xdevice.distributed import launchers
from xdevice.distributed.launchers import find_launch

NAMES = (
    "XDEVICE_",
    "PADDLE_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MPI_",
    "JAX_",
    "SLURM_",
    "MASTER_",
    "TORCHELASTIC_",
    "MV2_",
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(NAMES) or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "TF_CONFIG",
        ):
            monkeypatch.delenv(name)


def say(monkeypatch, **said):
    for name, value in said.items():
        monkeypatch.setenv(name, str(value))


TORCHRUN = {
    "RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4, "MASTER_ADDR": "node0", "MASTER_PORT": 29500,
    "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 4, "OMPI_COMM_WORLD_LOCAL_RANK": 3,
    "OMPI_COMM_WORLD_LOCAL_SIZE": 4,
}  # fmt: skip
MPICH = {"PMI_RANK": 1, "PMI_SIZE": 2, "MPI_LOCALRANKID": 1, "MPI_LOCALNRANKS": 2}
SLURM = {
    "SLURM_PROCID": 6, "SLURM_NTASKS": 7, "SLURM_STEP_NUM_TASKS": 7, "SLURM_LOCALID": 0, "SLURM_NODEID": 3,
    "SLURM_STEP_NODELIST": "gpu[007-009,012]", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_JOB_ID": 12,
}  # fmt: skip
OURS = {"XDEVICE_RANK": 1, "XDEVICE_SIZE": 2, "XDEVICE_ADDRESS": "10.1.0.1:29400"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (TORCHRUN, ("torchrun", 5, 8, 1, 4, "node0")),
        (OPEN_MPI, ("mpirun (Open MPI)", 3, 4, 3, 4, "127.0.0.1")),
        (MPICH, ("mpiexec (MPICH)", 1, 2, 1, 2, "127.0.0.1")),
        (SLURM, ("srun", 6, 7, 0, 1, "gpu007")),
        (
            {**SLURM, "SLURM_PROCID": 5, "SLURM_LOCALID": 1, "SLURM_NODEID": 2},
            ("srun", 5, 7, 1, 2, "gpu007"),
        ),
        (OURS, ("xdevice launch", 1, 2, 0, 1, "10.1.0.1")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_launcher_is_read(monkeypatch, said, expected):
    assert find_launch() is None
    say(monkeypatch, **said)
    found = find_launch()
    assert found[:6] == expected
    assert found.port == (29400 if said is OURS else None)


def test_the_inner_launcher_counts(monkeypatch):
    say(monkeypatch, **SLURM)
    say(monkeypatch, **TORCHRUN)
    assert find_launch().launcher == "torchrun"
    say(monkeypatch, **OURS)
    assert find_launch().launcher == "xdevice launch"


def test_on_one_machine_it_is_loopback_whatever_name_it_has(monkeypatch):
    say(monkeypatch, **{**TORCHRUN, "LOCAL_WORLD_SIZE": 8, "LOCAL_RANK": 5})
    assert find_launch().host == "127.0.0.1"


def test_the_script_of_a_job_was_not_started_by_srun(monkeypatch):
    say(monkeypatch, SLURM_PROCID=0, SLURM_NTASKS=4, SLURM_LOCALID=0, SLURM_JOB_ID=7)
    assert find_launch() is None


def test_ports_are_the_same_for_all_of_a_run_and_others_for_another(monkeypatch):
    say(monkeypatch, **TORCHRUN)
    first = find_launch().ports()
    say(monkeypatch, RANK=0, LOCAL_RANK=0)
    assert find_launch().ports() == first
    assert len(set(first)) > 8
    assert all(20000 <= port < 32768 for port in first)
    say(monkeypatch, MASTER_PORT=29501)
    assert not set(find_launch().ports()) & set(first)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"RANK": 1}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": 2}, "RANK is not set"),
        ({"XDEVICE_SIZE": 2}, "XDEVICE_RANK is not set"),
        ({**TORCHRUN, "RANK": 8}, "RANK is 8 and WORLD_SIZE is 8"),
        ({**TORCHRUN, "WORLD_SIZE": 0, "RANK": 0}, "WORLD_SIZE is 0"),
        (
            {**TORCHRUN, "LOCAL_RANK": 4},
            "LOCAL_RANK is 4, but must be less than LOCAL_WORLD_SIZE",
        ),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": 9}, "LOCAL_WORLD_SIZE is 9"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": 1},
            "set XDEVICE_ADDRESS",
        ),
        ({**OURS, "XDEVICE_ADDRESS": "host:0"}, "host:port"),
        ({**OURS, "XDEVICE_ADDRESS": ":29400"}, "host:port"),
        ({"TF_CONFIG": "{"}, "must be JSON with a cluster"),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch, said, words):
    say(monkeypatch, **said)
    with pytest.raises(xdevice.errors.LaunchError) as raised:
        find_launch()
    assert words in str(raised.value)


def cluster(*workers):
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}})


NOT_SERVED = [
    (
        {"PADDLE_TRAINER_ID": 1, "PADDLE_TRAINERS_NUM": 2},
        "PADDLE_TRAINER_ID=1, PADDLE_TRAINERS_NUM=2",
    ),
    ({"MV2_COMM_WORLD_RANK": 0, "MV2_COMM_WORLD_SIZE": 2}, "MV2_COMM_WORLD_RANK=0"),
    ({"JAX_PROCESS_ID": 1, "JAX_NUM_PROCESSES": 2}, "JAX_NUM_PROCESSES=2"),
    ({"TF_CONFIG": cluster("a:1", "b:1")}, "TF_CONFIG"),
]


@pytest.mark.parametrize(("said", "words"), NOT_SERVED)
def test_a_launcher_that_is_not_served_is_named_and_is_no_world_of_one(
    monkeypatch, said, words
):
    say(monkeypatch, **SLURM, **said)  # the job in which it runs does not count in its place
    with pytest.raises(
        xdevice.errors.LaunchError,
        match="start the program with xdevice launch, torchrun, mpirun",
    ) as raised:
        find_launch()
    assert words in str(raised.value)
    say(monkeypatch, **OURS)
    assert find_launch().launcher == "xdevice launch"


@pytest.mark.parametrize(
    "said",
    [
        {"PADDLE_TRAINER_ID": 0, "PADDLE_TRAINERS_NUM": 1},
        {"MV2_COMM_WORLD_RANK": 0, "MV2_COMM_WORLD_SIZE": 1},
        {"JAX_PROCESS_ID": 0, "JAX_NUM_PROCESSES": 1},
        {"TF_CONFIG": cluster("a:1")},
    ],
)
def test_one_process_of_a_launcher_that_is_not_served_is_a_world_of_one(monkeypatch, said):
    say(monkeypatch, **said)
    assert find_launch() is None


@pytest.mark.parametrize("value", ["-1", "one", "1.0", "²"])
def test_a_number_that_is_none(monkeypatch, value):
    say(monkeypatch, **{**TORCHRUN, "RANK": value})
    with pytest.raises(xdevice.errors.SettingError, match="RANK must be"):
        find_launch()


def test_a_launcher_of_one_is_a_world_of_one(monkeypatch):
    say(monkeypatch, RANK=0, WORLD_SIZE=1)
    with xdevice.distributed.processes() as world:
        assert (world.size, world.launcher) == (1, "torchrun")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("a[3-5]", "a3"), ("a[03,07-9]x,b", "a03x"), ("n-1,n-2", "n-1")],
)
def test_the_first_of_slurms_nodes(nodes, first):
    assert launchers._first_node(nodes) == first


def test_options_come_from_the_environment_where_they_are_left_out(monkeypatch):
    say(
        monkeypatch,
        XDEVICE_ENGINE="paddle",
        XDEVICE_TIMEOUT="7.5",
        XDEVICE_JOIN_TIMEOUT=9,
        XDEVICE_CHECK=0,
    )
    assert tuple(xdevice.distributed.processes().options) == ("paddle", 7.5, 9.0, False)
    assert tuple(xdevice.distributed.processes(engine="torch", check=True).options) == (
        "torch",
        7.5,
        9.0,
        True,
    )
    say(monkeypatch, XDEVICE_CHECK="yes")
    with pytest.raises(xdevice.errors.SettingError, match="XDEVICE_CHECK"):
        xdevice.distributed.processes()


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"timeout": "3"}, {"join_timeout": -1}, {"check": 1}, {"engine": 3}],
)
def test_arguments_that_are_none(wrong):
    with pytest.raises(xdevice.errors.ArgumentError):
        xdevice.distributed.processes(**wrong)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_world_is_not_copied(copied):
    with (
        xdevice.distributed.processes() as world,
        pytest.raises(xdevice.errors.UnsupportedError, match="belongs to one process"),
    ):
        copied(world)


@pytest.mark.parametrize(
    "call",
    [
        lambda world: world.split_range(-1),
        lambda world: world.split_range(True),
        lambda world: world.split_range(3, pad=1),
        lambda world: world.split_range(3, seed=0.5),
        lambda world: world.all_gather_object((1, 2)),
        lambda world: world.all_gather_object({"a": [{1: 2}]}),
        lambda world: world.all_gather_object("x" * 2**24),
    ],
)
def test_what_is_no_range_and_no_json_is_refused(call):
    with xdevice.distributed.processes() as world, pytest.raises(xdevice.errors.ArgumentError):
        call(world)


def test_there_is_no_world_outside_of_a_block():
    with pytest.raises(
        xdevice.errors.LaunchError, match="not inside a `with` block of processes"
    ):
        xdevice.distributed.world()
