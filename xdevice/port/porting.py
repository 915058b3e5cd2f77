"""The edits that insert `import xdevice` and `set_backend` into a file that is rewritten."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .knowledge import framework_of
from .project import frameworks_of, imported_names
from .sites import Edit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sites import Site
    from .sources import PythonModule, Source


def import_edits(source: Source, modules: Iterable[PythonModule], sites: list[Site], backend: str | None) -> list[Edit]:
    """The edits that insert the imports which a file needs for its rewritten sites.

    `set_backend` stands above the import of the framework: virtual GPUs of Paddle and TensorFlow, and MXNet beside a
    newer NumPy, need the framework to be loaded by xdevice. It is left out where a file uses several frameworks.
    """
    edits = set()
    for module in modules:
        mine = [site for site in sites if _is_within(site, module)]
        if not mine or _has_import(module.tree):
            continue
        where = _place(module, min(site.line for site in mine))
        line = where.lineno if where is not None else 1
        text = "import xdevice"
        frameworks = frameworks_of(module)
        alone = not _is_shared(source, line, module.tab)
        name = backend or (min(frameworks) if len(frameworks) == 1 else None)
        newline = source.newline
        if name is not None and alone:
            text += f'{newline}{newline}xdevice.set_backend("{name}")'
        start = source.offset(line, 0)
        if where is not None and where.col_offset:  # `import a; import b`, or a block
            edits.add(
                Edit(start + where.col_offset, 0, start + where.col_offset, text.replace(newline * 2, "; ") + "; ")
            )
            continue
        edits.add(Edit(start, -len(source.text), start, text + newline))
    return sorted(edits)


def _is_within(site: Site, module: PythonModule) -> bool:
    return module.source.path == site.file and (not site.tabs or module.tab in site.tabs)


def _has_import(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any(alias.name.split(".")[0] == "xdevice" and not alias.asname for alias in node.names)
        for node in tree.body
    )


def _place(module: PythonModule, first_use: int) -> ast.stmt | None:
    """The statement before which the import goes: the first import of a framework, if nothing that is rewritten stands
    above it; else the first statement that is neither the docstring nor from `__future__`."""
    plain = [node for i, node in enumerate(module.tree.body) if not _is_first(node, i)]
    for node in plain:
        if node.lineno <= first_use and any(map(framework_of, imported_names(node, module))):
            return node
    return plain[0] if plain else None


def _is_first(node: ast.stmt, index: int) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return True
    return (
        index == 0
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_shared(source: Source, line: int, tab: str | None) -> bool:
    """Whether a line belongs to other tabs of a d2l text too, so that it may not name a framework."""
    if tab is None or source.cells is None:
        return False
    cell = next((cell for cell in reversed(source.cells) if cell.line <= line), None)
    if cell is None or not cell.tabs:
        return cell is not None and len(source.modules) > 1 and not cell.tabs and source.default_tabs != (tab,)
    return cell.tabs != (tab,)
