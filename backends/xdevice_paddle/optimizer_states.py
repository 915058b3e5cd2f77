"""Where Paddle's optimizers keep their state, and how it is named: "0.moment1_0" is the state `moment1_0` of the first
parameter. Paddle's own names are numbered through the whole process, so they differ in another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import paddle

from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

IS_2: Final = paddle.__version__.startswith("2.")
accumulators = private.field("paddle.optimizer.Optimizer._accumulators")
master_weights = private.field("paddle.optimizer.Optimizer._master_weights")
accumulators_holder = private.field("paddle.optimizer.Optimizer._accumulators_holder")
create_accumulators = private.field("paddle.optimizer.Optimizer._create_accumulators")
opti_name_list = private.field("paddle.optimizer.Optimizer._opti_name_list")
already_created = (
    private.field("paddle.optimizer.Adam._already_create_accumulater")
    if IS_2
    else private.field("paddle.optimizer.Adam._already_create_accumulator")
)
learning_rate_map = private.field("paddle.optimizer.Optimizer._learning_rate_map")
parameter_list = private.field("paddle.optimizer.Optimizer._parameter_list")
default_dict = private.field("paddle.optimizer.Optimizer._default_dict")
MASTER: Final = "master_weight"


def state(optimizer: Any) -> dict[str, dict[str, paddle.Tensor]]:
    """Returns the state of an optimizer: by its kind, and then by the name of the parameter."""
    return {**accumulators(optimizer), MASTER: master_weights(optimizer)}


def rates(optimizer: Any) -> Iterable[Any]:
    return list(learning_rate_map(optimizer).values())


def kept(optimizer: Any) -> Iterable[Any]:
    """Returns where Paddle's own optimizers keep tensors: state, parameters and settings."""
    holders = (accumulators_holder, learning_rate_map, default_dict, parameter_list)
    return [*state(optimizer).values(), *(holder(optimizer) for holder in holders)]


def variables(optimizer: Any) -> Iterator[tuple[str, paddle.Tensor]]:
    """Yields name and tensor of each part of the state, named by the number of its parameter."""
    parameters = parameters_of(optimizer)
    if accumulators_holder(optimizer) and not accumulators(optimizer):
        # set_state_dict() has kept the state in the holder for the first step
        make(optimizer, parameters)
    numbers = {parameter.name: number for number, parameter in enumerate(parameters)}
    # the state of a parameter of 16 bits is named after the parameter's copy in 32 bits
    numbers |= {
        weight.name: numbers[name] for name, weight in master_weights(optimizer).items()
    }
    for kind, values in state(optimizer).items():
        for name, value in values.items():
            yield f"{numbers[name]}.{kind}", value


def make(optimizer: Any, parameters: list[Any]) -> None:
    with paddle.no_grad():
        create_accumulators(optimizer)(
            paddle.static.default_main_program().global_block(), parameters
        )


def parameters_of(optimizer: Any) -> list[Any]:
    parameters: list[Any] = []
    for group in parameter_list(optimizer):
        parameters += group["params"] if isinstance(group, dict) else [group]
    return parameters
