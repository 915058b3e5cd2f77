"""The private names of a framework that an adapter reads or replaces, although later versions of the framework may lack
these names.

Each adapter lists its private names only in its module `private`, each with the capability that needs the name and a
comment that says why (docs/reference/private.md shows both). The adapter's other modules look the names up there when
they are loaded:

    private = Names("torch", "2.15.0", PRIVATE, IN_BLOCKS, FOR_GOOD)
    is_tracing = private["torch._C._is_tracing"]

If the installed framework lacks a name, the capability that needs the name raises an `AbsentNameError`, and everything
else works:

- `private[...]` returns an `Absent` in place of the missing object; any use of the `Absent` raises the error;
- `private.get(...)` returns a default, for an adapter that has an alternative or only becomes slower;
- `private.require_names_for(capability)` raises the error before the capability changes anything;
- `private.field(...)` reads and writes an attribute that only instances have, and raises the error if an instance lacks
  the attribute.

`xdevice info` lists the absent names, and tests/contract/test_absent_names.py removes each name
in turn.
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
"""The condition under which the framework has the names. "": always; "CUDA": in builds with CUDA; "virtual GPUs": while
the backend's GPUs are virtual; "older": only in versions older than the tested version; "newer": in the tested version,
in later versions, and in some earlier versions."""

CORE: Final = ("tensors", "containers", "models", "conversion", "random numbers", "waiting")
"""The capabilities of the device layer, which should need few private names."""

CAPABILITIES: Final = (
    *CORE, "optimizers", "layers", "layers' calls", "operations", "saving", "data loaders", "gradients", "arithmetic",
    "nn", "compile", "deterministic", "memory", "streams", "graphs", "parallel", "prefetch", "blocking", "transfers",
    "replicas", "several processes", "virtual GPUs", "--xd-cuda", "samples",
)  # fmt: skip
"""All words that errors and `xdevice info` use for the capability that needs a name."""

taken_away: Final[set[str]] = set()
"""Dotted names that are treated as absent, together with all names inside them. Only tests add names to this set,
before they load an adapter. Tests cannot delete most names from a framework, because the framework itself needs these
names."""


class Private(NamedTuple):
    """A row of one of an adapter's tables. `PRIVATE` lists private names that the adapter reads. `IN_BLOCKS` and
    `FOR_GOOD` list attributes that the adapter replaces: `IN_BLOCKS` until the last block that needs the replacement
    ends, `FOR_GOOD` until the process ends."""

    capability: str
    """The capability or capabilities that need the names: "blocking, compile and transfers"."""
    owner: str
    """The dotted name of the module or class that has the names."""
    names: tuple[str, ...]
    """The names without the owner. For attributes that are replaced, `("*",)` means all functions of the owner."""
    only: Only = ""


class AbsentNameError(UnsupportedError):
    """The backend has a capability, but the installed release of its framework lacks a private name that the capability
    needs. Code of xdevice that catches `UnsupportedError` in order to continue without a capability raises this error
    again."""


class Names:
    """The private names of one framework, from the tables (`rows`) of its adapter. `tested` is the newest version of
    the framework that was tested.

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
        # reversed, so that the first of several rows with the same name is used
        self._row_by_name = {
            dotted: row for row in reversed(self.rows) for dotted in dotted_names(row)
        }
        # the absent names for each pair of arguments of `require_names_for` so far
        self._lacking: dict[tuple[str, Only], list[str]] = {}
        # `require_names_for` is never called with a misspelt capability, so the names in such a row would not be
        # checked
        unknown = {word for row in self.rows for word in capabilities_of(row)} - {*CAPABILITIES}
        if unknown:
            raise ContractError(
                f"{framework}: {sorted(unknown)} are not capabilities; expected words from {CAPABILITIES}"
            )

    def __getitem__(self, dotted: str) -> Any:
        """Returns the object with this dotted name, or an `Absent` if the framework lacks the name. Like the other
        methods that have an argument `dotted`, raises `ContractError` if the adapter does not list the name."""
        row = self._row(dotted)
        value = look_up(dotted)
        return (
            Absent(partial(self.error, row.capability, [dotted])) if value is _ABSENT else value
        )

    def get(self, dotted: str, default: Any = None) -> Any:
        """Returns the object with this dotted name, or `default` if the framework lacks the name."""
        # called only for its check that the adapter lists the name
        self._row(dotted)
        value = look_up(dotted)
        return default if value is _ABSENT else value

    def has(self, dotted: str) -> bool:
        """Whether the framework has this name. The name may be that of an attribute that only instances of a class
        have."""
        self._row(dotted)
        return has_name(dotted)

    def field(self, dotted: str) -> Any:
        """Returns a `Field` for an attribute. Calling the `Field` with an object reads the attribute, and its method
        `set(x, value)` writes the attribute."""
        row = self._row(dotted)
        return Field(dotted, partial(self.error, row.capability, [dotted]))

    def place(self, dotted: str) -> tuple[Any, str]:
        """Returns the owner and the name of an attribute that the adapter replaces. If the framework lacks the owner,
        returns an `Absent` in its place."""
        row = self._row(dotted)
        owner_name, _, name = dotted.rpartition(".")
        owner = look_up(owner_name)
        if owner is _ABSENT:
            owner = Absent(partial(self.error, row.capability, [dotted]))
        return owner, name

    def require_names_for(self, capability: str, only: Only = "") -> None:
        """Raises `AbsentNameError` if the framework lacks a name that the capability needs. If `only` is a condition,
        such as "CUDA", names that the framework has only under this condition are required too. The first call with
        these arguments looks each name up; later calls take 0.1 us."""
        # cached, because some capabilities are required at each move of a model
        key = capability, only
        if key not in self._lacking:
            self._lacking[key] = self.absent_names_for(capability, only)
        if lacking := self._lacking[key]:
            raise self.error(capability, lacking)

    def absent_names_for(self, capability: str, only: Only = "") -> list[str]:
        """Returns the dotted names that a capability needs and the framework lacks. If `only` is a condition, such as
        "CUDA", the result includes names that the framework should have under this condition."""
        rows = [
            row
            for row in self.rows
            if capability in capabilities_of(row)
            and (row.only == only or self._is_expected(row))
        ]
        return [dotted for row in rows for dotted in dotted_names(row) if not has_name(dotted)]

    def lacking(self) -> list[str]:
        """Returns a list of error messages for `xdevice info`, one for each capability that needs a name that the
        framework lacks. Imports the modules that should define these names, which can take several seconds."""
        capabilities = dict.fromkeys(word for row in self.rows for word in capabilities_of(row))
        return [
            str(self.error(word, lacking))
            for word in capabilities
            if (lacking := self.absent_names_for(word))
        ]

    def error(self, capability: str, lacking: list[str]) -> AbsentNameError:
        """Returns the error for a capability that needs the names `lacking`, which the
        installed framework does not have."""
        # "streams need", "blocking and compile need", "nn needs"
        verb_form = "need" if capability.endswith("s") or " and " in capability else "needs"
        return AbsentNameError(
            f"{capability} {verb_form} {', '.join(lacking)}, which {self._installed()} does not have; xdevice was "
            f"tested up to {self.framework} {self.tested}; install that version, or a newer version of xdevice"
        )

    def _is_expected(self, row: Private) -> bool:
        """Whether every build of the installed framework should have the names of a row. It should if the row has no
        condition (`only`), or if the condition is "newer" and the installed version is the tested version or later."""
        if row.only == "newer":
            # a framework that is not imported is treated as the tested version
            installed = getattr(sys.modules.get(self.framework), "__version__", self.tested)
            return _numbers(installed) >= _numbers(self.tested)
        return not row.only

    def _installed(self) -> str:
        """Returns the framework and its version, as errors show them: "torch 2.15.0"."""
        version = getattr(sys.modules.get(self.framework), "__version__", None)
        return f"{self.framework} {version}" if version else f"the installed {self.framework}"

    def _row(self, dotted: str) -> Private:
        """Returns the row that lists a name. Raises `ContractError` if no row lists it, so that no adapter uses a
        private name that its tables lack."""
        if dotted not in self._row_by_name:
            raise ContractError(f"{dotted} is not listed in the adapter's module private.py")
        return self._row_by_name[dotted]


class Absent:
    """Takes the place of the object behind a private name that the framework lacks. Any use of an `Absent` raises the
    error about the missing name, except that reading an attribute returns the `Absent` itself, because adapters read
    `private["a._b"].c` when they are loaded."""

    def __init__(self, error: Callable[[], UnsupportedError]) -> None:
        self.__dict__["error"] = error

    def __getattr__(self, name: str) -> Any:
        # `inspect` and `copy` look special names up, and continue if these are missing
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self

    # so that an adapter can name a missing class in a union of types, such as `A | private["B"]`
    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__

    def _refuse(self, *_: object, **__: object) -> Any:
        """Raises the error. The special methods below are aliases of this method, because Python looks special methods
        up in the class, not with `__getattr__`."""
        raise self.error()

    __call__ = __bool__ = __iter__ = __len__ = __contains__ = __getitem__ = __enter__ = (
        __exit__
    ) = _refuse
    __instancecheck__ = __subclasscheck__ = __setattr__ = __int__ = __index__ = _refuse

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        # an adapter may define a class that inherits from the missing class; only creating an instance of
        # that class raises the error
        return (_refusing(self.error),)


def _refusing(error: Callable[[], UnsupportedError]) -> type:
    """Returns a class that raises `error()` when an instance of the class or of a subclass is created."""

    def refuse(cls: type, *_: object, **__: object) -> Any:
        """The `__new__` of the class."""
        raise error()

    return type("Refusing", (), {"__new__": refuse})


class Field:
    """An attribute of a framework's objects, whose presence can be checked only on an object, not on the class. Calling
    a `Field` with an object reads the attribute. Reading and writing raise `error()` if the attribute is absent."""

    def __init__(self, dotted: str, error: Callable[[], UnsupportedError]) -> None:
        self._name = dotted.rpartition(".")[2]
        self._read = attrgetter(self._name)
        self._error = error
        self._is_absent = is_taken_away(dotted)

    def __call__(self, x: Any) -> Any:
        # true only in tests; see `taken_away`
        if self._is_absent:
            raise self._error()
        try:
            return self._read(x)
        except AttributeError:
            raise self._error() from None

    def get(self, x: Any, default: Any = None) -> Any:
        """Returns the attribute of `x`, or `default` if `x` lacks it. Raises `error()` only if
        a test has declared the attribute absent."""
        if self._is_absent:
            raise self._error()
        return getattr(x, self._name, default)

    def set(self, x: Any, value: Any) -> None:
        """Writes the attribute of `x`. Raises `error()` if `x` lacks the attribute, because the framework would not
        read a value under a name that it does not use."""
        self(x)
        setattr(x, self._name, value)


# the result of `look_up` for a missing name, because None may be the value of a name
_ABSENT: Final = object()


def _numbers(version: str) -> list[int]:
    """Returns the first two numbers of a version: [2, 15] for "2.15.0+cpu"."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def dotted_names(row: Private) -> Iterator[str]:
    """Returns an iterator over the dotted names of a row. For "*" (all functions), it yields only the name of the
    owner."""
    return (row.owner if name == "*" else f"{row.owner}.{name}" for name in row.names)


def capabilities_of(row: Private) -> list[str]:
    """Returns the capabilities that need the names of a row: ["blocking", "compile"] for
    "blocking and compile"."""
    return row.capability.replace(" and ", ", ").split(", ")


def is_taken_away(dotted: str) -> bool:
    """Whether a test has declared the name `dotted` absent, or a module or class that contains this name (see
    `taken_away`)."""
    # with dots at the ends, so that "a.b" does not match "a.bc"
    return any(f"{dotted}.".startswith(f"{taken}.") for taken in taken_away)


def look_up(dotted: str) -> Any:
    """Returns the module, class or other object with a dotted name. Imports the modules that contain the object.
    Returns `_ABSENT` if a part of the name does not exist."""
    parts = dotted.split(".")
    if is_taken_away(dotted):
        return _ABSENT
    # the longest prefix that is a module is imported; the remaining parts are attributes in that module
    for length in range(len(parts), 0, -1):
        try:
            value: Any = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            # after a missing part the value stays `_ABSENT`, which has no attributes
            value = getattr(value, name, _ABSENT)
        return value
    return _ABSENT


def has_name(dotted: str) -> bool:
    """Whether a framework has a name. Returns True if the owner has the attribute. Also returns True if the owner is a
    class or function whose code reads or writes an attribute with this name."""
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
    # a class does not have an attribute that its `__init__` sets, but the code of `__init__` contains
    # the attribute's name
    codes = [value.__code__ for value in values if isinstance(value, types.FunctionType)]
    # the name is among the constants if the code passes it to `setattr`
    return any(name in (*code.co_names, *code.co_consts) for code in codes)
