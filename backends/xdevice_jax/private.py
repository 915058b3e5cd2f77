"""The private names of JAX that this adapter uses, and the attributes of JAX that it replaces, each by the capability
that needs it. Its other modules read them as `private["jax._src...."]`."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Patch, Private

TESTED: Final = "0.12.0.1"

READS: Final = (
    "item", "tolist", "tobytes", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__hex__", "__oct__", "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip
"""Methods of an array by which the host reads it."""

PATCHES: Final = (
    Patch(
        "transfers", "jax._src.array.ArrayImpl", (*READS, "_value", "to_device"),
        "reads and moves. `jax.transfer_guard` sees no reads of the CPU (jax-ml/jax#16602), and names no caller "
        "(jax-ml/jax#17559)",
        "block",
    ),
    Patch("transfers", "jax", ("device_put", "device_get"), "moves", "block"),
    Patch("transfers", "numpy", ("asarray", "array"), "NumPy reads by the buffer protocol", "block"),
    Patch(
        "blocking", "jax._src.interpreters.pxla.ExecuteReplicated", ("__call__",),
        "JAX's own switch is read when its CPU starts; no upstream issue", "block",
    ),
    Patch("blocking", "jax._src.pjit", ("_get_fastpath_data",), "compiled functions are called past Python", "block"),
    Patch(
        "virtual GPUs", "jax._src.compiler", ("compile_or_get_cached",), "a virtual GPU may lack a dtype", "process"
    ),
    Patch(
        "virtual GPUs", "jax._src.interpreters.pxla.ExecuteReplicated", ("__call__",),
        "JAX does not count the memory of CPUs", "process",
    ),
    Patch("virtual GPUs", "jax._src.interpreters.pxla", ("batched_device_put",), "it may lack a dtype", "process"),
    Patch("virtual GPUs", "jax._src.pjit", ("_get_fastpath_data",), "the same", "process"),
    Patch(
        "operations", "jax._src.core.EvalTrace", ("process_primitive",),
        "each primitive with its values; a jaxpr that is evaluated by hand has no gradients on the way", "block",
    ),
    Patch("operations", "jax", ("grad", "value_and_grad"), "the gradients of parameters, with their names", "block"),
    Patch("--xd-cuda", "jax", ("devices",), "\"cuda\" is a virtual GPU", "process"),
)  # fmt: skip

PRIVATE: Final = (
    Private(
        "waiting and several processes", "jax._src.xla_bridge", ("_backends",),
        "whether JAX has started, which nothing public tells (jax-ml/jax#23320). `backends_are_initialized` takes a "
        "lock, which a fork may leave held. Without it JAX counts as started",
    ),
    Private(
        "tensors", "jax._src.xla_bridge", ("_backend_factories",),
        "which platforms a program has registered, before a start (jax-ml/jax#6459). Without it JAX is started to "
        "count its devices",
    ),
    Private(
        "tensors", "jax.sharding.SingleDeviceSharding", ("_device",),
        "`device_of` in half the time; without it shardings are compared",
    ),
    Private("virtual GPUs", "jax._src.dispatch", ("device_put_p",), "copies, which a virtual GPU may refuse"),
    Private("transfers", "jax._src.array", ("ArrayImpl",), "the class of arrays, whose methods are replaced"),
    Private(
        "blocking", "jax._src.pjit", ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes"),
        "forgetting the fast paths of compiled functions",
    ),
    Private("blocking", "jax._src.lib.xla_client._xla", ("PjitFunctionCache",), "the same"),
    Private(
        "gradients", "jax.core.Tracer", ("_trace",), "whether a loss depends on a parameter: then their traces are one"
    ),
    # jax.distributed.shutdown alone ends the process by SIGABRT where a rank has died; no upstream issue
    Private(
        "several processes", "jax._src.distributed", ("State", "global_state"),
        "rank 0 ends JAX's service after all have left it",
    ),
)  # fmt: skip

private = Names("jax", TESTED, PRIVATE, PATCHES)
