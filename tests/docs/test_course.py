"""The chapters of the course: each runs on every backend, prints what it says, and leaves a step that compiles."""

from __future__ import annotations

import json
import re

import pytest
from helpers.environment import FRAMEWORKS, ROOT, needs, python

COURSE = ROOT / "docs" / "tutorials" / "course"
PARTS = re.compile(r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$|\{printed\}`([^`]+)`", re.DOTALL | re.MULTILINE)
LONGEST = 120  # s after the imports; a chapter takes 10 on a quiet machine, and nobody waits for more when it is taught
RUN = """
import io, json, sys, time, warnings
from contextlib import redirect_stdout
import xdevice

import matplotlib.pyplot as plt
import sklearn.datasets

xdevice.ones(1)  # what frameworks warn of when they are imported is not ours
warnings.simplefilter("error")
heard, names, begun = io.StringIO(), globals(), time.monotonic()
for options, code, said in json.load(sys.stdin):
    if said:
        assert said in heard.getvalue(), f"no cell above has printed {said!r}:\\n{heard.getvalue()}"
        continue
    try:
        with redirect_stdout(heard):
            exec(compile(code, "a cell", "exec"), names)
    except Exception as error:
        if "raises-exception" not in options:
            raise
        heard.write(f"{type(error).__name__}: {error}")
    else:
        assert "raises-exception" not in options, f"it raises nothing: {code}"
    assert bool(plt.get_fignums()) == (":alt:" in options), f"a figure and its :alt: go together: {code}"
    plt.close("all")
took = time.monotonic() - begun

by_hand, value = step(params, *batch)
again, _ = step(params, *batch)
compiled, compiled_value = xdevice.compile(step)(params, *batch)
assert 0 <= xdevice.item(value) < float("inf"), value
xdevice.assert_parity(again, by_hand, rtol=0, atol=0)
xdevice.assert_parity([compiled, compiled_value], [by_hand, value], rtol=1e-4, atol=1e-5)
print(json.dumps([took, heard.getvalue()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", FRAMEWORKS)
@pytest.mark.parametrize("chapter", sorted(path.stem for path in COURSE.glob("*.md") if path.stem != "index"))
def test_a_chapter_runs_and_its_step_compiles(chapter, backend):
    needs(backend)
    text = (COURSE / f"{chapter}.md").read_text(encoding="utf-8")
    done = python(
        "-c", RUN, typed=json.dumps(PARTS.findall(text)), bare=True, XDEVICE_BACKEND=backend, MPLBACKEND="Agg"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    took, heard = json.loads(done.stdout.splitlines()[-1])
    print(f"{chapter} on {backend}: {took:.1f} s\n{heard}")
    assert took < LONGEST


def test_every_chapter_is_in_the_index():
    listed = re.search(r"```\{toctree\}\n(?::.*\n)*\n(.*?)```", (COURSE / "index.md").read_text(), re.DOTALL)[1]
    assert {path.stem for path in COURSE.glob("*.md")} - {"index"} <= set(listed.split())
