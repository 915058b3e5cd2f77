"""Lists the attributes of JAX that this adapter replaces, and the private names of JAX that it uses."""

from __future__ import annotations

from typing import Final

from xdevice.contract.patches import Patch, Private

from . import transfers

PATCHES: Final = (
    Patch(
        "jax._src.array.ArrayImpl", (*transfers.READS, "_value", "to_device"),
        "`transfers`: reads and moves. `jax.transfer_guard` sees those of a GPU only, and names no caller", "block",
    ),
    Patch("jax", ("device_put",), "`transfers`: moves", "block"),
    Patch("numpy", ("asarray", "array"), "`transfers`: NumPy reads by the buffer protocol", "block"),
    Patch(
        "jax._src.interpreters.pxla.ExecuteReplicated", ("__call__",),
        "`blocking`: JAX's own switch is read when its CPU starts", "block",
    ),
    Patch("jax._src.pjit", ("_get_fastpath_data",), "`blocking`: compiled functions are called past Python", "block"),
    Patch("jax", ("devices",), "`--xd-cuda`: \"cuda\" is a virtual GPU", "process"),
)  # fmt: skip

PRIVATE: Final = (
    Private("jax._src", ("distributed",), "processes: rank 0 ends JAX's service after all have left it"),
    Private("jax._src.array", ("ArrayImpl",), "`transfers`: the class of arrays"),
    Private("jax._src.interpreters", ("pxla",), "`blocking`"),
    Private("jax._src.lib", ("xla_client",), "`blocking`"),
    Private("jax._src.lib.xla_client", ("_xla",), "`blocking`: forgetting the fast paths"),
    Private("jax._src", ("pjit", "xla_bridge"), "`blocking`; whether JAX has started"),
    Private("jax._src.pjit", ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes"), "the same"),
    Private("jax._src.xla_bridge", ("_backends",), "the public question takes a lock, which a fork may leave held"),
    Private("jax._src.xla_bridge", ("_backend_factories",), "which platforms a program has registered, before a start"),
    Private("jax.core.Tracer", ("_trace",), "whether a loss depends on a parameter: then their traces are one"),
    Private("jax._src.array.ArrayImpl", ("_committed",), "`compile`: whether JAX may move it, in half the time"),
    Private("jax.sharding.SingleDeviceSharding", ("_device",), "`device_of` in half the time"),
)
