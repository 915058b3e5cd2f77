"""`--xd-record` and `--xd-compare`: the first option saves the values that each test compares or records, and the
second compares them with the values that another environment has saved.

Each option names a folder with a subfolder for each test. The subfolder contains a recording for each backend that ran
the test. A test is compared with the recording of its own backend. If there is no such recording, because the other
environment has other frameworks, the test is compared with the recordings of all backends.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from xdevice.twins.parity.record_files import ARRAYS, INDEX, Recording
from xdevice.twins.parity.recording import recording_to

from .choice import backend_of, tolerances

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.twins.parity.record_files import RecordedCall, Recorder

WITHOUT_BACKEND: Final = "without-backend"
"""The name of the folder that contains the recording of a test that does not use `xd`. For other tests, this folder has
the name of the backend."""
# the names under which the values of `assert_parity` are recorded
_ACTUAL: Final = "assert_parity.actual"
_EXPECTED: Final = "assert_parity.expected"

value_count: Final = pytest.StashKey[int]()
"""The number of values that were recorded in a test."""


class Recordings:
    """The folders that the two options name, and the recording of the test that is running.
    Raises `pytest.UsageError` for a folder that cannot be used."""

    def __init__(self, config: pytest.Config) -> None:
        self._target = _path(config, "xd_record")
        self._reference = _path(config, "xd_compare")
        # whoever writes `pytest --xd-record tests` means the tests to run, but "tests" becomes
        # the option's value
        if self._target is not None and next(self._target.glob("*.py"), None):
            raise pytest.UsageError(
                f"--xd-record={self._target} contains Python files; name another folder for the recordings"
            )
        if self._reference is not None and not self._reference.is_dir():
            raise pytest.UsageError(
                f"--xd-compare={self._reference}: there is no such folder; create it with --xd-record"
            )
        if (
            self._target
            and self._reference
            # `samefile` raises an error for a folder that does not exist yet
            and self._target.exists()
            and self._target.samefile(self._reference)
        ):
            raise pytest.UsageError(
                f"--xd-record and --xd-compare both name {self._target}; name another folder in --xd-record"
            )
        self._recorder: Recorder | None = None
        self._arguments: list[dict[str, Any]] = []

    def describe(self, values: int, tests: int) -> str:
        """Returns the line at the end of a run with the number of values, and of tests, that were recorded and
        compared."""
        parts = []
        if self._target is not None:
            parts.append(f"recorded in {self._target}")
        if self._reference is not None:
            parts.append(f"compared with {self._reference}")
        return f"xdevice: {values} values of {tests} tests {' and '.join(parts)}"

    @contextmanager
    def recording(self, item: pytest.Item) -> Iterator[None]:
        """A block in which the values of the test `item` are recorded. When the block ends, the values are compared
        with the recordings in the folder that --xd-compare names, if this option is used."""
        path = _path_of(item)
        self._arguments = []
        with ExitStack() as stack:
            if self._target is None:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="xdevice-")))
            else:
                folder = self._target / path
                # removes the values of an earlier run, which would remain if this run recorded
                # nothing
                for name in (INDEX, ARRAYS):
                    (folder / name).unlink(missing_ok=True)
            with recording_to(folder) as self._recorder:
                try:
                    yield
                finally:
                    self._recorder = None
            entries = _entries(folder)
            item.stash[value_count] = len(entries)
            if self._reference is not None:
                self._compare(item, entries, self._reference / path)

    def record(self, actual: object, expected: object, arguments: dict[str, Any]) -> None:
        """Records the two values of a call of `assert_parity`, and stores its other arguments for the comparison. A
        call from a fixture, outside the body of a test, is ignored."""
        # there is a recorder only during the body of a test
        if self._recorder is None:
            return
        self._arguments.append(arguments)
        self._recorder.add(_ACTUAL, actual)
        self._recorder.add(_EXPECTED, expected)

    def _compare(self, item: pytest.Item, entries: list[RecordedCall], own: Path) -> None:
        """Compares the recorded calls of a test with the recording of its own backend, in the folder `own`. If this
        folder does not exist, compares the calls with the recordings of all backends, in the neighbouring folders.
        Fails the test if there is a difference, or if the test has recorded calls but there is no recording of an
        earlier run."""
        folders = sorted(path.parent for path in own.parent.glob(f"*/{INDEX}"))
        if own in folders:
            folders = [own]
        if not folders and entries:
            pytest.fail(
                f"{self._reference} has no recording of this test; record it with --xd-record",
                pytrace=False,
            )
        for folder in folders:
            self._compare_with(item, entries, folder)

    def _compare_with(
        self, item: pytest.Item, entries: list[RecordedCall], folder: Path
    ) -> None:
        """Compares the recorded calls of a test with the recording in a folder. Names and values are compared, but not
        devices. Fails the test at the first difference."""
        from xdevice.twins.parity.comparing import compare_leaves
        from xdevice.twins.parity.tolerances import Strictness

        expected = Recording(folder).entries
        # what each call has recorded: the name of the value, and how often this name was recorded before
        mine = [(call.name, call.step) for call in entries]
        theirs = [(call.name, call.step) for call in expected]
        if mine != theirs:
            pytest.fail(
                f"this test recorded {_steps(mine)}, but {folder} contains {_steps(theirs)}",
                pytrace=False,
            )
        defaults = tolerances(item)
        for call, reference in zip(entries, expected, strict=True):
            # the step is the number of earlier calls with this name
            arguments = (
                self._arguments[call.step] if call.name in (_ACTUAL, _EXPECTED) else defaults
            )
            # only the arguments that concern values are used; devices are not compared, because
            # the other environment may have other devices
            options: dict[str, Any] = {
                name: x for name, x in arguments.items() if name in Strictness._fields
            }
            options["check_device"] = False
            result = compare_leaves(
                # `check` raises an error for a wrong tolerance, and returns the object itself
                call.read(),
                reference.read(),
                Strictness(**options).check(),
            )
            if not result.ok:
                pytest.fail(
                    f"{call.name} (step {call.step}) differs from {folder}: {result.text}",
                    pytrace=False,
                )


def _path(config: pytest.Config, option: str) -> Path | None:
    """Returns the folder that an option names, relative to the folder in which pytest was started; None if the option
    is not used."""
    text = config.getoption(option)
    return Path(config.invocation_params.dir, text) if text else None


def _path_of(item: pytest.Item) -> Path:
    """Returns the path of a test's recording: the folder of the test, and inside it the folder of the backend, such as
    `test_net.py-test_loss-3f2a90bc/torch`."""
    nodeid, backend = item.nodeid, backend_of(item)
    callspec = getattr(item, "callspec", None)
    # the name of the backend is removed from the parameters, so that the test has the same
    # folder on all backends
    if backend is not None and callspec is not None:
        parts = callspec.id.split("-")
        parts.remove(backend)
        nodeid = f"{nodeid.removesuffix(f'[{callspec.id}]')}[{'-'.join(parts)}]".removesuffix(
            "[]"
        )
    # cut to 80 characters, because file systems limit the length of names; the hash
    # distinguishes names that are equal after the cut
    name = re.sub(r"[^\w.]+", "-", nodeid).strip("-")[-80:]
    return Path(
        f"{name}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}", backend or WITHOUT_BACKEND
    )


def _entries(folder: Path) -> list[RecordedCall]:
    """Returns the recorded calls in a folder; an empty list if nothing was recorded, because then the folder contains
    no files."""
    return Recording(folder).entries if (folder / INDEX).exists() else []


def _steps(entries: list[tuple[str, int]]) -> str:
    """Returns the part of an error that says how often each name occurs in `entries`; "nothing" if there are no
    entries. Each entry is a pair of a name and a step."""
    steps = Counter(name for name, _ in entries)
    return ", ".join(f"{name} ({number} times)" for name, number in steps.items()) or "nothing"
