"""The whole analysis: `examine` reads files, and finds and judges all sites in them; the result
can write the new text of each file."""

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
from .progress import Progress, unseen
from .project import Project
from .rules import JudgedSites
from .sites import GRADES, Edit, Grade, Site, grouped, splice
from .sources import PythonModule, Source
from .text_flow import devices_in, origins, parts_in_text
from .words import DEFAULT_GOAL, Goal, Version, version


@dataclass
class Examined:
    """The result of `examine`. `sites` are sorted; `unreadable` holds pairs (path, reason).

    `root`, `only`, `backend` and `goal` are the arguments of `examine`. After `examine`, every
    expression of `PythonModule.tree` that is reached has an attribute `means`: the set of
    things that it may be (see `values`). Rules of lint may read this attribute. `unsettled`
    names the functions and modules whose values were still growing when the analysis stopped
    following them, and which may therefore be anything.
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
        """The sites of one file, sorted; an empty list if it has none."""
        return self._by_file.get(source.path, [])

    @cached_property
    def _by_file(self) -> dict[str, list[Site]]:
        """The sites by the path of their file."""
        return grouped(self.sites, lambda site: site.file)

    def port(self, source: Source) -> bytes:
        """The file as the command `xdevice port` would write it: `source.raw` if nothing in it
        is rewritten."""
        sites = [site for site in self.sites_of(source) if site.verdict == "rewritten"]
        return self.rewrite(source, sites) if sites else source.raw

    def rewrite(self, source: Source, sites: list[Site]) -> bytes:
        """The bytes of a file after rewriting these sites. The imports that the new text needs are inserted, and
        imports that lose their last use are removed."""
        edits = {edit for site in sites for edit in site.edits}
        # an import is removed only if these edits replace its last use
        for module in source.modules:
            edits |= porting.unused_imports(module, edits)
        return source.rewrite(edits | self.import_edits(source, sites))

    def vendor_sites(self, source: Source) -> list[Site]:
        """The sites of a file that will still need one vendor's devices after `port`: open
        sites that name a vendor."""
        return [
            site for site in self.sites_of(source) if site.verdict == "open" and site.vendor
        ]

    def needed_torch(self, source: Source) -> Version | None:
        """The oldest release of PyTorch that has all the words that `port` writes into a file;
        None if every release has them."""
        return max(
            (
                version(site.since)
                for site in self.sites_of(source)
                if site.since and site.verdict == "rewritten"
            ),
            default=None,
        )

    def import_edits(self, source: Source, sites: list[Site]) -> set[Edit]:
        """The edits that insert the imports which these sites of a file need."""
        # the one module of a script or notebook; for a page of d2l, one for each tab
        modules = [module for module in self.modules if module.source is source]
        return porting.import_edits(source, modules, sites, self.backend)

    def diff(self, source: Source) -> str:
        """The changes that `port` would make in one file, as a unified diff; empty if there are
        none."""
        # difflib compares lines of text, so the bytes are decoded with the file's own encoding
        old, new = (text.decode(source.encoding) for text in (source.raw, self.port(source)))
        lines = difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            f"a/{source.path}",
            f"b/{source.path}",
        )
        # the marker of diff and Git for a last line without a line end
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's garbage collector in the block. The collector would search millions of
    nodes again and again without finding garbage, and take up to half of the time."""
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
    progress: Progress = unseen,
) -> Examined:
    """Reads all files under the paths as one project, and returns them with a verdict for each
    site.

    `only` is the level of `port --only`: sites with a weaker grade stay open. Imports are
    resolved from the folder `root`, and paths are shown relative to it. By default, `root` is
    the folder that all paths share or, if that is a package, the folder around it. `backend` is
    the name to write into each file's `set_backend` call. If it is None, the name is that of
    the framework that the file imports, provided that it imports only one. `goal` says whose
    words are written, and `progress` is called as the work goes on. The path "-" is a script on
    the standard input. Files that cannot be read are listed in `unreadable`.
    """
    places = [Path(path) for path in paths]
    root = root or _common_folder(places)
    examined = Examined(root, only, backend, goal=goal)
    examined.sources += sources.read_each(places, root, examined.unreadable, progress)
    judge(examined, progress)
    return examined


@collector_paused()
def judge(examined: Examined, progress: Progress = unseen) -> None:
    """Finds and judges the sites of `examined.sources`, and fills in `sites`, `modules` and
    `unsettled`."""
    project = Project(module for source in examined.sources for module in source.modules)
    inference = infer(project, progress)
    examined.unsettled = sorted(map(_name_of_task, inference.unsettled))
    examined.modules = project.modules
    goal = examined.goal
    is_neutral = goal.target == "accelerator"
    sites_class = NeutralSites if is_neutral else JudgedSites
    # `in_text`: the nodes that choose devices which are turned into text somewhere, as by
    # `print`. `on_devices`: the nodes that choose devices which a function takes as its device
    in_text: set[ast.AST] = set()
    on_devices: set[ast.AST] = set()
    # the modules that set the current device, by `set_device` or the like
    setters: list[PythonModule] = []
    # before the first module is judged, because a device may be made in one and printed in another
    for module in project.modules:
        in_text |= origins(module, inference, parts_in_text)
        if is_neutral:
            on_devices |= origins(module, inference, devices_in)
        if _sets_current_device(module, inference):
            setters.append(module)
        # a large project would not fit into memory otherwise; the rules below compute `nodes` again
        module.release()
    affected = _connected(setters, inference)
    sites: dict[object, Site] = {}
    for number, module in enumerate(project.modules):
        progress("judging", number, len(project.modules))
        for site in sites_class(
            module, inference, in_text, module in affected, goal, on_devices
        ).sites():
            # a cell that several tabs share is judged in each of them, but can be written only once
            site.tabs = (module.tab,) if module.tab else ()
            # the site of the same use in another tab, if it was judged there before: keys do
            # not contain the tab
            twin = sites.get(site.key)
            sites[site.key] = site if twin is None else _merged(twin, site)
        module.release()
    # a cell that Python cannot parse is an open site, because it may contain device code
    for source in examined.sources:
        for line, why in source.broken:
            site = Site(
                source.path,
                line,
                0,
                idiom="cell",
                code="XD160",
                framework="",
                verdict="open",
                why=why,
                end=(line, 0),
            )
            sites[site.key] = site
    examined.sites = sorted(_open_if_weaker(site, examined.only) for site in sites.values())
    by_path = {source.path: source for source in examined.sources}
    for site in examined.sites:
        if site.edits:
            site.after = _new_text(by_path[site.file], site)


def _name_of_task(task: Task) -> str:
    """The name of a module or function in messages: the path of its file, followed by the name
    of the function."""
    return (
        task.source.path
        if isinstance(task, PythonModule)
        else f"{task.module.source.path}: {task.name}"
    )


def _merged(first: Site, second: Site) -> Site:
    """Merges the two sites of a use that two tabs share, and that was judged in each of them. If the verdicts and
    edits agree, returns the site with the weaker grade. If neither site has edits, returns the open one. Otherwise
    returns a new site, which is open."""
    tabs = (*first.tabs, *second.tabs)
    if set(first.edits) == set(second.edits) and first.verdict == second.verdict:
        # `GRADES` begins with the strongest; a site without a grade counts as the strongest of
        # all
        weaker = max(
            first, second, key=lambda site: GRADES.index(site.grade) if site.grade else -1
        )
        return replace(weaker, tabs=tabs)
    # neither tab would be rewritten: the open site is returned, because a person has to look at
    # it
    if not first.edits and not second.edits:
        return replace(first if first.verdict == "open" else second, tabs=tabs)
    # if one tab has no edits, its reason is the one to show
    shown = second if first.edits else first
    why = f"the tabs disagree; in the tab {shown.tabs[0]}: {shown.why}"
    return replace(
        first, verdict="open", code="XD164", grade=None, edits=(), why=why, tabs=tabs
    )


def _open_if_weaker(site: Site, only: Grade) -> Site:
    """Returns the site. If its grade is weaker than `only` (the level of the option `--only`), returns a copy with the
    verdict "open", so that it is not rewritten."""
    if site.grade is None or GRADES.index(site.grade) <= GRADES.index(only):
        return site
    # the copy keeps its edits, so that the report can show what a weaker level would write
    return replace(site, verdict="open", why=f"{site.why} (--only {site.grade} rewrites it)")


def _new_text(source: Source, site: Site) -> str:
    """The text of a site after its edits. If they also replace code around the expression, that
    code is included."""
    # an edit may reach beyond the expression: `len(list)` is replaced as a whole
    end = source.offset(*site.end)
    start = min(end - len(site.before.encode()), *(edit.start for edit in site.edits))
    end = max(end, *(edit.end for edit in site.edits))
    return splice(
        source.text[start:end], [edit.shifted(-start) for edit in site.edits]
    ).decode()


def _connected(modules: list[PythonModule], inference: Inference) -> set[PythonModule]:
    """These modules, and all modules that are connected with them by imports, directly or
    through other modules."""
    connected: set[PythonModule] = set()
    waiting = list(modules)
    # `imports` has both directions, because the current device is a setting of the whole
    # process, and so holds in modules that import and in those that are imported
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
    """The folder that all paths share. If this folder is in a package, the result is the folder
    around the outermost package: imports are resolved from there. The standard input counts as
    a file in the current folder if it is the only path."""
    folders = [path if path.is_dir() else path.parent for path in paths if str(path) != "-"]
    resolved = [folder.resolve() for folder in folders or [Path.cwd()]]
    root = Path(os.path.commonpath(resolved))
    # upwards to the folder from which the package would be imported
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return root
