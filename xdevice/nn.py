"""`xdevice.nn`, the public name of the module `xdevice.math.nn`."""

from __future__ import annotations

import sys

from .math import nn
from .math.nn import *  # noqa: F403  # for type checkers, which do not follow the next line

# the module itself and not a copy of its names, so that an attribute that is set through one of
# # the two module names is visible through the other one
sys.modules[__name__] = nn
