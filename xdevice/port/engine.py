"""`examine`, which finds and judges all sites in some files, and the new text of a file."""

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
from .idioms import SETS_CURRENT
from .inference import Inference
from .interpreter import infer
from .neutral_sites import NeutralSites
from .progress import Progress, unseen
from .project import Project
from .rules import JudgedSites
from .sites import GRADES, Edit, Grade, Site, splice
from .sources import PythonModule, Source
from .text_flow import devices_in, origins, parts_in_text
from .words import USUAL, Goal, Version, version


@dataclass
class Examined:
    """The result of `examine`. `sites` are sorted; `unreadable` holds (path, why).

    `port(source)` is the file as `port` would write it. After `examine`, every expression of `Module.tree` has an
    attribute `means`, the set of its possible values (see `values`), which rules of lint may read. `unsettled` names
    the functions and modules whose values did not settle, and were therefore taken for anything.
    """

    root: Path
    only: Grade
    backend: str | None = None
    sources: list[Source] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    modules: list[PythonModule] = field(default_factory=list)
    goal: Goal = USUAL
    unsettled: list[str] = field(default_factory=list)

    def of(self, source: Source) -> list[Site]:
        """The sites of one file."""
        return self._by_file.get(source.path, [])

    @cached_property
    def _by_file(self) -> dict[str, list[Site]]:
        groups: dict[str, list[Site]] = {}
        for site in self.sites:
            groups.setdefault(site.file, []).append(site)
        return groups

    def port(self, source: Source) -> bytes:
        """The file as the command `xdevice port` would write it: `source.raw` if nothing in it is rewritten."""
        sites = [site for site in self.of(source) if site.verdict == "rewritten"]
        return self.rewrite(source, sites) if sites else source.raw

    def rewrite(self, source: Source, sites: list[Site]) -> bytes:
        """The file with some of its sites rewritten."""
        edits = {edit for site in sites for edit in site.edits}
        for module in source.modules:
            edits |= porting.unused_imports(module, edits)
        return source.rewrite(edits | self.import_edits(source, sites))

    def vendor_sites(self, source: Source) -> list[Site]:
        """The sites for which the file will still need one vendor's devices after `port`."""
        return [site for site in self.of(source) if site.verdict == "open" and site.vendor]

    def needed_torch(self, source: Source) -> Version | None:
        """The oldest release of PyTorch that has all words which `port` writes into a file; None if it writes none."""
        return max(
            (version(site.since) for site in self.of(source) if site.since and site.after),
            default=None,
        )

    def import_edits(self, source: Source, sites: list[Site]) -> set[Edit]:
        """The edits that insert the imports which these sites of a file need."""
        # one for each tab of a text
        modules = [module for module in self.modules if module.source is source]
        return porting.import_edits(source, modules, sites, self.backend)

    def diff(self, source: Source) -> str:
        """The changes that `port` would make in one file, as a unified diff; empty if there are none."""
        # difflib compares lines of text, in the file's own encoding
        old, new = (text.decode(source.encoding) for text in (source.raw, self.port(source)))
        lines = difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            f"a/{source.path}",
            f"b/{source.path}",
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's garbage collector, which would go through millions of nodes that live on, again and again: it
    takes up to half of the time."""
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
    goal: Goal = USUAL,
    progress: Progress = unseen,
) -> Examined:
    """All files under the paths as one project, with a verdict for each site.

    `only` is the level of `port`; imports are resolved from the folder `root`, and paths are shown relative to it (by
    default the folder that all paths share, or if that is a package, the folder around it); `backend` is the name for
    `set_backend`, by default the one framework that a file uses. The path "-" is a script on the standard input. Files
    that cannot be read are listed in `unreadable`.
    """
    places = [Path(path) for path in paths]
    root = root or _common_folder(places)
    examined = Examined(root, only, backend, goal=goal)
    examined.sources += sources.read_each(places, root, examined.unreadable, progress)
    judge(examined, progress)
    return examined


@collector_paused()
def judge(examined: Examined, progress: Progress = unseen) -> None:
    """Fills in the verdict of each site of the files that were read."""
    project = Project(module for source in examined.sources for module in source.modules)
    inference = infer(project, progress)
    examined.unsettled = sorted(map(_name_of_task, inference.unsettled))
    # only modules that Python can parse
    examined.modules = project.modules
    goal = examined.goal
    is_neutral = goal.target == "accelerator"
    kind = NeutralSites if is_neutral else JudgedSites
    in_text: set[ast.AST] = set()
    on_devices: set[ast.AST] = set()
    setters: list[PythonModule] = []
    # a device may be made in one module and printed in another, so all are asked before any is judged
    for module in project.modules:
        in_text |= origins(module, inference, parts_in_text)
        if is_neutral:
            on_devices |= origins(module, inference, devices_in)
        if _sets_current(module, inference):
            setters.append(module)
        # a large project would not fit into memory otherwise
        module.release()
    current = _connected(setters, inference)
    sites: dict[object, Site] = {}
    for number, module in enumerate(project.modules):
        progress("judging", number, len(project.modules))
        for site in kind(
            module, inference, in_text, module in current, goal, on_devices
        ).sites():
            # a cell of several tabs is judged once in each, and written once
            site.tabs = (module.tab,) if module.tab else ()
            # the key has no tab: the twin stands at the same place
            twin = sites.get(site.key)  # of another tab
            sites[site.key] = site if twin is None else _merge(twin, site)
        module.release()
    for source in examined.sources:
        for line, why in source.broken:
            site = Site(
                source.path, line, 0, "cell", "XD160", "", "open", why=why, end=(line, 0)
            )
            sites[site.key] = site
    examined.sites = sorted(_at_level(site, examined.only) for site in sites.values())
    by_path = {source.path: source for source in examined.sources}
    for site in examined.sites:
        if site.edits:
            site.after = _after(by_path[site.file], site)


def _name_of_task(task: Task) -> str:
    return (
        task.source.path
        if isinstance(task, PythonModule)
        else f"{task.module.source.path}: {task.name}"
    )


def _merge(one: Site, other: Site) -> Site:
    """Merges two sites of one use that two tabs share: the result has their common edits, with the weaker grade, or is
    open if the tabs disagree."""
    tabs = (*one.tabs, *other.tabs)
    if set(one.edits) == set(other.edits) and one.verdict == other.verdict:
        weaker = max(
            one, other, key=lambda site: GRADES.index(site.grade) if site.grade else -1
        )
        return replace(weaker, tabs=tabs)
    if not one.edits and not other.edits:
        return replace(one if one.verdict == "open" else other, tabs=tabs)
    loser = other if one.edits else one
    why = f"the tabs disagree: {loser.tabs[0]} says {loser.why}"
    return replace(one, verdict="open", code="XD164", grade=None, edits=(), why=why, tabs=tabs)


def _at_level(site: Site, only: Grade) -> Site:
    # the edits stay, so that the report can say what a lower level would write
    if site.grade is None or GRADES.index(site.grade) <= GRADES.index(only):
        return site
    return replace(site, verdict="open", why=f"{site.why} (--only {site.grade} rewrites it)")


def _after(source: Source, site: Site) -> str:
    """The text of the whole expression once the edits of this site alone are made."""
    # an edit may replace what is around the expression, such as `len(...)`
    end = source.offset(*site.end)
    start = min(end - len(site.before.encode()), *(edit.start for edit in site.edits))
    end = max(end, *(edit.end for edit in site.edits))
    return splice(
        source.text[start:end], [edit.shifted(-start) for edit in site.edits]
    ).decode()


def _connected(modules: list[PythonModule], inference: Inference) -> set[PythonModule]:
    """The modules, and all modules that are connected to one of them by imports."""
    connected: set[PythonModule] = set()
    waiting = list(modules)
    # in both directions: who imports whom does not matter for a setting of the process
    while waiting:
        module = waiting.pop()
        if module not in connected:
            connected.add(module)
            waiting += inference.imports.get(module, ())
    return connected


def _sets_current(module: PythonModule, inference: Inference) -> bool:
    """Whether a module sets the current device."""
    calls = (node for node in module.walked[0] if isinstance(node, ast.Call))
    return any(inference.full_name(call.func) in SETS_CURRENT for call in calls)


def _common_folder(paths: list[Path]) -> Path:
    """The folder that all paths share. If that is in a package, the folder around the package, which imports itself by
    its name."""
    folders = [path if path.is_dir() else path.parent for path in paths if str(path) != "-"]
    resolved = [folder.resolve() for folder in folders or [Path.cwd()]]
    root = Path(os.path.commonpath(resolved))
    # up to the folder from which the package would be imported
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return root
