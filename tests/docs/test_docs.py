"""The docs are claims: the docstrings' examples run, the README's example prints what it shows."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap

import pytest
from support import BACKENDS, ROOT, printed, python, sampled

import xdevice

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(xdevice.__path__, "xdevice.")
    if not found.name.startswith(("xdevice.__main__", "xdevice.testing"))
]
PUBLIC = [getattr(xdevice, name) for name in xdevice.__all__]
FEW = sampled(BACKENDS, ["numpy"], ["torch"])


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_examples_of_docstrings_run(module, backend):
    with xdevice.use(backend):
        names = {"xdevice": xdevice, "Device": xdevice.Device}
        found = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names)
        for example in found:
            result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(example)
            assert result.failed == 0, example.name


@pytest.mark.parametrize("function", [f for f in PUBLIC if inspect.isfunction(f)], ids=lambda f: f.__name__)
def test_every_public_function_has_an_example(function):
    assert doctest.DocTestFinder().find(function)[0].examples or function.__name__ in {"set_backend"}


def block(heading, language):
    """The first code block of a language below a heading of the README."""
    text = README.split(f"\n## {heading}\n")[1]
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.parametrize("backend", FEW)
def test_the_example_of_the_readme_prints_what_it_shows(backend):
    done = python("-c", block("Example", "python"), XDEVICE_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("Example", "text").replace("torch", backend)


def test_the_first_steps_begin_with_the_readmes_commands():
    assert block("Try it", "sh") in (DOCS / "tutorials" / "first_steps.md").read_text(encoding="utf-8")


def test_links_in_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", *DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.slow
def test_the_training_of_the_page_on_files_goes_on(tmp_path):
    code = re.search(
        r"```python\n(import torch.*?)```", (DOCS / "reference" / "files.md").read_text(encoding="utf-8"), re.DOTALL
    )[1]
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def first_example(page):
    return re.search(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[1]


ELSEWHERE = {
    "reference/nn.md": "tests/nn/test_docs_of_nn.py",
    "reference/arithmetic.md": "tests/arithmetic/test_docs_of_arithmetic.py",
    "reference/pytest.md": "below, by pytest",
    "reference/optimizers.md": "tests/porting/test_optimizers.py",
    "reference/tracing.md": "tests/tracing/test_docs_of_tracing.py",
    "guides/port_a_script.md": "tests/porting/test_port_vae.py",
    "reference/porting.md": "needs models of two frameworks, and says so: examples/port_resnet_block.py",
}
PAGES = sorted(
    name
    for page in DOCS.rglob("*.md")
    if "```python" in page.read_text() and (name := page.relative_to(DOCS).as_posix()) not in ELSEWHERE
)
SHOWN = {
    "reference/devices.md": "[(2, 2), (1, 2)]\n[[1.0, -2.0], [3.0, -4.0], [5.0, -6.0]]\n[[2.0, 4.0], [2.0, 4.0]]\n",
    "reference/random.md": "[9, 4] [0, 5, 4, 1, 3, 2]\n",
}


FRAGMENTS = {  # what stands there beside examples that run: parts of programs, which the tutorials have whole
    "explanation/backends.md": 1,
    "guides/port_a_script.md": 5,
    "reference/arithmetic.md": 1,
    "reference/async.md": 6,
    "reference/parity.md": 1,
    "reference/porting.md": 4,
}
RUN_ELSEWHERE = {"arithmetic": 2, "devices": 2, "files": 2, "nn": 1, "optimizers": 2, "pytest": 1, "tracing": 1}


def test_code_that_does_not_run_is_no_more_than_a_fragment():
    """Code of a page runs in a `{code-cell}` when the site is built, or by the tests named above."""
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for block in blocks:
            compile(textwrap.dedent(block), name, "exec")
        run = RUN_ELSEWHERE.get(page.stem, 1 if name in PAGES else 0) if blocks else 0
        assert len(blocks) - run == FRAGMENTS.get(name, 0), name


@pytest.mark.parametrize("backend", FEW)
def test_the_first_example_of_a_page_runs_on_every_backend(backend):
    examples = {page: first_example(page) for page in PAGES}
    code = f"for page, code in {examples!r}.items():\n    print(page)\n    exec(compile(code, page, 'exec'), {{}})"
    out = printed("-c", code, XDEVICE_BACKEND=backend) + "\n"
    said = dict(zip(PAGES, re.split(rf"^(?:{'|'.join(PAGES)})\n", out, flags=re.MULTILINE)[1:], strict=True))
    assert "waiting: " in said["reference/async.md"]
    assert {page: said[page] for page in SHOWN} == SHOWN


@pytest.mark.long
def test_the_example_of_the_pytest_page_passes_on_every_backend(tmp_path):
    (tmp_path / "test_net.py").write_text(first_example("reference/pytest.md"))
    done = python("-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.skipif("mxnet" not in xdevice.backends(), reason="MXNet is not installed")
def test_mxnet_without_numpy_semantics_is_as_the_page_says():
    code = """
import xdevice
xdevice.set_backend("mxnet")  # which gives MXNet the names that NumPy lacks
from mxnet import gluon, npx
x, net = xdevice.ones(2, 3), gluon.nn.Dense(1, in_units=3)
net.initialize()
uses = (lambda: x.sum() > 0, lambda: x.mean() + 1, lambda: net(x).shape)
assert [bool(use()) for use in uses] == [True] * 3
npx.reset_np()
for use in uses:
    try:
        use()
    except Exception as error:
        print(type(error).__name__)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3, done.stdout
