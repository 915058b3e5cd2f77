"""An abstract interpreter: finds what each expression of a project may be, see `values`.

Modules and functions are interpreted one by one until nothing changes any more. What they hand to each other
(arguments, returned values, attributes, globals, items of lists) lies in cells. When a cell grows, the modules and
functions that have read it are interpreted again. This is done in two phases. In the first, "not known yet" differs
from "anything", so that the order of the modules does not matter. In the second, functions that nobody in the project
calls get "anything" as arguments.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from . import knowledge
from .project import Class, Function, Project, Unit
from .values import (
    ANYTHING,
    ARRAY,
    AVAILABLE,
    BOOL,
    FLOAT,
    INT,
    NONE,
    NOTHING,
    STR,
    TENSOR,
    UNKNOWN,
    Atom,
    Value,
    kind,
    may_be,
    of,
    only,
    tuple_of,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Env = dict[str, Value]
SPELLING: Final = re.compile(r"(cuda|cpu|gpu|mps|xpu|npu)(:(\d+|\*))?|/?(device:)?[CG]PU:(\d+|\*)", re.IGNORECASE)
_NUMBERS: Final = ("int", "float", "bool", "available")
_ANNOTATIONS: Final = {
    "torch.device": of(("device", "torch", None)), "torch.Tensor": TENSOR, "torch.LongTensor": TENSOR,
    "paddle.Tensor": TENSOR, "tensorflow.Tensor": TENSOR, "jax.Array": TENSOR, "torch.nn.Module": of(tuple(
        """
        module torch.nn.Module
        """.split()
    )),
    "paddle.nn.Layer": of(("module", "paddle.nn.Layer")), "torch.FloatTensor": TENSOR,
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
_FORWARD: Final = ("__call__", "forward", "call")
_END_OF_PROGRAM: Final = {"sys.exit", "builtins.exit", "builtins.quit", "os._exit"}
_ENDS: Final = {name.rpartition(".")[2] for name in _END_OF_PROGRAM}


class Frame:
    """One interpretation of a module or a function."""

    def __init__(self, unit: Unit, function: Function | None) -> None:
        self.unit = unit
        self.function = function
        self.owner: Class | None = None  # the class whose body is being read
        self.has_gpu = False  # whether a test has shown that there is a GPU
        self.loops: list[list[Env]] = []  # for each loop around: what is known at its `break`s and `continue`s


class Inference:
    """Finds out what the expressions of a project may be. After `run`, the node of each has the answer as its attribute
    `means`."""

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
        self.rounds = 0

    def run(self) -> None:
        for unit in self.project.units:
            self._schedule(unit)
        self._drain()
        for key in [key for key, value in self._cells.items() if isinstance(key[0], Unit) and not value]:
            self.put(key, UNKNOWN)  # a name that the module takes from where nothing is known of it
        for function in self.functions.values():
            if function.is_open or not function.has_callers:
                self._open(function)
        self._drain()

    # cells

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
            self.rounds += 1
            self._now = item
            self._interpret(item)
        self._now = None

    def _open(self, function: Function) -> None:
        function.is_open = True
        for i, arg in enumerate(function.args):
            if not (i == 0 and function.is_method):
                self.put((function, arg.arg), self._annotation(arg.annotation, function.module) or UNKNOWN)

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

    # modules and functions

    def _interpret(self, item: Unit | Function) -> None:
        if isinstance(item, Unit):
            self.block(item.tree.body, {}, Frame(item, None))
            return
        frame = Frame(item.module, item)
        env = {arg.arg: self.get((item, arg.arg)) for arg in item.args}
        if item.node.args.vararg:
            env[item.node.args.vararg.arg] = of(("list", (item, "*")))
        if item.node.args.kwarg:
            env[item.node.args.kwarg.arg] = of(("dict", (item, "**")))
        for name, value in env.items():
            self.put((item, "local", name), value)
        if isinstance(item.node, ast.Lambda):
            self.put((item, "return"), self.expr(item.node.body, env, frame))
            return
        if self.block(item.node.body, env, frame) is not None:
            self.put((item, "return"), NONE if not item.assigned.has_yield else NOTHING)

    def block(self, body: Sequence[ast.stmt], env: Env | None, frame: Frame) -> Env | None:
        """What is known after these statements; None if their end is never reached."""
        before = frame.has_gpu
        for statement in body:
            if env is None:
                break
            env = self._STATEMENTS.get(type(statement), Inference._simple)(self, statement, env, frame)
        frame.has_gpu = before
        return env

    def _simple(self, node: ast.stmt, env: Env, frame: Frame) -> Env | None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expr(child, env, frame)
        return env

    def _expression(self, node: ast.Expr, env: Env, frame: Frame) -> Env | None:
        self.expr(node.value, env, frame)
        called = node.value.func if isinstance(node.value, ast.Call) else None
        last = getattr(called, "attr", None) or getattr(called, "id", None)
        return None if last in _ENDS and self.full(called) in _END_OF_PROGRAM else env  # type: ignore[arg-type]

    def _assign(self, node: ast.Assign, env: Env, frame: Frame) -> Env:
        value = self.expr(node.value, env, frame)
        if ast.unparse(node.value) == "sys.modules[__name__]" if isinstance(node.value, ast.Subscript) else False:
            value = of(("project", frame.unit))
        for target in node.targets:
            self.bind(target, value, env, frame)
        return env

    def _annotated_assign(self, node: ast.AnnAssign, env: Env, frame: Frame) -> Env:
        value = self.expr(node.value, env, frame) if node.value else None
        if value is None and frame.owner is not None:  # a field, which __init__ fills
            value = self._annotation(node.annotation, frame.unit) or UNKNOWN
        if value is not None:
            self.bind(node.target, value, env, frame)
        return env

    def _augment(self, node: ast.AugAssign, env: Env, frame: Frame) -> Env:
        left = self.expr(node.target, env, frame, load=True)
        right = self.expr(node.value, env, frame)
        self.bind(node.target, self._operate(node.op, left, right, node), env, frame)
        return env

    def _return(self, node: ast.Return, env: Env, frame: Frame) -> None:
        value = self.expr(node.value, env, frame) if node.value else NONE
        if frame.function is not None and not frame.function.assigned.has_yield:
            self.put((frame.function, "return"), value)

    def _raise(self, node: ast.Raise, env: Env, frame: Frame) -> None:
        self._simple(node, env, frame)

    def _left_loop(self, node: ast.stmt, env: Env, frame: Frame) -> None:
        if frame.loops:
            frame.loops[-1].append(dict(env))

    def _if(self, node: ast.If, env: Env, frame: Frame) -> Env | None:
        self.expr(node.test, env, frame)
        chosen = _selected_tab(node.test, frame.unit)
        if chosen is not None:
            return self.block(node.body if chosen else node.orelse, env, frame)
        yes, no = self._narrow(node.test, env, True), self._narrow(node.test, env, False)
        shown = only(node.test.means, ("available",))  # type: ignore[attr-defined]
        denied = _denies_gpu(node.test)
        then = self._under(shown, node.body, yes, frame)
        other = self._under(denied, node.orelse, no, frame)
        if (denied and then is None) or (shown and other is None and node.orelse):
            frame.has_gpu = True
        return _join(then, other)

    def _under(self, has_gpu: bool, body: Sequence[ast.stmt], env: Env, frame: Frame) -> Env | None:
        before, frame.has_gpu = frame.has_gpu, frame.has_gpu or has_gpu
        env_after = self.block(body, env, frame)
        frame.has_gpu = before
        return env_after

    def _narrow(self, test: ast.expr, env: Env, is_true: bool) -> Env:
        """What is known if a test is true (or false, if not `is_true`). Understands `is None`, `isinstance`, a plain
        name, `not` and `and`."""
        new = dict(env)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._narrow(test.operand, env, not is_true)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is is_true:
            for part in test.values:
                new = self._narrow(part, new, is_true)
            return new
        name: ast.expr | None = test
        drops: Callable[[Atom], bool] | None = None
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and _is_none(test.comparators[0]):
            name = test.left
            is_none = isinstance(test.ops[0], ast.Is | ast.Eq) is is_true
            drops = (lambda atom: atom not in ("none", ANYTHING)) if is_none else (lambda atom: atom == "none")
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance":
            name = test.args[0] if test.args else None
            wanted = _named_kinds(test.args[1]) if len(test.args) == 2 else None
            if wanted:
                drops = lambda atom: atom != ANYTHING and (kind(atom) in wanted) is not is_true  # noqa: E731
        elif isinstance(test, ast.Name) and is_true:
            drops = lambda atom: atom == "none"  # noqa: E731
        if drops is not None and isinstance(name, ast.Name) and name.id in new:
            new[name.id] = frozenset(atom for atom in new[name.id] if not drops(atom))
        return new

    def _for(self, node: ast.For, env: Env, frame: Frame) -> Env | None:
        items = self.iterate(self.expr(node.iter, env, frame), node.iter)

        def body(env: Env) -> Env | None:
            self.bind(node.target, items, env, frame)
            return self.block(node.body, env, frame)

        after = self._loop(node, env, body, frame)
        return self.block(node.orelse, after, frame)

    def _while(self, node: ast.While, env: Env, frame: Frame) -> Env | None:
        def body(env: Env) -> Env | None:
            self.expr(node.test, env, frame)
            return self.block(node.body, self._narrow(node.test, env, True), frame)

        after = self._loop(node, env, body, frame)
        return self.block(node.orelse, after, frame)

    def _loop(self, node: ast.AST, env: Env, body: Callable[[Env], Env | None], frame: Frame) -> Env:
        """What is known where a loop ends: its body is read until that no longer changes, beginning with what was known
        when the loop was read the last time, so that a loop inside of it is mostly read once."""
        env = self._ends[node] = self._rounds(_join(env, self._ends.get(node)) or env, body, frame)
        return env

    def _rounds(self, env: Env, body: Callable[[Env], Env | None], frame: Frame) -> Env:
        for _ in range(5):
            frame.loops.append([])
            ends = [body(dict(env)), *frame.loops[-1]]
            frame.loops.pop()
            after = env
            for end in ends:
                after = _join(after, end) or env
            if after == env:
                return env
            env = after
        return {
            name: value | UNKNOWN for name, value in env.items()
        }  # each round gives new values: the names may be anything

    def _with(self, node: ast.With, env: Env, frame: Frame) -> Env | None:
        for item in node.items:
            value = self.expr(item.context_expr, env, frame)
            if item.optional_vars is not None:
                kept = only(value, ("made", "scope", "device", "instance"))
                self.bind(item.optional_vars, value if kept else UNKNOWN, env, frame)
        return self.block(node.body, env, frame)

    def _try(self, node: ast.Try, env: Env, frame: Frame) -> Env | None:
        before = dict(env)
        after = self.block(node.body, env, frame)
        if after is not None:
            after = self.block(node.orelse, after, frame)
        for handler in node.handlers:
            caught = dict(_join(before, after) or before)
            caught.update({name: value for name, value in env.items() if name not in caught})
            if handler.type is not None:
                self.expr(handler.type, caught, frame)
            if handler.name:
                caught[handler.name] = of(("made", "exception"))
            after = _join(after, self.block(handler.body, caught, frame))
        if after is None:
            self.block(node.finalbody, dict(before), frame)
            return None
        return self.block(node.finalbody, after, frame)

    def _match(self, node: ast.Match, env: Env, frame: Frame) -> Env | None:
        self.expr(node.subject, env, frame)
        after: Env | None = dict(env)
        for case in node.cases:
            here = dict(env)
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    self._bind_name(name, UNKNOWN, here, frame)
                if isinstance(part, ast.expr):
                    self.expr(part, here, frame)
            if case.guard is not None:
                self.expr(case.guard, here, frame)
            after = _join(after, self.block(case.body, here, frame))
        return after

    def _delete(self, node: ast.Delete, env: Env, frame: Frame) -> Env:
        for target in node.targets:
            if isinstance(target, ast.Name):
                env.pop(target.id, None)
            else:
                self._simple(node, env, frame)
        return env

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

    # binding

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

    # expressions

    def expr(self, node: ast.expr, env: Env, frame: Frame, load: bool = False) -> Value:
        """What an expression may be. This is also added to the node's `means`."""
        value: Value = self._EXPRESSIONS.get(type(node), Inference._other)(self, node, env, frame)
        node.means = value  # type: ignore[attr-defined]
        return value

    def _other(self, node: ast.expr, env: Env, frame: Frame) -> Value:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expr(child, env, frame)
        return UNKNOWN

    def _constant(self, node: ast.Constant, env: Env, frame: Frame) -> Value:
        value = node.value
        if isinstance(value, str):
            return of(("spelling", value, node)) if SPELLING.fullmatch(value) else STR
        if value is None:
            return NONE
        return {bool: BOOL, int: INT, float: FLOAT}.get(type(value), UNKNOWN)

    def _text(self, node: ast.JoinedStr, env: Env, frame: Frame) -> Value:
        pattern = ""
        for part in node.values:
            self.expr(part, env, frame)
            pattern += str(part.value) if isinstance(part, ast.Constant) else "*"
        return _filled(pattern, node)

    def _format(self, node: ast.FormattedValue, env: Env, frame: Frame) -> Value:
        self.expr(node.value, env, frame)
        if node.format_spec is not None:
            self.expr(node.format_spec, env, frame)
        return STR

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
            known = knowledge.attribute(atom[1], name)
            return UNKNOWN if known is None else known
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

    def _call_by_name(self, node: ast.Call, env: Env, frame: Frame) -> Value:
        func = node.func
        values = [self.expr(arg, env, frame) for arg in node.args]
        named = {k.arg: self.expr(k.value, env, frame) for k in node.keywords}
        if isinstance(func, ast.Attribute):
            owner = self.expr(func.value, env, frame)
            found = {atom: self._attribute_of(atom, func.attr, func) for atom in owner}
            func.means = union(NOTHING, *found.values())  # type: ignore[attr-defined]
            if len(owner) > 1:  # `None` has no methods: what may be None, too, gives what the rest gives
                owner -= NONE
            results = [self._method(atom, found[atom], node, values, named, frame) for atom in owner]
            return union(NOTHING, *results)
        return self._call_all(self.expr(func, env, frame), node, values, named, frame)

    def _call_all(
        self, callee: Value, node: ast.Call, values: list[Value], named: dict[str | None, Value], frame: Frame
    ) -> Value:
        return union(NOTHING, *[self._call(atom, node, values, named, frame) for atom in callee])

    def _method(
        self, owner: Atom, found: Value, node: Any, values: list[Value], named: dict[str | None, Value], frame: Frame
    ) -> Value:
        """What the call of a method gives; `found` is what the attribute of that name is."""
        sort, name = kind(owner), node.func.attr
        if sort in ("ext", "project", "class", "super"):
            return self._call_all(found, node, values, named, frame)
        if sort == "instance":
            return self._method_of_instance(owner, found, node, values, named, frame)
        if sort == "tensor":
            return self._method_of_tensor(name, node, values)
        if sort == "module" or owner == "optimizer":
            if name in ("parameters", "trainable_weights", "buffers"):
                self.put(("items", node), TENSOR)
                return of(("list", node))
            return of(owner) if name in knowledge.MODULE_METHODS else UNKNOWN
        if sort in ("list", "dict"):
            return self._method_of_container(owner, name, node, values)
        if sort == "parser":
            return self._method_of_parser(owner, name, node, values, named)
        if sort == "array":
            return FLOAT if name == "item" else ARRAY
        if sort in ("str", "spelling"):
            if name == "format":
                return _filled(_pattern(node.func.value), node)
            return {"split": UNKNOWN, "startswith": BOOL, "endswith": BOOL, "isdigit": BOOL}.get(name, STR)
        if sort == "made":
            return self._method_of_made(owner, name, node, values)
        if owner == ANYTHING:
            self._escape(union(NOTHING, *values, *named.values()))
            for function in self.by_name.get(name, ()):
                self._pass(function, node, values, named, skips=function.is_method)
            if name == "asnumpy":
                return ARRAY
            loose = self.get(("attr", None, name))
            return union(UNKNOWN, self._call_all(loose - UNKNOWN, node, values, named, frame))
        return UNKNOWN

    def _method_of_instance(
        self, owner: Atom, found: Value, node: Any, values: list[Value], named: dict[str | None, Value], frame: Frame
    ) -> Value:
        cls: Class = owner[1]
        name = node.func.attr
        if name == "save_hyperparameters" and frame.function is not None:
            for arg in frame.function.args[1:]:
                self.put(("attr", self.family(cls), arg.arg), self.get((frame.function, arg.arg)))
            return NONE
        if cls.method(name) is None and is_model(owner):
            if name in knowledge.MODULE_METHODS:
                return of(owner)
            if name == "parameters":
                self.put(("items", node), TENSOR)
                return of(("list", node))
            if name == "register_buffer" and len(values) > 1 and isinstance(node.args[0], ast.Constant):
                self.put(("attr", self.family(cls), node.args[0].value), values[1])
                return NONE
        return self._call_all(found, node, values, named, frame)

    def _method_of_tensor(self, name: str, node: ast.Call, values: list[Value]) -> Value:
        if name in ("max", "min"):
            reduced = not values and not node.keywords
            return TENSOR if reduced else union(TENSOR, tuple_of([TENSOR, TENSOR]))
        if name in ("sort", "topk"):
            return tuple_of([TENSOR, TENSOR])
        if name == "size":
            if values or node.keywords:
                return INT
            self.put(("items", node), INT)
            return of(("list", node))
        if name in knowledge.LISTS:
            self.put(("items", node), UNKNOWN if name == "tolist" else TENSOR)
            return of(("list", node))
        return knowledge.METHODS.get(name, UNKNOWN)

    def _method_of_container(self, owner: Atom, name: str, node: ast.Call, values: list[Value]) -> Value:
        key = ("items", owner[1])
        if name in ("append", "add", "insert", "setdefault") and values:
            self.put(key, values[-1])
            return NONE if name != "setdefault" else self.get(key)
        if name in ("extend", "update") and values:
            self.put(key, self.iterate(values[0], node) if kind(owner) == "list" else self._items_of(values[0]))
            return NONE
        if name in ("pop", "get", "popleft"):
            return union(self.get(key), *values[1:], NONE if name == "get" else NOTHING)
        if name == "copy":
            return of(owner)
        if name in ("values", "items"):
            self.put(("items", node), self.get(key) if name == "values" else tuple_of([UNKNOWN, self.get(key)]))
            return of(("list", node))
        return UNKNOWN

    def _items_of(self, value: Value) -> Value:
        return union(NOTHING, *(self.get(("items", a[1])) if kind(a) in ("list", "dict") else UNKNOWN for a in value))

    def _method_of_parser(
        self, owner: Atom, name: str, node: ast.Call, values: list[Value], named: dict[str | None, Value]
    ) -> Value:
        if name == "parse_args":
            return of(("namespace", owner[1]))
        if name == "parse_known_args":
            return tuple_of([of(("namespace", owner[1])), UNKNOWN])
        if name != "add_argument":
            return of(owner)
        flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        given = {k.arg: k.value for k in node.keywords}
        dest = given.get("dest")
        longest = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        target = dest.value if isinstance(dest, ast.Constant) else longest.lstrip("-").replace("-", "_")
        action = getattr(given.get("action"), "value", None)
        default = named.get("default", NONE if longest.startswith("-") else NOTHING)
        if action in ("store_true", "store_false"):
            value = BOOL
        elif "nargs" in given or action not in (None, "store"):
            value = UNKNOWN
        elif "type" in given:
            known = {"int": INT, "float": FLOAT, "str": STR}.get(getattr(given["type"], "id", ""), UNKNOWN)
            value = union(known, default)
        else:
            value = union(STR, default)
        self.put(("arg", owner[1], target), value)
        return UNKNOWN

    def _method_of_made(self, owner: Atom, name: str, node: ast.Call, values: list[Value]) -> Value:
        if owner[1] == "accelerate.Accelerator" and name == "prepare":
            return values[0] if len(values) == 1 else tuple_of(values)
        if name == "asnumpy":
            return ARRAY
        if owner[1] == "decord.VideoReader" and name == "get_batch":
            return self.get(("bridge", "decord")) or of(knowledge.DECORDS_ARRAY)
        if owner[1] == "tensorflow.GradientTape" and name == "gradient":
            return self._like(values[1]) if len(values) > 1 else UNKNOWN
        self._escape(union(NOTHING, *values))
        return UNKNOWN

    def _like(self, sources: Value) -> Value:
        """What a gradient is: a tensor where the sources are tensors, else not known."""
        return TENSOR if only(sources, ("tensor",)) else UNKNOWN

    def _call(
        self, callee: Atom, node: ast.Call, values: list[Value], named: dict[str | None, Value], frame: Frame
    ) -> Value:
        sort = kind(callee)
        if sort in ("function", "bound"):
            function: Function = callee[1]
            self._pass(function, node, values, named, skips=sort == "bound" and function.is_method)
            return self.get((function, "return"))
        if sort == "class":
            return self._instantiate(callee[1], node, values, named)
        if sort == "ext":
            return self._call_foreign(callee[1], node, values, named, frame)
        if sort == "instance":
            method = next((m for m in map(callee[1].method, _FORWARD) if m is not None), None)
            if method is None:
                return UNKNOWN
            self._pass(method, node, values, named, skips=True)
            return self.get((method, "return"))
        self._escape(union(NOTHING, *values, *named.values()))
        if sort == "module":
            return knowledge.output_of(callee[1]) or UNKNOWN
        return UNKNOWN

    def _instantiate(self, cls: Class, node: ast.Call, values: list[Value], named: dict[str | None, Value]) -> Value:
        init = cls.method("__init__")
        if init is not None:
            self.put((init, init.positional[0]), of(("instance", cls)))
            self._pass(init, node, values, named, skips=True)
        return of(("instance", cls))

    def _pass(
        self, function: Function, node: ast.Call, values: list[Value], named: dict[str | None, Value], skips: bool
    ) -> None:
        """Puts the arguments of a call into the parameters of the function."""
        function.has_callers = True
        wanted = function.positional[1 if skips else 0 :]
        for i, (arg, value) in enumerate(zip(node.args, values, strict=True)):
            if isinstance(arg, ast.Starred):
                for name in wanted[i:]:
                    self.put((function, name), self.iterate(value, arg))
                self.put(("items", (function, "*")), self.iterate(value, arg))
                break
            if i < len(wanted):
                self.put((function, wanted[i]), value)
            else:
                self.put(("items", (function, "*")), value)
        for key, value in named.items():
            if key is None:
                for name in [*wanted, *function.keywords]:
                    self.put((function, name), UNKNOWN)
                self.put(("items", (function, "**")), UNKNOWN)
            elif key in wanted or key in function.keywords:
                self.put((function, key), value)
            else:
                self.put(("items", (function, "**")), value)

    def _call_foreign(
        self, full: str, node: ast.Call, values: list[Value], named: dict[str | None, Value], frame: Frame
    ) -> Value:
        if full.startswith("builtins."):
            return self._call_builtin(full[9:], node, values, named, frame)
        if full.endswith("multiprocessing.spawn") and values:
            return self._spawn(node, values, named)
        everything = union(NOTHING, *values, *named.values())
        self._escape(everything)
        if full in CHOOSERS:
            node.has_gpu = frame.has_gpu  # type: ignore[attr-defined]
            return of(("device", CHOOSERS[full], node))
        if full == "argparse.ArgumentParser":
            return of(("parser", node))
        if full == "decord.bridge.set_bridge":
            self.put(("bridge", "decord"), UNKNOWN)  # from now on, decord gives tensors of a framework
        if full in knowledge.LOADERS:
            dataset = values[0] if values else named.get("dataset", UNKNOWN)
            collated = named.get("collate_fn", named.get("batchify_fn"))
            item = UNKNOWN if collated else self._collate(self._item_of(dataset, node))
            self.put(("items", node), item)
            return of(("list", node))
        if full in knowledge.TENSOR_SETS:
            starred = any(isinstance(arg, ast.Starred) for arg in node.args)
            self.put(("items", node), UNKNOWN if starred else tuple_of([TENSOR for _ in values]))
            return of(("list", node))
        if full == "xdevice.to_device" or full == "xdevice.copy_to":
            return values[0] if values else UNKNOWN
        if full in ("xdevice.native.try_all_gpus", "xdevice.try_all_gpus"):
            self.put(("items", node), of(("device", "", node)))
            return of(("list", node))
        found = knowledge.result(full)
        if found is None:
            return of(("made", full))
        return values[0] if found == of("same") and values else found

    def _spawn(self, node: ast.Call, values: list[Value], named: dict[str | None, Value]) -> Value:
        """torch.multiprocessing.spawn calls a function with a rank, and then with `args`."""
        args = named.get("args", values[1] if len(values) > 1 else tuple_of([]))
        for atom in values[0]:
            if kind(atom) != "function":
                continue
            given = next((a[1] for a in args if kind(a) == "tuple"), None)
            if given is None or len(args) != 1:
                self._escape(of(atom))
                continue
            atom[1].has_callers = True
            for name, value in zip(atom[1].positional, (INT, *given), strict=False):
                self.put((atom[1], name), value)
        return NONE

    def _item_of(self, dataset: Value, node: ast.expr) -> Value:
        def one(atom: Atom) -> Value:
            if atom == ("made", "dataset"):
                return tuple_of([TENSOR, TENSOR])
            if kind(atom) == "list":
                return self.get(("items", atom[1]))
            if kind(atom) == "instance":
                method = atom[1].method("__getitem__")
                if method is None:
                    return UNKNOWN
                method.has_callers = True
                self.put((method, method.positional[0]), of(atom))
                self.put((method, method.positional[1]), INT)
                return self.get((method, "return"))
            return UNKNOWN

        return union(NOTHING, *(one(atom) for atom in dataset))

    def _collate(self, value: Value) -> Value:
        def one(atom: Atom) -> Value:
            if kind(atom) in ("tensor", "array", "int", "float", "bool"):
                return TENSOR
            if kind(atom) == "tuple":
                return tuple_of([self._collate(inner) for inner in atom[1]])
            return UNKNOWN

        return union(NOTHING, *(one(atom) for atom in value))

    def _call_builtin(
        self, name: str, node: ast.Call, values: list[Value], named: dict[str | None, Value], frame: Frame
    ) -> Value:
        first = values[0] if values else NOTHING
        if name == "super":
            owner = frame.function.owner if frame.function else None
            return of(("super", owner)) if owner is not None else UNKNOWN
        if name in _BUILTIN_RESULTS:
            return _BUILTIN_RESULTS[name]
        if name in ("iter", "reversed"):
            return first
        if name == "next":
            return self.iterate(first, node)
        if name == "getattr":
            return UNKNOWN
        items: Value | None = None
        if name == "range":
            items = INT
        elif name in ("list", "tuple", "set", "sorted", "frozenset"):
            items = self.iterate(first, node)
        elif name == "enumerate":
            items = tuple_of([INT, self.iterate(first, node)])
        elif name == "zip":
            if any(isinstance(arg, ast.Starred) for arg in node.args):
                items = UNKNOWN
            else:
                items = tuple_of([self.iterate(value, node) for value in values])
        elif name == "map":
            each = [self.iterate(value, node) for value in values[1:]]
            # the node of the inner call is made once, because a list is known by the call that makes it
            call = getattr(node, "mapped", None)
            if call is None:
                call = node.mapped = ast.copy_location(ast.Call(node.func, node.args[1:], []), node)  # type: ignore[attr-defined]
            items = self._call_all(first, call, each, {}, frame)
        if items is not None:
            self.put(("items", node), items)
            return of(("list", node))
        if name == "dict":
            self.put(("items", node), union(NOTHING, *named.values(), UNKNOWN if values else NOTHING))
            return of(("dict", node))
        if name in ("abs", "sum", "max", "min"):
            inner = first if name == "abs" or len(values) > 1 else self.iterate(first, node)
            return (
                union(inner, *values[1:]) if name in ("max", "min") else union(inner, INT if name == "sum" else NOTHING)
            )
        self._escape(union(NOTHING, *values, *named.values()))
        return UNKNOWN

    def iterate(self, value: Value, node: ast.AST) -> Value:
        """What the variable of a loop over this value may be."""

        def one(atom: Atom) -> Value:
            sort = kind(atom)
            if sort in ("tensor", "array", "str"):
                return of(atom)
            if sort == "list":
                return self.get(("items", atom[1]))
            if sort == "tuple":
                return union(NOTHING, *atom[1])
            if sort == "instance":
                method = atom[1].method("__iter__")
                if method is not None and method is not self._now:
                    method.has_callers = True
                    inner = self.get((method, "return"))
                    if atom in inner:
                        return UNKNOWN
                    return union(NOTHING, *(one(a) for a in inner))
                return self._item_of(of(atom), node)  # type: ignore[arg-type]
            return UNKNOWN

        return union(NOTHING, *(one(atom) for atom in value))

    def _subscript(self, node: ast.Subscript, env: Env, frame: Frame) -> Value:
        owner = self.expr(node.value, env, frame)
        self.expr(node.slice, env, frame)
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None

        def one(atom: Atom) -> Value:
            sort = kind(atom)
            if sort in ("tensor", "array", "str"):
                return of(atom)
            if sort == "list" and isinstance(node.slice, ast.Slice):
                return of(atom)
            if sort in ("list", "dict"):
                return self.get(("items", atom[1]))
            if sort == "tuple":
                if isinstance(index, int) and -len(atom[1]) <= index < len(atom[1]):
                    return atom[1][index]  # type: ignore[no-any-return]
                return of(atom) if isinstance(node.slice, ast.Slice) else union(NOTHING, *atom[1])
            if sort == "ext" and atom[1] == "os.environ":
                return STR
            if sort in ("device", "none", "int", "float", "bool"):
                return NOTHING  # it raises
            if sort == "instance":
                return self._item_of(of(atom), node)
            return UNKNOWN

        return union(NOTHING, *(one(atom) for atom in owner))

    def _operation(self, node: ast.BinOp, env: Env, frame: Frame) -> Value:
        left, right = self.expr(node.left, env, frame), self.expr(node.right, env, frame)
        return self._operate(node.op, left, right, node)

    def _operate(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        if not left or not right:
            return NOTHING
        if only(left, ("tensor",)) or only(right, ("tensor",)):
            return TENSOR
        if only(left, _NUMBERS) and only(right, _NUMBERS):
            whole = not isinstance(op, ast.Div) and not may_be(left | right, ("float",))
            return INT if whole else FLOAT
        if only(left, ("str", "spelling")):
            return (
                _filled(_pattern(node.left), node) if isinstance(op, ast.Mod) and isinstance(node, ast.BinOp) else STR
            )
        if only(left, ("array", *_NUMBERS)) and only(right, ("array", *_NUMBERS)):
            return ARRAY
        if only(left, ("list", "tuple")) and (only(right, ("list", "tuple", "int"))):
            self.put(("items", node), self.iterate(left, node))
            if not only(right, ("int",)):
                self.put(("items", node), self.iterate(right, node))
            return of(("list", node))
        return UNKNOWN

    def _boolean(self, node: ast.BoolOp, env: Env, frame: Frame) -> Value:
        before, here = frame.has_gpu, env
        values = []
        for part in node.values:
            values.append(self.expr(part, here, frame))
            if isinstance(node.op, ast.And):
                here = self._narrow(part, here, True)
                frame.has_gpu = frame.has_gpu or only(values[-1], ("available",))
        frame.has_gpu = before
        if isinstance(node.op, ast.And) and any(only(value, ("available",)) for value in values):
            return AVAILABLE
        return union(*values)

    def _not(self, node: ast.UnaryOp, env: Env, frame: Frame) -> Value:
        value = self.expr(node.operand, env, frame)
        if isinstance(node.op, ast.Not):
            return BOOL
        return INT if only(value, ("bool", "available")) else value

    def _comparison(self, node: ast.Compare, env: Env, frame: Frame) -> Value:
        left = self.expr(node.left, env, frame)
        rights = [self.expr(right, env, frame) for right in node.comparators]
        if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
            return BOOL
        if only(left, ("tensor",)) or any(only(right, ("tensor",)) for right in rights):
            return TENSOR
        if _counts_gpus(node, self):
            return AVAILABLE
        if only(left, ("array", *_NUMBERS)) and all(only(right, ("array", *_NUMBERS)) for right in rights):
            arrays = may_be(left, ("array",)) or any(may_be(right, ("array",)) for right in rights)
            return ARRAY if arrays else BOOL
        host = (*_NUMBERS, "str", "spelling", "none", "device")
        return BOOL if only(left, host) and all(only(right, host) for right in rights) else UNKNOWN

    def _choice(self, node: ast.IfExp, env: Env, frame: Frame) -> Value:
        test = self.expr(node.test, env, frame)
        before = frame.has_gpu
        frame.has_gpu = before or only(test, ("available",))
        yes = self.expr(node.body, self._narrow(node.test, env, True), frame)
        frame.has_gpu = before or _denies_gpu(node.test)
        no = self.expr(node.orelse, self._narrow(node.test, env, False), frame)
        frame.has_gpu = before
        return union(yes, no)

    def _display(self, node: ast.List | ast.Set, env: Env, frame: Frame) -> Value:
        for item in node.elts:
            value = self.expr(item, env, frame)
            self.put(("items", node), self.iterate(value, item) if isinstance(item, ast.Starred) else value)
        return of(("list", node))

    def _tuple(self, node: ast.Tuple, env: Env, frame: Frame) -> Value:
        values = [self.expr(item, env, frame) for item in node.elts]
        if any(isinstance(item, ast.Starred) for item in node.elts):
            self.put(("items", node), UNKNOWN)
            return of(("list", node))
        return tuple_of(values)

    def _dict(self, node: ast.Dict, env: Env, frame: Frame) -> Value:
        for key, item in zip(node.keys, node.values, strict=True):
            if key is not None:
                self.expr(key, env, frame)
            value = self.expr(item, env, frame)
            self.put(("items", node), value if key is not None else self._items_of(value))
        return of(("dict", node))

    def _comprehension(self, node: Any, env: Env, frame: Frame) -> Value:
        inside = dict(env)
        owner, frame.owner = frame.owner, frame.owner
        for generator in node.generators:
            items = self.iterate(self.expr(generator.iter, inside, frame), generator.iter)
            self._bind_inside(generator.target, items, inside, frame)
            for test in generator.ifs:
                self.expr(test, inside, frame)
                inside = self._narrow(test, inside, True)
        frame.owner = owner
        if isinstance(node, ast.DictComp):
            self.expr(node.key, inside, frame)
            self.put(("items", node), self.expr(node.value, inside, frame))
            return of(("dict", node))
        self.put(("items", node), self.expr(node.elt, inside, frame))
        return of(("list", node))

    def _bind_inside(self, target: ast.expr, value: Value, env: Env, frame: Frame) -> None:
        """Binds a name of a comprehension, which nothing outside of it can read."""
        target.means = value  # type: ignore[attr-defined]
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            same = [a for a in value if kind(a) == "tuple" and len(a[1]) == len(target.elts)]
            for i, item in enumerate(target.elts):
                parts = [a[1][i] for a in same] if len(same) == len(value) else [self.iterate(value, target)]
                self._bind_inside(item, union(NOTHING, *parts), env, frame)
        elif isinstance(target, ast.Starred):
            self._bind_inside(target.value, UNKNOWN, env, frame)

    def _lambda(self, node: ast.Lambda, env: Env, frame: Frame) -> Value:
        owner, frame.owner = frame.owner, None
        function = self._made_function(node, frame, "<lambda>")
        frame.owner = owner
        self._read_defaults(function, env, frame)
        return of(("function", function))

    def _walrus(self, node: ast.NamedExpr, env: Env, frame: Frame) -> Value:
        value = self.expr(node.value, env, frame)
        self.bind(node.target, value, env, frame)
        return value

    def _inner(self, node: ast.Starred | ast.Await, env: Env, frame: Frame) -> Value:
        return self.expr(node.value, env, frame)

    def _yield(self, node: ast.Yield, env: Env, frame: Frame) -> Value:
        value = self.expr(node.value, env, frame) if node.value else NONE
        if frame.function is not None:
            self.put(("items", (frame.function, "yield")), value)
        return UNKNOWN

    # questions that the rules of porting and linting ask

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

    _STATEMENTS: Final[dict[type, Any]] = {
        ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _annotated_assign, ast.AugAssign: _augment,
        ast.Return: _return, ast.Raise: _raise, ast.If: _if, ast.For: _for, ast.AsyncFor: _for, ast.While: _while,
        ast.With: _with, ast.AsyncWith: _with, ast.Try: _try, ast.Import: _import, ast.ImportFrom: _import_from,
        ast.FunctionDef: _function, ast.AsyncFunctionDef: _function, ast.ClassDef: _class, ast.Delete: _delete,
        ast.Match: _match, ast.Break: _left_loop, ast.Continue: _left_loop,
        **({ast.TryStar: _try} if hasattr(ast, "TryStar") else {}),
    }  # fmt: skip
    _EXPRESSIONS: Final[dict[type, Any]] = {
        ast.Constant: _constant, ast.JoinedStr: _text, ast.FormattedValue: _format, ast.Name: _name,
        ast.Attribute: _attribute, ast.Call: _call_by_name, ast.Subscript: _subscript, ast.BinOp: _operation,
        ast.BoolOp: _boolean, ast.UnaryOp: _not, ast.Compare: _comparison, ast.IfExp: _choice, ast.List: _display,
        ast.Set: _display, ast.Tuple: _tuple, ast.Dict: _dict, ast.ListComp: _comprehension,
        ast.SetComp: _comprehension, ast.GeneratorExp: _comprehension, ast.DictComp: _comprehension,
        ast.Lambda: _lambda, ast.NamedExpr: _walrus, ast.Starred: _inner, ast.Await: _inner, ast.Yield: _yield,
    }  # fmt: skip


CHOOSERS: Final[dict[str, str]] = {
    **dict.fromkeys(("torch.device", "torch.accelerator.current_accelerator"), "torch"),
    **{f"mxnet.{name}": "mxnet" for name in "cpu gpu cpu_pinned Context context.Context".split()},
    **{f"mxnet.{room}.{name}": "mxnet" for room in ("npx", "context", "device") for name in ("cpu", "gpu")},
    **dict.fromkeys(
        ("paddle.CUDAPlace", "paddle.CPUPlace", "paddle.base.CPUPlace", "paddle.CUDAPinnedPlace"), "paddle"
    ),
    **{f"d2l.{fw}.{name}": fw for fw in ("torch", "mxnet", "paddle", "jax") for name in ("cpu", "gpu", "try_gpu")},
    **{f"xdevice.{room}{name}": "" for room in ("", "native.") for name in ("try_gpu", "gpu", "cpu", "device")},
}
"""Calls that give a device, with the framework that the device belongs to; "" for xdevice's own."""

_BUILTIN_RESULTS: Final[dict[str, Value]] = {
    **dict.fromkeys(("int", "len", "id", "ord"), INT), **dict.fromkeys(("str", "repr", "format", "chr", "input"), STR),
    **dict.fromkeys(("bool", "isinstance", "hasattr", "callable"), BOOL), "round": union(INT, FLOAT), "float": FLOAT,
    "print": NONE, "type": UNKNOWN,
}  # fmt: skip
_BUILTINS: Final = {name: of(("ext", f"builtins.{name}")) for name in dir(builtins)}
_KINDS: Final = {
    "list": {"list"},
    "tuple": {"tuple"},
    "dict": {"dict"},
    "str": {"str", "spelling"},
    "int": {"int", "bool"},
}


def is_model(atom: Atom) -> bool:
    """Whether the atom is a layer or model of a framework, or an object of a class of the project derived from one."""
    if kind(atom) == "module":
        return True
    return kind(atom) == "instance" and bool(atom[1].foreign() & knowledge.BASES)


def _join(one: Env | None, other: Env | None) -> Env | None:
    if one is None or other is None:
        return one if other is None else other
    if one is other:
        return one
    joined = dict(one)
    for name, value in other.items():
        mine = joined.get(name, NOTHING)
        if mine != value:
            joined[name] = union(mine, value)
    return joined


def _pattern(node: ast.expr) -> str:
    """A text that is filled in by `format` or `%`, with a star for each value."""
    text = node.value if isinstance(node, ast.Constant) else ""
    return re.sub(r"\{\d*\}|%[ds]", "*", text) if isinstance(text, str) else ""


def _filled(pattern: str, node: ast.AST) -> Value:
    """What a text with values filled in is: a device's name if it can be one."""
    return of(("spelling", pattern, node)) if "*" in pattern and SPELLING.fullmatch(pattern) else STR


def _denies_gpu(test: ast.expr) -> bool:
    """Whether a test is `not torch.cuda.is_available()`, or a name for that."""
    if not isinstance(test, ast.UnaryOp) or not isinstance(test.op, ast.Not):
        return False
    return only(getattr(test.operand, "means", NOTHING), ("available",))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _named_kinds(node: ast.expr) -> set[str] | None:
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    kinds = [_KINDS.get(name.id) if isinstance(name, ast.Name) else None for name in names]
    return set().union(*[k for k in kinds if k]) if all(kinds) else None


def _counts_gpus(node: ast.Compare, inference: Inference) -> bool:
    """Whether a test is `device_count() > 0`, or another one that is true only where there is a GPU."""
    if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Gt | ast.GtE) or not isinstance(node.left, ast.Call):
        return False
    bound = node.comparators[0]
    least = 0 if isinstance(node.ops[0], ast.Gt) else 1
    counted = inference.full(node.left.func).endswith((".device_count", ".num_gpus"))
    return counted and isinstance(bound, ast.Constant) and isinstance(bound.value, int) and bound.value >= least


def _selected_tab(test: ast.expr, unit: Unit) -> bool | None:
    """For a test such as `tab.selected("mxnet", "jax")`: whether this tab is one of those. None for any other test."""
    if unit.tab is None or not isinstance(test, ast.Call) or ast.unparse(test.func) != "tab.selected":
        return None
    names = [arg.value for part in test.args for arg in ast.walk(part) if isinstance(arg, ast.Constant)]
    return unit.tab in names
