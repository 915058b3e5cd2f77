"""A page that prints an error, or another text than it says, fails the build; what is downloaded is what ran."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.util import find_spec

import pytest
from helpers.environment import ROOT, python
from helpers.faces import faces, names_of

import xdevice

DOCS = ROOT / "docs"
PAGE = """---
backends: [numpy]
orphan: true
---

# A page

```{{code-cell}}
{options}
import xdevice
{code}
```

It has printed {{printed}}`{said}`.
"""
BOTH = """---
backends: [numpy, torch]
---

# On two backends

```{code-cell}
import xdevice
print("one text")
```

```{code-cell}
print(xdevice.backend().name)
```

```{code-cell}
:timing: true
print("one second")
```

It has printed {printed}`one text`, and {printed}`numpy`.
"""
COMMAND = """---
backends: [numpy]
orphan: true
---

# A command

```{{code-cell}}
%%bash
python -c "import sys; print(sys.prefix)"
```

It ran in {{printed}}`{prefix}`, and is in {{{{ repository }}}}.
"""
GOOD = "print(xdevice.to_numpy(xdevice.ones(2, 2)).sum())\nprint(2 + 2)"
WRONG = [  # code, options, what the sentence says, the build's warning
    ("print(4); xdevice.device('gqu')", "", "4", "the cell raises DeviceError: "),
    (
        "print(4)",
        ":tags: [raises-exception]",
        "4",
        "the cell raises nothing, though it is said to",
    ),
    ("print(4)", "", "5", "no cell above has printed '5', on numpy"),
    (
        "import sys; print(4); print('no', file=sys.stderr)",
        "",
        "4",
        "the cell writes to stderr: no",
    ),
    (
        "from matplotlib import pyplot; pyplot.plot([4]); print(4);",
        "",
        "4",
        "draws a figure without :alt:",
    ),
]


def built(folder, **pages):
    """What the build of a site with these pages warns of, by page, and where it is."""
    source, html = folder / "docs", folder / "html"
    shutil.copytree(DOCS / "_extensions", source / "_extensions")
    (source / "_static").mkdir()
    (source / "_static" / "site.css").touch()
    shutil.copy(DOCS / "conf.py", source)
    for name, page in pages.items():
        if not isinstance(page, str):
            page = PAGE.format(code=page[0], options=page[1], said=page[2])
        (source / f"{name}.md").write_text(page, encoding="utf-8")
    done = python("-m", "sphinx", "-q", "-W", "--keep-going", "--no-color", source, html)
    warned = {
        name: "".join(re.findall(rf"{name}\.md:\d+: WARNING: (.*)", done.stderr))
        for name in pages
    }
    assert bool(done.returncode) == any(warned.values()), done.stderr
    return warned, html


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sphinx"), reason="needs the extra docs")
def test_a_page_is_built_with_what_it_printed(tmp_path):
    command = COMMAND.format(prefix=sys.prefix)  # also where that is not on the path
    warned, html = built(tmp_path, index=(GOOD, "", "4.0"), command=command)
    assert warned == {"index": "", "command": ""}
    text = (html / "index.html").read_text(encoding="utf-8")
    assert re.search(
        r"Output on NumPy</p>\s*<div[^>]*><div[^>]*><pre><span></span>4\.0\n4\n</pre>", text
    )
    notebook = json.loads((html / "index.ipynb").read_text(encoding="utf-8"))
    code = [
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"
    ]
    assert 'for name in ["numpy"]:' in code[0]
    # what is copied is what runs
    assert "%%bash" not in (html / "command.html").read_text(encoding="utf-8")
    assert python("-c", "\n".join(code)).stdout == "4.0\n4\n"
    assert "and is in the repository." in (html / "command.ipynb").read_text(encoding="utf-8")
    assert "`4.0`" in "".join(notebook["cells"][-1]["source"])


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sphinx"), reason="needs the extra docs")
def test_a_page_that_says_what_is_not_so_fails_the_build(tmp_path):
    pages = {f"page_{number}": wrong for number, wrong in enumerate(WRONG)}
    warned, _ = built(tmp_path, index=(GOOD, "", "4.0"), **pages)
    assert not warned.pop("index")
    for (*_, expected), said in zip(WRONG, warned.values(), strict=True):
        assert expected in said


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sphinx"), reason="needs the extra docs")
@pytest.mark.skipif("torch" not in xdevice.backends(), reason="torch is not installed")
def test_what_differs_and_what_is_a_time_stands_in_tabs(tmp_path):
    warned, html = built(tmp_path, index=BOTH)
    assert warned["index"] == "no cell above has printed 'numpy', on torch [executed]"
    text = (html / "index.html").read_text(encoding="utf-8")
    alike, differing, timed = re.split(r'<div class="cell', text.partition("<h1>")[2])[1:]
    assert "Output, the same on all 2 backends" in alike
    assert re.findall(
        r"\n(NumPy|PyTorch)</label>.*?<span></span>(\w+)\n</pre>", differing, re.DOTALL
    ) == [
        ("NumPy", "numpy"),
        ("PyTorch", "torch"),
    ]
    assert "the same on" not in differing + timed
    assert len(re.findall(r"</label>.*?<span></span>one second\n</pre>", timed, re.DOTALL)) == 2
    assert "Timed once, on " in timed
    assert "Timed" not in alike + differing


def test_every_public_name_is_in_the_reference():
    pages = "".join(
        path.read_text(encoding="utf-8") for path in (DOCS / "reference" / "api").glob("*.md")
    )
    shown = set(re.findall(r"^\.\. auto\w+:: (xdevice\.[\w.]+)$", pages, re.MULTILINE))
    public = {f"{face.__name__}.{name}" for face in faces() for name in names_of(face)}
    assert len(public) > 60
    assert public <= shown, public - shown
    assert {f"xdevice.{name}" for name in ("errors", "nn", "optim", "random")} <= shown


def test_every_variable_is_in_the_reference():
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("xdevice", "backends")
        for path in (ROOT / folder).rglob("*.py")
    )
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    assert set(re.findall(r"XDEVICE_[A-Z_]*[A-Z]", code)) == set(
        re.findall(r"`(XDEVICE_\w+)`", page)
    )
