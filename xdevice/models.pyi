"""The public names of this module, for type checkers and for `xdevice.base.faces`."""

from .twins.models.converting import convert_state as convert_state
from .twins.models.optimizer_states import compare_optimizers as compare_optimizers
from .twins.models.optimizer_states import convert_optimizer as convert_optimizer
from .twins.models.state import State as State
