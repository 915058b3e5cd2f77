"""The chapters under examples/, each written once: they run on every backend, and no line of one names a framework.

Training on several GPUs is tried by tests/replicas/test_multiple_gpus.py.
"""

from __future__ import annotations

import ast
import json
import re

import pytest
from helpers.environment import BACKENDS, FRAMEWORKS, ROOT, printed, python, sampled

EXAMPLES = ROOT / "examples"
SAID = {
    "use_gpu": ("the same object: True", "1000 norms kept on the device"),
    "async_computation": ("without waiting: ", "one product takes"),
    "auto_parallelism": ("both side by side: ", "batches prefetched: "),
    "streams": ("one after the other: ", "two (tasks|streams): ", "the same result: True"),
}
TRAINING = ("multiple_gpus", "multiple_gpus_concise")


@pytest.mark.parametrize(
    "backend", sampled(BACKENDS, each_time=["numpy"], slow=["torch"], others="long")
)
@pytest.mark.parametrize("chapter", sampled(SAID, each_time=["use_gpu"]))
def test_a_chapter_runs(chapter, backend):
    out = printed(EXAMPLES / f"{chapter}.py", XDEVICE_BACKEND=backend)
    assert out.startswith(f"This is {backend} ")
    for said in SAID[chapter]:
        assert re.search(said, out), out


@pytest.mark.parametrize(
    "backend", sampled(FRAMEWORKS, each_time=(), slow=["jax"], others="long")
)
@pytest.mark.parametrize("chapter", ["auto_parallelism", "streams"])
def test_a_chapter_runs_where_gpus_are_virtual(chapter, backend):
    done = python(EXAMPLES / f"{chapter}.py", XDEVICE_BACKEND=backend, XDEVICE_VIRTUAL_GPUS="2")
    if "cannot have virtual GPUs here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    for said in SAID[chapter]:
        assert re.search(said, done.stdout), done.stdout


@pytest.mark.parametrize(
    "backend", sampled(FRAMEWORKS, each_time=(), slow=["jax"], others="long")
)
def test_the_tour_runs_the_chapter(backend):
    out = printed(EXAMPLES / "tour.py", backend, "--show", bare=True)
    assert re.search(
        rf"^{backend} .+: all as the chapter says, as the machine is, and on two GPUs",
        out,
        re.MULTILINE,
    )
    assert "which is the same device: False" in out
    assert f"As the chapter says: {backend}. Failed: none." in out
    assert "1000 norms" in out.partition("What the chapter measured here")[2]


def test_the_tour_says_what_failed_and_what_is_not_installed(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise OSError('a library is missing')")
    done = python(EXAMPLES / "tour.py", "numpy", "jax", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "jax: FAILED" in done.stdout
    assert "a library is missing" in done.stdout
    assert "it has no virtual GPUs" in done.stdout
    assert "As the chapter says: numpy. Failed: jax." in done.stdout
    done = python(EXAMPLES / "tour.py", "troch")
    assert done.returncode == 2
    assert "did you mean 'torch'" in done.stderr


def test_the_experiments_of_the_chapters_give_figures_or_say_why_not():
    out = printed(
        ROOT / "benchmarks" / "experiments.py", "--backend", "numpy", "--quick", "--json"
    )
    rows = json.loads(out)
    assert len({row["experiment"] for row in rows}) == 8
    for row in rows:
        assert (row["value"] is None) == bool(row["why_not"])
        assert row["value"] is None or row["value"] > 0


def test_streams_say_what_to_use_where_there_are_none():
    out = printed(EXAMPLES / "streams.py", XDEVICE_BACKEND="numpy")
    assert (
        "UnsupportedError: numpy does not support streams; to run tasks side by side, call xdevice.parallel.run()"
        in out
    )


@pytest.mark.parametrize("chapter", [*SAID, *TRAINING])
def test_no_line_of_a_chapter_names_a_framework(chapter):
    """Nor asks which one it is, but for the line that prints it; the line that says how to start it is for people."""
    code = ast.unparse(
        ast.parse((EXAMPLES / f"{chapter}.py").read_text(encoding="utf-8")).body[1:]
    )
    code = code.replace(
        "print(f'This is {xdevice.backend().name} {xdevice.backend().version}.')", ""
    )
    names = (*FRAMEWORKS, "numpy", "paddlepaddle", "keras", "gluon", "flax")
    assert not re.findall(
        rf"\b({'|'.join(names)}|backend|use|native|XDEVICE_BACKEND)\b", code, re.IGNORECASE
    )


def test_the_tutorials_list_every_chapter():
    tutorials = (ROOT / "docs/tutorials/index.md").read_text(encoding="utf-8")
    for chapter in (*SAID, *TRAINING, "multiple_gpus_own_layers"):
        assert f"`{chapter}.py`" in tutorials
