"""Pages whose code runs when the site is built: on every backend that the page names, each one's output in a tab.

A page says in its front matter on which backends it runs, and with how many virtual GPUs:

    ---
    backends: [torch, tensorflow, mxnet, paddle, jax, numpy]
    virtual_gpus: 2
    ---

`long: true` there leaves the page out of a sample.

Code stands in `{code-cell}` directives, one after the other in one kernel for each backend, as in a notebook. Lines
that begin with a colon set options:

    :timing: true         the output is a time: it is marked as one, and never called the same on two backends
    :stderr: true         the cell may write to stderr
    :alt: a text          the alternative text of its figure; a cell that draws one must have it
    :tags: [raises-exception]   the cell must raise; what it raises is shown

The role {printed}`text` in a sentence says that the cells so far have printed this text. The build warns, and so fails
under `-W`, where one of them did not on one of the backends; where a cell raises, or writes to stderr, without being
allowed to; and where one that must raise does not.

XDEVICE_DOCS says how much runs: "all" (the default), "sample" (each page that is not long on one backend, in turn) or
"none". Runs are kept beside the doctrees until the page or xdevice changes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import jupytext
import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.display import status_iterator
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx_design.shared import create_component

ROOT = Path(__file__).parents[2]
TITLES = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "mxnet": "MXNet",
    "paddle": "PaddlePaddle",
    "jax": "JAX",
    "numpy": "NumPy",
}
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GLOG_minloglevel": "3",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
INFORMED = re.compile(
    r"^(?:I\d{4} |INFO:|\[[^]]*\] \[ *INFO\] |WARNING: All log messages before absl::InitializeLog|"
    r"probing .*: each imports its framework).*\n?",
    re.MULTILINE,
)
"""What TensorFlow 2.21 writes when it is imported, whatever the level of its log; what JAX logs of a missing TPU once
Paddle has set the root logger to INFO; and the progress of `xdevice info`."""
LIMIT = 900  # seconds that one cell may take
logger = logging.getLogger(__name__)


class Output(NamedTuple):
    """What a cell printed, wrote to stderr, drew (base64 of a PNG) and raised."""

    text: str
    stderr: str
    image: str
    error: str


class Page(NamedTuple):
    """A page with code, as a notebook that runs as it is."""

    name: str
    notebook: nbformat.NotebookNode
    backends: list[str]
    is_long: bool


def page_of(name: str, text: str, substitutions: dict[str, str]) -> Page | None:
    """The page as a notebook, or None where it has no code to run."""
    if "```{code-cell}" not in text:
        return None
    notebook = jupytext.reads(text, fmt="md:myst")
    said = dict(notebook.metadata)
    backends = said.get("backends")
    if not backends or not set(backends) <= set(TITLES):
        raise ValueError(
            f"{name}: its front matter names the backends {backends}; expected some of {list(TITLES)}"
        )
    names = ", ".join(f'"{name}"' for name in backends)
    setup = ["import os", "from importlib.util import find_spec", "", f"for name in [{names}]:"]
    setup.append("    if find_spec(name):")
    setup.append(
        '        os.environ.setdefault("XDEVICE_BACKEND", name)  # the first of these that is installed'
    )
    if said.get("virtual_gpus"):
        setup += [
            'if os.environ.get("XDEVICE_BACKEND") != "numpy":  # which has one device',
            f'    os.environ.setdefault("XDEVICE_VIRTUAL_GPUS", "{said["virtual_gpus"]}")',
        ]
    if "%%bash" in text:
        setup[1:1] = ["import sys"]
        setup += [
            "# the commands below are those of this environment, which Jupyter alone does not look for",
            'os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]',
        ]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source, substitutions)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("\n".join(setup)))
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return Page(name, notebook, backends, bool(said.get("long")))


def plain(source: str, substitutions: dict[str, str]) -> str:
    """MyST as the Markdown that notebooks show: without roles, directives and substitutions."""
    source = re.sub(r"\{\{ (\w+) \}\}", lambda found: substitutions[found[1]], source)
    source = re.sub(r"\{[\w:-]+\}`([^`<]*?)(?: <[^`>]*>)?`", r"`\1`", source)
    source = re.sub(
        r"^(`{3,}|:{3,})\{[\w-]+\}[^\n]*\n(?::[\w-]+:[^\n]*\n)*", "", source, flags=re.MULTILINE
    )
    source = re.sub(r"^\([\w-]+\)=\n", "", source, flags=re.MULTILINE)
    return re.sub(r"^:{3,}\s*$", "", source, flags=re.MULTILINE)


def version() -> str:
    """A digest of all of our code: what has run is kept until it changes."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for folder in ("xdevice", "backends", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def chosen(page: Page, turn: int) -> list[str]:
    """The backends on which a page runs in this build."""
    how = os.environ.get("XDEVICE_DOCS", "all")
    if how not in ("all", "sample", "none"):
        raise ValueError(f'XDEVICE_DOCS is {how!r}; expected "all", "sample" or "none"')
    if how == "none" or (how == "sample" and page.is_long):
        return []
    return [page.backends[turn % len(page.backends)]] if how == "sample" else page.backends


def run(page: Page, backend: str, kept: Path, seen: str) -> list[Output]:
    """What each cell gave on a backend: read where the same has run before."""
    asked = json.dumps(
        [
            seen,
            backend,
            [cell.source for cell in page.notebook.cells if cell.cell_type == "code"],
        ]
    )
    path = (
        kept
        / f"{page.name.replace('/', '-')}-{backend}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.json"
    )
    if path.exists():
        return [Output(*item) for item in json.loads(path.read_text(encoding="utf-8"))]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("XDEVICE_")
    } | QUIET
    environment["XDEVICE_BACKEND"] = backend
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            copy.deepcopy(page.notebook),
            timeout=LIMIT,
            kernel_name="python3",
            startup_timeout=300,
            # else it warns of each kernel's TCP connection on loopback
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        )
        with suppress(CellExecutionError):  # the cell's output has it
            # what C++ libraries log before a cell runs
            client.execute(env=environment, stderr=subprocess.DEVNULL)
    cells = [cell for cell in client.nb.cells if cell.cell_type == "code"][1:]
    outputs = [output_of(cell) for cell in cells]
    failed = [cell for cell, output in zip(cells, outputs, strict=True) if output.error]
    if all("raises-exception" in cell.metadata.get("tags", []) for cell in failed):
        kept.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(outputs), encoding="utf-8")
    return outputs


def output_of(cell: nbformat.NotebookNode) -> Output:
    text, stderr, image, error = "", "", "", ""
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            stderr += output.text
        elif output.output_type == "stream":
            text += output.text
        elif output.output_type == "error":
            error = f"{output.ename}: {output.evalue}"
        elif "image/png" in output.get("data", {}):
            image = output.data["image/png"]
        else:
            text += output.data["text/plain"] + "\n"
    # a line may come in two outputs, so they are joined first
    stderr = INFORMED.sub("", stderr)
    return Output(re.sub(r"\x1b\[[0-9;]*m", "", text), stderr, image, error)


def run_pages(app: Sphinx, env: Any, names: list[str]) -> None:
    """Runs the code of the pages that are read, as much at once as there are cores, and writes their notebooks."""
    if not hasattr(env, "executed"):
        env.executed = {}
    texts = (
        (name, Path(env.doc2path(name)).read_text(encoding="utf-8"))
        for name in sorted(env.found_docs)
    )
    pages = [
        page
        for name, text in texts
        if (page := page_of(name, text, app.config.myst_substitutions))
    ]
    read = [(turn, page) for turn, page in enumerate(pages) if page.name in names]
    runs = [(page, backend) for turn, page in read for backend in chosen(page, turn)]
    kept, seen = Path(app.doctreedir) / "runs", version()
    env.executed |= {page.name: {} for _, page in read}
    workers = int(os.environ.get("XDEVICE_DOCS_WORKERS", os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        waiting = {
            pool.submit(run, page, backend, kept, seen): (page.name, backend)
            for page, backend in runs
        }
        ended = ((waiting[future], future.result()) for future in as_completed(waiting))
        done = dict(
            status_iterator(
                ended,
                "running ",
                length=len(runs),
                stringify_func=lambda end: " on ".join(end[0]),
            )
        )
    for page, backend in runs:
        env.executed[page.name][backend] = done[page.name, backend]
    for page in pages:
        path = Path(app.outdir) / f"{page.name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(page.notebook, path)


def as_saved(text: str) -> tuple[str, str, str]:
    """A cell as readers save or type it, without the magic of notebooks; its language; the file that it is, if any."""
    first, _, rest = text.partition("\n")
    if first.startswith("%%writefile "):
        name = first.split()[-1]
        return rest, {".py": "python", ".yml": "yaml"}.get(Path(name).suffix, "text"), name
    return (rest, "sh", "") if first.startswith("%%bash") else (text, "ipython3", "")


class CodeCell(SphinxDirective):
    """Code, and below it what it gave on each backend."""

    has_content = True
    optional_arguments = 1
    option_spec = dict.fromkeys(("timing", "stderr", "alt", "tags"), directives.unchanged)

    def run(self) -> list[nodes.Node]:
        index = self.env.temp_data["cells"] = self.env.temp_data.get("cells", -1) + 1
        ran = self.env.executed[self.env.docname]
        found = {
            backend: outputs[index] for backend, outputs in ran.items() if index < len(outputs)
        }
        for backend, output in found.items():
            self.check(backend, output)
        text, language, title = as_saved("\n".join(self.content))
        code = (
            [nodes.paragraph("", "", nodes.literal("", title), classes=["file-title"])]
            if title
            else []
        )
        code.append(nodes.literal_block(text, text, language=language))
        # a notebook says that it writes the file
        said = [] if title else self.shown(found, len(ran))
        return [nodes.container("", *code, classes=["cell"]), *said]

    def check(self, backend: str, output: Output) -> None:
        def warn(text: str) -> None:
            logger.warning(
                "%s, on %s", text, backend, location=self.get_location(), type="executed"
            )

        must_raise = "raises-exception" in self.options.get("tags", "")
        if output.error and not must_raise:
            warn(f"the cell raises {output.error}")
        if must_raise and not output.error:
            warn("the cell raises nothing, though it is said to")
        if output.stderr and "stderr" not in self.options:
            warn(f"the cell writes to stderr: {output.stderr}")
        if output.image and "alt" not in self.options:
            warn("the cell draws a figure without :alt:")

    def shown(self, found: dict[str, Output], ran: int) -> list[nodes.Node]:
        """What was printed, drawn and raised: once where it is the same on all backends, else in a tab for each."""
        found = {
            name: output
            for name, output in found.items()
            if output.text or output.image or output.error
        }
        if not found:
            return []
        timing = "timing" in self.options
        first, *others = found.items()
        alone = (
            len(found) == ran
            and not timing
            and not first[1].image
            and all(output == first[1] for _, output in others)
        )
        if ran == 1 or alone:
            title = (
                f"Output on {TITLES[first[0]]}"
                if ran == 1
                else f"Output, the same on all {ran} backends"
            )
            parts = [nodes.paragraph("", title, classes=["output-title"]), *self.parts(*first)]
            return [
                nodes.container("", *parts, classes=["output-box"]),
                *([when()] if timing else []),
            ]
        tabs = create_component("tab-set", classes=["sd-tab-set"])
        for name, output in found.items():
            label = nodes.rubric(TITLES[name], TITLES[name], classes=["sd-tab-label"])
            label["sync_id"], label["sync_group"] = name, "backend"
            content = create_component(
                "tab-content", ["sd-tab-content"], children=self.parts(name, output)
            )
            tabs += create_component("tab-item", ["sd-tab-item"], children=[label, content])
        return [tabs, *([when()] if timing else [])]

    def parts(self, backend: str, output: Output) -> list[nodes.Node]:
        made: list[nodes.Node] = []
        text = (output.text + output.error).rstrip("\n")
        if text:
            made.append(nodes.literal_block(text, text, language="text", classes=["output"]))
        if output.image:
            alt = escape(f"{self.options.get('alt', '')} ({TITLES[backend]})")
            source = f"data:image/png;base64,{output.image}"
            made.append(
                nodes.raw("", f'<img class="drawn" alt="{alt}" src="{source}">', format="html")
            )
        return made


def when() -> nodes.Node:
    text = f"Timed once, on {os.cpu_count()} cores of {processor()}. Yours will differ."
    return nodes.paragraph("", text, classes=["timed"])


def processor() -> str:
    try:
        names = re.findall(
            r"^model name\s*: (.*)$",
            Path("/proc/cpuinfo").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


class Printed(SphinxRole):
    """A text that cells before this sentence have printed, on every backend."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        count = self.env.temp_data.get("cells", -1) + 1
        for backend, outputs in self.env.executed.get(self.env.docname, {}).items():
            if not any(self.text in output.text + output.error for output in outputs[:count]):
                said = "no cell above has printed %r, on %s"
                logger.warning(
                    said, self.text, backend, location=self.get_location(), type="executed"
                )
        return [nodes.literal("", self.text)], []


def link_notebook(app: Sphinx, doctree: nodes.document) -> None:
    """Below the title: on what the page ran, and the notebook."""
    name = app.env.docname
    title = doctree.next_node(nodes.title)
    if name not in app.env.executed or title is None:
        return
    ran = ", ".join(TITLES[backend] for backend in app.env.executed[name])
    said = (
        f"Run on {ran} when this page was built. "
        if ran
        else "Not run when this page was built. "
    )
    line = nodes.paragraph("", said, classes=["ran"])
    line += nodes.reference(
        "", "Download it as a notebook", refuri=name.rsplit("/", 1)[-1] + ".ipynb"
    )
    line += nodes.Text(", ")
    how = "../" * name.count("/") + "tutorials/index.html#run-a-page-as-a-notebook"
    line += nodes.reference("", "and run it", refuri=how)
    line += nodes.Text(".")
    title.parent.insert(title.parent.index(title) + 1, line)


def setup(app: Sphinx) -> dict[str, bool]:
    # a page is read again when another part of the code is to run, or our code has changed
    app.add_config_value("executed", [], "env")
    app.connect(
        "config-inited",
        lambda _, config: setattr(
            config, "executed", [os.environ.get("XDEVICE_DOCS"), version()]
        ),
    )
    app.add_directive("code-cell", CodeCell)
    app.add_role("printed", Printed())
    app.connect("env-before-read-docs", run_pages)
    app.connect("doctree-read", link_notebook)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
