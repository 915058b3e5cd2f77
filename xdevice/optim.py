"""`xdevice.optim`, the public name of the module `xdevice.math.optim`."""

from __future__ import annotations

import sys

from .math import optim
from .math.optim import *  # noqa: F403  # for type checkers, which do not follow the next line

# the module itself and not a copy of its names, as in `xdevice/nn.py`
sys.modules[__name__] = optim
