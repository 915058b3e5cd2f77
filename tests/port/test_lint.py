"""What lint tells: ignore comments, settings, baselines, revisions, formats and exit statuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from helpers.environment import ROOT, printed
from helpers.port_texts import ported

from xdevice.cli.main import main
from xdevice.port import engine, lint, lint_rules, sources
from xdevice.port.lint import Choice

MOVES = "x = y.cuda()"


def told(text, path="train.py", **choice):
    raw = text if isinstance(text, bytes) else text.encode()
    return [
        (one.line, one.code)
        for one in lint.findings(sources.parse(raw, path), Choice(**choice))
    ]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, typed=None):
    done = CliRunner().invoke(
        main, ["lint", *map(str, arguments)], input=typed, catch_exceptions=False
    )
    return done.exit_code, done.output


# comments


@pytest.mark.parametrize(
    "text",
    [
        f"{MOVES}  # xdevice: ignore",
        f"{MOVES}  # xdevice: ignore[XD218]",
        f"{MOVES}  #xdevice:ignore[XD205, XD2]",
        f"{MOVES}  # 中文 # xdevice: ignore".replace("# 中文 ", ""),
        "x = f(\n    y.cuda(),\n    1,  # xdevice: ignore\n)",
        "x = f(  # xdevice: ignore[XD218]\n    y.cuda(),\n)",
        f"# xdevice: off\n{MOVES}\n# xdevice: on",
        f"# xdevice: off[XD218]\n\n{MOVES}",
        "if y.cuda():  # xdevice: ignore\n    pass",
    ],
)
def test_what_is_ignored(text):
    assert told(text) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{MOVES}  # xdevice: ignore[XD205]", 1),
        (f"{MOVES}\n# xdevice: ignore", 1),
        (f"a = '# xdevice: ignore'; {MOVES}", 1),
        (f"# xdevice: off\n# xdevice: on\n{MOVES}", 3),
        ("if y.cuda():\n    pass  # xdevice: ignore", 1),
        (f"# xdevice: off[XD205]\n{MOVES}", 2),
    ],
)
def test_what_is_not(text, line):
    assert (line, "XD218") in told(text)


def test_an_ignore_that_ignores_nothing_is_told():
    assert told("x = 1  # xdevice: ignore") == [(1, "XD401")]
    assert told("\nx = 1  # xdevice: ignore[XD218]") == [(2, "XD401")]
    assert told("# xdevice: off\nx = 1\n# xdevice: on") == [(1, "XD401")]
    assert told(f"{MOVES}  # xdevice: ignore[XD205]") == [(1, "XD401"), (1, "XD218")]
    # whether a rule that is off would find something is not known
    assert told("x = 1  # xdevice: ignore[XD201]") == []
    assert told("x = 1  # xdevice: ignore[XD2]") == []
    assert told("x = 1  # xdevice: ignore", select=("XD202", "XD401")) == []
    assert told("x = 1  # xdevice: ignore", ignore=("XD401",)) == []
    # the rule of the finding does not run, and the comment is needed where it does
    assert told(f"{MOVES}  # xdevice: ignore", ignore=("XD218",)) == []
    assert told(f"{MOVES}  # xdevice: ignore", per_file=(("*.py", ("XD2",)),)) == []
    assert told("x = 1  # xdevice: ignore", select=("XD",)) == [(1, "XD401")]
    # XD2 is also for XD202, which did not run
    assert told("x = 1  # xdevice: ignore[XD2]", select=("XD201", "XD401")) == []
    assert told("x = 1  # xdevice: ignore[XD218, XD201]") == []
    assert told("x = 1  # xdevice: ignore[XD2]", select=("XD2", "XD401")) == [(1, "XD401")]


def test_a_comment_with_an_unknown_code_is_refused():
    with pytest.raises(
        lint.OptionError, match=r"train.py:1: there is no code 'XD999'; the codes are XD201, "
    ):
        told(f"{MOVES}  # xdevice: ignore[XD999]")


def test_notebooks_have_cells_and_comments_of_their_own():
    cells = [
        {"cell_type": "markdown", "source": ["# xdevice: off\n"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "x = y.cuda()"]},
        {"cell_type": "code", "source": ["x = y.cuda()  # xdevice: ignore"]},
    ]
    raw = json.dumps({"cells": cells}, indent=1).encode()
    (one,) = lint.findings(sources.parse(raw, "a.ipynb"), Choice())
    assert (one.code, one.cell, one.col) == ("XD218", 1, 5)
    assert raw.decode().splitlines()[one.line - 1].strip().startswith('"x = y.cuda()')


def test_two_tabs_of_a_text_are_told_once():
    text = "```{.python .input}\n%%tab pytorch, mxnet\nx = y.cuda()\n```\n"
    assert told(text, "a.md") == [(3, "XD218")]


def test_columns_are_characters():
    (one,) = lint.findings(sources.parse("变量 = 数据.cuda()".encode(), "a.py"), Choice())
    assert (one.col, one.end) == (6, (1, 15))


# which codes


def test_selecting_and_ignoring():
    text = "import torch\nx = y.cuda()\nz = torch.load(f)\nt = y.cpu(non_blocking=True)"
    assert [code for _, code in told(text)] == ["XD218", "XD205"]
    assert [code for _, code in told(text, select=("XD20",))] == ["XD205", "XD204"]
    assert [code for _, code in told(text, ignore=("XD205",))] == ["XD218"]
    assert told(text, select=("XD2",), ignore=("XD2",)) == []
    assert told(text, "a/train.py", per_file=(("a/*.py", ("XD2",)),)) == []
    assert told(text, "b/a/train.py", per_file=(("train.py", ("XD2",)),)) == []
    assert len(told(text, "b.py", per_file=(("train.py", ("XD2",)),))) == 2
    assert [code for code, rule in lint_rules.RULES.items() if rule.is_default] == [
        "XD202", "XD205", "XD208", "XD217", "XD218", "XD219", "XD222", "XD401",
    ]  # fmt: skip


def test_settings_come_from_the_nearest_pyproject(project):
    pytest.importorskip("tomllib")
    (project / "a").mkdir()
    (project / "a" / "net.py").write_text(MOVES)
    (project / "net.py").write_text(MOVES)
    (project / "pyproject.toml").write_text(
        '[tool.xdevice.per-file-ignores]\n"a/*" = ["XD2"]\n'
    )
    status, output = run(".")
    assert status == 1
    assert output.startswith(
        "net.py:1:5: XD218 `.cuda()` is CUDA-only; use xdevice.to_device(x, "
    )
    assert output.endswith("\n1 found: 1 XD218\n")
    (project / "pyproject.toml").write_text('[tool.xdevice]\nignore = ["XD218"]\n')
    assert run(".") == (0, "nothing found\n")
    (project / "pyproject.toml").write_text('[ tool . "xdevice" ]\nselect = ["XD205"]\n')
    assert run(".") == (0, "nothing found\n")
    assert run(".", "--select", "XD218")[0] == 1  # the command goes before the file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tool.xdevice]\nignore = ["XD7"]', "there is no code 'XD7'"),
        ('[tool.xdevice]\nignore = "XD2"', "expected a list of codes"),
        (
            "[tool.xdevice]\nexclude = []",
            "the keys of [tool.xdevice] must be select, ignore or per-file-ignores, not exclude",
        ),
        ("[tool.xdevice]\nignore = [", "pyproject.toml"),
        (
            '[tool.xdevice]\nper-file-ignores = ["a"]',
            "pyproject.toml: per-file-ignores: expected a table such as {'tests/*' = ['XD202']}, got ['a']",
        ),
    ],
)
def test_settings_that_are_wrong_are_refused(project, text, said):
    pytest.importorskip("tomllib")
    (project / "pyproject.toml").write_text(text)
    status, output = run(".")
    assert status == 2
    assert said in output


@pytest.mark.parametrize(
    "text",
    [
        'text = """\n[tool.xdevice]\n"""',
        "text = '''\n[tool.xdevice]\nignore = 1\n'''\n[tool.ruff]",
        '[tool.xdevice-plugin]\nignore = "XD7"',
    ],
)
def test_a_file_without_our_table_has_no_settings(project, text):
    pytest.importorskip("tomllib")
    (project / "net.py").write_text("x = 1")
    (project / "pyproject.toml").write_text(text)
    assert run(".") == (0, "nothing found\n")


def test_python_3_10_cannot_read_settings_and_says_so(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    (project / "net.py").write_text("x = 1")
    (project / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    assert run(".")[0] == 0
    (project / "pyproject.toml").write_text("[tool.xdevice]\n")
    status, output = run(".")
    assert status == 2
    assert "needs Python 3.11 or newer" in output


# what was there before


def test_a_baseline_knows_lines_that_have_moved(project):
    file, kept = project / "net.py", project / "base.json"
    file.write_text(f"def f(y):\n    {MOVES}\n    {MOVES}\n")
    assert run(".", "--write-baseline", kept) == (0, f"findings written to {kept}: 2\n")
    assert json.loads(kept.read_text())["findings"] == [
        {"path": "net.py", "code": "XD218", "line": MOVES, "count": 2}
    ]
    file.write_text(f"\n\ndef f(y):\n  {MOVES}\n  {MOVES}\n")
    assert run(".", "--baseline", kept) == (0, "nothing found\n")
    file.write_text(f"def f(y):\n    {MOVES}\n    {MOVES}\n    {MOVES}\n")
    status, output = run(".", "--baseline", kept)
    assert status == 1
    assert output.startswith("net.py:4:9: XD218")
    file.rename(project / "other.py")
    assert run(".", "--baseline", kept)[0] == 1


@pytest.mark.parametrize("text", ["", "[]", '{"findings": [1]}', None])
def test_what_is_no_baseline_is_refused(project, text):
    (project / "net.py").write_text(MOVES)
    if text is not None:
        (project / "base.json").write_text(text)
    status, output = run(".", "--baseline", "base.json")
    assert status == 2
    assert "base.json is not a baseline" in output


def git(*arguments):
    who = ["-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


def test_only_lines_that_a_change_adds(project):
    git("init", "-q")
    folder = project / "包"
    folder.mkdir()
    (folder / "net.py").write_text(f"{MOVES}\nx = f(\n    y.cuda(),\n    1,\n)\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    assert run(".", "--diff", "HEAD") == (0, "nothing found\n")
    (folder / "net.py").write_text(f"import a\n{MOVES}\nx = f(\n    y.cuda(),\n    2,\n)\n")
    status, output = run(".", "--diff", "HEAD")
    assert status == 1
    assert output.startswith("包/net.py:4:5: XD218")
    assert "1 found" in output
    (project / "new.py").write_text(MOVES)
    assert "2 found" in run(".", "--diff", "HEAD")[1]


@pytest.mark.parametrize(
    "setting",
    [
        "diff.mnemonicPrefix=true",
        "diff.noprefix=true",
        "diff.dstPrefix=new/",
        "diff.interHunkContext=9",
        "diff.upper.textconv=echo",
    ],
)
def test_the_settings_of_git_do_not_change_what_is_added(project, setting):
    git("init", "-q")
    git("config", *setting.split("="))
    (project / ".gitattributes").write_text("*.py diff=upper\n")
    (project / "b").mkdir()
    (project / "b" / "net.py").write_text(f"a = 1\n{MOVES}\nb = 2\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    (project / "b" / "net.py").write_text(f"a = 2\n{MOVES}\nz.cuda()\nb = 3\n")
    status, output = run(".", "--diff", "HEAD")
    assert status == 1
    assert output.startswith("b/net.py:3:1: XD218")
    assert "1 found" in output


def test_an_added_line_that_looks_like_a_heading_of_a_diff(project):
    git("init", "-q")
    (project / "net.py").write_text("x = 0\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    text = 'a = """\n++ b/other.py\n@@ +1,9 @@ \x0c@@ +1,9 @@\n"""\n'
    (project / "net.py").write_text(f"{text}x = 0\n{MOVES}\n")
    status, output = run(".", "--diff", "HEAD")
    assert status == 1
    assert output.startswith("net.py:6:5: XD218")


def test_a_revision_that_git_does_not_know_is_refused(project):
    (project / "net.py").write_text(MOVES)
    status, output = run(".", "--diff", "HEAD")
    assert status == 2
    assert output.splitlines()[-1].startswith("Error: --diff: ")  # Git's own advice is left out
    git("init", "-q")
    status, output = run(".", "--diff", "nothing")
    assert status == 2
    assert "nothing" in output


def test_two_of_them_at_once_are_refused(project):
    assert run(".", "--diff", "HEAD", "--baseline", "x")[0] == 2


# the command


def test_exit_statuses(project):
    (project / "good.py").write_text("x = 1")
    assert run("good.py")[0] == 0
    (project / "bad.py").write_text(MOVES)
    assert run(".")[0] == 1
    (project / "broken.py").write_text("x = (")
    status, output = run(".")
    assert status == 2
    assert "bad.py:1:5: XD218" in output
    assert "broken.py could not be read: line 1" in output
    status, output = run("good.py", "nowhere.py")
    assert (status, "nothing found" in output) == (2, False)
    assert run(".", "--select", "XD7")[0] == 2
    assert run("-", typed=MOVES)[1].startswith("<stdin>:1:5: XD218")


def test_what_a_rule_needs_to_know_of_values_is_asked_for(project):
    (project / "net.py").write_text("import torch\nx = torch.ones(1)\nx.to('cpu')\n")
    assert run(".") == (0, "nothing found\n")
    assert run(".", "--select", "XD212")[1].startswith("net.py:3:1: XD212")


def test_formats(project):
    (project / "a,b%.py").write_text("变 = y.cuda()\nimport torch\nz = torch.load(\n    f)")
    status, output = run(".", "--format", "github")
    first, second = output.splitlines()
    assert status == 1
    assert first.startswith(
        "::error file=a%2Cb%25.py,line=1,col=5,endLine=1,title=XD218::`.cuda()` is CUDA-only; use xdevice.to_device(x, "
    )
    assert "line=3,col=5,endLine=4,title=XD205" in second
    found = json.loads(run(".", "--format", "json")[1])["findings"]
    assert [(one["path"], one["line"], one["col"], one["end"], one["code"]) for one in found] == [
        ("a,b%.py", 1, 5, [1, 13], "XD218"), ("a,b%.py", 3, 5, [4, 7], "XD205"),
    ]  # fmt: skip
    document = json.loads(run(".", "--format", "sarif")[1])
    (made,) = document["runs"]
    assert document["version"] == "2.1.0"
    assert [rule["id"] for rule in made["tool"]["driver"]["rules"]] == ["XD205", "XD218"]
    region = made["results"][1]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 3, "startColumn": 5, "endLine": 4, "endColumn": 7}
    assert made["results"][1]["ruleId"] == "XD205"
    for shape in ("github", "json", "sarif", "text"):
        assert run(".", "--format", shape, "--select", "XD204")[0] == 0


def applied(text, changes):
    """What is left of a text when each change of SARIF has been made."""
    lines = text.splitlines(keepends=True)
    at = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    for change in reversed(changes):
        region = change["deletedRegion"]
        start, end = (
            at[region[f"{side}Line"] - 1] + region[f"{side}Column"] - 1
            for side in ("start", "end")
        )
        text = text[:start] + change["insertedContent"]["text"] + text[end:]
    return text


def test_the_fixes_of_sarif_are_what_port_writes(project):
    text = (
        "import torch\n变 = torch.ones(1)\nx = 变.cuda()\ny = 变.to('cuda')\ntorch.cuda.synchronize()\n"
        'torch.distributed.init_process_group("nccl")\n'
    )
    (project / "net.py").write_text(text, encoding="utf-8")
    cells = [{"cell_type": "code", "source": text.splitlines(keepends=True)}]
    (project / "net.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    results = json.loads(run(".", "--format", "sarif")[1])["runs"][0]["results"]
    fixed = [(one["ruleId"], one["fixes"]) for one in results if "fixes" in one]
    added = 'import xdevice\n\nxdevice.set_backend("torch")\n'
    engine_of_gpu = "torch.distributed.get_default_backend_for_device(xdevice.native.gpu())"
    expected = [
        ("XD218", "变.cuda()", "xdevice.to_device(变, xdevice.gpu())"),
        ("XD217", "torch.cuda.synchronize()", "xdevice.sync()"),
        ("XD217", '"nccl"', engine_of_gpu),
    ]
    assert [code for code, _ in fixed] == [code for code, _, _ in expected]
    for (_, (fix,)), (_, old, new) in zip(fixed, expected, strict=True):
        (change,) = fix["artifactChanges"]
        assert change["artifactLocation"]["uri"] == "net.py"
        assert applied(text, change["replacements"]) == added + text.replace(old, new)


# what is fixed


FIXED = {
    "x = y.cuda()": "x = xdevice.to_device(y, xdevice.gpu())",
    "torch.cuda.synchronize()": "xdevice.sync()",
    'x = torch.ones(2, device="cuda")': "x = torch.ones(2, device=xdevice.native.gpu())",
    "if torch.cuda.is_available():\n    torch.cuda.synchronize()": "if xdevice.num_gpus() > 0:\n    xdevice.sync()",
}


ADDED = 'import xdevice\n\nxdevice.set_backend("torch")\n'


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("text", FIXED)
def test_a_fix_changes_its_place_and_nothing_else(project, text, end):
    before, after = (
        "# coding: gbk\n# 变  \n",
        "import torch\n\ny = torch.ones( 1 )\n{}\n\nif  y :  # \t\n  pass",
    )
    old, new = f"{before}{after.format(text)}", f"{before}{ADDED}{after.format(FIXED[text])}"
    (project / "net.py").write_bytes(old.replace("\n", end).encode("gbk"))
    assert run(".", "--fix") == (0, "rewritten: net.py\nnothing found\n")
    assert (project / "net.py").read_bytes() == new.replace("\n", end).encode("gbk")
    assert run(".", "--fix") == (0, "nothing found\n")


def test_a_fix_writes_what_port_writes_for_the_same_target(project):
    text = (
        "import torch\ny = torch.ones(1)\nx = y.cuda()\n"
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    pass\n"
    )
    (project / "net.py").write_text(text)
    assert run(".", "--fix", "--to", "accelerator")[0] == 0
    examined = engine.Examined(
        project, "proven", sources=[sources.parse(text.encode(), "net.py")]
    )
    examined.goal = examined.goal._replace(target="accelerator")
    engine.judge(examined)
    assert (project / "net.py").read_bytes() == examined.ported(examined.sources[0])


def test_what_is_ignored_or_older_is_not_fixed(project):
    kept = f"import torch\ny = torch.ones(1)\n{MOVES}  # xdevice: ignore\n"
    (project / "net.py").write_text(kept)
    assert run(".", "--fix")[0] == 0
    assert (project / "net.py").read_text() == kept
    git("init", "-q")
    (project / "net.py").write_text(f"import torch\ny = torch.ones(1)\n{MOVES}\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    (project / "net.py").write_text(f"import torch\ny = torch.ones(1)\n{MOVES}\nz = y.cuda()\n")
    assert run(".", "--fix", "--diff", "HEAD")[0] == 0
    assert (project / "net.py").read_text() == (
        f"{ADDED}import torch\ny = torch.ones(1)\n{MOVES}\nz = xdevice.to_device(y, xdevice.gpu())\n"
    )


def test_streams_of_a_file_are_fixed_together_or_not_at_all(project):
    text = "import torch\ns = torch.cuda.Stream()\nwith torch.cuda.stream(s):{}\n    torch.cuda.synchronize()\n"
    (project / "net.py").write_text(text.format("  # xdevice: ignore"))
    assert run(".", "--fix")[0] == 1
    written = (project / "net.py").read_text()
    assert "torch.cuda.Stream()" in written
    assert "xdevice.sync()" in written


def test_a_test_stays_where_it_guards_what_only_one_vendor_has(project):
    text = "import torch\nif torch.cuda.is_available():\n    print(torch.cuda.{}())\n"
    (project / "net.py").write_text(text.format("get_device_capability"))
    status, output = run(".", "--fix")
    assert (status, "rewritten" in output) == (1, False)
    leaves = "import torch\nif not torch.cuda.is_available():\n    raise SystemExit\ntorch.cuda.{}()\n"
    (project / "net.py").write_text(leaves.format("utilization"))
    assert (run(".", "--fix")[0], (project / "net.py").read_text()) == (
        1,
        leaves.format("utilization"),
    )
    (project / "net.py").write_text(leaves.format("synchronize"))
    assert run(".", "--fix")[0] == 0


@pytest.mark.parametrize("target", ["accelerator", "xdevice"])
@pytest.mark.parametrize(
    "line",
    [
        'd = "cuda" if torch.cuda.is_available() else "cpu"',
        'd = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")',
        'if torch.cuda.is_available():\n    x = x.to("cuda")',
        'if not torch.cuda.is_available():\n    raise E\nx = torch.zeros(1, device="cuda")',
    ],
)
def test_a_test_and_the_text_that_it_guards_are_fixed_together(project, target, line):
    (project / "net.py").write_text(f"import torch\nx = torch.ones(2)\n{line}\n")
    assert run(".", "--fix", "--to", target)[0] == 0
    written = (project / "net.py").read_text()
    assert (
        "cuda" if target == "accelerator" else "torch.cuda"
    ) not in written  # xdevice's "cuda" is any vendor's GPU


@pytest.mark.parametrize("target", ["accelerator", "xdevice"])
def test_a_test_stays_where_a_use_behind_it_is_ignored(project, target):
    text = "import torch\nx = torch.ones(2)\nif torch.cuda.is_available():\n    x = x.cuda()  # xdevice: ignore\n"
    (project / "net.py").write_text(text)
    assert run(".", "--fix", "--to", target)[0] == 1
    assert (project / "net.py").read_text() == text


def test_a_notebook_is_fixed(project):
    text = "import torch\ny = torch.ones(1)\nx = y.cuda()\n"
    cells = [{"cell_type": "code", "source": text.splitlines(keepends=True)}]
    (project / "net.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert run(".", "--fix", "--to", "accelerator")[0] == 0
    (cell,) = json.loads((project / "net.ipynb").read_text(encoding="utf-8"))["cells"]
    assert "".join(cell["source"]) == text.replace(
        "y.cuda()", "y.to(torch.accelerator.current_accelerator())"
    )


@pytest.mark.parametrize("options", [["-", "--fix"], [".", "--fix", "--write-baseline", "x"]])
def test_fixing_needs_files_and_no_baseline_to_write(project, options):
    assert run(*options, typed=MOVES)[0] == 2


# what is reported once


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            "if torch.cuda.is_available():\n    torch.cuda.synchronize()\n    x = y.cuda()",
            [(2, (3, 4))],
        ),
        (
            "if torch.cuda.device_count() > 1:\n    x = y.cuda()\nelse:\n    torch.cuda.init()",
            [(2, (3,)), (5, ())],
        ),
        ("x = y.cuda() if torch.cuda.is_available() else y", [(2, (2,))]),
        ("ok = torch.cuda.is_available() and torch.cuda.is_bf16_supported()", [(2, (2,))]),
        ("if not torch.cuda.is_available():\n    raise E\nx = y.cuda()", [(2, (4,))]),
        ("if not torch.cuda.is_available():\n    print()\nx = y.cuda()", [(2, ()), (4, ())]),
        ("if x.is_cuda:\n    if torch.cuda.is_available():\n        y.cuda()", [(2, (3, 4))]),
        ("if not torch.cuda.is_available():\n    x = y.cuda()", [(2, ()), (3, ())]),
    ],
)
def test_what_a_test_guards_is_reported_with_it(text, places):
    source = sources.parse(f"import torch\n{text}".encode(), "train.py")
    merged = lint.grouped_by_test(lint.findings(source, Choice()))
    assert [
        (one.line, tuple(inner.line for inner in one.guarded_findings)) for one in merged
    ] == places


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("if not torch.cuda.is_available():\n    sys.exit()\nx = y.cuda()", True),
        ("if torch.cuda.is_available():\n    g = torch.cuda.CUDAGraph()", False),
        (
            "if not torch.cuda.is_available():\n    sys.exit()\ng = torch.cuda.CUDAGraph()",
            False,
        ),
        ("ok = torch.cuda.is_available()\nif ok:\n    g = torch.cuda.CUDAGraph()", False),
    ],
)
def test_lint_recommends_for_a_test_what_port_writes(text, advice):
    source = sources.parse(f"import sys, torch\n{text}\n".encode(), "train.py")
    (test,) = lint.grouped_by_test(lint.findings(source, Choice()))
    assert "one use behind this test" in test.message
    assert ("use xdevice.num_gpus() > 0" in test.message) is advice
    assert ("keeps it: it guards" in test.message) is not advice
    assert ("num_gpus" in ported(source.text.decode())) is advice


def test_an_added_line_behind_an_old_test_is_reported_by_itself(project):
    git("init", "-q")
    text = "import torch\nif torch.cuda.is_available():\n    print()\n"
    (project / "net.py").write_text(text)
    git("add", "-A")
    git("commit", "-qm", "one")
    (project / "net.py").write_text(f"{text}    x = y.cuda()\n")
    status, output = run(".", "--diff", "HEAD")
    assert (status, output.split()[0]) == (1, "net.py:4:9:")
    assert "1 found" in output


def test_the_hooks_call_commands_that_are_there():
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^  entry: xdevice (\S+)((?: --\S+)*)$", text, re.MULTILINE)
    assert [command for command, _ in entries] == ["lint", "lint", "port"]
    for command, options in entries:
        known = {name for parameter in main.commands[command].params for name in parameter.opts}
        assert set(options.split()) <= known


def test_lint_imports_no_framework_and_no_numpy(project):
    (project / "net.py").write_text(f"import torch\n{MOVES}")
    code = (
        "import sys\nfrom xdevice.cli.main import main\n"
        "try: main(['lint', '.'])\nexcept SystemExit: print([m for m in ('numpy', 'torch') if m in sys.modules])"
    )
    assert printed("-c", code, cwd=project).splitlines()[-1] == "[]"
