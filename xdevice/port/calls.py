"""What calls give: of functions of the project, of those that tables know, and of methods."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from . import knowledge
from .cells import Env, Frame
from .knowledge import SPELLING, is_model
from .names import Names
from .project import Class, Function
from .values import (
    ANYTHING,
    ARRAY,
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
    of,
    only,
    tuple_of,
    union,
)

_FORWARD: Final = ("__call__", "forward", "call")
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


class Calls(Names):
    """Interprets calls, and hands their arguments to the parameters."""

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
                return filled(pattern_of(node.func.value), node)
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


def pattern_of(node: ast.expr) -> str:
    """A text that is filled in by `format` or `%`, with a star for each value."""
    text = node.value if isinstance(node, ast.Constant) else ""
    return re.sub(r"\{\d*\}|%[ds]", "*", text) if isinstance(text, str) else ""


def filled(pattern: str, node: ast.AST) -> Value:
    """What a text with values filled in is: a device's name if it can be one."""
    return of(("spelling", pattern, node)) if "*" in pattern and SPELLING.fullmatch(pattern) else STR
