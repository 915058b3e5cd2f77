"""The public names of this module, for type checkers and for `xdevice.base.faces`."""

from .execution.blocking import blocking as blocking
from .execution.streams import Event as Event
from .execution.streams import Stream as Stream
from .performance.graphs import Graph as Graph
from .performance.graphs import make_graphed_callable as make_graphed_callable
from .tensors.creation import is_dtype_supported as is_dtype_supported
from .tensors.memory import empty_cache as empty_cache
from .tensors.memory import empty_host_cache as empty_host_cache
from .tensors.memory import reset_peak_memory_stats as reset_peak_memory_stats
