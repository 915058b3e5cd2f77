"""`xdevice.random`, the public name of the module `xdevice.math.random`."""

from __future__ import annotations

import sys

from .math import random
from .math.random import *  # noqa: F403  # for type checkers, which do not follow the next line

# the module itself and not a copy of its names, as in `xdevice/nn.py`
sys.modules[__name__] = random
