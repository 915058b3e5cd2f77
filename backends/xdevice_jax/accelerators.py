"""Finds JAX's platforms (its kinds of hardware, such as "cuda"), and which of them `gpu:i` means.

A platform has the name under which it was registered. The attribute `platform` of a device may be another name: CUDA's
devices say "gpu". `jax.devices` and `jax.live_arrays` answer for one platform only.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import jax
from jax.extend import backend as _extend

from xdevice.contract.accelerators import choose

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORDS: Final = {
    "cuda": ("cuda",),
    "rocm": ("rocm", "hip"),
    "oneapi": ("xpu", "oneapi"),
    "METAL": ("mps", "metal"),
}
_NO_GPU: Final = ("cpu", "tpu", "interpreter")
_LACKS: Final = {
    "tpu": ("float64", "complex128"),
    "METAL": ("float64", "complex64", "complex128"),
}
"""The dtypes that each kind of device lacks. A TPU would store a float64 as two float32, which hold fewer digits and no
larger numbers; the other dtypes raise an error there."""


def platforms() -> dict[str, Any]:
    """Returns the client (JAX's runtime object) of each platform that has been started, by the platform's name."""
    return dict(_extend.backends())


def name_of(native: Any) -> str:
    """Returns the name of a device's platform that JAX's own functions take as `backend=`."""
    return next(
        (name for name, client in platforms().items() if client is native.client),
        native.platform,
    )


@cache
def lacks(native: Any) -> frozenset[str]:
    """Returns the dtypes that a device cannot hold."""
    return frozenset(_LACKS.get(name_of(native), ()))


def everywhere() -> list[Any]:
    """Returns this process's devices of all platforms, including those that xdevice has no name for."""
    return [native for name in platforms() for native in jax.local_devices(backend=name)]


def detect() -> list[Any]:
    """Returns the devices that `gpu:i` means: those of the platform on which JAX computes by default, unless that is
    the CPU or a TPU; then JAX's GPUs. XDEVICE_ACCELERATOR can name another platform."""
    there = {
        name: client
        for name, client in platforms().items()
        if name not in _NO_GPU and client.local_devices()
    }
    default = name_of(jax.local_devices()[0])
    # also where JAX was told to compute on the CPU
    gpus = [name for name in there if name in _WORDS]
    usual = default if default in there else next(iter(gpus), None)
    name = (
        None
        if usual is None
        else choose("jax", list(there), lambda name: _WORDS.get(name, (name,)), usual)
    )
    return [] if name is None else jax.local_devices(backend=name)


def words(natives: Iterable[Any]) -> frozenset[str]:
    names = {name_of(native) for native in natives}
    return frozenset(word for name in names for word in _WORDS.get(name, (name,)))
