"""An abstract interpreter: finds what each expression of a project may be, see `values`.

Modules and functions are interpreted one by one until nothing changes any more. What they hand to each other
(arguments, returned values, attributes, globals, items of lists) lies in cells. When a cell grows, the modules and
functions that have read it are interpreted again. This is done in two phases. In the first, "not known yet" differs
from "anything", so that the order of the modules does not matter. In the second, functions that nobody in the project
calls get "anything" as arguments.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from .cells import Env, Frame
from .expressions import Expressions
from .guards import denies_gpu, joined, narrowed, selected_tab
from .names import Names
from .project import Function, Unit
from .values import NONE, NOTHING, UNKNOWN, of, only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_END_OF_PROGRAM: Final = {"sys.exit", "builtins.exit", "builtins.quit", "os._exit"}
_ENDS: Final = {name.rpartition(".")[2] for name in _END_OF_PROGRAM}


class Inference(Expressions):
    """Finds out what the expressions of a project may be. After `run`, the node of each has the answer as its attribute
    `means`."""

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

    def _open(self, function: Function) -> None:
        function.is_open = True
        for i, arg in enumerate(function.args):
            if not (i == 0 and function.is_method):
                self.put((function, arg.arg), self._annotation(arg.annotation, function.module) or UNKNOWN)

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
        left = self.expr(node.target, env, frame)
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
        chosen = selected_tab(node.test, frame.unit)
        if chosen is not None:
            return self.block(node.body if chosen else node.orelse, env, frame)
        yes, no = narrowed(node.test, env, True), narrowed(node.test, env, False)
        shown = only(node.test.means, ("available",))  # type: ignore[attr-defined]
        denied = denies_gpu(node.test)
        then = self._under(shown, node.body, yes, frame)
        other = self._under(denied, node.orelse, no, frame)
        if (denied and then is None) or (shown and other is None and node.orelse):
            frame.has_gpu = True
        return joined(then, other)

    def _under(self, has_gpu: bool, body: Sequence[ast.stmt], env: Env, frame: Frame) -> Env | None:
        before, frame.has_gpu = frame.has_gpu, frame.has_gpu or has_gpu
        env_after = self.block(body, env, frame)
        frame.has_gpu = before
        return env_after

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
            return self.block(node.body, narrowed(node.test, env, True), frame)

        after = self._loop(node, env, body, frame)
        return self.block(node.orelse, after, frame)

    def _loop(self, node: ast.AST, env: Env, body: Callable[[Env], Env | None], frame: Frame) -> Env:
        """What is known where a loop ends: its body is read until that no longer changes, beginning with what was known
        when the loop was read the last time, so that a loop inside of it is mostly read once."""
        env = self._ends[node] = self._rounds(joined(env, self._ends.get(node)) or env, body, frame)
        return env

    def _rounds(self, env: Env, body: Callable[[Env], Env | None], frame: Frame) -> Env:
        for _ in range(5):
            frame.loops.append([])
            ends = [body(dict(env)), *frame.loops[-1]]
            frame.loops.pop()
            after = env
            for end in ends:
                after = joined(after, end) or env
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
            caught = dict(joined(before, after) or before)
            caught.update({name: value for name, value in env.items() if name not in caught})
            if handler.type is not None:
                self.expr(handler.type, caught, frame)
            if handler.name:
                caught[handler.name] = of(("made", "exception"))
            after = joined(after, self.block(handler.body, caught, frame))
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
            after = joined(after, self.block(case.body, here, frame))
        return after

    def _delete(self, node: ast.Delete, env: Env, frame: Frame) -> Env:
        for target in node.targets:
            if isinstance(target, ast.Name):
                env.pop(target.id, None)
            else:
                self._simple(node, env, frame)
        return env

    _STATEMENTS: Final[dict[type, Any]] = {
        ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _annotated_assign, ast.AugAssign: _augment,
        ast.Return: _return, ast.Raise: _raise, ast.If: _if, ast.For: _for, ast.AsyncFor: _for, ast.While: _while,
        ast.With: _with, ast.AsyncWith: _with, ast.Try: _try, ast.Import: Names._import,
        ast.ImportFrom: Names._import_from,
        ast.FunctionDef: Names._function, ast.AsyncFunctionDef: Names._function, ast.ClassDef: Names._class,
        ast.Delete: _delete,
        ast.Match: _match, ast.Break: _left_loop, ast.Continue: _left_loop,
        **({ast.TryStar: _try} if hasattr(ast, "TryStar") else {}),
    }  # fmt: skip
