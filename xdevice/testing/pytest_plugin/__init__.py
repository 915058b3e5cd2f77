"""The pytest plugin: a test that uses the fixture `xd` runs on every backend.
docs/reference/pytest.md shows how to use it.

If xdevice is installed, pytest loads this module in every run. Therefore, the module imports neither NumPy nor a
framework, and does nothing if no test of the run uses its fixtures. Modules that are slow to import are imported in the
functions that use them. (PYTEST_DONT_REWRITE: this module contains no assertions.)
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from xdevice.base import devices
from xdevice.core import generators, registry, selection
from xdevice.errors import DeviceNotFoundError, UnsupportedError, XDeviceError

from .choice import (
    NOWHERE,
    BackendName,
    backend_of,
    backends_in_marker,
    needs_gpu,
    summary_facts,
    tolerances,
    used_devices,
)
from .markers import MARKERS, fault_of
from .options import Settings, settings_key
from .summary import Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

_SEED_OF_BODY, _SEED_OF_FIXTURES = 0, 1
"""The seed of the random numbers that a test itself draws, and the seed of the numbers that its fixtures draw."""

_uses_no_transfer: Final = pytest.StashKey[bool]()
"""Whether a test uses the fixture `no_transfer`."""


# the options, and the start of a run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of this plugin."""
    group = parser.getgroup("xdevice", "xdevice: the tests that use the fixture xd")
    group.addoption(
        "--xd-backends",
        metavar="NAMES",
        help="the backends to run on: auto for all that are installed, or names such as torch,paddle",
    )
    group.addoption(
        "--xd-device",
        metavar="DEVICE",
        help="the value of xd_device, such as gpu:1; by default gpu:0 if the backend has it, and cpu:0 otherwise",
    )
    group.addoption(
        "--xd-record",
        metavar="DIR",
        help="save the values that each test passes to assert_parity and xdevice.parity.log",
    )
    group.addoption(
        "--xd-compare",
        metavar="DIR",
        help="compare these values with those that --xd-record has saved, here or on another machine",
    )
    group.addoption(
        "--xd-cuda",
        metavar="DEVICE",
        help="the virtual GPU, such as gpu:1, that PyTorch and JAX use as cuda, for test suites that use cuda",
    )
    group.addoption(
        "--xd-default-of-tests",
        action="store_true",
        help="with --xd-cuda: a suite's default device for PyTorch applies to the tests, not to the library they test",
    )
    parser.addini("xd_backends", "the default of --xd-backends", default="auto")


# tryfirst, because a suite's conftest may choose the suite's device when it is imported
@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """If the option --xd-cuda is used, registers the plugin that makes a virtual GPU the device "cuda". Raises
    `pytest.UsageError` if --xd-cuda does not name a virtual GPU, or if --xd-default-of-tests is used without
    --xd-cuda."""
    options = early_config.known_args_namespace
    if options.xd_cuda is None:
        if options.xd_default_of_tests:
            raise pytest.UsageError(
                "--xd-default-of-tests does nothing without --xd-cuda; add --xd-cuda=gpu:1"
            )
        return
    from .cuda import Cuda

    cuda = Cuda(options.xd_cuda, is_default_of_tests=options.xd_default_of_tests)
    early_config.pluginmanager.register(cuda, "xdevice-cuda")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers and the summary of this run, and stores the options and the
    recordings in `config.stash`."""
    for text in MARKERS.values():
        config.addinivalue_line("markers", text)
    settings = config.stash[settings_key] = Settings(config)
    if config.getoption("xd_record") or config.getoption("xd_compare"):
        from .recordings import Recordings

        settings.recordings = Recordings(config)
    # with xdist, the workers report to the process that prints the summary
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config), "xdevice-summary")


# collecting tests: one for each backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Replaces each test that uses `xd` with one test for each backend on which it may run. If there is no such
    backend, replaces it with one skipped test. Fails if a marker of this plugin has wrong arguments. Also fails for a
    test that does not use `xd` but has a marker of this plugin other than `xd_tol`."""
    definition = metafunc.definition
    marks = [mark for mark in definition.iter_markers() if mark.name in MARKERS]
    for mark in marks:
        fault = fault_of(mark)
        if fault:
            pytest.fail(f"{definition.nodeid}: {fault}", pytrace=False)
    if not _asks_for_xd(metafunc):
        # a marker without `xd` would silently do nothing. Only the test's own markers are checked, not
        # those of its class or module
        idle = [
            mark.name
            for mark in definition.own_markers
            if mark.name in MARKERS and mark.name != "xd_tol"
        ]
        if idle:
            pytest.fail(
                f"{definition.nodeid}: {idle[0]} does nothing for a test without the fixture xd; "
                "add the argument xd, or remove the marker",
                pytrace=False,
            )
        return
    all_names = metafunc.config.stash[settings_key].names
    # chosen here instead of being skipped later, so that the report does not list tests for
    # backends that `xd_only` excludes
    names: list[Any] = [BackendName(name) for name in all_names if _may_run(name, marks)]
    if not names:
        reason = f"this test is not for the backends of this run: {', '.join(all_names)}"
        names = [pytest.param(NOWHERE, marks=pytest.mark.skip(reason=reason))]
    # the scope is the session, so that fixtures of any scope may use `xd`, and pytest sorts the
    # tests by backend
    metafunc.parametrize("xd", names, indirect=True, scope="session")


def _asks_for_xd(metafunc: pytest.Metafunc) -> bool:
    """Whether a test uses this plugin's fixture `xd`. A project may also have its own fixture `xd`, which then must use
    the plugin's fixture as its argument. A project's own parameter `xd`, and any other fixture `xd`, are ignored."""
    if "xd" not in metafunc.fixturenames:
        return False
    # a private attribute, because pytest has no public function that returns the fixture with a given name
    definitions = metafunc.definition._fixtureinfo.name2fixturedefs.get("xd", ())
    if not any(definition.func.__module__ == __name__ for definition in definitions):
        return False
    # pytest uses the last definition; a project's own fixture may have the fixture that it overrides as an argument
    used = definitions[-1]
    return used.func.__module__ == __name__ or "xd" in used.argnames


def _may_run(name: str, marks: Sequence[pytest.Mark]) -> bool:
    """Whether every `xd_only` among these markers names the backend `name`; True if there is no such marker."""
    return all(name in backends_in_marker(mark) for mark in marks if mark.name == "xd_only")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Adds pytest's own marker `skip` or `xfail` to a test, if a marker of this plugin says that the test is to be
    skipped, or is expected to fail, on its backend."""
    name = backend_of(item)
    if name is None:
        return
    for mark in [mark for mark in item.iter_markers() if mark.name in MARKERS]:
        # markers of a parameter (`pytest.param(..., marks=)`) are not available in
        # `pytest_generate_tests`
        fault = fault_of(mark)
        if fault:
            raise pytest.UsageError(f"{item.nodeid}: {fault}")
        # a test on `NOWHERE` is skipped already
        if mark.name == "xd_only" and name != NOWHERE and name not in backends_in_marker(mark):
            item.add_marker(
                pytest.mark.skip(reason=f"only on {', '.join(backends_in_marker(mark))}")
            )
        elif mark.name == "xd_skip" and name in backends_in_marker(mark):
            item.add_marker(pytest.mark.skip(**mark.kwargs))
        elif mark.name == "xd_xfail" and name in backends_in_marker(mark):
            item.add_marker(pytest.mark.xfail(**mark.kwargs))


def pytest_collection_finish(session: pytest.Session) -> None:
    """If a test uses the fixture `xd_other_device`, creates a second device for every backend that is loaded already or
    will be loaded later."""
    if any("xd_other_device" in getattr(item, "fixturenames", ()) for item in session.items):
        # first for the backends that are loaded already, then for those that will be loaded
        for backend in registry.list_loaded():
            _make_second_device(backend)
        registry.on_load.append(_make_second_device)
        # removed at the end of the run, because pytest may run again in this process
        session.config.add_cleanup(lambda: registry.on_load.remove(_make_second_device))


def _make_second_device(backend: Backend) -> None:
    """Creates a second device for a backend that was just loaded, because TensorFlow and JAX can create one only before
    their first use."""
    _second_device(backend)


# running one test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Restores the default backend and the generator of random numbers after each test that
    uses `xd`."""
    if backend_of(item) is None:
        return (yield)
    # the default backend that the project itself may have set
    before = selection.default()
    try:
        with generators.keep_generator():
            return (yield)
    finally:
        _run_kernel_hook(item, "leave")
        selection.restore_default(before)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepares a test that uses `xd` before its fixtures are set up: selects the backend, and seeds the random numbers.
    Skips the test if the backend lacks a GPU or a dtype that the test needs. Fails the test if the backend cannot be
    loaded."""
    name = backend_of(item)
    if name is None:
        return
    backend = _load_or_fail(name)
    # selected for the whole process, because a block of `use_backend` would not reach the
    # test's threads, nor an event loop that was created earlier
    selection.set_backend(backend)
    _run_kernel_hook(item, "enter")
    _seed(_SEED_OF_FIXTURES)
    _skip_without_gpus(item, backend)
    _skip_without_dtypes(item, backend)


def _skip_without_gpus(item: pytest.Item, backend: Backend) -> None:
    """Skips a test whose marker `xd_needs_gpu` requires more GPUs than the backend has. Without an argument, the marker
    requires one GPU."""
    # returns before GPUs are counted, because counting may start the framework: TensorFlow
    # initializes CUDA to count
    if not needs_gpu(item):
        return
    # the first item is the argument of the marker or, without an argument, the 1 behind it
    wanted = max((*mark.args, 1)[0] for mark in item.iter_markers("xd_needs_gpu"))
    count = len(_gpus(backend))
    if count < wanted:
        plural = "s" if wanted > 1 else ""
        why = "" if count else f": {backend.why_no_gpu()}"
        reason = f"needs {wanted} GPU{plural}, but {backend.name} finds {count}{why}"
        # without `_use_item_location`, the report would name this line as the place of the skip
        raise pytest.skip.Exception(reason, _use_item_location=True)


def _skip_without_dtypes(item: pytest.Item, backend: Backend) -> None:
    """Skips a test whose marker `xd_needs_dtype` names a dtype that `xd_device` cannot hold."""
    needed = [name for mark in item.iter_markers("xd_needs_dtype") for name in mark.args]
    if not needed:
        return
    from xdevice.tensors.creation import is_dtype_supported

    device = _device(backend, item.config.stash[settings_key])
    lacking = [name for name in needed if not is_dtype_supported(name, device)]
    if lacking:
        reason = (
            f"needs {', '.join(lacking)}, which {device} of {backend.name} does not support"
        )
        raise pytest.skip.Exception(reason, _use_item_location=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs the body of a test, and records its values if --xd-record or --xd-compare is used."""
    name = backend_of(item)
    if name is not None:
        # selected again, because one of the project's fixtures may have changed the backend
        selection.set_backend(name)
        # seeded again, so that the test draws the same numbers, whichever fixtures have drawn numbers before
        _seed(_SEED_OF_BODY)
    recordings = item.config.stash[settings_key].recordings
    recording: AbstractContextManager[Any] = (
        recordings.recording(item) if recordings is not None else nullcontext()
    )
    with recording, _refusing_transfers(item):
        return (yield)


def _run_kernel_hook(item: pytest.Item, when: Literal["enter", "leave"]) -> None:
    """Calls the function `enter` or `leave` of the array namespace of the test's backend. Does nothing if the backend
    is not loaded, or has no such function. Before the first fixture, `enter` prepares this thread for arithmetic
    functions. At the end of the test, `leave` undoes this for the next test."""
    for backend in registry.list_loaded():
        if backend.name == backend_of(item):
            # UnsupportedError: the backend has no arithmetic functions, or cannot prepare this
            # thread for such functions
            with suppress(UnsupportedError):
                getattr(backend.namespace(), when, _nothing)()


def _nothing() -> None:
    """Does nothing. Called in place of a function that an array namespace lacks."""


def _seed(n: int) -> None:
    """Seeds the random numbers of `xdevice.random`."""
    from xdevice.math import random

    random.seed(n)


def _refusing_transfers(item: pytest.Item) -> AbstractContextManager[Any]:
    """Returns a context manager for the body of a test. It refuses transfers if the test uses
    `no_transfer`, and otherwise does nothing."""
    if not item.stash.get(_uses_no_transfer, False):
        return nullcontext()
    from xdevice.performance.transfers import transfers

    return transfers("disallow_explicit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hides xdevice's own frames in the traceback of an error. Adds the facts for the summary to the report."""
    name = backend_of(item)
    if name is not None and call.excinfo is not None:
        # so that pytest shows the line of the test instead of lines inside xdevice
        for entry in call.excinfo.traceback:
            module = entry.frame.f_globals
            if module["__name__"].startswith("xdevice."):
                # pytest looks this name up in the frame's globals, except with --full-trace. It calls the function with
                # the error, and hides the frame if the result is True
                module["__tracebackhide__"] = _is_xdevice_error
    report = yield
    if name is not None:
        report.xdevice = summary_facts(item, name)  # type: ignore[attr-defined]
    # only in the report of the call, because a test also has reports of its setup and teardown
    if report.when == "call" and item.config.stash[settings_key].recordings is not None:
        from .recordings import value_count

        report.xdevice_values = item.stash.get(value_count, 0)  # type: ignore[attr-defined]
    return report


def _is_xdevice_error(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether an error is an `XDeviceError`. Such an error is caused by the line that called xdevice, and not by a line
    inside xdevice."""
    return isinstance(error.value, XDeviceError)


def _load_or_fail(name: str) -> Backend:
    """Returns the backend with this name, or fails the test if it cannot be loaded."""
    try:
        return registry.load(name)
    except XDeviceError as error:
        pytest.fail(str(error), pytrace=False)


# fixtures


@pytest.fixture(scope="session")
def xd(request: pytest.FixtureRequest) -> Backend:
    """The backend on which this test runs. A test that uses `xd` runs once on every backend of the run.

    The functions of `xdevice` use this backend by default, in every thread of the test. Tests can read `xd.name`,
    `xd.framework` and `xd.version`. Fixtures of any scope may use `xd`, because the tests are sorted by backend. Random
    numbers of `xdevice.random` start from `seed(0)` in each test, and from `seed(1)` in the fixtures that are set up
    for the test.
    """
    if not hasattr(request, "param"):
        pytest.fail(
            "xd is a parametrized fixture, so it must be an argument of the test or of one of its fixtures; "
            "getfixturevalue() and unittest.TestCase cannot provide it",
            pytrace=False,
        )
    return _load_or_fail(request.param)


@pytest.fixture(scope="session")
def xd_device(xd: Backend, pytestconfig: pytest.Config) -> Device:
    """The device on which to test: the device that --xd-device names. Without this option, gpu:0 if the backend has a
    GPU, and cpu:0 otherwise."""
    device = _device(xd, pytestconfig.stash[settings_key])
    pytestconfig.stash.setdefault(used_devices, {})[xd.name] = device
    return device


def _device(backend: Backend, settings: Settings) -> Device:
    """Returns the device on which to test: the value of the fixture `xd_device`. There are two cases if the backend
    lacks the device that --xd-device names. If the backends are "auto", the test is skipped, because another backend
    may have the device. If the user has named the backends, the test fails."""
    if settings.device is None:
        return next(iter(_gpus(backend)), devices.CPU)
    try:
        device = backend.require(devices.parse(settings.device))
    except XDeviceError as error:
        # "auto" skips a backend that lacks the device; a backend that the user has named must
        # have the device
        if settings.is_auto and isinstance(error, DeviceNotFoundError):
            pytest.skip(f"--xd-device={settings.device}: {error}")
        pytest.fail(f"--xd-device={settings.device}: {error}", pytrace=False)
    return device


@pytest.fixture(scope="session")
def xd_devices(xd: Backend, xd_device: Device) -> list[Device]:
    """All GPUs of the backend, beginning with `xd_device`, if `xd_device` is a GPU; otherwise `[xd_device]`."""
    if xd_device.kind != "gpu":
        return [xd_device]
    # `xd_device` comes first, because many tests use only the first device
    return [xd_device, *(device for device in _gpus(xd) if device is not xd_device)]


@pytest.fixture(scope="session")
def xd_other_device(xd: Backend, xd_device: Device) -> Device:
    """A device other than `xd_device`, for tests that need two devices: another GPU, a second CPU device, or cpu:0.

    The test is skipped if there is no such device. For TensorFlow and JAX, the second CPU device is created when they
    are loaded.
    """
    for device in (*_gpus(xd), _second_device(xd), devices.CPU):
        # tensors on torch's "meta" hold no values, so a test that compares values cannot use it
        if device is not None and device is not xd_device and device.kind != "meta":
            return device
    pytest.skip(f"{xd.name} has only one device here that holds values: {xd_device}")


def _gpus(backend: Backend) -> list[Device]:
    """Returns the GPUs of a backend; [] if it has no GPUs, or cannot have any."""
    try:
        return [devices.of("gpu", index) for index in range(backend.count("gpu"))]
    # XDEVICE_VIRTUAL_GPUS requests GPUs, which NumPy cannot have
    except UnsupportedError:
        return []


def _second_device(backend: Backend) -> Device | None:
    """Returns a second device of the backend, which is created at the first call. Returns None if the adapter has no
    samples, or if the framework cannot create a second device, for example because the framework has already been
    used."""
    try:
        device: Device | None = backend.samples().other_device()
        return device
    # an adapter without samples
    except UnsupportedError:
        return None


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`xdevice.assert_parity` with the tolerances of the test's `xd_tol` markers.

    With --xd-record, this function also saves its arguments `actual` and `expected`; with --xd-compare, it compares
    both arguments with the saved values. Its own transfers to the host are allowed in a test with `no_transfer`.
    """
    defaults = tolerances(request.node)
    recordings = request.config.stash[settings_key].recordings

    def assert_parity(actual: object, expected: object, **arguments: Any) -> None:
        __tracebackhide__ = True
        from xdevice.contract import patching
        from xdevice.twins.parity.comparing import assert_parity as check

        options = {**defaults, **arguments}
        # the transfers inside this block are not reported
        with patching.unreported():
            if recordings is not None:
                recordings.record(actual, expected, options)
            check(actual, expected, **options)

    return assert_parity


@pytest.fixture
def no_transfer(request: pytest.FixtureRequest) -> None:
    """Makes the test fail if its body reads a tensor on the host, or moves a tensor. The test's fixtures may do both.

    The body runs in a block of `xdevice.transfers("disallow_explicit")`. To guard only a part
    of a test, use such a block in the test instead of this fixture.
    """
    request.node.stash[_uses_no_transfer] = True
