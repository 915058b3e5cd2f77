"""The course, the tutorials and the examples run to their end on a real GPU:

pytest -m gpu tests/hardware/test_gpu_texts.py
"""

from __future__ import annotations

import re

import pytest
from helpers.environment import BACKENDS, NO_KERNELS, ROOT, needs, python
from helpers.texts import COURSE, run_cells

import xdevice

pytestmark = pytest.mark.gpu

ON_GPU = "xdevice.set_default_device('gpu:0')"
COMPILES = """
by_hand, value = step(params, *batch)
compiled, compiled_value = xdevice.compile(step)(params, *batch)
assert xdevice.device_of(batch) == xdevice.gpu()
xdevice.assert_parity([compiled, compiled_value], [by_hand, value], rtol=1e-2, atol=1e-3)
"""
"""A GPU adds in other orders and multiplies in 10 bits where the framework takes TF32."""
PIECEMEAL = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
FRONT = re.compile(r"\A---\n(.*?)^---$", re.DOTALL | re.MULTILINE)
EXAMPLES = (
    "async_computation", "auto_parallelism", "multiple_gpus", "multiple_gpus_concise", "parity_mlp", "streams",
    "use_gpu",
)  # fmt: skip
FRAMEWORKS_OF_TEXTS = ("torch", "tensorflow", "paddle", "jax", "mxnet")
OF_SEVERAL = ("first_steps", "parity_test", "porting_a_model", "porting_a_repository")
"""Tutorials that run on all frameworks at once."""


@pytest.fixture(params=["torch", "jax", "tensorflow"])
def backend(request):
    name = request.param
    if name not in BACKENDS or name in NO_KERNELS:
        pytest.skip(f"no {name} that computes here")
    if not xdevice.backend(name).count("gpu"):
        pytest.skip(f"{name} sees no GPU")
    return name


def setting(page, name):
    """What the front matter of a page says."""
    front = FRONT.match(page.read_text(encoding="utf-8"))
    said = re.search(rf"^{name}: (.*)$", front[1], re.MULTILINE) if front else None
    return said[1] if said else ""


def pages(folder):
    return sorted(path.stem for path in folder.glob("*.md") if setting(path, "backends"))


@pytest.mark.parametrize("chapter", pages(COURSE))
def test_a_chapter_of_the_course_runs_on_a_gpu(chapter, backend):
    _, heard = run_cells(
        COURSE / f"{chapter}.md", ON_GPU, COMPILES, XDEVICE_BACKEND=backend, **PIECEMEAL
    )
    print(heard)


@pytest.mark.parametrize("tutorial", pages(COURSE.parent))
def test_a_tutorial_runs_where_there_is_a_gpu(tutorial, backend, tmp_path):
    page = COURSE.parent / f"{tutorial}.md"
    if backend not in setting(page, "backends"):
        pytest.skip(f"the page is not for {backend}")
    if tutorial in OF_SEVERAL:
        needs(*FRAMEWORKS_OF_TEXTS)
    if "xdevice launch" in page.read_text(encoding="utf-8"):
        pytest.importorskip("click", reason="the command line needs it")
    wanted = int(setting(page, "virtual_gpus") or 0)
    if xdevice.backend(backend).count("gpu") < wanted:
        pytest.skip(f"the page needs {wanted} GPUs")
    run_cells(page, says=False, cwd=tmp_path, XDEVICE_BACKEND=backend, **PIECEMEAL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_on_a_gpu(example, backend):
    done = python(ROOT / "examples" / f"{example}.py", XDEVICE_BACKEND=backend, **PIECEMEAL)
    assert done.returncode == 0, done.stdout + done.stderr
