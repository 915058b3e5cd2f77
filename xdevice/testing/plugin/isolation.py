"""`--xd-isolate`: runs the tests of each backend in a pytest process of their own, and merges the reports into this
run's.

The child process gets this run's own arguments, so it collects the same tests; a file names the tests that it is to
run. It appends each event, as a line of JSON, to another file, so that no earlier event is lost if it crashes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from xdevice.base.statuses import status_text
from xdevice.core.selection import VARIABLE

from .choice import about, backend_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_POLL: Final = 0.05
"""Seconds between two looks at the file that a child process writes."""
_TAIL: Final = 40
"""How many of the last lines of a crashed child process's output are shown."""


# the parent


class Parent:
    """In the parent process: runs the tests that use no backend here, then those of each backend in a process of their
    own."""

    def __init__(self, config: pytest.Config) -> None:
        names = {"-n": "numprocesses", "--pdb": "usepdb", "--trace": "trace"}
        used = [option for option, name in names.items() if config.getoption(name, None)]
        used += ["-s"] if config.getoption("capture") == "no" else []
        if used:
            raise pytest.UsageError(
                f"--xd-isolate runs the tests in processes of its own, so it goes without {used[0]}"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        if session.config.getoption("collectonly"):
            return (yield)
        every = session.items
        groups: dict[str | None, list[pytest.Item]] = {}
        for item in every:
            groups.setdefault(backend_of(item), []).append(item)
        session.items = groups.pop(None, [])
        try:
            result = yield
            for name, items in groups.items():
                assert name is not None
                _run(session, name, items)
        finally:
            session.items = every
        return result


def _run(session: pytest.Session, name: str, items: list[pytest.Item]) -> None:
    """Runs the items in child processes until each has been run: after a crash, a new process runs the rest."""
    waiting = {item.nodeid: item for item in items}
    while waiting:
        with TemporaryDirectory(prefix="xdevice-") as folder:
            child = _Process(session.config, Path(folder), name, list(waiting))
            try:
                running = _follow(session, child, waiting)
            finally:
                child.end()
            if running is not None:
                item = waiting.pop(running)
                _report_failure(session, item, name, "call", f"{child.how_it_ended()} in this test\n{child.tail()}")
                session.config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            else:
                tail = f"\n{child.tail()}"
                for item in waiting.values():
                    text = f"{child.how_it_ended()} without running this test{tail}"
                    _report_failure(session, item, name, "setup", text)
                    tail = ""
                waiting.clear()


def _follow(session: pytest.Session, child: _Process, waiting: dict[str, pytest.Item]) -> str | None:
    """Passes the child's events on to pytest until the child ends. Returns the test that was running then; None if no
    test was."""
    hook = session.config.hook
    running: str | None = None
    for kind, content in child.events():
        if kind == "start":
            running = content
            hook.pytest_runtest_logstart(nodeid=content, location=waiting[content].location)
        elif kind == "report":
            hook.pytest_runtest_logreport(report=_restored(session.config, content))
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=_restored_warning(content))
        else:
            running = None
            hook.pytest_runtest_logfinish(nodeid=content, location=waiting.pop(content).location)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return running


def _restored(config: pytest.Config, content: dict[str, Any]) -> pytest.TestReport:
    """A test report made from JSON, with tuples where pytest needs them: JSON has only lists."""
    content["location"] = tuple(content["location"])
    if isinstance(content["longrepr"], list):
        content["longrepr"] = tuple(content["longrepr"])
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=content)
    return report


def _restored_warning(content: dict[str, Any]) -> dict[str, Any]:
    category = type(content["category"], (Warning,), {"__module__": content["module"]})
    message = warnings.WarningMessage(category(content["message"]), category, content["filename"], content["lineno"])
    location = tuple(content["location"]) if content["location"] else None
    return {"warning_message": message, "when": content["when"], "nodeid": content["nodeid"], "location": location}


def _report_failure(session: pytest.Session, item: pytest.Item, name: str, when: Any, text: str) -> None:
    report = pytest.TestReport(
        item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", text, when, xdevice=about(item, name)
    )
    session.config.hook.pytest_runtest_logreport(report=report)


class _Process:
    """A pytest process that runs tests of one backend, with its list of tests, and the file to which it writes
    events."""

    def __init__(self, config: pytest.Config, folder: Path, name: str, nodeids: list[str]) -> None:
        task = folder / "task.json"
        self._name = name
        self._events = folder / "events.jsonl"
        self._output = folder / "output.txt"
        self._events.touch()
        task.write_text(json.dumps({"backend": name, "nodeids": nodeids, "events": str(self._events)}))
        command = [sys.executable, "-m", "pytest", f"--xd-child={task}"]
        if config.pluginmanager.hasplugin("cacheprovider"):  # --lf and similar options have already chosen the tests
            command.append(f"--override-ini=cache_dir={folder / 'cache'}")
        command += map(str, config.invocation_params.args)
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                command,
                cwd=config.invocation_params.dir,
                env={**os.environ, VARIABLE: name},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yields the events that the child reports, as they happen, until the child has ended and all events are
        read."""
        with self._events.open() as lines:
            line, has_ended = "", False
            while True:
                line += lines.readline()
                if line.endswith("\n"):
                    kind, content = json.loads(line)
                    yield kind, content
                    line = ""
                elif has_ended:
                    return
                else:
                    has_ended = self._wait()

    def _wait(self) -> bool:
        try:
            self._process.wait(_POLL)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def how_it_ended(self) -> str:
        return f"the pytest process of {self._name} ended {status_text(self._process.returncode)}"

    def tail(self) -> str:
        return "\n".join(self._output.read_text(errors="replace").splitlines()[-_TAIL:])


# the child


class Child:
    """In the child process: runs the tests of its list, and writes each event to a file."""

    def __init__(self, config: pytest.Config) -> None:
        task = json.loads(Path(config.option.xd_child).read_text())
        self.backend: str = task["backend"]
        self._config = config
        self._nodeids: list[str] = task["nodeids"]
        self._events = open(task["events"], "a", buffering=1)  # noqa: SIM115  # open until the session ends
        config.add_cleanup(self._events.close)

    def _tell(self, kind: str, content: object) -> None:
        self._events.write(json.dumps([kind, content], default=str) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        collected = {item.nodeid: item for item in items}
        items[:] = [collected[nodeid] for nodeid in self._nodeids if nodeid in collected]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("start", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._tell("report", hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell("finish", nodeid)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if when != "runtest":  # the parent collects the same tests, and is warned itself
            return
        category = warning_message.category
        content = {
            "category": category.__name__, "module": category.__module__, "message": str(warning_message.message),
            "filename": warning_message.filename, "lineno": warning_message.lineno,
            "when": when, "nodeid": nodeid, "location": location,
        }  # fmt: skip
        self._tell("warning", content)
