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

Each product lists its own capabilities in its folder `contract`, as `CAPABILITIES`. An adapter,
too, has a folder for each product, which lists its classes for these capabilities as `MIXINS`.
Neither is loaded before it is needed: when a method of a product is first called on a backend,
the backend's class is extended by the product's capabilities (`Backend.__getattr__`).

The class of a capability has defaults for its methods. Most of them raise an `UnsupportedError`
that names the missing feature.
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
"""The folders of xdevice, and of an adapter, that may extend a backend. A folder that is not
installed extends nothing."""

# held while the class of a backend is replaced
_extending = forks.renewed(threading.RLock())


class Backend(Models, Conversion, Replicas, Streams, Blocking):
    """One framework, as xdevice sees it. The class of an adapter inherits from `Backend`, and usually also from classes
    of the adapter's own, one for each capability (optional part of the contract) that the framework has."""

    products: frozenset[str] = frozenset()
    """The products by which this class has been extended."""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute that the class does not have yet. First extends the class by the product whose contract
        has the attribute. Raises `AttributeError` if there is no such product."""
        # if the class has the name, Python calls this method because a property has raised
        # AttributeError
        is_lacking = not name.startswith("_") and not hasattr(type(self), name)
        # the product whose contract has this name, if any
        product = (
            next((folder for folder in PRODUCTS if name in hooks_of(folder)), None)
            if is_lacking
            else None
        )
        if product is None:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self
            )
        # replaces the object's class, so that the next access finds the attribute
        extend(self, product)
        return getattr(self, name)


class Owned(NamedTuple):
    """The backend that a type belongs to, and whether objects of the type are tensors, symbols
    or models there. `core.registry` caches one for each type that it has looked up."""

    backend: Backend
    kind: Kind


def methods_of(*parts: Any) -> dict[str, Any]:
    """Returns every public method and property of these capabilities by its name, in the
    contract's order."""
    return {
        name: value
        for part in parts
        for name, value in vars(part).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


HOOKS: Final = methods_of(Primitives, *CAPABILITIES)
"""Every method and property of the device layer's contract by its name, in the contract's order."""


def extend(backend: Backend, product: str) -> None:
    """Replaces the class of a backend by one that also has the capabilities of a product,
    unless it has them already."""
    # two threads may call a product's methods for the first time at once
    with _extending:
        if product not in backend.products:
            backend.__class__ = extended(type(backend), product)


@cache
def capabilities_of(product: str) -> tuple[type[Primitives], ...]:
    """Returns the classes of the capabilities that a product adds to the contract; none if the
    product is not installed."""
    name = f"xdevice.{product}"
    # the product may have been left out of this installation
    if find_spec(name) is None or find_spec(f"{name}.contract") is None:
        return ()
    parts: tuple[type[Primitives], ...] = import_module(f"{name}.contract").CAPABILITIES
    return parts


@cache
def hooks_of(product: str) -> frozenset[str]:
    """Returns the names of the methods and attributes that a product adds to the contract; none
    if the product is not installed."""
    return frozenset(
        name
        for part in capabilities_of(product)
        for name in vars(part)
        if not name.startswith("_")
    )


@cache
def extended(cls: type[Backend], product: str) -> type[Backend]:
    """Returns a subclass of the backend's class `cls` with the capabilities of a product. A
    method is looked up first in `cls`, then in the adapter's folder for the product, then among
    the defaults. A class of that folder with `precedes = True` comes before `cls`: it adds to
    methods of the device layer, and calls these by `super()`.

    Raises:
        ContractError: if the adapter breaks the contract of the product.
    """
    parts = capabilities_of(product)
    mixins = _mixins(cls, product)
    # a base that another base inherits from must not come before it, so it is left out
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
    wrong = _violations(subclass, parts)
    if wrong:
        raise ContractError(
            f"the adapter {cls.name!r} ({cls.__module__}.{product}) " + "; ".join(wrong)
        )
    # the core has registered how the class is pickled, by the name of its backend; pickle looks
    # up the exact class
    if cls in copyreg.dispatch_table:
        copyreg.dispatch_table[subclass] = copyreg.dispatch_table[cls]
    return subclass


def _mixins(cls: type[Backend], product: str) -> tuple[type[Primitives], ...]:
    """Returns the classes that the adapter's folder for a product lists as `MIXINS`; none if it
    has no such folder. For a subclass of an adapter's class, the adapter's own folder counts
    too."""
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
    """Whether a class of an adapter's folder comes before the adapter's own class in the method
    order."""
    return bool(getattr(mixin, "precedes", False))


def _is_of_xdevice(base: type) -> bool:
    """Whether a base class belongs to the contract or to Python, and not to the adapter."""
    # the dot keeps our adapters out, whose packages are called `xdevice_torch` and so on
    return base.__module__.startswith(("xdevice.", "builtins", "abc"))


# the class attributes that have no default, so that each adapter must set them
_REQUIRED_ATTRIBUTES: Final = ("name", "modules", "minimum", "dtypes")


def check(cls: object, claimed: str, source: str) -> type[Backend]:
    """Returns the class `cls` if it keeps the contract. Otherwise raises a `ContractError` that
    names the adapter, each method that is wrong, and the signature that it should have.
    `claimed` is the adapter's entry-point name; `source` names the class and its distribution
    in errors.

    If the class itself has methods of products, as third-party adapters may, these are checked
    too. The folders of an adapter are checked when their product is first used.
    """
    import inspect

    if not (inspect.isclass(cls) and issubclass(cls, Backend)):
        raise ContractError(f"{source} is not a subclass of xdevice.contract.Backend: {cls!r}")
    wrong = [
        f"does not set the class attribute {name!r}"
        for name in _REQUIRED_ATTRIBUTES
        if not hasattr(cls, name)
    ]
    wrong += [
        f"lacks the method {_signature(name, HOOKS)}"
        for name in sorted(cls.__abstractmethods__)
    ]
    parts: tuple[Any, ...] = (Primitives, *CAPABILITIES)
    if any(
        callable(value) and name[0] != "_" and not hasattr(Backend, name)
        for name, value in _adapter_attributes(cls).items()
    ):
        # a public method that the device layer does not know may be a product's; for other
        # classes the contracts of the products need not be imported
        parts += tuple(part for product in PRODUCTS for part in capabilities_of(product))
    wrong += _violations(cls, parts)
    if not wrong and cls.name != claimed:
        wrong = [f"calls itself {cls.name!r}, which is not the name of its entry point"]
    if wrong:
        raise ContractError(f"the adapter {claimed!r} ({source}) " + "; ".join(wrong))
    return cls


def _violations(cls: type[Backend], parts: tuple[type[Primitives], ...]) -> list[str]:
    """Returns the errors of an adapter's class: a text for each method of the capabilities `parts` whose required
    arguments differ from the contract's, and for each capability of which the class has only some of the needed
    methods. Returns an empty list if nothing is wrong."""
    import inspect

    own, hooks = _adapter_attributes(cls), methods_of(*parts)
    wrong = [
        f"defines {name}{inspect.signature(mine)}, expected {_signature(name, hooks)}"
        for name, mine in own.items()
        if name in hooks and _required_arguments(mine) != _required_arguments(hooks[name])
    ]
    return wrong + [
        text
        for part in parts
        if part is not Primitives
        for text in _incomplete(part, own, hooks)
    ]


def _adapter_attributes(cls: type) -> dict[str, Any]:
    """Returns the attributes, most of them methods, that an adapter defines in its class and in
    its own base classes, by their names."""
    # the class itself is the last, so its attributes replace those of its bases
    parts = [base for base in reversed(cls.__mro__) if not _is_of_xdevice(base)]
    return {name: value for part in parts for name, value in vars(part).items()}


def _incomplete(
    part: type[Primitives], own: dict[str, Any], hooks: dict[str, Any]
) -> list[str]:
    """Returns a list with an error text if an adapter has some but not all of the methods that
    the capability `part` needs, because the first use of the capability would fail; otherwise
    an empty list. `own` has the adapter's methods, and `hooks` those of the contract."""
    needs: tuple[str, ...] = vars(part)["needs"]
    has = [name for name in needs if name in own]
    # an adapter may have none of the methods, or all of them
    if not has or len(has) == len(needs):
        return []
    missing = ", ".join(_signature(name, hooks) for name in needs if name not in own)
    return [f"has {has[0]} of {part.__name__}, but lacks {missing}"]


def _signature(name: str, hooks: dict[str, Any]) -> str:
    """Returns a method with its arguments as the contract has it, for errors: "wait(self, x)".
    It is looked up in `hooks`, the methods of the capabilities that are checked, and then in
    those of the device layer."""
    import inspect

    # a method of the device layer is not in `hooks` while a product is checked
    wanted: Any = hooks.get(name, HOOKS.get(name))
    return (
        f"{name} (a property)"
        if isinstance(wanted, property)
        else f"{name}{inspect.signature(wanted)}"
    )


def _required_arguments(function: Any) -> list[str]:
    """Returns the names of the arguments without defaults; an empty list if the object is not a
    function, but a property, for instance."""
    import inspect

    if not inspect.isfunction(function):
        return []
    return [
        p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty
    ]
