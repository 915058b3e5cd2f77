"""Lists JAX's platforms (its kinds of hardware, such as "cuda"), and determines which platform `gpu:i` refers to.

The name of a platform is the name under which it was registered. A device's attribute `platform` may be a different
name; for example, it is "gpu" for CUDA's devices. `jax.devices` and `jax.live_arrays` return only the objects of one
platform.
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
"""For the name of each platform, the names that a user may use for its hardware."""
_NO_GPU: Final = ("cpu", "tpu", "interpreter")
"""The platforms to which `gpu:i` never refers."""
_LACKS: Final = {
    "tpu": ("float64", "complex128"),
    "METAL": ("float64", "complex64", "complex128"),
}
"""The dtypes that each kind of device lacks. A TPU would store a float64 as two float32, with fewer digits and a
smaller range. The other dtypes raise an error."""


def platforms() -> dict[str, Any]:
    """Returns a dict that maps the name of each started platform to its client (JAX's runtime object)."""
    return dict(_extend.backends())


def name_of(native: Any) -> str:
    """Returns the name of a JAX device's platform in the form that JAX's own functions accept as `backend=`. If JAX
    does not list the client of the device, returns the device's attribute `platform`."""
    return next(
        (name for name, client in platforms().items() if client is native.client),
        native.platform,
    )


@cache
def lacks(native: Any) -> frozenset[str]:
    """Returns the dtypes that a device does not support."""
    return frozenset(_LACKS.get(name_of(native), ()))


def all_started() -> list[Any]:
    """Returns this process's devices of all platforms that have been started, including platforms for which there is no
    `Device`."""
    return [native for name in platforms() for native in jax.local_devices(backend=name)]


def detect() -> list[Any]:
    """Returns the devices that `gpu:i` refers to. These are the devices of JAX's default platform, or JAX's GPUs if the
    default platform is the CPU or a TPU. XDEVICE_ACCELERATOR can select another platform. Returns an empty list if
    there are no such devices."""
    candidates = {
        name: client
        for name, client in platforms().items()
        if name not in _NO_GPU and client.local_devices()
    }
    default_platform = name_of(jax.local_devices()[0])
    # a program may make the CPU its default, but `gpu:i` still refers to GPUs
    gpus = [name for name in candidates if name in _WORDS]
    default_gpu = default_platform if default_platform in candidates else next(iter(gpus), None)
    if default_gpu is None:
        return []
    name = choose(
        "jax", list(candidates), lambda name: _WORDS.get(name, (name,)), default=default_gpu
    )
    return jax.local_devices(backend=name)


def hardware_names(natives: Iterable[Any]) -> frozenset[str]:
    """Returns the names that a user may use for the hardware of these JAX devices, such as "cuda"."""
    # the word for an unlisted plugin is the name of its platform
    names = {name_of(native) for native in natives}
    return frozenset(word for name in names for word in _WORDS.get(name, (name,)))
