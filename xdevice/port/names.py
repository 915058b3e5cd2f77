"""What names and attributes mean: those of imports, functions and classes, and those that are assigned."""

from __future__ import annotations

import ast
import builtins
from typing import Any, Final

from . import knowledge
from .cells import Cells, Env, Frame
from .project import Class, Function, Unit
from .values import ANYTHING, BOOL, FLOAT, INT, NONE, NOTHING, STR, TENSOR, UNKNOWN, Atom, Value, kind, of, union

_ANNOTATIONS: Final = {
    "torch.device": of(("device", "torch", None)), "torch.Tensor": TENSOR, "torch.LongTensor": TENSOR,
    "paddle.Tensor": TENSOR, "tensorflow.Tensor": TENSOR, "jax.Array": TENSOR,
    "torch.nn.Module": of(("module", "torch.nn.Module")), "paddle.nn.Layer": of(("module", "paddle.nn.Layer")),
    "torch.FloatTensor": TENSOR,
    "torch.optim.Optimizer": of("optimizer"),
}  # fmt: skip
_PLAIN: Final = {"int": INT, "float": FLOAT, "bool": BOOL, "str": STR, "None": NONE}
_TRANSPARENT: Final = {
    "staticmethod", "classmethod", "property", "torch.no_grad", "torch.inference_mode", "functools.wraps",
    "functools.lru_cache", "functools.cache", "torch.compile", "tensorflow.function", "jax.jit", "jax.checkpoint",
    "torch.enable_grad", "torch.jit.script", "paddle.no_grad", "torch.jit.export", "functools.cached_property",
    "torch.utils.data.functional_datapipe", "abc.abstractmethod", "functools.partial", "paddle.jit.to_static",
    "torch.jit.ignore", "override", "typing.override",
}  # fmt: skip
_BUILTINS: Final = {name: of(("ext", f"builtins.{name}")) for name in dir(builtins)}


class Names(Cells):
    """Binds names and attributes, and looks them up."""

    def _annotation(self, node: ast.expr | None, unit: Unit) -> Value | None:
        """The values that an annotation allows; None if it names something that is not known."""
        if node is None:
            return None
        if isinstance(node, ast.Constant) and node.value is None:
            return NONE
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return _PLAIN.get(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            left, right = self._annotation(node.left, unit), self._annotation(node.right, unit)
            return union(left, right) if left and right else None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Optional"):
            inner = self._annotation(node.slice, unit)
            return union(inner, NONE) if inner else None
        if isinstance(node, ast.Name) and node.id in _PLAIN:
            return _PLAIN[node.id]
        return _ANNOTATIONS.get(self._static_name(node, unit))

    def _static_name(self, node: ast.expr, unit: Unit) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._static_name(node.value, unit)}.{node.attr}"
        if not isinstance(node, ast.Name):
            return ""
        atoms = self._cells.get((unit, node.id), NOTHING)
        return next((atom[1] for atom in atoms if kind(atom) == "ext"), node.id)

    def _import(self, node: ast.Import, env: Env, frame: Frame) -> Env:
        for alias in node.names:
            full = alias.name if alias.asname else alias.name.split(".")[0]
            self._module(alias.name, frame.unit)  # `import a.b` runs a.b, too
            self._bind_name(alias.asname or full, self._module(full, frame.unit), env, frame)
        return env

    def _module(self, full: str, asker: Unit) -> Value:
        found = self.project.find(full, asker) if full else None
        if found is not None and found is not asker:
            self._know(asker, found)
            return of(("project", found))
        return of(("ext", full))

    def _know(self, one: Unit, other: Unit | None) -> None:
        if other is None or other is one:
            return
        self.imports.setdefault(one, set()).add(other)
        self.imports.setdefault(other, set()).add(one)

    def _import_from(self, node: ast.ImportFrom, env: Env, frame: Frame) -> Env:
        full = self.project.relative(node, frame.unit)
        found = self.project.find(full, frame.unit) if full else None
        self._know(frame.unit, found)
        for alias in node.names:
            if alias.name == "*":
                if found is not None:
                    self.put((frame.unit, "*"), of(("project", found)))
                elif full:
                    self.put((frame.unit, "*"), of(("ext", full)))
                continue
            value = self._from(full, found, alias.name, frame.unit)
            self._bind_name(alias.asname or alias.name, value, env, frame)
        return env

    def _from(self, full: str, found: Unit | None, name: str, asker: Unit) -> Value:
        inner = self.project.find(f"{full}.{name}" if full else name, asker)
        self._know(asker, inner)
        if found is not None and found is not asker:
            value = self.get((found, name))
            if value or inner is None:
                return value
        if inner is not None:
            return of(("project", inner))
        return of(("ext", f"{full}.{name}"))

    def _function(self, node: Any, env: Env, frame: Frame) -> Env:
        function = self._made_function(node, frame, node.name)
        self._read_defaults(function, env, frame)
        value: Value = of(("function", function))
        for decorator in reversed(node.decorator_list):
            value = self._decorate(decorator, function, value, env, frame)
        if frame.owner is not None:
            frame.owner.methods[node.name] = function
            self.by_name.setdefault(node.name, [])
            if function not in self.by_name[node.name]:
                self.by_name[node.name].append(function)
            env[node.name] = value
            return env
        self._bind_name(node.name, value, env, frame)
        return env

    def _made_function(self, node: Any, frame: Frame, name: str) -> Function:
        function = self.functions.get(node)
        if function is None:
            owner = frame.owner
            function = Function(node, frame.unit, name, owner, frame.function)
            decorators = {ast.unparse(d).split("(")[0] for d in getattr(node, "decorator_list", ())}
            function.is_method = owner is not None and "staticmethod" not in decorators
            function.is_property = bool(decorators & {"property", "cached_property", "functools.cached_property"})
            self.functions[node] = function
            if function.is_method and function.positional:
                atom = ("class", owner) if "classmethod" in decorators else ("instance", owner)
                self.put((function, function.positional[0]), of(atom))
            if function.assigned.has_yield:
                self.put((function, "return"), of(("list", (function, "yield"))))
            self._schedule(function)
        return function

    def _read_defaults(self, function: Function, env: Env, frame: Frame) -> None:
        args = function.node.args
        positional = [*args.posonlyargs, *args.args]
        for arg, default in zip(reversed(positional), reversed(args.defaults), strict=False):
            self.put((function, arg.arg), self.expr(default, env, frame))
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            if default is not None:
                self.put((function, arg.arg), self.expr(default, env, frame))

    def _decorate(self, node: ast.expr, function: Function, value: Value, env: Env, frame: Frame) -> Value:
        self.expr(node, env, frame)
        called = node.func if isinstance(node, ast.Call) else node
        name = self.full(called) or ast.unparse(called)
        if name.endswith("add_to_class") and isinstance(node, ast.Call) and node.args:
            for atom in node.args[0].means:  # type: ignore[attr-defined]
                if kind(atom) == "class":
                    atom[1].methods.setdefault(function.name, function)
                    function.owner, function.is_method = atom[1], True
                    self.put((function, function.positional[0]), of(("instance", atom[1])))
            return value
        if name in _TRANSPARENT or name.endswith((".setter", ".getter", ".custom_fwd", ".register")):
            return value
        if name == "contextlib.contextmanager":
            return UNKNOWN | value
        self._escape(value)
        return UNKNOWN

    def _class(self, node: ast.ClassDef, env: Env, frame: Frame) -> Env:
        cls = self.classes.get(node)
        if cls is None:
            cls = self.classes[node] = Class(node, frame.unit, node.name)
        bases = union(NOTHING, *(self.expr(base, env, frame) for base in node.bases))
        for keyword in node.keywords:
            self.expr(keyword.value, env, frame)
        if bases != cls.bases:
            cls.inherit(bases)
            for atom in bases:
                if kind(atom) == "class":
                    self._unite(cls, atom[1])
        outer, frame.owner = frame.owner, cls
        inside = dict(env)
        self.block(node.body, inside, frame)
        frame.owner = outer
        for name, value in inside.items():
            if env.get(name) is not value:
                self.put(("attr", self.family(cls), name), value)
        for decorator in node.decorator_list:
            self.expr(decorator, env, frame)
        self._bind_name(node.name, of(("class", cls)), env, frame)
        return env

    def bind(self, target: ast.expr, value: Value, env: Env, frame: Frame) -> None:
        target.means = value  # type: ignore[attr-defined]
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value, env, frame)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(self.expr(target.value, env, frame), target.attr, value)
        elif isinstance(target, ast.Starred):
            self.put(("items", target), self.iterate(value, target))
            self.bind(target.value, of(("list", target)), env, frame)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, value, env, frame)
        elif isinstance(target, ast.Subscript):
            self.expr(target.slice, env, frame)
            self._add_to(self.expr(target.value, env, frame), value)

    def _unpack(self, target: ast.Tuple | ast.List, value: Value, env: Env, frame: Frame) -> None:
        count = len(target.elts)
        starred = any(isinstance(item, ast.Starred) for item in target.elts)
        parts: list[Value] = [NOTHING] * count
        for atom in value:
            if kind(atom) == "tuple" and len(atom[1]) == count and not starred:
                parts = [union(part, inner) for part, inner in zip(parts, atom[1], strict=True)]
            else:
                each = self.iterate(of(atom), target)
                parts = [union(part, each) for part in parts]
        for item, part in zip(target.elts, parts, strict=True):
            if isinstance(item, ast.Starred):
                item.means = part  # type: ignore[attr-defined]
                self.put(("items", item), part)
                self.bind(item.value, of(("list", item)), env, frame)
            else:
                self.bind(item, part, env, frame)

    def _bind_name(self, name: str, value: Value, env: Env, frame: Frame) -> None:
        if frame.function is not None and name in frame.function.globals:
            self.put((frame.unit, name), value)
            return
        env[name] = value
        if frame.owner is None:
            self.put((frame.unit, name) if frame.function is None else (frame.function, "local", name), value)

    def _bind_attribute(self, owner: Value, name: str, value: Value) -> None:
        for atom in owner:
            if kind(atom) in ("instance", "class"):
                self.put(("attr", self.family(atom[1]), name), value)
            elif kind(atom) == "namespace":
                self.put(("arg", atom[1], name), value)
            elif kind(atom) == "project":
                self.put((atom[1], name), value)
            elif atom == ANYTHING:
                self.put(("attr", None, name), value)

    def _add_to(self, container: Value, value: Value) -> None:
        for atom in container:
            if kind(atom) in ("list", "dict"):
                self.put(("items", atom[1]), value)

    def _escape(self, value: Value) -> None:
        """Marks functions that are handed to code outside of the project, which may call them with anything."""
        for atom in value:
            if kind(atom) in ("function", "bound"):
                atom[1].is_open = True
                atom[1].has_callers = True

    def _name(self, node: ast.Name, env: Env, frame: Frame) -> Value:
        if node.id in env:
            return env[node.id]
        function = frame.function
        if function is not None and node.id in function.locals:
            return NOTHING
        while function is not None:
            function = function.outer
            if function is not None and node.id in function.locals:
                return self.get((function, "local", node.id))
        found = self.get((frame.unit, node.id))
        if (frame.unit, node.id) in self._cells:
            return found  # nothing, if what the module binds the name to is not known yet
        if node.id in _BUILTINS:
            return _BUILTINS[node.id]
        star = self.get((frame.unit, "*"))
        for atom in star:
            if kind(atom) == "project":
                found = union(found, self.get((atom[1], node.id)))
        return found or UNKNOWN

    def _attribute(self, node: ast.Attribute, env: Env, frame: Frame) -> Value:
        owner = self.expr(node.value, env, frame)
        return union(NOTHING, *[self._attribute_of(atom, node.attr, node) for atom in owner])

    def _attribute_of(self, atom: Atom, name: str, node: ast.expr) -> Value:
        sort = kind(atom)
        if sort == "ext":
            return of(("ext", f"{atom[1]}.{name}"))
        if sort == "project":
            return self._of_module(atom[1], name)
        if sort in ("instance", "class", "super"):
            return self._of_class(atom, name)
        if sort == "namespace":
            return self.get(("arg", atom[1], name)) or UNKNOWN
        if sort == "tensor":
            if name == "shape":
                self.put(("items", node), INT)
                return of(("list", node))
            return knowledge.ATTRIBUTES.get(name, UNKNOWN)
        if sort == "device":
            if name == "native":
                return of(atom)
            return {"type": STR, "index": INT, "device_type": STR, "device_id": INT}.get(name, UNKNOWN)
        if sort == "made":
            return knowledge.OF_MADE.get((atom[1], name), UNKNOWN)
        return UNKNOWN

    def _of_module(self, unit: Unit, name: str) -> Value:
        found = self.get((unit, name))
        inner = self.project.find(f"{unit.full}.{name}", unit)
        if not found and inner is not None and inner is not unit:
            return of(("project", inner))
        if found:
            return found
        star = self.get((unit, "*"))
        return union(NOTHING, *(self.get((atom[1], name)) for atom in star if kind(atom) == "project"))

    def _of_class(self, atom: Atom, name: str) -> Value:
        cls: Class = atom[1]
        method = cls.method(name, 1 if kind(atom) == "super" else 0)
        held = self.get(("attr", self.family(cls), name))
        if method is not None:
            if kind(atom) == "class":
                return of(("function", method))
            if method.is_method and method.positional:
                self.put((method, method.positional[0]), of(("instance", cls)))
            if method.is_property:
                method.has_callers = True
                return self.get((method, "return"))
            overridden = frozenset(a for a in held if kind(a) == "function")
            return union(of(("bound", method)), *[held - overridden])
        if name == "__class__":
            return of(("class", cls))
        loose = self.get(("attr", None, name))
        if held:
            return union(held, loose)
        return UNKNOWN if cls.foreign() else loose
