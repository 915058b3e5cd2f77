"""The page on functions of layers: its example prints the same on every backend, its table has every function."""

from __future__ import annotations

import re
import sys

import pytest
from helpers.environment import ROOT, printed, python, sampled

import xdevice
from xdevice.math.contract import nn as contract

WORDS = sorted({*contract.KERNELS, *contract.OPTIONAL, "binary_cross_entropy_with_logits", "mse_loss", "moments"})
WORDS = [name for name in WORDS if name not in ("binary_cross_entropies", "cross_entropies", "erf")]
PAGE = (ROOT / "docs" / "reference" / "nn.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", sampled(xdevice.backends(), each_time=("numpy",), slow=["torch"], others="long"))
def test_the_example_prints_what_it_shows(backend):
    example, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL).groups()
    done = python("-c", example, XDEVICE_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


def test_the_names_are_those_of_the_page_and_of_the_contract():
    told = re.findall(r"`(\w+)\([^)]*\)`", PAGE.partition("## What there is")[2].partition("\n- ")[0])
    assert sorted(told) == sorted(xdevice.nn.__all__) == WORDS


def test_xdevice_itself_does_not_load_it():
    code = "import xdevice, sys; assert not {'xdevice.nn', 'xdevice.math', 'numpy', 'typing'} & set(sys.modules)"
    printed("-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}")
