"""Lists the state of Paddle's optimizers under xdevice's names: "0.moment1" is the state
`moment1` of the first parameter. Paddle's own names contain numbers that are counted over the
whole process, so they differ in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import paddle

from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

IS_2: Final = paddle.__version__.startswith("2.")
# each reads the attribute or method of an optimizer with the same name, but with an underscore
# before it
accumulators = private.field("paddle.optimizer.Optimizer._accumulators")
master_weights = private.field("paddle.optimizer.Optimizer._master_weights")
accumulators_holder = private.field("paddle.optimizer.Optimizer._accumulators_holder")
create_accumulators = private.field("paddle.optimizer.Optimizer._create_accumulators")
opti_name_list = private.field("paddle.optimizer.Optimizer._opti_name_list")
# in Paddle 2, the name of this attribute has a spelling mistake
already_created = (
    private.field("paddle.optimizer.Adam._already_create_accumulater")
    if IS_2
    else private.field("paddle.optimizer.Adam._already_create_accumulator")
)
learning_rate_map = private.field("paddle.optimizer.Optimizer._learning_rate_map")
parameter_list = private.field("paddle.optimizer.Optimizer._parameter_list")
default_dict = private.field("paddle.optimizer.Optimizer._default_dict")
MASTER: Final = "master_weight"
"""The kind of state under which the 32-bit copies of 16-bit parameters are listed."""


def state(optimizer: Any) -> dict[str, dict[str, paddle.Tensor]]:
    """Returns the tensors in the state of an optimizer as nested dicts. The outer keys are kinds of state, such as
    "moment1", and the inner keys are the names of parameters."""
    return {**accumulators(optimizer), MASTER: master_weights(optimizer)}


def rates(optimizer: Any) -> Iterable[Any]:
    """Returns the tensors in which an optimizer stores its learning rate. There are none before
    its first step."""
    return list(learning_rate_map(optimizer).values())


def containers_of_tensors(optimizer: Any) -> Iterable[Any]:
    """Returns the containers in which Paddle's own optimizers store tensors: the containers of the
    state, of the parameters and of the settings."""
    holders = (accumulators_holder, learning_rate_map, default_dict, parameter_list)
    return [*state(optimizer).values(), *(holder(optimizer) for holder in holders)]


def variables(optimizer: Any) -> Iterator[tuple[str, paddle.Tensor]]:
    """Yields the name and the tensor of each part of the state. The name begins with the number
    of the parameter: "0.moment1"."""
    parameters = parameters_of(optimizer)
    if accumulators_holder(optimizer) and not accumulators(optimizer):
        # set_state_dict() was called before the first step, and has stored the state in the
        # holder; creating the accumulators moves the state from the holder
        make(optimizer, parameters)
    numbers = {parameter.name: number for number, parameter in enumerate(parameters)}
    # the state of a 16-bit parameter is named after the parameter's 32-bit copy
    numbers |= {
        weight.name: numbers[name] for name, weight in master_weights(optimizer).items()
    }
    for kind, values in state(optimizer).items():
        for name, value in values.items():
            yield f"{numbers[name]}.{kind}", value


def make(optimizer: Any, parameters: list[Any]) -> None:
    """Creates an optimizer's state for these parameters, as the optimizer's first step would."""
    # Paddle 2 makes the helper, which makes the state, only in the first step
    if IS_2 and optimizer.helper is None:
        optimizer.helper = paddle.base.layer_helper.LayerHelper(type(optimizer).__name__)
    with paddle.no_grad():
        # the block is used only for static graphs, but the argument is always required
        create_accumulators(optimizer)(
            paddle.static.default_main_program().global_block(), parameters
        )


def parameters_of(optimizer: Any) -> list[Any]:
    """Returns the parameters that an optimizer updates, in its order."""
    parameters: list[Any] = []
    for group in parameter_list(optimizer):
        # the list contains groups with their own settings (dicts), or the parameters themselves
        parameters += group["params"] if isinstance(group, dict) else [group]
    return parameters
