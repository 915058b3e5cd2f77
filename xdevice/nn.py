"""`import xdevice.nn`: the module `xdevice.math.nn`, by its public name."""

from __future__ import annotations

import sys

from .math import nn
from .math.nn import *  # noqa: F403  # for type checkers, which do not follow the next line

# the module itself and not a copy of its names, so that an attribute set through one name is
# seen through the other
sys.modules[__name__] = nn
