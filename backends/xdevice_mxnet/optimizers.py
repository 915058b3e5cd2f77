"""The state of Gluon's Trainers in files: number of the parameter, number of the array; and `updates`, the steps taken.

What must be kept:
- The steps are not an array but numbers of the optimizer, and Adam without them begins its warm-up anew.
- What an optimizer makes in its first step, `create_state_multi_precision` makes before.
- Nadam and LBSGD keep more numbers of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mxnet as mx

from xdevice.errors import UnsupportedError

from . import models

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_UPDATES: Final = "updates"
_WITH_MORE: Final = (mx.optimizer.Nadam, mx.optimizer.LBSGD)


def variables(trainer: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(trainer._optimizer, _WITH_MORE):
        raise UnsupportedError(
            f"mxnet's {type(trainer._optimizer).__name__} keeps numbers outside of its arrays; "
            "use trainer.save_states(path) and trainer.load_states(path)"
        )
    updates = models.steps(trainer._optimizer)
    for index, state in models.updater(trainer).states.items():
        yield from _named(index, state, updates.get(index, 0))


def state_to_come(trainer: Any, names: Sequence[str]) -> dict[str, Any]:
    asked = {name.partition(".")[0] for name in names}
    known = {name.partition(".")[0] for name, _ in variables(trainer)}
    found: dict[str, Any] = {}
    for index, parameter in enumerate(trainer._params):
        if str(index) in asked - known and parameter.grad_req != "null":
            found.update(_named(index, _made(trainer, index), 0))
    return found


def _named(index: int, state: Any, updates: int) -> Iterator[tuple[str, Any]]:
    yield from ((f"{index}.{part}", array) for part, array in enumerate(models.arrays(state)))
    yield f"{index}.{_UPDATES}", mx.nd.full((1,), updates, ctx=mx.cpu(), dtype="int64")


def _made(trainer: Any, index: int) -> Any:
    with mx.autograd.pause(), mx.util.np_shape(True):
        weight = trainer._params[index].data().as_nd_ndarray()
        return trainer._optimizer.create_state_multi_precision(index, weight)


def take_state(trainer: Any, state: Mapping[str, Any]) -> None:
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    updater, optimizer = models.updater(trainer), trainer._optimizer
    for index in {int(name.partition(".")[0]) for name in state}:
        if index not in updater.states:
            updater.states[index], updater.states_synced[index] = _made(trainer, index), True
            for part, array in enumerate(models.arrays(updater.states[index])):
                state[f"{index}.{part}"].copyto(array)
        for context in trainer._params[index].list_ctx():
            seen = optimizer._all_index_update_counts.setdefault(context.device_id, {})
            seen[index] = int(state[f"{index}.{_UPDATES}"].asscalar())
    optimizer.num_update = max([optimizer.begin_num_update, *models.steps(optimizer).values()])
