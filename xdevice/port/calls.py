"""Finds the possible results of calls. The called object may be a function of the project, a function in the tables of
`knowledge`, or a method. Parameters, and other values that code passes to other code, are stored in cells (see
`cells`)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from . import knowledge
from .inference import Inference
from .knowledge import SPELLING, is_model
from .project import Class, Function
from .values import (
    ARRAY,
    BOOL,
    FLOAT,
    INT,
    NONE,
    NOTHING,
    STORAGE,
    STR,
    TENSOR,
    UNKNOWN,
    Atom,
    Value,
    is_only,
    make_value,
    tuple_of,
    union,
    value_of,
)

_FORWARD: Final = ("__call__", "forward", "call")
"""The methods that run when an object is called."""


@dataclass
class Invocation:
    """One call, with the possible values of its arguments. `results_of` and `results_of_method` add these
    values to the parameters of the functions that may be called, and return the possible
    results.

    Atoms describe the called object, and the object before the dot. An atom is one thing that an expression may be (see
    `values`). `UNKNOWN` is the value of an object about which nothing is known. At the end of this class, `_CALLEES`
    lists a method for each kind of called object, and `_OWNERS` lists one for each kind of object before the dot.
    """

    inference: Inference
    node: ast.Call
    values: list[Value]  # of the positional arguments
    keywords: dict[str | None, Value]  # of the keyword arguments; `**x` has the key None
    caller: Function | None  # the function that contains the call; None at module level
    has_gpu: bool  # whether a test around the call has shown that there is a GPU

    def __post_init__(self) -> None:
        inference = self.inference
        # short names for methods that many methods of this class use
        self.read_cell, self.add_to_cell, self.list_of = (
            inference.read_cell,
            inference.add_to_cell,
            inference.list_of,
        )
        self.value_of_items = inference.value_of_items
        self.first = self.values[0] if self.values else NOTHING
        # `*x` passes an unknown number of arguments, so the positions of later arguments are
        # unknown
        self.is_starred = any(isinstance(arg, ast.Starred) for arg in self.node.args)
        # for every call, and not only for `torch.load`: the callee may pass this argument on to `torch.load`, which
        # calls such a function with each storage of the file
        self._pass_storage_to(self.keywords.get("map_location", NOTHING))

    def results_of(self, callee: Value) -> Value:
        """Returns the possible results of calling `callee`: the union over all objects that it
        may be."""
        results = []
        for atom in callee:
            method = self._CALLEES.get(atom.kind, Invocation._other)
            results.append(method(self, atom))
        return union(*results)

    def results_of_method(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of calling the method `name` of the object that `owner`
        stands for. The result is "anything" for kinds of objects that `_OWNERS` does not
        list."""
        method = self._OWNERS.get(owner.kind)
        return method(self, owner, name) if method is not None else UNKNOWN

    def _argument(self, position: int, name: str, default: Value = NOTHING) -> Value:
        """Returns the value of an argument that may be passed by position or by name; `default`
        if the argument is left out."""
        if len(self.values) > position:
            return self.values[position]
        return self.keywords.get(name, default)

    def _pass_storage_to(self, map_location: Value) -> None:
        """Adds a storage to the first parameter of each function in the value of `map_location`."""
        for atom in map_location:
            if atom.kind in ("function", "bound"):
                is_bound = atom.kind == "bound" and atom.subject.is_method
                # `is_bound` counts as 0 or 1 (see `_pass_to`); [:1], because a function may have no parameters
                for name in atom.subject.positional[is_bound:][:1]:
                    self.add_to_cell((atom.subject, name), STORAGE)

    def _pass_arguments_out(self) -> None:
        """Records that all arguments are passed to code outside the project. If an argument is a function, that code
        may call it with any arguments.
        """
        self.inference.mark_as_passed_out(union(*self.values, *self.keywords.values()))

    def _other(self, callee: Atom) -> Value:
        """Returns "anything": the result of calling an object of a kind that `_CALLEES` does not list."""
        self._pass_arguments_out()
        return UNKNOWN

    # calls of functions and classes of the project

    def _function(self, callee: Atom) -> Value:
        """Returns the possible results of calling a function or bound method of the project."""
        function: Function = callee.subject
        self._pass_to(function, is_bound=callee.kind == "bound" and function.is_method)
        return self.read_cell((function, "return"))

    def _class(self, callee: Atom) -> Value:
        """Returns the result of calling a class of the project: an object of this class. The
        values of the arguments are added to the parameters of `__init__`."""
        instance = make_value("instance", callee.subject)
        # if neither the class nor a base in the project has an `__init__`, no code of the project
        # gets the arguments
        init = callee.subject.method("__init__")
        if init is not None:
            self.add_to_cell((init, init.receiver), instance)
            self._pass_to(init, is_bound=True)
        return instance

    def _instance(self, callee: Atom) -> Value:
        """Returns the possible results of calling an object of a class of the project; "anything" if the class has none
        of the methods in `_FORWARD`.
        """
        # PyTorch calls `forward`, Keras calls `call`, and a class that uses no framework has
        # `__call__`
        for name in _FORWARD:
            method = callee.subject.method(name)
            if method is not None:
                self._pass_to(method, is_bound=True)
                return self.read_cell((method, "return"))
        return UNKNOWN

    def _pass_to(self, function: Function, is_bound: bool) -> None:
        """Adds the values of the arguments to the parameters of a function. If `is_bound`, the
        first parameter is the object before the dot, and receives none of the arguments."""
        function.has_callers = True
        # `is_bound` counts as 0 or 1: without the first parameter if it is True, because that parameter has its value
        # already
        names = function.positional[is_bound:]
        cell_of_args = "items", (function, "*")  # for the items of `*args`
        for i, (arg, value) in enumerate(zip(self.node.args, self.values, strict=True)):
            # each item of `*x` may be passed to any of the following parameters
            if isinstance(arg, ast.Starred):
                items = self.value_of_items(value)
                for key in (*((function, name) for name in names[i:]), cell_of_args):
                    self.add_to_cell(key, items)
                # arguments after `*x` are ignored, because their positions are unknown
                break
            # an argument after those for all positional parameters is an item of `*args`
            self.add_to_cell((function, names[i]) if i < len(names) else cell_of_args, value)
        # every parameter can be passed by name
        names = [*names, *function.keywords]
        cell_of_kwargs = "items", (function, "**")  # for the values of `**kwargs`
        for name, value in self.keywords.items():
            # `**x` may pass any value to any parameter, because the items of x are not followed by key
            if name is None:
                for key in (*((function, name) for name in names), cell_of_kwargs):
                    self.add_to_cell(key, UNKNOWN)
            else:
                self.add_to_cell((function, name) if name in names else cell_of_kwargs, value)

    # calls of functions and objects outside the project

    def _model(self, callee: Atom) -> Value:
        """Returns the possible results of calling a layer or model of a framework."""
        self._pass_arguments_out()
        return knowledge.output_of_model(callee.subject) or UNKNOWN

    def _foreign(self, callee: Atom) -> Value:
        """Returns the possible results of calling a function outside the project, from the
        tables of `knowledge`."""
        full_name: str = callee.subject  # such as "torch.device"
        if full_name.startswith("builtins."):
            return self._builtin(full_name.removeprefix("builtins."))
        # torch and torch_xla have this function, and many training scripts call their main
        # function only through it
        if full_name.endswith("multiprocessing.spawn") and self.values:
            return self._spawn()
        self._pass_arguments_out()
        self.node.has_gpu = self.has_gpu  # type: ignore[attr-defined]  # for rules whose word needs a GPU
        if full_name == "torch.load":
            self._pass_storage_to(self._argument(1, "map_location"))
        if full_name in knowledge.DEVICE_MAKERS:
            return make_value("device", origin=self.node)
        if full_name in knowledge.DEVICE_LISTS:
            return self.list_of(self.node, make_value("device", origin=self.node))
        if full_name in knowledge.LOADERS:
            # if so, a function of the program creates the batch, so nothing is known about it
            is_collated = "collate_fn" in self.keywords or "batchify_fn" in self.keywords
            dataset = self._argument(0, "dataset", default=UNKNOWN)
            item = union(*map(self.inference.value_of_subscript, dataset))
            return self.list_of(self.node, UNKNOWN if is_collated else _collate(item))
        # such as TensorDataset(x, y): each item contains a tensor for each argument
        if full_name in knowledge.TENSOR_SETS:
            item = UNKNOWN if self.is_starred else tuple_of([TENSOR for _ in self.values])
            return self.list_of(self.node, item)
        if full_name in knowledge.COPIES:
            return self.first if self.values else UNKNOWN
        if full_name == "argparse.ArgumentParser":
            return make_value("parser", self.node)
        # a switch for the whole process: after this call, decord returns tensors of a framework
        # instead of its own arrays (see `_method_of_result`)
        if full_name == "decord.bridge.set_bridge":
            self.add_to_cell(("bridge", "decord"), UNKNOWN)
        return knowledge.result_of_call(full_name) or make_value("result", full_name)

    def _spawn(self) -> Value:
        """Returns the result of `torch.multiprocessing.spawn(function, args)`, which is None.
        `spawn` calls the function in each process, and passes the rank and the items of `args`;
        these values are added to the function's parameters."""
        arguments = self._argument(1, "args", default=tuple_of([]))
        for atom in self.first:
            if atom.kind != "function":
                continue
            # only if `args` can be only one tuple is it known which parameter gets which item.
            # Otherwise, the function may be called with any arguments
            if len(arguments) != 1 or not is_only(arguments, ("tuple",)):
                self.inference.mark_as_passed_out(value_of(atom))
                continue
            (argument,) = arguments
            function: Function = atom.subject
            function.has_callers = True
            # the rank is the first argument. Not strict, because later parameters may have defaults
            for name, value in zip(function.positional, (INT, *argument.subject), strict=False):
                self.add_to_cell((function, name), value)
        return NONE

    def _builtin(self, name: str) -> Value:
        """Returns the possible results of calling one of Python's built-in functions."""
        if name in knowledge.BUILTINS:
            return knowledge.BUILTINS[name]
        match name:
            case "super":
                # `super()` without arguments refers to the class in which the calling method is
                # defined
                owner = self.caller.owner if self.caller is not None else None
                return UNKNOWN if owner is None else make_value("super", owner)
            # these are taken to return their argument: `iter` and `reversed` keep its items, and
            # `abs` keeps its type
            case "iter" | "reversed" | "abs":
                return self.first
            case "next":
                return self.value_of_items(self.first)
            case "list" | "tuple" | "set" | "sorted" | "frozenset":
                return self.list_of(self.node, self.value_of_items(self.first))
            case "range":
                return self.list_of(self.node, INT)
            case "enumerate":
                return self.list_of(self.node, tuple_of([INT, self.value_of_items(self.first)]))
            case "zip":
                item = (
                    UNKNOWN
                    if self.is_starred
                    else tuple_of(map(self.value_of_items, self.values))
                )
                return self.list_of(self.node, item)
            case "map":
                return self.list_of(self.node, self._mapped())
            # `dict(pairs, key=value)`: the pairs are not followed
            case "dict":
                pairs = UNKNOWN if self.values else NOTHING
                return self.inference.dict_of(self.node, union(pairs, *self.keywords.values()))
            case "sum":
                # the items are added to `start`, which is 0 by default
                return union(
                    self.value_of_items(self.first), self._argument(1, "start", default=INT)
                )
            case "max" | "min":
                return (
                    union(*self.values)
                    if len(self.values) > 1
                    else self.value_of_items(self.first)
                )
        self._pass_arguments_out()
        return UNKNOWN

    def _mapped(self) -> Value:
        """Returns the items of `map(function, ...)`: the results of calling the function with
        the items of the other arguments."""
        # `map` calls the function where the source has no call, so a node for these calls is made up: one call whose
        # arguments are all arguments of `map` but the function. It is created only once, because it may become the key
        # of a list that the calls return
        node = getattr(self.node, "mapped", None)
        if node is None:
            node = ast.copy_location(
                ast.Call(self.node.func, self.node.args[1:], keywords=[]), self.node
            )
            self.node.mapped = node  # type: ignore[attr-defined]
        items = [self.value_of_items(value) for value in self.values[1:]]
        return replace(self, node=node, values=items, keywords={}).results_of(self.first)

    # calls of methods; `owner` is the object before the dot

    def _attribute(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on a module, class, object or `super()` of
        the project, or on a name outside the project. The method is looked up like any other
        attribute."""
        return self.results_of(self.inference.attribute(owner, name, self.node.func))

    def _method_of_unknown(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on an unknown object."""
        self._pass_arguments_out()
        # the call may reach any method of this name in the project, so the arguments are added
        # to the parameters of each
        for function in self.inference.methods.get(name, ()):
            self._pass_to(function, is_bound=function.is_method)
        # only the arrays of MXNet and decord have this method
        if name == "asnumpy":
            return ARRAY
        # the program may have assigned a function to this attribute of an unknown object. Only such known values are
        # called here: the result of calling "anything" (`UNKNOWN`) is in the union already
        return union(UNKNOWN, self.results_of(self.read_cell(("attr", None, name)) - UNKNOWN))

    def _method_of_instance(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on an object of a class of the project.
        The class may inherit the method from a class of a framework."""
        cls: Class = owner.subject
        # in Lightning and d2l, `self.save_hyperparameters()` sets an attribute for each
        # argument of the method that calls it
        if name == "save_hyperparameters" and self.caller is not None:
            # all parameters but `self`
            for arg in self.caller.args[1:]:
                key = self.inference.attribute_key(cls, arg.arg)
                self.add_to_cell(key, self.read_cell((self.caller, arg.arg)))
            return NONE
        if cls.method(name) is None and is_model(owner):
            if name in knowledge.MODEL_METHODS or name == "parameters":
                return self._method_of_model(owner, name)
            # `self.register_buffer("mask", tensor)` sets an attribute
            buffer = _constant(self.node.args[0]) if self.node.args else None
            if name == "register_buffer" and len(self.values) > 1 and isinstance(buffer, str):
                self.add_to_cell(self.inference.attribute_key(cls, buffer), self.values[1])
                return NONE
        return self._attribute(owner, name)

    def _method_of_model(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on a framework's layer, model or
        optimizer."""
        if name in ("parameters", "trainable_weights", "buffers"):
            return self.list_of(self.node, TENSOR)
        # methods such as `to` and `eval` return the object itself
        return value_of(owner) if name in knowledge.MODEL_METHODS else UNKNOWN

    def _method_of_tensor(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on a tensor. The result is "anything"
        for a method that is in no table."""
        has_arguments = bool(self.values or self.node.keywords)
        # with an axis, these methods return values and indices in PyTorch, but only one tensor
        # in other frameworks
        if name in ("max", "min"):
            return union(TENSOR, tuple_of([TENSOR, TENSOR])) if has_arguments else TENSOR
        # in PyTorch, `x.size(0)` is a number, and `x.size()` is a tuple of numbers
        if name == "size":
            return INT if has_arguments else self.list_of(self.node, INT)
        if name in knowledge.TENSOR_LISTS:
            return self.list_of(self.node, knowledge.TENSOR_LISTS[name])
        return knowledge.TENSOR_METHODS.get(name, UNKNOWN)

    def _method_of_array(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on an array on the host. All methods
        except `item` are assumed to return arrays."""
        return FLOAT if name == "item" else ARRAY

    def _method_of_text(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on a string."""
        if name == "format":
            return value_of_filled_text(pattern_of(self.node.func.value), self.node)  # type: ignore[attr-defined]
        return knowledge.TEXT_METHODS.get(name, STR)

    def _method_of_container(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on a list or dict. The method may add
        items."""
        items = "items", owner.subject  # the key of the cell
        match name:
            # the last argument of each of these methods is the item
            case "append" | "add" | "insert" | "setdefault" if self.values:
                self.add_to_cell(items, self.values[-1])
                return self.read_cell(items) if name == "setdefault" else NONE
            case "extend" | "update" if self.values:
                is_list = owner.kind == "list"
                more = (
                    self.value_of_items(self.first)
                    if is_list
                    else union(*map(self.inference.items, self.first))
                )
                self.add_to_cell(items, more)
                return NONE
            case "get":
                # the result is None if the key is missing and there is no default
                return union(self.read_cell(items), *self.values[1:], NONE)
            case "pop" | "popleft":
                return union(self.read_cell(items), *self.values[1:])
            case "copy":
                return value_of(owner)
            case "values":
                return self.list_of(self.node, self.read_cell(items))
            case "items":
                return self.list_of(self.node, tuple_of([UNKNOWN, self.read_cell(items)]))
        return UNKNOWN

    def _method_of_parser(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on an `argparse.ArgumentParser`, or on
        one of its groups."""
        namespace = make_value("namespace", owner.subject)
        match name:
            case "parse_args":
                return namespace
            case "parse_known_args":
                return tuple_of([namespace, UNKNOWN])
            case "add_argument":
                self._add_argument(owner.subject)
                return UNKNOWN
        # such as `add_argument_group`: the group's arguments become attributes of the same
        # namespace
        return value_of(owner)

    def _add_argument(self, parser: ast.AST) -> None:
        """Interprets `parser.add_argument(...)`: adds the possible values of a command-line argument to the cell that
        `args.name` reads. `parser` is the call that created the parser.
        """
        flags = [flag for flag in map(_constant, self.node.args) if isinstance(flag, str)]
        options: dict[str | None, Any] = {
            keyword.arg: keyword.value for keyword in self.node.keywords
        }
        # argparse names the attribute after the first long flag or, if there is none, after the
        # first flag
        long_flags = [flag for flag in flags if flag.startswith("--")]
        first_flag = next(iter(long_flags or flags), "")
        name = _constant(options.get("dest")) or first_flag.lstrip("-").replace("-", "_")
        action = _constant(options.get("action"))
        # an option that the user leaves out is None; a positional argument cannot be left out
        default = self.keywords.get("default", NONE if first_flag.startswith("-") else NOTHING)
        if action in ("store_true", "store_false"):
            value = BOOL
        # a list, a count, or an action that the program defines
        elif "nargs" in options or action not in (None, "store"):
            value = UNKNOWN
        else:
            # the values of a type such as `type=int` are known, but if `type` is a function, it may return anything
            type_name = getattr(options["type"], "id", "") if "type" in options else "str"
            value = union(knowledge.PLAIN_TYPES.get(type_name, UNKNOWN), default)
        self.add_to_cell(("arg", parser, name), value)

    def _method_of_result(self, owner: Atom, name: str) -> Value:
        """Returns the possible results of a method call on an object that was returned by a
        function outside the project. `owner.subject` is the full name of that function."""
        match owner.subject, name:
            # it returns its arguments in wrappers
            case "accelerate.Accelerator", "prepare":
                return self.first if len(self.values) == 1 else tuple_of(self.values)
            case _, "asnumpy":
                return ARRAY
            # the cell is empty unless the program calls decord's `set_bridge` (see `_foreign`)
            case "decord.VideoReader", "get_batch":
                return self.read_cell(("bridge", "decord")) or knowledge.DECORDS_ARRAY
            # for a variable, it returns a gradient; for a list of variables, it returns a list
            # of gradients
            case "tensorflow.GradientTape", "gradient":
                return TENSOR if self.values[1:2] == [TENSOR] else UNKNOWN
        self._pass_arguments_out()
        return UNKNOWN

    _CALLEES: ClassVar[dict[str, Any]] = {
        "bound": _function,
        "class": _class,
        "foreign": _foreign,
        "function": _function,
        "instance": _instance,
        "model": _model,
    }
    _OWNERS: ClassVar[dict[str, Any]] = {
        "anything": _method_of_unknown,
        "array": _method_of_array,
        "class": _attribute,
        "dict": _method_of_container,
        "foreign": _attribute,
        "instance": _method_of_instance,
        "list": _method_of_container,
        "module": _attribute,
        "super": _attribute,
        "model": _method_of_model,
        "optimizer": _method_of_model,
        "parser": _method_of_parser,
        "result": _method_of_result,
        "spelling": _method_of_text,
        "str": _method_of_text,
        "tensor": _method_of_tensor,
    }


def _collate(item: Value) -> Value:
    """Returns the value of a batch of items. A data loader creates the batch, and `item` is the value of each item."""
    return union(*map(_collate_atom, item))


def _collate_atom(atom: Atom) -> Value:
    """Returns the value of the batch for one possible item. The batch is a tensor if the item is a tensor, a number or
    an array, and a tuple of batches if the item is a tuple. For all other items, the batch may be anything.
    """
    if atom.kind in ("tensor", "array", "int", "float", "bool"):
        return TENSOR
    return tuple_of(map(_collate, atom.subject)) if atom.kind == "tuple" else UNKNOWN


def _constant(node: ast.expr | None) -> Any:
    """Returns the value of a literal; None for any other expression, or if `node` is None."""
    return node.value if isinstance(node, ast.Constant) else None


def pattern_of(node: ast.expr) -> str:
    """Returns the pattern of a string literal into which `format` or `%` inserts values. The
    pattern has a star in place of each value, such as "cuda:*" for "cuda:{}". Returns "" for any
    other expression."""
    text = _constant(node)
    return re.sub(r"\{\d*\}|%[ds]", "*", text) if isinstance(text, str) else ""


def value_of_filled_text(pattern: str, node: ast.AST) -> Value:
    """Returns the value of the string that results from inserting values into `pattern`. The string is the name of a
    device if `pattern` has the form of such a name; otherwise, it may be any string. `node` is the expression that
    creates the string.
    """
    return (
        make_value("spelling", pattern, node)
        if "*" in pattern and SPELLING.fullmatch(pattern)
        else STR
    )
