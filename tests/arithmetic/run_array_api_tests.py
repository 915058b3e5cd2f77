"""Runs the official suite of the Python Array API standard over `xdevice.array_namespace`.

    python tests/arithmetic/run_array_api_tests.py PATH BACKEND ... [--examples 20] [--device gpu:1] [pytest's ...]

PATH is a checkout of github.com/data-apis/array-api-tests with its submodule array-api; the suite is not on PyPI. It
needs the packages `ndindex` and `pytest-json-report` beside those of the extra `test`. With a device, every test runs
there, and whatever a function gives is checked to be there: `XDEVICE_VIRTUAL_GPUS=2` makes one on any machine.

The suite runs in a temporary copy, changed in two ways: complex dtypes may be missing, and a shape may be another
sequence than a tuple, as Paddle's is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import wraps
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Final

FILES: Final = (
    "constants", "creation_functions", "data_type_functions", "fft", "has_names", "indexing_functions",
    "inspection_functions", "linalg", "manipulation_functions", "operators_and_elementwise_functions",
    "searching_functions", "set_functions", "signatures", "sorting_functions", "special_cases", "statistical_functions",
    "utility_functions",
)  # fmt: skip
"""Of the suite: all but `array_object` and `dlpack`, which ask what tensors themselves can do, as that stays the
framework's. In the others, tests of operators and of methods are left out for the same reason."""

SKIPPED: Final[dict[str, dict[str, str]]] = {"*": {}, "torch": {}, "tensorflow": {}, "mxnet": {}, "paddle": {}, "jax": {}, "numpy": {}}
OF_MANY = {}
ON_GPUS = {}

DEVICE: Final = "ARRAY_API_TESTS_DEVICE"
"""The variable that says where tests run; empty is the CPU."""

EXAMPLES: Final = "ARRAY_API_TESTS_EXAMPLES"
"""The variable that says how many examples a test takes."""

LACKING: Final = {
    "mxnet": "int16,uint16,uint32,uint64,complex64,complex128",
    "paddle": "uint16,uint32,uint64",
}
"""The dtypes of the standard that a framework does not have."""

NO_COMPLEX: Final = (
    "for dt in complex_dtypes], key=lambda x: x[1]\n)",
    "for dt in complex_dtypes], key=lambda x: x[1], default=[None]\n)",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.splitlines()[2].strip())
    parser.add_argument("checkout", type=Path)
    parser.add_argument("backends", nargs="+", choices=sorted(SKIPPED.keys() - {"*"}), metavar="backend")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--device")
    arguments, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        copied = _copy(arguments.checkout, Path(folder) / "suite")
        command = [sys.executable, "-m", "pytest", "-q", "--disable-warnings"]
        command += [f"--timeout={120 + 5 * arguments.examples}"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdevice", "-p", Path(__file__).stem]
        command += ["--disable-deadline", "--derandomize", f"--max-examples={arguments.examples}"]
        command += [f"array_api_tests/test_{name}.py" for name in FILES] + rest
        failed = []
        for backend in arguments.backends:
            begun = time.monotonic()
            environment = _environment(backend, arguments.device) | {EXAMPLES: str(arguments.examples)}
            if subprocess.run(command, cwd=copied, env=environment, check=False).returncode:
                failed.append(backend)
            print(f"= {backend}: {time.monotonic() - begun:.0f} s", flush=True)
    if failed:
        print("failed:", *failed)
    return 1 if failed else 0


def _copy(checkout: Path, copied: Path) -> Path:
    if not (checkout / "array-api" / "src").exists():
        raise SystemExit(f"{checkout} lacks the submodule array-api: git submodule update --init")
    shutil.copytree(checkout, copied, ignore=shutil.ignore_patterns(".git"))
    for file in (copied / "array_api_tests").glob("*.py"):
        text = file.read_text().replace(*NO_COMPLEX)
        if file.stem != "stubs":
            text = re.sub(r"(?<![\w.])([A-Za-z_][\w.]*)\.shape\b", r"tuple(\1.shape)", text)
        file.write_text(text)
    return copied


def _environment(backend: str, device: str | None) -> dict[str, str]:
    environment = {**os.environ, "XDEVICE_BACKEND": backend, "JAX_ENABLE_X64": "1", DEVICE: device or ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment.get("PYTHONPATH", "")])
    environment["ARRAY_API_TESTS_MODULE"] = f"exec('from {Path(__file__).stem} import tested; xp = tested()')"
    environment["ARRAY_API_TESTS_SKIP_DTYPES"] = LACKING.get(backend, "")
    return environment


# what the suite and pytest ask of this file


def tested():
    """The namespace; with a device, one that checks where results are."""
    import xdevice

    xp = xdevice.array_namespace()
    if not os.environ[DEVICE]:
        return xp
    xdevice.device(os.environ[DEVICE]).__enter__()  # for as long as the process lasts
    checked = SimpleNamespace(__name__=xp.__name__, __array_api_version__=xp.__array_api_version__)
    for name in dir(xp):
        found = getattr(xp, name)
        setattr(checked, name, _checked(found) if isinstance(found, FunctionType | MethodType) else found)
    return checked


def _checked(function):
    from xdevice.core import registry

    def places(values):
        found = (registry.kind_of(type(x)) for x in values)
        return [str(one.backend.device_of(x)) for x, one in zip(values, found, strict=True) if one is not None]

    @wraps(function)
    def checked(*args, **kwargs):
        made = function(*args, **kwargs)
        # TensorFlow's operators, which the tests use too, give integers on the CPU: what is made of them is there
        here = places(args[0] if args and isinstance(args[0], list | tuple) else args)
        for place in places(made if isinstance(made, list | tuple) else [made]):
            assert place in (here or [os.environ[DEVICE]]), f"{function.__name__} gave a tensor on {place}"
        return made

    return checked


def pytest_collection_modifyitems(config, items) -> None:
    kept = [item for item in items if not _is_of_tensors(item.name) and not _is_skipped(item.name)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _is_of_tensors(test: str) -> bool:
    """Whether a test is of an operator, a method or an attribute of tensors."""
    _, _, case = test.partition("[")
    return case.startswith(("__", "array_method", "array_attribute")) or test.startswith("test_array_method")


def _is_skipped(test: str) -> bool:
    backend = os.environ["XDEVICE_BACKEND"]
    left_out = {**SKIPPED["*"], **SKIPPED[backend]}
    left_out |= OF_MANY.get(backend, {}) if int(os.environ[EXAMPLES]) > 20 else {}
    left_out |= ON_GPUS.get(backend, {}) if os.environ[DEVICE] else {}
    return any(test == part if part.startswith("test_") else part in test for part in left_out)


if __name__ == "__main__":
    sys.exit(main())
