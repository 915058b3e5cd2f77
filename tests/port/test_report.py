"""The report: a summary and the sites, as JSON, as text and as one page."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.port_sites import examined, site

from xdevice.port import commands, engine, report, summary
from xdevice.port.engine import Examined
from xdevice.port.sites import Site
from xdevice.port.sources import parse
from xdevice.port.words import Goal


def test_verdicts_add_up_to_the_sites_everywhere():
    found = report.document(examined())
    for total in (
        found["totals"],
        *found["codes"].values(),
        *(file["totals"] for file in found["files"]),
    ):
        assert sum(total[verdict] for verdict in report.VERDICTS) == total["sites"]
        assert total["rewritten"] == total["proven"] + total["safe"] + total["likely"]
    assert found["totals"]["sites"] == 5
    assert sum(file["totals"]["sites"] for file in found["files"]) == 5
    assert report.share_ported(found["totals"]) == 2 / 3
    assert report.share_ported(report.totals([])) is None


def test_lines_and_columns_are_those_of_an_editor():
    files = {file["path"]: file for file in report.document(examined())["files"]}
    assert list(files) == ["a/plain.py", "b/train.py"]
    device, to, item, wrapper, _ = files["b/train.py"]["sites"]
    assert (device["line"], device["col"], device["end"]) == (3, 6, [3, 26])
    assert (to["line"], to["col"], to["end"]) == (3, 28, [3, 40])
    assert (item["line"], item["why"], item["cell"]) == (4, "the same on <all>", None)
    assert (wrapper["line"], wrapper["end"]) == (5, [7, 2])
    assert files["a/plain.py"]["frameworks"] == []
    assert files["b/train.py"]["frameworks"] == ["torch"]


def test_equal_input_gives_equal_bytes_wherever_it_lies_and_in_any_order():
    first, second = examined(), examined()
    random.Random(0).shuffle(second.sites)
    second.sources.reverse()
    second.root = Path("/elsewhere/project")
    assert report.text(first) == report.text(second)
    assert json.loads(report.text(first)) == report.document(first)
    assert "设备" in report.text(first)


def test_a_cell_of_a_notebook_is_named():
    cells = [
        {"cell_type": "code", "source": ["x\n", "y"]},
        {"cell_type": "code", "source": ["z.item()"]},
    ]
    source = parse(json.dumps({"cells": cells}, indent=1).encode(), "a.ipynb")
    found = Examined(
        Path("p"),
        "proven",
        None,
        [source],
        [],
        [site(source, "z.item()", ".item", "XD107", "neutral")],
    )
    (one,) = report.document(found)["files"][0]["sites"]
    assert (one["cell"], one["col"]) == (2, 1)
    assert one["line"] == next(
        i for i, line in enumerate(source.raw.decode().split("\n"), 1) if "z.item" in line
    )


def test_a_cell_that_is_not_python_has_a_place(tmp_path):
    cells = [
        {"cell_type": "code", "source": ["import torch\n"]},
        {"cell_type": "code", "source": ["def broken(:\n"]},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}, indent=1))
    (one,) = report.document(engine.examine([tmp_path]))["files"][0]["sites"]
    assert (one["code"], one["cell"], one["end"]) == ("XD160", 2, [one["line"], 1])


@pytest.mark.parametrize(
    ("suffix", "write"), [("json", report.text), ("txt", summary.text), ("html", summary.page)]
)
def test_the_option_writes_each_form_and_refuses_other_names(tmp_path, suffix, write):
    (tmp_path / "net.py").write_text("import torch\nx = torch.ones(1).item()\n")
    file = tmp_path / f"a.{suffix}"
    for command in (commands.scan, commands.port):
        assert (
            CliRunner().invoke(command, [str(tmp_path), "--report", str(file)]).exit_code == 0
        )
        assert file.read_text(encoding="utf-8") == write(engine.examine([tmp_path]))
    refused = CliRunner().invoke(commands.scan, [str(tmp_path), "--report", f"a.{suffix}x"])
    assert refused.exit_code == 2
    message = f"the name of a report must end in .json, .txt or .html, not a.{suffix}x"
    assert message in " ".join(refused.output.split())


PROJECT = {
    "ready.py": "import torch\nx = torch.ones(1)\nx.item()\n",
    "easy.py": "import torch\nx = torch.ones(1).cuda()\nif torch.cuda.is_available():\n    torch.cuda.synchronize()\n",
    "hard.py": "import torch\ntorch.cuda.utilization()\nf('<b>').cuda()\nx = torch.ones(1).cuda()\n",
    "plain.py": "print('cuda')\n",
}


@pytest.fixture
def figures(tmp_path):
    for name, content in PROJECT.items():
        (tmp_path / name).write_text(content)
    made = engine.examine([tmp_path], goal=Goal("accelerator"))
    return made, summary.summary(made)


def test_the_summary_adds_up(figures):
    made, counts = figures
    assert counts["mechanical"] + counts["person"] == counts["must_change"]
    assert counts["must_change"] == sum(
        site.verdict in ("rewritten", "open") for site in made.sites
    )
    for key in ("sites", "mechanical", "person"):
        assert (
            sum(part[key] for part in counts["parts"].values())
            == counts["must_change" if key == "sites" else key]
        )
    assert sum(counts["reasons"].values()) == counts["person"]
    assert set(counts["parts"]) <= {*summary.PARTS, "other"}
    assert counts["states"] == {
        "ready": ["ready.py"],
        "mechanical": ["easy.py"],
        "person": ["hard.py"],
    }


def test_the_summary_comes_first_and_then_each_file(figures):
    made, _ = figures
    for written in (summary.text(made), summary.page(made)):
        first = written.index("uses of devices in 4 files")
        assert (
            first
            < written.index("moving")
            < written.index("easy.py: 3 mechanical, 0 for a person")
        )
        assert "hard.py: 2 mechanical, 1 for a person" in written
        assert "ready.py:" not in written
    page = summary.page(made)
    assert "f(&#x27;&lt;b&gt;&#x27;).cuda()" in page
    assert "<script" not in page
    assert "http" not in page  # nothing is loaded from elsewhere


@pytest.mark.parametrize(
    ("idiom", "part"),
    [
        ("torch.cuda.empty_cache", "memory"),
        ("torch.cuda.max_memory_allocated", "memory"),
        ("torch.cuda.Stream", "streams, events and graphs"),
        ("torch.cuda.manual_seed_all", "random numbers"),
        ("torch.cuda.amp.autocast", "mixed precision"),
        ("torch.cuda.synchronize", "waiting and timing"),
        (".cuda()", "moving"),
        ("torch.cuda.is_available", "asking what there is"),
        ("torch.nn.DataParallel", "several devices and processes"),
        ("torch.device", "choosing and placing"),
        ("device=", "choosing and placing"),
        ("cell", "other"),
    ],
)
def test_which_part_of_a_vendors_interface_a_name_is_of(idiom, part):
    assert summary.part_of(Site("a.py", 1, 0, idiom, "XD101", "torch", "open")) == part


def test_all_of_it_from_a_project(tmp_path):
    """As the engine finds it: the same bytes from another folder, and from the same files named one by one."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "net.py").write_text(
        'import torch\nx = torch.ones(1).to("cuda")\nprint(x.item())\n'
    )
    (tmp_path / "one" / "use.py").write_text("from net import x\nx.cpu()\n")
    shutil.copytree(tmp_path / "one", tmp_path / "two" / "one")
    first = engine.examine([tmp_path / "one"])
    again = engine.examine([tmp_path / "two" / "one" / name for name in ("use.py", "net.py")])
    assert report.text(first) == report.text(again)
    assert len(first.sites) == report.document(first)["totals"]["sites"] > 0
