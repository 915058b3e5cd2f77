"""The page on arithmetic: its example, and its table of what Python's operators give."""

from __future__ import annotations

import re

import pytest
from helpers.environment import ROOT, python, sampled

import xdevice

PAGE = (ROOT / "docs" / "reference" / "arithmetic.md").read_text(encoding="utf-8")
EXPRESSIONS = ("i + 1.5", "i / 2", "b + b", "b * 1.5")


@pytest.mark.parametrize(
    "backend", sampled(xdevice.backends(), each_time=("numpy",), slow=["torch"], others="long")
)
def test_the_example_prints_what_it_shows_and_operators_give_what_the_table_says(backend):
    example, shown = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL
    ).groups()
    code = f"""{example}
i, b = xdevice.tensor([1, 2]), xdevice.tensor([True, False])
for expression in {EXPRESSIONS}:
    try:
        print(xdevice.to_numpy(eval(expression)).dtype)
    except Exception:
        print("error")
"""
    done = python("-c", code, XDEVICE_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    rows = [
        re.search(rf"^\| `{re.escape(one)}` \|(.*)\|$", PAGE, re.MULTILINE)[1]
        for one in EXPRESSIONS
    ]
    head = [
        cell.strip()
        for cell in re.search(r"^\| \| (torch .*)\|$", PAGE, re.MULTILINE)[1].split("|")
    ]
    told = [row.split("|")[head.index(backend)].strip() for row in rows]
    assert done.stdout == shown + "\n".join(told) + "\n"


def test_the_example_of_an_index_prints_what_it_shows(xd, capsys):
    section = PAGE.partition("\n## Writing at an index\n")[2].partition("\n## ")[0]
    example, shown = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL
    ).groups()
    exec(compile(example, "arithmetic.md", "exec"), {})
    assert capsys.readouterr().out == shown


@pytest.mark.long
def test_parity_finds_where_an_operator_misleads_and_the_namespace_does_not(tmp_path):
    if not {"torch", "tensorflow"} <= set(xdevice.backends()):
        pytest.skip("PyTorch and TensorFlow are not both installed")
    script = tmp_path / "script.py"
    script.write_text("""
import xdevice
b = xdevice.tensor([True, False])
xdevice.parity.log("by operator", b * 1.5)
xdevice.parity.log("by namespace", xdevice.array_namespace().multiply(b, 1.5))
""")
    done = python(
        "-m", "xdevice", "parity", script, "--backends", "torch,tensorflow", COLUMNS="200"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "by operator, step 0, on tensorflow: the dtypes differ: actual is bool" in done.stdout
    )
    assert re.search(r"by namespace .* 0 \(0\)", done.stdout)
