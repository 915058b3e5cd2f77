"""`--xd-cuda`: makes a virtual GPU the device that test suites of other projects call "cuda". (PYTEST_DONT_REWRITE: it
asserts nothing.)"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from xdevice.base import devices
from xdevice.contract import environment
from xdevice.core import frameworks, registry
from xdevice.errors import XDeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    from xdevice.contract import Backend

_WRAPPERS: Final = "array_api_compat"
"""The package, or a library's own copy of it, through which tests and libraries call frameworks."""


class Cuda:
    """Tells each backend, as soon as it is loaded, to take "cuda" for the device that `--xd-cuda` names. Makes the run
    fail if no backend was told so, because then it has shown nothing about GPUs."""

    def __init__(self, name: str, *, is_default_of_tests: bool) -> None:
        self._is_default_of_tests = is_default_of_tests
        try:
            self._device = devices.parse(name)
            there = environment.virtual_gpus_wanted()
        except XDeviceError as error:
            raise pytest.UsageError(f"--xd-cuda={name}: {error}") from None
        if there and self._device.kind != "gpu":
            raise pytest.UsageError(
                f"--xd-cuda={name} takes a virtual GPU: gpu:0 to gpu:{there - 1}"
            )
        if self._device.kind != "gpu" or self._device.index >= there:
            wanted = max(2, self._device.index + 1)
            raise pytest.UsageError(
                f"--xd-cuda={name} takes a virtual GPU, and there are {there}; set {environment.VIRTUAL_GPUS}={wanted} "
                f"and name one, gpu:1 for instance (a real GPU is called cuda already)"
            )
        self._here: list[str] = []
        self._taken: dict[str, None] = {}
        # the suite may have imported a framework before the options were read
        for backend in registry.list_loaded():
            self._tell(backend)
        registry.on_load.append(self._tell)

    def _tell(self, backend: Backend) -> None:
        if backend.take_for_cuda(
            self._device, _in_tests(backend) if self._is_default_of_tests else None
        ):
            self._here.append(f"{backend.name} {backend.version}")

    def pytest_report_header(self) -> str:
        return f'xdevice: "cuda" is {self._device}, a virtual GPU in the memory of the host'

    def pytest_collection_finish(self) -> None:
        try:
            for framework in frameworks.list_imported():
                # raises what the import hook has kept until the backend is used
                registry.load(framework.name)
        except XDeviceError as error:
            raise pytest.UsageError(f"--xd-cuda={self._device}: {error}") from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.xdevice_cuda = self._here  # type: ignore[attr-defined]  # from a worker of xdist to its parent
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._taken |= dict.fromkeys(getattr(report, "xdevice_cuda", ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (
            # a run that has failed needs no second reason
            session.exitstatus == pytest.ExitCode.OK
            and not self._taken
            and not session.config.option.collectonly
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.option.collectonly:
            return
        names = (
            ", ".join(self._taken)
            or "no framework: none was imported that is asked for it, which is a failure"
        )
        terminalreporter.write_line(
            f'xdevice: "cuda" was {self._device} for {names}', red=not self._taken
        )


def _in_tests(backend: Backend) -> Callable[[FrameType], bool]:
    """Returns a function that says whether the code of tests, and not a library's, has called the framework."""
    passed = {*backend.modules, f"xdevice_{backend.name}"}

    def answer(frame: FrameType | None) -> bool:
        # the innermost frame outside the framework and its wrappers made the call
        while frame is not None:
            packages = frame.f_globals.get("__name__", "").split(".")
            if packages[0] not in passed and _WRAPPERS not in packages:
                return _is_test(Path(frame.f_code.co_filename))
            frame = frame.f_back
        return False

    return answer


def _is_test(path: Path) -> bool:
    # pytest's usual names of files with tests
    is_named = (
        path.stem.startswith("test_") or path.stem.endswith("_test") or path.stem == "conftest"
    )
    return is_named or not {"tests", "testing"}.isdisjoint(path.parts)
