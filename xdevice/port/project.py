"""The modules that are examined together: which module an import means, and which functions and classes there are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from .knowledge import FRAMEWORKS, framework_of
from .sources import PythonModule
from .values import NOTHING, Value

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
"""The nodes that have parameters and local names."""


@dataclass(eq=False)
class Function:
    """A function of the project, or a lambda."""

    node: Any
    module: PythonModule
    name: str
    owner: Class | None = None
    outer: Function | None = None
    is_method: bool = False  # called on an object, which is its first argument
    is_property: bool = False
    has_callers: bool = False
    is_open: bool = False  # code outside the project may call it with anything
    has_yield: bool = False

    def __post_init__(self) -> None:
        parameters = self.node.args
        self.args = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]
        self.positional = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args)]
        self.keywords = [arg.arg for arg in parameters.kwonlyargs]
        self.globals: set[str] = set()
        self.locals = {
            arg.arg for arg in (*self.args, parameters.vararg, parameters.kwarg) if arg
        }
        body = self.node.body
        for node in _nodes_of_scope(body if isinstance(body, list) else [body]):
            if isinstance(node, ast.Global):
                self.globals.update(node.names)
            self.has_yield |= isinstance(node, ast.Yield | ast.YieldFrom)
            self.locals.update(_names_bound_by(node))
        self.locals -= self.globals

    @property
    def is_global(self) -> bool:
        return self.outer is None and self.owner is None

    @property
    def receiver(self) -> str | None:
        """The parameter that is the object on which a method is called."""
        return self.positional[0] if self.is_method and self.positional else None


def _nodes_of_scope(body: list[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a function, without those of the functions and classes inside it."""
    waiting = list(body)
    for node in waiting:  # which grows meanwhile
        yield node
        if not isinstance(node, (*SCOPES, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def _names_bound_by(node: ast.AST) -> Iterable[str]:
    """The names that a node binds in its scope, without those of nodes inside it."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case (
            ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
        ):
            return [name]
        case ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [(alias.asname or alias.name).split(".")[0] for alias in aliases]
    return []


@dataclass(eq=False)
class Class:
    """A class of the project."""

    node: ast.ClassDef
    module: PythonModule
    name: str
    outer: Class | None = None
    bases: Value = NOTHING
    methods: dict[str, Function] = field(default_factory=dict)
    inner: dict[str, Class] = field(default_factory=dict)
    united_with: Class | None = None
    foreign_bases: frozenset[str] = frozenset()
    """The bases that are not of the project, by their full names; "?" for one that is not known."""

    def __post_init__(self) -> None:
        # asked for at every call of a method, so that both are kept until the bases change
        self.lineage: tuple[Class, ...] = (self,)
        self._heirs: set[Class] = set()

    def family(self) -> Class:
        """One class for all that inherit from each other: the same for each of them."""
        cls = self
        while cls.united_with is not None:
            cls = cls.united_with
        return cls

    def inherit(self, bases: Value) -> None:
        """Sets the bases, of which there may be more than before."""
        self.bases = bases
        for atom in bases:
            if atom.kind == "class":
                atom.subject._heirs.add(self)
        waiting: list[Class] = [self]
        while waiting:
            cls = waiting.pop()
            if cls._changes_with_bases():
                waiting.extend(cls._heirs)

    def _changes_with_bases(self) -> bool:
        """Finds the lineage and the bases outside the project again; returns whether they differ from before."""
        before = self.lineage, self.foreign_bases
        self.lineage = tuple(self._find_lineage())
        atoms = {atom for cls in self.lineage for atom in cls.bases if atom.kind != "class"}
        self.foreign_bases = frozenset(
            atom.subject if atom.kind == "foreign" else "?" for atom in atoms
        )
        return before != (self.lineage, self.foreign_bases)

    def _find_lineage(self) -> dict[Class, None]:
        """The class and its bases within the project, nearest first."""
        classes: dict[Class, None] = {}
        waiting: list[Class] = [self]
        while waiting:
            cls = waiting.pop()
            if cls not in classes:
                classes[cls] = None
                waiting += reversed(
                    [atom.subject for atom in cls.bases if atom.kind == "class"]
                )
        return classes

    def method(self, name: str, is_super: bool = False) -> Function | None:
        """The method of this name; with `is_super` that of a base."""
        for cls in self.lineage[is_super:]:
            if name in cls.methods:
                return cls.methods[name]
        return None

    def inner_class(self, name: str, is_super: bool = False) -> Class | None:
        """The class of this name in the body of the class, or else of a base."""
        return next(
            (cls.inner[name] for cls in self.lineage[is_super:] if name in cls.inner), None
        )


class Project:
    """The modules that are examined together, by which imports are resolved."""

    def __init__(self, modules: Iterable[PythonModule]) -> None:
        self.modules = list(modules)
        packages = {
            module.path.parent for module in self.modules if module.path.name == "__init__.py"
        }
        self._by_last_name: dict[str, list[PythonModule]] = {}
        for module in self.modules:
            module.name = _full_name(module.path, packages)
            if module.path.suffix == ".py":
                self._by_last_name.setdefault(module.name.split(".")[-1], []).append(module)

    def find(self, name: str, asker: PythonModule) -> PythonModule | None:
        """The module that `import name` means in the module `asker`: one in the same folder, else one with that full
        name, else the only one whose path ends with that name."""
        parts = tuple(name.split("."))
        # a folder torch/ of the project, as d2l has one, is not what `import torch` means
        if parts[0] in FRAMEWORKS:
            return None
        namesakes = self._by_last_name.get(parts[-1], ())
        fitting = [module for module in namesakes if _location(module)[-len(parts) :] == parts]
        location = (*asker.path.parent.parts, *parts)
        # scripts are run from their own folder, which comes first in Python's path
        beside = [module for module in fitting if _location(module) == location]
        exact = [module for module in fitting if module.name == name]
        choice = beside or exact or fitting
        return choice[0] if len(choice) == 1 else None


def origin_of(node: ast.ImportFrom, asker: PythonModule) -> str:
    """The full name of the module that `from ..x import` means."""
    if not node.level:
        return node.module or ""
    parts = asker.name.split(".")
    # one dot in a package's __init__.py is the package itself
    above = node.level - (asker.path.name == "__init__.py")
    parts = parts[: len(parts) - above]
    if node.module:
        parts.append(node.module)
    return ".".join(parts)


def imported_names(node: ast.AST, module: PythonModule) -> list[str]:
    """The full names that an import may load; none for any other node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        origin = origin_of(node, module)
        return [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return []


def frameworks_of(module: PythonModule) -> set[str]:
    """The frameworks that a module imports, anywhere in it."""
    names = {name for node in module.walked[0] for name in imported_names(node, module)}
    return {framework for framework in map(framework_of, names) if framework is not None}


def _full_name(path: PurePosixPath, packages: set[PurePosixPath]) -> str:
    """The name by which a project imports the module at a path."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    # paths are relative to the root folder; even if that is a package, its name is in no path
    while folder in packages and folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _location(module: PythonModule) -> tuple[str, ...]:
    """The parts of a module's path, without a suffix."""
    path = module.path
    return path.parent.parts if path.name == "__init__.py" else (*path.parent.parts, path.stem)
