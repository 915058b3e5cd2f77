"""The contract as a whole: the class `Backend`, and `check`, which tests an adapter's class when it is loaded.

A capability is a part of the contract that an adapter may leave out. Those of the device layer are here:

| capability | what it offers |
|---|---|
| `primitives.Primitives` | what every adapter has: devices, tensors, values, waiting |
| `conversion.Conversion` | memory shared with other frameworks |
| `models.Models` | the framework's own models and optimizers, moved and copied |
| `replicas.Replicas` | several devices in one process |
| `streams.Streams` | streams and events |
| `blocking.Blocking` | waiting after each operation |

Each product lists its own in its folder `contract`, as `CAPABILITIES`. An adapter has a folder for each product too,
which lists its classes for these capabilities as `MIXINS`. Nobody loads them before they are needed: when a method of
a product is first called on a backend, the backend's class gets the product's capabilities (`Backend.__getattr__`).

The class of a capability has defaults for its methods. Most of them raise `UnsupportedError`, which names what is
missing.
"""

from __future__ import annotations

import copyreg
import sys
import threading
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from xdevice.base import forks
from xdevice.errors import ContractError

from .blocking import Blocking
from .conversion import Conversion
from .models import Models
from .primitives import Kind, Primitives
from .replicas import Replicas
from .streams import Streams

CAPABILITIES: Final[tuple[type[Primitives], ...]] = (
    Conversion, Models, Replicas, Streams, Blocking,
)  # fmt: skip
"""The capabilities of the device layer."""

PRODUCTS: Final = ("math", "performance", "twins", "distributed", "virtual", "testing")
"""The folders of xdevice, and of an adapter, that may extend a backend. One that is not there extends nothing."""

_extending = forks.renewed(threading.RLock())


class Backend(Models, Conversion, Replicas, Streams, Blocking):
    """One framework, as xdevice sees it. The class of an adapter inherits from `Backend`, and usually also from classes
    of the adapter's own, one for each capability (optional part of the contract) that the framework has."""

    products: frozenset[str] = frozenset()
    """The products by which this class has been extended."""

    def __getattr__(self, name: str) -> Any:
        """Called for an attribute that the class does not have: extends the class by the product that has it."""
        is_lacking = not name.startswith("_") and not hasattr(
            type(self), name
        )  # else a property of it raised the error
        # the product whose contract has this name, if any
        product = (
            next((one for one in PRODUCTS if name in hooks_of(one)), None)
            if is_lacking
            else None
        )
        if product is None:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self
            )
        # replaces the object's class, so that the next access does not come here
        extend(self, product)
        return getattr(self, name)


class Owned(NamedTuple):
    """The backend that a type belongs to, and whether objects of the type are tensors, symbols or models there.
    `core.registry` keeps one for each type that it has seen."""

    backend: Backend
    kind: Kind


def methods_of(*parts: Any) -> dict[str, Any]:
    """Every method and property of capabilities by its name, in the contract's order."""
    return {
        name: value
        for part in parts
        for name, value in vars(part).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


HOOKS: Final = methods_of(Primitives, *CAPABILITIES)
"""Every method and property of the device layer's contract by its name, in the contract's order."""


def extend(backend: Backend, product: str) -> None:
    """Extends the class of a backend by the capabilities of a product, unless it has them."""
    with _extending:  # two threads may call a product's methods for the first time
        if product not in backend.products:
            backend.__class__ = extended(type(backend), product)


@cache
def capabilities_of(product: str) -> tuple[type[Primitives], ...]:
    """Returns the capabilities that a product adds to the contract; none if it is not installed."""
    name = f"xdevice.{product}"
    # the product may have been left out of this installation
    if find_spec(name) is None or find_spec(f"{name}.contract") is None:
        return ()
    parts: tuple[type[Primitives], ...] = import_module(f"{name}.contract").CAPABILITIES
    return parts


@cache
def hooks_of(product: str) -> frozenset[str]:
    """Returns the names of the methods and attributes that a product adds to the contract."""
    return frozenset(
        name
        for part in capabilities_of(product)
        for name in vars(part)
        if not name.startswith("_")
    )


@cache
def extended(cls: type[Backend], product: str) -> type[Backend]:
    """Returns the class of a backend with the capabilities of a product: what the class has itself, then those of the
    adapter's folder of that name, then the defaults. A class of the folder with `precedes = True` comes first: it adds
    to methods of the device layer, and calls these by `super()`."""
    parts = capabilities_of(product)
    mixins = _mixins(cls, product)
    defaults = [
        part for part in parts if not any(part in other.__mro__[1:] for other in (cls, *parts))
    ]
    # the adapter's own metaclass, so that the new class behaves like the old one
    metaclass: Any = type(cls)
    subclass: type[Backend] = metaclass(
        cls.__name__,
        (
            # before the adapter's class, whose methods they call by `super()`
            *filter(_precedes, mixins),
            cls,
            *(mixin for mixin in mixins if not _precedes(mixin)),
            *defaults,
        ),
        {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "products": cls.products | {product},
        },
    )
    # checked when the product is first used, so that loading an adapter imports none of it
    wrong = _faults(subclass, parts)
    if wrong:
        raise ContractError(
            f"the adapter {cls.name!r} ({cls.__module__}.{product}) " + "; ".join(wrong)
        )
    # the core has said how the class is pickled: by the name of its backend
    if cls in copyreg.dispatch_table:
        copyreg.dispatch_table[subclass] = copyreg.dispatch_table[cls]
    return subclass


def _mixins(cls: type[Backend], product: str) -> tuple[type[Primitives], ...]:
    """Returns the classes that an adapter's folder of this name has for the capabilities of the product; for a subclass
    of an adapter's class, those of the adapter."""
    # the nearest class first: a subclass may bring folders of its own
    for package in dict.fromkeys(
        base.__module__ for base in cls.__mro__ if not _is_of_xdevice(base)
    ):
        module = sys.modules.get(package)
        if hasattr(module, "__path__") and find_spec(f"{package}.{product}") is not None:
            mixins: tuple[type[Primitives], ...] = getattr(
                import_module(f"{package}.{product}"), "MIXINS", ()
            )
            return mixins
    return ()


def _precedes(mixin: type[Primitives]) -> bool:
    return bool(getattr(mixin, "precedes", False))


def _is_of_xdevice(base: type) -> bool:
    return base.__module__.startswith(("xdevice.", "builtins", "abc"))


_STATED: Final = ("name", "modules", "minimum", "dtypes")


def check(cls: object, claimed: str, source: str) -> type[Backend]:
    """Returns the class `cls` if it keeps the contract. Otherwise raises `ContractError`, which names the adapter, each
    method that is wrong, and the signature that it should have. `claimed` is the adapter's entry-point name, and
    `source` says in errors which class of which distribution that is.

    A class that itself has methods of products, as third-party adapters do, is checked for these too. The folders of an
    adapter are checked when a product is first used."""
    import inspect

    if not (inspect.isclass(cls) and issubclass(cls, Backend)):
        raise ContractError(f"{source} is not a subclass of xdevice.contract.Backend: {cls!r}")
    wrong = [
        f"does not state the class attribute {name!r}"
        for name in _STATED
        if not hasattr(cls, name)
    ]
    wrong += [
        f"lacks the method {_signature(name, HOOKS)}"
        for name in sorted(cls.__abstractmethods__)
    ]
    parts: tuple[Any, ...] = (Primitives, *CAPABILITIES)
    if any(
        callable(value) and name[0] != "_" and not hasattr(Backend, name)
        for name, value in _own(cls).items()
    ):
        # only such classes need the products' contracts for the check
        parts += tuple(part for product in PRODUCTS for part in capabilities_of(product))
    wrong += _faults(cls, parts)
    if not wrong and cls.name != claimed:
        wrong = [f"calls itself {cls.name!r}"]
    if wrong:
        raise ContractError(f"the adapter {claimed!r} ({source}) " + "; ".join(wrong))
    return cls


def _faults(cls: type[Backend], parts: tuple[type[Primitives], ...]) -> list[str]:
    """Returns a text for each method of these capabilities that a class defines with other arguments, and for each
    capability of which it has only a part."""
    import inspect

    own, hooks = _own(cls), methods_of(*parts)
    wrong = [
        f"defines {name}{inspect.signature(mine)}, expected {_signature(name, hooks)}"
        for name, mine in own.items()
        if name in hooks and _required_arguments(mine) != _required_arguments(hooks[name])
    ]
    return wrong + [
        text for part in parts if part is not Primitives for text in _half(part, own, hooks)
    ]


def _own(cls: type) -> dict[str, Any]:
    """Returns the attributes, methods above all, that an adapter defines in its class and in its own base classes."""
    parts = [base for base in reversed(cls.__mro__) if not _is_of_xdevice(base)]
    return {name: value for part in parts for name, value in vars(part).items()}


def _half(part: type[Primitives], own: dict[str, Any], hooks: dict[str, Any]) -> list[str]:
    """Returns an error text, in a list, if an adapter has some but not all of the methods that the capability `part`
    needs, because the first use of the capability would fail; otherwise an empty list."""
    needs: tuple[str, ...] = vars(part)["needs"]
    has = [name for name in needs if name in own]
    # none of the capability is fine, and all of it is
    if not has or len(has) == len(needs):
        return []
    missing = ", ".join(_signature(name, hooks) for name in needs if name not in own)
    return [f"has {has[0]} of {part.__name__}, and lacks {missing}"]


def _signature(name: str, hooks: dict[str, Any]) -> str:
    import inspect

    wanted: Any = hooks.get(name, HOOKS.get(name))
    return (
        f"{name} (a property)"
        if isinstance(wanted, property)
        else f"{name}{inspect.signature(wanted)}"
    )


def _required_arguments(function: Any) -> list[str]:
    import inspect

    if not inspect.isfunction(function):
        return []
    return [
        p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty
    ]
