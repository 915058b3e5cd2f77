"""Writes lines at the beginning and the end of a run: the names of the backends, and the number of recorded values.
(PYTEST_DONT_REWRITE: this module contains no assertions.)"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from xdevice.base.version import __version__
from xdevice.core import registry, versions

from .choice import backend_of
from .options import Settings, settings_key

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTEST_ORDER: Final = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
"""The order in which pytest lists outcomes."""


class Summary:
    """Writes the plugin's lines at the beginning and end of a run. Makes a run fail if all tests that use `xd` were
    skipped, or if values should have been recorded but no test recorded a value."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._counts: dict[str, Counter[str]] = {}
        """For each backend, the number of tests by outcome."""
        self._versions: dict[str, str] = {}
        """The versions of the frameworks that were loaded, by the name of the backend."""
        self._on_gpu = False
        """Whether a test has run on a GPU."""
        self._recorded: list[int] = []
        """The number of recorded values of each test that recorded at least one."""
        self._has_header = False

    def pytest_report_header(self) -> str | None:
        """Returns the line with the backends at the start of a run, if an option names a backend, a device or a folder
        of recordings. Returns None otherwise."""
        # only the options decide, because the tests are not collected yet; with xdist, they are
        # collected in other processes
        is_asked_for = (
            not self._settings.is_auto or self._settings.device or self._settings.recordings
        )
        return self._header() if is_asked_for else None

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> str | None:
        """Returns the line with the backends after collection, if a test uses `xd` and this line was not written at the
        start of the run. Returns None otherwise."""
        return (
            self._header()
            if not self._has_header and any(backend_of(item) for item in items)
            else None
        )

    @property
    def _settings(self) -> Settings:
        """The options of this run."""
        return self._config.stash[settings_key]

    def _header(self) -> str:
        """Returns the line with the backends of this run and their versions."""
        self._has_header = True
        return f"xdevice {__version__}: " + ", ".join(
            f"{name} {_installed(name)}" for name in self._settings.names
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts the outcome of a test, and its recorded values, from one of its reports: the report of its setup, its
        call or its teardown."""
        if getattr(report, "xdevice_values", 0):
            self._recorded.append(report.xdevice_values)
        facts = getattr(report, "xdevice", None)
        if facts is None:
            return
        counts = self._counts.setdefault(facts["backend"], Counter())
        # `report.outcome` would be "skipped" for an expected failure, and would not include the
        # categories of plugins
        category = self._config.hook.pytest_report_teststatus(
            report=report, config=self._config
        )[0]
        if category:
            counts[category] += 1
        if facts["version"]:
            self._versions[facts["backend"]] = facts["version"]
        self._on_gpu |= facts["on_gpu"] and category not in ("", "skipped")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Makes a run fail if nothing was run or recorded, but the run would otherwise pass."""
        is_green = session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        if is_green and (self._ran_nothing or self._recorded_nothing):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def _ran(self) -> list[str]:
        """The names of the backends on which at least one test was not skipped."""
        return [
            name for name in registry.names() if set(self._counts.get(name, ())) - {"skipped"}
        ]

    @property
    def _ran_nothing(self) -> bool:
        """Whether there were tests of backends, and all of these tests were skipped."""
        return bool(self._counts) and not self._ran

    @property
    def _recorded_nothing(self) -> bool:
        """Whether values should have been recorded but no test recorded a value."""
        return (
            self._settings.recordings is not None
            and not self._recorded
            and not self._config.option.collectonly
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes the last lines: the number of recorded values, the capabilities that adapters lack, and which backends
        were run and which were not."""
        if self._settings.recordings is not None:
            line = self._settings.recordings.describe(sum(self._recorded), len(self._recorded))
            hint = ", which is a failure: use the fixture assert_parity, or xdevice.parity.log"
            # a text times False is ""
            terminalreporter.write_line(
                line + hint * self._recorded_nothing, red=self._recorded_nothing
            )
        for line in _lacking(terminalreporter.stats.get("skipped", ())):
            terminalreporter.write_line(line)
        if not self._counts:
            return
        ran = ", ".join(
            f"{name} {self._version(name)} ({_outcomes(self._counts[name])})"
            for name in self._ran
        )
        last_line = f"xdevice: {ran or 'no backend was run, which is a failure'}; not run: {', '.join(self._not_run())}"
        # the end is removed if it names nothing
        terminalreporter.write_line(last_line.removesuffix("; not run: "), red=not ran)

    def _version(self, name: str) -> str:
        """Returns the version of a backend's framework: the loaded version if the framework was loaded, otherwise the
        installed version."""
        return self._versions.get(name) or _installed(name)

    def _not_run(self) -> list[str]:
        """Returns the names that the last line lists as not run: "gpu" if no test has used a GPU, and the backends on
        which no test has run, some of them with the reason."""
        not_run = [] if self._on_gpu else ["gpu"]
        for name in registry.names():
            if name in self._ran:
                continue
            # all tests on this backend were skipped
            if name in self._counts:
                not_run.append(f"{name} ({_outcomes(self._counts[name])})")
            elif name in self._settings.names:
                not_run.append(name)
            elif self._settings.is_auto:
                not_run.append(f"{name} (not installed)")
        return not_run


def _lacking(skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Returns lines with the capabilities that the tested adapters lack, and with the methods to write; [] if no
    capability is missing. Each line comes from a property that `xdevice.testing` has added to a skipped test."""
    # a dict, because it keeps the order, and contains each line only once
    lines: dict[str, None] = {}
    for report in skipped:
        # if a whole module was skipped, its report has no properties
        if isinstance(report, pytest.TestReport):
            lines |= {
                str(value): None
                for name, value in report.user_properties
                if name == "xdevice lacks"
            }
    return list(lines)


def _outcomes(counts: Counter[str]) -> str:
    """Returns the number of tests for each outcome in pytest's order, such as "3 passed, 1 skipped"."""
    # outcomes that plugins have added come last
    shown = sorted(
        counts,
        key=lambda category: (
            _PYTEST_ORDER.index(category) if category in _PYTEST_ORDER else len(_PYTEST_ORDER)
        ),
    )
    # like pytest, which writes "2 errors", but "2 failed"
    return ", ".join(
        f"{counts[outcome]} {outcome}{'s' * (outcome == 'error' and counts[outcome] > 1)}"
        for outcome in shown
    )


def _installed(name: str) -> str:
    """Returns the installed version of a backend's framework; "?" if it is unknown."""
    return versions.installed_version(name) or "?"
