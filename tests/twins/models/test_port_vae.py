"""examples/port_vae.py does what docs/guides/port_a_script.md tells."""

from __future__ import annotations

import re

import pytest
from helpers.environment import ROOT, python

GUIDE = (ROOT / "docs" / "guides" / "port_a_script.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "examples" / "port_vae.py"
FIGURE = re.compile(r"\d\.\de-\d\d apart")


def masked(text):
    return re.sub(r"in [\d.]+ s", "in some time", FIGURE.sub("apart", text))


@pytest.mark.long
def test_the_guide_shows_what_the_script_prints():
    done = python(SCRIPT)
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)
    assert masked(done.stdout) == masked(shown)
    apart = [float(found.split()[0]) for found in FIGURE.findall(done.stdout)]
    assert len(apart) == 4
    assert max(apart) < 1e-6, "with Keras's own epsilon of 1e-7 it is 1e-5 and more"


def test_the_clipped_logarithm_is_as_the_guide_says():
    import keras
    import numpy as np
    import torch

    import xdevice

    paddle = xdevice.backend("paddle").framework
    pixel, wanted = np.array([1e-9], "float32"), np.ones(1, "float32")
    ours = torch.nn.functional.binary_cross_entropy(torch.tensor(pixel), torch.tensor(wanted))
    theirs = paddle.nn.functional.binary_cross_entropy(
        paddle.to_tensor(pixel), paddle.to_tensor(wanted)
    )
    clipped = keras.ops.binary_crossentropy(wanted, pixel)
    assert [f"{float(np.asarray(x).reshape(())):.1f}" for x in (ours, theirs, clipped)] == [
        "20.7",
        "20.7",
        "16.1",
    ]


@pytest.mark.long
def test_the_three_agree_in_xdevice_parity():
    done = python("-m", "xdevice", "parity", SCRIPT, "--backends", "torch,paddle,tensorflow")
    assert done.returncode == 0, done.stdout + done.stderr
