"""The chapters under examples/, each written once: they run on every backend, and no line of one names a framework.

Training on several GPUs is tried by tests/replicas/test_multiple_gpus.py.
"""

from __future__ import annotations

import ast
import re

import pytest
from support import BACKENDS, FRAMEWORKS, ROOT, printed, python, sampled

EXAMPLES = ROOT / "examples"
SAID = {
    "use_gpu": ("the same object: True", "1000 norms kept on the device"),
    "async_computation": ("without waiting: ", "one product takes"),
    "auto_parallelism": ("both side by side: ", "batches prefetched: "),
    "streams": ("one after the other: ", "two (tasks|streams): ", "the same result: True"),
}
TRAINING = ("multiple_gpus", "multiple_gpus_concise")


@pytest.mark.parametrize("backend", sampled(BACKENDS, each_time=["numpy"], slow=["torch"], others="long"))
@pytest.mark.parametrize("chapter", sampled(SAID, each_time=["use_gpu"]))
def test_a_chapter_runs(chapter, backend):
    out = printed(EXAMPLES / f"{chapter}.py", XDEVICE_BACKEND=backend)
    assert out.startswith(f"This is {backend} ")
    for said in SAID[chapter]:
        assert re.search(said, out), out


@pytest.mark.parametrize("backend", sampled(FRAMEWORKS, each_time=(), slow=["jax"], others="long"))
@pytest.mark.parametrize("chapter", ["auto_parallelism", "streams"])
def test_a_chapter_runs_where_gpus_are_virtual(chapter, backend):
    done = python(EXAMPLES / f"{chapter}.py", XDEVICE_BACKEND=backend, XDEVICE_VIRTUAL_GPUS="2")
    if "cannot have virtual GPUs here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    for said in SAID[chapter]:
        assert re.search(said, done.stdout), done.stdout


def test_streams_say_what_to_use_where_there_are_none():
    out = printed(EXAMPLES / "streams.py", XDEVICE_BACKEND="numpy")
    assert "UnsupportedError: numpy does not support streams; it orders its work by itself; xdevice.parallel()" in out


@pytest.mark.parametrize("chapter", [*SAID, *TRAINING])
def test_no_line_of_a_chapter_names_a_framework(chapter):
    """Nor asks which one it is, but for the line that prints it; the line that says how to start it is for people."""
    code = ast.unparse(ast.parse((EXAMPLES / f"{chapter}.py").read_text(encoding="utf-8")).body[1:])
    code = code.replace("print(f'This is {xdevice.backend().name} {xdevice.backend().version}.')", "")
    names = (*FRAMEWORKS, "numpy", "paddlepaddle", "keras", "gluon", "flax")
    assert not re.findall(rf"\b({'|'.join(names)}|backend|use|native|XDEVICE_BACKEND)\b", code, re.IGNORECASE)


def test_the_readme_lists_every_chapter():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for chapter in (*SAID, *TRAINING, "multiple_gpus_own_layers"):
        assert f"(examples/{chapter}.py)" in readme
