"""Interprets the statements and expressions of a project. An expression does not have one value, but a set of possible
values (see `values`). The values that code passes to other code are stored in cells (see `cells`).

Modules and functions are interpreted one by one until nothing changes any more. They pass values to each other
(arguments, returned values, attributes, globals, items of lists) through cells. When a cell grows, the modules and
functions that have read it are interpreted again. There are two phases. In the first phase, a value that is not known
yet is empty (`NOTHING`) instead of "anything" (`UNKNOWN`). The order of the modules therefore does not matter. In the
second phase, the parameters of functions that code outside the project may call get the values that their annotations
allow, or "anything".
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from typing import Any, Final

from . import knowledge
from .calls import Invocation, pattern_of, value_of_filled_text
from .cells import Task
from .guards import (
    GPU,
    Env,
    env_after_test,
    is_gpu_count_test,
    is_selected_tab,
    joined_envs,
    skips_without_gpu,
)
from .inference import Inference
from .progress import Progress, no_progress
from .project import Class, Function, Project, absolute_module_name, classes_in
from .sources import PythonModule
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
    inferred,
    is_only,
    make_value,
    may_be,
    tuple_of,
    union,
    value_of,
)

_BUILTINS: Final = frozenset(dir(builtins))
_END_OF_PROGRAM: Final = {"sys.exit", "builtins.exit", "builtins.quit", "os._exit"}
_MAX_ROUNDS: Final = 5
"""The maximum number of times that the body of a loop is interpreted. If values still change after
that, every name is assumed to have any value."""
# the kinds of atoms for Python numbers. An atom of the kind "available" stands for a bool
_NUMBERS: Final = ("int", "float", "bool", "available")
_HOST_NUMBERS: Final = ("array", *_NUMBERS)


def infer(project: Project, progress: Progress = no_progress) -> Inference:
    """Finds the possible values of each expression of a project, and stores them as the
    attribute `means` of its node. Returns an `Inference` with the facts about the project,
    which the rules use."""
    interpreter = Interpreter(project)
    for module in project.modules:
        interpreter.schedule(module)
    # the first phase: until no cell grows any more
    interpreter.run_queue(interpreter.run, progress)
    for key, value in list(interpreter.values.items()):
        # a global name that still has no value, such as one that is imported from a module that
        # does not define it
        if isinstance(key[0], PythonModule) and not value:
            # in the first phase, an empty value means "not known yet"; from now on, the name
            # may be anything
            interpreter.add_to_cell(key, UNKNOWN)
    # the second phase: a function may be called with any arguments if it was passed to code
    # outside the project, or if nothing in the project calls it. Only now is it known which
    # functions these are. If this phase finds callers in the project, their arguments are added
    for function in interpreter.functions.values():
        if function.has_unknown_callers or not function.has_callers:
            interpreter.assume_unknown_callers(function)
    interpreter.run_queue(interpreter.run, progress)
    return interpreter


class Interpreter(Inference):
    """Interprets the modules and functions of a project, one at a time. `read_cell` and `add_to_cell` read and extend
    the cells, in which modules and functions pass values to each other (see `cells`).

    The method for a statement returns the *environment* after it: a dict with the possible
    values of each name. It returns None if the next statement is never reached. The method for
    an expression returns its possible values. `_METHODS`, at the end of this class, maps each
    class of node to its method.
    """

    function: Function | None
    """The function that is being interpreted; None while the code of a module itself is
    interpreted."""
    module: PythonModule
    env: Env
    """The environment before the statement that is being interpreted."""
    current_class: Class | None
    """The class whose body is being interpreted; None outside the bodies of classes."""
    _early_ends: list[list[Env]]
    """A list for each loop around the statement that is being interpreted. It contains the
    environments at the loop's `break`s and `continue`s. The outermost loop comes first."""

    def run(self, task: Task) -> None:
        """Interprets a module or a function once."""
        # a task is interpreted several times, each time from the start
        self.env, self.current_class, self._early_ends = {}, None, []
        if isinstance(task, PythonModule):
            self.function, self.module = None, task
            # no test has shown yet that there is a GPU (see `guards.GPU`)
            self._block(task.tree.body, {GPU: NONE})
            return
        function, self.module = task, task.module
        self.function = function
        for arg in function.args:
            self.env[arg.arg] = self.read_cell((function, arg.arg))
        parameters = function.node.args
        if parameters.vararg:
            # no expression creates this list, so its key is made from the function
            self.env[parameters.vararg.arg] = make_value("list", (function, "*"))
        if parameters.kwarg:
            self.env[parameters.kwarg.arg] = make_value("dict", (function, "**"))
        # so far, the environment contains exactly the parameters
        for name, value in self.env.items():
            # inner functions read the parameters of the functions around them from these cells
            self.add_to_cell((function, "local", name), value)
        # a decorator of the function or of its class may skip the function on machines without
        # a GPU. A test for a GPU around a call of the function proves nothing, because other
        # calls may have no such test
        of_class = function.owner.node.decorator_list if function.owner is not None else []
        is_tested = skips_without_gpu(
            [*getattr(function.node, "decorator_list", ()), *of_class]
        )
        # an empty value means "there is a GPU" (see `guards.GPU`)
        self.env[GPU] = NOTHING if is_tested else NONE
        if isinstance(function.node, ast.Lambda):
            self.add_to_cell((function, "return"), self.evaluate(function.node.body))
        # if the end of the body is reached, the function may return None. `_return` adds all other results. A call of a
        # generator returns an iterator in any case
        elif self._block(function.node.body, self.env) is not None and not function.has_yield:
            self.add_to_cell((function, "return"), NONE)

    def evaluate(self, node: ast.expr) -> Value:
        """Returns the possible values of an expression, and stores them as `node.means`."""
        value: Value = self._METHODS.get(type(node), Interpreter._other_expression)(self, node)
        node.means = value  # type: ignore[attr-defined]
        return value

    def _evaluate_parts(self, node: ast.AST) -> None:
        """Evaluates the expressions that are direct children of a node, and so stores their `means` for the rules.
        Returns nothing."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)

    # statements

    def _block(self, body: Sequence[ast.stmt], env: Env | None) -> Env | None:
        """Interprets the statements of a block in order, beginning with the environment `env`. Stops after a statement
        that always leaves the block, such as `return`. Returns the environment at the end of the block, or None if the
        end is never reached."""
        for statement in body:
            # after `return`, `raise` and the like: the remaining statements get no `means`, so
            # that the rules skip them
            if env is None:
                break
            self.env = env
            env = self._METHODS.get(type(statement), Interpreter._other_statement)(
                self, statement
            )
        return env

    def _other_statement(self, node: ast.stmt) -> Env | None:
        """Interprets a statement that binds no names, such as `assert`."""
        self._evaluate_parts(node)
        return self.env

    def _expression(self, node: ast.Expr) -> Env | None:
        """Evaluates an expression that is a statement. Returns None for a call that ends the
        program, such as `sys.exit()`, because nothing is reached after it."""
        self.evaluate(node.value)
        call = node.value
        if isinstance(call, ast.Call) and self.full_name(call.func) in _END_OF_PROGRAM:
            return None
        return self.env

    def _assign(self, node: ast.Assign) -> Env:
        """Interprets `a = b = value`: binds each target to the value."""
        value = self.evaluate(node.value)
        # d2l's own modules refer to themselves like this: `d2l = sys.modules[__name__]`
        if (
            isinstance(node.value, ast.Subscript)
            and ast.unparse(node.value) == "sys.modules[__name__]"
        ):
            value = make_value("module", self.module)
        for target in node.targets:
            self.bind(target, value)
        return self.env

    def _annotated_assign(self, node: ast.AnnAssign) -> Env:
        """Interprets `a: int = value`: binds the target to the value. If a field of a class has an annotation but no
        value, the field is bound to the values that the annotation allows.
        """
        # if there is a value, the annotation is ignored, because it may be too wide or wrong
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value))
        elif self.current_class is not None:  # other code sets the field, such as `__init__`
            self.bind(
                node.target, self.value_of_annotation(node.annotation, self.module) or UNKNOWN
            )
        return self.env

    def _augmented_assign(self, node: ast.AugAssign) -> Env:
        """Interprets `a += value`: binds the target to the result of the operation."""
        # `x += 1` first reads x, and then binds it
        left, right = self.evaluate(node.target), self.evaluate(node.value)
        self.bind(node.target, self._operate(node, left, right))
        return self.env

    def _return(self, node: ast.Return) -> None:
        """Adds the value to the function's cell for returned values. The next statement is
        never reached."""
        value = self.evaluate(node.value) if node.value else NONE
        # callers of a generator do not receive the value of its `return`
        if self.function is not None and not self.function.has_yield:
            self.add_to_cell((self.function, "return"), value)

    def _raise(self, node: ast.Raise) -> None:
        """Evaluates the exception. The next statement is never reached."""
        self._evaluate_parts(node)

    def _break_or_continue(self, node: ast.Break | ast.Continue) -> None:
        """Stores the environment at a `break` or `continue`. At the end of the round, `_loop`
        joins all these environments. The next statement is never reached."""
        # the list is empty for a `break` outside a loop: Python reports this error when it
        # compiles the tree, but not when it parses the text
        if self._early_ends:
            self._early_ends[-1].append(dict(self.env))

    def _if(self, node: ast.If) -> Env | None:
        """Interprets each branch, with the names narrowed to the values that the test allows,
        and joins the environments at the ends of the branches."""
        env = self.env
        self.evaluate(node.test)
        # d2l writes the code of all frameworks into one cell: only one branch belongs to this
        # tab
        is_tab = is_selected_tab(node.test, self.module)
        if is_tab is not None:
            return self._block(node.body if is_tab else node.orelse, env)
        # both branches begin with the environment before the `if`, narrowed by the test or by
        # its opposite
        then = self._block(node.body, env_after_test(node.test, env, is_true=True))
        return joined_envs(
            then, self._block(node.orelse, env_after_test(node.test, env, is_true=False))
        )

    def _for(self, node: ast.For | ast.AsyncFor) -> Env | None:
        """Binds the variable to the items, and interprets the body until the environment no
        longer changes. Then interprets `else`."""
        items = self.value_of_items(self.evaluate(node.iter))

        # the items are evaluated once, before the first round, but the variable is bound in
        # each round
        def interpret_round() -> Env | None:
            """Interprets one round of the loop, and returns the environment at its end."""
            self.bind(node.target, items)
            return self._block(node.body, self.env)

        return self._block(node.orelse, self._loop(node, interpret_round))

    def _while(self, node: ast.While) -> Env | None:
        """Interprets the body, with the environment narrowed by the test, until the environment
        no longer changes. Then interprets `else`."""

        def interpret_round() -> Env | None:
            """Interprets one round of the loop, and returns the environment at its end."""
            self.evaluate(node.test)
            return self._block(node.body, env_after_test(node.test, self.env, is_true=True))

        return self._block(node.orelse, self._loop(node, interpret_round))

    def _loop(self, node: ast.AST, interpret_round: Callable[[], Env | None]) -> Env:
        """Returns the environment at the end of a loop. `interpret_round` interprets one round of the
        loop, and is called until the environment no longer changes.

        If the loop has been interpreted before, the first round also begins with the values that the names had at the
        end of the loop last time. So the body of an inner loop is usually interpreted only once in each round of the
        outer loop.
        """
        ends = self.loop_ends
        # values only grow, so all values from the end of an earlier round are still possible
        # (`or` is for type checkers: `joined_envs` returns None only if both arguments are None)
        before = joined_envs(self.env, ends.get(node)) or self.env
        for _ in range(_MAX_ROUNDS):
            self.env = dict(before)
            # a new list for each round. `interpret_round`, whose call comes before `pop` below, runs
            # `_break_or_continue`, which fills the list
            self._early_ends.append([])
            # the loop may also end without this round
            after = before
            for end in (interpret_round(), *self._early_ends.pop()):
                after = joined_envs(after, end) or before
            if after == before:
                break
            before = after
        else:  # each round has added values, so the names may be anything
            before = {name: value | UNKNOWN for name, value in before.items()}
        # the last round has changed nothing, so these are also the values at the end of the loop
        ends[node] = before
        return before

    def _with(self, node: ast.With | ast.AsyncWith) -> Env | None:
        """Binds the names after `as`, and interprets the body."""
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if item.optional_vars is not None:
                # `__enter__` is assumed to return the object itself for a device, for an object
                # of a class of the project, and for the result of a function outside the
                # project. Any other `__enter__` may return anything
                is_itself = is_only(value, ("result", "device", "instance"))
                self.bind(item.optional_vars, value if is_itself else UNKNOWN)
        return self._block(node.body, self.env)

    def _try(self, node: ast.Try) -> Env | None:
        """Interprets the body, `else`, each handler and `finally`. The environments at the ends
        of the body and of the handlers are joined."""
        # a copy, because the statements of the body change `env`
        env, before = self.env, dict(self.env)
        after = self._block(node.body, env)
        if after is not None:
            after = self._block(node.orelse, after)
        # the body may fail anywhere, so a handler begins with both the values before the body
        # and those at its end
        for handler in node.handlers:
            # `env` also has names that the body binds, even if its end is never reached
            self.env = env | (joined_envs(before, after) or before)
            if handler.type is not None:
                self.evaluate(handler.type)
            if handler.name:
                # a result that no rule recognizes: an exception is neither a device nor a
                # tensor
                self.env[handler.name] = make_value("result", "exception")
            after = joined_envs(after, self._block(handler.body, self.env))
        # the body and all handlers return or raise: `finally` runs before that, and the next
        # statement is never reached
        if after is None:
            self._block(node.finalbody, before)
            return None
        return self._block(node.finalbody, after)

    def _match(self, node: ast.Match) -> Env | None:
        """Interprets each case, and joins the environments at the ends of the cases. The names
        in a pattern may be anything."""
        self.evaluate(node.subject)
        env = self.env
        # perhaps no case matches, so that the names keep their values
        after: Env | None = dict(env)
        for case in node.cases:
            self.env = dict(env)
            # the names that a pattern binds: `case x`, `case [*x]`, `case {**x}`
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    self._bind_name(name, UNKNOWN)
                if isinstance(part, ast.expr):
                    self.evaluate(part)
            if case.guard is not None:
                self.evaluate(case.guard)
            after = joined_envs(after, self._block(case.body, self.env))
        return after

    def _delete(self, node: ast.Delete) -> Env:
        """Removes deleted names from the environment."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                # a later read of the name raises, or finds a global
                self.env.pop(target.id, None)
            else:
                self.evaluate(target)
        return self.env

    def _import(self, node: ast.Import) -> Env:
        """Interprets `import a.b`, which binds `a` to the package, and `import a.b as c`, which binds `c` to the module
        `b` in the package.
        """
        for alias in node.names:
            package = alias.name.split(".")[0]
            # even without `as`, because the call records that this module imports a.b
            value = self.value_of_import(alias.name, self.module)
            if not alias.asname:
                value = self.value_of_import(package, self.module)
            self._bind_name(alias.asname or package, value)
        return self.env

    def _import_from(self, node: ast.ImportFrom) -> Env:
        """Interprets `from a import b`, which binds `b`. For `from a import *`, only records the module `a`; later,
        `global_value` looks up names in this module.
        """
        origin = absolute_module_name(node, self.module)
        for alias in node.names:
            if alias.name == "*":
                self.add_to_cell((self.module, "*"), self.value_of_import(origin, self.module))
            else:
                value = self.value_of_from_import(origin, alias.name, self.module)
                self._bind_name(alias.asname or alias.name, value)
        return self.env

    # functions and classes

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Env:
        """Evaluates the defaults and decorators of a function, and binds its name. The body is
        interpreted as a separate task. A method is also stored in its class."""
        function = self._function_of(node, node.name, self.current_class)
        self._read_defaults(function)
        value = make_value("function", function)
        # the decorator next to the function is called first
        for decorator in reversed(node.decorator_list):
            value = self._decorate(decorator, function, value)
        # not a method
        if self.current_class is None:
            self._bind_name(node.name, value)
            return self.env
        # calls on objects of the class look the method up by its name
        self.current_class.methods[node.name] = function
        # a call of a method with this name on an unknown object may call this method
        namesakes = self.methods.setdefault(node.name, [])
        if function not in namesakes:
            namesakes.append(function)
        # `_class` puts the names of the body into the cells of attributes
        self.env[node.name] = value
        return self.env

    def _function_of(self, node: Any, name: str, owner: Class | None) -> Function:
        """Returns the `Function` for a definition or lambda. It is created and scheduled when
        the node is interpreted for the first time. `owner` is the class if the function is a
        method, else None."""
        function = self.functions.get(node)
        # always the same object for a node, because keys of cells contain it
        if function is not None:
            return function
        function = self.functions[node] = Function(
            node, self.module, name, owner, self.function
        )
        # the decorators' names in the source, without arguments
        decorators = {
            ast.unparse(decorator).split("(")[0]
            for decorator in getattr(node, "decorator_list", ())
        }
        function.is_method = owner is not None and "staticmethod" not in decorators
        function.is_property = not decorators.isdisjoint(
            ("property", "cached_property", "functools.cached_property")
        )
        if function.receiver:
            self.add_to_cell(
                (function, function.receiver),
                make_value("class" if "classmethod" in decorators else "instance", owner),
            )
        # a call of a generator function is treated as returning a list, whose items are the
        # values of the `yield`s
        if function.has_yield:
            self.add_to_cell((function, "return"), make_value("list", (function, "yield")))
        self.schedule(function)
        return function

    def _read_defaults(self, function: Function) -> None:
        """Evaluates the defaults of a function's parameters, and adds their values to the
        parameters' cells."""
        parameters = function.node.args
        # defaults belong to the last positional parameters, so both lists are read from their
        # ends; strict=False, because there may be fewer defaults than parameters
        positional = zip(
            reversed(function.positional), reversed(parameters.defaults), strict=False
        )
        for name, default in (
            *positional,
            *zip(function.keywords, parameters.kw_defaults, strict=True),
        ):
            if default is not None:
                self.add_to_cell((function, name), self.evaluate(default))

    def _decorate(self, node: ast.expr, function: Function, value: Value) -> Value:
        """Returns the value of a function with a decorator. `value` is the value of the
        function without the decorator. If the decorator is known to change neither the
        arguments nor the results, the same value is returned; otherwise, "anything"."""
        self.evaluate(node)
        decorator = node.func if isinstance(node, ast.Call) else node
        name = self.full_name(decorator) or ast.unparse(decorator)
        # d2l distributes the methods of a class over several cells of a page:
        # `@d2l.add_to_class(Trainer)` above a function makes the function a method
        if name.endswith("add_to_class") and isinstance(node, ast.Call) and node.args:
            for cls in classes_in(inferred(node.args[0])):
                cls.methods.setdefault(function.name, function)
                function.owner, function.is_method = cls, True
                # None for a function that receives the object through `*args`
                if function.receiver:
                    self.add_to_cell((function, function.receiver), make_value("instance", cls))
            return value
        if name in knowledge.TRANSPARENT_DECORATORS or name.endswith(
            knowledge.TRANSPARENT_ENDINGS
        ):
            return value
        # the decorated function returns a context manager, about which nothing is known
        # (`UNKNOWN`). `value` is included so that the arguments of calls reach the function
        if name == "contextlib.contextmanager":
            return UNKNOWN | value
        # an unknown decorator may call the function with any arguments, and may return a
        # different object
        self.mark_as_passed_out(value)
        return UNKNOWN

    def _class(self, node: ast.ClassDef) -> Env:
        """Binds the name of a class. The body is interpreted immediately, and not as a separate task, because the next
        statement may call the methods."""
        # created once, like a function, so that all its objects belong to the same class
        cls = self.classes.get(node)
        if cls is None:
            cls = self.classes[node] = Class(node, self.module, node.name, self.current_class)
            if self.current_class is not None:
                self.current_class.inner[node.name] = cls
        bases = list(map(self.evaluate, node.bases))
        for keyword in node.keywords:
            self.evaluate(keyword.value)
        # the values of the bases may have changed since this class was last interpreted, because the module of a base
        # may have been interpreted in the meantime
        if bases != cls.bases:
            cls.set_bases(bases)
            for base in cls.direct_bases():
                # related classes share the values of their attributes
                self.unite_families(cls, base)
        # the names that the body binds are attributes of the class; its methods do not see them
        # as names
        outer, env = self.current_class, self.env
        self.current_class = cls
        inside = dict(env)
        # after an `if`, the names are in another environment; None if the body always raises
        inside = self._block(node.body, inside) or inside
        self.current_class, self.env = outer, env
        for name, value in inside.items():
            # only names that the body has bound: all other names still have their value from
            # the scope around the class
            if env.get(name) is not value:
                self.add_to_cell(self.attribute_key(cls, name), value)
        for decorator in node.decorator_list:
            self.evaluate(decorator)
        self._bind_name(node.name, make_value("class", cls))
        return self.env

    def _lambda(self, node: ast.Lambda) -> Value:
        """Returns the value of a lambda, which is a function without a name. Its body is
        interpreted as a separate task."""
        function = self._function_of(node, "<lambda>", owner=None)
        self._read_defaults(function)
        return make_value("function", function)

    # names

    def bind(self, target: ast.expr, value: Value, is_inner: bool = False) -> None:
        """Binds the target of an assignment to a value. If `is_inner`, the target is the
        variable of a comprehension, which no code outside the comprehension can read."""
        target.means = value  # type: ignore[attr-defined]
        match target:
            case ast.Name() if is_inner:
                self.env[target.id] = value
            case ast.Name():
                self._bind_name(target.id, value)
            case ast.Attribute():
                self._bind_attribute(self.evaluate(target.value), target.attr, value)
            case ast.Starred():
                self.bind(target.value, self.list_of(target, value), is_inner)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, is_inner)
            # `x[i] = value`: each list or dict that x may be gets one more possible item
            case ast.Subscript():
                self.evaluate(target.slice)
                for atom in self.evaluate(target.value):
                    if atom.kind in ("list", "dict"):
                        self.add_to_cell(("items", atom.subject), value)

    def _unpack(self, targets: list[ast.expr], value: Value, is_inner: bool) -> None:
        """Binds the items of a value to several targets, as `a, b = value` does. If the value is a tuple with as many
        items as targets, and no target is starred, each target gets the item at its position. Otherwise any target may
        get any item.
        """
        is_starred = any(isinstance(target, ast.Starred) for target in targets)
        target_values = [NOTHING] * len(targets)
        for atom in value:
            has_item_for_each = (
                atom.kind == "tuple" and len(atom.subject) == len(targets) and not is_starred
            )
            items = (
                atom.subject
                if has_item_for_each
                else [self.value_of_items(value_of(atom))] * len(targets)
            )
            # each target gets the union of its items in all possible values
            target_values = list(map(union, target_values, items))
        for target, target_value in zip(targets, target_values, strict=True):
            self.bind(target, target_value, is_inner)

    def _bind_name(self, name: str, value: Value) -> None:
        """Stores the value of a name in the environment, for the next statements, and in the name's
        cell, for other functions and modules."""
        # a name declared as `global` gets no entry in the environment, because a call of
        # another function may bind it at any time
        if self.function is not None and name in self.function.globals:
            self.add_to_cell((self.module, name), value)
            return
        self.env[name] = value
        # `_class` puts the names in the body of a class into the cells of attributes
        if self.current_class is None:
            key = (
                (self.module, name) if self.function is None else (self.function, "local", name)
            )
            self.add_to_cell(key, value)

    def _bind_attribute(self, owner: Value, name: str, value: Value) -> None:
        """Adds a value to the attribute `name` of each object that `owner` may be."""
        for atom in owner:
            if atom.kind in ("instance", "class"):
                self.add_to_cell(self.attribute_key(atom.subject, name), value)
            # the result of `parse_args`, whose attributes programs overwrite
            elif atom.kind == "namespace":
                self.add_to_cell(("arg", atom.subject, name), value)
            elif atom.kind == "module":
                self.add_to_cell((atom.subject, name), value)
            # an unknown object: every read of an attribute with this name may return the value
            elif atom == ANYTHING:
                self.add_to_cell(("attr", None, name), value)

    def _name(self, node: ast.Name) -> Value:
        """Returns the possible values of a name. Looks the name up as Python does: in the
        function, in the functions around it, in the module, and among the builtins. The result
        is empty if the value is not known yet, and "anything" if the name is bound nowhere."""
        # a local name of a function, or a global name in the code of the module itself
        if node.id in self.env:
            return self.env[node.id]
        function = self.function
        # the function assigns the name only later: Python would raise UnboundLocalError here
        if function is not None and node.id in function.locals:
            return NOTHING
        while function is not None:
            function = function.outer
            if function is not None and node.id in function.locals:
                return self.read_cell((function, "local", node.id))
        value = self.read_cell((self.module, node.id))
        if (self.module, node.id) in self.values:
            # may be empty: then the module binds the name, but its value is not known yet
            return value
        # builtins come after the module's own names, which may hide them
        if node.id in _BUILTINS:
            return self.foreign_value(f"builtins.{node.id}")
        # the name may come from `from m import *`
        return self.global_value(self.module, node.id) or UNKNOWN

    # expressions

    def _other_expression(self, node: ast.expr) -> Value:
        """Returns the value of an expression for which there is no method, such as a slice:
        "anything"."""
        self._evaluate_parts(node)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> Value:
        """Returns the value of a literal. A string that names a device has the kind
        "spelling"."""
        if isinstance(node.value, str) and node.value.startswith("cuda"):
            # the rules read this attribute: they write a word that fails without a GPU only
            # where a test has shown that there is a GPU. Then the environment has an empty set
            # at `GPU`
            node.has_gpu = not self.env[GPU]  # type: ignore[attr-defined]
        if isinstance(node.value, str) and knowledge.SPELLING.fullmatch(node.value):
            return make_value("spelling", node.value, node)
        return knowledge.CONSTANTS.get(type(node.value), UNKNOWN)

    def _text(self, node: ast.JoinedStr) -> Value:
        """Returns the value of an f-string: the name of a device if the f-string can produce
        one, else any string."""
        pattern = ""
        for part in node.values:
            self.evaluate(part)
            # "cuda:*" for f"cuda:{i}"
            pattern += str(part.value) if isinstance(part, ast.Constant) else "*"
        # for the rules, as in `_constant`: whether a test has shown that there is a GPU
        node.has_gpu = not self.env[GPU]  # type: ignore[attr-defined]
        return value_of_filled_text(pattern, node)

    def _attribute(self, node: ast.Attribute) -> Value:
        """Returns the value of `x.name`."""
        # each of the possible objects has its own attribute
        owner = self.evaluate(node.value)
        return union(*[self.attribute(atom, node.attr, node) for atom in owner])

    def _call(self, node: ast.Call) -> Value:
        """Returns the value of a call. The values of the arguments are added to the parameters
        of all functions that may be called."""
        # the arguments first, because the `Invocation`, which finds the possible results, adds
        # them to the parameters of the functions that are called
        values = [self.evaluate(arg) for arg in node.args]
        keywords = {keyword.arg: self.evaluate(keyword.value) for keyword in node.keywords}
        # the environment has an empty set at `GPU` if a test has shown that there is a GPU
        has_gpu = not self.env[GPU]
        invocation = Invocation(self, node, values, keywords, self.function, has_gpu)
        callee = self.evaluate(node.func)
        if not isinstance(node.func, ast.Attribute):
            return invocation.results_of(callee)
        # a method call: `x` in `x.f()` has been evaluated as part of `x.f`
        owner = inferred(node.func.value)
        # None has no such methods: if the call does not raise an error, the object is not None
        if len(owner) > 1:
            owner -= NONE
        return union(*[invocation.results_of_method(atom, node.func.attr) for atom in owner])

    def _subscript(self, node: ast.Subscript) -> Value:
        """Returns the value of `x[index]`."""
        owner = self.evaluate(node.value)
        self.evaluate(node.slice)
        return union(*[self._item(atom, node.slice) for atom in owner])

    def _item(self, atom: Atom, index: ast.expr) -> Value:
        """Returns the possible values of `x[index]`, where `x` is the object that `atom` stands
        for."""
        is_slice = isinstance(index, ast.Slice)
        match atom.kind:
            case "tensor" | "array" | "str":
                return value_of(atom)
            # a slice may contain all items of the list or tuple, but an index selects one item
            case "list" | "tuple" if is_slice:
                return value_of(atom)
            case "list" | "dict":
                return self.items(atom)
            case "tuple":
                number = index.value if isinstance(index, ast.Constant) else None
                if isinstance(number, int) and number < len(atom.subject):
                    return atom.subject[number]  # type: ignore[no-any-return]
                # a computed index may select any item; a negative index, which is an operation and no constant, is
                # treated in the same way
                return union(*atom.subject)
            case "foreign" if atom.subject == "os.environ":
                return STR
            case "device" | "none" | "int" | "float" | "bool":
                return NOTHING  # Python raises an error: these have no items
            case "instance":
                return self.value_of_subscript(atom)
        return UNKNOWN

    def _operation(self, node: ast.BinOp) -> Value:
        """Returns the value of a binary operation such as `x + y`."""
        return self._operate(node, self.evaluate(node.left), self.evaluate(node.right))

    def _operate(self, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value:
        """Returns the value of `left op right` or `left op= right`. It is empty as long as one
        side is not known yet."""
        # values only grow, so a guess could not be withdrawn when both sides become known
        if not left or not right:
            return NOTHING
        # an operator with a tensor on one side returns a tensor, whatever the other side is
        if TENSOR in (left, right):
            return TENSOR
        # `/` returns a float even for whole numbers
        if is_only(left, _NUMBERS) and is_only(right, _NUMBERS):
            is_whole = not isinstance(node.op, ast.Div) and not may_be(left | right, ("float",))
            return INT if is_whole else FLOAT
        if is_only(left, ("str", "spelling")):
            # `"cuda:%d" % i` may be the name of a device; the result of any other operation may
            # be any string
            is_filled = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            return value_of_filled_text(pattern_of(node.left), node) if is_filled else STR  # type: ignore[union-attr]
        # the case of two Python numbers is handled above, so at least one side may be a NumPy
        # array
        if is_only(left, _HOST_NUMBERS) and is_only(right, _HOST_NUMBERS):
            return ARRAY
        # `[a] + [b]` has the items of both lists, and `[a] * 2` those of the only list
        if is_only(left, ("list", "tuple")) and is_only(right, ("list", "tuple", "int")):
            items = (self.value_of_items(value) for value in (left, right) if value != INT)
            return self.list_of(node, union(*items))
        return UNKNOWN

    def _boolean(self, node: ast.BoolOp) -> Value:
        """Returns the value of `and` or `or`. If one part of an `and` is a test for a GPU, the
        whole `and` is such a test, too."""
        env = self.env
        is_and = isinstance(node.op, ast.And)
        values = []
        for part in node.values:
            values.append(self.evaluate(part))
            # in `x is not None and x.to(d)`, the right side runs only if the left side is true
            self.env = env_after_test(part, self.env, is_true=is_and)
        self.env = env
        return AVAILABLE if is_and and AVAILABLE in values else union(*values)

    def _unary(self, node: ast.UnaryOp) -> Value:
        """Returns the value of a unary operation such as `not x` or `-x`."""
        value = self.evaluate(node.operand)
        # `not x` is a bool, whatever x is
        if isinstance(node.op, ast.Not):
            return BOOL
        # `-True` is the int -1
        return INT if is_only(value, ("bool", "available")) else value

    def _comparison(self, node: ast.Compare) -> Value:
        """Returns the value of a comparison: a tensor, an array or a bool, depending on both
        sides."""
        values = [self.evaluate(side) for side in (node.left, *node.comparators)]
        # `is`, `is not`, `in` and `not in` always return a bool; the other operators return a
        # tensor for tensors. Of a chain such as `a < b < c`, only the first operator is considered
        if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
            return BOOL
        if TENSOR in values:
            return TENSOR
        if is_gpu_count_test(node, self.full_name):
            return AVAILABLE
        if all(is_only(value, _HOST_NUMBERS) for value in values):
            return ARRAY if any(may_be(value, ("array",)) for value in values) else BOOL
        # a comparison of these returns a bool; other classes may return anything
        host = (*_NUMBERS, "str", "spelling", "none", "device")
        return BOOL if all(is_only(value, host) for value in values) else UNKNOWN

    def _choice(self, node: ast.IfExp) -> Value:
        """Returns the value of `x if test else y`: the possible values of x if the test is true, and the possible
        values of y if the test is false.
        """
        env = self.env
        self.evaluate(node.test)
        self.env = env_after_test(node.test, env, is_true=True)
        if_true = self.evaluate(node.body)
        self.env = env_after_test(node.test, env, is_true=False)
        if_false = self.evaluate(node.orelse)
        self.env = env
        return union(if_true, if_false)

    def _list(self, node: ast.List | ast.Set) -> Value:
        """Returns the value of `[x, *y]` or `{x, *y}`; sets are treated as lists."""
        return self.list_of(node, union(*[self._spread(item) for item in node.elts]))

    def _spread(self, item: ast.expr) -> Value:
        """Returns the possible values of the elements that one item of a display such as `[x,
        *y]` adds to the list or set. Only `*y` may add several elements."""
        value = self.evaluate(item)
        return self.value_of_items(value) if isinstance(item, ast.Starred) else value

    def _tuple(self, node: ast.Tuple) -> Value:
        """Returns the value of `(x, y)`. A tuple display that contains a star, as in `(x, *y)`,
        is treated as a list."""
        values = [self.evaluate(item) for item in node.elts]
        # a star adds an unknown number of items, so the positions of the other items are
        # unknown
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return self.list_of(node, UNKNOWN)
        return tuple_of(values)

    def _dict(self, node: ast.Dict) -> Value:
        """Returns the value of `{key: x, **y}`."""
        for key, item in zip(node.keys, node.values, strict=True):
            if key is not None:
                self.evaluate(key)
            value = self.evaluate(item)
            if key is None:  # `**item`, which adds the values in the dict `item`
                value = union(*map(self.items, value))
            self.add_to_cell(("items", node), value)
        return make_value("dict", node)

    def _comprehension(self, node: Any) -> Value:
        """Returns the value of a comprehension: a dict for a dict comprehension, and a list for
        all other kinds."""
        # the variables of a comprehension are not visible outside it
        env, self.env = self.env, dict(self.env)
        for generator in node.generators:
            items = self.value_of_items(self.evaluate(generator.iter))
            self.bind(generator.target, items, is_inner=True)
            for test in generator.ifs:
                self.evaluate(test)
                self.env = env_after_test(test, self.env, is_true=True)
        if isinstance(node, ast.DictComp):
            self.evaluate(node.key)
            value = self.dict_of(node, self.evaluate(node.value))
        else:
            value = self.list_of(node, self.evaluate(node.elt))
        self.env = env
        return value

    def _walrus(self, node: ast.NamedExpr) -> Value:
        """Returns the value of `(name := x)`."""
        value = self.evaluate(node.value)
        self.bind(node.target, value)
        return value

    def _inner(self, node: ast.Starred | ast.Await) -> Value:
        """Returns the value of `*x` or `await x`, which is assumed to be the value of `x`."""
        return self.evaluate(node.value)

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> Value:
        """Adds the value of `yield x`, or the items of `x` in `yield from x`, to the items of the generator. The
        expression itself returns whatever `send` passes in, or the other generator returns, so its value may be
        anything."""
        value = self.evaluate(node.value) if node.value else NONE
        if isinstance(node, ast.YieldFrom):
            value = self.value_of_items(value)
        if self.function is not None:
            # a loop over the generator binds its variable to this value
            self.add_to_cell(("items", (self.function, "yield")), value)
        return UNKNOWN

    _METHODS: Final[dict[type, Any]] = {
        ast.AnnAssign: _annotated_assign,
        ast.Assign: _assign,
        ast.AsyncFor: _for,
        ast.AsyncFunctionDef: _function,
        ast.AsyncWith: _with,
        ast.Attribute: _attribute,
        ast.AugAssign: _augmented_assign,
        ast.Await: _inner,
        ast.BinOp: _operation,
        ast.BoolOp: _boolean,
        ast.Break: _break_or_continue,
        ast.Call: _call,
        ast.ClassDef: _class,
        ast.Compare: _comparison,
        ast.Constant: _constant,
        ast.Continue: _break_or_continue,
        ast.Delete: _delete,
        ast.Dict: _dict,
        ast.DictComp: _comprehension,
        ast.Expr: _expression,
        ast.For: _for,
        ast.FunctionDef: _function,
        ast.GeneratorExp: _comprehension,
        ast.If: _if,
        ast.IfExp: _choice,
        ast.Import: _import,
        ast.ImportFrom: _import_from,
        ast.JoinedStr: _text,
        ast.Lambda: _lambda,
        ast.List: _list,
        ast.ListComp: _comprehension,
        ast.Match: _match,
        ast.Name: _name,
        ast.NamedExpr: _walrus,
        ast.Raise: _raise,
        ast.Return: _return,
        ast.Set: _list,
        ast.SetComp: _comprehension,
        ast.Starred: _inner,
        ast.Subscript: _subscript,
        ast.Try: _try,
        ast.Tuple: _tuple,
        ast.UnaryOp: _unary,
        ast.While: _while,
        ast.With: _with,
        ast.Yield: _yield,
        ast.YieldFrom: _yield,
    }
    if hasattr(ast, "TryStar"):  # from Python 3.11 on
        _METHODS[ast.TryStar] = _try
