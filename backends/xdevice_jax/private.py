"""The private names of JAX that this adapter uses, and the attributes of JAX that it replaces, each by the capability
that needs it. Its other modules read them as `private["jax._src...."]`."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "0.12.0.1"

READS: Final = (
    "item", "tolist", "tobytes", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__hex__", "__oct__", "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip
"""Methods of an array through which the host reads it."""

IN_BLOCKS: Final = (
    # reads and moves. `jax.transfer_guard` sees no reads of the CPU (jax-ml/jax#16602), and names no caller
    # (jax-ml/jax#17559)
    Private("transfers", "jax._src.array.ArrayImpl", (*READS, "_value", "to_device")),
    # moves
    Private("transfers", "jax", ("device_put", "device_get")),
    # NumPy reads by the buffer protocol
    Private("transfers", "numpy", ("asarray", "array")),
    # JAX's own switch is read when its CPU starts; no upstream issue
    Private("blocking", "jax._src.interpreters.pxla.ExecuteReplicated", ("__call__",)),
    # compiled functions are called past Python
    Private("blocking", "jax._src.pjit", ("_get_fastpath_data",)),
    # each primitive with its values; a jaxpr that is evaluated by hand has no gradients on the way
    Private("operations", "jax._src.core.EvalTrace", ("process_primitive",)),
    # the gradients of parameters, with their names
    Private("operations", "jax", ("grad", "value_and_grad")),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # a virtual GPU may lack a dtype
    Private("virtual GPUs", "jax._src.compiler", ("compile_or_get_cached",)),
    # JAX does not count the memory of CPUs
    Private("virtual GPUs", "jax._src.interpreters.pxla.ExecuteReplicated", ("__call__",)),
    # it may lack a dtype
    Private("virtual GPUs", "jax._src.interpreters.pxla", ("batched_device_put",)),
    # the same
    Private("virtual GPUs", "jax._src.pjit", ("_get_fastpath_data",)),
    # "cuda" is a virtual GPU
    Private("--xd-cuda", "jax", ("devices",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # whether JAX has started, which nothing public tells (jax-ml/jax#23320). `backends_are_initialized` takes a lock,
    # which a fork may leave held. Without it JAX counts as started
    Private("waiting and several processes", "jax._src.xla_bridge", ("_backends",)),
    # which platforms a program has registered, before a start (jax-ml/jax#6459). Without it JAX is started to count
    # its devices
    Private("tensors", "jax._src.xla_bridge", ("_backend_factories",)),
    # `device_of` in half the time; without it shardings are compared
    Private("tensors", "jax.sharding.SingleDeviceSharding", ("_device",)),
    # copies, which a virtual GPU may refuse
    Private("virtual GPUs", "jax._src.dispatch", ("device_put_p",)),
    # the class of arrays, whose methods are replaced
    Private("transfers", "jax._src.array", ("ArrayImpl",)),
    # forgetting the fast paths of compiled functions
    Private("blocking", "jax._src.pjit", ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes")),
    # the same
    Private("blocking", "jax._src.lib.xla_client._xla", ("PjitFunctionCache",)),
    # whether a loss depends on a parameter: then their traces are one
    Private("gradients", "jax.core.Tracer", ("_trace",)),
    # rank 0 ends JAX's service after all have left it: jax.distributed.shutdown alone ends the process by SIGABRT
    # where a rank has died; no upstream issue
    Private("several processes", "jax._src.distributed", ("State", "global_state")),
)  # fmt: skip

private = Names("jax", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
