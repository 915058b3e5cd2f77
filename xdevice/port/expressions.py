"""What the other expressions give."""

from __future__ import annotations

import ast
from typing import Any, Final

from .calls import Calls, filled, pattern_of
from .cells import Env, Frame
from .guards import counts_gpus, denies_gpu, narrowed
from .knowledge import SPELLING
from .names import Names
from .values import (
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

_NUMBERS: Final = ("int", "float", "bool", "available")


class Expressions(Calls):
    """Interprets expressions."""

    def expr(self, node: ast.expr, env: Env, frame: Frame) -> Value:
        """What an expression may be. This is also added to the node's `means`."""
        value: Value = self._EXPRESSIONS.get(type(node), Expressions._other)(self, node, env, frame)
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
        return filled(pattern, node)

    def _format(self, node: ast.FormattedValue, env: Env, frame: Frame) -> Value:
        self.expr(node.value, env, frame)
        if node.format_spec is not None:
            self.expr(node.format_spec, env, frame)
        return STR

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
                filled(pattern_of(node.left), node) if isinstance(op, ast.Mod) and isinstance(node, ast.BinOp) else STR
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
                here = narrowed(part, here, True)
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
        if counts_gpus(node, self):
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
        yes = self.expr(node.body, narrowed(node.test, env, True), frame)
        frame.has_gpu = before or denies_gpu(node.test)
        no = self.expr(node.orelse, narrowed(node.test, env, False), frame)
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
        for generator in node.generators:
            items = self.iterate(self.expr(generator.iter, inside, frame), generator.iter)
            self._bind_inside(generator.target, items, inside, frame)
            for test in generator.ifs:
                self.expr(test, inside, frame)
                inside = narrowed(test, inside, True)
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

    _EXPRESSIONS: Final[dict[type, Any]] = {
        ast.Constant: _constant, ast.JoinedStr: _text, ast.FormattedValue: _format, ast.Name: Names._name,
        ast.Attribute: Names._attribute, ast.Call: Calls._call_by_name, ast.Subscript: _subscript,
        ast.BinOp: _operation,
        ast.BoolOp: _boolean, ast.UnaryOp: _not, ast.Compare: _comparison, ast.IfExp: _choice, ast.List: _display,
        ast.Set: _display, ast.Tuple: _tuple, ast.Dict: _dict, ast.ListComp: _comprehension,
        ast.SetComp: _comprehension, ast.GeneratorExp: _comprehension, ast.DictComp: _comprehension,
        ast.Lambda: _lambda, ast.NamedExpr: _walrus, ast.Starred: _inner, ast.Await: _inner, ast.Yield: _yield,
    }  # fmt: skip
