"""`compile`: a function of tensors as a program of the framework, which runs without Python.

A compiler calls a function once, with symbols in place of the tensors, and from then on repeats what it has recorded.
So it would silently repeat what the function read from elsewhere at that time. This module compiles anew if a variable
that the function reads has changed since (`Outside`), and refuses what it cannot see a change of.
"""

from __future__ import annotations

import warnings
from enum import Enum
from functools import wraps
from itertools import pairwise
from threading import local
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xdevice.base import floats
from xdevice.base.devices import Device
from xdevice.containers import trees
from xdevice.contract import Backend
from xdevice.core import registry, scopes, selection
from xdevice.errors import ArgumentError, DeviceMismatchError, shown

from .outside import Outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.containers.trees import Walked
F = TypeVar("F", bound="Callable[..., Any]")

_FIXED: Final = (NoneType, bool, int, float, complex, str, bytes, Enum, Device, FunctionType, BuiltinFunctionType, type)
"""What an argument may be beside tensors and containers: the function is compiled for each value of it."""
_PLAIN: Final = frozenset((NoneType, bool, int, str))
_CONTAINERS: Final = frozenset((dict, list, tuple))
_KNOWN: Final = _PLAIN | _CONTAINERS | {float, FunctionType}
_MANY: Final = 8
"""After so many programs for one function a warning says what they are made for."""


def compile(function: F) -> F:
    """The function as a program of the framework, made at the first call: `step = xdevice.compile(step)`.

    Young: it may change in a minor version.

    It takes what the function takes: tensors of one backend and on one device, in containers too; whatever else is in
    the arguments (numbers, texts, functions) is part of the program, which is made anew for each value of it, and for
    each shape and dtype of a tensor. Pass what changes at each step as a tensor. It gives the same results, of
    `value_and_grad`, `update`, `array_namespace` and `xdevice.nn` too, in the same containers.

    | backend | it is |
    |---|---|
    | jax | `jax.jit` |
    | tensorflow | `tf.function` |
    | torch, paddle, mxnet, numpy | the function itself, called as it is |

    Costs one slow call for each program (0.3 to 2 s for a small net), and 5 to 20 us a call beside the program.

    Raises:
        ArgumentError: not a function; an argument that is neither a tensor nor one of the above; no tensor at all;
            tensors of two backends. DeviceMismatchError: tensors on two devices: compile the work of each.
        UnsupportedError: on JAX and TensorFlow, if the function reads a value (`item`, `to_numpy`), draws
            random numbers, asks where a tensor is, changes an argument or a variable of the program, or uses a variable
            whose changes cannot be seen, as a model or a NumPy array: pass it as an argument, as tensors.

    Example:
        >>> step = xdevice.compile(lambda params, lr: {"w": params["w"] - lr * params["w"]})
        >>> xdevice.to_numpy(step({"w": xdevice.tensor([1.0, 2.0])}, 0.5)["w"]).tolist()
        [0.5, 1.0]
    """
    if not callable(function):
        raise ArgumentError(f"compile takes a function, not {shown(function)} of type {type(function).__qualname__}")
    programs = _Programs(function)

    @wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return programs.call(args, kwargs)

    return compiled  # type: ignore[return-value]


class _Arguments:
    """The arguments of one call: what is in them, sorted into tensors and the rest."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.given = args, kwargs
        self.backend: Backend | None = None
        self.tensors: list[Any] = []
        self.structure: list[Any] = []
        """What a program is made for beside the tensors: the containers, and the values of what is no tensor."""
        self.functions: list[Any] = []
        self.has_symbols = False
        self.places: list[int] = []
        """Which leaves the tensors are, where `_walk` has read the arguments."""
        try:
            if self._read(self.given):
                return
        except RecursionError:
            pass  # `_walk` explains it
        self._walk()

    def _read(self, x: Any) -> bool:
        """Reads Python's own containers, if nothing but tensors of one backend and numbers, texts and functions is in
        them, as for nearly each step of a training loop, which waits: in a third of the time of `_walk`."""
        tensors, structure = self.tensors, self.structure
        structure.append(type(x))
        structure.append((*x,) if type(x) is dict else len(x))
        for child in x.values() if type(x) is dict else x:
            cls = type(child)
            if cls in registry.movable or (cls not in _KNOWN and registry.kind_of(cls) and cls in registry.movable):
                tensors.append(child)
                structure.append(cls)
                if registry.movable[cls] is not self.backend:
                    if self.backend is not None:
                        return False
                    self.backend = registry.movable[cls]
            elif not self._read(child) if cls in _CONTAINERS else not self._add_fixed(cls, child):
                return False
        return self.backend is not None or x is not self.given

    def _add_fixed(self, cls: type, x: Any) -> bool:
        if cls is float:
            x = x.hex()  # 0.0 equals -0.0
        elif cls is FunctionType:
            self.functions.append(x)
        elif cls not in _PLAIN:
            return False
        self.structure += cls, x
        return True

    def _walk(self) -> None:
        """Reads arguments of any kind. Raises what is wrong with them."""
        walk = trees.flatten(self.given)
        self.tensors, self.functions, self.structure, self.backend = [], [], [_structure(walk[0])], None
        for i, x in enumerate(walk[1]):
            owner, value = self._owner_of(x)
            if owner is None:
                self._require_fixed(i, x)
                if not self._add_fixed(type(x), x):
                    self.structure += type(x), x
                continue
            if self.backend is not None and owner is not self.backend:
                raise ArgumentError(
                    f"compile takes tensors of one framework, and {self._name(i)} is of {owner.name}, others are of "
                    f"{self.backend.name}; xdevice.convert(x, {self.backend.name!r}) makes one of {self.backend.name}"
                )
            self.backend = owner
            self.tensors.append(value)
            self.places.append(i)
            self.structure.append(type(value))
        if self.backend is None:
            raise ArgumentError("compile takes a function of tensors, and there is none among its arguments")

    def _owner_of(self, x: Any) -> tuple[Backend | None, Any]:
        """Returns the backend of a tensor or of a variable, and the tensor in it; None for what is neither."""
        found = registry.kind_of(type(x))
        if found is None:
            return None, x
        self.has_symbols |= found.kind == "symbol"
        value = found.backend.tensor_of(x) if found.kind == "model" else x
        return (None, x) if value is None else (found.backend, value)

    def _require_fixed(self, i: int, x: Any) -> None:
        if not isinstance(x, _FIXED):
            raise ArgumentError(
                f"{self._name(i)} is {shown(x)} of type {type(x).__qualname__}, and a compiled function takes tensors, "
                f"numbers, texts, functions and containers of these; pass the tensors in it as a dict"
            )

    def _name(self, i: int) -> str:
        return "argument" + trees.Tree(self.given).path(i)

    def device(self) -> Device:
        """Returns the device of all the tensors. Raises if there are two."""
        assert self.backend is not None
        if len(set(map(type, self.tensors))) == 1:
            here: set[Device] = self.backend.devices_of(type(self.tensors[0]), self.tensors)
            if len(here) == 1:
                return here.pop()
        places = [self.backend.operand_device(x) for x in self.tensors]
        i = next((i for i, place in enumerate(places) if place != places[0]), None)
        if i is not None:
            where = self._places(trees.flatten(self.given)[1])
            raise DeviceMismatchError(
                f"compile takes tensors on one device, and {self._name(where[i])} is on {places[i]}, "
                f"{self._name(where[0])} on {places[0]}; compile the work of each device by itself"
            )
        return places[0]

    def require_dense(self) -> None:
        assert self.backend is not None
        if not all(map(self.backend.is_dense, self.tensors)):
            raise self.backend.unsupported("compiled functions of tensors that are not dense", "make them dense first")

    def key(self, device: Device) -> tuple[Any, ...]:
        """What a program is made for. Results of one key have the same structure."""
        where = (device, scopes.current(), selection.current().name, floats.usual())
        return where, tuple(self.structure), tuple([(x.shape, x.dtype) for x in self.tensors])

    def put(self, tensors: list[Any]) -> tuple[Any, ...]:
        """Returns args and kwargs anew, with other tensors in the places of those that there are."""
        walk = trees.flatten(self.given)
        leaves = list(walk[1])
        for i, x in zip(self._places(leaves), tensors, strict=True):
            leaves[i] = x
        return trees.rebuild(walk, leaves)  # type: ignore[no-any-return]

    def _places(self, leaves: list[Any]) -> list[int]:
        return self.places or [i for i, x in enumerate(leaves) if type(x) in registry.movable]


class _Programs:
    """The programs that one function was compiled to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._made: dict[Any, _Program] = {}
        self._outside: Outside | None = None
        self._count = 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = _Arguments(args, kwargs)
        device = None if arguments.has_symbols else arguments.device()
        assert arguments.backend is not None
        if device is None or type(arguments.backend).compile is Backend.compile:
            return self._function(*args, **kwargs)  # with symbols, a compiler around this one compiles it
        if self._outside is not None and self._outside.has_changed():
            self._made.clear()
            self._outside = None
        key = arguments.key(device)
        program = self._made.get(key)
        if program is not None:
            return program.run(arguments)
        arguments.require_dense()
        outside = Outside([self._function, *arguments.functions])
        program = _Program(self._function, arguments.backend, device)
        result = program.run(arguments)
        changed = outside.has_changed()
        if changed:
            raise arguments.backend.unsupported(
                f"compiling a function that changes {changed}: it would do so once, while it is traced",
                "return the new value",
            )
        if outside.has_drawn():
            raise arguments.backend.unsupported(
                "compiling a function that draws random numbers: they would be the same at each call",
                "draw outside, and pass the numbers in",
            )
        self._made[key], self._outside = program, outside if self._outside is None else self._outside.joined(outside)
        self._warn(key)
        return result

    def _warn(self, key: Any) -> None:
        self._count += 1
        if self._count != _MANY:
            return
        numbers = [value for cls, value in pairwise(key[1]) if cls is int]
        name = getattr(self._function, "__qualname__", shown(self._function))
        warnings.warn(
            f"{name} was compiled {_MANY} times, each time for other shapes, or other values of its arguments that are "
            f"not tensors{f' (now {numbers})' if numbers else ''}; pass what changes at each call as a tensor",
            RuntimeWarning,
            stacklevel=4,
        )


class _Program:
    """A function as it was compiled for arguments of one key."""

    def __init__(self, function: Callable[..., Any], backend: Backend, device: Device) -> None:
        self._function = function
        self._backend = backend
        self._now = local()  # the arguments of the call that may be tracing
        self._compiled = backend.compile(self._trace, device)
        self._template: Walked | None = None
        self._places: list[int] = []
        self._build: Callable[[Iterator[Any]], Any] | None = None

    def run(self, arguments: _Arguments) -> Any:
        self._now.arguments = arguments
        try:
            tensors = self._compiled(arguments.tensors)
        finally:
            del self._now.arguments
        if self._build is not None:
            return self._build(iter(tensors))
        assert self._template is not None
        leaves = list(self._template[1])
        for i, x in zip(self._places, tensors, strict=True):
            leaves[i] = x
        return trees.rebuild(self._template, leaves)

    def _trace(self, tensors: list[Any]) -> list[Any]:
        args, kwargs = given = self._now.arguments.put(tensors)
        before = trees.flatten(given)[1]
        result = self._function(*args, **kwargs)
        after = trees.flatten(given)[1]
        if len(before) != len(after) or any(x is not y for x, y in zip(before, after, strict=True)):
            raise self._backend.unsupported(
                "compiling a function that changes a container among its arguments", "return a new container"
            )
        return self._parted(result)

    def _parted(self, result: Any) -> list[Any]:
        """Returns the tensors in a result, and keeps what is around them."""
        walk = trees.flatten(result)
        tensors, places, leaves = [], [], list(walk[1])
        for i, x in enumerate(walk[1]):
            found = registry.kind_of(type(x))
            if found is not None and found.backend is self._backend and found.kind != "model":
                tensors.append(x)
                places.append(i)
                leaves[i] = None  # else the template would keep the compiler's symbols
            elif not isinstance(x, _FIXED):
                raise self._backend.unsupported(
                    f"compiling a function that gives {shown(x)} of type {type(x).__qualname__}",
                    f"return tensors of {self._backend.name}, numbers, texts and containers of these",
                )
        self._template, self._places = trees.flatten(trees.rebuild(walk, leaves)), places
        self._build = _builder(self._template, places)
        return tensors


def _builder(template: Walked, places: list[int]) -> Callable[[Iterator[Any]], Any] | None:
    """A function that builds a result around its tensors, in a third of the time of `trees.rebuild`; None if there is
    more in it than tensors in dicts, lists and tuples."""

    def builder(node: Any) -> Callable[[Iterator[Any]], Any]:
        x, _, keys, children, inner = node
        if type(x) not in _CONTAINERS:
            raise LookupError
        names, parts = list(keys), [builder(inner[i]) if i in inner else next for i in range(len(children))]
        if type(x) is not dict:
            return lambda tensors: type(x)([part(tensors) for part in parts])
        if not inner:
            return lambda tensors: dict(zip(names, tensors))  # noqa: B905  # the rest is for others
        return lambda tensors: dict(zip(names, [part(tensors) for part in parts], strict=True))

    if len(places) < len(template[1]):
        return None
    try:
        return next if template[0] is None else builder(template[0])
    except LookupError:
        return None


def _structure(node: Any) -> Any:
    if node is None:
        return None
    x, _, keys, _, inner = node
    return type(x), tuple(keys), tuple((i, _structure(child)) for i, child in inner.items())
