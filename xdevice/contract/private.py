"""The private names of a framework: those that an adapter reads or replaces although the framework does not promise to
keep them.

Each adapter lists them once, in its module `private`, each with the capability that needs it and a comment that says
why, which docs/reference/private.md has too. Its other modules read them there when they are loaded:

    private = Names("torch", "2.15.0", PRIVATE, IN_BLOCKS, FOR_GOOD)
    is_tracing = private["torch._C._is_tracing"]

If the installed framework lacks a name, its capability is refused by name, and everything else works:

- `private[...]` gives an `Absent` in the name's place, which raises the error when it is used;
- `private.get(...)` gives a default, where the adapter has another way or only loses speed;
- `private.require(capability)` raises the error before a capability changes anything;
- `private.field(...)` reads and writes an attribute that only objects have, and raises the error if they lack it.

`xdevice info` lists what is absent, and a test takes the names away one by one (tests/contract/test_absent_names.py).
"""

from __future__ import annotations

import re
import sys
import types
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from xdevice.errors import ContractError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Only = Literal["", "CUDA", "virtual GPUs", "older", "newer"]
"""Where the framework has the names: everywhere, in builds with CUDA, with virtual GPUs, in older versions, or
from some version on up to the tested one and beyond."""

CORE: Final = ("tensors", "containers", "models", "conversion", "random numbers", "waiting")
"""The capabilities of the device layer, which is to need few private names."""

CAPABILITIES: Final = (
    *CORE, "optimizers", "layers", "layers' calls", "operations", "saving", "data loaders", "gradients", "arithmetic",
    "nn", "compile", "deterministic", "memory", "streams", "graphs", "parallel", "prefetch", "blocking", "transfers",
    "replicas", "several processes", "virtual GPUs", "--xd-cuda", "samples",
)  # fmt: skip
"""The closed list of words by which errors and `xdevice info` say what needs a name."""

taken_away: Final[set[str]] = set()
"""Dotted names that are treated as absent, with what is in them. Only tests fill it, before they load an adapter: most
names cannot be deleted from a framework, because the framework itself needs them."""


class Private(NamedTuple):
    """Names that an adapter reads although its framework does not promise to keep them, or attributes that it replaces:
    in an adapter's `IN_BLOCKS` until the last block ends that needs it, in its `FOR_GOOD` until the process ends."""

    capability: str
    """One or several: "blocking, compile and transfers"."""
    owner: str
    names: tuple[str, ...]
    """For attributes that are replaced, `("*",)` means all functions of the owner."""
    only: Only = ""


class AbsentNameError(UnsupportedError):
    """The backend has a capability, but the installed release of its framework lacks a private name that it needs. Code
    that catches `UnsupportedError`, to go on without what a backend does not have, lets this error through."""


class Names:
    """The private names of one framework. `tested` is the newest version of the framework that was tested.

    >>> private = Names("math", "3.13", (Private("waiting", "math", ("_turbo", "floor")),))
    >>> private["math.floor"](2.5)
    2
    >>> private["math._turbo"](2.5)
    Traceback (most recent call last):
    xdevice.contract.private.AbsentNameError: waiting needs math._turbo, which the installed math does not have; ...
    """

    def __init__(self, framework: str, tested: str, *rows: tuple[Private, ...]) -> None:
        self.framework = framework
        self.tested = tested
        self.rows = tuple(row for table in rows for row in table)
        self._of = {dotted: row for row in reversed(self.rows) for dotted in spelled(row)}
        self._lacking: dict[str, list[str]] = {}
        # a word outside the list would be refused by nobody
        unknown = {word for row in self.rows for word in words(row)} - {*CAPABILITIES}
        if unknown:
            raise ContractError(
                f"{framework}: {sorted(unknown)} is not among the capabilities {CAPABILITIES}"
            )

    def __getitem__(self, dotted: str) -> Any:
        """Returns what the framework has by this name, which the adapter lists; otherwise an `Absent`."""
        row = self._row(dotted)
        value = look_up(dotted)
        return (
            Absent(partial(self.error, row.capability, [dotted])) if value is _ABSENT else value
        )

    def get(self, dotted: str, default: Any = None) -> Any:
        """Returns what the framework has by this name, which the adapter lists; otherwise `default`."""
        self._row(dotted)
        value = look_up(dotted)
        return default if value is _ABSENT else value

    def has(self, dotted: str) -> bool:
        """Whether the framework, or an object of the class that owns the name, has this name."""
        self._row(dotted)
        return is_there(dotted)

    def field(self, dotted: str) -> Any:
        """Returns a function that reads the attribute of an object, and whose `set(x, value)` writes it."""
        row = self._row(dotted)
        return Field(dotted, partial(self.error, row.capability, [dotted]))

    def place(self, dotted: str) -> tuple[Any, str]:
        """Returns the owner and the name of an attribute that the adapter replaces; an `Absent` if it has none."""
        row = self._row(dotted)
        owner, _, name = dotted.rpartition(".")
        value = look_up(owner)
        return Absent(
            partial(self.error, row.capability, [dotted])
        ) if value is _ABSENT else value, name

    def require(self, capability: str, only: Only = "") -> None:
        """Raises `UnsupportedError` if the framework lacks a name that the capability needs. `only`, such as "CUDA",
        selects the names that the framework has only there. The first call looks each of them up; later ones take 0.1
        us."""
        # kept, because some capabilities are asked for at each move of a model
        if capability not in self._lacking:
            self._lacking[capability] = self.absent(capability, only)
        if lacking := self._lacking[capability]:
            raise self.error(capability, lacking)

    def absent(self, capability: str, only: Only = "") -> list[str]:
        """Returns the names that a capability needs and the framework lacks."""
        rows = [
            row
            for row in self.rows
            if capability in words(row) and (row.only == only or self._is_promised(row))
        ]
        return [dotted for row in rows for dotted in spelled(row) if not is_there(dotted)]

    def lacking(self) -> list[str]:
        """Returns a sentence for each capability that is refused because the framework lacks names, for `xdevice info`.
        It imports the modules that have the names, which takes seconds."""
        capabilities = dict.fromkeys(word for row in self.rows for word in words(row))
        return [
            str(self.error(word, lacking))
            for word in capabilities
            if (lacking := self.absent(word))
        ]

    def error(self, capability: str, lacking: list[str]) -> AbsentNameError:
        verb = "need" if capability.endswith("s") or " and " in capability else "needs"
        return AbsentNameError(
            f"{capability} {verb} {', '.join(lacking)}, which {self._installed()} does not have; it was tested up to "
            f"{self.framework} {self.tested}: install that version, or a newer xdevice"
        )

    def _is_promised(self, row: Private) -> bool:
        if row.only == "newer":
            installed = getattr(sys.modules.get(self.framework), "__version__", self.tested)
            return _numbers(installed) >= _numbers(self.tested)
        return not row.only

    def _installed(self) -> str:
        version = getattr(sys.modules.get(self.framework), "__version__", None)
        return f"{self.framework} {version}" if version else f"the installed {self.framework}"

    def _row(self, dotted: str) -> Private:
        if dotted not in self._of:
            raise ContractError(f"{dotted} is not listed in the adapter's module private.py")
        return self._of[dotted]


class Absent:
    """Takes the place of a private name that the framework lacks. Any use of it raises the error that says so, except
    reading its attributes, which returns the same object: adapters read `private["a._b"].c` when they are loaded."""

    def __init__(self, error: Callable[[], UnsupportedError]) -> None:
        self.__dict__["error"] = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # inspect and copy ask for these
        return self

    def __or__(self, other: object) -> Any:
        return self  # a union of types for `isinstance`

    __ror__ = __or__

    def _refuse(self, *_: object, **__: object) -> Any:
        raise self.error()

    __call__ = __bool__ = __iter__ = __len__ = __contains__ = __getitem__ = __enter__ = (
        __exit__
    ) = _refuse
    __instancecheck__ = __subclasscheck__ = __setattr__ = __int__ = __index__ = _refuse

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        # a class of the adapter may inherit from it, and cannot be instantiated
        return (_refusing(self.error),)


def _refusing(error: Callable[[], UnsupportedError]) -> type:
    def refuse(cls: type, *_: object, **__: object) -> Any:
        raise error()

    return type("Refusing", (), {"__new__": refuse})


class Field:
    """An attribute of a framework's objects that can be asked for only when there is an object."""

    def __init__(self, dotted: str, error: Callable[[], UnsupportedError]) -> None:
        self._name = dotted.rpartition(".")[2]
        self._read = attrgetter(self._name)
        self._error = error
        self._is_absent = is_taken_away(dotted)

    def __call__(self, x: Any) -> Any:
        # only in tests, which take names away that frameworks cannot do without
        if self._is_absent:
            raise self._error()
        try:
            return self._read(x)
        except AttributeError:
            raise self._error() from None

    def get(self, x: Any, default: Any = None) -> Any:
        """Returns the attribute, or `default` for an object of a class without it."""
        if self._is_absent:
            raise self._error()
        return getattr(x, self._name, default)

    def set(self, x: Any, value: Any) -> None:
        """Writes the attribute, which must be there: under another name the framework would not see the value."""
        self(x)
        setattr(x, self._name, value)


_ABSENT: Final = object()


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def spelled(row: Private) -> Iterator[str]:
    """Yields the dotted names of a row."""
    return (row.owner if name == "*" else f"{row.owner}.{name}" for name in row.names)


def words(row: Private) -> list[str]:
    """The capabilities that need the names of a row."""
    return row.capability.replace(" and ", ", ").split(", ")


def is_taken_away(dotted: str) -> bool:
    return any(f"{dotted}.".startswith(f"{taken}.") for taken in taken_away)


def look_up(dotted: str) -> Any:
    """Returns the module, class or object of a dotted name, and imports the modules on the way to it; `_ABSENT` if one
    is not there."""
    parts = dotted.split(".")
    if is_taken_away(dotted):
        return _ABSENT
    # the longest prefix that is a module; the rest are attributes
    for length in range(len(parts), 0, -1):
        try:
            value: Any = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            # once absent, it stays absent: `_ABSENT` has no attributes
            value = getattr(value, name, _ABSENT)
        return value
    return _ABSENT


def is_there(dotted: str) -> bool:
    """Whether a framework has a name: as an attribute of the owner, or as one that the methods of the owner, which is
    a class or a function, read or write on their objects."""
    owner_name, _, name = dotted.rpartition(".")
    if look_up(dotted) is not _ABSENT:
        return True
    if is_taken_away(dotted):
        return False
    owner = look_up(owner_name)
    values = (
        [value for cls in owner.__mro__ for value in vars(cls).values()]
        if isinstance(owner, type)
        else [owner]
    )
    # an attribute that `__init__` sets is in no class, but its name is in the method's code
    codes = [value.__code__ for value in values if isinstance(value, types.FunctionType)]
    # as a constant where it is set by `setattr` or listed in `__slots__`
    return any(name in (*code.co_names, *code.co_consts) for code in codes)
