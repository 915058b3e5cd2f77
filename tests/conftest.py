"""Which backends ran, in which version, at the end of every run; what is left out; and what is skipped by name."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import zlib
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.environment import BACKENDS, FRAMEWORKS
from helpers.products import MISSING, missing_for
from hypothesis import HealthCheck, settings

import xdevice
from xdevice.containers import trees
from xdevice.core import frameworks, registry


def _make_a_second_device(backend) -> None:
    """TensorFlow and JAX can do so only before they are used, by whichever test that is."""
    with suppress(xdevice.errors.UnsupportedError):
        backend.samples().other_device()


registry.on_load.append(_make_a_second_device)
# a test that imports one of these by itself, and is the first to do so, would start it before its adapter is there
frameworks.wanted.update(("tensorflow", "jax"))


def _look_no_more_at_what_is_there(backend=None) -> None:
    """A collection looks at what came since: at all of several frameworks it takes most of a second, and tests ask."""
    gc.collect()
    gc.freeze()


def _semantics():
    """The adapter's module, which the adapter has imported."""
    return sys.modules["xdevice_mxnet.semantics"]


def _is_no_legacy_program(backend) -> None:
    """MXNet's adapter asks that once, and tests make arrays of both kinds."""
    if backend.name == "mxnet":
        _semantics().enter()
        _semantics().leave()


registry.on_load.append(_is_no_legacy_program)
registry.on_load.append(_look_no_more_at_what_is_there)


@pytest.fixture(scope="module", autouse=True)
def _collections_are_quick():
    _look_no_more_at_what_is_there()


# how long an example takes says how busy the machine is
settings.register_profile(
    "xdevice",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("xdevice")


@pytest.fixture(autouse=True)
def _nothing_selected(monkeypatch: pytest.MonkeyPatch):
    """Each test selects for itself, whatever the shell or the test before has set."""
    monkeypatch.delenv("XDEVICE_BACKEND", raising=False)
    xdevice.set_backend(None)
    yield
    xdevice.set_backend(None)
    for backend in registry.list_loaded():
        if backend.name == "mxnet":
            _semantics().leave()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest):
    """Each that is installed, selected while the test runs."""
    with xdevice.use_backend(request.param) as chosen:
        yield chosen


PEERS, HARDWARE = Path(__file__).parent / "peers", Path(__file__).parent / "hardware"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs the packages of other libraries runs when it is named, and then fails where one is missing."""
    if collection_path == HARDWARE and not (
        config.option.markexpr or os.environ.get("XDEVICE_VIRTUAL_GPUS")
    ):
        return True  # all of it would be deselected
    return True if collection_path == PEERS and not _names_peers(config) else None


def _names_peers(config: pytest.Config) -> bool:
    named = (config.invocation_params.dir / argument.split("::")[0] for argument in config.args)
    return any(path.resolve().is_relative_to(PEERS) for path in named)


@pytest.fixture(scope="module")
def toy_installed():
    """`tests/toy` as pip would have installed it: a framework, and a third party's adapter with its entry point. Gives
    what forgets the ways into types, each of which is asked for once."""
    folder = str(Path(__file__).parent / "toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [folder, *sys.path])
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        )
        patch.delenv("XDEVICE_VIRTUAL_GPUS", raising=False)
        patch.setattr(registry, "_entry_points", None)
        yield trees.forget
        _uninstall("toyframe")


def _uninstall(name: str) -> None:
    registry._loaded.pop(name, None)
    for key in [
        key
        for key, found in registry._owners.items()
        if found is not None and found[0].name == name
    ]:
        del registry._owners[key]
    for cls in [cls for cls in registry.probes if cls.__module__.partition(".")[0] == name]:
        del registry.probes[cls]
    trees.forget()


if "testing" in MISSING:  # it brings the fixture to pytest

    @pytest.fixture
    def xd():
        pytest.skip("needs testing, which is not here")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-in",
        type=int,
        default=1,
        help="run one test in this many, the same ones each time",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    one_in = config.option.one_in
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        _say_why_there_are_no_parameters(item)
        is_left_out = not config.option.markexpr and _is_left_out(item)
        # by name: a new test does not change the others
        is_drawn = zlib.crc32(item.nodeid.encode()) % one_in == 0
        (left_out if is_left_out or not is_drawn else kept).append(item)
        if is_left_out or not is_drawn:
            _left_out[_why(item) if is_left_out else f"tests by --one-in {one_in}"] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


_left_out: Counter[str] = Counter()
MARKED = {
    "gpu": "tests that need a real GPU (-m gpu)",
    "long": "long tests (-m long)",
    "virtual": "tests for virtual GPUs (XDEVICE_VIRTUAL_GPUS=4 pytest -m virtual)",
    "slow": "slow tests (-m slow)",
}


def _why(item: pytest.Item) -> str:
    marks = {mark.name for mark in item.iter_markers()}
    return next(
        (said for name, said in MARKED.items() if name in marks),
        "tests that begin on a GPU, where there is none",
    )


def _is_left_out(item: pytest.Item) -> bool:
    if _has_no_home(item):
        return True
    marks = {mark.name for mark in item.iter_markers()}
    if "virtual" in marks and os.environ.get("XDEVICE_VIRTUAL_GPUS"):
        return False
    return not marks.isdisjoint(("gpu", "slow", "virtual", "long"))


def _has_no_home(item: pytest.Item) -> bool:
    """Whether a check of the suite is to begin on gpu:0 where a built-in backend has none, which would be skipped."""
    backend = getattr(getattr(item, "cls", None), "backend", None)
    at = getattr(item, "callspec", None)
    if (
        at is None
        or at.params.get("place") != "gpu:0"
        or backend not in {known.name for known in registry.KNOWN}
    ):
        return False
    return not (
        os.environ.get("XDEVICE_VIRTUAL_GPUS")
        or os.environ.get("SIMULATED_ACCELERATOR")
        or _has_gpus()
    )


@cache
def _has_gpus() -> bool:
    return shutil.which("nvidia-smi") is not None


# what needs a framework that is not here is skipped by its name, and one that a variable names must be here

ABSENT = [known.name for known in registry.KNOWN if known.name not in BACKENDS]


def pytest_configure() -> None:
    named = os.environ.get("XDEVICE_BACKEND")
    if named and registry.canonical(named) in ABSENT:
        hint = registry.install_hint(registry.canonical(named))
        raise pytest.UsageError(f"XDEVICE_BACKEND={named}: it is not installed here; {hint}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test for GPUs is skipped where the framework that it is about sees none, or where none of them does."""
    if item.get_closest_marker("gpu") is None:
        return
    named = [name for name in FRAMEWORKS if name in _said_by(item)]
    blind = next((name for name in named if not _sees_gpus(name)), None)
    if blind is not None:
        pytest.skip(f"{blind} sees no GPU here")
    if not named and not any(map(_sees_gpus, FRAMEWORKS)):
        pytest.skip("no framework that is installed sees a GPU here")


@cache
def _sees_gpus(name: str) -> bool:
    with suppress(xdevice.errors.XDeviceError):
        return xdevice.backend(name).count("gpu") > 0
    return True  # the test says what is wrong with it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    name = _absent(item, call.excinfo) if call.excinfo is not None else None
    if name is not None:
        reason = f"needs {name}, which is not here"
        call.excinfo = pytest.CallInfo.from_call(lambda: pytest.skip(reason), call.when).excinfo
    return (yield)


def _absent(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException]) -> str | None:
    """The framework that is not here and that the test has asked for: if xdevice asks for one by itself, it fails."""
    # `import`
    frames = [
        entry.frame for entry in raised.traceback if not str(entry.path).startswith("<frozen ")
    ]
    product = missing_for(raised.value, frames)
    if product is not None:
        return product
    if isinstance(raised.value, ModuleNotFoundError):
        root = (raised.value.name or "").partition(".")[0]
        name = next((known.name for known in registry.KNOWN if root in known.modules), None)
        asking = frames[-1].f_globals.get("__name__", "").partition(".")[0]
        is_asked_for = asking == f"xdevice_{name}" or not asking.startswith("xdevice")
    elif isinstance(raised.value, xdevice.errors.BackendNotFoundError):
        name = next(
            (
                name
                for name in ABSENT
                if f"the backend {name!r} is not installed" in str(raised.value)
            ),
            None,
        )
        is_asked_for = name in _said_by(item) or any(_says(frame, name) for frame in frames)
    else:
        return None
    return name if is_asked_for and name in ABSENT else None


NO_PARAMETERS = SimpleNamespace(params={})


def _said_by(item: pytest.Item) -> list[object]:
    """The texts that it is given: the backend of a suite, and parameters."""
    given = [
        getattr(item.cls, "backend", None),
        *getattr(item, "callspec", NO_PARAMETERS).params.values(),
    ]
    return list(filter(_is_text, given))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _says(frame, name: str | None) -> bool:
    is_of_the_tests = Path(frame.code.path).is_relative_to(Path(__file__).parent)
    return is_of_the_tests and name in (
        *frame.code.raw.co_consts,
        *filter(_is_text, frame.f_locals.values()),
    )


def _say_why_there_are_no_parameters(item: pytest.Item) -> None:
    """Where each of them would have been a framework that is not here."""
    for i, mark in enumerate(item.own_markers):
        if ABSENT and mark.kwargs.get("reason", "").startswith("got empty parameter set"):
            reason = f"its frameworks are not installed here; there is no {', '.join(ABSENT)}"
            item.own_markers[i] = pytest.mark.skip(reason=reason).mark


# what failed is named when it fails, so that a run that is broken off or hangs has shown it


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and _terminal is not None:
        _terminal.write_line(f"\nFAILED at {report.when}: {report.nodeid}", red=True)


_terminal: pytest.TerminalReporter | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    global _terminal
    _terminal = session.config.pluginmanager.get_plugin("terminalreporter")


# with pytest-xdist the backends run in its workers, which hand their names over when they end
_ran_elsewhere: set[str] = set()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["xdevice"] = _ran_here()
        session.config.workeroutput["left out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    output = getattr(node, "workeroutput", {})
    _ran_elsewhere.update(output.get("xdevice", ()))
    _left_out.clear()  # each worker leaves the same out
    _left_out.update(output.get("left out", {}))


def _ran_here() -> list[str]:
    return [f"{backend.name} {backend.version}" for backend in registry.list_loaded()]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    ran = ", ".join(sorted({*_ran_here(), *_ran_elsewhere})) or "none"
    gpus = "with GPUs" if _has_gpus() else "no GPU"
    say = terminalreporter.write_line
    terminalreporter.write_sep("-", f"xdevice backends run: {ran}; {gpus}")
    counts = (
        f"{len(terminalreporter.stats.get(how, ()))} {how}"
        for how in ("passed", "failed", "error", "skipped")
    )
    say(f"ran: {', '.join(counts)}; the reasons for skipped tests follow")
    for name in ABSENT:
        say(
            f"left out: what needs {name}, which is not installed here; {registry.install_hint(name)}"
        )
    for why, count in _left_out.most_common():
        say(f"left out: {count} {why}")
    if not _names_peers(config):
        say("left out: tests/peers, which need the extra `peers` (tests/peers/conftest.py)")
