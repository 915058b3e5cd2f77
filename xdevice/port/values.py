"""The possible results of an expression: a *value*, which is a set of *atoms*. An atom is one
thing that the expression may be, such as a tensor or a certain function.

The empty set, `NOTHING`, means "not known yet", and `UNKNOWN` means "anything": sets grow from
the first towards the second while the project is interpreted. An atom has a kind, which says
what its subject is:

| kind | subject |
|---|---|
| "tensor", "array", "int", "float", "bool", "str", "none", "dtype", "optimizer" | none |
| "available" | none: a value that is true only if there is a GPU |
| "anything" | none: the atom of `UNKNOWN` |
| "device" | none: a framework's own device; `origin` is the node that chose it, or None |
| "spelling" | a text that names a device, as "cuda:0"; "*" is a part that an f-string fills in; `origin` as above |
| "foreign" | an attribute of a package outside the project, by its full name, as "torch.nn.Linear" |
| "result" | the result of calling such an attribute, if no table has it: the attribute's full name |
| "model" | a layer or model of a framework: its full name |
| "function", "bound", "class", "instance", "super", "module" | a function, class or module of the project |
| "list", "dict" | a container that was made at one place: a key that finds its items |
| "tuple" | its items, a value each |
| "parser", "namespace" | of argparse: a key that finds its arguments |
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, Final, NamedTuple


class Atom(NamedTuple):
    """One thing that an expression may be: its kind and its subject (see the table above). For
    a device, or a string that names one, `origin` is the node that chose it."""

    kind: str
    subject: Any = None
    origin: ast.AST | None = None


Value = frozenset[Atom]


def make_value(kind: str, subject: Any = None, origin: ast.AST | None = None) -> Value:
    """Returns the value (the set of atoms) that consists of one new atom, of this kind and subject. `origin` is the
    node that chose the device, None for other kinds."""
    return frozenset([Atom(kind, subject, origin)])


def value_of(atom: Atom) -> Value:
    """The value with just this atom."""
    return frozenset([atom])


ANYTHING: Final = Atom("anything")
NOTHING: Final[Value] = frozenset()
"""The value of an expression about which nothing is known yet."""
UNKNOWN: Final = value_of(ANYTHING)
"""The value of an expression that may be anything."""
TENSOR: Final = make_value("tensor")
ARRAY: Final = make_value("array")
INT: Final = make_value("int")
FLOAT: Final = make_value("float")
BOOL: Final = make_value("bool")
STR: Final = make_value("str")
NONE: Final = make_value("none")
AVAILABLE: Final = make_value("available")
"""A value that is true only if there is a GPU."""

DEVICES: Final = ("device", "spelling")
"""The kinds of atoms for devices, and for strings that name a device."""
NUMBERS: Final = ("int", "bool")
"""The kinds of atoms that are valid as the index of a device; in Python a bool is a whole
number."""

# even if an expression may be anything, the functions that it may be have to get its arguments,
# and the devices have to be found wherever they go
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
}
"""The kinds of atoms that `union` keeps together with "anything"."""
# larger values would make the analysis slow, and no rule can use so many atoms
_MOST_ATOMS: Final = 24
"""How many atoms a value may have; a value with more atoms becomes "anything"."""
_MOST_ITEMS: Final = 12
"""How many items a tuple may have; in a longer one, each item is "anything"."""


def union(*values: Value) -> Value:
    """The union of values. If it contains "anything", or has more than `_MOST_ATOMS` atoms, it
    is reduced to "anything" and the atoms of the kinds in `_FOLLOWED`, which have to be
    followed in any case. Otherwise its tuples of the same length are merged."""
    result = NOTHING.union(*values)
    # a shortcut: most calls unite a value with itself or with the empty set, and then there is
    # nothing to reduce or merge
    if len(result) > 1:
        if ANYTHING in result or len(result) > _MOST_ATOMS:
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
    """Whether at least one atom of a value is of one of these kinds. The kind "anything" counts only if it is listed
    among them."""
    return any(atom.kind in kinds for atom in value)


def is_device(node: ast.AST | None) -> bool:
    """Whether an expression is known to be a device, or a string that names one."""
    return is_only(inferred(node), DEVICES)


def is_number(node: ast.AST | None) -> bool:
    """Whether an expression is known to be a whole number, and so is valid as the index of a
    device."""
    return is_only(inferred(node), NUMBERS)


def is_known(value: Value) -> bool:
    """Whether all atoms of a value are known: it is not empty, and does not contain
    "anything"."""
    return bool(value) and ANYTHING not in value


def inferred(node: ast.AST | None) -> Value:
    """The inferred value of an expression: the set of things that it may be. `NOTHING` if
    `node` is None, or if the expression is never reached."""
    return getattr(node, "means", NOTHING)


def tuple_of(values: Iterable[Value]) -> Value:
    """The value of a tuple with these items. An item that is itself a tuple of tuples becomes
    "anything", and so do all items if there are more than `_MOST_ITEMS`."""
    # a loop such as `x = (x, 1)` would nest tuples deeper for ever
    items = tuple(UNKNOWN if _is_deep(value) else value for value in values)
    return make_value(
        "tuple", items if len(items) <= _MOST_ITEMS else tuple(UNKNOWN for _ in items)
    )


def _is_deep(value: Value) -> bool:
    """Whether the tuples of a value contain tuples, or have more than `_MOST_ATOMS` items in
    all."""
    inside = [inner for atom in value if atom.kind == "tuple" for inner in atom.subject]
    return len(inside) > _MOST_ATOMS or any(
        atom.kind == "tuple" for inner in inside for atom in inner
    )


def _merge_tuples(value: Value) -> Value:
    """Returns the value with all tuples of the same length merged into one, item by item.
    Without this, a loop that swaps values would make new tuples for ever."""
    # the merged tuple for each length
    merged: dict[int, tuple[Value, ...]] = {}
    rest = set()
    for atom in value:
        if atom.kind != "tuple":
            rest.add(atom)
            continue
        items = atom.subject
        others = merged.get(len(items))
        merged[len(items)] = items if others is None else tuple(map(union, items, others))
    return frozenset(rest).union(*map(tuple_of, merged.values()))
