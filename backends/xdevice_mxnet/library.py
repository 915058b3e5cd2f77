"""MXNet's C library. Blocking mode and virtual GPUs replace functions in the library object, so each function must be
looked up there at every call."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx

from .private import private

# MXNet's own object for the library, so that a function that is replaced in it is also replaced
# for MXNet
library: Any = private.get("mxnet.base._LIB") or ctypes.CDLL(mx.libinfo.find_lib_path()[0])
at_once = ctypes.PyDLL(library._name)
"""The library, for calling functions that return at once. These functions are called without releasing the GIL, which
is faster."""
