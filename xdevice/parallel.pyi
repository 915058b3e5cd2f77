"""The public names of this module, for type checkers and for `xdevice.base.faces`."""

from .performance.parallel import close_pool as close_pool
from .performance.parallel import run as run
from .replicas.spread import all_reduce as all_reduce
from .replicas.spread import broadcast as broadcast
from .replicas.spread import gather as gather
from .replicas.spread import replicate as replicate
