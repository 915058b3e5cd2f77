#!/usr/bin/env python3
"""Each framework's newest release, as `pip install -U` brings it, alone in an environment that is deleted afterwards.

    python .ci/unpinned.py torch jax                 the README's example, the tour, a sample of the conformance suite
    python .ci/unpinned.py --pre --whole torch jax   on releases to come; the whole suite, on virtual GPUs too
    python .ci/unpinned.py mxnet@python3.11 torch    with the interpreters that are named
    python .ci/unpinned.py paddle --with paddlepaddle==2.6.2 --with 'numpy<2'    a release

Each failure is a line that names framework, version and capability, such as "torch 2.16.0: reproducibility failed:
test_the_frameworks_numbers_repeat_from_a_seed[cpu:0] (AttributeError: ...)". The exit status is 1 then. It needs the
package uv.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
HERE = "--here"
"""The first argument of the process that tries the framework of the environment that it runs in."""
SIDE_BY_SIDE = 2
ONE_IN = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "frameworks", nargs="+", metavar="FRAMEWORK[@PYTHON]", help="xdevice's names of them"
    )
    parser.add_argument("--pre", action="store_true", help="pre-releases too")
    parser.add_argument(
        "--whole", action="store_true", help="the whole conformance suite; warnings are errors"
    )
    parser.add_argument(
        "--with",
        dest="requirements",
        action="append",
        default=[],
        metavar="REQUIREMENT",
        help="installed too, such as an old release",
    )
    asked = parser.parse_args()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        failures = list(
            pool.map(
                lambda given: install_and_try(
                    given, asked.pre, asked.whole, asked.requirements
                ),
                asked.frameworks,
            )
        )
    return 1 if any(failures) else 0


def install_and_try(given: str, pre: bool, whole: bool, requirements: list[str]) -> bool:
    """Prints what failed and how long all took. Returns whether something failed."""
    name, _, python = given.partition("@")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix=".venv-unpinned-", dir=ROOT
    ) as folder:  # beside uv's files, to be linked
        uv = [sys.executable, "-m", "uv"]
        done = run([*uv, "venv", "-q", "--clear", "--python", python or sys.executable, folder])
        if done.returncode == 0:
            newest = ["-U", *(["--prerelease", "allow"] if pre else [])]
            packages = [f".[{name},test]", *requirements]
            done = run(
                [*uv, "pip", "install", "-q", "--python", folder, *newest, *packages], cwd=ROOT
            )
        if done.returncode:
            said = f"{name}: cannot be installed:\n{done.stderr}"
        else:
            programs = Path(folder) / ("Scripts" if os.name == "nt" else "bin")
            done = run(
                [programs / "python", __file__, HERE, name, *(["--whole"] if whole else [])]
            )
            said = done.stdout + done.stderr
    print(f"{said.strip()}\n= {name}: {time.monotonic() - start:.0f} s", flush=True)
    return done.returncode != 0


def run(command: list[object], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )


# in the environment


def try_here(name: str, whole: bool) -> int:
    title = f"{name} {version(name)}"
    print(f"{title}, NumPy {metadata.version('numpy')}, Python {sys.version.split()[0]}")
    failures = [*example(name), *tour(name), *conformance(name, whole)]
    for capability, how in failures:
        print(f"{title}: {capability} failed: {how}")
    return 1 if failures else 0


def version(name: str) -> str:
    from xdevice.core import frameworks

    known = frameworks.find(name)
    assert known is not None, f"xdevice has no backend {name!r}"
    return metadata.version(metadata.packages_distributions()[known.modules[0]][0])


def example(name: str) -> list[tuple[str, str]]:
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Example\n")[2]
    code, printed = (
        re.search(rf"```{language}\n(.*?)```", shown, re.DOTALL)[1]
        for language in ("python", "text")
    )
    with tempfile.TemporaryDirectory() as folder:  # no module of the tree is imported there
        done = run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "XDEVICE_BACKEND": name},
        )
    if done.stdout == printed.replace("torch", name):
        return []
    return [("the README's example", last_line(done.stderr) or f"it prints {done.stdout!r}")]


def tour(name: str) -> list[tuple[str, str]]:
    done = run([sys.executable, ROOT / "examples" / "tour.py", name])
    errors = re.findall(r"^\S*(?:Error|Exception)\b.*", done.stdout, re.MULTILINE)
    return (
        [("the tour", errors[0] if errors else last_line(done.stderr))]
        if done.returncode
        else []
    )


def conformance(name: str, whole: bool) -> list[tuple[str, str]]:
    title = name.capitalize()
    on_the_cpu = f"tests/testing/suite/test_conformance.py::Test{title}"
    if not whole:
        # whom does a warning break?
        return checks([on_the_cpu, "--one-in", ONE_IN, "-W", "default"])
    found = checks([on_the_cpu, "-m", "not gpu"])
    if name != "numpy":
        on_gpus = [
            f"tests/hardware/test_on_gpus.py::Test{title}{on}" for on in ("OnGpu", "HostAndGpu")
        ]
        found += checks([*on_gpus, "-m", "virtual"], XDEVICE_VIRTUAL_GPUS="4")
    return found


def checks(arguments: list[object], **variables: str) -> list[tuple[str, str]]:
    """The capabilities whose checks failed, and how."""
    failed: dict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [
            Path(sys.executable).with_name("pytest"),
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout",
            "300",
        ]
        crashes_are_named = ["-n", "1"]
        done = run([*pytest, *crashes_are_named, f"--junitxml={report}", *arguments], cwd=ROOT,
                   env={**os.environ, **variables})  # fmt: skip
        cases = [*ElementTree.parse(report).iter("testcase")] if report.exists() else []
    for case in cases:
        for problem in (*case.findall("failure"), *case.findall("error")):
            check, _, home = case.get("name", "").partition("[")
            error = problem.get("message", "").partition("\n")[0][:200]
            failed[about(check)].append(f"{check}{'[' if home else ''}{home} ({error})")
    if done.returncode and not failed:
        failed["the conformance suite"].append(last_line(done.stdout + done.stderr))
    print(last_line(done.stdout))
    return [(capability, shortened(problems)) for capability, problems in failed.items()]


def shortened(problems: list[str]) -> str:
    first, *others = problems
    return f"{first}, and {len(others)} more" if others else first


def about(check: str) -> str:
    """What a check is about, in words: the capabilities that it needs, or else the part of the suite that it is in."""
    from xdevice.testing import Conformance

    part = next((part for part in Conformance.__mro__ if check in vars(part)), None)
    if part is None:
        return "the conformance suite"
    names = getattr(vars(part)[check], "needs", None) or (part.__name__,)
    return ", ".join(
        re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower() for name in names
    ).replace("gpus", "GPUs")


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(
        try_here(sys.argv[2], "--whole" in sys.argv) if sys.argv[1:2] == [HERE] else main()
    )
