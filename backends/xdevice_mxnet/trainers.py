"""The state of a Gluon Trainer's optimizer: where it is, how many steps it counts, and the
names of its arrays.

"0.1" is the second array of the state of the first parameter, "0.updates" is how many steps
that parameter has taken. The optimizer keeps these counts as numbers, outside the arrays;
without them Adam would start again.
"""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any, Final

import mxnet as mx

from xdevice.errors import UnsupportedError

from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterator

UPDATES: Final = "updates"
"""The last part of the name of a count of steps."""
# each reads an attribute of a Trainer, its store or its optimizer
contexts: Final = private.field("mxnet.gluon.Trainer._contexts")
store: Final = private.field("mxnet.gluon.Trainer._kvstore")
updaters: Final = private.field("mxnet.gluon.Trainer._updaters")
counts: Final = private.field("mxnet.optimizer.Optimizer._all_index_update_counts")
_updater_of_store: Final = private.field("mxnet.kvstore.KVStore._updater")
_WITH_MORE: Final = (mx.optimizer.Nadam, mx.optimizer.LBSGD)
"""Optimizers that keep further numbers outside their arrays, so their state is refused."""


def variables(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the array of each part of the state of a Trainer's optimizer. Raises
    `UnsupportedError` for an optimizer that keeps more than arrays and counts of steps."""
    if isinstance(trainer.optimizer, _WITH_MORE):
        raise UnsupportedError(
            f"mxnet's {type(trainer.optimizer).__name__} keeps some of its state outside its arrays; use "
            f"trainer.save_states(path) and trainer.load_states(path)"
        )
    updates = steps(trainer.optimizer)
    for index, state in updater(trainer).states.items():
        yield from named(index, state, updates.get(index, 0))


def named(index: int, state: Any, updates: int) -> Iterator[tuple[str, Any]]:
    """Yields the name and the array of each part of the optimizer's state for the parameter `index`, which has been
    updated `updates` times. This count comes last, as an array."""
    yield from ((f"{index}.{part}", array) for part, array in enumerate(arrays(state)))
    yield f"{index}.{UPDATES}", mx.nd.full((1,), updates, ctx=mx.cpu(), dtype="int64")


def parameters(trainer: Any) -> list[Any]:
    """Returns the parameters of a Trainer, in the order of their indices."""
    return [parameter for _, parameter in sorted(trainer.optimizer.param_dict.items())]


def updater(trainer: Any) -> Any:
    """Returns the object that holds the state of a Trainer's optimizer, for a Trainer whose
    key-value store is not distributed. If the store updates the parameters, it has this object;
    otherwise the Trainer has it."""
    # before the first step a Trainer has no store, and without a store it updates the
    # parameters itself
    kvstore = store(trainer)
    return (
        _updater_of_store(kvstore) if isinstance(kvstore, mx.kvstore.KVStore) else None
    ) or updaters(trainer)[0]


def steps(optimizer: Any) -> dict[Any, int]:
    """Returns a dict from the index of each parameter to the number of steps it has taken: the
    greatest of the counts that `optimizer` keeps for different devices."""
    latest: dict[Any, int] = {}
    # the outer dict is by the index of a device
    for of_device in counts(optimizer).values():
        for index, count in of_device.items():
            latest[index] = max(count, latest.get(index, 0))
    return latest


def arrays(state: Any) -> Iterator[Any]:
    """Yields the arrays in the optimizer's state for one parameter, in the order in which the state has them. Raises
    `UnsupportedError` if the state contains objects of types that may hold further arrays."""
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif isinstance(state, list | tuple):
        for part in state:
            yield from arrays(part)
    elif state is not None and not isinstance(state, Number | str):
        raise UnsupportedError(
            f"mxnet does not support a Trainer whose optimizer keeps state of type {type(state).__qualname__}, "
            f"which may hold arrays; keep arrays in lists or tuples, as MXNet's own optimizers do"
        )
