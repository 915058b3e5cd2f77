"""The room stands alone: beside Python it needs click and rich, and of xdevice nothing but itself."""

from __future__ import annotations

import pytest
from helpers.environment import printed

GUARD = """
import sys

PARTS = {"click", "rich", "colorama", "pygments", "markdown_it", "mdurl"}

class Guard:
    def find_spec(self, name, path=None, target=None):
        root, _, rest = name.partition(".")
        is_ours = root == "xdevice" and (not rest or rest.split(".")[0] in OURS)
        if not is_ours and root not in PARTS | set(sys.stdlib_module_names):
            raise ModuleNotFoundError(f"{name} is not here")

import xdevice  # the face itself, which is there before any part of it
OURS = {"port"}
sys.meta_path.insert(0, Guard())
import runpy
sys.argv = ["port", *ARGUMENTS]
try:
    runpy.run_module("xdevice.port", run_name="__main__")
except SystemExit as end:
    print("status", end.code)
"""
SCRIPT = "import torch\nx = torch.ones(1).item()\ny = x.cuda()\n"


@pytest.mark.parametrize(
    ("command", "status", "line"),
    [
        ("scan", 0, "of the uses that have to change can be rewritten"),
        ("port", 0, "+x = xdevice.item(torch.ones(1))"),
        ("port --to accelerator", 0, "+y = x.to(torch.accelerator.current_accelerator())"),
        ("lint", 1, "XD218"),
    ],
)
def test_python_m_needs_nothing_else(command, status, line, tmp_path):
    (tmp_path / "net.py").write_text(SCRIPT)
    shown = printed(
        "-c", GUARD.replace("*ARGUMENTS", f"*{command!r}.split(), '.'"), cwd=tmp_path
    )
    assert line in shown
    assert shown.splitlines()[-1] == f"status {status}"


def test_a_full_disk_or_a_wrong_folder_is_no_change(tmp_path):
    (tmp_path / "net.py").write_text(SCRIPT)
    code = (
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'xdevice.port', 'port', '--check', '--report', 'no/a.json', '.'],"
        " capture_output=True, text=True)\n"
        "print(done.returncode, done.stderr)"
    )
    assert printed("-c", code, cwd=tmp_path).startswith("2 Error: ")
