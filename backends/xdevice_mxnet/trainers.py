"""The state of a Gluon Trainer's optimizer: which object contains the state, the names of its arrays, and its counts
of steps.

For example, "0.1" names the second array in the state of the first parameter, and "0.updates" names that parameter's
number of steps. The optimizer stores these counts as numbers, outside the arrays. Without the counts, Adam would
restart.
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
"""The last part of the name of a parameter's count of steps."""
# each of these reads an attribute of a Trainer, of its store or of its optimizer
contexts: Final = private.field("mxnet.gluon.Trainer._contexts")
store: Final = private.field("mxnet.gluon.Trainer._kvstore")
updaters: Final = private.field("mxnet.gluon.Trainer._updaters")
counts: Final = private.field("mxnet.optimizer.Optimizer._all_index_update_counts")
_updater_of_store: Final = private.field("mxnet.kvstore.KVStore._updater")
_WITH_MORE: Final = (mx.optimizer.Nadam, mx.optimizer.LBSGD)
"""Optimizers whose state is refused, because they store other numbers outside their arrays."""


def variables(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the array of each part of the state of a Trainer's optimizer. Raises `UnsupportedError` for
    an optimizer whose state contains more than arrays and counts of steps."""
    if isinstance(trainer.optimizer, _WITH_MORE):
        raise UnsupportedError(
            f"mxnet's {type(trainer.optimizer).__name__} keeps some of its state outside arrays, where xdevice cannot "
            f"read it; use trainer.save_states(path) and trainer.load_states(path)"
        )
    updates = steps(trainer.optimizer)
    for index, state in updater(trainer).states.items():
        yield from named(index, state, updates.get(index, 0))


def named(index: int, state: Any, updates: int) -> Iterator[tuple[str, Any]]:
    """Yields the name and the array of each part of the optimizer's state for the parameter `index`, which has been
    updated `updates` times. This count is yielded last, as an array."""
    yield from ((f"{index}.{part}", array) for part, array in enumerate(arrays(state)))
    yield f"{index}.{UPDATES}", mx.nd.full((1,), updates, ctx=mx.cpu(), dtype="int64")


def parameters(trainer: Any) -> list[Any]:
    """Returns the parameters of a Trainer, in the order of their indices."""
    return [parameter for _, parameter in sorted(trainer.optimizer.param_dict.items())]


def updater(trainer: Any) -> Any:
    """Returns the object that contains the state of a Trainer's optimizer, for a Trainer whose key-value store is not
    distributed. If the store updates the parameters, the object is an attribute of the store; otherwise it is an
    attribute of the Trainer."""
    # before its first step, a Trainer has no store; without a store, the Trainer updates the
    # parameters itself
    kvstore = store(trainer)
    if isinstance(kvstore, mx.kvstore.KVStore):
        # None if the store does not update the parameters
        updater_of_store = _updater_of_store(kvstore)
        if updater_of_store is not None:
            return updater_of_store
    return updaters(trainer)[0]


def steps(optimizer: Any) -> dict[Any, int]:
    """Returns a dict that maps the index of each parameter to the number of steps that the parameter has taken. This
    is the greatest of the counts that `optimizer` stores for different devices."""
    latest: dict[Any, int] = {}
    # the keys of the outer dict are the indices of devices
    for device_counts in counts(optimizer).values():
        for index, count in device_counts.items():
            latest[index] = max(count, latest.get(index, 0))
    return latest


def arrays(state: Any) -> Iterator[Any]:
    """Yields the arrays in the optimizer's state for one parameter, in the order in which the state contains them.
    Raises `UnsupportedError` if the state contains objects of a type that may contain other arrays."""
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif isinstance(state, list | tuple):
        for part in state:
            yield from arrays(part)
    elif state is not None and not isinstance(state, Number | str):
        raise UnsupportedError(
            f"mxnet does not support a Trainer whose optimizer keeps state of type {type(state).__qualname__}, which "
            f"may contain arrays; store arrays in lists or tuples, as MXNet's own optimizers do"
        )
