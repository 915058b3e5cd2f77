"""Lists the private names of JAX that this adapter uses, and the attributes of JAX that it replaces, each with the
capability that needs it. The other modules of the adapter read these names as `private["jax._src...."]`."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "0.12.0.1"

READS: Final = (
    "item", "tolist", "tobytes", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__hex__", "__oct__", "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip
"""Methods of an array with which the host reads the array."""

IN_BLOCKS: Final = (
    # reports reads and moves. `jax.transfer_guard` does not see the reads of CPU arrays
    # (jax-ml/jax#16602), and does not name the caller (jax-ml/jax#17559)
    Private("transfers", "jax._src.array.ArrayImpl", (*READS, "_value", "to_device")),
    # reports moves and reads by these functions
    Private("transfers", "jax", ("device_put", "device_get")),
    # NumPy reads arrays through the buffer protocol, which calls none of the array's methods
    Private("transfers", "numpy", ("asarray", "array")),
    # JAX's own setting is read only when its CPU runtime starts (no upstream issue known)
    Private("blocking", "jax._src.interpreters.pxla.ExecuteReplicated", ("__call__",)),
    # from their second call on, compiled functions are called in C++, which bypasses Python
    Private("blocking", "jax._src.pjit", ("_get_fastpath_data",)),
    # reports each primitive with its values. If a jaxpr were evaluated step by step, the
    # gradients in between would be missing
    Private("operations", "jax._src.core.EvalTrace", ("process_primitive",)),
    # reports the gradients of parameters, with the names of the parameters
    Private("operations", "jax", ("grad", "value_and_grad")),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # a virtual GPU may lack a dtype that a program needs
    Private("virtual GPUs", "jax._src.compiler", ("compile_or_get_cached",)),
    # JAX does not count the memory of CPU devices
    Private("virtual GPUs", "jax._src.interpreters.pxla.ExecuteReplicated", ("__call__",)),
    # a virtual GPU may lack the dtype of an array that is put on it
    Private("virtual GPUs", "jax._src.interpreters.pxla", ("batched_device_put",)),
    # compiled functions are called in C++, which bypasses Python, so nothing could be counted
    Private("virtual GPUs", "jax._src.pjit", ("_get_fastpath_data",)),
    # "cuda" and "gpu" mean the virtual GPUs
    Private("--xd-cuda", "jax", ("devices",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # whether JAX has started, which has no public name (jax-ml/jax#23320). `backends_are_initialized` takes a lock,
    # which a fork may leave locked. Without it, JAX is assumed to have started
    Private("waiting and several processes", "jax._src.xla_bridge", ("_backends",)),
    # which platforms a program has registered before JAX starts (jax-ml/jax#6459). Without it,
    # JAX is started to count its devices
    Private("tensors", "jax._src.xla_bridge", ("_backend_factories",)),
    # halves the time of `device_of`. Without it, shardings are compared
    Private("tensors", "jax.sharding.SingleDeviceSharding", ("_device",)),
    # rejects copies of a dtype that a virtual GPU lacks
    Private("virtual GPUs", "jax._src.dispatch", ("device_put_p",)),
    # the class of arrays, whose methods are replaced
    Private("transfers", "jax._src.array", ("ArrayImpl",)),
    # empties the caches of fast paths of compiled functions
    Private("blocking", "jax._src.pjit", ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes")),
    # empties another cache of fast paths
    Private("blocking", "jax._src.lib.xla_client._xla", ("PjitFunctionCache",)),
    # whether a loss depends on a parameter: if so, both have the same trace
    Private("gradients", "jax.core.Tracer", ("_trace",)),
    # rank 0 ends JAX's service after all other ranks have left it: `jax.distributed.shutdown`
    # alone ends the process by SIGABRT if a rank has died (no upstream issue known)
    Private("several processes", "jax._src.distributed", ("State", "global_state")),
)  # fmt: skip

private = Names("jax", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
