"""Runs the cells of a page of the docs, one after the other, in a process of its own; and checks what the page says
that they print."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from helpers.environment import ROOT, python

if TYPE_CHECKING:
    from pathlib import Path

COURSE: Final = ROOT / "docs" / "tutorials" / "course"
STEP_COMPILES: Final = """
by_hand, value = step(params, *batch)
again, _ = step(params, *batch)
compiled, compiled_value = xdevice.compile(step)(params, *batch)
assert 0 <= xdevice.item(value) < float("inf"), value
xdevice.assert_parity(again, by_hand, rtol=0, atol=0)
xdevice.assert_parity([compiled, compiled_value], [by_hand, value], rtol=1e-4, atol=1e-5)
"""
"""What a chapter of the course leaves: a step that compiles, and gives the same each time."""
_PARTS: Final = re.compile(
    r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$|\{printed\}`([^`]+)`",
    re.DOTALL | re.MULTILINE,
)
_RUN: Final = """
import io, json, subprocess, sys, time, warnings
from contextlib import redirect_stdout
from pathlib import Path

def typed(code):
    "Runs a cell; the magic of notebooks that pages use is a first line."
    first, _, rest = code.partition("\\n")
    magic, _, argument = first.partition(" ")
    if magic == "%%writefile":
        Path(argument).write_text(rest, encoding="utf-8")
    elif magic in ("%%bash", "%run"):
        command = ["bash", "-c", "set -e\\n" + rest] if magic == "%%bash" else [sys.executable, *argument.split()]
        done = subprocess.run(command, text=True, capture_output=True)
        print(done.stdout, done.stderr)
        assert done.returncode == 0 or "--no-raise-error" in argument, done.stdout + done.stderr
    else:
        exec(compile(code, "a cell", "exec"), globals())

import xdevice

import matplotlib.pyplot as plt
import sklearn.datasets

xdevice.ones(1)  # what frameworks warn of when they are imported is not ours
warnings.simplefilter("error")
PLACE
heard, begun = io.StringIO(), time.monotonic()
for options, code, said in json.load(sys.stdin):
    if said:
        assert said in heard.getvalue(), f"no cell above has printed {said!r}:\\n{heard.getvalue()}"
        continue
    try:
        with redirect_stdout(heard):
            typed(code)
    except Exception as error:
        if "raises-exception" not in options:
            print(heard.getvalue()[-2000:], file=sys.stderr)
            raise
        heard.write(f"{type(error).__name__}: {error}")
    else:
        assert "raises-exception" not in options, f"it raises nothing: {code}"
    assert bool(plt.get_fignums()) == (":alt:" in options), f"a figure and its :alt: go together: {code}"
    plt.close("all")
took = time.monotonic() - begun
AFTERWARDS
print(json.dumps([took, heard.getvalue()]))
"""


def run_cells(
    page: Path, before: str = "", afterwards: str = "", says: bool = True, **options: Any
) -> tuple[float, str]:
    """The seconds that the cells took, and what they printed. `before` and `afterwards` are
    code that runs around them; `says` is whether they must print what the page says that they print where the site is
    built; `options` are those of `python`."""
    found = _PARTS.findall(page.read_text(encoding="utf-8"))
    parts = json.dumps([part for part in found if says or not part[2]])
    program = _RUN.replace("PLACE", before).replace("AFTERWARDS", afterwards)
    done = python("-c", program, typed=parts, bare=True, MPLBACKEND="Agg", **options)
    assert done.returncode == 0, done.stderr[-3000:]
    took, heard = json.loads(done.stdout.splitlines()[-1])
    return took, heard
