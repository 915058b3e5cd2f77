"""The whole contract: the class `Backend`, and `check`, which checks an adapter's class when the class is loaded.

A capability is a part of the contract that an adapter may omit. The device layer has these parts:

| capability | what it offers |
|---|---|
| `primitives.Primitives` | what every adapter has: devices, tensors, values, waiting |
| `conversion.Conversion` | memory shared with other frameworks |
| `models.Models` | the framework's own models and optimizers, moved and copied |
| `replicas.Replicas` | several devices in one process |
| `streams.Streams` | streams and events |
| `blocking.Blocking` | waiting after each operation |

Each product, such as `xdevice.math`, lists its own capabilities as `CAPABILITIES` in its folder `contract`. An adapter
also has a folder for each product, which lists the adapter's classes for these capabilities as `MIXINS`. Both folders
are loaded only when a method of the product is first used on a backend. `Backend.__getattr__` then adds the product's
capabilities to the backend's class.

The class of a capability has defaults for its methods. Most of these defaults raise an `UnsupportedError` that names
the missing feature.
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
"""The folders of xdevice and of an adapter that may extend a backend. A folder that is not installed is ignored."""

# held while the class of a backend is replaced
_extending = forks.unlocked_in_child(threading.RLock())


class Backend(Models, Conversion, Replicas, Streams, Blocking):
    """The interface through which xdevice uses one framework. An adapter's class inherits from `Backend`, and usually
    also from the adapter's own classes, one for each capability (optional part of the contract) that the framework
    has."""

    products: frozenset[str] = frozenset()
    """The products by which this class has been extended."""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute that the class does not have yet. To do so, extends the class by the product whose
        contract defines the attribute. Raises `AttributeError` if there is no such product."""
        # if the class does have the name, Python has called this method because a property raised
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
    """The backend to which a type belongs, and the type's kind: whether its objects are tensors, symbols or models.
    `core.registry` caches an `Owned` for each type that it has looked up."""

    backend: Backend
    kind: Kind


def methods_of(*parts: Any) -> dict[str, Any]:
    """Returns a dict from names to the public methods and properties of these capabilities, in the order of the
    contract."""
    return {
        name: value
        for part in parts
        for name, value in vars(part).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


HOOKS: Final = methods_of(Primitives, *CAPABILITIES)
"""The methods and properties of the device layer's contract by their names, in the order of the contract."""


def extend(backend: Backend, product: str) -> None:
    """Replaces the class of a backend by a class that also has the capabilities of a product. Does nothing if the
    backend already has these capabilities."""
    # two threads may both call a product's methods for the first time, at the same moment
    with _extending:
        if product not in backend.products:
            backend.__class__ = extended(type(backend), product)


@cache
def capabilities_of(product: str) -> tuple[type[Primitives], ...]:
    """Returns the classes of the capabilities that a product adds to the contract; an empty tuple if the product is not
    installed."""
    name = f"xdevice.{product}"
    # this installation may lack the product
    if find_spec(name) is None or find_spec(f"{name}.contract") is None:
        return ()
    parts: tuple[type[Primitives], ...] = import_module(f"{name}.contract").CAPABILITIES
    return parts


@cache
def hooks_of(product: str) -> frozenset[str]:
    """Returns the names of the methods and attributes that a product adds to the contract; an empty set if the product
    is not installed."""
    return frozenset(
        name
        for part in capabilities_of(product)
        for name in vars(part)
        if not name.startswith("_")
    )


@cache
def extended(cls: type[Backend], product: str) -> type[Backend]:
    """Returns a subclass of the backend's class `cls` that also has the capabilities of a product. Methods are looked
    up first in `cls`, then in the adapter's folder for the product, then among the defaults. A class in that folder
    with `precedes = True` comes before `cls`. It extends methods of the device layer, and calls the original methods
    with `super()`.

    Raises:
        ContractError: if the adapter breaks the contract of the product.
    """
    parts = capabilities_of(product)
    mixins = _mixins(cls, product)
    # a default from which `cls` or another default inherits is left out, because Python allows no base
    # before its subclass
    defaults = [
        part for part in parts if not any(part in other.__mro__[1:] for other in (cls, *parts))
    ]
    # the adapter's own metaclass, so that the new class behaves like `cls`
    metaclass: Any = type(cls)
    subclass: type[Backend] = metaclass(
        cls.__name__,
        (
            # these come before the adapter's class, whose methods they call with `super()`
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
    # checked when the product is first used, so that loading an adapter does not import the product
    wrong = _violations(subclass, parts)
    if wrong:
        raise ContractError(
            f"the adapter {cls.name!r} ({cls.__module__}.{product}) " + "; ".join(wrong)
        )
    # the core has registered a function that pickles the class by the name of its backend, and pickle
    # looks up the exact class
    if cls in copyreg.dispatch_table:
        copyreg.dispatch_table[subclass] = copyreg.dispatch_table[cls]
    return subclass


def _mixins(cls: type[Backend], product: str) -> tuple[type[Primitives], ...]:
    """Returns the classes that the adapter's folder for a product lists as `MIXINS`; an empty tuple if the adapter has
    no such folder. For a subclass of an adapter's class, the folder may be in the package of the subclass or of the
    adapter."""
    # the nearest class first, because a subclass may have folders of its own
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
    """Whether a class from an adapter's folder comes before the adapter's own class in the method resolution order."""
    return bool(getattr(mixin, "precedes", False))


def _is_of_xdevice(base: type) -> bool:
    """Whether a base class belongs to the contract or to Python, and not to the adapter."""
    # the dot excludes the built-in adapters, whose packages are called `xdevice_torch` and so on
    return base.__module__.startswith(("xdevice.", "builtins", "abc"))


# the class attributes without a default, which each adapter must set
_REQUIRED_ATTRIBUTES: Final = ("name", "modules", "minimum", "dtypes")


def check(cls: object, claimed: str, source: str) -> type[Backend]:
    """Returns the class `cls` if it fulfills the contract. Otherwise raises a `ContractError` that names the adapter,
    each wrong method, and the signature that the method should have. `claimed` is the adapter's entry-point name.
    `source` is the text that names the class and its distribution in errors.

    If the class itself has methods of products, as the class of a third-party adapter may, these methods are checked
    too. The adapter's folders are checked when their products are first used.
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
        # a public method that is not in the device layer's contract may belong to a product; for classes
        # without such methods, the contracts of the products need not be imported
        parts += tuple(part for product in PRODUCTS for part in capabilities_of(product))
    wrong += _violations(cls, parts)
    if not wrong and cls.name != claimed:
        wrong = [f"calls itself {cls.name!r}, which is not the name of its entry point"]
    if wrong:
        raise ContractError(f"the adapter {claimed!r} ({source}) " + "; ".join(wrong))
    return cls


def _violations(cls: type[Backend], parts: tuple[type[Primitives], ...]) -> list[str]:
    """Returns a list of the errors of an adapter's class. `parts` are the capabilities that are checked. There is an
    error for each method whose required arguments differ from the contract. There is also an error for each capability
    of which the class has only some of the needed methods. The list is empty if nothing is wrong."""
    import inspect

    defined, hooks = _adapter_attributes(cls), methods_of(*parts)
    wrong = [
        f"defines {name}{inspect.signature(method)}, expected {_signature(name, hooks)}"
        for name, method in defined.items()
        if name in hooks and _required_arguments(method) != _required_arguments(hooks[name])
    ]
    return wrong + [
        text
        for part in parts
        if part is not Primitives
        for text in _incomplete(part, defined, hooks)
    ]


def _adapter_attributes(cls: type) -> dict[str, Any]:
    """Returns a dict of the attributes, most of which are methods, that an adapter defines in its class and in its own
    base classes."""
    # the class itself comes last, so its attributes replace those of its bases
    parts = [base for base in reversed(cls.__mro__) if not _is_of_xdevice(base)]
    return {name: value for part in parts for name, value in vars(part).items()}


def _incomplete(
    part: type[Primitives], defined: dict[str, Any], hooks: dict[str, Any]
) -> list[str]:
    """Returns a list with one error message if an adapter has some but not all of the methods that the capability
    `part` needs. Such a capability would fail when it is first used. Otherwise returns an empty list. `defined`
    contains the adapter's methods, and `hooks` the contract's methods."""
    needs: tuple[str, ...] = vars(part)["needs"]
    has = [name for name in needs if name in defined]
    # an adapter may have either none or all of the needed methods
    if not has or len(has) == len(needs):
        return []
    missing = ", ".join(_signature(name, hooks) for name in needs if name not in defined)
    return [f"has the method {has[0]} of {part.__name__}, but lacks {missing}"]


def _signature(name: str, hooks: dict[str, Any]) -> str:
    """Returns the name and the arguments of a method in the contract, as errors show them: "wait(self, x)". The method
    is looked up first in `hooks`, the methods of the capabilities that are checked, and then among the methods of the
    device layer."""
    import inspect

    # when a product is checked, `hooks` does not contain the methods of the device layer
    wanted: Any = hooks.get(name, HOOKS.get(name))
    return (
        f"{name} (a property)"
        if isinstance(wanted, property)
        else f"{name}{inspect.signature(wanted)}"
    )


def _required_arguments(function: Any) -> list[str]:
    """Returns the names of the arguments without defaults; an empty list if the object is not a function (for instance,
    a property)."""
    import inspect

    if not inspect.isfunction(function):
        return []
    return [
        argument.name
        for argument in inspect.signature(function).parameters.values()
        if argument.default is argument.empty
    ]
