"""The modules that are examined together: which module an import means, and which functions and classes there are."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from .knowledge import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sources import Module

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False)
class Function:
    """A function of the project, or a lambda."""

    node: Any
    module: Unit
    name: str
    owner: Class | None = None
    outer: Function | None = None
    is_method: bool = False  # called on an object, which is its first argument
    is_property: bool = False
    has_callers: bool = False
    is_open: bool = False  # code outside of the project may call it with anything

    def __post_init__(self) -> None:
        a = self.node.args
        self.positional = [arg.arg for arg in [*a.posonlyargs, *a.args]]
        self.keywords = [arg.arg for arg in a.kwonlyargs]
        self.args = [*a.posonlyargs, *a.args, *a.kwonlyargs]
        self.assigned = _collect_assigned(self.node)
        self.globals = {name for node in self.assigned.nodes if isinstance(node, ast.Global) for name in node.names}

    @property
    def locals(self) -> set[str]:
        return self.assigned.names - self.globals


@dataclass(eq=False)
class Class:
    """A class of the project. `family` is shared by all classes that inherit from each other."""

    node: ast.ClassDef
    module: Unit
    name: str
    bases: frozenset[Any] = frozenset()
    methods: dict[str, Function] = field(default_factory=dict)
    heirs: set[Class] = field(default_factory=set, repr=False)
    _lineage: list[Class] | None = field(default=None, repr=False)

    def inherit(self, bases: frozenset[Any]) -> None:
        """Sets the bases, which become known little by little."""
        self.bases = bases
        for atom in bases:
            if type(atom) is tuple and atom[0] == "class":
                atom[1].heirs.add(self)
        self._forget()

    def _forget(self) -> None:
        waiting: list[Class] = [self]
        seen: set[Class] = set()
        for cls in waiting:
            cls._lineage = None
            seen.add(cls)
            waiting += cls.heirs - seen

    def lineage(self) -> list[Class]:
        """The class and its bases within the project, nearest first."""
        if self._lineage is None:
            self._lineage = self._line(())
        return self._lineage

    def _line(self, seen: tuple[Class, ...]) -> list[Class]:
        line: list[Class] = [self]
        for atom in self.bases:
            if type(atom) is tuple and atom[0] == "class" and atom[1] not in (*seen, self):
                line += [c for c in atom[1]._line((*seen, self)) if c not in line]
        return line

    def foreign(self) -> set[str]:
        """The bases that are not of the project, by their full names; "?" for one that is not known."""
        atoms = {atom for c in self.lineage() for atom in c.bases}
        return {atom[1] if atom[0] == "ext" else "?" for atom in atoms if atom == "?" or atom[0] != "class"}

    def method(self, name: str, first: int = 0) -> Function | None:
        """The method of this name; with `first` 1 that of a base."""
        for cls in self.lineage()[first:]:
            if name in cls.methods:
                return cls.methods[name]
        return None


@dataclass(eq=False)
class Unit:
    """A module with what the project knows of it."""

    module: Module
    full: str  # its name with those of the packages around it: "d2l.torch"
    path: PurePosixPath

    def __post_init__(self) -> None:
        self.nodes, self.parents = self.module.walked  # now, because inference adds to the nodes

    @property
    def tree(self) -> ast.Module:
        return self.module.tree

    @property
    def tab(self) -> str | None:
        return self.module.tab


class _Assigned(ast.NodeVisitor):
    """The names that a function binds, and its statements about scopes."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.nodes: list[ast.AST] = []
        self.has_yield = False

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.names.add(node.id)

    def visit_FunctionDef(self, node: Any) -> None:
        self.names.add(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def visit_Import(self, node: Any) -> None:
        self.names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.names.add(node.name)
        self.generic_visit(node)

    def visit_Global(self, node: Any) -> None:
        self.nodes.append(node)

    visit_Nonlocal = visit_Global  # noqa: N815

    def visit_Yield(self, node: Any) -> None:
        self.has_yield = True
        self.generic_visit(node)

    visit_YieldFrom = visit_Yield  # noqa: N815


def _collect_assigned(node: Any) -> _Assigned:
    found = _Assigned()
    for statement in node.body if isinstance(node.body, list) else [node.body]:
        found.visit(statement)
    args = node.args
    found.names |= {arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]}
    found.names |= {arg.arg for arg in (args.vararg, args.kwarg) if arg}
    return found


class Project:
    """The modules that are examined together, by which imports are resolved."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.units: list[Unit] = []
        modules = list(modules)
        paths = {PurePosixPath(module.source.path) for module in modules}
        packages = {path.parent for path in paths if path.name == "__init__.py"}
        self.by_tail: dict[str, list[Unit]] = {}
        for module in modules:
            path = PurePosixPath(module.source.path)
            unit = Unit(module, _full_name(path, packages), path)
            self.units.append(unit)
            if path.suffix == ".py":
                self.by_tail.setdefault(unit.full.split(".")[-1], []).append(unit)

    def find(self, name: str, asker: Unit) -> Unit | None:
        """The module that `import name` means in the module `asker`: one beside it, else one with that full name, else
        the only one whose path ends so."""
        tail = name.split(".")
        if tail[0] in FRAMEWORKS:
            return None
        fitting = [unit for unit in self.by_tail.get(tail[-1], ()) if _ends_so(unit, tail)]
        beside = [unit for unit in fitting if _folder(unit, len(tail)) == asker.path.parent]
        exact = [unit for unit in fitting if unit.full == name]
        for choice in (beside, exact, fitting):
            if choice:
                return choice[0] if len(choice) == 1 else None
        return None

    def relative(self, node: ast.ImportFrom, asker: Unit) -> str:
        """The full name of what `from ..x import` means."""
        if not node.level:
            return node.module or ""
        is_package = asker.path.name == "__init__.py"
        parts = asker.full.split(".")
        kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
        return ".".join([*kept, *([node.module] if node.module else [])])


def _full_name(path: PurePosixPath, packages: set[PurePosixPath]) -> str:
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while folder in packages and folder.name:  # the root of the call may be a package too, of a name not known here
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _ends_so(unit: Unit, tail: list[str]) -> bool:
    path = unit.path
    parts = path.parent.parts if path.name == "__init__.py" else (*path.parent.parts, path.stem)
    return list(parts[-len(tail) :]) == tail


def _folder(unit: Unit, count: int) -> PurePosixPath:
    path = unit.path.parent if unit.path.name == "__init__.py" else unit.path
    for _ in range(count):
        path = path.parent
    return path
