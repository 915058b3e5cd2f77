"""Large projects: each is read to its end, and what did not converge is named."""

from __future__ import annotations

import time

import pytest
from click.testing import CliRunner

from xdevice.port import cells, progress
from xdevice.port.commands import scan
from xdevice.port.engine import examine

NESTED = "class Base:\n    class {inner}:\n        pass\n" + "".join(
    f"class C{i}(Base):\n    class {{inner}}(Base.{{inner}}):\n        pass\n"
    f"    def __init__(self, x):\n        self.x = x\n        self.inner = self.{{inner}}()\n"
    for i in range(250)
)


@pytest.mark.parametrize("inner", ["Config", "Settings", "C"])
def test_many_classes_with_inner_classes_of_one_name_are_read_in_seconds(tmp_path, inner):
    (tmp_path / "net.py").write_text(NESTED.format(inner=inner))
    before = time.process_time()
    examine([tmp_path])
    # with a lineage found at each call it took minutes
    assert time.process_time() - before < 20


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("class B(A):\n    class Config:\n        x = 1\nB.Config.x.cuda()", "open"),
        ("class B(A):\n    pass\nB.Config.x.cuda()", "rewritten"),
        (
            "class B(A):\n    class Config(A.Config):\n        pass\nB.Config.x.cuda()",
            "rewritten",
        ),
        ("class B(A):\n    pass\nB.Config = what\nB.Config.x.cuda()", "open"),
    ],
)
def test_an_inner_class_is_that_of_the_class_or_of_its_next_base(tmp_path, text, verdict):
    top = "import torch\nclass A:\n    class Config:\n        x = torch.ones(1)\n"
    (tmp_path / "net.py").write_text(top + text)
    assert [site.verdict for site in examine([tmp_path]).sites] == [verdict]


def test_a_base_that_is_known_later_changes_all_heirs(tmp_path):
    (tmp_path / "a.py").write_text(
        "from b import B\nclass A(B):\n    pass\nclass C(A):\n    pass\nC().x().cuda()\n"
    )
    (tmp_path / "b.py").write_text("import c\nclass B(c.D):\n    pass\n")
    (tmp_path / "c.py").write_text(
        "import torch\nclass D:\n    def x(self):\n        return torch.ones(1)\n"
    )
    (tmp_path / "a.py").write_text("import torch\n" + (tmp_path / "a.py").read_text())
    assert [site.verdict for site in examine([tmp_path]).sites] == ["rewritten"]


@pytest.mark.parametrize(
    "text", ["f(torch.ones(1)).cuda()", "g = [f]\ng[0](torch.ones(1)).cuda()"]
)
def test_what_does_not_settle_is_named_and_stays_open(tmp_path, monkeypatch, text):
    whole = f"import torch\ndef f(x):\n    return x\n{text}\n"
    (tmp_path / "net.py").write_text(whole)
    assert [site.verdict for site in examine([tmp_path]).sites] == ["rewritten"]
    monkeypatch.setattr(cells, "MAX_INTERPRETATIONS", 0)
    examined = examine([tmp_path])
    assert [site.verdict for site in examined.sites] == ["open"]
    assert examined.unsettled
    run = CliRunner().invoke(scan, [str(tmp_path)])
    assert (
        "net.py: its values are too complex to follow, so device uses that depend on them may stay unchanged"
        in run.output
    )


def test_progress_counts_to_the_end(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.py").write_text("import torch\n" + "def f(): pass\n" * 100)
    steps = []
    examine([tmp_path], progress=lambda *step: steps.append(step))
    assert {name for name, _, _ in steps} == {"reading", "following values", "judging"}
    assert all(done <= total for _, done, total in steps)
    with progress.shown_on_terminal() as show:
        assert show is progress.no_progress  # the standard error of a test is no terminal
