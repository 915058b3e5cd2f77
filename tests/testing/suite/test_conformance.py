"""Every adapter of ours is held to the suite, in one process."""

from __future__ import annotations

import pytest
from helpers.suite_runs import ProcessesAreLong

from xdevice.testing import Conformance
from xdevice.testing.suite.base import on_one_device


class Ours(Conformance):
    """What starts a process that imports the framework once more, and has other tests of ours, is for `-m slow`."""

    @pytest.mark.slow
    @on_one_device
    def test_virtual_gpus_are_devices_of_their_own(self):
        super().test_virtual_gpus_are_devices_of_their_own()

    @pytest.mark.slow
    @on_one_device
    def test_forking_after_loading_and_counting(self):
        super().test_forking_after_loading_and_counting()


class Heavy(Ours):
    """What is not imported in a second is imported in fresh processes for `-m slow` only."""

    @pytest.mark.slow
    @on_one_device
    def test_loading_is_light_locked_and_safe_to_fork(self):
        super().test_loading_is_light_locked_and_safe_to_fork()

    @pytest.mark.slow
    def test_a_process_ends_in_the_middle_of_a_prefetch(self):
        super().test_a_process_ends_in_the_middle_of_a_prefetch()


class Rare(ProcessesAreLong, Heavy):
    """What the processes of these show, those of the others do."""


class TestTorch(Heavy):
    backend = "torch"


class TestTensorflow(Rare):
    backend = "tensorflow"


class TestPaddle(Rare):
    backend = "paddle"


class TestMxnet(Rare):
    backend = "mxnet"

    @pytest.mark.long  # its threads compute for ten seconds, and JAX's show the same each time
    def test_sync_waits_for_work_under_way(self):
        super().test_sync_waits_for_work_under_way()

    @pytest.mark.long  # likewise
    def test_sync_waits_on_every_device(self):
        super().test_sync_waits_on_every_device()


class TestJax(Ours):
    backend = "jax"


class TestNumpy(Ours):
    backend = "numpy"
