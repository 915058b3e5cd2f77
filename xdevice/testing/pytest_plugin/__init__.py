"""The pytest plugin: a test that uses the fixture `xd` runs on every backend. docs/reference/pytest.md shows how to use
it.

pytest loads this module in every run in an environment where xdevice is installed. So the module imports neither NumPy
nor a framework, and does nothing in a run in which no test uses its fixtures; slow imports are made where they are
used. (PYTEST_DONT_REWRITE: it asserts nothing.)
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
    about,
    backend_of,
    named_by,
    needs_gpu,
    placed,
    tolerances,
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
"""The seeds of random numbers: of those that a test itself draws, and of those that its fixtures draw."""

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
    group.addoption(
        "--xd-record",
        metavar="DIR",
        help="keep what assert_parity and xdevice.parity.log see in each test",
    )
    group.addoption(
        "--xd-compare",
        metavar="DIR",
        help="compare it with what --xd-record has kept, here or elsewhere",
    )
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
    parser.addini("xd_backends", "the default of --xd-backends", default="auto")


# the conftest of a suite may choose its device when it is imported
@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    options = early_config.known_args_namespace
    # nothing to prepare
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
    for text in MARKERS.values():
        config.addinivalue_line("markers", text)
    settings = config.stash[settings_key] = Settings(config)
    if config.getoption("xd_record") or config.getoption("xd_compare"):
        from .recordings import Recordings

        settings.recordings = Recordings(config)
    # with xdist, the workers report to the process that prints the summary
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config), "xdevice-summary")


# collecting


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each backend of a test that asks for `xd`."""
    definition = metafunc.definition
    marks = [mark for mark in definition.iter_markers() if mark.name in MARKERS]
    for mark in marks:
        fault = fault_of(mark)
        if fault:
            pytest.fail(f"{definition.nodeid}: {fault}", pytrace=False)
    if not _asks_for_xd(metafunc):
        # a marker without `xd` would silently do nothing
        idle = [
            mark.name
            for mark in definition.own_markers
            if mark.name in MARKERS and mark.name != "xd_tol"
        ]
        if idle:
            pytest.fail(
                f"{definition.nodeid}: {idle[0]} does nothing for a test without the fixture xd",
                pytrace=False,
            )
        return
    every = metafunc.config.stash[settings_key].names
    # decided while tests are collected, so that the report lists no test that cannot run
    names: list[Any] = [BackendName(name) for name in every if _may_run(name, marks)]
    if not names:
        reason = f"it is for backends other than those of this run: {', '.join(every)}"
        names = [pytest.param(NOWHERE, marks=pytest.mark.skip(reason=reason))]
    # of the session, so that fixtures of any scope may use it, and pytest sorts the tests by backend
    metafunc.parametrize("xd", names, indirect=True, scope="session")


def _asks_for_xd(metafunc: pytest.Metafunc) -> bool:
    """Whether a test uses this plugin's fixture `xd`, and not a project's own fixture or parameter of the same name."""
    if "xd" not in metafunc.fixturenames:
        return False
    # pytest has no public way to ask which fixture a name means
    definitions = metafunc.definition._fixtureinfo.name2fixturedefs.get("xd", ())
    if not any(definition.func.__module__ == __name__ for definition in definitions):
        return False
    # pytest uses the last definition; a project's own may take the fixture that it overrides as its argument
    used = definitions[-1]
    return used.func.__module__ == __name__ or "xd" in used.argnames


def _may_run(name: str, marks: Sequence[pytest.Mark]) -> bool:
    return all(name in named_by(mark) for mark in marks if mark.name == "xd_only")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Skips a test, or expects it to fail, on the backends that its markers name."""
    name = backend_of(item)
    if name is None:
        return
    for mark in [mark for mark in item.iter_markers() if mark.name in MARKERS]:
        # markers of a parameter, which pytest_generate_tests does not see
        fault = fault_of(mark)
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
        # those that are loaded now, and below those to come
        for backend in registry.list_loaded():
            _prepare(backend)
        registry.on_load.append(_prepare)
        # the list lives as long as the process, in which pytest may run again
        session.config.add_cleanup(lambda: registry.on_load.remove(_prepare))


def _prepare(backend: Backend) -> None:
    """Makes a second device of a backend as soon as it is loaded: TensorFlow and JAX can make one only before they are
    used."""
    _second_device(backend)


# running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Restores the default backend and the generator of random numbers after each test."""
    if backend_of(item) is None:
        return (yield)
    # what the project itself may have set
    before = selection.default()
    try:
        with generators.keep_generator():
            return (yield)
    finally:
        _run_kernel_hook(item, "leave")
        selection.restore_default(before)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of a test are made: selects the backend, prepares it and seeds the random numbers. Skips the
    test if the backend lacks a GPU or a dtype that it needs."""
    name = backend_of(item)
    if name is None:
        return
    backend = _load(name)
    # the process default: a context variable would not reach the test's own threads, nor an event loop made before
    selection.set_backend(backend)
    _run_kernel_hook(item, "enter")
    _seed(_SEED_OF_FIXTURES)
    _need_gpus(item, backend)
    _need_dtypes(item, backend)


def _need_gpus(item: pytest.Item, backend: Backend) -> None:
    """Skips a test that needs more GPUs than there are."""
    # counting may start the framework: TensorFlow initialises CUDA to count GPUs
    if not needs_gpu(item):
        return
    wanted = max((*mark.args, 1)[0] for mark in item.iter_markers("xd_needs_gpu"))
    here = len(_gpus(backend))
    if here < wanted:
        plural = "s" if wanted > 1 else ""
        why = "" if here else f": {backend.why_no_gpu()}"
        reason = f"needs {wanted} GPU{plural}, and {backend.name} sees {here}{why}"
        # otherwise the report would name this line as the place of the skip
        raise pytest.skip.Exception(reason, _use_item_location=True)


def _need_dtypes(item: pytest.Item, backend: Backend) -> None:
    """Skips a test that needs a dtype which `xd_device` cannot hold."""
    needed = [name for mark in item.iter_markers("xd_needs_dtype") for name in mark.args]
    if not needed:
        return
    from xdevice.tensors.creation import is_dtype_supported

    device = _device(backend, item.config.stash[settings_key])
    lacking = [name for name in needed if not is_dtype_supported(name, device)]
    if lacking:
        reason = f"needs {', '.join(lacking)}, which {device} of {backend.name} cannot hold"
        raise pytest.skip.Exception(reason, _use_item_location=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs the body of a test, and records its values if the options say so."""
    name = backend_of(item)
    if name is not None:
        selection.set_backend(name)  # a fixture of the project's may have cleared it
        _seed(_SEED_OF_BODY)  # the same numbers, whichever fixtures were made before
    recordings = item.config.stash[settings_key].recordings
    recording: AbstractContextManager[Any] = (
        recordings.of(item) if recordings is not None else nullcontext()
    )
    with recording, _guard(item):
        return (yield)


def _run_kernel_hook(item: pytest.Item, when: Literal["enter", "leave"]) -> None:
    """Calls the function `enter` or `leave` of the test's backend, if it has one. Before the first fixture, `enter`
    prepares this thread for arithmetic functions; at the test's end, `leave` undoes that for the next test."""
    for backend in registry.list_loaded():
        if backend.name == backend_of(item):
            # the backend has no arithmetic functions, or cannot prepare this thread for them
            with suppress(UnsupportedError):
                getattr(backend.namespace(), when, _nothing)()


def _nothing() -> None: ...


def _seed(n: int) -> None:
    from xdevice.math import random

    random.seed(n)


def _guard(item: pytest.Item) -> AbstractContextManager[Any]:
    if not item.stash.get(_guarded, False):
        return nullcontext()
    from xdevice.performance.transfers import transfers

    return transfers("disallow_explicit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hides xdevice's own frames from an error, and adds to the report what the summary needs."""
    name = backend_of(item)
    if name is not None and call.excinfo is not None:
        # the reader wants the line of the test, not those inside xdevice
        for entry in call.excinfo.traceback:
            module = entry.frame.f_globals
            if module["__name__"].startswith("xdevice."):
                module["__tracebackhide__"] = (
                    _is_named  # which pytest looks up there, and --full-trace does not
                )
    report = yield
    if name is not None:
        report.xdevice = about(item, name)  # type: ignore[attr-defined]
    # once for each test, which also has reports of its setup and teardown
    if report.when == "call" and item.config.stash[settings_key].recordings is not None:
        from .recordings import value_count

        report.xdevice_values = item.stash.get(value_count, 0)  # type: ignore[attr-defined]
    return report


def _is_named(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether an error names the line that called xdevice, and not a line inside xdevice."""
    return isinstance(error.value, XDeviceError)


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
    draws from `xdevice.random` as if after `seed(0)`, and the fixtures that are made for the test as if after
    `seed(1)`.
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
    device = _device(xd, pytestconfig.stash[settings_key])
    pytestconfig.stash.setdefault(placed, {})[xd.name] = device
    return device


def _device(backend: Backend, settings: Settings) -> Device:
    """The device to test on; fails the test if it is not there, or skips it where other backends may have it."""
    if settings.device is None:
        return next(iter(_gpus(backend)), devices.CPU)
    try:
        device = backend.require(devices.parse(settings.device))
    except XDeviceError as error:
        # without a list of backends, one that lacks the device is passed over; with a list, it is a failure
        if settings.is_auto and isinstance(error, DeviceNotFoundError):
            pytest.skip(f"--xd-device={settings.device}: {error}")
        pytest.fail(f"--xd-device={settings.device}: {error}", pytrace=False)
    return device


@pytest.fixture(scope="session")
def xd_devices(xd: Backend, xd_device: Device) -> list[Device]:
    """All GPUs of the backend, `xd_device` first, if `xd_device` is a GPU; else `[xd_device]`."""
    if xd_device.kind != "gpu":
        return [xd_device]
    # the chosen one first, since many tests use the first only
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
        device: Device | None = backend.samples().other_device()
        return device
    except UnsupportedError:
        return None


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`xdevice.assert_parity` with the tolerances of the test's `xd_tol` markers.

    With --xd-record it also saves the values that it is given, and with --xd-compare it compares them with the saved
    ones. The transfers to the host that it makes itself are allowed in a test with `no_transfer`.
    """
    defaults = tolerances(request.node)
    recordings = request.config.stash[settings_key].recordings

    def assert_parity(actual: object, expected: object, **arguments: Any) -> None:
        __tracebackhide__ = True
        from xdevice.contract import patching
        from xdevice.twins.parity.comparing import assert_parity as check

        options = {**defaults, **arguments}
        with patching.unseen():
            if recordings is not None:
                recordings.see(actual, expected, options)
            check(actual, expected, **options)

    return assert_parity


@pytest.fixture
def no_transfer(request: pytest.FixtureRequest) -> None:
    """Makes the test fail if its body reads a tensor on the host or moves a tensor. Its fixtures may do so.

    The body runs in a block of `xdevice.transfers("disallow_explicit")`; use that block itself for a part of a test.
    """
    request.node.stash[_guarded] = True
