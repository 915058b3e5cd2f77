"""A sample of scikit-learn's own tests for CUDA, on a virtual GPU. docs/guides/test_array_api.md has the whole."""

from __future__ import annotations

import re

import sklearn
from helpers.environment import python


def test_its_tests_for_cuda_pass_on_a_virtual_gpu(tmp_path):
    assert sklearn.__version__
    of_cuda = [
        "--pyargs",
        "sklearn.utils.tests.test_stats",
        "-k",
        "torch and cuda",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    options = ["--xd-cuda=gpu:1", "--xd-default-of-tests"]
    done = python("-m", "pytest", *of_cuda, *options, cwd=tmp_path, SCIPY_ARRAY_API="1")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout
