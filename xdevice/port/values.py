"""The possible results of an expression: a *value*, which is a set of *atoms*. An atom is one thing
that the expression may be, such as a tensor or a particular function.

The empty set, `NOTHING`, means "not known yet", and `UNKNOWN` means "anything". While the
project is interpreted, values grow from `NOTHING` towards `UNKNOWN`. The kind of an atom determines
its subject:

| kind | subject |
|---|---|
| "tensor", "array", "int", "float", "bool", "str", "none", "dtype", "optimizer" | none |
| "storage" | none: what `torch.load` passes to a function in `map_location=`, which has `.cuda()`, but is no tensor |
| "available" | none: a value that is true only if there is a GPU |
| "anything" | none: the atom of `UNKNOWN` |
| "device" | none: a framework's own device; `origin` is the node that chose it, or None |
| "spelling" | a string that names a device, as "cuda:0"; "*" is a part that an f-string fills in; `origin` as above |
| "foreign" | the full name of an attribute of a package outside the project, such as "torch.nn.Linear" |
| "result" | the full name of such an attribute that was called; only for results that are in no table |
| "model" | the full name of a framework's layer or model |
| "function", "bound", "class", "instance", "super", "module" | the function, class or module of the project |
| "list", "dict" | the key of the cell with the items; all containers created at one place in the code share it |
| "tuple" | the values of its items |
| "parser", "namespace" | an object of argparse: the key of the cells with its arguments |
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, Final, NamedTuple


class Atom(NamedTuple):
    """One thing that an expression may be, described by a kind and a subject (see the table
    above). For a device, or a string that names one, `origin` is the node that chose the
    device."""

    kind: str
    subject: Any = None
    origin: ast.AST | None = None


Value = frozenset[Atom]


def make_value(kind: str, subject: Any = None, origin: ast.AST | None = None) -> Value:
    """Returns a value (a set of atoms) that contains only a new atom with this kind and subject. `origin` is the node
    that chose the device; it is None for atoms of other kinds."""
    return frozenset([Atom(kind, subject, origin)])


def value_of(atom: Atom) -> Value:
    """Returns the value that contains only this atom."""
    return frozenset([atom])


ANYTHING: Final = Atom("anything")
NOTHING: Final[Value] = frozenset()
"""The value of an expression about which nothing is known yet."""
UNKNOWN: Final = value_of(ANYTHING)
"""The value of an expression that may be anything."""
TENSOR: Final = make_value("tensor")
STORAGE: Final = make_value("storage")
ARRAY: Final = make_value("array")
INT: Final = make_value("int")
FLOAT: Final = make_value("float")
BOOL: Final = make_value("bool")
STR: Final = make_value("str")
NONE: Final = make_value("none")
AVAILABLE: Final = make_value("available")
"""A value that is true only if there is a GPU."""

DEVICES: Final = ("device", "spelling")
"""The kinds of the atoms that stand for devices, and for strings that name a device."""
NUMBERS: Final = ("int", "bool")
"""The kinds of atoms that are valid as the index of a device. In Python, a bool is also an
int."""

# even if an expression may be anything, the functions that it may be still have to get the
# arguments of calls, and devices have to be followed through the program
_FOLLOWED: Final = {
    "function",
    "bound",
    "class",
    "instance",
    "module",
    "device",
    "spelling",
    "list",
    "dict",
    "storage",
}
"""The kinds of atoms that `union` keeps together with "anything"."""
# larger values would slow the analysis down, and no rule can use so many atoms
_MAX_ATOMS: Final = 24
"""The maximum number of atoms in a value. A value with more atoms becomes "anything"."""
_MAX_ITEMS: Final = 12
"""The maximum number of items of a tuple whose values are recorded. In a longer tuple, the
value of each item is "anything"."""


def union(*values: Value) -> Value:
    """Returns the union of values. If the union contains "anything", or more than `_MAX_ATOMS` atoms, the result
    contains only "anything" and the atoms of the kinds in `_FOLLOWED`, because arguments must still be passed to these
    functions, and devices must still be followed. Otherwise, tuples of the same length are merged.
    """
    result = NOTHING.union(*values)
    # a shortcut: most calls unite a value with itself or with the empty set, so there is
    # nothing to reduce or to merge
    if len(result) > 1:
        if ANYTHING in result or len(result) > _MAX_ATOMS:
            result = frozenset(atom for atom in result if atom.kind in _FOLLOWED) | UNKNOWN
        elif sum(atom.kind == "tuple" for atom in result) > 1:
            return _merge_tuples(result)
    # return an argument that equals the result, instead of a copy: each of millions of nodes
    # stores its value, and copies would not fit into memory
    for value in values:
        if len(value) == len(result) and value == result:
            return value
    return result


def is_only(value: Value, kinds: Iterable[str]) -> bool:
    """Whether all atoms of a value are of these kinds. False for a value that is not known
    yet."""
    return bool(value) and all(atom.kind in kinds for atom in value)


def may_be(value: Value, kinds: Iterable[str]) -> bool:
    """Whether at least one atom of a value is of one of these kinds. The kind "anything" matches only if `kinds`
    contains it."""
    return any(atom.kind in kinds for atom in value)


def is_device(node: ast.AST | None) -> bool:
    """Whether an expression is known to be a device, or a string that names one."""
    return is_only(inferred(node), DEVICES)


def is_number(node: ast.AST | None) -> bool:
    """Whether an expression is known to be a whole number, which makes it valid as the index of
    a device."""
    return is_only(inferred(node), NUMBERS)


def is_known(value: Value) -> bool:
    """Whether all atoms of a value are known: it is not empty, and does not contain
    "anything"."""
    return bool(value) and ANYTHING not in value


def inferred(node: ast.AST | None) -> Value:
    """Returns the inferred value of an expression: the set of things that the expression may be. The value is `NOTHING`
    if `node` is None, or if the expression is never reached.
    """
    return getattr(node, "means", NOTHING)


def tuple_of(values: Iterable[Value]) -> Value:
    """Returns the value of a tuple with these items. An item that is itself a tuple of tuples becomes "anything". If
    there are more than `_MAX_ITEMS` items, all items become "anything".
    """
    # otherwise, a loop such as `x = (x, 1)` would nest tuples ever deeper
    items = tuple(UNKNOWN if _is_deep(value) else value for value in values)
    return make_value(
        "tuple", items if len(items) <= _MAX_ITEMS else tuple(UNKNOWN for _ in items)
    )


def _is_deep(value: Value) -> bool:
    """Whether the tuples in a value contain other tuples, or more than `_MAX_ATOMS` items in
    total."""
    inside = [inner for atom in value if atom.kind == "tuple" for inner in atom.subject]
    return len(inside) > _MAX_ATOMS or any(
        atom.kind == "tuple" for inner in inside for atom in inner
    )


def _merge_tuples(value: Value) -> Value:
    """Returns the value with all tuples of the same length merged into one, item by item.
    Otherwise, a loop that swaps values would create new tuples for ever."""
    # the merged tuple for each length
    merged: dict[int, tuple[Value, ...]] = {}
    rest = set()
    for atom in value:
        if atom.kind != "tuple":
            rest.add(atom)
            continue
        items = atom.subject
        earlier = merged.get(len(items))
        merged[len(items)] = items if earlier is None else tuple(map(union, items, earlier))
    return frozenset(rest).union(*map(tuple_of, merged.values()))
