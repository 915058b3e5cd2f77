"""Runs the official suite of the Python Array API standard over `xdevice.array_namespace`.

    python tests/math/arithmetic/run_array_api_tests.py PATH BACKEND... [--examples 5] [--device gpu:1] [--arrays] [...]

PATH is a checkout of github.com/data-apis/array-api-tests with its submodule array-api; the suite is not on PyPI. It
needs the packages `ndindex` and `pytest-json-report` beside those of the extra `test`. With a device, every test runs
there, and whatever a function gives is checked to be there: `XDEVICE_VIRTUAL_GPUS=2` makes one on any machine. With
`--arrays` it runs over `xdevice.math.standard_array`, its operators and methods included. What follows is for pytest.

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
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

FILES: Final = (
    "constants", "creation_functions", "data_type_functions", "fft", "has_names", "indexing_functions",
    "inspection_functions", "linalg", "manipulation_functions", "operators_and_elementwise_functions",
    "searching_functions", "set_functions", "signatures", "sorting_functions", "special_cases", "statistical_functions",
    "utility_functions",
)  # fmt: skip
"""Of the suite: all but those in `OF_ARRAYS`, which ask what tensors themselves can do, as that stays the framework's.
In the others, tests of operators and of methods are left out for the same reason."""

OF_ARRAYS: Final = ("array_object", "dlpack")
"""Asked of standard arrays only, as are the operators and methods."""

BACKENDS: Final = ("torch", "tensorflow", "mxnet", "paddle", "jax", "numpy")

LEFT_OUT: Final = Path(__file__).with_name("left_out.txt")

DEVICE: Final = "ARRAY_API_TESTS_DEVICE"
"""The variable that says where tests run; empty is the CPU."""

ARRAYS: Final = "ARRAY_API_TESTS_ARRAYS"
"""The variable that says, if it is not empty, that standard arrays are tested, not tensors."""

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
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], usage=__doc__.splitlines()[2].strip()
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("backends", nargs="+", choices=BACKENDS, metavar="backend")
    parser.add_argument("--examples", type=int, default=5)
    parser.add_argument("--device")
    parser.add_argument("--arrays", action="store_true")
    arguments, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        copied = _copy(arguments.checkout, Path(folder) / "suite")
        command = [sys.executable, "-m", "pytest", "-q", "--disable-warnings"]
        command += [f"--timeout={120 + 5 * arguments.examples}"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdevice", "-p", Path(__file__).stem]
        command += [
            "--disable-deadline",
            "--derandomize",
            f"--max-examples={arguments.examples}",
        ]
        files = (*FILES, *(OF_ARRAYS if arguments.arrays else ()))
        command += [f"array_api_tests/test_{name}.py" for name in files] + rest
        failed = []
        for backend in arguments.backends:
            begun = time.monotonic()
            environment = _environment(backend, arguments.device, arguments.arrays)
            if subprocess.run(command, cwd=copied, env=environment, check=False).returncode:
                failed.append(backend)
            print(f"= {backend}: {time.monotonic() - begun:.0f} s", flush=True)
    if failed:
        print("failed:", *failed)
    return 1 if failed else 0


def _copy(checkout: Path, copied: Path) -> Path:
    if not (checkout / "array-api" / "src").exists():
        raise SystemExit(
            f"{checkout} lacks the submodule array-api: git submodule update --init"
        )
    shutil.copytree(checkout, copied, ignore=shutil.ignore_patterns(".git"))
    for file in (copied / "array_api_tests").glob("*.py"):
        text = file.read_text().replace(*NO_COMPLEX)
        if file.stem != "stubs":
            text = re.sub(r"(?<![\w.])([A-Za-z_][\w.]*)\.shape\b", r"tuple(\1.shape)", text)
        file.write_text(text)
    return copied


def _environment(backend: str, device: str | None, arrays: bool) -> dict[str, str]:
    environment = {
        **os.environ,
        "XDEVICE_BACKEND": backend,
        "JAX_ENABLE_X64": "1",
        DEVICE: device or "",
    }
    environment[ARRAYS] = "1" if arrays else ""
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    )
    environment["ARRAY_API_TESTS_MODULE"] = (
        f"exec('from {Path(__file__).stem} import tested; xp = tested()')"
    )
    environment["ARRAY_API_TESTS_SKIP_DTYPES"] = LACKING.get(backend, "")
    return environment


# what the suite and pytest ask of this file


def tested():
    """The namespace; with a device, one that checks where results are."""
    import xdevice

    xp = xdevice.array_namespace()
    if os.environ[ARRAYS]:
        xp = xdevice.math.standard_array(xp.zeros(1)).__array_namespace__()
    if not os.environ[DEVICE]:
        return xp
    xdevice.device(os.environ[DEVICE]).__enter__()  # for as long as the process lasts
    kept = {
        name: getattr(xp, name)
        for name in ("__name__", "__array_api_version__", "__array_namespace_info__")
    }
    checked = SimpleNamespace(**kept, **_all_checked(xp))
    for extension in {"fft", "linalg"} & {*dir(xp)}:
        setattr(checked, extension, SimpleNamespace(**_all_checked(getattr(xp, extension))))
    return checked


def _all_checked(xp):
    public = {name: getattr(xp, name) for name in dir(xp) if not name.startswith("_")}
    return {name: _checked(one) if callable(one) else one for name, one in public.items()}


def _checked(function):
    from xdevice.core import registry

    def places(values):
        found = (registry.owner_and_kind(type(x)) for x in values)
        return [
            str(one.backend.device_of(x))
            for x, one in zip(values, found, strict=True)
            if one is not None
        ]

    @wraps(function)
    def checked(*args, **kwargs):
        made = function(*args, **kwargs)
        # TensorFlow's operators, which the tests use too, give integers on the CPU: what is made of them is there
        here = places(args[0] if args and isinstance(args[0], list | tuple) else args)
        wanted = (
            [str(kwargs["device"])] if kwargs.get("device") else here or [os.environ[DEVICE]]
        )
        for place in places(made if isinstance(made, list | tuple) else [made]):
            assert place in wanted, f"{function.__name__} gave a tensor on {place}"
        return made

    return checked


@pytest.hookimpl(tryfirst=True)  # before pytest's own -k
def pytest_collection_modifyitems(config, items) -> None:
    kept = [item for item in items if os.environ[ARRAYS] or not _is_of_tensors(item.name)]
    of_tensors = len(items) - len(kept)
    sections = _sections()
    for section in sections:
        section.found = [item for item in kept if section.is_of(item.name)]
    out = {item for section in sections for item in section.found}
    config.hook.pytest_deselected(
        items=[item for item in items if item in out or item not in set(kept)]
    )
    is_whole = {item.path.stem for item in items} >= {f"test_{name}" for name in FILES}
    items[:] = [item for item in kept if item not in out]
    print(
        f"of functions: {len(items) + len(out)} tests; of operators and methods, not asked: {of_tensors}"
    )
    for section in sections:
        print(f"left out: {len(section.found)}: {section.reason}")
    wrong = [section.reason for section in sections if section.count != len(section.found)]
    if is_whole and wrong:
        raise pytest.UsageError(f"{LEFT_OUT.name} counts other numbers of tests: {wrong}")


@dataclass
class _Section:
    """A reason to leave tests out, and how many these are."""

    reason: str
    count: int
    cases: list[str] = field(default_factory=list)
    found: list[object] = field(default_factory=list)

    def is_of(self, test: str) -> bool:
        _, _, case = test.partition("[")
        return any(
            case.startswith(part) or test == part or (part.startswith("*") and part[1:] in test)
            for part in self.cases
        )


def _sections() -> list[_Section]:
    """The sections of the file that are for this run."""
    here = {"*", os.environ["XDEVICE_BACKEND"]}
    here |= {f"{name} on GPUs" for name in here} if os.environ[DEVICE] else set()
    here |= {f"{name} as arrays" for name in here} if os.environ[ARRAYS] else set()
    sections: list[_Section] = []
    is_here = False
    for line in LEFT_OUT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            heads, count, reason = re.match(r"\[(.*)\] (\d+): (.*)", line).groups()
            is_here = bool(here & set(heads.split(", ")))
            sections += [_Section(reason, int(count))] if is_here else []
        elif is_here and line and not line.startswith("#"):
            sections[-1].cases.append(line)
    return sections


def _is_of_tensors(test: str) -> bool:
    """Whether a test is of an operator, a method or an attribute of tensors."""
    _, _, case = test.partition("[")
    return case.startswith(("__", "array_method", "array_attribute")) or test.startswith(
        "test_array_method"
    )


if __name__ == "__main__":
    sys.exit(main())
