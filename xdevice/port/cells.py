"""Where modules and functions put what they hand to each other, and which of them have to be interpreted again."""

from __future__ import annotations

import ast
from collections import deque
from typing import TYPE_CHECKING, Any

from .project import Class, Function, Project, Unit
from .values import NOTHING, Value, kind, union

if TYPE_CHECKING:
    from collections.abc import Sequence

Env = dict[str, Value]


class Frame:
    """One interpretation of a module or a function."""

    def __init__(self, unit: Unit, function: Function | None) -> None:
        self.unit = unit
        self.function = function
        self.owner: Class | None = None  # the class whose body is being read
        self.has_gpu = False  # whether a test has shown that there is a GPU
        self.loops: list[list[Env]] = []  # for each loop around: what is known at its `break`s and `continue`s


class Cells:
    """The cells of a project, and the modules and functions that have read them. The classes derived from it
    interpret: `Names`, `Calls`, `Expressions` and, with the statements, `Inference`."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.functions: dict[ast.AST, Function] = {}
        self.classes: dict[ast.AST, Class] = {}
        self.by_name: dict[str, list[Function]] = {}
        self._cells: dict[Any, Value] = {}
        self._readers: dict[Any, set[Unit | Function]] = {}
        self._queue: deque[Unit | Function] = deque()
        self._queued: set[Unit | Function] = set()
        self._families: dict[Class, Class] = {}
        self._attributes: dict[Class, set[str]] = {}
        self._now: Any = None  # the module or function that is interpreted
        self._ends: dict[ast.AST, Env] = {}  # for each loop: what was known at its end
        self.imports: dict[Unit, set[Unit]] = {}  # for each module, those that it imports and those that import it

    def get(self, key: Any) -> Value:
        readers = self._readers.get(key)
        if readers is None:
            readers = self._readers[key] = set()
            self._note_attribute(key)
        readers.add(self._now)
        return self._cells.get(key, NOTHING)

    def put(self, key: Any, value: Value) -> None:
        old = self._cells.get(key)
        if old is None:
            old = self._cells[key] = NOTHING
            self._note_attribute(key)
        new = old if value <= old else union(old, value)
        if new != old:
            self._cells[key] = new
            for reader in self._readers.get(key, ()):
                self._schedule(reader)

    def _note_attribute(self, key: Any) -> None:
        if key[0] == "attr" and key[1] is not None:
            self._attributes.setdefault(key[1], set()).add(key[2])

    def _schedule(self, item: Unit | Function) -> None:
        if item not in self._queued:
            self._queued.add(item)
            self._queue.append(item)

    def _drain(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            self._queued.discard(item)
            self._now = item
            self._interpret(item)
        self._now = None

    def family(self, cls: Class) -> Class:
        while cls in self._families:
            cls = self._families[cls]
        return cls

    def _unite(self, one: Class, other: Class) -> None:
        one, other = self.family(one), self.family(other)
        if one is other:
            return
        self._families[one] = other
        for name in self._attributes.pop(one, set()):
            self.put(("attr", other, name), self._cells.get(("attr", one, name), NOTHING))
            self._attributes.setdefault(other, set()).add(name)
            for reader in self._readers.get(("attr", one, name), ()):
                self._schedule(reader)

    def full(self, node: ast.AST) -> str:
        """The full name of what an expression names ("torch.cuda.is_available"), or nothing."""
        means: Value = getattr(node, "means", NOTHING)
        if isinstance(node, ast.Attribute):
            owner: Value = getattr(node.value, "means", NOTHING)
            if len(owner) == 1:
                (atom,) = owner
                if kind(atom) == "project":
                    return f"{atom[1].full}.{node.attr}"
        if len(means) != 1:
            return ""
        (atom,) = means
        if kind(atom) == "ext":
            return str(atom[1])
        if kind(atom) == "function" and atom[1].outer is None and atom[1].owner is None and isinstance(node, ast.Name):
            return f"{atom[1].module.full}.{atom[1].name}"
        return ""

    def _interpret(self, item: Unit | Function) -> None:
        raise NotImplementedError

    def expr(self, node: ast.expr, env: Env, frame: Frame) -> Value:
        raise NotImplementedError

    def block(self, body: Sequence[ast.stmt], env: Env | None, frame: Frame) -> Env | None:
        raise NotImplementedError

    def iterate(self, value: Value, node: ast.AST) -> Value:
        raise NotImplementedError
