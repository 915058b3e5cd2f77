"""The lines at the beginning and the end of a run: which backends there were, and what was recorded.
(PYTEST_DONT_REWRITE: it asserts nothing.)"""

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

_ORDER: Final = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


class Summary:
    """Writes the plugin's lines at the beginning and end of a run. Makes a run fail if all its tests of backends were
    skipped, or if it was to record values and no test had any."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._counts: dict[str, Counter[str]] = {}
        self._versions: dict[str, str] = {}
        self._on_gpu = False
        self._recorded: list[int] = []
        self._has_header = False

    def pytest_report_header(self) -> str | None:
        # with xdist the tests are collected elsewhere: what they ask for is known from the options only
        is_asked_for = (
            not self._settings.is_auto or self._settings.device or self._settings.recordings
        )
        return self._header() if is_asked_for else None

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> str | None:
        return (
            self._header()
            if not self._has_header and any(backend_of(item) for item in items)
            else None
        )

    @property
    def _settings(self) -> Settings:
        return self._config.stash[settings_key]

    def _header(self) -> str:
        self._has_header = True
        return f"xdevice {__version__}: " + ", ".join(
            f"{name} {_installed(name)}" for name in self._settings.names
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if getattr(report, "xdevice_values", 0):
            self._recorded.append(report.xdevice_values)
        facts = getattr(report, "xdevice", None)
        if facts is None:
            return
        counts = self._counts.setdefault(facts["backend"], Counter())
        # the hook, because an expected failure has the outcome "skipped", and plugins add categories
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
        is_green = session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        if is_green and (self._ran_nothing or self._recorded_nothing):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def _ran(self) -> list[str]:
        return [
            name for name in registry.names() if set(self._counts.get(name, ())) - {"skipped"}
        ]

    @property
    def _ran_nothing(self) -> bool:
        return bool(self._counts) and not self._ran

    @property
    def _recorded_nothing(self) -> bool:
        return (
            self._settings.recordings is not None
            and not self._recorded
            and not self._config.option.collectonly
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._settings.recordings is not None:
            line = self._settings.recordings.describe(sum(self._recorded), len(self._recorded))
            hint = ", which is a failure: use the fixture assert_parity, or xdevice.parity.log"
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
        line = f"xdevice: {ran or 'no backend was run, which is a failure'}; not run: {', '.join(self._not_run())}"
        terminalreporter.write_line(line.removesuffix("; not run: "), red=not ran)

    def _version(self, name: str) -> str:
        return self._versions.get(name) or _installed(name)

    def _not_run(self) -> list[str]:
        """The names that the last line lists as not run: GPUs, and backends."""
        left = [] if self._on_gpu else ["gpu"]
        for name in registry.names():
            if name in self._ran:
                continue
            if name in self._counts:  # all its tests were skipped
                left.append(f"{name} ({_outcomes(self._counts[name])})")
            elif name in self._settings.names:
                left.append(name)
            elif self._settings.is_auto:
                left.append(f"{name} (not installed)")
        return left


def _lacking(skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Lines that name the capabilities that tested adapters lack, as tests of `xdevice.testing` report them when they
    are skipped, and the code that would add them."""
    lines: dict[str, None] = {}  # in the order in which they came, and each once
    for report in skipped:
        if isinstance(report, pytest.TestReport):  # not a module skipped as a whole
            lines |= {
                str(value): None
                for name, value in report.user_properties
                if name == "xdevice lacks"
            }
    return list(lines)


def _outcomes(counts: Counter[str]) -> str:
    """The numbers of tests by outcome, in pytest's order."""
    shown = sorted(
        counts,
        key=lambda category: _ORDER.index(category) if category in _ORDER else len(_ORDER),
    )
    return ", ".join(
        f"{counts[one]} {one}{'s' * (one == 'error' and counts[one] > 1)}" for one in shown
    )


def _installed(name: str) -> str:
    return versions.installed_version(name) or "?"
