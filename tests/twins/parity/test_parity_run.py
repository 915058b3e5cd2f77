"""`xdevice parity` and `xdevice compare-runs`, as people run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.environment import ROOT, needs, python

import xdevice
from xdevice.cli import progress
from xdevice.cli.main import main
from xdevice.twins.parity.parity_report import BackendRow, ParityReport, compare_recordings
from xdevice.twins.parity.record_files import Recording
from xdevice.twins.parity.recording import recording_to
from xdevice.twins.parity.report_page import page, plot
from xdevice.twins.parity.script_runs import Ended
from xdevice.twins.parity.tolerances import Strictness

EXAMPLE = ROOT / "examples" / "parity_mlp.py"
SCRIPT = """
import os, sys, numpy, xdevice
backend = os.environ["XDEVICE_BACKEND"]
record, here = xdevice.parity.log, lambda *names: backend in names
"""


def command(*arguments, cwd=None, **variables):
    """Status, output and errors, in a terminal that is wide enough for the tables."""
    done = python("-m", "xdevice", *arguments, cwd=cwd, COLUMNS="200", **variables)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def parity(tmp_path):
    """Runs a script that imports no framework, so that each of its backends takes a second."""

    def run(code, *arguments, backends="torch,jax"):
        needs(*backends.split(","))
        script = tmp_path / "script.py"
        script.write_text(SCRIPT + code)
        arguments, rest = split(arguments)
        return command("parity", script, "--backends", backends, "--jobs", 2, *arguments, *rest)

    return run


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Records as a script does on torch and on jax, in this process, and runs `xdevice compare-runs` here."""

    def run(code, *options):
        for backend in ("torch", "jax"):
            monkeypatch.setenv("XDEVICE_BACKEND", backend)
            shutil.rmtree(tmp_path / backend, ignore_errors=True)
            with recording_to(tmp_path / backend):
                exec(SCRIPT + code, {})
        return invoke("compare-runs", tmp_path / "torch", tmp_path / "jax", *options)

    return run


def invoke(*arguments):
    """Status and output of a command that runs in this process."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main, [*map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


def split(arguments):
    """Options before the `--`, and what the script gets."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place:]


def report_of(output):
    report = json.loads(output)
    return report, {row["backend"]: row for row in report["backends"]}


# the example, on every framework


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    names = ",".join(name for name in xdevice.backends() if name != "numpy")
    kept = (
        "--save",
        folder / "run",
        "--html",
        folder / "report.html",
        "--json",
        folder / "report.json",
    )
    done = command("parity", EXAMPLE, "--backends", names, "--jobs", 2, *kept)
    return folder, *done


@pytest.mark.slow
def test_the_example_agrees_on_every_framework(example):
    folder, status, out, err = example
    assert status == 0, out + err
    report, rows = report_of((folder / "report.json").read_text())
    assert report["first_divergence"] is None
    assert [row["state"] for row in rows.values()] == ["reference"] + ["agrees"] * (
        len(rows) - 1
    )
    assert {"torch", "tensorflow", "paddle", "mxnet", "jax"} <= set(rows)
    for name, row in rows.items():
        assert row["records"] == 41
        assert row["seconds"] > 0
        assert row["version"]
        assert re.search(rf"{name}: 41 recorded in \d", err)
    for name in report["names"]:
        assert set(name["backends"]) == set(rows) - {"torch"}
        for series in name["backends"].values():
            assert all(step["ok"] and step["excess"] < 1 for step in series["steps"])
    assert [name["name"] for name in report["names"]] == [
        "weights",
        "outputs",
        "loss",
        "gradients",
    ]
    assert "agrees" in out
    assert "First divergence" not in out


@pytest.mark.slow
def test_the_page_has_plots_and_needs_nothing_else(example):
    page = (example[0] / "report.html").read_text()
    assert page.count('<svg class="plot"') == 4
    assert page.count("<polyline") == 4 * 5
    assert "All backends agree" in page
    assert not re.search(r"<script|<link|<img|https?:|url\(|@import|src=", page)
    assert all(
        row["version"] in page
        for row in json.loads((example[0] / "report.json").read_text())["backends"]
    )
    is_balanced(page)


def is_balanced(page):
    open_tags = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "line"):
                open_tags.append(tag)

        def handle_startendtag(self, tag, attributes):
            pass

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Checker().feed(page)
    assert open_tags == []


@pytest.mark.slow
def test_saved_recordings_are_compared_later(example):
    folder = example[0] / "run"
    status, out = invoke("compare-runs", folder, folder)
    assert status == 0, out
    status, out = invoke(
        "compare-runs",
        folder / "torch",
        folder / "paddle",
        "--rtol",
        0,
        "--atol",
        0,
        "--json",
        "-",
    )
    assert status == 1
    report, rows = report_of(out)
    assert list(rows) == ["paddle"]
    assert report["first_divergence"]["reference"].startswith("torch of ")
    status, out = invoke("compare-runs", folder, folder / "mxnet")
    assert status == 0, out
    assert "jax of" in out
    assert "has no values of" in out


def test_a_folder_without_recordings_is_refused(tmp_path):
    status, err = invoke("compare-runs", tmp_path, tmp_path)
    assert status == 2
    assert "contains no recording" in err


def test_recordings_inside_a_folder_are_pointed_at(tmp_path):
    for depth in ("rec/test_a/torch", "rec/test_b/torch"):
        with recording_to(tmp_path / depth):
            xdevice.parity.log("x", 1)
    for folder in (tmp_path / "rec", tmp_path / "rec" / "test_a"):
        status, err = invoke("compare-runs", folder, folder)
        assert status == 2
        assert f"such as {tmp_path / 'rec' / 'test_a' / 'torch'}" in err
        assert f"pytest --xd-compare={folder}" in err


HEADER = '{"format": 1, "backend": "torch", "versions": {"torch": "2"}}\n'
LINE = '{"name": "x", "step": 0, "time": 1.0, "leaves": [{"path": "", "dtype": "int", "value": "1"}]}\n'


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"index.jsonl": ""}, "not enough values"),
        ({"index.jsonl": "[1]\n"}, "TypeError"),
        ({"index.jsonl": HEADER.replace("versions", "other")}, "KeyError('versions')"),
        ({"index.jsonl": HEADER.replace("backend", "other")}, "KeyError('backend')"),
        ({"index.jsonl": HEADER.replace(": 1", ": 2")}, "its format is 2"),
        ({"index.jsonl": HEADER + "[]\n"}, "TypeError"),
        ({"index.jsonl": HEADER + LINE.replace("step", "other")}, "KeyError('step')"),
        ({"index.jsonl": HEADER + LINE}, "KeyError('owner')"),
        (
            {"index.jsonl": HEADER + LINE.replace('"value"', '"owner": "x", "at"')},
            "FileNotFoundError",
        ),
        (
            {
                "index.jsonl": HEADER + LINE.replace('"value"', '"owner": "x", "at"'),
                "arrays.npy": "",
            },
            "TypeError",
        ),
        ({"index.jsonl": b"\xff\n"}, "UnicodeDecodeError"),
        ({"run.json": '{"backends": ['}, "JSONDecodeError"),
        ({"run.json": "{}"}, "KeyError('backends')"),
        ({"run.json": '{"backends": [{"backend": "torch"}]}'}, "TypeError"),
        ({"run.json": '{"backends": []}'}, "KeyError('reference')"),
    ],
)
def test_a_damaged_recording_is_no_divergence(tmp_path, files, what):
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    status, err = invoke("compare-runs", tmp_path, tmp_path)
    assert status == 2
    assert f"{tmp_path}/" in err
    assert "is damaged" in err
    assert what in err


def test_a_recording_whose_arrays_are_missing_or_cut_is_no_divergence(tmp_path):
    with recording_to(tmp_path):
        xdevice.parity.log("x", xdevice.ones(3))
    assert invoke("compare-runs", tmp_path, tmp_path)[0] == 0
    arrays = tmp_path / "arrays.npy"
    os.truncate(arrays, 130)
    status, err = invoke("compare-runs", tmp_path, tmp_path)
    assert (status, "arrays.npy is damaged at x, step 0" in err) == (2, True)
    arrays.unlink()
    status, err = invoke("compare-runs", tmp_path, tmp_path)
    assert (status, "FileNotFoundError" in err) == (2, True)


def test_a_recording_tells_the_backend_that_was_selected(tmp_path, monkeypatch):
    monkeypatch.delenv("XDEVICE_BACKEND", raising=False)
    xdevice.backend("torch")
    for name in ("numpy", "torch"):
        with xdevice.use_backend(name), recording_to(tmp_path / "a" / name):
            xdevice.parity.log("x", 1)
    status, out = invoke(
        "compare-runs", tmp_path / "a" / "torch", tmp_path / "a" / "numpy", "--json", "-"
    )
    _, rows = report_of(out)
    assert (status, list(rows)) == (0, ["numpy"])
    assert rows["numpy"]["version"] == xdevice.backend("numpy").version


# what a report says


def test_identical_runs_report_nothing(compared):
    status, out = compared("for i in range(10): record('loss', numpy.float32(i) / 3)")
    assert status == 0
    assert "First divergence" not in out


def test_the_first_divergence_is_the_first_in_program_order(parity, tmp_path):
    code = """
for i in range(10):
    fault = 1e-3 if i == {"jax": 7, "mxnet": 9}.get(backend) else 0
    record("z", {"w": numpy.ones((2, 3), "float32") + fault * numpy.eye(2, 3, dtype="float32")})
    record("a", numpy.float32(1 + (here("jax") and i >= 7)))
"""
    status, out, _ = parity(code, "--html", tmp_path / "r.html", backends="torch,jax,mxnet")
    assert status == 1
    assert (
        "First divergence\nz, step 7, on jax: the values differ at ['w']: 2 of 6 elements are off"
        in out
    )
    assert "1.00100005 at [0, 0]" in out
    page = (tmp_path / "r.html").read_text()
    assert page.index("First divergence: z, step 7, on jax") < page.index("<table")
    is_balanced(page)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            "record('x', 1); here('jax') and record('more', 1)",
            "more has a step 0 here, but not in the reference",
        ),
        (
            "record('x', 1); here('torch') and record('x', 1)",
            "x has no step 1 here, but has one in the reference",
        ),
        ("record('x', 1); record('y' if here('torch') else 'z', 1)", "z has a step 0 here"),
        ("record('x', numpy.ones(2 + here('jax')))", "the shapes differ: actual is (3,)"),
        (
            "record('x', numpy.ones(2, 'f8' if here('jax') else 'f4'))",
            "the dtypes differ: actual is float64",
        ),
        ("record('x', [1] * (2 + here('jax')))", "the structures differ"),
        ("record('x', float('nan'))", "actual    nan"),
    ],
)
def test_other_names_shapes_and_counts_of_steps_are_divergences(compared, code, what):
    status, out = compared(code)
    assert status == 1, out
    assert what in out.partition("First divergence")[2]


def test_options_loosen_and_tighten_the_comparison(compared):
    code = "record('x', numpy.array([1.0 + 1e-7 * here('jax'), numpy.nan], 'f8' if here('jax') else 'f4'))"
    assert compared(code, "--equal-nan", "--any-dtype")[0] == 0
    assert compared(code, "--equal-nan")[0] == 1
    assert compared(code, "--any-dtype")[0] == 1
    assert compared(code, "--equal-nan", "--any-dtype", "--rtol", 0, "--atol", 1e-9)[0] == 1


@pytest.mark.slow
def test_a_crash_a_hang_and_a_missing_framework_cost_a_row_each(parity, tmp_path):
    code = """
import signal, subprocess, time
for i in range(3):
    record("x", numpy.ones(3) * i)
sys.stdout.write(" ".join(sys.argv[1:]))
if here("tensorflow"):
    os.kill(os.getpid(), signal.SIGSEGV)
if here("paddle"):
    print("waiting", file=sys.stderr)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    open(sys.argv[1], "w").write(str(child.pid))
    time.sleep(1000)
if here("mxnet"):
    import no_such_framework
if here("jax"):
    record("x", os.environ.get("WRAPPED"))
"""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nWRAPPED=yes exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    status, out, err = parity(
        code, "--timeout", 15, "--save", tmp_path / "run", "--json", tmp_path / "r.json", "--html", tmp_path / "r.html",
        "--python", f"jax={python}", "--", tmp_path / "pid", "--flag", backends="torch,tensorflow,paddle,mxnet,jax",
    )  # fmt: skip
    assert status == 2, out + err
    report, rows = report_of((tmp_path / "r.json").read_text())
    assert [row["state"] for row in rows.values()] == [
        "reference",
        *["did not run"] * 3,
        "diverges",
    ]
    assert "ended by SIGSEGV" in rows["tensorflow"]["error"]
    assert "Fatal Python error: Segmentation fault" in rows["tensorflow"]["error"]
    assert rows["paddle"]["error"] == "was killed after 15 s; use a larger --timeout\nwaiting"
    assert "No module named 'no_such_framework'" in rows["mxnet"]["error"]
    assert "No module named 'no_such_framework'" in out
    assert rows["jax"]["python"] == str(python)
    assert report["first_divergence"]["name"] == "x"
    assert "x has a step 3 here, but not in the reference" in report["first_divergence"]["text"]
    assert [row["records"] for row in rows.values()] == [3, 3, 3, 3, 4]
    assert Recording(tmp_path / "run" / "tensorflow").entries[2].read()[0].value.tolist() == [
        2,
        2,
        2,
    ]
    assert is_gone(int((tmp_path / "pid").read_text()))
    assert (
        tmp_path / "run" / "torch" / "stdout.txt"
    ).read_text() == f"{tmp_path / 'pid'} --flag"
    assert Recording(tmp_path / "run" / "jax").entries[3].read()[0].value == "yes"
    is_balanced((tmp_path / "r.html").read_text())
    assert command("compare-runs", tmp_path / "run", tmp_path / "run")[0] == 2


def is_gone(pid):
    """Dead, if perhaps not buried yet."""
    end = time.monotonic() + 200
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_no_process_behind(how, tmp_path):
    needs("torch", "jax")
    script, pid = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(
        f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    )
    # a shell without job control starts what runs in the background with SIGINT ignored
    code = (
        "import signal; from xdevice.cli.main import main; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "main()"
    )
    command = [sys.executable, "-c", code, "parity", script, "--backends", "torch,jax"]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (pid.exists() and pid.read_text()):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(how)
    assert run.wait(timeout=800) != 0
    assert is_gone(int(pid.read_text()))


def test_a_divergence_before_a_crash_is_told(parity):
    status, out, _ = parity(
        "record('x', 1 + here('jax')); here('jax') and sys.exit(3); record('x', 1)"
    )
    assert status == 2
    assert "ended with exit status 3" in out
    assert "x, step 0, on jax" in out
    status, out, _ = parity("record('x', 1); here('jax') and sys.exit(3); record('x', 1)")
    assert status == 2
    assert "First divergence" not in out


@pytest.mark.slow
def test_without_a_reference_nothing_is_compared(parity):
    status, out, _ = parity(
        "record('x', here('jax')); here('torch') and sys.exit('no reference')"
    )
    assert status == 2
    assert "no reference" in out
    assert "not compared" in out
    status, out, _ = parity("here('jax') and record('x', 1)")
    assert status == 2
    assert "nothing can be compared with it; call xdevice.parity.log, or pass --trace" in out
    status, out, _ = parity("here('torch') and record('x', 1)")
    assert status == 1
    assert "x has no step 0 here, but has one in the reference" in out


@pytest.mark.slow
def test_a_script_that_records_nothing_is_told_so(parity):
    status, out, _ = parity("pass")
    assert status == 2
    assert "recorded nothing" in " ".join(out.split())
    assert "did not run" not in out


def test_wrong_arguments_are_refused_before_anything_runs(tmp_path, monkeypatch):
    needs("torch", "jax")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "s.py"
    script.write_text("open('ran', 'w')")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    monkeypatch.setitem(sys.modules, "paddle", None)
    for arguments, text in [
        (["--backends", "torch,troch"], "did you mean 'torch'"),
        (["--backends", "jax,"], "there is no backend '': the name is empty"),
        (
            ["--backends", "numpy,paddle"],
            "paddle is not installed here; pip install paddlepaddle, or use --python paddle=PATH to name "
            "an interpreter",
        ),
        (
            ["--backends", "torch,jax", "--reference", "mxnet"],
            "mxnet is not among the backends",
        ),
        (
            ["--backends", "torch"],
            "torch has nothing to be compared with; name another in --backends",
        ),
        (["--backends", "torch,jax", "--python", "jax"], "expected NAME=PATH"),
        (["--backends", "torch,jax", "--python", "jax=/no/such"], "there is no file /no/such"),
        (
            ["--backends", "torch,jax", "--python", f"mxnet={sys.executable}"],
            "mxnet is not among",
        ),
        (["--backends", "torch,jax", "--save", "full"], "is not empty"),
        (
            ["--backends", "torch,jax", "--save", "full", "--overwrite"],
            "full has no run.json: it is not the folder of",
        ),
        (
            ["--backends", "torch,jax", "--overwrite"],
            "--overwrite has an effect only together with --save",
        ),
        (
            ["--backends", "torch,jax", "--float64", "--calibrate"],
            "use only one of these options",
        ),
        (
            ["--backends", "torch,jax", "--rtol", "0", "--calibrate"],
            "use either --calibrate, or --rtol and --atol",
        ),
        (
            ["--backends", "torch,jax", "--save", "s.py/run"],
            "cannot create the folder s.py/run: Not a directory",
        ),
        (["--backends", "torch,jax", "--timeout", "0"], "--timeout"),
        (
            ["--backends", "torch,jax", "--rtol", "nan"],
            "rtol must be a non-negative number, got nan",
        ),
    ]:
        status, err = invoke("parity", script, *arguments)
        assert status == 2
        assert text in " ".join(err.split())
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "full" / "file").exists()


# what rounding does


ROUNDED = """
x = xdevice.random.normal(8, 8)
if here("jax"):
    x = x * numpy.float32(1 + 2e-6)
for step in range(2):
    y = xdevice.array_namespace(x).tanh(x)
    record("y", y)
    record("loss", xdevice.item(y[0, 0]))
"""


@pytest.fixture
def on_numpy(tmp_path):
    """Runs the command on NumPy under the names of two others, so that it takes a second a process."""
    script = tmp_path / "script.py"

    def run(code, *arguments, backends="numpy,jax"):
        script.write_text(SCRIPT + code)
        return command("parity", script, "--backends", backends, "--jobs", 2, *arguments)

    return run


@pytest.mark.slow
def test_a_run_in_float64_finds_what_rounding_hides(on_numpy, tmp_path):
    status, out, err = on_numpy(ROUNDED)
    assert status == 0, out + err
    status, out, err = on_numpy(
        ROUNDED, "--float64", "--json", tmp_path / "r.json", "--save", tmp_path / "run"
    )
    assert status == 1, out + err
    report, _ = report_of((tmp_path / "r.json").read_text())
    assert (report["first_divergence"]["name"], report["first_divergence"]["step"]) == ("y", 0)
    assert report["first_divergence"]["excess"] > 1000
    later = [
        step
        for name in report["names"]
        for step in name["backends"]["jax"]["steps"]
        if step["step"]
    ]
    assert all(step["ok"] for step in later), "later steps are held by the rule of float32"
    assert Recording(tmp_path / "run" / "jax").header["floats"] == "float64"
    status, out = invoke("compare-runs", tmp_path / "run", tmp_path / "run")
    assert status == 0, out


@pytest.mark.long
def test_float32_in_a_run_in_float64_is_told(on_numpy):
    status, out, _ = on_numpy(
        "record('x', xdevice.tensor(0.1, dtype='float32')); record('y', xdevice.tensor(0.1))",
        "--float64",
    )
    assert status == 0, out
    assert "numpy ran in float64, but x is float32 or complex64" in out
    assert "jax ran in float64, but x is float32" in out


@pytest.mark.slow
def test_calibrating_measures_what_rounding_does(on_numpy, tmp_path):
    code = ROUNDED.replace("2e-6", "3e-4 * (os.environ.get('FAR') == 'yes')")
    status, out, err = on_numpy(code, "--calibrate", "--save", tmp_path / "run")
    assert status == 0, out + err
    assert (
        "calibrated: each recorded value in float32 may differ by up to 8 times the effect of rounding alone in numpy"
        in out
    )
    assert "changed no recorded value" not in out
    for asked in ("float64", "jitter:1", "jitter:2", "jitter:3", "jitter:4"):
        assert f"numpy ({asked}): 4 recorded" in err
        folder = tmp_path / "run" / "calibration" / asked.replace(":", "")
        assert Recording(folder).header["floats"] == asked
    status, out = invoke("compare-runs", tmp_path / "run", tmp_path / "run" / "jax")
    assert status == 0, out
    assert "calibrated:" in out
    runs = tmp_path / "run", tmp_path / "run" / "jax"
    status, out = invoke("compare-runs", *runs, "--rtol", 1e-3)
    assert (status, "was calibrated" in out) == (2, True), out
    status, out, err = command(
        "parity", tmp_path / "script.py", "--backends", "numpy,jax", "--calibrate", "--save", tmp_path / "run",
        "--overwrite", FAR="yes",
    )  # fmt: skip
    assert status == 1, out + err
    assert "(the effect of rounding alone up to this step)" in out


@pytest.mark.long
def test_a_script_that_takes_nothing_from_xdevice_is_not_calibrated_without_a_word(on_numpy):
    status, out, err = on_numpy("record('x', numpy.float32(0.1))", "--calibrate")
    assert status == 0, out + err
    assert "calibration changed no recorded value" in out


@pytest.mark.long
def test_a_calibration_that_fails_is_told_by_name(on_numpy):
    code = "record('x', 0.1); 'jitter' in os.environ['XDEVICE_FLOATS'] and sys.exit('no more')"
    status, _, err = on_numpy(code, "--calibrate")
    assert status == 2
    assert "cannot calibrate: numpy (jitter:1) ended with exit status 1" in err
    status, out, err = on_numpy(
        "record('x', 0.1); here('numpy') and sys.exit('no more')", "--calibrate"
    )
    assert status == 2
    assert "no more" in out
    assert "not compared" in out


def test_an_alarm_that_may_be_rounding_says_so(compared):
    code = "record('x', numpy.float32(1 + {} * here('jax')))"
    status, out = compared(code.format(2.5e-5))
    assert status == 1
    assert (
        "2.3 times the allowed error may be rounding alone: xdevice parity --float64 shows"
        in out
    )
    assert "may be rounding" not in compared(code.format(2.5e-5), "--rtol", 1e-5)[1]
    status, out = compared(code.format(4e-5))
    assert status == 1
    assert "may be rounding" not in out


def test_a_gradient_that_is_zero_but_for_rounding_is_explained(compared):
    """As that of a bias before a batch norm: Adam makes whole steps of it, and the weights part."""
    code = """
record('gradients', {'w': numpy.float32([0.5, 0.1]), 'b': numpy.float32([3e-9 * (1 - 2 * here('jax'))])})
record('weights', {'w': numpy.float32([0.5, 0.1]), 'b': numpy.float32([0.01 * (1 - 2 * here('jax'))])})
record('weights', {'w': numpy.float32([0.5, 0.1 + 0.1 * here('jax')]), 'b': numpy.float32([0.01])})
"""
    status, out = compared(code)
    assert status == 1
    assert "weights, step 0" in out
    assert "gradients, step 0, has at most 3e-09 there, and 0.5 elsewhere" in out
    status, out = compared(
        code.replace("'b': numpy.float32([0.01 * (1 - 2 * here('jax'))])", "'b': 0.01")
    )
    assert "weights, step 1" in out
    assert "zero except for rounding" not in out, "of 'w', whose gradient is not small"


def test_one_element_of_a_gradient_that_is_rounding_is_explained(compared):
    code = """
record('gradients', {'w': numpy.float32([0.5, 3e-9 * (1 + here('jax'))])})
record('weights', {'w': numpy.float32([0.5, 0.01 * (1 + here('jax'))])})
"""
    _, out = compared(code)
    assert "gradients, step 0, has at most 3e-09 there, and 0.5 elsewhere" in out
    _, out = compared(code.replace("3e-9", "3e-6"))
    assert "elsewhere" not in out, "an eps that differs shows at small gradients, too"


def test_weights_that_one_side_does_not_train_are_said_not_to_change(compared):
    code = """
for step in range(3):
    record('weights', {'w': numpy.float32([1, 2, 4]) * 0.9**(step * here('torch'))})
"""
    status, out = compared(code)
    assert (status, "weights, step 1" in out) == (1, True)
    assert (
        "it has not changed since step 0 in actual, although it has changed in the other program"
        in out
    )
    assert "has not changed" not in compared(code.replace("step * here", "1 + step + here"))[1]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ("2.5 * x", "actual is 2.5 times expected"),
        ("-x", "actual is -1 times expected"),
        ("x[::-1].copy()", "both have the same numbers in different orders, along axis 0"),
        (
            "x[:, [0, 2, 1, 3, 4]]",
            "both have the same numbers in different orders, along axis 1",
        ),
        ("x[::-1, ::-1].copy()", "both have the same numbers in different orders\n"),
        ("whole[:, 1:]", "actual is one place ahead of expected, along axis 1"),
        (
            "numpy.stack([x[0] * 0, *x[:-1]])",
            "actual is one place behind expected, along axis 0",
        ),
        ("x * x", ""),
        ("x.sum()", ""),
        ("numpy.float32(4) * x[0, 0]", "actual is 4 times expected"),
        ("x[0, 0] / numpy.float32(4)", "actual is 0.25 times expected"),
        ("numpy.float32(1.37) * x[0, 0]", ""),
        ("x.T.copy()", "they are equal if one is transposed"),
    ],
)
def test_faults_that_explain_each_element_are_named(change, note):
    whole = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    x = whole[:, :-1]
    actual = eval(change, {"x": x, "whole": whole, "numpy": np})
    comparison = xdevice.parity.compare(actual, x if np.ndim(actual) else x[0, 0])
    assert not comparison.ok
    assert note in f"{comparison.text}\n"
    assert note or "note" not in comparison.text


def test_another_order_is_found_for_zeros_of_two_signs_and_for_two_dtypes():
    x = np.arange(15, dtype="float32").reshape(3, 5)
    with_minus_zero = np.where(x == 0, np.float32(-0.0), x)
    for actual in (with_minus_zero, x.astype("float64"), x.astype("complex64")):
        text = xdevice.parity.compare(actual[::-1], x, check_dtype=False).text
        assert "the same numbers in different orders, along axis 0" in text, actual.dtype


def test_a_variance_that_differs_between_frameworks_is_explained(compared):
    status, out = compared(
        "record('net', {'1.running_var': numpy.float32([1.0 + 0.01 * here('jax')])})"
    )
    assert status == 1
    assert "PyTorch's batch norms store the unbiased variance" in out


@pytest.mark.slow
def test_a_run_in_float64_allows_the_statistics_of_batch_norms_what_float32_rounds(on_numpy):
    """Paddle holds their momentum in float32, even of a layer in float64."""
    code = (
        "record('net', {'%s': xdevice.tensor(1.0, dtype='float64') * (1 + 3e-8 * here('jax'))})"
    )
    status, out, err = on_numpy(code % "1.running_mean", "--float64")
    assert status == 0, out + err
    assert on_numpy(code % "1.weight", "--float64")[0] == 1


# where it was recorded


def test_a_divergence_names_the_line_of_its_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, code in (("a", "x = 1.0\nsee('x', x)"), ("b", "see('x', 2.0)")):
        (tmp_path / f"{name}.py").write_text(code)
        with recording_to(tmp_path / name):
            exec(
                compile(code, str(tmp_path / f"{name}.py"), "exec"), {"see": xdevice.parity.log}
            )
    status, out = invoke(
        "compare-runs", tmp_path / "a", tmp_path / "b", "--html", tmp_path / "r.html"
    )
    assert status == 1
    assert "recorded  b.py:1 (actual), a.py:2 (expected)" in out
    assert "recorded  b.py:1 (actual), a.py:2 (expected)" in (tmp_path / "r.html").read_text()
    assert Recording(tmp_path / "a").entries[0].where == f"{tmp_path / 'a.py'}:2"
    status, out = invoke("compare-runs", tmp_path / "a", tmp_path / "b", "--json", "-")
    assert (
        json.loads(out)["first_divergence"]["recorded_at"]
        == "b.py:1 (actual), a.py:2 (expected)"
    )


def test_a_recording_without_lines_is_read(tmp_path):
    (tmp_path / "index.jsonl").write_text(
        HEADER + LINE.replace('"path": ""', '"path": "", "owner": "Python"')
    )
    assert Recording(tmp_path).entries[0].where == ""
    assert invoke("compare-runs", tmp_path, tmp_path)[0] == 0


# the page and the plot


def findings_of(tmp_path, name, values, others):
    for side, numbers in (("a", others), ("b", values)):
        shutil.rmtree(tmp_path / side, ignore_errors=True)
        with recording_to(tmp_path / side):
            for x in numbers:
                xdevice.parity.log(name, x)
    return compare_recordings(
        Recording(tmp_path / "b").entries,
        Recording(tmp_path / "a").entries,
        Strictness(),
        is_complete=False,
    )


def test_the_page_has_a_marker_for_each_of_six_backends_and_is_made_for_phones(tmp_path):
    findings = findings_of(tmp_path, "x", [1.0, 1.0 + 1e-6], [1.0, 1.0])
    names = ("tensorflow", "mxnet", "paddle", "jax", "numpy", "toy")
    rows = [BackendRow(name, "agrees", "torch", values=findings) for name in names]
    made = page(ParityReport(rows), "six")
    is_balanced(made)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in made
    marks = re.findall(r'<li><svg[^>]*><path [^>]* d="([^"]*)" fill="([^"]*)"', made)
    assert (
        len(marks)
        == len({shape for shape, _ in marks})
        == len({color for _, color in marks})
        == 6
    )
    widths = [
        float(width)
        for width in re.findall(r'<polyline [^>]*stroke-width="([\d.]+)" stroke-linecap', made)
    ]
    assert widths == sorted(widths, reverse=True), "what lies below is wider"
    assert len(set(widths)) == 6
    places = re.findall(r"translate\(([\d.]+),[\d.]+\)", made.partition("<ul")[0])
    assert len(set(places)) == 12, "no marker hides another"
    assert 'data-of="of what is allowed"' in made


def test_a_backend_that_was_cut_short_is_not_green_and_its_error_keeps_its_lines(tmp_path):
    path = "/home/ann/" + "folder/" * 30 + "train.py"
    findings = findings_of(tmp_path, "x", [1.0], [1.0, 2.0])
    error = f'ended with exit status 1\nTraceback\n  File "{path}"'
    report = ParityReport(
        [BackendRow("jax", "did not run", "torch", values=findings, error=error)]
    )
    made = page(report, "cut")
    is_balanced(made)
    names = made.partition("Recorded names")[2]
    assert '<tr class="cut">' in names
    assert "1, then it ended" in names
    assert 'class="good"' not in names
    assert f"<pre>ended with exit status 1\nTraceback\n  File &quot;{path}&quot;</pre>" in made


def test_the_tolerance_is_drawn_where_the_first_backend_has_none(tmp_path):
    missing = findings_of(tmp_path, "x", [[1.0]], [1.0])
    assert missing[0].comparison.allowed is None
    fine = findings_of(tmp_path, "x", [1.0], [1.0])
    assert "stroke-dasharray" in plot("x", {"jax": missing, "mxnet": fine})
    assert "tolerance" in plot("x", {"jax": missing, "mxnet": fine})
    exact = findings_of(tmp_path, "x", [1], [1])
    assert "ints and bools are exact" in plot("x", {"jax": exact})


def test_measurements_are_shown_in_notebooks():
    shown = xdevice.measure(lambda: None, repeats=2)._repr_html_()
    is_balanced(shown)
    assert "2 times" in shown


def test_a_pipe_gets_lines_and_no_clock(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter's kernel does
    with progress.show_progress(["numpy"]) as watcher:
        watcher.run_started("numpy")
        watcher.run_ended(Ended("numpy", 1.0, "", sys.executable), 3)
    assert capsys.readouterr().err == "numpy: 3 recorded in 1.0 s\n"


def test_a_plot_shows_what_was_found(tmp_path):
    for name, error in (("a", 0.0), ("b", 1e-3)):
        with recording_to(tmp_path / name):
            for step in range(10):
                xdevice.parity.log("<x>", 1 + (error if step == 7 else 0))
    findings = compare_recordings(
        Recording(tmp_path / "b").entries, Recording(tmp_path / "a").entries, Strictness()
    )
    drawing = plot("<x>", {"jax": findings, "mxnet": findings[:3], "paddle": []})
    heights = [
        float(point.split(",")[1])
        for point in re.search(r'points="([^"]*)"', drawing)[1].split()
    ]
    assert [step for step, height in enumerate(heights) if height < max(heights)] == [7]
    assert "<title>jax, step 7: 1.0e-03</title>" in drawing
    assert "&lt;x&gt;" in drawing
    is_balanced(drawing)
    assert plot("x", {"jax": []}) == ""
