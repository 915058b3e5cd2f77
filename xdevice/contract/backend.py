"""The contract as a whole: the class `Backend`, which has all capabilities, and `check`, which tests an adapter's class
when the adapter is loaded. A capability is a part of the contract that an adapter may leave out.

| capability | what it offers |
|---|---|
| `primitives.Primitives` | what every adapter has: devices, tensors, values, waiting |
| `conversion.Conversion` | memory shared with other frameworks |
| `arithmetic.Arithmetic` | the kernels of `array_namespace` and of `nn` |
| `gradients.Gradients` | gradients, and steps made with them |
| `models.Models`, `optimizers.Optimizers` | the framework's own models and optimizers |
| `layers.Layers`, `layers.Operations`, `layers.Calls` | what the layers of models are, compute, and are called with |
| `replicas.Replicas` | several devices in one process |
| `processes.Processes` | engines for several processes |
| `streams.Streams`, `graphs.Graphs` | streams and events; recorded work |
| `compiling.Compiling` | functions as programs of the framework |
| `parallel.Parallel`, `prefetch.Prefetch` | tasks in threads; copies in the background |
| `blocking.Blocking`, `transfers.Transfers` | waiting after each operation; seeing what crosses the bus |
| `virtual_gpus.VirtualGpus` | several devices on a machine with one |

The class of a capability has defaults for its methods. Most of them raise `UnsupportedError`, which names what is
missing.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from xdevice.errors import ContractError

from .arithmetic import Arithmetic
from .blocking import Blocking
from .compiling import Compiling
from .conversion import Conversion
from .gradients import Gradients
from .graphs import Graphs
from .layers import Calls, Layers, Operations
from .models import Models
from .optimizers import Optimizers
from .parallel import Parallel
from .prefetch import Prefetch
from .primitives import Kind, Primitives
from .processes import Processes
from .replicas import Replicas
from .streams import Streams
from .transfers import Transfers
from .virtual_gpus import VirtualGpus

CAPABILITIES: Final[tuple[type[Primitives], ...]] = (
    Conversion,
    Arithmetic,
    Gradients,
    Models,
    Layers,
    Operations,
    Calls,
    Optimizers,
    Replicas,
    Processes,
    Streams,
    Graphs,
    Compiling,
    Parallel,
    Prefetch,
    Blocking,
    Transfers,
    VirtualGpus,
)


class Backend(
    Arithmetic, Gradients, Operations, Calls, Layers, Optimizers, Models, Conversion, Replicas, Processes, Streams,
    Graphs, Compiling, Parallel, Prefetch, Blocking, Transfers, VirtualGpus,
):  # fmt: skip
    """One framework, as xdevice sees it. The class of an adapter inherits from `Backend`, and usually also from classes
    of the adapter's own, one for each capability (optional part of the contract) that the framework has."""


class Owned(NamedTuple):
    """The backend that a type belongs to, and whether objects of the type are tensors, symbols or models there.
    `core.registry` keeps one for each type that it has seen."""

    backend: Backend
    kind: Kind


HOOKS: Final[dict[str, Any]] = {
    name: value
    for part in (Primitives, *CAPABILITIES)
    for name, value in vars(part).items()
    if not name.startswith("_") and (callable(value) or isinstance(value, property))
}
"""Every method and property of the contract by its name, in the contract's order."""

_STATED: Final = ("name", "modules", "minimum", "dtypes")


def check(cls: object, claimed: str, source: str) -> type[Backend]:
    """Returns the class `cls` if it keeps the contract. Otherwise raises `ContractError`, which names the adapter, each
    method that is wrong, and the signature that it should have. `claimed` is the adapter's entry-point name, and
    `source` says in errors which class of which distribution that is."""
    import inspect

    if not (inspect.isclass(cls) and issubclass(cls, Backend)):
        raise ContractError(f"{source} is not a subclass of xdevice.contract.Backend: {cls!r}")
    own = _own(cls)
    wrong = [f"does not state the class attribute {name!r}" for name in _STATED if not hasattr(cls, name)]
    wrong += [f"lacks the method {_signature(name)}" for name in sorted(cls.__abstractmethods__)]
    wrong += [
        f"defines {name}{inspect.signature(mine)}, expected {_signature(name)}"
        for name, mine in own.items()
        if name in HOOKS and _arity(mine) != _arity(HOOKS[name])
    ]
    wrong += [text for part in CAPABILITIES for text in _half(part, own)]
    if not wrong and cls.name != claimed:
        wrong = [f"calls itself {cls.name!r}"]
    if wrong:
        raise ContractError(f"the adapter {claimed!r} ({source}) " + "; ".join(wrong))
    return cls


def _own(cls: type) -> dict[str, Any]:
    """Returns the attributes, methods above all, that an adapter defines in its class and in its own base classes."""
    parts = [base for base in reversed(cls.__mro__) if base not in Backend.__mro__]
    return {name: value for part in parts for name, value in vars(part).items()}


def _half(part: type[Primitives], own: dict[str, Any]) -> list[str]:
    """Returns an error text, in a list, if an adapter has some but not all of the methods that the capability `part`
    needs, because the first use of the capability would fail; otherwise an empty list."""
    needs: tuple[str, ...] = vars(part)["needs"]
    has = [name for name in needs if name in own]
    if not has or len(has) == len(needs):
        return []
    missing = ", ".join(_signature(name) for name in needs if name not in own)
    return [f"has {has[0]} of {part.__name__}, and lacks {missing}"]


def _signature(name: str) -> str:
    import inspect

    wanted = HOOKS[name]
    return f"{name} (a property)" if isinstance(wanted, property) else f"{name}{inspect.signature(wanted)}"


def _arity(function: Any) -> list[str]:
    import inspect

    if not inspect.isfunction(function):
        return []
    return [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
