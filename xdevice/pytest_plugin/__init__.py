"""The pytest plugin: a test that uses the fixture `xd` runs on every backend. docs/reference/pytest.md shows how to use
it.

pytest loads this module in every run in an environment where xdevice is installed. So the module imports neither NumPy
nor a framework, and does nothing in a run in which no test uses its fixtures; slow imports are made where they are
used. (PYTEST_DONT_REWRITE: it asserts nothing.)
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from xdevice.base import devices
from xdevice.base.dtypes import DTYPES, SHORT_FLOATS
from xdevice.base.version import __version__
from xdevice.core import registry, selection
from xdevice.errors import (
    BackendNotFoundError,
    DeviceError,
    DeviceNotFoundError,
    UnsupportedError,
    XDeviceError,
)

from .choice import NOWHERE, BackendName, about, backend_of, named_by, needs_gpu, placed, tolerances

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

    from .recordings import Recordings

_MARKERS: Final = {
    "xd_only": "xd_only(*backends): run this test on these backends only",
    "xd_skip": "xd_skip(*backends, reason): skip it on these backends",
    "xd_xfail": "xd_xfail(*backends, reason, raises=None, strict=False, run=True): it is expected to fail on these",
    "xd_needs_gpu": "xd_needs_gpu(n=1): skip it where the backend sees fewer than n GPUs",
    "xd_needs_dtype": "xd_needs_dtype(*dtypes): skip it where tensors of one of these cannot be on xd_device",
    "xd_tol": "xd_tol(*backends, rtol=, atol=, ...): arguments of its assert_parity, on these backends or on all",
}
_KEYWORDS: Final = {
    "xd_only": (),
    "xd_skip": ("reason",),
    "xd_xfail": ("reason", "raises", "strict", "run"),
    "xd_needs_gpu": (),
    "xd_needs_dtype": (),
    "xd_tol": ("rtol", "atol", "check_device", "check_dtype", "equal_nan"),
}
_ORDER: Final = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


class Settings:
    """The options of this run that the command line and the ini file give. `pytest_configure` makes it."""

    def __init__(self, config: pytest.Config) -> None:
        self.device: str | None = config.getoption("xd_device")
        self.recordings: Recordings | None = None
        asked = config.getoption("xd_backends")
        self._text: str = config.getini("xd_backends") if asked is None else asked
        self._names: tuple[str, ...] | None = None
        self.is_auto = self._text.strip() == "auto"
        if not self.is_auto:
            self._names = _named(self._text)
        if self.device is not None:
            _check_device(self.device, self)

    @property
    def names(self) -> tuple[str, ...]:
        """The backends that tests are run on. With "auto" they are looked up at the first use."""
        if self._names is None:
            self._names = selection.backends()
        return self._names

    def only(self, name: str) -> None:
        self._names = (name,)


def _named(text: str) -> tuple[str, ...]:
    if not text.strip():
        raise pytest.UsageError("--xd-backends names no backend: give auto, or names such as torch,paddle")
    words = [word for part in text.split(",") for word in part.split() or [""]]
    try:
        names = tuple(dict.fromkeys(map(registry.canonical, words)))
    except BackendNotFoundError as error:
        raise pytest.UsageError(f"--xd-backends={text}: {error}") from None
    for name in names:
        if not registry.is_installed(name):
            hint = registry.install_hint(name)
            raise pytest.UsageError(f"--xd-backends={text}: {name} is not installed here; {hint}")
    return names


def _check_device(text: str, settings: Settings) -> None:
    with suppress(DeviceError):
        devices.parse(text)
        return
    for name in settings.names:  # an adapter may know a word that is its framework's own
        with suppress(XDeviceError):
            registry.load(name)
    try:
        devices.parse(text)
    except DeviceError as error:
        raise pytest.UsageError(f"--xd-device={text}: {error}") from None


_BODY, _FIXTURES = 0, 1
"""The seeds of random numbers: of those that a test itself draws, and of those that its fixtures draw."""

_settings: Final = pytest.StashKey[Settings]()
_guarded: Final = pytest.StashKey[bool]()


# options


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xdevice", "xdevice: the tests that ask for the fixture xd")
    group.addoption(
        "--xd-backends",
        metavar="NAMES",
        help="the backends to run on: names such as torch,paddle, which must be installed, or auto, all that are",
    )
    group.addoption(
        "--xd-device",
        metavar="DEVICE",
        help="what xd_device is, cpu or gpu:1 for instance; else gpu:0 where the backend has it, cpu:0 elsewhere",
    )
    group.addoption("--xd-isolate", action="store_true", help="run the tests of each backend in a process of their own")
    group.addoption("--xd-record", metavar="DIR", help="keep what assert_parity and xdevice.record see in each test")
    group.addoption("--xd-compare", metavar="DIR", help="compare it with what --xd-record has kept, here or elsewhere")
    group.addoption(
        "--xd-cuda",
        metavar="DEVICE",
        help="what PyTorch and JAX take for cuda, a virtual GPU such as gpu:1: for test suites that ask for cuda",
    )
    group.addoption(
        "--xd-default-of-tests",
        action="store_true",
        help="with --xd-cuda: the default device that a suite sets for PyTorch does not hold for the library it tests",
    )
    group.addoption("--xd-child", help=argparse.SUPPRESS)
    parser.addini("xd_backends", "the default of --xd-backends", default="auto")


@pytest.hookimpl(tryfirst=True)  # the conftest of a suite may choose its device when it is imported
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    options = early_config.known_args_namespace
    if options.xd_cuda is None:
        if options.xd_default_of_tests:
            raise pytest.UsageError("--xd-default-of-tests does nothing without --xd-cuda; add --xd-cuda=gpu:1")
        return
    from .cuda import Cuda

    cuda = Cuda(options.xd_cuda, is_default_of_tests=options.xd_default_of_tests)
    early_config.pluginmanager.register(cuda, "xdevice-cuda")


def pytest_configure(config: pytest.Config) -> None:
    for text in _MARKERS.values():
        config.addinivalue_line("markers", text)
    settings = config.stash[_settings] = Settings(config)
    if config.getoption("xd_record") or config.getoption("xd_compare"):
        from .recordings import Recordings

        settings.recordings = Recordings(config)
    if config.getoption("xd_child"):
        from .isolation import Child

        child = Child(config)
        settings.only(child.backend)
        config.pluginmanager.register(child, "xdevice-child")
    elif not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary(config), "xdevice-summary")
        if config.getoption("xd_isolate"):
            from .isolation import Parent

            config.pluginmanager.register(Parent(config), "xdevice-parent")


# collecting


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    definition = metafunc.definition
    marks = [mark for mark in definition.iter_markers() if mark.name in _MARKERS]
    for mark in marks:
        fault = _fault(mark)
        if fault:
            pytest.fail(f"{definition.nodeid}: {fault}", pytrace=False)
    if not _asks_for_xd(metafunc):
        idle = [mark.name for mark in definition.own_markers if mark.name in _MARKERS and mark.name != "xd_tol"]
        if idle:
            pytest.fail(f"{definition.nodeid}: {idle[0]} does nothing for a test without the fixture xd", pytrace=False)
        return
    every = metafunc.config.stash[_settings].names
    names: list[Any] = [BackendName(name) for name in every if _may_run(name, marks)]
    if not names:
        reason = f"it is for other backends than those of this run: {', '.join(every)}"
        names = [pytest.param(NOWHERE, marks=pytest.mark.skip(reason=reason))]
    metafunc.parametrize("xd", names, indirect=True, scope="session")


def _asks_for_xd(metafunc: pytest.Metafunc) -> bool:
    """Whether a test uses this plugin's fixture `xd`, and not a project's own fixture or parameter of the same name."""
    if "xd" not in metafunc.fixturenames:
        return False
    definitions = metafunc.definition._fixtureinfo.name2fixturedefs.get("xd", ())
    if not any(one.func.__module__ == __name__ for one in definitions):
        return False
    return definitions[-1].func.__module__ == __name__ or "xd" in definitions[-1].argnames


def _may_run(name: str, marks: Sequence[pytest.Mark]) -> bool:
    return all(name in named_by(mark) for mark in marks if mark.name == "xd_only")


def _fault(mark: pytest.Mark) -> str | None:
    """Says what is wrong with the arguments of one of this plugin's markers; None if they are right."""
    unknown = sorted(set(mark.kwargs) - set(_KEYWORDS[mark.name]))
    if unknown:
        return f"{mark.name} takes no {', '.join(unknown)}; {_MARKERS[mark.name]}"
    if mark.name == "xd_needs_gpu":
        wanted = mark.args or (1,)
        is_count = len(wanted) == 1 and type(wanted[0]) is int and wanted[0] > 0
        return None if is_count else f"xd_needs_gpu takes a number of GPUs of 1 or more, not {wanted!r:.100}"
    if mark.name == "xd_needs_dtype":
        unknown = [name for name in mark.args if name not in (*DTYPES, *SHORT_FLOATS)]
        is_right = mark.args and not unknown
        return None if is_right else f'xd_needs_dtype takes names such as "float64", not {unknown or "nothing"!r:.100}'
    try:
        named_by(mark)
    except BackendNotFoundError as error:
        return f"{mark.name}: {error}"
    if not mark.args and mark.name != "xd_tol":
        return f'{mark.name} names no backend; write {mark.name}("mxnet"{", ..." if _KEYWORDS[mark.name] else ""})'
    reason = mark.kwargs.get("reason")
    if "reason" in _KEYWORDS[mark.name] and not (isinstance(reason, str) and reason.strip()):
        return f'{mark.name} needs a reason; write {mark.name}({mark.args[0]!r}, reason="...")'
    if mark.name == "xd_tol" and not mark.kwargs:
        return "xd_tol sets nothing; write xd_tol(rtol=1e-4)"
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    name = backend_of(item)
    if name is None:
        return
    for mark in [mark for mark in item.iter_markers() if mark.name in _MARKERS]:
        fault = _fault(mark)  # markers of a parameter, which pytest_generate_tests does not see
        if fault:
            raise pytest.UsageError(f"{item.nodeid}: {fault}")
        if mark.name == "xd_only" and name != NOWHERE and name not in named_by(mark):
            item.add_marker(pytest.mark.skip(reason=f"only on {', '.join(named_by(mark))}"))
        elif mark.name == "xd_skip" and name in named_by(mark):
            item.add_marker(pytest.mark.skip(**mark.kwargs))
        elif mark.name == "xd_xfail" and name in named_by(mark):
            item.add_marker(pytest.mark.xfail(**mark.kwargs))


def pytest_collection_finish(session: pytest.Session) -> None:
    if any("xd_other_device" in getattr(item, "fixturenames", ()) for item in session.items):
        for backend in registry.list_loaded():
            _prepare(backend)
        registry.on_load.append(_prepare)
        session.config.add_cleanup(lambda: registry.on_load.remove(_prepare))


def _prepare(backend: Backend) -> None:
    """Makes a second device of a backend as soon as it is loaded: TensorFlow and JAX can make one only before they are
    used."""
    _second_device(backend)


# running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if backend_of(item) is None:
        return (yield)
    from xdevice import random

    before = selection.default()
    try:
        with random.keep_generator():
            return (yield)
    finally:
        _tell_kernels(item, "LEAVE")
        selection.restore_default(before)


def pytest_runtest_setup(item: pytest.Item) -> None:
    name = backend_of(item)
    if name is None:
        return
    backend = _load(name)
    # the process default: a context variable would not reach the test's own threads, nor an event loop made before
    selection.set_backend(backend)
    _tell_kernels(item, "ENTER")
    _seed(_FIXTURES)
    wanted = max((*mark.args, 1)[0] for mark in item.iter_markers("xd_needs_gpu")) if needs_gpu(item) else 0
    here = len(_gpus(backend)) if wanted else 0
    if here < wanted:
        why = f": {backend.why_no_gpu()}" if not here else ""
        reason = f"needs {wanted} GPU{'s' * (wanted > 1)}, and {name} sees {here}{why}"
        raise pytest.skip.Exception(reason, _use_item_location=True)
    _need_dtypes(item, backend)


def _need_dtypes(item: pytest.Item, backend: Backend) -> None:
    needed = [name for mark in item.iter_markers("xd_needs_dtype") for name in mark.args]
    if not needed:
        return
    from xdevice.tensors.creation import supports

    device = _device(backend, item.config.stash[_settings])
    lacking = [name for name in needed if not supports(name, device)]
    if lacking:
        reason = f"needs {', '.join(lacking)}, which {device} of {backend.name} cannot hold"
        raise pytest.skip.Exception(reason, _use_item_location=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    name = backend_of(item)
    if name is not None:
        selection.set_backend(name)  # a fixture of the project's may have cleared it
        _seed(_BODY)  # the same numbers, whichever fixtures were made before
    recordings = item.config.stash[_settings].recordings
    recording: AbstractContextManager[Any] = recordings.of(item) if recordings is not None else nullcontext()
    with recording, _guard(item):
        return (yield)


def _tell_kernels(item: pytest.Item, when: Literal["ENTER", "LEAVE"]) -> None:
    """Calls what the backend's arithmetic functions need to be called in this thread: `ENTER` before a test's first
    fixture, `LEAVE` at the test's end, so that the next test is not affected."""
    from xdevice.contract import arithmetic

    for backend in registry.list_loaded():
        if backend.name == backend_of(item):
            with suppress(UnsupportedError):  # no kernels, or this thread cannot be prepared for them
                getattr(backend.namespace(), getattr(arithmetic, when), _nothing)()


def _nothing() -> None: ...


def _seed(n: int) -> None:
    from xdevice import random

    random.seed(n)


def _guard(item: pytest.Item) -> AbstractContextManager[Any]:
    if not item.stash.get(_guarded, False):
        return nullcontext()
    from xdevice.execution.transfers import transfers

    return transfers("forbid")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    name = backend_of(item)
    if name is not None:
        report.xdevice = about(item, name)  # type: ignore[attr-defined]
    if report.when == "call" and item.config.stash[_settings].recordings is not None:
        from .recordings import seen

        report.xdevice_values = item.stash.get(seen, 0)  # type: ignore[attr-defined]
    return report


def _load(name: str) -> Backend:
    try:
        return registry.load(name)
    except XDeviceError as error:
        pytest.fail(str(error), pytrace=False)


# fixtures


@pytest.fixture(scope="session")
def xd(request: pytest.FixtureRequest) -> Backend:
    """The backend that this test runs on. A test that uses `xd` runs once on every backend of the run.

    The functions of `xdevice` use this backend by default, in every thread of the test. Tests may want `xd.name`,
    `xd.framework` and `xd.version`. Fixtures of any scope may use `xd`: the tests are sorted by backend. Each test
    draws from `xdevice.random` as after `seed(0)`, and the fixtures that are made for the test as after `seed(1)`.
    """
    if not hasattr(request, "param"):
        pytest.fail(
            "xd is a parameter, so it must be an argument of the test or of its fixtures: getfixturevalue() and "
            "unittest.TestCase get none",
            pytrace=False,
        )
    return _load(request.param)


@pytest.fixture(scope="session")
def xd_device(xd: Backend, pytestconfig: pytest.Config) -> Device:
    """The device to test on: the device that --xd-device names, else gpu:0 if the backend sees a GPU, and cpu:0
    otherwise."""
    settings = pytestconfig.stash[_settings]
    device = _device(xd, settings)
    pytestconfig.stash.setdefault(placed, {})[xd.name] = device
    return device


def _device(backend: Backend, settings: Settings) -> Device:
    if settings.device is None:
        return next(iter(_gpus(backend)), devices.CPU)
    try:
        device = backend.require(devices.parse(settings.device))
    except XDeviceError as error:
        if settings.is_auto and isinstance(error, DeviceNotFoundError):
            pytest.skip(f"--xd-device={settings.device}: {error}")
        pytest.fail(f"--xd-device={settings.device}: {error}", pytrace=False)
    return device


@pytest.fixture(scope="session")
def xd_devices(xd: Backend, xd_device: Device) -> list[Device]:
    """All GPUs of the backend, `xd_device` first, if `xd_device` is a GPU; else `[xd_device]`."""
    if xd_device.kind != "gpu":
        return [xd_device]
    return [xd_device, *(device for device in _gpus(xd) if device is not xd_device)]


@pytest.fixture(scope="session")
def xd_other_device(xd: Backend, xd_device: Device) -> Device:
    """A device other than `xd_device`, to test work on two devices: another GPU, else a second CPU device, else cpu:0.

    The test is skipped if there is no such device. TensorFlow and JAX get their second CPU device when they are loaded.
    """
    for device in (*_gpus(xd), _second_device(xd), devices.CPU):
        # tensors on torch's "meta" hold no values, so a test that compares values cannot use it
        if device is not None and device is not xd_device and device.kind != "meta":
            return device
    pytest.skip(f"{xd.name} has one device here that holds values: {xd_device}")


def _gpus(backend: Backend) -> list[Device]:
    try:
        return [devices.of("gpu", index) for index in range(backend.count("gpu"))]
    except UnsupportedError:  # XDEVICE_VIRTUAL_GPUS asks for GPUs, and NumPy can have none
        return []


def _second_device(backend: Backend) -> Device | None:
    """A second device of the backend, made if the framework can make one; None if it cannot, or has already started."""
    try:
        return backend.samples().other_device()
    except UnsupportedError:
        return None


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`xdevice.assert_parity` with the tolerances of the test's `xd_tol` markers.

    With --xd-record it also keeps the values that it is given, and with --xd-compare it compares them with those kept.
    The transfers to the host that it makes itself are allowed in a test with `no_transfer`.
    """
    defaults = tolerances(request.node)
    recordings = request.config.stash[_settings].recordings

    def assert_parity(actual: object, expected: object, **arguments: Any) -> None:
        __tracebackhide__ = True
        from xdevice.contract import hooks
        from xdevice.parity.comparing import assert_parity as check

        given = {**defaults, **arguments}
        with hooks.unseen():
            if recordings is not None:
                recordings.see(actual, expected, given)
            check(actual, expected, **given)

    return assert_parity


@pytest.fixture
def no_transfer(request: pytest.FixtureRequest) -> None:
    """Makes the test fail if its body reads a tensor on the host or moves a tensor. Its fixtures may do so.

    The body runs in a block of `xdevice.transfers("forbid")`; use that block itself for a part of a test.
    """
    request.node.stash[_guarded] = True


# what was run


class _Summary:
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
        is_asked_for = not self._settings.is_auto or self._settings.device or self._settings.recordings
        return self._header() if is_asked_for else None

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> str | None:
        return self._header() if not self._has_header and any(backend_of(item) for item in items) else None

    @property
    def _settings(self) -> Settings:
        return self._config.stash[_settings]

    def _header(self) -> str:
        self._has_header = True
        found = _installed_versions(self._settings.names)
        return f"xdevice {__version__}: " + ", ".join(f"{name} {found[name]}" for name in self._settings.names)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if getattr(report, "xdevice_values", 0):
            self._recorded.append(report.xdevice_values)
        seen = getattr(report, "xdevice", None)
        if seen is None:
            return
        counts = self._counts.setdefault(seen["backend"], Counter())
        category = self._config.hook.pytest_report_teststatus(report=report, config=self._config)[0]
        if category:
            counts[category] += 1
        if seen["version"]:
            self._versions[seen["backend"]] = seen["version"]
        self._on_gpu |= seen["on_gpu"] and category not in ("", "skipped")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_green = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if is_green and (self._ran_nothing or self._recorded_nothing):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def _ran(self) -> list[str]:
        return [name for name in registry.names() if set(self._counts.get(name, ())) - {"skipped"}]

    @property
    def _ran_nothing(self) -> bool:
        return bool(self._counts) and not self._ran

    @property
    def _recorded_nothing(self) -> bool:
        return self._settings.recordings is not None and not self._recorded and not self._config.option.collectonly

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._settings.recordings is not None:
            line = self._settings.recordings.describe(sum(self._recorded), len(self._recorded))
            hint = ", which is a failure: use the fixture assert_parity, or xdevice.record"
            terminalreporter.write_line(line + hint * self._recorded_nothing, red=self._recorded_nothing)
        for line in _lacking(terminalreporter.stats.get("skipped", ())):
            terminalreporter.write_line(line)
        if not self._counts:
            return
        ran = ", ".join(f"{name} {self._version(name)} ({_outcomes(self._counts[name])})" for name in self._ran)
        line = f"xdevice: {ran or 'no backend was run, which is a failure'}; not run: {', '.join(self._not_run())}"
        terminalreporter.write_line(line.removesuffix("; not run: "), red=not ran)

    def _version(self, name: str) -> str:
        return self._versions.get(name) or _installed_versions([name])[name]

    def _not_run(self) -> list[str]:
        left = [] if self._on_gpu else ["gpu"]
        for name in registry.names():
            if name in self._ran:
                continue
            if name in self._counts:
                left.append(f"{name} ({_outcomes(self._counts[name])})")
            elif name in self._settings.names:
                left.append(name)
            elif self._settings.is_auto:
                left.append(f"{name} (not installed)")
        return left


def _lacking(skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Lines that name the capabilities that tested adapters lack, as tests of `xdevice.testing` report them when they
    are skipped, and the code that would add them."""
    tests = [report for report in skipped if isinstance(report, pytest.TestReport)]  # not a module skipped as a whole
    said = [value for report in tests for name, value in report.user_properties if name == "xdevice lacks"]
    return [str(line) for line in dict.fromkeys(said)]


def _outcomes(counts: Counter[str]) -> str:
    shown = sorted(counts, key=lambda category: _ORDER.index(category) if category in _ORDER else len(_ORDER))
    return ", ".join(f"{counts[one]} {one}{'s' * (one == 'error' and counts[one] > 1)}" for one in shown)


def _installed_versions(names: Sequence[str]) -> dict[str, str]:
    """The versions of the backends' packages, from their metadata: only tests that need a framework import it."""
    from importlib import metadata

    modules = {known.name: known.modules[0] for known in registry.KNOWN}
    owners = _owners_of_modules()
    found = {}
    for name in names:
        distributions = owners.get(modules.get(name, ""), [])
        if not distributions and name in registry.entry_points():
            distribution = registry.entry_points()[name].dist
            distributions = [distribution.name] if distribution is not None else []
        found[name] = metadata.version(distributions[0]) if distributions else "?"
    return found


@cache
def _owners_of_modules() -> Mapping[str, list[str]]:
    """For each module that is installed, the packages that it comes from. Takes half a second if many packages are
    installed."""
    from importlib import metadata

    return metadata.packages_distributions()
