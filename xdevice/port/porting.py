"""The edits of a rewritten file that are not part of a site: they insert `import xdevice` and
`set_backend`, and remove imports that are no longer used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Final

from .knowledge import framework_of
from .project import frameworks_of, imported_names
from .sites import Edit, Site
from .sources import PythonModule, Source


def import_edits(
    source: Source, modules: Iterable[PythonModule], sites: list[Site], backend: str | None
) -> set[Edit]:
    """Returns the edits that insert the imports which a file needs for its rewritten sites.
    `backend` is the name that is written into `set_backend`. If it is None and the file imports
    exactly one framework, the name of that framework is written.

    `set_backend` is inserted above the import of the framework, because in some cases xdevice
    itself must load the framework: Paddle or TensorFlow with virtual GPUs, and MXNet with a newer
    NumPy. `set_backend` is left out if no framework is known, or if several tabs share the line.
    """
    edits = set()
    for module in modules:
        sites_of_module = [site for site in sites if _is_within(site, module)]
        if not sites_of_module:
            continue
        statement = _statement_below_import(module, min(site.line for site in sites_of_module))
        line, col = (
            (statement.lineno, statement.col_offset) if statement is not None else (1, 0)
        )
        frameworks = frameworks_of(module)
        # if there are several frameworks, none is chosen, because the program may use any of
        # them
        name = backend or (min(frameworks) if len(frameworks) == 1 else None)
        # a line that several tabs share must be right in each tab, so it names no framework
        name = None if _is_shared_line(source, line, module.tab) else name
        lines = _lines_to_insert(module, sites_of_module, name)
        if not lines:
            continue
        start = source.offset(line, col)
        # the statement is not the first on its line, as in `import a; import torch`
        if col:
            # an edit with equal offsets is an insertion
            edits.add(Edit(start, rank=0, end=start, text="; ".join([*lines, ""])))
            continue
        # the import must come before a site that begins at the same position. The rank of a
        # site is its negative end, and no site ends after the end of the text
        before_all_sites = -len(source.text)
        text = (source.newline * 2).join(lines) + source.newline
        edits.add(Edit(start, rank=before_all_sites, end=start, text=text))
    return edits


def _lines_to_insert(module: PythonModule, sites: list[Site], backend: str | None) -> list[str]:
    """Returns the lines to insert. xdevice or torch is imported if the new text of the sites
    uses it, and the module does not import it already. `set_backend(backend)` follows the
    import of xdevice, unless `backend` is None."""
    written = "".join(edit.text for site in sites for edit in site.edits)
    lines = []
    # if a program imports xdevice already, it is assumed to select its backend itself
    if "xdevice." in written and not _has_import(module.tree, "xdevice"):
        # without this line, `set_backend` would enable NumPy's semantics, which the program does not use
        if backend == "mxnet" and not _enables_numpy_semantics(module.tree):
            lines += ["import os", _KEEP_MX_ND]
        lines.append("import xdevice")
        if backend is not None:
            lines.append(f'xdevice.set_backend("{backend}")')
    if any(not _is_torch_imported(module, site.line) for site in sites if _writes_torch(site)):
        lines.append("import torch")
    return lines


def _writes_torch(site: Site) -> bool:
    """Whether the new text of a site uses the name `torch`."""
    return any(re.search(r"\btorch\.", edit.text) for edit in site.edits)


def _is_torch_imported(module: PythonModule, line: int) -> bool:
    """Whether an import makes the name `torch` known in a line: an import at the top level, or in a function or an `if`
    around the line. If a program imports PyTorch only where it needs it, it may run without it elsewhere, so an import
    at the top would break it."""
    for node in module.nodes:
        if not isinstance(node, ast.Import) or not any(
            alias.name.split(".")[0] == "torch" and not alias.asname for alias in node.names
        ):
            continue
        block = module.parents[node]
        # `try: import torch`; where this import fails, there is no tensor to work with
        while isinstance(block, ast.Try):
            block = module.parents[block]
        if isinstance(block, ast.Module):
            return True
        # a name in the body of a class is not known in its methods
        if not isinstance(block, ast.ClassDef) and _covers(block, line):
            return True
    return False


def _covers(node: ast.AST, line: int) -> bool:
    """Whether a line is one of the lines of a node."""
    first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", line)
    return bool(first <= line <= last)


_CUDA_MODULE: Final = re.compile(r"torch\.cuda(\.|$)")


def unused_import_edits(module: PythonModule, edits: set[Edit]) -> set[Edit]:
    """Returns the edits that remove imports from `torch.cuda` if `edits` rewrite all uses of
    the imported names. The result is empty for the `__init__.py` of a package."""
    # other modules may import these names from the `__init__.py` of a package
    if module.source.path.endswith("__init__.py"):
        return set()
    nodes, parents = module.nodes, module.parents
    removed = set()
    for node in nodes:
        if (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and _CUDA_MODULE.match(node.module or "")
        ):
            # perhaps only some of the imported names have lost their uses
            gone = {
                alias
                for alias in node.names
                if _is_unused(module, alias.asname or alias.name, edits)
            }
            if gone:
                removed.add(_removal_edit(module, node, gone, parents))
    return removed


def _is_unused(module: PythonModule, name: str, edits: set[Edit]) -> bool:
    """Whether the edits make an imported name unused: it has uses, the edits replace all of them, and no string is
    equal to the name.
    """
    nodes = module.nodes
    uses = [
        module.span(node) for node in nodes if isinstance(node, ast.Name) and node.id == name
    ]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    is_rewritten = all(
        any(edit.start <= start and end <= edit.end for edit in edits) for start, end in uses
    )
    # an import that was unused before exists for another reason, and a string that is equal to
    # the name may be in `__all__`
    return bool(uses) and is_rewritten and name not in texts


def _removal_edit(
    module: PythonModule,
    node: ast.ImportFrom,
    gone: set[ast.alias],
    parents: dict[ast.AST, ast.AST],
) -> Edit:
    """Returns the edit that removes the names `gone` from an import. If no name is left, the
    edit removes the statement and its line. But if the statement shares its line with other
    code, or is the only statement of its block, it is replaced with `pass`."""
    start, end = module.span(node)
    text = module.source.text
    left = [alias for alias in node.names if alias not in gone]
    if left:
        new = ast.unparse(ast.ImportFrom(node.module, left, level=0))
        return Edit(start, rank=-end, end=end, text=new)
    # the beginning of the line, and the rest of the line if the rest is blank
    line_start = text.rfind(b"\n", 0, start) + 1
    blank_end = re.compile(rb"[ \t]*\r?\n").match(text, end)
    is_alone = len(getattr(parents.get(node), "body", ())) == 1
    if is_alone or blank_end is None or text[line_start:start].strip():
        return Edit(start, rank=-end, end=end, text="pass")
    return Edit(line_start, rank=-blank_end.end(), end=blank_end.end(), text="")


def _is_within(site: Site, module: PythonModule) -> bool:
    """Whether a site is in this module: in its file, and in its tab if the file has tabs."""
    return module.source.path == site.file and (not site.tabs or module.tab in site.tabs)


_KEEP_MX_ND: Final = 'os.environ.setdefault("XDEVICE_MXNET_NP", "0")'
"""A line for MXNet programs that use the arrays of `mx.nd`. Without this line,
`set_backend("mxnet")` enables NumPy's semantics."""


def _enables_numpy_semantics(tree: ast.Module) -> bool:
    """Whether an MXNet program enables NumPy's semantics, either with `set_np`, or by importing
    d2l, which calls `set_np`."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Attribute(attr="set_np")
                | ast.Name(id="set_np")
                | ast.ImportFrom(module="d2l")
            ):
                return True
    return False


def _has_import(tree: ast.Module, package: str) -> bool:
    """Whether a module imports a package under its own name at its top level. An import inside
    a function or `try` is ignored, because other code may run without it."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            packages = [alias.name.split(".")[0] for alias in node.names if not alias.asname]
            if package in packages:
                return True
    return False


def _statement_below_import(module: PythonModule, first_use: int) -> ast.stmt | None:
    """Returns the statement below the inserted import. This is the first import of a framework. If a site is above that
    import, returns the first statement after the docstring and the imports from `__future__`. Returns None if the
    module has no such statement.

    `first_use` is the line of the first site.
    """
    has_docstring = ast.get_docstring(module.tree, clean=False) is not None
    # no other statement may come before the docstring and the imports from `__future__`. A docstring is the first
    # statement, and `has_docstring` counts as 0 or 1
    plain = [node for node in module.tree.body[has_docstring:] if not _is_from_future(node)]
    for node in plain:
        if node.lineno <= first_use and any(map(framework_of, imported_names(node, module))):
            return node
    return plain[0] if plain else None


def _is_from_future(node: ast.stmt) -> bool:
    """Whether a statement is an import from `__future__`."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_shared_line(source: Source, line: int, tab: str | None) -> bool:
    """Whether `tab` shares a line of a page of d2l with other tabs. False in other files, for which
    `tab` is None."""
    # the last cell that begins at or before the line
    cell = next((cell for cell in reversed(source.cells or ()) if cell.line <= line), None)
    return tab is not None and cell is not None and (cell.tabs or source.default_tabs) != (tab,)
