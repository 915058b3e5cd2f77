"""MXNet's C library. Blocking mode and virtual GPUs replace functions in it, so each call looks
them up there."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx

from .private import private

# MXNet's own object for the library, so that functions that are replaced in it are replaced for
# MXNet too
library: Any = private.get("mxnet.base._LIB") or ctypes.CDLL(mx.libinfo.find_lib_path()[0])
at_once = ctypes.PyDLL(library._name)
"""The library for functions that return at once. They are called without releasing the GIL,
which is faster."""
