"""Which backends ran, in which version, at the end of every run; and the GPU tests left out where there is no GPU."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import BACKENDS

import xdevice
from xdevice.containers import trees
from xdevice.core import registry


def _make_a_second_device(backend) -> None:
    """TensorFlow and JAX can do so only before they are used, by whichever test that is."""
    with suppress(xdevice.UnsupportedError):
        backend.samples().other_device()


registry.on_load.append(_make_a_second_device)


def _look_no_more_at_what_is_there(backend=None) -> None:
    """A collection looks at what came since: at all of several frameworks it takes most of a second, and tests ask."""
    gc.collect()
    gc.freeze()


def _is_no_legacy_program(backend) -> None:
    """MXNet's adapter asks that once, and tests make arrays of both kinds."""
    if backend.name == "mxnet":
        backend.namespace().enter()
        backend.namespace().leave()


registry.on_load.append(_is_no_legacy_program)
registry.on_load.append(_look_no_more_at_what_is_there)


@pytest.fixture(scope="module", autouse=True)
def _collections_are_quick():
    _look_no_more_at_what_is_there()


# how long an example takes says how busy the machine is
settings.register_profile(
    "xdevice", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("xdevice")


@pytest.fixture(autouse=True)
def _nothing_selected(monkeypatch: pytest.MonkeyPatch):
    """Each test selects for itself, whatever the shell or the test before has set."""
    monkeypatch.delenv("XDEVICE_BACKEND", raising=False)
    xdevice.set_backend(None)
    yield
    xdevice.set_backend(None)
    for backend in registry.loaded():
        if backend.name == "mxnet":
            backend.namespace().leave()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest):
    """Each that is installed, selected while the test runs."""
    with xdevice.use(request.param) as chosen:
        yield chosen


PEERS, HARDWARE = Path(__file__).parent / "peers", Path(__file__).parent / "hardware"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs the packages of other libraries runs when it is named, and then fails where one is missing."""
    if collection_path == HARDWARE and not (config.option.markexpr or os.environ.get("XDEVICE_VIRTUAL_GPUS")):
        return True  # all of it would be deselected
    return True if collection_path == PEERS and not _names_peers(config) else None


def _names_peers(config: pytest.Config) -> bool:
    named = (config.invocation_params.dir / argument.split("::")[0] for argument in config.args)
    return any(path.resolve().is_relative_to(PEERS) for path in named)


@pytest.fixture(scope="module")
def toy_installed():
    """`tests/toy` as pip would have installed it: a framework, and a third party's adapter with its entry point."""
    folder = str(Path(__file__).parent / "toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [folder, *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")])))
        patch.delenv("XDEVICE_VIRTUAL_GPUS", raising=False)
        patch.setattr(registry, "_found", None)
        yield
        _uninstall("toyframe")


def _uninstall(name: str) -> None:
    registry._loaded.pop(name, None)
    for key in [key for key, found in registry._owners.items() if found is not None and found[0].name == name]:
        del registry._owners[key]
    for cls in [cls for cls in registry.probes if cls.__module__.partition(".")[0] == name]:
        del registry.probes[cls]
    trees.forget()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if _is_left_out(item) else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


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
    if at is None or at.params.get("place") != "gpu:0" or backend not in {known.name for known in registry.KNOWN}:
        return False
    return not (os.environ.get("XDEVICE_VIRTUAL_GPUS") or _has_gpus())


@cache
def _has_gpus() -> bool:
    return shutil.which("nvidia-smi") is not None


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


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    _ran_elsewhere.update(getattr(node, "workeroutput", {}).get("xdevice", ()))


def _ran_here() -> list[str]:
    return [f"{backend.name} {backend.version}" for backend in registry.loaded()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ran = ", ".join(sorted({*_ran_here(), *_ran_elsewhere})) or "none"
    gpus = "with GPUs" if _has_gpus() else "no GPU"
    terminalreporter.write_sep("-", f"xdevice backends run: {ran}; {gpus}")
    if not _names_peers(config):
        terminalreporter.write_line("left out: tests/peers, which need the extra `peers` (tests/peers/conftest.py)")
