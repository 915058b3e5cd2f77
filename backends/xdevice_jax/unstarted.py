"""Counts the devices that JAX will find, without starting JAX. JAX's own functions would start every runtime (a runtime
is JAX's library for a kind of device).

Once JAX has been started, its own lists are used instead. The devices of ROCm, oneAPI and TPUs can be counted only by
their runtimes, so the result for these is None.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
from typing import Final

import jax

from xdevice.cuda_driver import nvidia

from .private import private

_NO_GPU: Final = {"cpu", "tpu", "interpreter"}
"""The platforms to which `gpu:i` never refers."""
_UNASKED: Final = {"proxy"}
"""Platforms that JAX itself registers (from 0.12 on), but starts only if `jax_platforms` names them."""
_started = private.get("jax._src.xla_bridge._backends")
"""The runtimes that JAX has started, as a dict that JAX itself fills, or None if this version of JAX lacks the dict."""
_factories = private.get("jax._src.xla_bridge._backend_factories")
"""The platforms that are registered with JAX, or None if this version of JAX lacks the list."""


def is_started() -> bool:
    """Whether JAX has started a runtime. True if this cannot be determined in this version of JAX.

    JAX's own `backends_are_initialized` is not used, because it acquires a lock. In a forked child process, a thread
    that no longer exists may hold this lock.
    """
    return _started is None or bool(_started)


def count(kind: str) -> int | None:
    """Returns the number of devices of a kind that JAX will find when it starts, or None if only the runtime can
    determine that number."""
    # the setting lists the platforms that JAX may use, such as "cuda,cpu"; any platform other than CPU and TPU may have
    # GPUs
    wanted = jax.config.jax_platforms
    if wanted:
        platforms = set(wanted.split(","))
        is_possible = platforms - _NO_GPU if kind == "gpu" else kind in platforms
        if not is_possible:
            return 0
    if kind == "cpu":
        return _cpus()
    # JAX can access TPUs only through this library
    if kind == "tpu":
        return None if _is_installed("libtpu") else 0
    if _factories is None:
        return None
    plugins = _plugins() | (frozenset(_factories) - _NO_GPU - _UNASKED)
    if not plugins:
        return 0
    # with a second plugin, only JAX itself can determine to which devices `gpu:i` refers
    return _nvidia_gpus() if plugins == {"cuda"} else None


def _cpus() -> int:
    """Returns the number of CPU devices that JAX will create. This is the number in JAX's setting; if that is not set,
    the number in XLA's flag; otherwise 1."""
    configured = jax.config.jax_num_cpu_devices
    # -1 means that the setting is not used
    if configured >= 0:
        return int(configured)
    # if a flag is given twice, XLA uses the last value
    flags = re.findall(
        r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", "")
    )
    return int(flags[-1]) if flags else 1


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether a module could be imported. Does not import the module."""
    return importlib.util.find_spec(module) is not None


@functools.cache
def _plugins() -> frozenset[str]:
    """Returns the names of the plugins that JAX would load when it starts. The name "cuda" stands for all plugins for
    CUDA, such as xla_cuda13."""
    # JAX finds plugins among the modules of the namespace package `jax_plugins`, and through entry points of that name
    spec = importlib.util.find_spec("jax_plugins")
    places = spec.submodule_search_locations if spec is not None else None
    names = [module.name for module in pkgutil.iter_modules(places or [])]
    names += [point.value for point in importlib.metadata.entry_points(group="jax_plugins")]
    return frozenset("cuda" if "cuda" in name else name for name in names)


def _nvidia_gpus() -> int | None:
    """Returns the number of NVIDIA GPUs that JAX will find: the number that the driver reports, limited to the number
    that JAX's own setting lists. Returns None if the driver cannot be queried."""
    visible = nvidia.count()
    # JAX's setting is "all" or a list of indices such as "0,2"
    chosen = jax.config.read("jax_cuda_visible_devices")
    return (
        visible if visible is None or chosen == "all" else min(visible, len(chosen.split(",")))
    )
