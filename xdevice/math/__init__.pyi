"""The public names of this module, for type checkers and for `xdevice.base.faces`."""

from .arithmetic.einsum import einsum as einsum
from .arithmetic.gradients import grad as grad
from .arithmetic.gradients import stop_gradient as stop_gradient
from .arithmetic.gradients import value_and_grad as value_and_grad
from .arithmetic.indexing import at as at
from .arithmetic.indexing import top_k as top_k
from .arithmetic.standard_array import standard_array as standard_array
from .arithmetic.updating import update as update
from .determinism import deterministic as deterministic
from .minibatches import batches as batches
