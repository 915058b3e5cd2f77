"""What docs/reference/processes.md says of the engines is what they say themselves."""

from __future__ import annotations

import pytest
from helpers.environment import BACKENDS, ROOT, python

PAGE = (ROOT / "docs" / "reference" / "processes.md").read_text(encoding="utf-8")
ENGINES = ("torch:gloo", "paddle:gloo", "jax:gloo", "tensorflow:ring")


def between(name):
    return PAGE.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_has_what_an_engine_says_of_itself(engine):
    """Where it differs, the row that is printed goes into the page."""
    backend = engine.partition(":")[0]
    if backend not in BACKENDS:
        pytest.skip(f"{backend} is not installed")
    script = ROOT / "tests" / "distributed" / "engine_row.py"
    done = python(
        "-m",
        "xdevice",
        "launch",
        "-n",
        2,
        "--backend",
        backend,
        "--engine",
        engine,
        "--timeout",
        20,
        script,
    )
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "| `" in line).partition("] ")[2]
    assert row in between("engines").splitlines()


def test_the_page_has_every_engine():
    rows = between("engines").splitlines()
    assert [row.split("`")[1] for row in rows[2:]] == list(ENGINES)
