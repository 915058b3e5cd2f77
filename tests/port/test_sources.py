"""Files in every form: what is outside the edits stays byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from itertools import islice
from pathlib import Path

import pytest
from helpers.port_texts import examined

from xdevice.port import engine, sources

NOTEBOOK = """{
 "cells": [
  {"cell_type": "markdown", "source": ["import torch\\n", "x.to(d)"]},
  {"cell_type": "code", "id": "a1", "metadata": {"k": 1.50}, "outputs": [{"text": "训练\\u8bad"}],
   "source": [
    "%matplotlib inline\\n",
    "import torch\\n",
    "x = torch.ones(2)  # 训练"
   ]},
  {"cell_type": "code", "source": "y = x.item(); z = (x\\n .cpu())", "execution_count": null},
  {"cell_type": "code", "source": ["def broken(:\\n", "  x.item()"]},
  {"cell_type": "code", "source": []},
  {"cell_type": "code", "source": ["%%bash\\n", "ls x.item()"]},
  {"cell_type": "code", "source": ["w = torch.device(\\n", "    'cuda:1'\\n", ")"]}
 ],
 "metadata": {}, "nbformat": 4,
 "nbformat_minor": 5
}"""


def test_a_notebook_changes_in_the_sources_of_its_cells_alone():
    made = examined(NOTEBOOK, names=("a.ipynb",))
    (source,) = made.sources
    new = made.ported(source).decode()
    expected = (
        NOTEBOOK.replace(
            '    "import torch\\n",\n    "x = torch',
            '    "import xdevice\\n",\n    "\\n",\n    "xdevice.set_backend(\\"torch\\")\\n",\n'
            '    "import torch\\n",\n    "x = torch',
        )
        .replace(
            "y = x.item(); z = (x\\n .cpu())",
            "y = xdevice.item(x); z = (xdevice.to_device(x\\n , xdevice.cpu()))",
        )
        .replace(
            '"w = torch.device(\\n", "    \'cuda:1\'\\n", ")"', '"w = xdevice.native.gpu(1)"'
        )
    )
    assert json.loads(new)
    assert new == expected
    assert made.sites[-1].idiom == "torch.device"
    broken = [site for site in made.sites if site.code == "XD160"]
    assert [site.verdict for site in broken] == ["open"]
    again = examined(new, names=("a.ipynb",))
    assert again.ported(again.sources[0]).decode() == new


def test_a_notebook_that_escapes_what_is_not_ascii_goes_on_to():
    cell = '{"cell_type": "code", "source": ["import torch\\n", "torch.ones(1).item()  # \\u8bad"]}'
    made = examined(f'{{"cells": [{cell}], "nbformat": 4}}', names=("a.ipynb",))
    assert '"xdevice.item(torch.ones(1))  # \\u8bad"' in made.ported(made.sources[0]).decode()


def test_the_place_in_a_notebook_is_a_line_of_the_file_and_a_cell():
    made = examined(NOTEBOOK, names=("a.ipynb",))
    site = next(site for site in made.sites if site.idiom == ".item()")
    assert made.sources[0].line_and_cell(site.line) == (10, 2)


@pytest.mark.parametrize("encoding", ["gbk", "latin-1", "utf-8"])
def test_an_encoding_is_kept(encoding):
    comment = "训练" if encoding != "latin-1" else "über"
    raw = f"# -*- coding: {encoding} -*-\nimport torch\ny = torch.ones(1).item()  # {comment}\n".encode(
        encoding
    )
    made = examined(raw)
    new = made.ported(made.sources[0])
    assert f"y = xdevice.item(torch.ones(1))  # {comment}".encode(encoding) in new


def test_what_is_not_rewritten_is_the_same_object():
    raw = b"\xef\xbb\xbfimport torch\r\nx = 1\r"
    made = examined(raw)
    assert made.ported(made.sources[0]) is made.sources[0].raw


def test_what_cannot_be_read_is_told_and_the_rest_is_read(tmp_path):
    (tmp_path / "bad.py").write_bytes(b"def f(:\n")
    (tmp_path / "nul.py").write_bytes(b"x = '\0'\n")
    (tmp_path / "wrong.ipynb").write_bytes(b"{}")
    (tmp_path / "good.py").write_bytes(b"import torch\ny = torch.ones(1).item()\n")
    made = engine.examine([tmp_path])
    assert [path for path, _ in made.unreadable] == ["bad.py", "nul.py", "wrong.ipynb"]
    assert [site.file for site in made.sites] == ["good.py"]


NO_NOTEBOOKS = {
    "[]": "expected an object with a list of cells",
    '{"cells": {}}': "expected an object with a list of cells",
    '{"cells": ["x = 1"]}': "cells[0] is not an object",
    '{"cells": [{"cell_type": "markdown"}, null]}': "cells[1] is not an object",
    '{"cells": [{"cell_type": "code", "source": 5}]}': "the source in cells[0] is neither",
    '{"cells": [{"cell_type": "code", "source": {"x": "y"}}]}': "the source in cells[0] is neither",
    '{"cells": [{"cell_type": "code", "source": ["x", 5]}]}': "the source in cells[0] is neither",
}


@pytest.mark.parametrize("text", NO_NOTEBOOKS)
def test_a_notebook_of_another_form_is_not_read(text, tmp_path):
    (tmp_path / "a.ipynb").write_text(text)
    made = engine.examine([tmp_path])
    ((path, why),) = made.unreadable
    assert path == "a.ipynb"
    assert why.startswith(f"not a notebook of format 4: {NO_NOTEBOOKS[text]}")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("-" * 500_000 + "1", id="MemoryError"),
        pytest.param(
            "1" + " + 1" * 100_000,
            id="RecursionError",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="parses there"),
        ),
    ],
)
def test_code_that_is_nested_too_deep_for_the_parser_is_named(code, tmp_path):
    (tmp_path / "a.py").write_text(f"x = {code}\n")
    (tmp_path / "b.py").write_text("import torch\ny = torch.ones(1).item()\n")
    cells = [f"%time\nx = {code}", "import torch\ny = torch.ones(1).item()"]
    (tmp_path / "c.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})
    )
    made = engine.examine([tmp_path])
    assert made.unreadable == [("a.py", "the code is nested too deeply for Python's parser")]
    assert [(site.file, site.code) for site in made.sites] == [
        ("b.py", "XD107"),
        ("c.ipynb", "XD160"),
        ("c.ipynb", "XD107"),
    ]


CHAINS = {
    "elif": lambda n: (
        "if x == 0:\n    pass\n" + "".join(f"elif x == {i}:\n    pass\n" for i in range(n))
    ),
    "summands": lambda n: "y = x" + " + x.cuda()" * n,
    "methods": lambda n: "y = x" + ".cuda()" * (n // 2),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_code_that_is_nested_too_deep_for_the_inference_is_named(chain, tmp_path):
    head, tail = "import torch\nx = torch.ones(1)\n", "\nz = torch.ones(1).item()\n"
    (tmp_path / "a.py").write_text(head + CHAINS[chain](1000) + tail)
    (tmp_path / "b.py").write_text(head + CHAINS[chain](250) + tail)
    made = engine.examine([tmp_path])
    assert made.unreadable == [("a.py", "the code is nested more than 300 levels deep")]
    assert ("b.py", "XD107") in [(site.file, site.code) for site in made.sites]


def test_hidden_folders_and_builds_are_not_entered(tmp_path):
    for folder in (".git", "build", "src"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("import torch\n")
    assert [source.path for source in engine.examine([tmp_path]).sources] == ["src/a.py"]


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.long)])
def test_files_of_installed_packages_parse_after_port(count):
    """Scripts of packages that use frameworks, or have nothing to do with them, as one project."""
    packages = Path(sysconfig.get_paths()["purelib"])
    names = ("torch", "paddle", "mxnet", "keras", "jax", "numpy", "hypothesis")
    chosen = [path for name in names for path in _scripts(packages / name)]
    step = max(1, len(chosen) // count)  # NumPy's and Hypothesis's alone are fewer than 500
    read = [
        sources.read(path, path.relative_to(packages).as_posix())
        for path in chosen[::step][:count]
    ]
    made = engine.Examined(packages, "likely", sources=read)
    engine.judge(made)
    news = {source.path: made.ported(source) for source in made.sources}
    again = engine.Examined(
        packages, "likely", sources=[sources.parse(new, path) for path, new in news.items()]
    )
    engine.judge(again)
    assert len(read) == min(count, len(chosen)) >= 40
    assert {source.path: again.ported(source) for source in again.sources} == news


def _scripts(folder):
    return islice(
        (path for path in sorted(folder.rglob("*.py")) if 500 < path.stat().st_size < 15_000),
        200,
    )


def test_no_framework_and_no_numpy_is_loaded():
    read = f"from xdevice.port import engine; engine.examine([{str(Path(__file__).parent)!r}])"
    code = f"import sys; {read}; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_is_read_from_the_folder_around_it(tmp_path):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").touch()
    (inner / "__init__.py").touch()
    (inner / "making.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.ones(1)\n"
    )
    (inner / "main.py").write_text(
        "import torch\nfrom outer.inner.making import make\nprint(make().item())\n"
    )
    made = engine.examine([inner])
    assert made.root == tmp_path.resolve()
    assert [(site.file, site.verdict) for site in made.sites] == [
        ("outer/inner/main.py", "rewritten")
    ]


@pytest.mark.timeout(60)
def test_the_root_may_be_a_package_itself(tmp_path):
    (tmp_path / "__init__.py").touch()
    (tmp_path / "main.py").write_text("import torch\nprint(torch.ones(1).item())\n")
    made = engine.examine([tmp_path], root=tmp_path)
    assert [site.file for site in made.sites] == ["main.py"]


@pytest.mark.parametrize(
    "line",
    [
        "from pkg import moving",
        "import pkg.moving",
        "from .moving import *",
        "from . import moving",
    ],
)
def test_a_package_is_read_from_the_folder_that_it_lies_in(line, tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "setting.py").write_text(f"import torch\n{line}\ntorch.cuda.set_device(1)\n")
    (package / "moving.py").write_text("import torch\nx = torch.ones(1).cuda()\n")
    made = engine.examine([package])
    (move,) = [site for site in made.sites if site.idiom == ".cuda()"]
    # the GPU that set_device has chosen, and not the first one
    assert (
        move.after
        == "xdevice.to_device(torch.ones(1), torch.device(xdevice.native.gpu().type))"
    )
