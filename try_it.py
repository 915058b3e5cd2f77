"""Installs xdevice with all frameworks, and tries it, with nothing but Python 3.10 to 3.14:

    python3 try_it.py chapter    the GPU chapter of d2l.ai on every framework
    python3 try_it.py tests      the tests

Everything goes into the folder .venv beside this file; the versions are those of constraints.txt. A second run takes
what is there.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PROGRAMS = ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin")
JOBS = {  # the extras, about how long it takes on two cores, the command
    "chapter": ("all,mxnet", "2 minutes", ["python", "examples/tour.py"]),
    "tests": ("all,mxnet,test", "5 to 10 minutes", ["pytest", "-n", "3", "--dist", "loadfile"]),
}
DOWNLOAD = "0.9 GB, and 3.7 GB with PyPI's PyTorch on Linux, which brings CUDA"


def main() -> int:
    if sys.argv[1:] not in [[job] for job in JOBS]:
        sys.exit(__doc__)
    if not (3, 10) <= sys.version_info[:2] <= (3, 14):
        sys.exit(
            f"The frameworks have wheels for Python 3.10 to 3.14, and this is {sys.version.split()[0]}."
        )
    extras, duration, command = JOBS[sys.argv[1]]
    start = time.monotonic()
    say("1 of 3: an environment in .venv, with the installer uv")
    run([sys.executable, "-m", "venv", ".venv"])
    run([str(PROGRAMS / "python"), "-m", "pip", "install", "-q", "uv"])
    say(f"2 of 3: the frameworks, some minutes the first time: {DOWNLOAD}")
    install = [
        str(PROGRAMS / "uv"),
        "pip",
        "install",
        "--python",
        ".venv",
        "-c",
        "constraints.txt",
        f".[{extras}]",
    ]
    # it is not asked for anew where only its code has changed
    install += ["--reinstall-package", "xdevice-dl"]
    run(install, where_pip_looks(PROGRAMS / "python"))
    say(f"3 of 3: {' '.join(command)}, {duration} on two cores that nothing else uses")
    status = subprocess.run(
        [str(PROGRAMS / command[0]), *command[1:]], cwd=ROOT, check=False
    ).returncode
    how = "All of it passed" if status == 0 else f"Some of it FAILED (exit status {status})"
    say(
        f"{how}, after {(time.monotonic() - start) / 60:.1f} minutes; what ran and what was left out stands above."
    )
    say(f"The command xdevice is {(PROGRAMS / 'xdevice').relative_to(ROOT)} here.")
    return status


def where_pip_looks(python: str | Path) -> dict[str, str]:
    """The folders and indexes that pip is told of, by variables or its configuration, as the variables that tell uv."""
    # `get` reads one file of several, and no variable
    asked = [python, "-m", "pip", "config", "list"]
    lines = subprocess.run(
        asked, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    told = dict(line.split("=", 1) for line in lines)

    def said(name: str) -> list[str]:
        values = (
            told.get(f"{section}.{name}", "''") for section in (":env:", "install", "global")
        )
        return next(filter(None, map(ast.literal_eval, values)), "").split()

    found = {
        "UV_FIND_LINKS": ",".join(said("find-links")),
        "UV_INDEX": " ".join(said("extra-index-url")),
    }
    if found["UV_INDEX"]:
        found["UV_INDEX_STRATEGY"] = (
            "unsafe-best-match"  # as pip: the newest, from whichever index
        )
    return {name: value for name, value in found.items() if value and not os.environ.get(name)}


def run(command: list[str], variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(variables or {})}, check=False
    )
    if done.returncode:
        sys.exit(f"That failed, with exit status {done.returncode}: {' '.join(command)}")


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
