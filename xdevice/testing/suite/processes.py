"""Checks of eight threads at once, and checks in fresh processes: loading, forking, ending a process, and virtual
GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import xdevice

from .base import Suite, call_in_threads, on_one_device
from .capabilities import needs


class ProcessChecks(Suite):
    """Checks of many threads, and of fresh and forked processes."""

    def test_eight_threads_at_once(self) -> None:
        places = self.devices_with_values()

        def work(number: int) -> None:
            with xdevice.use_backend(self.backend):
                for i in range(20):
                    array = np.array([number, i], "float32")
                    target = places[(number + i) % len(places)]
                    x = xdevice.tensor(array, device=self.home)
                    copied = xdevice.copy_to(x, target)
                    assert xdevice.device_of(copied) is target
                    assert xdevice.same_device(x, xdevice.to_device(copied, self.home))
                    self.assert_holds(copied, array, f"thread {number}")

        try:
            call_in_threads(work, list(range(8)))
        except Exception as error:
            raise AssertionError(
                f"eight threads that used their own tensors failed: {error!r}. Any thread may call the adapter's "
                f"methods, whatever `threads` says; hold a lock if the framework allows only one thread at a time"
            ) from error

    @on_one_device
    def test_loading_is_light_locked_and_safe_to_fork(self) -> None:
        report = in_child("load", self.backend, self.child_setup)
        assert report["imported by xdevice"] == [], (
            "import xdevice must import neither a framework nor NumPy"
        )
        assert report["imported under a held lock"] is False, (
            "the framework must be imported by loader.importing"
        )
        assert report["loaded in threads"] == 8
        assert report["other backends"] == []
        assert report["started by counting"] == [], (
            "counting the devices must not start a device"
        )
        assert report["works in the main thread"] == 2.0, (
            "the backend must work after the thread that loaded it has ended"
        )
        assert report["works in a new thread"] == 2.0
        assert set(report["floats"]) <= {"float64"}, (
            "default_to_float64 must have an effect in all threads"
        )

    @on_one_device
    def test_forking_after_loading_and_counting(self) -> None:
        self.skip_without_kernels()
        if not hasattr(os, "fork"):
            pytest.skip("this system does not fork")
        report = in_child("fork", self.backend, self.child_setup)
        # TensorFlow initializes CUDA to count GPUs, and after that a forked child cannot use
        # CUDA
        allowed = ("2.0", "UnsupportedError") if self.adapter.count("gpu") else ("2.0",)
        assert report["child after loading"] in allowed, report
        assert report["child after use"] in ("2.0", "UnsupportedError"), (
            f"the call must work, or raise an error with the reason: {report}"
        )

    @needs("Prefetch")
    def test_a_process_ends_in_the_middle_of_a_prefetch(self) -> None:
        report = in_child("end_during_prefetch", self.backend, self.child_setup, self.home)
        assert report["first batch"] == [1.5, -2.5]

    @needs("VirtualGpus")
    @on_one_device
    def test_virtual_gpus_are_devices_of_their_own(self) -> None:
        if "gpu" not in self.adapter.kinds:
            pytest.skip(f"{self.backend} has no GPUs")
        report = in_child("use_virtual_gpus", self.backend, self.child_setup)
        if "refused" in report:
            pytest.skip(report["refused"])
        names = [device for device in report["devices"] if device.startswith(("cpu", "gpu"))]
        assert names == ["cpu:0", "gpu:0", "gpu:1"], "expected one CPU and two virtual GPUs"
        assert report["described"] == ["virtual GPU (host memory)"] * 2
        assert report["moved"] == {"gpu:0": [1.5, -2.5], "gpu:1": [1.5, -2.5]}


_CHILD: Final = Path(__file__).with_name("child.py")
"""The file with the functions that `in_child` runs."""


def in_child(question: str, backend: str, setup: str = "", *arguments: str) -> dict[str, Any]:
    """Calls the function `question` of child.py for a backend in a fresh process, and returns the JSON object that the
    function prints. `setup` is Python code that runs before the function, and `arguments` are passed to the function
    after the backend's name. Raises `AssertionError` if the process fails, and `subprocess.TimeoutExpired` if it takes
    longer than 240 seconds."""
    passed = ", ".join(map(repr, (backend, *arguments)))
    # the file is run by its path, because importing the package of the suite would import
    # pytest and NumPy
    code = f"{setup}\nimport runpy\nrunpy.run_path({str(_CHILD)!r})[{question!r}]({passed})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode != 0:
        raise AssertionError(
            f"the child process ended with exit status {done.returncode}:\n{done.stderr[-3000:]}"
        )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
