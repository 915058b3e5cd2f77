"""The public names of this module, for type checkers and for `xdevice.base.faces`."""

from .twins.parity.comparing import compare as compare
from .twins.parity.comparison import Comparison as Comparison
from .twins.parity.recording import log as log
from .twins.tracing.traces import Trace as Trace
from .twins.tracing.traces import capture_intermediates as capture_intermediates
