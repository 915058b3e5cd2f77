"""The chapters of the course: each runs on every backend, prints what it says, and leaves a step that compiles."""

from __future__ import annotations

import re

import pytest
from helpers.environment import FRAMEWORKS, needs
from helpers.texts import COURSE, STEP_COMPILES, run_cells

LONGEST = 120  # s after the imports; a chapter takes 10 on a quiet machine, and nobody waits for more when it is taught


@pytest.mark.slow
@pytest.mark.parametrize("backend", FRAMEWORKS)
@pytest.mark.parametrize(
    "chapter", sorted(path.stem for path in COURSE.glob("*.md") if path.stem != "index")
)
def test_a_chapter_runs_and_its_step_compiles(chapter, backend):
    needs(backend)
    took, heard = run_cells(
        COURSE / f"{chapter}.md", afterwards=STEP_COMPILES, XDEVICE_BACKEND=backend
    )
    print(f"{chapter} on {backend}: {took:.1f} s\n{heard}")
    assert took < LONGEST


def test_every_chapter_is_in_the_index():
    listed = re.search(
        r"```\{toctree\}\n(?::.*\n)*\n(.*?)```", (COURSE / "index.md").read_text(), re.DOTALL
    )[1]
    assert {path.stem for path in COURSE.glob("*.md")} - {"index"} <= set(listed.split())
