"""The whole analysis: `examine` reads files, and finds and judges all sites (uses of devices) in
them. Its result can produce the new content of each file."""

from __future__ import annotations

import ast
import difflib
import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from . import porting, sources
from .cells import Task
from .idioms import SETS_CURRENT_DEVICE
from .inference import Inference
from .interpreter import infer
from .neutral_sites import NeutralSites
from .progress import Progress, no_progress
from .project import Project
from .rules import JudgedSites
from .sites import GRADES, Edit, Grade, Site, grouped, splice
from .sources import PythonModule, Source
from .text_flow import device_arguments, device_keyword_arguments, expressions_in_text, origins
from .words import DEFAULT_GOAL, Goal, Version, version


@dataclass
class Examined:
    """The result of `examine`. `sites` are sorted; `unreadable` contains a pair (path, reason)
    for each file that cannot be read.

    `root`, `only`, `backend` and `goal` are the arguments of `examine`. After `examine`, each
    expression of `PythonModule.tree` has an attribute `means`, unless it is never reached. This is
    the set of things that the expression may be (see `values`). Rules of lint may read this
    attribute. `unsettled` contains the names of the functions and modules whose values were still
    growing when the analysis stopped following them. From then on, these values were treated as
    "anything".
    """

    root: Path
    only: Grade
    backend: str | None = None
    sources: list[Source] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    modules: list[PythonModule] = field(default_factory=list)
    goal: Goal = DEFAULT_GOAL
    unsettled: list[str] = field(default_factory=list)

    def sites_of(self, source: Source) -> list[Site]:
        """Returns the sorted sites of one file; an empty list if the file has no sites."""
        return self._by_file.get(source.path, [])

    @cached_property
    def _by_file(self) -> dict[str, list[Site]]:
        """Maps the path of each file to its sites."""
        return grouped(self.sites, lambda site: site.file)

    def ported(self, source: Source) -> bytes:
        """Returns the bytes that the command `xdevice port` would write to a file. They are
        `source.raw` if nothing in the file is rewritten."""
        sites = [site for site in self.sites_of(source) if site.verdict == "rewritten"]
        return self.rewritten(source, sites) if sites else source.raw

    def rewritten(self, source: Source, sites: list[Site]) -> bytes:
        """Returns the bytes of a file after rewriting these sites. The imports that the new text needs are inserted,
        and imports that are no longer used are removed.
        """
        edits = {edit for site in sites for edit in site.edits}
        # an import is removed only if these edits replace all its uses
        for module in source.modules:
            edits |= porting.unused_import_edits(module, edits)
        return source.rewritten(edits | self.import_edits(source, sites))

    def vendor_sites(self, source: Source) -> list[Site]:
        """Returns the sites of a file that will still need one vendor's devices after
        `port`. These are the open sites that name a vendor."""
        return [
            site for site in self.sites_of(source) if site.verdict == "open" and site.vendor
        ]

    def needed_torch(self, source: Source) -> Version | None:
        """Returns the oldest release of PyTorch that has all words that `port` writes into a
        file; None if every release has these words."""
        return max(
            (
                version(site.since)
                for site in self.sites_of(source)
                if site.since and site.verdict == "rewritten"
            ),
            default=None,
        )

    def import_edits(self, source: Source, sites: list[Site]) -> set[Edit]:
        """Returns the edits that insert the imports which these sites of a file need."""
        # the only module of a script or notebook, or the modules of all tabs of a page of d2l
        modules = [module for module in self.modules if module.source is source]
        return porting.import_edits(source, modules, sites, self.backend)

    def diff(self, source: Source) -> str:
        """Returns the changes that `port` would make in one file, as a unified diff. It is
        empty if there are no changes."""
        # difflib compares lines of text, so the bytes are decoded with the encoding of the file
        old, new = (text.decode(source.encoding) for text in (source.raw, self.ported(source)))
        lines = difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            f"a/{source.path}",
            f"b/{source.path}",
        )
        # diff and Git mark a last line without a line end in this way
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's garbage collector while the block runs. Otherwise, the collector would
    repeatedly search millions of nodes without finding garbage, and take up to half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_paused()
def examine(
    paths: Iterable[Path | str],
    only: Grade = "proven",
    root: Path | None = None,
    backend: str | None = None,
    goal: Goal = DEFAULT_GOAL,
    progress: Progress = no_progress,
) -> Examined:
    """Reads all files under the paths as one project, and returns them with a verdict for each
    site.

    `only` is the level of `port --only`: sites with a weaker grade stay open. Imports are resolved from the folder
    `root`, and paths are shown relative to this folder. By default, `root` is the folder that contains all paths. If
    that folder is in a package, `root` is the folder that contains the package. `backend` is the name that is written
    into each file's `set_backend` call. If it is None and the file imports exactly one framework, the name of that
    framework is written. `goal` says whether the new text uses names of xdevice or of PyTorch. `progress` is called
    repeatedly to report the progress. The path "-" stands for a script on the standard input. Files that cannot be read
    are listed in `unreadable`.
    """
    places = [Path(path) for path in paths]
    root = root or _common_folder(places)
    examined = Examined(root, only, backend, goal=goal)
    # adds the files that cannot be read to `unreadable`
    examined.sources += sources.read_files(
        places, root, unreadable=examined.unreadable, progress=progress
    )
    judge(examined, progress)
    return examined


@collector_paused()
def judge(examined: Examined, progress: Progress = no_progress) -> None:
    """Finds and judges the sites of `examined.sources`, and fills in `sites`, `modules` and
    `unsettled`."""
    project = Project(module for source in examined.sources for module in source.modules)
    inference = infer(project, progress)
    examined.unsettled = sorted(map(_name_of_task, inference.unsettled))
    examined.modules = project.modules
    goal = examined.goal
    is_neutral = goal.target == "accelerator"
    sites_class = NeutralSites if is_neutral else JudgedSites
    # `in_text`: the nodes that choose devices which are turned into text somewhere, for example
    # by `print`. `on_devices`: the nodes that choose devices which are passed to a function as
    # its device
    in_text: set[ast.AST] = set()
    on_devices: set[ast.AST] = set()
    # the modules that set the current device with `set_device` or the like. In these modules and those connected with
    # them, "cuda" may mean a GPU other than the first
    setters: list[PythonModule] = []
    # before the first module is judged, because a device may be created in one module and printed in another
    for module in project.modules:
        in_text |= origins(module, inference, expressions_in_text)
        # `--to xdevice` turns `x.to(d)` into a call that accepts any string, unlike the framework's own functions, so
        # only devices that are passed to these by keyword count for this target
        find_devices = device_arguments if is_neutral else device_keyword_arguments
        on_devices |= origins(module, inference, find_devices)
        if _sets_current_device(module, inference):
            setters.append(module)
        # otherwise, a large project would not fit into memory; the rules below compute `nodes` again
        module.free_nodes()
    affected = _with_connected(setters, inference)
    sites: dict[object, Site] = {}
    for number, module in enumerate(project.modules):
        progress("judging", number, len(project.modules))
        for site in sites_class(
            module,
            inference,
            text_origins=in_text,
            sets_current_device=module in affected,
            goal=goal,
            device_origins=on_devices,
        ).sites():
            # a cell that several tabs share is judged in each of these tabs, but can be written only once
            site.tabs = (module.tab,) if module.tab else ()
            # the site of the same use in another tab, if it has already been judged there: keys
            # do not contain the tab
            twin = sites.get(site.key)
            sites[site.key] = site if twin is None else _merged(twin, site)
        module.free_nodes()
    for source in examined.sources:
        for site in _broken_cells(source):
            sites[site.key] = site
    examined.sites = sorted(_open_if_weaker(site, examined.only) for site in sites.values())
    by_path = {source.path: source for source in examined.sources}
    # last, because only now does each site have its final edits
    for site in examined.sites:
        if site.edits:
            site.after = _new_text(by_path[site.file], site)


def _broken_cells(source: Source) -> Iterator[Site]:
    """Yields an open site for each cell of a file that Python cannot parse, because the cell may contain device code.
    The position of the site is the beginning of the cell's first line."""
    for line, why in source.broken:
        yield Site(
            source.path,
            line,
            col=0,
            idiom="cell",
            code="XD160",
            framework="",
            verdict="open",
            why=why,
            end=(line, 0),
        )


def _name_of_task(task: Task) -> str:
    """Returns the name of a module or function for messages: the path of its file, followed by
    the name of the function if there is one."""
    return (
        task.source.path
        if isinstance(task, PythonModule)
        else f"{task.module.source.path}: {task.name}"
    )


def _merged(first: Site, second: Site) -> Site:
    """Merges two sites that describe the same use. Two tabs of a page of d2l share this use, and it was judged once in
    each tab. If the verdicts and edits agree, returns the site with the weaker grade. If neither site has edits,
    returns the site that is open. Otherwise, the tabs disagree, and the result is an open site. All results are copies,
    with the tabs of both sites.
    """
    tabs = (*first.tabs, *second.tabs)
    if set(first.edits) == set(second.edits) and first.verdict == second.verdict:
        # `GRADES` begins with the strongest grade; a site without a grade is treated as
        # stronger than that
        weaker = max(
            first, second, key=lambda site: GRADES.index(site.grade) if site.grade else -1
        )
        return replace(weaker, tabs=tabs)
    # neither site would be rewritten: the open site is returned, because a person has to look
    # at it
    if not first.edits and not second.edits:
        return replace(first if first.verdict == "open" else second, tabs=tabs)
    # the reason of the site without edits is shown, because a person has to look at it; if both sites have edits, the
    # reason of the second
    shown = second if first.edits else first
    why = f"the tabs disagree; in the tab {shown.tabs[0]}: {shown.why}"
    return replace(
        first, verdict="open", code="XD164", grade=None, edits=(), why=why, tabs=tabs
    )


def _open_if_weaker(site: Site, only: Grade) -> Site:
    """Returns the site if its grade is not weaker than `only`, the level of the option `--only`. Otherwise, returns a
    copy with the verdict "open", which is not rewritten."""
    if site.grade is None or GRADES.index(site.grade) <= GRADES.index(only):
        return site
    # the copy keeps its edits, so that the report can show what a weaker level would write
    return replace(site, verdict="open", why=f"{site.why} (--only {site.grade} rewrites it)")


def _new_text(source: Source, site: Site) -> str:
    """Returns the text of a site after its edits. If the edits also replace code around the expression, the new text of
    this code is included.
    """
    # an edit may extend beyond the expression: in `len(list)`, the whole call is replaced
    end = source.offset(*site.end)
    # from the end, because the position of a method call is that of its dot (`JudgedSites._site`)
    start = min(end - len(site.before.encode()), *(edit.start for edit in site.edits))
    end = max(end, *(edit.end for edit in site.edits))
    return splice(
        source.text[start:end], [edit.shifted(-start) for edit in site.edits]
    ).decode()


def _with_connected(modules: list[PythonModule], inference: Inference) -> set[PythonModule]:
    """Returns these modules, and all modules that are connected with them by imports, directly
    or through other modules."""
    connected: set[PythonModule] = set()
    waiting = list(modules)
    # `imports` contains both directions, because the current device is a setting of the whole
    # process, which affects both importing and imported modules
    while waiting:
        module = waiting.pop()
        if module not in connected:
            connected.add(module)
            waiting += inference.imports.get(module, ())
    return connected


def _sets_current_device(module: PythonModule, inference: Inference) -> bool:
    """Whether a module calls a function that sets the current device, such as
    `torch.cuda.set_device`."""
    calls = (node for node in module.nodes if isinstance(node, ast.Call))
    return any(inference.full_name(call.func) in SETS_CURRENT_DEVICE for call in calls)


def _common_folder(paths: list[Path]) -> Path:
    """Returns the folder that contains all paths. If this folder is in a package, returns the
    folder that contains the outermost package, because imports are resolved from there. The
    standard input is ignored unless it is the only path; it is then treated as a file in the
    current folder."""
    folders = [path if path.is_dir() else path.parent for path in paths if str(path) != "-"]
    resolved = [folder.resolve() for folder in folders or [Path.cwd()]]
    root = Path(os.path.commonpath(resolved))
    # upwards to the folder from which the package would be imported
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return root
