"""Which backends ran, in which version, at the end of every run; and the GPU tests left out where there is no GPU."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import xdevice
from xdevice import registry


def _make_a_second_device(backend) -> None:
    """TensorFlow and JAX can do so only before they are used, by whichever test that is."""
    with suppress(xdevice.UnsupportedError):
        backend.samples().other_device()


registry.on_load.append(_make_a_second_device)

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


PEERS = Path(__file__).parent / "peers"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs the packages of other libraries runs when it is named, and then fails where one is missing."""
    return True if collection_path == PEERS and not _names_peers(config) else None


def _names_peers(config: pytest.Config) -> bool:
    named = (config.invocation_params.dir / argument.split("::")[0] for argument in config.args)
    return any(path.resolve().is_relative_to(PEERS) for path in named)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("virtual") and os.environ.get("XDEVICE_VIRTUAL_GPUS"):
        return False
    return any(item.get_closest_marker(name) for name in ("gpu", "slow", "virtual"))


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
    gpus = "with GPUs" if shutil.which("nvidia-smi") else "no GPU"
    terminalreporter.write_sep("-", f"xdevice backends run: {ran}; {gpus}")
    if not _names_peers(config):
        terminalreporter.write_line("left out: tests/peers, which need the extra `peers` (tests/peers/conftest.py)")
