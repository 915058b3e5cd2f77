"""What an expression may be: a set of atoms.

The empty set means "not known yet", and `UNKNOWN` means "anything": sets grow from the first towards the second while
the project is interpreted. An atom is a text ("tensor", "array", "int", ...) or a tuple whose first item says what it
is:

- `("device", framework, origin)`: a framework's own device; `origin` is the node that chose it, or None
- `("spelling", text, origin)`: a text that names a device, as "cuda:0"; what an f-string fills in is "*"
- `("foreign", "torch.nn.Linear")`: an attribute of a package outside of the project, by its full name
- `("result", "accelerate.Accelerator")`: what calling such an attribute gave, where no table knows more
- `("model", "torch.nn.Linear")`: a layer or model of a framework
- `("function", f)`, `("bound", f)`, `("class", c)`, `("instance", c)`, `("super", c)`, `("module", m)`: of the project
- `("list", key)`, `("dict", key)`: a container that was made at one place; `key` finds what is in it
- `("tuple", (value, value, ...))`
- `("parser", key)`, `("namespace", key)`: of argparse; `key` finds what its arguments are
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable

Atom = Any
Value = frozenset[Atom]

ANYTHING: Final = "?"
NOTHING: Final[Value] = frozenset()
UNKNOWN: Final[Value] = frozenset([ANYTHING])
TENSOR: Final[Value] = frozenset(["tensor"])
ARRAY: Final[Value] = frozenset(["array"])
INT: Final[Value] = frozenset(["int"])
FLOAT: Final[Value] = frozenset(["float"])
BOOL: Final[Value] = frozenset(["bool"])
STR: Final[Value] = frozenset(["str"])
NONE: Final[Value] = frozenset(["none"])
AVAILABLE: Final[Value] = frozenset(["available"])
"""A value that is true only if there is a GPU."""

DEVICES: Final = ("device", "spelling")
NUMBERS: Final = ("int", "bool")

_FOLLOWED: Final = {"function", "bound", "class", "instance", "module", "device", "spelling", "list", "dict"}
_MOST: Final = 24
"""How many atoms a value may have; one with more becomes "anything"."""
_LONGEST: Final = 12
"""How many items of a tuple are told apart."""


def union(*values: Value) -> Value:
    """The union of values. Beside "anything" only functions and uses of devices are kept, which have to be followed
    whatever else the value may be. So values only grow towards "anything"."""
    whole = NOTHING.union(*values)
    if len(whole) < 2:
        return whole
    if ANYTHING in whole or len(whole) > _MOST:
        return frozenset(atom for atom in whole if kind(atom) in _FOLLOWED) | UNKNOWN
    if sum(kind(atom) == "tuple" for atom in whole) > 1:
        return _merge_tuples(whole)
    return whole


def kind(atom: Atom) -> str:
    return atom[0] if type(atom) is tuple else atom  # type: ignore[no-any-return]


def only(value: Value, kinds: Iterable[str]) -> bool:
    """Whether a value is known to be of these kinds, and of no other."""
    return bool(value) and all(kind(atom) in kinds for atom in value)


def may_be(value: Value, kinds: Iterable[str]) -> bool:
    return any(kind(atom) in kinds for atom in value)


def is_known(value: Value) -> bool:
    return bool(value) and ANYTHING not in value


def of(*atoms: Atom) -> Value:
    return frozenset(atoms)


def means_of(node: ast.AST | None) -> Value:
    """What inference has found an expression to be: nothing for one that is never reached."""
    return getattr(node, "means", NOTHING)


def tuple_of(values: Iterable[Value]) -> Value:
    """A tuple with these values in it. Items of tuples that are nested three deep become "anything"."""
    items = tuple(UNKNOWN if _is_deep(value) else value for value in values)
    return of(("tuple", items if len(items) <= _LONGEST else tuple(UNKNOWN for _ in items)))


def _is_deep(value: Value) -> bool:
    inside = [inner for atom in value if kind(atom) == "tuple" for inner in atom[1]]
    return len(inside) > _MOST or any(kind(atom) == "tuple" for inner in inside for atom in inner)


def _merge_tuples(value: Value) -> Value:
    """Merges all tuples of the same length into one. Otherwise a loop that swaps values would make new ones for
    ever."""
    merged: dict[int, tuple[Value, ...]] = {}
    rest = set()
    for atom in value:
        if kind(atom) != "tuple":
            rest.add(atom)
            continue
        items = atom[1]
        merged[len(items)] = tuple(map(union, items, merged.get(len(items), items)))
    return frozenset(rest).union(*map(tuple_of, merged.values()))
