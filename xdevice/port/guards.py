"""What tests and joins of branches say about the values that names have."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from .cells import Env
from .project import Unit
from .values import ANYTHING, NOTHING, Atom, kind, only, union

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cells import Cells

_KINDS: Final = {
    "list": {"list"},
    "tuple": {"tuple"},
    "dict": {"dict"},
    "str": {"str", "spelling"},
    "int": {"int", "bool"},
}


def narrowed(test: ast.expr, env: Env, is_true: bool) -> Env:
    """What is known if a test is true (or false, if not `is_true`). Understands `is None`, `isinstance`, a plain
    name, `not` and `and`."""
    new = dict(env)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return narrowed(test.operand, env, not is_true)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is is_true:
        for part in test.values:
            new = narrowed(part, new, is_true)
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


def joined(one: Env | None, other: Env | None) -> Env | None:
    if one is None or other is None:
        return one if other is None else other
    if one is other:
        return one
    both = dict(one)
    for name, value in other.items():
        mine = both.get(name, NOTHING)
        if mine != value:
            both[name] = union(mine, value)
    return both


def denies_gpu(test: ast.expr) -> bool:
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


def counts_gpus(node: ast.Compare, cells: Cells) -> bool:
    """Whether a test is `device_count() > 0`, or another one that is true only where there is a GPU."""
    if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Gt | ast.GtE) or not isinstance(node.left, ast.Call):
        return False
    bound = node.comparators[0]
    least = 0 if isinstance(node.ops[0], ast.Gt) else 1
    counted = cells.full(node.left.func).endswith((".device_count", ".num_gpus"))
    return counted and isinstance(bound, ast.Constant) and isinstance(bound.value, int) and bound.value >= least


def selected_tab(test: ast.expr, unit: Unit) -> bool | None:
    """For a test such as `tab.selected("mxnet", "jax")`: whether this tab is one of those. None for any other test."""
    if unit.tab is None or not isinstance(test, ast.Call) or ast.unparse(test.func) != "tab.selected":
        return None
    names = [arg.value for part in test.args for arg in ast.walk(part) if isinstance(arg, ast.Constant)]
    return unit.tab in names
