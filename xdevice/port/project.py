"""The modules that are examined together, and the functions and classes in these modules. Imports are resolved to the
modules."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from .knowledge import FRAMEWORKS, framework_of
from .sources import PythonModule
from .values import Value

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
"""The classes of nodes that have parameters and local names."""


@dataclass(eq=False)
class Function:
    """A function of the project, or a lambda.

    `node` is the definition, `owner` is the class of a method, and `outer` is the function around an inner function;
    `owner` and `outer` are None for other functions. `args` are all parameters except `*args` and `**kwargs`.
    `positional` are the names of the parameters that can be passed by position, and `keywords` are the names of the
    keyword-only parameters. `locals` are the names that the function binds, including its parameters, and `globals` are
    the names that it declares as global.
    """

    node: Any
    module: PythonModule
    name: str
    owner: Class | None = None
    outer: Function | None = None
    is_method: bool = False  # is called on an object, which becomes the first argument
    is_property: bool = False
    has_callers: bool = False  # code in the project calls it, or may call it
    has_unknown_callers: bool = False  # code outside the project may call it with any arguments
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
        # the body of a lambda is one expression
        body = self.node.body
        for node in _nodes_of_scope(body if isinstance(body, list) else [body]):
            if isinstance(node, ast.Global):
                self.globals.update(node.names)
            self.has_yield |= isinstance(node, ast.Yield | ast.YieldFrom)
            self.locals.update(_names_bound_by(node))
        self.locals -= self.globals

    @property
    def is_global(self) -> bool:
        """Whether the function is at the top level of its module."""
        return self.outer is None and self.owner is None

    @property
    def receiver(self) -> str | None:
        """The name of the parameter that receives the object (usually `self`) or the class (usually `cls`). None for
        functions and static methods, and for methods that receive the object through `*args`.
        """
        return self.positional[0] if self.is_method and self.positional else None


def _nodes_of_scope(body: list[ast.AST]) -> Iterator[ast.AST]:
    """Yields the nodes of a function's body. For a function or class that is defined in the
    body, the definition is included, but not the nodes inside it."""
    waiting = list(body)
    for node in waiting:  # the list grows during the loop
        yield node
        if not isinstance(node, (*SCOPES, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def _names_bound_by(node: ast.AST) -> Iterable[str]:
    """Returns the names that a node itself binds in its scope. Names that its child nodes bind
    are left out."""
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
            # `import a.b` binds `a`
            return [(alias.asname or alias.name).split(".")[0] for alias in aliases]
    return []


@dataclass(eq=False)
class Class:
    """A class of the project.

    `outer` is the class around an inner class, else None. `bases` are the values of its bases, in the order of the
    class statement. `methods` and `inner` map names to the functions and classes in its body. `lineage` contains the
    class itself and its bases in the project, in the order in which Python looks for a method. `united_with` is another
    class of the same family. Following it from class to class leads to the class that stands for the family; there, it
    is None (see `family`).
    """

    node: ast.ClassDef
    module: PythonModule
    name: str
    outer: Class | None = None
    bases: Sequence[Value] = ()
    methods: dict[str, Function] = field(default_factory=dict)
    inner: dict[str, Class] = field(default_factory=dict)
    united_with: Class | None = None
    foreign_bases: frozenset[str] = frozenset()
    """The full names of all direct and indirect bases outside the project; "?" stands for an
    unknown base."""

    def __post_init__(self) -> None:
        # stored until the bases change, because each method call reads the lineage
        self.lineage: tuple[Class, ...] = (self,)
        # the direct subclasses, whose lineages change with the bases of this class
        self._subclasses: set[Class] = set()

    def family(self) -> Class:
        """Returns the class that stands for the family of this class. A family consists of all classes that are related
        by inheritance; the result is the same for each class of a family.
        """
        cls = self
        while cls.united_with is not None:
            cls = cls.united_with
        return cls

    def set_bases(self, bases: Sequence[Value]) -> None:
        """Sets the bases, and updates the lineages of this class and its subclasses. This
        method is called again when more is known about the bases."""
        self.bases = bases
        for base in self.direct_bases():
            base._subclasses.add(self)
        # subclasses are updated only if the lineage has changed: otherwise, this loop would not
        # end for classes that inherit in a circle
        waiting: list[Class] = [self]
        while waiting:
            cls = waiting.pop()
            if cls._update_lineage():
                waiting.extend(cls._subclasses)

    def _update_lineage(self) -> bool:
        """Recomputes `lineage` and `foreign_bases`, and returns whether one of them has
        changed."""
        before = self.lineage, self.foreign_bases
        # no lineage of an earlier call is passed, because the bases of any class may have changed since then
        self.lineage = tuple(self._find_lineage(lineages={}))
        self.foreign_bases = frozenset(
            atom.subject if atom.kind == "foreign" else "?"
            for cls in self.lineage
            for base in cls.bases
            for atom in base
            if atom.kind != "class"
        )
        return before != (self.lineage, self.foreign_bases)

    def direct_bases(self) -> list[Class]:
        """Returns the bases in the project, in the order of the class statement."""
        return [base for value in self.bases for base in classes_in(value)]

    def _find_lineage(self, lineages: dict[Class, list[Class]]) -> list[Class]:
        """Returns the lineage of this class. `lineages` contains the lineages of the classes
        that have already been visited; new lineages are added."""
        if self not in lineages:
            # stored before the bases are visited, because a base may lead back to this class
            lineage = lineages[self] = [self]
            bases = self.direct_bases()
            rows = [*[base._find_lineage(lineages) for base in bases], bases]
            # Python's own algorithm (C3): the next class is the first class of a row that comes
            # after no other class in any row
            while True:
                # the rows without the classes that are already in the lineage, and without rows that are now empty
                rows = [[cls for cls in row if cls not in lineage] for row in rows]
                rows = [row for row in rows if row]
                if not rows:
                    break
                behind = [cls for row in rows for cls in row[1:]]
                heads = [row[0] for row in rows]
                # if there is no such class, Python raises an error; but here the bases are only
                # possible bases, so the first row decides
                lineage.append(next((cls for cls in heads if cls not in behind), heads[0]))
        return lineages[self]

    def method(self, name: str, is_super: bool = False) -> Function | None:
        """Returns the method of this name in the class or, if the class has none, in the
        nearest base. If `is_super`, only the bases are searched. Returns None if there is no
        such method."""
        # the lineage begins with the class itself, and `is_super` counts as 0 or 1
        for cls in self.lineage[is_super:]:
            if name in cls.methods:
                return cls.methods[name]
        return None

    def inner_class(self, name: str, is_super: bool = False) -> Class | None:
        """Returns the inner class of this name in the body of the class or, if there is none,
        of the nearest base. If `is_super`, only the bases are searched. Returns None if there
        is no such class."""
        # as in `method`
        return next(
            (cls.inner[name] for cls in self.lineage[is_super:] if name in cls.inner), None
        )


def classes_in(value: Value) -> list[Class]:
    """Returns the classes of the project that a value may be. They are sorted by file and line, so
    their order is the same in each run."""
    return sorted(
        [atom.subject for atom in value if atom.kind == "class"],
        key=lambda cls: (cls.module.source.path, cls.node.lineno),
    )


class Project:
    """The modules that are examined together. Imports are resolved to these modules."""

    def __init__(self, modules: Iterable[PythonModule]) -> None:
        self.modules = list(modules)
        packages = {
            module.path.parent for module in self.modules if module.path.name == "__init__.py"
        }
        # the keys are the last parts of the names, because imports may leave out some of the packages that contain the
        # module
        self._by_last_name: dict[str, list[PythonModule]] = {}
        for module in self.modules:
            module.name = _full_name(module.path, packages)
            # notebooks and pages cannot be imported
            if module.path.suffix == ".py":
                self._by_last_name.setdefault(module.name.split(".")[-1], []).append(module)

    def find_module(self, name: str, importer: PythonModule) -> PythonModule | None:
        """Returns the module to which `import name` refers in the module `importer`. This is a
        module in the same folder, else a module with that full name, else the only module with a
        path that ends with that name. Returns None for a framework or a module outside the project,
        or if several modules match."""
        parts = tuple(name.split("."))
        # `import torch` means the framework, even if the project has a folder torch/
        if parts[0] in FRAMEWORKS:
            return None
        namesakes = self._by_last_name.get(parts[-1], ())
        fitting = [module for module in namesakes if _location(module)[-len(parts) :] == parts]
        location = (*importer.path.parent.parts, *parts)
        # a module in the importer's own folder comes first, because Python first looks for modules in the folder of the
        # script
        beside = [module for module in fitting if _location(module) == location]
        exact = [module for module in fitting if module.name == name]
        choice = beside or exact or fitting
        return choice[0] if len(choice) == 1 else None


def absolute_module_name(node: ast.ImportFrom, importer: PythonModule) -> str:
    """Returns the full name of the module from which a `from` import takes names, such as `x` in `from ..x import y`.
    The import is in the module `importer`. Returns "" if the names come from the root folder.
    """
    if not node.level:
        return node.module or ""
    parts = importer.name.split(".")
    # each dot leads one level up from the module. In the __init__.py of a package, whose name is that of the package,
    # one dot means the package itself
    above = node.level - (importer.path.name == "__init__.py")
    parts = parts[: len(parts) - above]
    if node.module:
        parts.append(node.module)
    return ".".join(parts)


def imported_names(node: ast.AST, module: PythonModule) -> list[str]:
    """Returns the full names of the modules that an import in `module` may load. For a `from`
    import, the imported names are included, because they may be modules, too. Returns an empty
    list if the node is not an import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        origin = absolute_module_name(node, module)
        return [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return []


def frameworks_of(module: PythonModule) -> set[str]:
    """Returns the names of the frameworks that a module imports anywhere in its code, such as
    {"torch"}."""
    names = {name for node in module.nodes for name in imported_names(node, module)}
    return {framework for framework in map(framework_of, names) if framework is not None}


def _full_name(path: PurePosixPath, packages: set[PurePosixPath]) -> str:
    """Returns the full name of the module at a path, which begins with all packages that
    contain the module. `packages` are the folders that contain an `__init__.py`."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    # paths are relative to the root folder, so they do not contain its name
    while folder in packages and folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _location(module: PythonModule) -> tuple[str, ...]:
    """Returns the parts of a module's path without the suffix. For an `__init__.py`, returns
    the parts of its folder."""
    path = module.path
    return path.parent.parts if path.name == "__init__.py" else (*path.parent.parts, path.stem)
