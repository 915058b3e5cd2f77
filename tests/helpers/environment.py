"""What tests of several rooms share: where the project is, what it runs on, and how another process is run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

import xdevice
from xdevice.base import floats
from xdevice.core import registry

from . import products

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

ROOT: Final = Path(__file__).parent.parent.parent
"""The folder of the whole project."""

BUILT_IN: Final = tuple(known.name for known in registry.KNOWN)
"""Every backend of ours, installed or not."""

BACKENDS: Final = tuple(name for name in xdevice.backends() if name in BUILT_IN)
"""Those of ours that are installed; the summary of each run names them."""

FRAMEWORKS: Final = tuple(name for name in BACKENDS if name != "numpy")

WITH_MODELS: Final = tuple(
    name for name in ("torch", "paddle", "mxnet", "tensorflow") if name in BACKENDS
)

NO_KERNELS: Final = tuple(filter(None, os.environ.get("XDEVICE_NO_KERNELS", "").split(",")))
"""Frameworks whose build has no code for the GPU that is here."""

QUICK: Final = ("numpy", "jax")
"""What a fresh process imports in a second."""


def sampled(
    values: Iterable[Any],
    *,
    each_time: Iterable[Any] = QUICK,
    slow: Iterable[Any] = (),
    others: Literal["slow", "long"] = "slow",
) -> list[Any]:
    """Parameters: those of `each_time` run in every run, those of `slow` with `-m slow`, and all others as it says."""
    marks = {"slow": (pytest.mark.slow,), "long": (pytest.mark.long,)}
    each_time, slow = list(each_time), list(slow)

    def marked(value: Any) -> tuple[pytest.MarkDecorator, ...]:
        if value in each_time:
            return ()
        return marks["slow" if value in slow else others]

    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marked(value))
        for value in values
    ]


@contextmanager
def floats_asked_for(text: str) -> Iterator[None]:
    """What XDEVICE_FLOATS asks of a process, of this one while the block runs; the frameworks keep their defaults."""
    before, floats._setting = floats._setting, floats._check(text)
    try:
        yield
    finally:
        floats._setting = before


SHIMS: Final = ("tensorflow", "paddle", "mxnet")
"""Whose arithmetic is most of it ours. JAX's is its own, and it compiles every shape."""


def framework(name: str) -> Any:
    """The framework, imported as xdevice imports it, or a skip: Paddle crashes if imported after some of the others."""
    needs(name)
    return xdevice.backend(name).framework


def needs(*names: str) -> None:
    """A skip where one of them is absent: for tests whose processes ask for it. For others conftest.py does it."""
    for name in names:
        if name not in BACKENDS:
            pytest.skip(f"needs {name}, which is not installed here", allow_module_level=True)


def any_framework() -> str:
    """The first that is installed, or a skip."""
    if not FRAMEWORKS:
        pytest.skip("needs a framework other than NumPy, and none is installed here")
    return FRAMEWORKS[0]


def with_64_bit(name: str, on: bool = True) -> AbstractContextManager[Any]:
    """JAX with its 64-bit dtypes while the block runs, or without; other frameworks have them always."""
    if name != "jax":
        return nullcontext()
    jax = framework("jax")
    found: AbstractContextManager[Any] = (
        jax if hasattr(jax, "enable_x64") else jax.experimental
    ).enable_x64(on)
    return found


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Until it holds; machines may be slow."""
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


NEEDS_PROC: Final = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="reads /proc to find processes"
)


def family(mark: str, *without: int) -> list[int]:
    """Every process that has this text in its environment: one that was started with it, and what that has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return [pid for pid in found if pid not in without]


def python(
    *arguments: object,
    cwd: Path | None = None,
    typed: str | None = None,
    encoding: str | None = None,
    bare: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """What became of a fresh Python with these arguments, in this environment and these variables.

    `bare` leaves out what xdevice itself is told by the environment; `typed` is what the process reads.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not (bare and name.startswith("XDEVICE_"))
    }
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**inherited, **variables}, cwd=cwd, input=typed, encoding=encoding, text=True, capture_output=True,
        timeout=800, check=False,
    )  # fmt: skip
    products.skip_if_missing(done.stderr, variables)
    return done


def printed(*arguments: object, **options: Any) -> str:
    """What a fresh Python prints, which must end well."""
    done = python(*arguments, **options)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip()
