"""Interprets the statements and expressions of a project, with sets of possible values instead of values (see
`values`).

Modules and functions are interpreted one by one until nothing changes any more. The values that they pass to each other
(arguments, returned values, attributes, globals, items of lists) lie in cells. When a cell grows, the modules and
functions that have read it are interpreted again. This is done in two phases. In the first, "not known yet" differs
from "anything", so that the order of the modules does not matter. In the second, functions that are not called in the
project get "anything" as arguments.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from typing import Any, Final

from . import knowledge
from .calls import Invocation, filled_text, pattern_of
from .cells import Task
from .guards import GPU, Env, counts_gpus, joined, narrowed, needs_gpu, selected_tab
from .inference import Inference
from .progress import Progress, unseen
from .project import Class, Function, Project, origin_of
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
    may_be,
    means_of,
    of,
    only,
    tuple_of,
    union,
    value_of,
)

_BUILTINS: Final = frozenset(dir(builtins))
_END_OF_PROGRAM: Final = {"sys.exit", "builtins.exit", "builtins.quit", "os._exit"}
_MOST_ROUNDS: Final = 5
"""How often the body of a loop is read before the names that it changes are taken for anything."""
_NUMBERS: Final = ("int", "float", "bool", "available")
_HOST_NUMBERS: Final = ("array", *_NUMBERS)


def infer(project: Project, progress: Progress = unseen) -> Inference:
    """Finds the possible values of each expression of a project, and stores them in the attribute `means` of its
    node."""
    interpreter = Interpreter(project)
    for module in project.modules:
        interpreter.schedule(module)
    # until no cell grows any more
    interpreter.drain(interpreter.run, progress)
    for key, value in list(interpreter.values.items()):
        # a name that is taken from where nothing is known of it
        if isinstance(key[0], PythonModule) and not value:
            # in the first phase "nothing" meant "not known yet"; from now on it means "anything"
            interpreter.put(key, UNKNOWN)
    # the second phase: only now is it known whom nobody calls, and a caller that is found later still counts
    for function in interpreter.functions.values():
        if function.is_open or not function.has_callers:
            interpreter.open(function)
    interpreter.drain(interpreter.run, progress)
    return interpreter


class Interpreter(Inference):
    """Reads one module or function after the other.

    A method for a statement returns what is known of the names after it, or None if what follows is never reached. A
    method for an expression returns its possible values. `_METHODS`, at the end, says which method is for which node.
    """

    function: Function | None
    """The function that is read; None in the code of a module itself."""
    module: PythonModule
    env: Env
    """The facts about the names before the statement that is read."""
    owner: Class | None
    """The class whose body is read."""
    _left_loops: list[list[Env]]
    """For each loop around: what is known at its `break`s and `continue`s."""

    def run(self, task: Task) -> None:
        """Interprets a module or a function once."""
        # a task is interpreted several times, and each time from the start
        self.env, self.owner, self._left_loops = {}, None, []
        if isinstance(task, PythonModule):
            self.function, self.module = None, task
            self._block(task.tree.body, {GPU: NONE})
            return
        function, self.module = task, task.module
        self.function = function
        for arg in function.args:
            self.env[arg.arg] = self.get((function, arg.arg))
        parameters = function.node.args
        if parameters.vararg:
            # the function itself names the list, since no expression makes it
            self.env[parameters.vararg.arg] = of("list", (function, "*"))
        if parameters.kwarg:
            self.env[parameters.kwarg.arg] = of("dict", (function, "**"))
        for name, value in self.env.items():
            # inner functions read the parameters of those around them from here
            self.put((function, "local", name), value)
        # a caller's tests say nothing here: the function may be called from elsewhere, too
        owner = function.owner.node.decorator_list if function.owner is not None else []
        is_tested = needs_gpu([*getattr(function.node, "decorator_list", ()), *owner])
        self.env[GPU] = NOTHING if is_tested else NONE
        if isinstance(function.node, ast.Lambda):
            self.put((function, "return"), self.evaluate(function.node.body))
        # the end of the body is reached, so that the function may return None
        elif self._block(function.node.body, self.env) is not None and not function.has_yield:
            self.put((function, "return"), NONE)

    def evaluate(self, node: ast.expr) -> Value:
        """Returns the possible values of an expression, and stores them as `node.means`."""
        value: Value = self._METHODS.get(type(node), Interpreter._other_expression)(self, node)
        node.means = value  # type: ignore[attr-defined]
        return value

    def _evaluate_parts(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)

    # statements

    def _block(self, body: Sequence[ast.stmt], env: Env | None) -> Env | None:
        """Reads statements one after the other, up to one after which nothing is reached."""
        for statement in body:
            # after `return`, `raise` and the like: what follows keeps no `means`, so no rule looks at it
            if env is None:
                break
            self.env = env
            env = self._METHODS.get(type(statement), Interpreter._other_statement)(
                self, statement
            )
        return env

    def _other_statement(self, node: ast.stmt) -> Env | None:
        self._evaluate_parts(node)
        return self.env

    def _expression(self, node: ast.Expr) -> Env | None:
        self.evaluate(node.value)
        call = node.value
        if isinstance(call, ast.Call) and self.full_name(call.func) in _END_OF_PROGRAM:
            return None
        return self.env

    def _assign(self, node: ast.Assign) -> Env:
        value = self.evaluate(node.value)
        # d2l's own modules name themselves so: `d2l = sys.modules[__name__]`
        if (
            isinstance(node.value, ast.Subscript)
            and ast.unparse(node.value) == "sys.modules[__name__]"
        ):
            value = of("module", self.module)
        for target in node.targets:
            self.bind(target, value)
        return self.env

    def _annotated_assign(self, node: ast.AnnAssign) -> Env:
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value))
        elif self.owner is not None:  # a field, which __init__ fills
            self.bind(node.target, self.annotated(node.annotation, self.module) or UNKNOWN)
        return self.env

    def _augmented_assign(self, node: ast.AugAssign) -> Env:
        # `x += 1` reads x first, and then binds it
        left, right = self.evaluate(node.target), self.evaluate(node.value)
        self.bind(node.target, self._operate(node, left, right))
        return self.env

    def _return(self, node: ast.Return) -> None:
        value = self.evaluate(node.value) if node.value else NONE
        # the `return` of a generator gives its caller no value
        if self.function is not None and not self.function.has_yield:
            self.put((self.function, "return"), value)

    def _raise(self, node: ast.Raise) -> None:
        self._evaluate_parts(node)

    def _leave_round(self, node: ast.Break | ast.Continue) -> None:
        # outside a loop it is a syntax error, which Python reports when it compiles, not when it parses
        if self._left_loops:
            self._left_loops[-1].append(dict(self.env))

    def _if(self, node: ast.If) -> Env | None:
        env = self.env
        self.evaluate(node.test)
        # d2l writes the code of all frameworks into one cell: only one branch belongs to this tab
        is_tab = selected_tab(node.test, self.module)
        if is_tab is not None:
            return self._block(node.body if is_tab else node.orelse, env)
        # both branches begin with what is known before, narrowed by the test or by its opposite
        then = self._block(node.body, narrowed(node.test, env, True))
        return joined(then, self._block(node.orelse, narrowed(node.test, env, False)))

    def _for(self, node: ast.For | ast.AsyncFor) -> Env | None:
        items = self.iterate(self.evaluate(node.iter))

        def read_body() -> Env | None:
            self.bind(node.target, items)
            return self._block(node.body, self.env)

        return self._block(node.orelse, self._loop(node, read_body))

    def _while(self, node: ast.While) -> Env | None:
        def read_body() -> Env | None:
            self.evaluate(node.test)
            return self._block(node.body, narrowed(node.test, self.env, True))

        return self._block(node.orelse, self._loop(node, read_body))

    def _loop(self, node: ast.AST, read_body: Callable[[], Env | None]) -> Env:
        """Returns the environment where a loop ends. Its body is read until that no longer changes, beginning with what
        was known when the loop was read the last time, so that a loop inside it is mostly read once."""
        ends = self.loop_ends
        # values only grow, so what held at the end of an earlier reading holds now, too
        before = joined(self.env, ends.get(node)) or self.env
        for _ in range(_MOST_ROUNDS):
            self.env = dict(before)
            # a fresh list for each round, which `break` and `continue` fill
            self._left_loops.append([])
            after = before
            for end in (read_body(), *self._left_loops.pop()):
                after = joined(after, end) or before
            if after == before:
                break
            before = after
        else:  # each round gives new values: the names may be anything
            before = {name: value | UNKNOWN for name, value in before.items()}
        ends[node] = before
        return before

    def _with(self, node: ast.With | ast.AsyncWith) -> Env | None:
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if item.optional_vars is not None:
                # files, devices and objects of the project give themselves; of anything else `__enter__` decides
                is_itself = only(value, ("result", "device", "instance"))
                self.bind(item.optional_vars, value if is_itself else UNKNOWN)
        return self._block(node.body, self.env)

    def _try(self, node: ast.Try) -> Env | None:
        env, before = self.env, dict(self.env)
        after = self._block(node.body, env)
        if after is not None:
            after = self._block(node.orelse, after)
        # the body may have failed anywhere: before its first statement, after its last, or in between
        for handler in node.handlers:
            # what the body has bound before it failed is in `env`, which its first statements have changed
            self.env = env | (joined(before, after) or before)
            if handler.type is not None:
                self.evaluate(handler.type)
            if handler.name:
                # an exception is no device and no tensor, which is all that matters here
                self.env[handler.name] = of("result", "exception")
            after = joined(after, self._block(handler.body, self.env))
        # every way out of the body and the handlers leaves, but `finally` is run before
        if after is None:
            self._block(node.finalbody, before)
            return None
        return self._block(node.finalbody, after)

    def _match(self, node: ast.Match) -> Env | None:
        self.evaluate(node.subject)
        env = self.env
        # perhaps no case matches, and the names stay as they are
        after: Env | None = dict(env)
        for case in node.cases:
            self.env = dict(env)
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    self._bind_name(name, UNKNOWN)
                if isinstance(part, ast.expr):
                    self.evaluate(part)
            if case.guard is not None:
                self.evaluate(case.guard)
            after = joined(after, self._block(case.body, self.env))
        return after

    def _delete(self, node: ast.Delete) -> Env:
        for target in node.targets:
            if isinstance(target, ast.Name):
                # a later read of the name raises, or finds a global
                self.env.pop(target.id, None)
            else:
                self.evaluate(target)
        return self.env

    def _import(self, node: ast.Import) -> Env:
        for alias in node.names:
            # `import a.b` binds `a`
            package = alias.name.split(".")[0]
            # `import a.b` runs a.b, too
            value = self.imported(alias.name, self.module)
            if not alias.asname:
                value = self.imported(package, self.module)
            self._bind_name(alias.asname or package, value)
        return self.env

    def _import_from(self, node: ast.ImportFrom) -> Env:
        origin = origin_of(node, self.module)
        for alias in node.names:
            if alias.name == "*":
                self.put((self.module, "*"), self.imported(origin, self.module))
            else:
                value = self.imported_from(origin, alias.name, self.module)
                self._bind_name(alias.asname or alias.name, value)
        return self.env

    # functions and classes

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Env:
        """Binds the name of a function, whose body is a task of its own; a method belongs to its class instead."""
        function = self._function_of(node, node.name, self.owner)
        self._read_defaults(function)
        value = of("function", function)
        for decorator in reversed(node.decorator_list):
            value = self._decorate(decorator, function, value)
        # not a method
        if self.owner is None:
            self._bind_name(node.name, value)
            return self.env
        # by name, so that calls on objects of the class find it
        self.owner.methods[node.name] = function
        # a call of a method of this name on an unknown object may be a call of this one
        namesakes = self.methods.setdefault(node.name, [])
        if function not in namesakes:
            namesakes.append(function)
        self.env[node.name] = value
        return self.env

    def _function_of(self, node: Any, name: str, owner: Class | None) -> Function:
        """The function of a node, which is made and scheduled when it is first met."""
        function = self.functions.get(node)
        # made in an earlier round: its cells hold what is known of it
        if function is not None:
            return function
        function = self.functions[node] = Function(
            node, self.module, name, owner, self.function
        )
        decorators = set()
        for decorator in getattr(node, "decorator_list", ()):
            # by their text: a decorator that has arguments counts by its name
            decorators.add(ast.unparse(decorator).split("(")[0])
        function.is_method = owner is not None and "staticmethod" not in decorators
        function.is_property = not decorators.isdisjoint(
            ("property", "cached_property", "functools.cached_property")
        )
        if function.receiver:
            self.put(
                (function, function.receiver),
                of("class" if "classmethod" in decorators else "instance", owner),
            )
        # a call gives something to iterate over, whose items come from the `yield`s
        if function.has_yield:
            self.put((function, "return"), of("list", (function, "yield")))
        self.schedule(function)
        return function

    def _read_defaults(self, function: Function) -> None:
        """Puts the defaults of a function into its parameters."""
        parameters = function.node.args
        positional = zip(
            reversed(function.positional), reversed(parameters.defaults), strict=False
        )
        for name, default in (
            *positional,
            *zip(function.keywords, parameters.kw_defaults, strict=True),
        ):
            if default is not None:
                self.put((function, name), self.evaluate(default))

    def _decorate(self, node: ast.expr, function: Function, value: Value) -> Value:
        """The value of a decorated function: itself, if the decorator is known to return what it gets."""
        self.evaluate(node)
        decorator = node.func if isinstance(node, ast.Call) else node
        name = self.full_name(decorator) or ast.unparse(decorator)
        # d2l spreads a class over several cells: `@d2l.add_to_class(Trainer)`
        if name.endswith("add_to_class") and isinstance(node, ast.Call) and node.args:
            for atom in means_of(node.args[0]):
                if atom.kind == "class":
                    atom.subject.methods.setdefault(function.name, function)
                    function.owner, function.is_method = atom.subject, True
                    self.put((function, function.positional[0]), of("instance", atom.subject))
            return value
        if name in knowledge.TRANSPARENT_DECORATORS or name.endswith(
            knowledge.TRANSPARENT_ENDINGS
        ):
            return value
        # the call gives a scope, whose `as` is not followed; the function itself is still called by the project
        if name == "contextlib.contextmanager":
            return UNKNOWN | value
        # an unknown decorator may call the function with anything, and return something else
        self.escape(value)
        return UNKNOWN

    def _class(self, node: ast.ClassDef) -> Env:
        """Reads the body of a class at once, because its methods may be called by the next statement."""
        # also made once, so that objects of earlier rounds belong to it
        cls = self.classes.get(node)
        if cls is None:
            cls = self.classes[node] = Class(node, self.module, node.name, self.owner)
            if self.owner is not None:
                self.owner.inner[node.name] = cls
        bases = union(*map(self.evaluate, node.bases))
        for keyword in node.keywords:
            self.evaluate(keyword.value)
        # bases become known late where their module is read late
        if bases != cls.bases:
            cls.inherit(bases)
            for atom in bases:
                if atom.kind == "class":
                    self.unite(cls, atom.subject)
        # what the body binds are attributes, which functions inside it do not see as names
        outer, env = self.owner, self.env
        self.owner = cls
        inside = dict(env)
        self._block(node.body, inside)
        self.owner, self.env = outer, env
        for name, value in inside.items():
            # only what the body has bound: the rest are names of the scope around
            if env.get(name) is not value:
                self.put(self.attribute_of(cls, name), value)
        for decorator in node.decorator_list:
            self.evaluate(decorator)
        self._bind_name(node.name, of("class", cls))
        return self.env

    def _lambda(self, node: ast.Lambda) -> Value:
        function = self._function_of(node, "<lambda>", None)
        self._read_defaults(function)
        return of("function", function)

    # names

    def bind(self, target: ast.expr, value: Value, is_inner: bool = False) -> None:
        """Gives a value to the target of an assignment; with `is_inner`, to the variable of a comprehension, which
        nothing outside it can read."""
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
            case ast.Subscript():
                self.evaluate(target.slice)
                for atom in self.evaluate(target.value):
                    if atom.kind in ("list", "dict"):
                        self.put(("items", atom.subject), value)

    def _unpack(self, targets: list[ast.expr], value: Value, is_inner: bool) -> None:
        """Binds the items of a value to several targets; a tuple of the same length item by item."""
        is_starred = any(isinstance(target, ast.Starred) for target in targets)
        parts = [NOTHING] * len(targets)
        for atom in value:
            is_told_apart = (
                atom.kind == "tuple" and len(atom.subject) == len(targets) and not is_starred
            )
            items = (
                atom.subject if is_told_apart else [self.iterate(value_of(atom))] * len(targets)
            )
            parts = list(map(union, parts, items))
        # each target gets the union of what the possible values give it
        for target, part in zip(targets, parts, strict=True):
            self.bind(target, part, is_inner)

    def _bind_name(self, name: str, value: Value) -> None:
        """Binds a name, for the statements after it, and for functions and modules that read it."""
        # a global is not known from one statement to the next: other functions bind it, too
        if self.function is not None and name in self.function.globals:
            self.put((self.module, name), value)
            return
        self.env[name] = value
        if self.owner is None:
            key = (
                (self.module, name) if self.function is None else (self.function, "local", name)
            )
            self.put(key, value)

    def _bind_attribute(self, owner: Value, name: str, value: Value) -> None:
        """Puts a value into an attribute of each object that `owner` may be."""
        for atom in owner:
            if atom.kind in ("instance", "class"):
                self.put(self.attribute_of(atom.subject, name), value)
            # the result of `parse_args`: programs overwrite its attributes
            elif atom.kind == "namespace":
                self.put(("arg", atom.subject, name), value)
            elif atom.kind == "module":
                self.put((atom.subject, name), value)
            # any object may have got it, so every read of an attribute of this name sees it
            elif atom == ANYTHING:
                self.put(("attr", None, name), value)

    def _name(self, node: ast.Name) -> Value:
        """Looks a name up as Python does: in the function, in those around it, in the module, among the builtins."""
        # a local name, or a global in the code of the module itself
        if node.id in self.env:
            return self.env[node.id]
        function = self.function
        # assigned later in the function: here Python would raise UnboundLocalError
        if function is not None and node.id in function.locals:
            return NOTHING
        while function is not None:
            function = function.outer
            if function is not None and node.id in function.locals:
                return self.get((function, "local", node.id))
        value = self.get((self.module, node.id))
        if (self.module, node.id) in self.values:
            return value  # nothing, if what the module binds the name to is not known yet
        # after the module's own names, which may hide a builtin
        if node.id in _BUILTINS:
            return self.foreign(f"builtins.{node.id}")
        return self.global_name(self.module, node.id) or UNKNOWN

    # expressions

    def _other_expression(self, node: ast.expr) -> Value:
        self._evaluate_parts(node)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, str) and node.value.startswith("cuda"):
            # a rule may write a word that fails without a GPU only where a test has shown that there is one
            node.has_gpu = not self.env[GPU]  # type: ignore[attr-defined]
        if isinstance(node.value, str) and knowledge.SPELLING.fullmatch(node.value):
            return of("spelling", node.value, node)
        return knowledge.CONSTANTS.get(type(node.value), UNKNOWN)

    def _text(self, node: ast.JoinedStr) -> Value:
        pattern = ""
        for part in node.values:
            self.evaluate(part)
            # "cuda:*" for f"cuda:{i}": enough to know that it names a device
            pattern += str(part.value) if isinstance(part, ast.Constant) else "*"
        node.has_gpu = not self.env[GPU]  # type: ignore[attr-defined]
        return filled_text(pattern, node)

    def _attribute(self, node: ast.Attribute) -> Value:
        # each of the possible objects has its own attribute
        owner = self.evaluate(node.value)
        return union(*[self.attribute(atom, node.attr, node) for atom in owner])

    def _call(self, node: ast.Call) -> Value:
        values = [self.evaluate(arg) for arg in node.args]
        keywords = {keyword.arg: self.evaluate(keyword.value) for keyword in node.keywords}
        has_gpu = not self.env[GPU]
        invocation = Invocation(self, node, values, keywords, self.function, has_gpu)
        callee = self.evaluate(node.func)
        if not isinstance(node.func, ast.Attribute):
            return invocation.of_value(callee)
        # the call of a method has evaluated the object as part of the attribute
        owner = means_of(node.func.value)
        # `None` has no methods: what may be None, too, gives what the rest gives
        if len(owner) > 1:
            owner -= NONE
        return union(*[invocation.of_method(atom, node.func.attr) for atom in owner])

    def _subscript(self, node: ast.Subscript) -> Value:
        owner = self.evaluate(node.value)
        self.evaluate(node.slice)
        return union(*[self._item(atom, node.slice) for atom in owner])

    def _item(self, atom: Atom, index: ast.expr) -> Value:
        """The value of `x[index]`, for one thing that x may be."""
        is_slice = isinstance(index, ast.Slice)
        match atom.kind:
            case "tensor" | "array" | "str":
                return value_of(atom)
            # a slice has the items of the whole, and an index one of them
            case "list" | "tuple" if is_slice:
                return value_of(atom)
            case "list" | "dict":
                return self.items(atom)
            case "tuple":
                number = index.value if isinstance(index, ast.Constant) else None
                if isinstance(number, int) and number < len(atom.subject):
                    return atom.subject[number]  # type: ignore[no-any-return]
                # a computed index may be that of any item
                return union(*atom.subject)
            case "foreign" if atom.subject == "os.environ":
                return STR
            case "device" | "none" | "int" | "float" | "bool":
                return NOTHING  # it raises
            case "instance":
                return self.item_of(atom)
        return UNKNOWN

    def _operation(self, node: ast.BinOp) -> Value:
        return self._operate(node, self.evaluate(node.left), self.evaluate(node.right))

    def _operate(self, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value:
        """The value of `left op right`, also of `left op= right`."""
        # one side is not known yet: whatever were said now could not be taken back
        if not left or not right:
            return NOTHING
        # an operator of a tensor gives a tensor, whatever the other side is
        if TENSOR in (left, right):
            return TENSOR
        if only(left, _NUMBERS) and only(right, _NUMBERS):
            is_whole = not isinstance(node.op, ast.Div) and not may_be(left | right, ("float",))
            return INT if is_whole else FLOAT
        if only(left, ("str", "spelling")):
            is_filled = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            return filled_text(pattern_of(node.left), node) if is_filled else STR  # type: ignore[union-attr]
        if only(left, _HOST_NUMBERS) and only(right, _HOST_NUMBERS):
            return ARRAY
        if only(left, ("list", "tuple")) and only(right, ("list", "tuple", "int")):
            items = (self.iterate(value) for value in (left, right) if value != INT)
            return self.list_of(node, union(*items))
        return UNKNOWN

    def _boolean(self, node: ast.BoolOp) -> Value:
        env = self.env
        is_and = isinstance(node.op, ast.And)
        values = []
        for part in node.values:
            values.append(self.evaluate(part))
            # `x is not None and x.to(d)`: the right side runs only if the left one lets it
            self.env = narrowed(part, self.env, is_and)
        self.env = env
        return AVAILABLE if is_and and AVAILABLE in values else union(*values)

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        # `not x` is a bool, whatever x is
        if isinstance(node.op, ast.Not):
            return BOOL
        return INT if only(value, ("bool", "available")) else value

    def _comparison(self, node: ast.Compare) -> Value:
        values = [self.evaluate(side) for side in (node.left, *node.comparators)]
        # these four give a bool whatever is compared; tensors give tensors with all others
        if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
            return BOOL
        if TENSOR in values:
            return TENSOR
        if counts_gpus(node, self.full_name):
            return AVAILABLE
        if all(only(value, _HOST_NUMBERS) for value in values):
            return ARRAY if any(may_be(value, ("array",)) for value in values) else BOOL
        host = (*_NUMBERS, "str", "spelling", "none", "device")
        return BOOL if all(only(value, host) for value in values) else UNKNOWN

    def _choice(self, node: ast.IfExp) -> Value:
        env = self.env
        self.evaluate(node.test)
        self.env = narrowed(node.test, env, True)
        value = self.evaluate(node.body)
        self.env = narrowed(node.test, env, False)
        other = self.evaluate(node.orelse)
        self.env = env
        return union(value, other)

    def _list(self, node: ast.List | ast.Set) -> Value:
        return self.list_of(node, union(*[self._spread(item) for item in node.elts]))

    def _spread(self, item: ast.expr) -> Value:
        """Returns the possible values of the elements that one item adds to a list."""
        value = self.evaluate(item)
        return self.iterate(value) if isinstance(item, ast.Starred) else value

    def _tuple(self, node: ast.Tuple) -> Value:
        values = [self.evaluate(item) for item in node.elts]
        # how many items a star brings is not known, so that positions say nothing
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return self.list_of(node, UNKNOWN)
        return tuple_of(values)

    def _dict(self, node: ast.Dict) -> Value:
        for key, item in zip(node.keys, node.values, strict=True):
            if key is not None:
                self.evaluate(key)
            value = self.evaluate(item)
            if key is None:  # `**item`
                value = union(*map(self.items, value))
            self.put(("items", node), value)
        return of("dict", node)

    def _comprehension(self, node: Any) -> Value:
        # the variables of a comprehension are its own
        env, self.env = self.env, dict(self.env)
        for generator in node.generators:
            items = self.iterate(self.evaluate(generator.iter))
            self.bind(generator.target, items, is_inner=True)
            for test in generator.ifs:
                self.evaluate(test)
                self.env = narrowed(test, self.env, True)
        if isinstance(node, ast.DictComp):
            self.evaluate(node.key)
            value = self.dict_of(node, self.evaluate(node.value))
        else:
            value = self.list_of(node, self.evaluate(node.elt))
        self.env = env
        return value

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.bind(node.target, value)
        return value

    def _inner(self, node: ast.Starred | ast.Await) -> Value:
        return self.evaluate(node.value)

    def _yield(self, node: ast.Yield) -> Value:
        value = self.evaluate(node.value) if node.value else NONE
        if self.function is not None:
            # what a loop over the generator gets
            self.put(("items", (self.function, "yield")), value)
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
        ast.Break: _leave_round,
        ast.Call: _call,
        ast.ClassDef: _class,
        ast.Compare: _comparison,
        ast.Constant: _constant,
        ast.Continue: _leave_round,
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
    }
    if hasattr(ast, "TryStar"):  # from Python 3.11 on
        _METHODS[ast.TryStar] = _try
