"""`--xd-cuda`: makes a virtual GPU the device that test suites of other projects call "cuda". (PYTEST_DONT_REWRITE:
this module contains no assertions.)"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from xdevice.base import devices, requested
from xdevice.contract import environment
from xdevice.core import frameworks, registry
from xdevice.errors import XDeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    from xdevice.contract import Backend

_WRAPPERS: Final = "array_api_compat"
"""A package through which tests and libraries call frameworks. Some libraries contain their own copy of this
package."""


class Cuda:
    """Makes "cuda" mean the device that `--xd-cuda` names, for each backend as soon as the backend is loaded. Makes the
    run fail if no loaded backend has a device "cuda", because then nothing was tested on a GPU.

    Args:
        name: the value of `--xd-cuda`. If this is not a virtual GPU, `pytest.UsageError` is raised.
        is_default_of_tests: whether `--xd-default-of-tests` is used.
    """

    def __init__(self, name: str, *, is_default_of_tests: bool) -> None:
        self._is_default_of_tests = is_default_of_tests
        try:
            self._device = devices.parse(name)
            count = environment.virtual_gpus_wanted()
        except XDeviceError as error:
            raise pytest.UsageError(f"--xd-cuda={name}: {error}") from None
        if count and self._device.kind != "gpu":
            raise pytest.UsageError(
                f"--xd-cuda={name}: expected a virtual GPU, from gpu:0 to gpu:{count - 1}"
            )
        if self._device.kind != "gpu" or self._device.index >= count:
            # at least two, because tests for CUDA also need a device other than gpu:0
            wanted = max(2, self._device.index + 1)
            raise pytest.UsageError(
                f"--xd-cuda={name} needs a virtual GPU of this name, but the number of virtual GPUs is {count}; set "
                f"{requested.VIRTUAL_GPUS}={wanted}, and name a virtual GPU such as gpu:1 (a real GPU is already "
                f"called cuda)"
            )
        # the backends for which "cuda" was changed: in this process, and in all processes of
        # xdist
        self._taken_here: list[str] = []
        self._taken: dict[str, None] = {}
        # the suite may have imported a framework before the options were read
        for backend in registry.list_loaded():
            self._take_for_cuda(backend)
        registry.on_load.append(self._take_for_cuda)

    def _take_for_cuda(self, backend: Backend) -> None:
        """Makes "cuda" mean the virtual GPU for a backend that was just loaded. Changes nothing if programs do not use
        the name "cuda" for devices of the backend's framework."""
        # None: a default device that the suite sets applies to every caller
        if backend.take_for_cuda(
            self._device, _in_tests(backend) if self._is_default_of_tests else None
        ):
            self._taken_here.append(f"{backend.name} {backend.version}")

    def pytest_report_header(self) -> str:
        """Returns the line at the start of a run that shows which device "cuda" stands for."""
        return f'xdevice: "cuda" is {self._device}, a virtual GPU in the memory of the host'

    def pytest_collection_finish(self) -> None:
        """Loads the backends of the frameworks that the tests have imported. Raises
        `pytest.UsageError`, which ends the run, if a backend cannot be loaded or cannot have
        virtual GPUs."""
        try:
            for framework in frameworks.list_imported():
                # raises an error that xdevice's import hook has postponed until the backend is
                # used
                registry.load(framework.name)
        except XDeviceError as error:
            raise pytest.UsageError(f"--xd-cuda={self._device}: {error}") from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds to the report of a test the names of the backends for which "cuda" was changed."""
        report = yield
        # with xdist, the reports transfer the names to the main process
        report.xdevice_cuda = self._taken_here  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the names of the backends from the reports of all processes."""
        self._taken |= dict.fromkeys(getattr(report, "xdevice_cuda", ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Makes a run fail if no backend was tested on the virtual GPU, but the run would otherwise pass."""
        if (
            # a run that has failed keeps its exit status
            session.exitstatus == pytest.ExitCode.OK
            and not self._taken
            and not session.config.option.collectonly
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes a line with the backends for which "cuda" was the virtual GPU. Writes nothing
        if the tests were only collected."""
        if terminalreporter.config.option.collectonly:
            return
        names = (
            ", ".join(self._taken)
            or "no framework, which is a failure: the tests imported no framework with a 'cuda' device"
        )
        terminalreporter.write_line(
            f'xdevice: "cuda" was {self._device} for {names}', red=not self._taken
        )


def _in_tests(backend: Backend) -> Callable[[FrameType], bool]:
    """Returns a function that accepts a frame. This function returns whether a test, and not a library, has called the
    framework. Only the innermost caller of the framework in the frame's stack matters."""
    # the packages of the framework and its adapter
    inner = {*backend.modules, f"xdevice_{backend.name}"}

    def is_called_by_test(frame: FrameType | None) -> bool:
        """Whether the innermost caller of the framework in the stack of `frame` is a test."""
        # the caller is the innermost frame outside the framework and its wrappers
        while frame is not None:
            packages = frame.f_globals.get("__name__", "").split(".")
            if packages[0] not in inner and _WRAPPERS not in packages:
                return _is_test(Path(frame.f_code.co_filename))
            frame = frame.f_back
        return False

    return is_called_by_test


def _is_test(path: Path) -> bool:
    """Whether a source file belongs to tests, according to its name or its folder."""
    # names that pytest itself uses for files of tests
    is_named = (
        path.stem.startswith("test_") or path.stem.endswith("_test") or path.stem == "conftest"
    )
    return is_named or not {"tests", "testing"}.isdisjoint(path.parts)
