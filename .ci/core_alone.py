#!/usr/bin/env python3
"""Runs the device layer's own tests in a copy of this checkout that has no products.

    .venv/bin/python .ci/core_alone.py                # in the environment of the README's test command
    .venv/bin/python .ci/core_alone.py --one-in 3     # a third of the tests, always the same

The samples of each framework stay, which are for tests. What uses a product itself is skipped, by its name
(tests/helpers/products.py). If the device layer needs a product, tests fail; if its tests do, fewer of them pass than
`AT_LEAST` says.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("jax", "mxnet", "numpy", "paddle", "tensorflow", "torch")
PRODUCTS = ("cli", "distributed", "math", "performance", "port", "testing", "twins", "virtual")
FACES = ("nn.py", "optim.py", "random.py")  # public names of modules of math
SAMPLES = (
    "xdevice/testing/__init__.py",
    "xdevice/testing/contract/",
    *(f"backends/xdevice_{name}/testing/" for name in BACKENDS),
)
TESTS = ("base", "containers", "core", "cuda_driver", "execution", "replicas", "tensors")
OF_THE_PLUGIN = "tests/tensors/test_lacking.py"
# pytest's plugins, without the one that a product brings
ALONE = ("timeout", "xdist", "_hypothesis_pytestplugin")
AT_LEAST = 1_050  # they were 1,081 of 1,421 when this was written


def copy(to: Path) -> None:
    """Copies what git tracks, without the products."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if name.startswith(SAMPLES) or not is_of_a_product(name):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def is_of_a_product(name: str) -> bool:
    top, *inner = name.split("/")
    if top == "xdevice" and inner[0] in FACES:
        return True
    return top in ("xdevice", "backends", "tests") and not set(PRODUCTS).isdisjoint(inner[:2])


def run(at: Path, one_in: int) -> str:
    """Runs one test in `one_in`, and returns what pytest printed."""
    paths = os.pathsep.join([str(at), str(at / "backends")])
    plugins = [option for name in ALONE for option in ("-p", name)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        f"--one-in={one_in}",
        *plugins,
    ]
    process = subprocess.Popen(
        [*command, *(f"tests/{name}" for name in TESTS), f"--ignore={OF_THE_PLUGIN}"],
        cwd=at, env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        sys.exit("the device layer does not pass its tests alone")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one-in", type=int, default=1, help="run one test in this many")
    one_in = parser.parse_args().one_in
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder))
        printed = run(Path(folder), one_in)
    ran, passed = (
        re.search(r"xdevice backends run: (.*);", printed),
        re.search(r"ran: (\d+) passed", printed),
    )
    if ran is None or passed is None:
        sys.exit("pytest printed no summary")
    absent = [name for name in BACKENDS if f"{name} " not in ran[1]]
    # a sample has not exactly its share
    expected = int(0.9 * AT_LEAST / one_in) if one_in > 1 else AT_LEAST
    if absent or int(passed[1]) < expected:
        sys.exit(
            f"alone {passed[1]} tests passed, of {expected} or more; backends that did not run: {absent}"
        )


if __name__ == "__main__":
    main()
