"""The example of docs/reference/tracing.md prints what the page shows."""

from __future__ import annotations

import re

import pytest
from helpers.environment import BACKENDS, ROOT, printed


@pytest.mark.slow
@pytest.mark.skipif(
    not {"torch", "paddle"} <= set(BACKENDS), reason="the page needs PyTorch and Paddle"
)
def test_the_page_on_tracing_prints_what_it_shows():
    page = (ROOT / "docs" / "reference" / "tracing.md").read_text(encoding="utf-8")
    code, shown = re.search(
        r"```python\n(.*?)```.*?```text\n(.*?)\n```", page, re.DOTALL
    ).groups()
    load = "import xdevice; xdevice.backend('torch'); xdevice.backend('paddle')\n"
    out = printed("-W", "ignore", "-c", load + code)
    assert without_numbers(out) == without_numbers(shown)


def without_numbers(text):
    """Its words: figures are the machine's."""
    return re.sub(r" +", " ", re.sub(r"-?\d+\.?\d*(e-?\d+)?", "N", text)).strip()
