"""MXNet's C library. Blocking mode and virtual GPUs replace functions in it, so each call looks them up there."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx

from .private import private

library: Any = private.get("mxnet.base._LIB") or ctypes.CDLL(mx.libinfo.find_lib_path()[0])
at_once = ctypes.PyDLL(library._name)
"""The library, for functions that return at once: they are called without releasing the GIL."""
