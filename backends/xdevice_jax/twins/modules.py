"""The variables of modules of Flax (nnx, linen) and Equinox, which are models for conversions and comparisons. Those of
nnx and Equinox move as containers.

Facts that the code depends on:
- nnx keeps values in `nnx.Variable`s, which are written in place. Parameters and statistics of batch norms are
  variables; counts and keys of random numbers are not.
- Equinox keeps arrays as attributes of frozen dataclasses, and means a module to be replaced and not changed. Writing
  an array into it is seen by everyone who holds the module, as with any other framework's model.
- A module of Equinox takes one example, without an axis for the batch.
- nnx's `eval()` sets two attributes of the modules that have them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from xdevice.contract.models import Models
from xdevice.twins.contract import layouts

from . import linen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from xdevice.base.devices import Device

MODES: Final = ("deterministic", "use_running_average")
"""The attributes by which modules of nnx tell evaluation from training."""


class Variable(NamedTuple):
    """A variable of a module: its name in the model, its value, and a function that writes another one."""

    name: str
    value: jax.Array
    write: Callable[[jax.Array], None]


def nnx() -> ModuleType | None:
    """Returns Flax's nnx, if the program has imported it."""
    return sys.modules.get("flax.nnx")


def equinox() -> ModuleType | None:
    """Returns Equinox, if the program has imported it."""
    return sys.modules.get("equinox")


def is_nnx(x: object) -> bool:
    library = nnx()
    return library is not None and isinstance(x, library.Module)


def is_equinox(x: object) -> bool:
    library = equinox()
    return library is not None and isinstance(x, library.Module)


def walk(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields path and module of the model and of every module in it, each once, in the order of the attributes."""
    visited: set[int] = set()
    stack = [("", model)]
    while stack:
        path, thing = stack.pop()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        if is_nnx(thing) or is_equinox(thing):
            yield path, thing
        stack += [(layouts.join(path, name), child) for name, child in reversed(list(_children(thing)))]


def _children(thing: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(thing, list | tuple):
        return ((str(number), child) for number, child in enumerate(thing))
    if isinstance(thing, dict):
        return ((str(name), child) for name, child in thing.items())
    if is_nnx(thing) or is_equinox(thing):
        return ((name, child) for name, child in vars(thing).items() if not name.startswith("_"))
    return ()


def variables(model: Any) -> Iterator[Variable]:
    if linen.is_linen(model):
        yield from (Variable(*one) for one in linen.arrays(model))
        return
    for path, module in walk(model):
        for name, value in _children(module):
            for inner, holder, array in _arrays(module, name, value):
                yield Variable(layouts.join(path, inner), array, holder)


def _arrays(module: Any, name: str, value: Any) -> Iterator[tuple[str, Callable[[jax.Array], None], jax.Array]]:
    """Yields name, writer and value of the arrays in an attribute, which is an array or a list of arrays."""
    library = nnx()
    if library is not None and isinstance(value, library.Param | library.BatchStat):
        yield name, _into(value, "value"), value.value
    elif isinstance(value, jax.Array) and is_equinox(module):
        yield name, _into(module, name), value


def _into(holder: Any, name: str) -> Callable[[jax.Array], None]:
    # object's own function, because a module of Equinox refuses assignments
    return lambda value: object.__setattr__(holder, name, value) if is_equinox(holder) else setattr(holder, name, value)


class JaxModels(Models):
    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        return ((one.name, self.device_of(one.value)) for one in variables(model))

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        return ((one.name, one.value) for one in variables(model))

    def move_model(self, model: Any, device: Device) -> None:
        for one in list(variables(model)):
            one.write(self.move(one.value, device))

    def copy_model(self, model: Any, device: Device) -> Any:
        return jax.tree.map(lambda x: self.copy(x, device) if isinstance(x, jax.Array) else x, model)
