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
    "constants", "creation_functions", "data_type_functions", "indexing_functions", "manipulation_functions",
    "operators_and_elementwise_functions", "searching_functions", "sorting_functions", "special_cases",
    "statistical_functions", "utility_functions", "linalg",
)  # fmt: skip
"""Of the suite: not what tensors themselves can do, which stays the framework's, and not the extensions."""

SIGN = "the result is a zero of the other sign"
PYTHONS = "the values are those of Python's and NumPy's //"
SKIPPED: Final[dict[str, dict[str, str]]] = {
    "*": {
        "real(x": "there are no complex dtypes among the five",
        "test_vecdot": "the test calls conj, which is not offered; test_namespace.py has vecdot",
        "floor_divide(x1_i is +infinity and isfinite(x2_i)": PYTHONS,
        "floor_divide(x1_i is -infinity and isfinite(x2_i)": PYTHONS,
        "floor_divide(isfinite(x1_i) and x1_i > 0 and x2_i is -infinity)": PYTHONS,
        "floor_divide(isfinite(x1_i) and x1_i < 0 and x2_i is +infinity)": PYTHONS,
    },
    "jax": {
        "test_asarray_arrays": "the test writes into the array",
        "sign((x_i is -0 or x_i == +0))": SIGN,
        "tanh(x_i is +infinity)": "JAX gives 1 - 8e-16",
        "tanh(x_i is -infinity)": "JAX gives -1 + 8e-16",
        "floor_divide(x1_i is -0 and x2_i": SIGN,
        "floor_divide(isfinite(x1_i) and x1_i < 0 and x2_i is -infinity)": SIGN,
        "remainder(x1_i is -0 and x2_i > 0)": SIGN,
        "remainder(x1_i is +0 and x2_i < 0)": SIGN,
    },
    "numpy": {},
    "torch": {
        "remainder(x1_i is -0 and x2_i > 0)": SIGN,
        "remainder(x1_i is +0 and x2_i < 0)": SIGN,
    },
    "mxnet": {
        "test_asarray_arrays": "the test compares by ==, which MXNet does not have for arrays of two dtypes",
        "test_concat": "the test compares by ==, which MXNet does not have for arrays of two dtypes",
        "test_repeat": "the test slices by tensors, which MXNet does not take",
        "remainder(x1_i is -0 and x2_i > 0)": SIGN,
        "remainder(x1_i is +0 and x2_i < 0)": SIGN,
        "remainder(x1_i is -0 and x2_i < 0)": SIGN,
    },
    "paddle": {
        "test_asarray_arrays": "the test writes x[()] = y, which Paddle does not take",
        "remainder(x1_i is -0 and x2_i > 0)": SIGN,
        "remainder(x1_i is +0 and x2_i < 0)": SIGN,
    },
    "tensorflow": {
        "test_full": "the test compares a dtype to uint64, which is not offered",
        "test_astype": "the test compares a dtype to complex64, which is not offered",
        "test_asarray_arrays": "the test writes into the array",
        "test_concat": "the test compares by ==, which TensorFlow does not have for tensors of two dtypes",
        "remainder(x1_i is -0 and x2_i > 0)": SIGN,
        "remainder(x1_i is +0 and x2_i < 0)": SIGN,
    },
}
"""By backend, or "*", and by a test's name or the case in its brackets: why it is left out."""

OF_MANY: Final[dict[str, dict[str, str]]] = {
    "tensorflow": {
        "test_clip": "the test compares a dtype to uint64, which is not offered",
        "test_reshape": "the test takes slices of nine axes, of which TensorFlow takes eight",
        "test_stack": "the test compares by ==, which TensorFlow does not have for tensors of two dtypes",
        "test_where": "the test compares by ==, which TensorFlow does not have for tensors of two dtypes",
    },
}
"""What is left out of runs of more than 20 examples, which meet more."""

ON_GPUS: Final[dict[str, dict[str, str]]] = {
    "tensorflow": {"round(x_i is -0": SIGN, "sign((x_i is -0 or x_i == +0))": SIGN},
}
"""What is left out beside it on a device that is named."""

DEVICE: Final = "ARRAY_API_TESTS_DEVICE"
"""The variable that says where tests run; empty is the CPU."""

EXAMPLES: Final = "ARRAY_API_TESTS_EXAMPLES"
"""The variable that says how many examples a test takes."""

OTHER_DTYPES: Final = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "complex64", "complex128")

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
            text = re.sub(r"\b([A-Za-z_]\w*)\.shape\b", r"tuple(\1.shape)", text)
        file.write_text(text)
    return copied


def _environment(backend: str, device: str | None) -> dict[str, str]:
    environment = {**os.environ, "XDEVICE_BACKEND": backend, "JAX_ENABLE_X64": "1", DEVICE: device or ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment.get("PYTHONPATH", "")])
    environment["ARRAY_API_TESTS_MODULE"] = f"exec('from {Path(__file__).stem} import tested; xp = tested()')"
    environment["ARRAY_API_TESTS_SKIP_DTYPES"] = ",".join(OTHER_DTYPES)
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
    import xdevice

    offered = set(dir(xdevice.array_namespace()))
    kept = [item for item in items if _function(item.name) in offered and not _is_skipped(item.name)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _function(test: str) -> str:
    """The function that a test is of: `test_binary[add(x1_i is NaN) -> NaN]` and `test_asarray_scalars` name theirs."""
    _, _, case = test.partition("[")
    if "(" in case:
        return re.match(r"\w*", case)[0]
    name = test.partition("[")[0].removeprefix("test_")
    return "" if case.startswith("__") else {"asarray_scalars": "asarray", "asarray_arrays": "asarray"}.get(name, name)


def _is_skipped(test: str) -> bool:
    backend = os.environ["XDEVICE_BACKEND"]
    left_out = {**SKIPPED["*"], **SKIPPED[backend]}
    left_out |= OF_MANY.get(backend, {}) if int(os.environ[EXAMPLES]) > 20 else {}
    left_out |= ON_GPUS.get(backend, {}) if os.environ[DEVICE] else {}
    return any(test == part if part.startswith("test_") else part in test for part in left_out)


if __name__ == "__main__":
    sys.exit(main())
