"""The state of Paddle's optimizers in files: number of the parameter, kind of the state.

What must be kept:
- Paddle's own names, `linear_0.w_0_moment1_0`, count up in the process: another process, and a second optimizer in this
  one, have others. The parameters of an optimizer have an order.
- What an optimizer would make in its first step `_create_accumulators` makes before, on 2.6 and 3.3: in a twin, since
  its copies of 16-bit parameters would be out of date if the file did not fit. An optimizer makes nothing that it has.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_MASTER: Final = "master_weight"


def variables(optimizer: Any) -> Iterator[tuple[str, paddle.Tensor]]:
    parameters = _parameters(optimizer)
    if optimizer._accumulators_holder and not optimizer._accumulators:
        _make(optimizer, parameters)  # set_state_dict() has left there what the first step will take
    numbers = {parameter.name: number for number, parameter in enumerate(parameters)}
    # those of a parameter of 16 bits belong to its copy of 32
    numbers |= {weight.name: numbers[name] for name, weight in optimizer._master_weights.items()}
    for kind, state in {**optimizer._accumulators, _MASTER: optimizer._master_weights}.items():
        for name, value in state.items():
            yield f"{numbers[name]}.{kind}", value


def state_to_come(optimizer: Any, names: Sequence[str]) -> dict[str, paddle.Tensor]:
    asked = {name.partition(".")[0] for name in names}
    known = {name.partition(".")[0] for name, _ in variables(optimizer)}
    twin = copy.copy(optimizer)
    twin._accumulators, twin._master_weights = defaultdict(dict), {}
    twin._accumulators_holder, twin._opti_name_list = {}, []
    for name in ("_already_create_accumulator", "_already_create_accumulater"):  # the latter up to 2.6
        if hasattr(twin, name):
            setattr(twin, name, set())
    _make(twin, [p for number, p in enumerate(_parameters(optimizer)) if str(number) in asked - known])
    return dict(variables(twin))


def take_state(optimizer: Any, state: Mapping[str, paddle.Tensor]) -> None:
    parameters = _parameters(optimizer)
    for name, value in state.items():
        number, _, kind = name.partition(".")
        parameter = parameters[int(number)]
        if kind == _MASTER:
            optimizer._master_weights[parameter.name] = value
        else:
            owner = state.get(f"{number}.{_MASTER}", parameter)
            optimizer._accumulators[kind][owner.name] = value


def _make(optimizer: Any, parameters: list[Any]) -> None:
    with paddle.no_grad():
        optimizer._create_accumulators(paddle.base.framework.default_main_program().global_block(), parameters)


def _parameters(optimizer: Any) -> list[Any]:
    found: list[Any] = []
    for group in optimizer._parameter_list:
        found += group["params"] if isinstance(group, dict) else [group]
    return found
