"""`local_device` under every launcher: what it reads, and what it makes of it."""

from __future__ import annotations

import pytest
from helpers.environment import BACKENDS, python

import xdevice

RANKS = (
    "XDEVICE_LOCAL_RANK",
    "LOCAL_RANK",
    "FLAGS_selected_gpus",
    "PADDLE_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in (*RANKS, *VISIBLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gpus(monkeypatch):
    """Says how many GPUs the selected backend has: the rule is the core's, whatever the framework."""
    xdevice.set_backend("numpy")
    backend = xdevice.backend()

    def have(n):
        monkeypatch.setattr(
            type(backend), "count", lambda self, kind: {"gpu": n, "cpu": 1}.get(kind, 0)
        )

    return have


@pytest.mark.parametrize("name", RANKS)
def test_every_launcher_s_rank_is_the_gpu(name, gpus, monkeypatch):
    gpus(4)
    for rank in range(4):
        monkeypatch.setenv(name, str(rank))
        assert xdevice.distributed.local_device() is xdevice.gpu(rank)


def test_without_a_launcher_it_is_the_first_gpu_or_the_cpu(gpus):
    gpus(2)
    assert xdevice.distributed.local_device() is xdevice.gpu(0)
    gpus(0)
    assert xdevice.distributed.local_device() is xdevice.cpu()


@pytest.mark.parametrize("name", RANKS)
def test_without_gpus_it_is_the_cpu_for_every_rank(name, gpus, monkeypatch):
    gpus(0)
    monkeypatch.setenv(name, "3")
    assert xdevice.distributed.local_device() is xdevice.cpu()


def test_the_inner_launcher_counts(gpus, monkeypatch):
    gpus(4)
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2")
    assert xdevice.distributed.local_device() is xdevice.gpu(2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert xdevice.distributed.local_device() is xdevice.gpu(3)
    monkeypatch.setenv("LOCAL_RANK", "")
    assert xdevice.distributed.local_device() is xdevice.gpu(2)


def test_paddle_s_choice_of_gpus_is_more_than_a_rank(gpus, monkeypatch):
    gpus(4)
    monkeypatch.setenv("PADDLE_LOCAL_RANK", "0")
    monkeypatch.setenv("FLAGS_selected_gpus", "2")
    assert xdevice.distributed.local_device() is xdevice.gpu(2)
    monkeypatch.setenv("FLAGS_selected_gpus", "1,3")
    assert xdevice.distributed.local_device() is xdevice.gpu(1)


@pytest.mark.parametrize("name", VISIBLE)
def test_one_gpu_shown_to_each_process_is_gpu_0_in_each(name, gpus, monkeypatch):
    gpus(1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv(name, "3")
    assert xdevice.distributed.local_device() is xdevice.gpu(0)


def test_more_processes_than_gpus_are_refused(gpus, monkeypatch):
    monkeypatch.setenv("SLURM_LOCALID", "1")
    for count, visible in ((1, None), (1, "0,1"), (1, "")):
        gpus(count)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(
            xdevice.errors.DeviceNotFoundError,
            match=r"SLURM_LOCALID=1 asks for gpu:1, but numpy has 1 GPU here",
        ):
            xdevice.distributed.local_device()
    gpus(2)
    monkeypatch.setenv("SLURM_LOCALID", "5")
    with pytest.raises(
        xdevice.errors.DeviceNotFoundError,
        match="2 GPUs here; start only one process for each GPU",
    ):
        xdevice.distributed.local_device()


@pytest.mark.parametrize("text", ["-1", "one", "1.5", "0x1", "²", ",", "1;2"])
def test_a_rank_that_is_no_number_is_named(text, gpus, monkeypatch):
    for count in (0, 2):
        gpus(count)
        monkeypatch.setenv("MPI_LOCALRANKID", text)
        with pytest.raises(
            xdevice.errors.SettingError, match=r"MPI_LOCALRANKID must be .*0, 1, 2"
        ):
            xdevice.distributed.local_device()


SCRIPT = (
    "import xdevice\n"
    "place = xdevice.distributed.local_device()\n"
    "print('I am on', xdevice.device_of(xdevice.ones(2, device=place)), flush=True)\n"
)


@pytest.mark.parametrize(
    ("backend", "command"),
    [
        pytest.param(
            "torch",
            ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "paddle",
            ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", "logs"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_real_launcher_gives_each_process_its_own(backend, command, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {
        "XDEVICE_BACKEND": backend,
        "XDEVICE_VIRTUAL_GPUS": "2",
        "OMP_NUM_THREADS": "1",
    }
    done = python(*command, "script.py", cwd=tmp_path, **environment)
    logs = "".join(log.read_text() for log in (tmp_path / "logs").glob("workerlog.*"))
    said = done.stdout + logs
    assert {place for place in ("gpu:0", "gpu:1") if f"I am on {place}" in said} == {
        "gpu:0",
        "gpu:1",
    }, done.stderr + said


ON_MY_DEVICE = """
import xdevice

with xdevice.distributed.processes() as world:
    x = world.all_reduce(xdevice.ones(4, device=world.device)) / world.size
    y = world.all_reduce(x)
    with xdevice.cpu() as inner:
        assert xdevice.device() is inner
        assert xdevice.device_of(xdevice.zeros(2)) is inner
    assert str(xdevice.device_of(x)) == str(xdevice.device_of(y)) == f"gpu:{world.rank}", xdevice.device_of(x)
assert xdevice.device() is xdevice.cpu()
print("stays on", world.device)
"""


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "tensorflow" else pytest.mark.long)
        for name in BACKENDS
        if name != "numpy"
    ],
)
def test_what_is_computed_stays_on_the_device_of_its_process(backend, tmp_path):
    """Also on TensorFlow, which computes on its default device, wherever the operands are."""
    (tmp_path / "script.py").write_text(ON_MY_DEVICE)
    command = ("-m", "xdevice", "launch", "-n", "2", "--backend", backend, "script.py")
    done = python(*command, cwd=tmp_path, XDEVICE_VIRTUAL_GPUS="2", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert all(f"[{rank}] stays on gpu:{rank}" in done.stdout for rank in (0, 1)), done.stdout
