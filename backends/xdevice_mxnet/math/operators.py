"""Calls MXNet's operators through its C library. MXNet's Python functions call the same operators, but take twice as
long: an addition takes 13 us, and the library itself takes 6 us of these.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.errors import UnsupportedError
from xdevice_mxnet.library import library

if TYPE_CHECKING:
    from collections.abc import Callable

_check = mx.base.check_call
# the class of arrays, and the C types for a pointer to an array, a list of such pointers, and a
# list of ints
_Array, _Handle = mx.np.ndarray, mx.base.NDArrayHandle
_Handles, _Types = ctypes.POINTER(_Handle), ctypes.POINTER(c_int)


def operator(
    family: str, *words: str, own: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns a function that calls an operator with one result. The arguments of the function are mx.np arrays and,
    as keywords, the settings of the operator.

    The name of the operator consists of the family ("np", "npi" or "npx") and the words:
    `operator("npi", "add", "scalar")` calls `_npi_add_scalar`. The family "nd" is not part of the name. If an argument
    is not an mx.np array, the function calls `own` instead. If `own` is None, it calls MXNet's public function whose
    name is the first word."""
    module = {"npx": mx.npx, "nd": mx.nd}.get(family, mx.np)
    fallback = own or getattr(module, words[0])
    name = "_".join(words if family == "nd" else ("", family, *words))
    handle = ctypes.c_void_p()
    _check(library.NNGetOpHandle(name.encode(), byref(handle)))

    def call(*arrays: Any, **settings: Any) -> Any:
        """Calls the operator, or `fallback` if one of `arrays` is not an mx.np array."""
        for x in arrays:
            if type(x) is not _Array:
                return fallback(*arrays, **settings)
        # MXNet creates the result, and sets the number and the addresses of the outputs
        input_count, outputs, output_count, types = len(arrays), _Handles(), c_int(), _Types()
        handles = (_Handle * input_count)(*[x.handle for x in arrays])
        encoded = _encoded_settings(tuple(settings), tuple(map(str, settings.values())))
        _check(library.MXImperativeInvokeEx(
            handle, c_int(input_count), handles, byref(output_count), byref(outputs), *encoded, byref(types)
        ))  # fmt: skip
        return _Array(_Handle(outputs[0]))

    return call


@lru_cache(1024)
def _encoded_settings(names: tuple[str, ...], values: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns the settings in the form that the C library accepts: their number, their names, and their values as
    strings."""
    string_array = ctypes.c_char_p * len(names)
    return (
        c_int(len(names)),
        string_array(*map(str.encode, names)),
        string_array(*map(str.encode, values)),
    )


def gradients(loss: Any, inputs: list[Any]) -> list[Any]:
    """Returns a list with the gradient of `loss` for each input, like `mx.autograd.grad`. Unlike in that function's
    result, the gradient for an mx.np array is also an mx.np array. Raises `UnsupportedError` for a gradient that is not
    dense."""
    if any(type(x) is not _Array for x in inputs):
        return list(mx.autograd.grad(loss, inputs))
    outputs, types, count = _Handles(), _Types(), len(inputs)
    handles = (_Handle * count)(*[x.handle for x in inputs])
    # there is one loss, and no gradient is passed for it; the graph is not kept, no second
    # gradient is recorded, and training mode is enabled
    _check(library.MXAutogradBackwardEx(
        1, byref(loss.handle), ctypes.c_void_p(), count, handles, 0, 0, 1, byref(outputs), byref(types)
    ))  # fmt: skip
    # 0 is the type of a dense array
    if any(types[i] for i in range(count)):
        raise UnsupportedError(
            "mxnet does not support sparse gradients here; omit sparse_grad=True"
        )
    return [_Array(_Handle(outputs[i])) for i in range(count)]
