"""Facts that follow from the tests in a program, such as `if torch.cuda.is_available():`. There are
two kinds: the values that names can still have after a test, and the code that a test guards."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

from .sources import PythonModule
from .values import ANYTHING, AVAILABLE, NOTHING, Atom, Value, inferred, union, value_of

Env = dict[str, Value]
"""An environment: the possible values of each name at one place of a program."""
Parents = dict[ast.AST, ast.AST]
"""Maps each node of a syntax tree to its parent."""
GPU: Final = "(a GPU)"
"""The key under which an environment stores whether a test has shown that there is a GPU. If
so, the value is the empty set; otherwise, it is `NONE`. Where branches meet, the values of this key
are joined like those of a variable. The result is empty only if each branch has shown that there is
a GPU."""

_OTHER_VENDORS: Final = re.compile(
    r"xpu|npu|mlu|musa|hpu|sdaa|mps|neuron|xla|tpu|rocm|hip\b", re.IGNORECASE
)
"""Names of vendors other than NVIDIA, and names of their interfaces."""
# names in tests of a framework's version: `torch.__version__`, Lightning's
# `_TORCH_GREATER_EQUAL_2_1`
_RELEASE: Final = re.compile("^(__)?version(__)?$|_GREATER_|_LESS_")
# calls that do not return
_EXITS: Final = {"sys.exit", "exit", "quit", "os._exit", "pytest.skip", "self.skipTest"}
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
# maps the name of a type to the kinds of atoms for which `isinstance` with this type is true
_KINDS: Final[dict[str, set[str]]] = {
    "list": {"list"},
    "tuple": {"tuple"},
    "dict": {"dict"},
    "str": {"str", "spelling"},
    "int": {"int", "bool"},
}


def env_after_test(test: ast.expr, env: Env, is_true: bool) -> Env:
    """Returns a copy of the environment `env` without the values that a test excludes. `is_true` is the result of the
    test. A value is excluded if it is impossible after this result. The test may consist of comparisons with None,
    `isinstance`, plain names, tests for a GPU, `not`, `and` and `or`; any other test excludes nothing.
    """
    new = dict(env)
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return env_after_test(operand, env, not is_true)
        # if an `and` is true, all its parts are true; if an `or` is false, all its parts are
        # false
        case ast.BoolOp(op=op, values=parts) if isinstance(op, ast.And) is is_true:
            for part in parts:
                new = env_after_test(part, new, is_true)
            return new
    # the empty set at the key `GPU` means that a test has shown that there is a GPU
    if is_true and inferred(test) == AVAILABLE:
        new[GPU] = NOTHING
    name, is_excluded = _exclusion(test, is_true)
    if isinstance(name, ast.Name) and name.id in new:
        # only for names: the value of an attribute is the same in the whole program, and is not
        # in `env`
        excluded = filter(is_excluded, new[name.id])
        new[name.id] = new[name.id].difference(excluded)
    return new


def _exclusion(test: ast.expr, is_true: bool) -> tuple[ast.expr | None, Callable[[Atom], bool]]:
    """Returns the expression that a test examines, and a predicate for atoms. `is_true` is the result of the test. The
    predicate returns True for an atom if this result shows that the expression is not this atom. If the test is not
    understood, returns None and a predicate that excludes nothing.
    """
    match test:
        case ast.Compare(left=name, ops=[op], comparators=[ast.Constant(value=None)]):
            # `x is None` is true, or `x is not None` is false: x is None. A value that may be
            # anything may also be None
            if isinstance(op, ast.Is | ast.Eq) is is_true:
                return name, lambda atom: atom.kind not in ("none", "anything")
            return name, lambda atom: atom.kind == "none"
        case ast.Call(func=ast.Name(id="isinstance"), args=[name, types]):
            kinds = _named_kinds(types)
            # if the test is true, all other kinds are excluded; if it is false, these kinds. A value that may be
            # anything stays, and nothing is excluded if one of the types is not known (`kinds` is empty)
            return (
                name,
                lambda atom: (
                    bool(kinds) and atom != ANYTHING and (atom.kind in kinds) is not is_true
                ),
            )
        # `if x:` excludes None if x is true. If x is false, nothing is excluded: x may be None,
        # or an empty list
        case ast.Name() if is_true:
            return test, lambda atom: atom.kind == "none"
    return None, lambda atom: False


def _named_kinds(node: ast.expr) -> set[str]:
    """Returns the kinds of atoms that the second argument of `isinstance` names; an empty set
    if it names a type that is not in `_KINDS`."""
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    kinds: set[str] = set()
    for name in names:
        # a type that is not in `_KINDS`, such as a class of the program
        if not isinstance(name, ast.Name) or name.id not in _KINDS:
            return set()
        kinds |= _KINDS[name.id]
    return kinds


def guarded_by(
    test: ast.AST, parents: Parents, followed: frozenset[str] = frozenset()
) -> list[ast.AST]:
    """Returns the code that runs only if the expression `test` is true; an empty list if there
    is no such code.

    This may be the rest of an `and`, the body of an `if`, or code that a decorator may skip. It may also be the code
    after an `if not ...:` block that ends with a statement such as `return`. If the result of the test is assigned to a
    name, code that is guarded by a test of this name is included. `parents` maps each node to its parent. `followed`
    contains the names whose tests are already being searched for.
    """
    # the loop goes outwards from the test: `node` is an expression that depends on the test, and `is_true` says whether
    # `node` is true or false if the test is true
    guarded: list[ast.AST] = []
    node, is_true = test, True
    while (outer := parents.get(node)) is not None:
        match outer:
            case ast.UnaryOp(op=ast.Not()):
                is_true = not is_true
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                if _is_reversed(
                    op, other=left if right is node else right, is_mirrored=right is node
                ):
                    is_true = not is_true
            # `node` is only the name of the called function, such as `is_available`: continue with
            # the call
            case ast.Call(func=func) if func is node:
                pass
            # in `available and x` and in `not available or x`, x runs only if the test is true
            case ast.BoolOp(values=values) if isinstance(outer.op, ast.And) is is_true:
                guarded += values[values.index(node) + 1 :]  # type: ignore[arg-type]
            case ast.If(test=tested, body=body, orelse=orelse) if tested is node:
                block = block_of(outer, parents)
                # `if not available: return` guards everything after it in the block
                after = block[block.index(outer) + 1 :] if _leaves_block(body[-1]) else []
                return [*guarded, *(body if is_true else [*orelse, *after])]
            # only one of the two expressions is evaluated
            case ast.IfExp(test=tested) if tested is node:
                return [*guarded, outer.body if is_true else outer.orelse]
            # `@unittest.skipUnless(torch.cuda.is_available(), "no GPU")` guards the function
            # below
            case ast.Call() if is_skip_decorator(outer, is_true):
                decorated = parents.get(outer)
                return [*guarded, *getattr(decorated, "body", ())]
            # `use_cuda = torch.cuda.is_available()`: a test of the name is the same test
            case ast.Assign(targets=[ast.Name() | ast.Attribute() as target]) if is_true:
                name = ast.unparse(target)
                # otherwise, `a = b` and `b = a` would be followed for ever
                if name in followed:
                    return guarded
                return [*guarded, *_guarded_by_name(target, name, parents, followed | {name})]
            case _:
                return guarded
        node = outer
    return guarded


def _is_reversed(op: ast.cmpop, other: ast.expr, is_mirrored: bool) -> bool:
    """Whether a comparison is true if the device is missing, as in `device_count() == 0` or `x.device.type != "cuda"`.
    A number of GPUs, or a kind of device, is compared with `other` by the operator `op`. `is_mirrored` is True if
    `other` is on the left side, as in `0 < device_count()`."""
    # operators that usually mean that the device is missing: `type != "cuda"`, `count < 1`, `1 > count`
    less = ast.Gt | ast.GtE if is_mirrored else ast.Lt | ast.LtE
    is_negative = isinstance(op, ast.NotEq | ast.NotIn | less)
    # with zero, it is the reverse: `== 0` means that the device is missing, and `!= 0` that it exists
    is_zero = isinstance(op, ast.Eq | ast.NotEq) and getattr(other, "value", None) == 0
    return not is_negative if is_zero else is_negative


def _leaves_block(statement: ast.stmt) -> bool:
    """Whether a statement always leaves its block, so the statements after it in the block are
    never reached."""
    match statement:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.Expr(value=ast.Call(func=func)):
            return ast.unparse(func) in _EXITS
    return False


def block_of(statement: ast.AST, parents: Parents) -> list[ast.AST]:
    """Returns the statements of the block that contains a statement. If the statement is in no
    block, returns a list that contains only the statement itself."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parents.get(statement), name, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def _guarded_by_name(
    target: ast.expr, name: str, parents: Parents, followed: frozenset[str]
) -> list[ast.AST]:
    """Returns the code that is guarded by tests of a variable or attribute. `target` is the node that assigns the
    variable or attribute, `name` is its source text, and `followed` contains the names whose tests are already being
    searched for. Tests of a variable are searched for in its function, and tests of an attribute in the whole
    module."""
    scope: ast.AST = target
    # an attribute may be tested anywhere in the module, a variable only in its function
    while scope in parents and not (
        isinstance(target, ast.Name) and isinstance(scope, _FUNCTIONS)
    ):
        scope = parents[scope]
    return [
        guarded
        for node in ast.walk(scope)
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node) == name
        for guarded in guarded_by(node, parents, followed)
    ]


def tells_vendors_apart(node: ast.AST, parents: Parents) -> bool:
    """Whether the tests around a node name a vendor other than NVIDIA. If the node is in a branch of an `if`, and an
    `elif` follows the `if`, the test of the `elif` is searched, too.
    """
    return any(map(_OTHER_VENDORS.search, _names_in_tests(node, parents)))


def is_chosen_by_release(node: ast.AST, parents: Parents) -> bool:
    """Whether the tests around a node check the version of a framework. If they do, another branch probably contains
    the new name already.
    """
    return any(map(_RELEASE.search, _names_in_tests(node, parents)))


def _names_in_tests(node: ast.AST, parents: Parents) -> Iterator[str]:
    """Yields the names and the strings in the tests around a node. Only tests inside the function or class that
    contains the node are searched. For a dotted name, yields each part; for other code, may also yield "".
    """
    while node in parents and not isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
        node = parents[node]
        match node:
            # the test of the following `elif` is included: in `if cuda: ... elif xpu: ...`, the
            # code of the first branch is intended for one vendor
            case ast.If(test=test, orelse=[ast.If(test=following), *_]):
                tests = [test, following]
            case ast.If(test=test) | ast.IfExp(test=test) | (ast.BoolOp() as test):
                tests = [test]
            case _:
                continue
        for test in tests:
            yield from map(last_name, ast.walk(test))


def last_name(node: ast.AST) -> str:
    """Returns the last name of an expression ("c" for `a.b.c`), or the text of a string; "" for
    anything else."""
    match node:
        case (
            ast.Constant(value=str(name))
            | ast.Attribute(attr=name)
            | ast.keyword(arg=str(name))
            | ast.Name(id=name)
        ):
            return name
    return ""


def value_after_tests(node: ast.expr, parents: Parents) -> Value:
    """Returns the possible values of an expression at its place in the program. None is left out if
    the expression is an attribute such as `args.gpu`, and a test around it excludes None."""
    means = inferred(node)
    if not isinstance(node, ast.Attribute) or Atom("none") not in means:
        return means
    # environments contain only the values of names, so the tests around an attribute are
    # evaluated here
    wanted = ast.dump(node)
    inner: ast.AST = node
    # a test outside a function says nothing about the time at which the function is called
    while (outer := parents.get(inner)) is not None and not isinstance(
        outer, (*_FUNCTIONS, ast.Lambda)
    ):
        if isinstance(outer, ast.If | ast.IfExp) and inner is not outer.test:
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            if inner in body and _excludes_none(outer.test, wanted):
                return means - value_of(Atom("none"))
        inner = outer
    return means


def _excludes_none(test: ast.expr, wanted: str) -> bool:
    """Whether a test can be true only if an expression is not None. `wanted` is the `ast.dump`
    of the expression."""
    match test:
        case ast.BoolOp(op=ast.And(), values=parts):
            return any(_excludes_none(part, wanted) for part in parts)
        case ast.Compare(
            left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None)]
        ):
            return ast.dump(left) == wanted
    return False


def is_skip_decorator(call: ast.AST, is_true: bool) -> bool:
    """Whether a call is a decorator such as `unittest.skipUnless(x, "why")`, which skips the decorated test if x is
    false. If `is_true` is False: whether it is a decorator such as `skipIf`, which skips the test if x is true."""
    match call:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[_, *_]):
            # in lower case, because unittest has `skipIf`, and pytest has `skipif`
            return name == "skipUnless" if is_true else name.lower() == "skipif"
    return False


def skips_without_gpu(decorators: list[ast.expr]) -> bool:
    """Whether one of these decorators skips the decorated code on machines without a GPU."""
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and decorator.args:
            test, is_true = decorator.args[0], True
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test, is_true = test.operand, False
            # `@unittest.skipUnless(torch.cuda.is_available(), "no GPU")` and similar decorators
            if is_skip_decorator(decorator, is_true) and inferred(test) == AVAILABLE:
                return True
    return False


def joined_envs(first: Env | None, second: Env | None) -> Env | None:
    """Returns the environment at a place where two paths of a program meet. `first` and `second` are the environments
    at the ends of the paths; None means that the path never reaches this place. Returns None if neither path reaches
    it."""
    if first is None or second is None:
        return first if second is None else second
    # a shortcut: usually, neither path has changed anything
    if first is second:
        return first
    both = dict(first)
    for name, value in second.items():
        before = both.get(name, NOTHING)
        # most names have the same value on both paths, and a union takes time
        if before != value:
            both[name] = union(before, value)
    return both


def is_gpu_count_test(test: ast.Compare, full_name: Callable[[ast.AST], str]) -> bool:
    """Whether a test compares the number of GPUs with a number, and is true only if there is a GPU,
    as in `device_count() > 0`. `full_name` is a function that returns the full name of an
    expression."""
    match test:
        case ast.Compare(
            left=ast.Call(func=func),
            ops=[ast.Gt() | ast.GtE() as op],
            comparators=[ast.Constant(value=int(bound))],
        ):
            # the smallest number for which the test is true
            least = bound + 1 if isinstance(op, ast.Gt) else bound
            return least > 0 and full_name(func).endswith((".device_count", ".num_gpus"))
    return False


def is_selected_tab(test: ast.expr, module: PythonModule) -> bool | None:
    """Whether a test such as `tab.selected("mxnet", "jax")` names the tab of the module; None for any other test, or if
    the module has no tab.
    """
    if (
        module.tab is None
        or not isinstance(test, ast.Call)
        or ast.unparse(test.func) != "tab.selected"
    ):
        return None
    parts = (part for arg in test.args for part in ast.walk(arg))
    return any(isinstance(part, ast.Constant) and part.value == module.tab for part in parts)
