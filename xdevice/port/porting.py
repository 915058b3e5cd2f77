"""The edits that insert `import xdevice` and `set_backend` into a file that is rewritten."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .knowledge import framework_of
from .project import frameworks_of, imported_names
from .sites import Edit, Site
from .sources import PythonModule, Source


def import_edits(source: Source, modules: Iterable[PythonModule], sites: list[Site], backend: str | None) -> set[Edit]:
    """The edits that insert the imports which a file needs for its rewritten sites.

    `set_backend` stands above the import of the framework: virtual GPUs of Paddle and TensorFlow, and MXNet beside a
    newer NumPy, need the framework to be loaded by xdevice. It is left out where a file uses several frameworks.
    """
    edits = set()
    for module in modules:
        sites_of_module = [site for site in sites if _is_within(site, module)]
        # whoever imports xdevice has also chosen the backend
        if not sites_of_module or _has_import(module.tree):
            continue
        statement = _place(module, min(site.line for site in sites_of_module))
        line, col = (statement.lineno, statement.col_offset) if statement is not None else (1, 0)
        lines = ["import xdevice"]
        frameworks = frameworks_of(module)
        name = backend or (min(frameworks) if len(frameworks) == 1 else None)
        if name is not None and not _is_shared(source, line, module.tab):
            lines.append(f'xdevice.set_backend("{name}")')
        start = source.offset(line, col)
        if col:  # `import a; import b`, or a block
            edits.add(Edit(start, 0, start, "; ".join([*lines, ""])))
        else:
            edits.add(
                Edit(
                    start,
                    -len(source.text),
                    start,
                    (source.newline * 2).join(lines) + source.newline,
                )
            )
    return edits


def _is_within(site: Site, module: PythonModule) -> bool:
    return module.source.path == site.file and (not site.tabs or module.tab in site.tabs)


def _has_import(tree: ast.Module) -> bool:
    for node in tree.body:
        if isinstance(node, ast.Import):
            packages = [alias.name.split(".")[0] for alias in node.names if not alias.asname]
            if "xdevice" in packages:
                return True
    return False


def _place(module: PythonModule, first_use: int) -> ast.stmt | None:
    """The statement before which the import goes: the first import of a framework, if nothing that is rewritten stands
    above it; else the first statement that is neither the docstring nor from `__future__`."""
    has_docstring = ast.get_docstring(module.tree, clean=False) is not None
    plain = [node for node in module.tree.body[has_docstring:] if not _is_from_future(node)]
    for node in plain:
        if node.lineno <= first_use and any(map(framework_of, imported_names(node, module))):
            return node
    return plain[0] if plain else None


def _is_from_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_shared(source: Source, line: int, tab: str | None) -> bool:
    """Whether a line belongs to other tabs of a d2l text too, so that it may not name a framework."""
    cell = next((cell for cell in reversed(source.cells or ()) if cell.line <= line), None)
    return tab is not None and cell is not None and (cell.tabs or source.default_tabs) != (tab,)
