"""`xdevice scan` and `xdevice port`: what they print, write and return."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.environment import printed

(COMMAND,) = (script.load() for script in entry_points(group="console_scripts", name="xdevice"))
SCRIPT = "import torch\nx = torch.ones(1).item()\nnet = torch.nn.DataParallel(net)\n"
PORTED = (
    'import xdevice\n\nxdevice.set_backend("torch")\nimport torch\nx = xdevice.item(torch.ones(1))\n'
    "net = torch.nn.DataParallel(net)\n"
)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "main.py").write_bytes(SCRIPT.encode())
    return tmp_path


def run(*arguments, **options):
    return CliRunner().invoke(COMMAND, [str(argument) for argument in arguments], **options)


def test_port_shows_a_diff_and_changes_nothing(project):
    done = run("port", project)
    assert done.exit_code == 0
    assert "+x = xdevice.item(torch.ones(1))" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("main.py:3: XD153 torch.nn.DataParallel: ")
    assert line.endswith("; see docs/guides/wrappers.md")
    assert (project / "main.py").read_text() == SCRIPT


def test_a_pipe_gets_no_bar_where_colors_are_forced(project):
    """As in Jupyter, whose pipes rich takes for terminals."""
    command = [sys.executable, "-m", "xdevice", "port", "--quiet", str(project)]
    done = subprocess.run(
        command, env=os.environ | {"FORCE_COLOR": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "\x1b[?25l" not in done.stderr


def test_port_writes_and_a_second_run_has_nothing_to_do(project):
    checked = run("port", "--check", project)
    assert (checked.exit_code, checked.stdout) == (1, "main.py\n")
    assert run("port", "--write", project).exit_code == 0
    assert (project / "main.py").read_text() == PORTED
    again = run("port", "--check", "--quiet", project)
    assert (again.exit_code, again.output) == (0, "")


def test_a_file_outside_of_the_root_is_the_one_that_is_written(project, monkeypatch):
    monkeypatch.chdir(project)
    for folder in ("Src/part", "part"):
        Path(folder).mkdir(parents=True)
        Path(folder, "main.py").write_bytes(SCRIPT.encode())
    assert run("port", "--write", "--root", "Src", "part/main.py").exit_code == 0
    assert [Path(folder, "main.py").read_text() for folder in ("Src/part", "part")] == [
        SCRIPT,
        PORTED,
    ]


def test_port_of_the_standard_input_goes_to_the_output():
    done = run("port", "-", input=SCRIPT)
    assert done.stdout == PORTED


@pytest.mark.parametrize(
    ("text", "status", "output"),
    [(SCRIPT, 1, "<stdin>\n"), (PORTED, 0, ""), ("import torch\ng = torch.cuda.CUDAGraph()\n", 3, "")],
    ids=["changes", "done", "CUDA"],
)  # fmt: skip
def test_a_check_of_the_standard_input_prints_its_name_alone(text, status, output):
    done = run("port", "--check", "-", input=text)
    assert (done.exit_code, done.stdout) == (status, output)


def test_a_file_that_cannot_be_read_is_told_and_the_rest_is_written(project):
    (project / "bad.py").write_text("def f(:\n")
    done = run("port", "--write", project)
    assert done.exit_code == 2
    assert "bad.py could not be read" in done.stderr
    assert (project / "main.py").read_text() == PORTED


def test_a_path_that_is_not_there_is_wrong_usage(tmp_path):
    assert run("port", tmp_path / "nothing").exit_code == 2


@pytest.mark.parametrize("by", ["code", "file", "idiom"])
def test_scan_counts_what_port_would_do(project, by):
    done = run("scan", "--by", by, project)
    assert done.exit_code == 0
    assert "2 sites in 1 files" in done.stdout
    assert "50.0 %" in done.stdout
    assert (project / "main.py").read_text() == SCRIPT


FULL = """
import resource, signal, sys
from pathlib import Path

Path("main.py").write_text(SCRIPT + "y = x.cuda()\\n" + "# a long file\\n" * 5000)
before = Path("main.py").read_bytes()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # as on a full disk

from xdevice.port.__main__ import main

try:
    main(COMMAND.split(), standalone_mode=False)
except OSError as error:
    print(error.strerror, [path.name for path in Path().iterdir()], Path("main.py").read_bytes() == before)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files as POSIX does")
@pytest.mark.parametrize("command", ["port -q --write .", "lint --fix ."])
def test_a_file_is_written_whole_or_not_at_all(command, tmp_path):
    code = FULL.replace("SCRIPT", repr(SCRIPT)).replace("COMMAND", repr(command))
    assert printed("-c", code, cwd=tmp_path) == "File too large ['main.py'] True"


@pytest.mark.skipif(os.name != "posix", reason="has links and modes")
def test_a_file_that_is_written_keeps_its_mode_and_its_link(project):
    file, link = project / "main.py", project / "link.py"
    file.rename(project / "real.py")
    (project / "real.py").chmod(0o750)
    link.symlink_to("real.py")
    assert run("port", "--write", link).exit_code == 0
    assert link.is_symlink()
    assert link.read_text() == PORTED
    assert (project / "real.py").stat().st_mode & 0o777 == 0o750
