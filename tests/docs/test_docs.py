"""The docs are claims: the docstrings' examples run, the README's example prints what it shows."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from importlib.machinery import PathFinder

import pytest
from helpers.environment import BACKENDS, ROOT, needs, printed, python, sampled
from helpers.faces import faces, names_of

import xdevice

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(xdevice.__path__, "xdevice.")
    if not found.name.startswith(("xdevice.__main__", "xdevice.testing"))
]
PUBLIC = [value for face in faces() for value in names_of(face).values()]
FEW = sampled(BACKENDS, each_time=["numpy"], slow=["torch"], others="long")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_examples_of_docstrings_run(module, backend):
    with xdevice.use_backend(backend):
        names = {"xdevice": xdevice, "Device": xdevice.Device}
        found = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names)
        if any('use("torch")' in example.docstring for example in found):
            needs("torch")
        for example in found:
            result = doctest.DocTestRunner(
                optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            ).run(example)
            assert result.failed == 0, example.name


@pytest.mark.parametrize(
    "function", [f for f in PUBLIC if inspect.isfunction(f)], ids=lambda f: f.__name__
)
def test_every_public_function_has_an_example(function):
    assert doctest.DocTestFinder().find(function)[0].examples or function.__name__ in {
        "set_backend"
    }


def block(heading, language):
    """The first code block of a language below a heading of the README."""
    text = README.split(f"\n## {heading}\n")[1]
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


def test_no_page_has_the_markers_of_a_merge():
    for page in (*DOCS.rglob("*.md"), *ROOT.glob("*.md")):
        assert not re.search(
            r"^(<{7}|>{7}) ", page.read_text(encoding="utf-8"), re.MULTILINE
        ), page


@pytest.mark.parametrize("backend", FEW)
def test_the_example_of_the_readme_prints_what_it_shows(backend):
    done = python("-c", block("Example", "python"), XDEVICE_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("Example", "text").replace("torch", backend)


@pytest.mark.parametrize("backend", FEW)
def test_the_readmes_mistake_is_found_without_a_gpu(backend):
    if backend == "numpy":
        pytest.skip("NumPy has no virtual GPUs")
    code, said = (
        block("Three things in 30 seconds", "python"),
        block("Three things in 30 seconds", "text"),
    )
    done = python("-c", code, XDEVICE_BACKEND=backend)
    # whose operators may have brought it there: the error adds what to write then
    if backend == "tensorflow":
        said = said.partition("; move it")[0]
        assert said in done.stderr
        return
    assert done.stderr.endswith(said), done.stderr


@pytest.mark.long
def test_the_readme_shows_what_parity_and_port_print(tmp_path):
    (tmp_path / "scale.py").write_text(
        "import xdevice\nfrom xdevice.parity import log\n\n"
        "x = xdevice.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])\n"
        "log('mean', x.mean(0))\nlog('scaled', (x - x.mean(0)) / x.std(0))\n"
    )
    printed = python(
        "-m", "xdevice", "parity", "scale.py", "--backends", "torch,numpy", cwd=tmp_path
    ).stdout
    shown = re.search(r"```text\n\$ xdevice parity.*?\n(.*?)```", README, re.DOTALL)[1]
    for line in shown.splitlines():
        assert line.partition("  (")[0].strip() in printed
    (tmp_path / "train.py").write_text(
        'import torch\n\ndevice = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
        "net = torch.nn.Linear(2, 1).to(device)\ntorch.cuda.synchronize()\n"
    )
    ported = python("-m", "xdevice", "port", "train.py", cwd=tmp_path).stdout
    assert re.search(r"```diff\n(.*?)```", README, re.DOTALL)[1] in ported


def test_the_first_steps_begin_with_the_readmes_command():
    assert block("Try it", "sh") in (DOCS / "tutorials" / "first_steps.md").read_text(
        encoding="utf-8"
    )


def test_the_readmes_two_jobs_are_a_line_each():
    assert [block(heading, "sh") for heading in ("Try it", "Run the tests")] == [
        "python3 try_it.py chapter\n",
        "python3 try_it.py tests\n",
    ]
    done = python(ROOT / "try_it.py", "everything")
    assert done.returncode == 1
    assert "python3 try_it.py chapter" in done.stderr


def test_the_readmes_two_jobs_look_where_pip_is_told_to_look(tmp_path):
    # asking all finders switches off the distutils that Paddle needs
    if PathFinder.find_spec("pip") is None:
        pytest.skip("needs pip")
    told = "[global]\nfind-links = /wheels\nextra-index-url = https://a/simple\n    https://b/simple\n"
    (tmp_path / "pip.conf").write_text(told)
    asked = "import sys, try_it; print(try_it.where_pip_looks(sys.executable))"
    variables = {
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_FIND_LINKS": "/first /second",
        "PIP_EXTRA_INDEX_URL": "", "UV_FIND_LINKS": "", "UV_INDEX": "", "UV_INDEX_STRATEGY": "",
    }  # fmt: skip
    said = {
        "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert eval(python("-c", asked, cwd=ROOT, **variables).stdout) == {
        "UV_FIND_LINKS": "/first,/second",
        **said,
    }
    assert eval(python("-c", asked, cwd=ROOT, **{**variables, "PIP_FIND_LINKS": "", "UV_INDEX": "x"}).stdout) == {
        "UV_FIND_LINKS": "/wheels", "UV_INDEX_STRATEGY": "unsafe-best-match"
    }  # fmt: skip


def test_links_in_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", *DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page}: {target}"


ELSEWHERE = {  # pages whose code has tests of its own, and how many blocks of it
    "reference/nn.md": 2,  # tests/math/nn/test_docs_of_nn.py
    "reference/arithmetic.md": 4,  # tests/math/arithmetic/test_docs_of_arithmetic.py and test_gradients.py
    "reference/optim.md": 1,  # tests/math/optim/test_optim.py
    "reference/optimizers.md": 2,  # tests/twins/models/test_optimizers.py
    "reference/tracing.md": 1,  # tests/twins/tracing/test_docs_of_tracing.py
    "reference/pytest.md": 1,  # below, by pytest
}
BLOCKS = {
    page.relative_to(DOCS).as_posix(): [textwrap.dedent(block) for block in found]
    for page in sorted(DOCS.rglob("*.md"))
    if (
        found := re.findall(
            r"^ *```python\n(.*?)```",
            page.read_text(encoding="utf-8"),
            re.DOTALL | re.MULTILINE,
        )
    )
}
BY_NAME = {  # from which block on a page loads frameworks by their names
    "explanation/backends.md": 1,
    "reference/files.md": 1,
    "reference/parity.md": 1,
    "reference/models.md": 0,
}
EVERYWHERE = {
    page: [block for block in blocks[: BY_NAME.get(page)] if '"gpu:0")' not in block]
    for page, blocks in BLOCKS.items()
    if page not in ELSEWHERE and BY_NAME.get(page) != 0
}
SHOWN = {
    "reference/devices.md": "[(2, 2), (1, 2)]\n[[1.0, -2.0], [3.0, -4.0], [5.0, -6.0]]\n[[2.0, 4.0], [2.0, 4.0]]\n"
    "cpu:0\n",
    "reference/random.md": "[9, 4] [0, 5, 4, 1, 3, 2]\n",
}


def test_the_tests_of_other_folders_run_all_code_of_their_pages():
    assert {page: len(BLOCKS[page]) for page in ELSEWHERE} == ELSEWHERE
    for_a_gpu = [
        page
        for page, blocks in EVERYWHERE.items()
        if blocks != BLOCKS[page][: BY_NAME.get(page)]
    ]
    assert for_a_gpu == ["reference/async.md"], "which a test below runs"


@pytest.mark.parametrize("backend", FEW)
def test_the_code_of_a_page_runs_on_every_backend(backend):
    code = f"""
for page, blocks in {EVERYWHERE!r}.items():
    print(page)
    names = {{'__name__': '__main__'}}  # else its classes are Python's own
    for block in blocks:
        exec(compile(block, page, 'exec'), names)
"""
    out = printed("-c", code, XDEVICE_BACKEND=backend) + "\n"
    said = dict(
        zip(
            EVERYWHERE,
            re.split(rf"^(?:{'|'.join(EVERYWHERE)})\n", out, flags=re.MULTILINE)[1:],
            strict=True,
        )
    )
    assert "waiting: " in said["reference/async.md"]
    assert {page: said[page] for page in SHOWN} == SHOWN


@pytest.mark.skipif(
    not {"torch", "tensorflow", "paddle", "mxnet"} <= set(xdevice.backends()),
    reason="the pages need four frameworks",
)
@pytest.mark.parametrize("page", BY_NAME)
def test_the_code_of_a_page_that_loads_frameworks_by_name_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in BLOCKS[page][BY_NAME[page] :]:
        exec(compile(block, page, "exec"), names)


@pytest.mark.usefixtures("toy_installed")
def test_the_code_for_a_gpu_runs_on_a_toy_whose_gpus_have_streams_and_graphs():
    code = "\n".join(
        [
            "import toyframe; toyframe.ToyArray.copy_ = toyframe.ToyArray.write",
            *BLOCKS["reference/async.md"],
        ]
    )
    assert "seconds" in printed("-c", code, XDEVICE_BACKEND="toyframe")


@pytest.mark.long
def test_the_example_of_the_pytest_page_passes_on_every_backend(tmp_path):
    (tmp_path / "test_net.py").write_text(BLOCKS["reference/pytest.md"][0])
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
