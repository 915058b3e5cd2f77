"""The private names of Paddle that this adapter reads, and the attributes that it replaces,
each with the capability that needs it. The adapter's other modules read them as
`private["paddle...."]`. If no issue is named, none is known upstream.

The settings of a layer without parameters need no private name: `extra_repr` returns them, in
the same words in 2.6.2 and 3.3.1.
"""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "3.3.1"

READS: Final = (
    "numpy", "item", "tolist", "__array__", "__float__", "__int__", "__bool__", "__index__", "__repr__", "__str__",
    "__format__",
)  # fmt: skip
"""Methods of a tensor through which the host reads it."""
NEWER_READS: Final = ("__complex__",)

CHECKED: Final = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__floordiv__",
    "__mod__", "__pow__", "__rpow__", "__matmul__", "__eq__", "__ne__", "__lt__", "__le__",
    "__gt__", "__ge__", "_getitem_dygraph", "_setitem_dygraph", "clone",
)  # fmt: skip
"""Methods of a tensor that compute in C++ without the functions of `_C_ops`. With a number on
the left, only the reflected ones see the tensor; `__rmatmul__` takes no number."""
NEWER_CHECKED: Final = ("__rfloordiv__", "__rmod__")

IN_BLOCKS: Final = (
    # which layers a model calls: Paddle's hooks miss direct calls of a layer's `forward`
    Private("layers' calls", "paddle.nn.Layer", ("__call__",)),
    # notices reads by the host, and moves: `to`, `cpu`, `cuda` and `pin_memory` call
    # `_copy_to`. Paddle reports neither
    Private("transfers", "paddle.Tensor", (*READS, "_copy_to")),
    # notices reads by the host as a complex number
    Private("transfers", "paddle.Tensor", NEWER_READS, "newer"),
    # `paddle.grad` in two threads at once segfaults (3.3.1; PaddlePaddle/Paddle#36078)
    Private("parallel", "paddle.base.core.eager", ("run_partial_grad",)),
    # counts the steps of an optimizer, which `inplace_version` does not count as writes
    Private("several processes", "paddle.optimizer.Optimizer", ("_apply_optimize",)),
    # notices each operation that Paddle runs
    Private("operations", "paddle._C_ops", ("*",)),
    # notices the operations of a tensor's methods, which do not call the functions of `_C_ops`
    Private("operations", "paddle.Tensor", CHECKED),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # refuses operations on several devices, which Paddle does not compare, and moves empty
    # results, which it leaves on the CPU
    Private("virtual GPUs", "paddle._C_ops", ("*",)),
    # the checks of `_C_ops` on virtual GPUs, for Paddle's older functions
    Private("virtual GPUs", "paddle._legacy_C_ops", ("*",)),
    # the checks of `_C_ops` on virtual GPUs, for a tensor's methods
    Private("virtual GPUs", "paddle.Tensor", CHECKED),
    # the checks of `_C_ops` on virtual GPUs, for methods that Paddle 3 added
    Private("virtual GPUs", "paddle.Tensor", NEWER_CHECKED, "newer"),
    # refuses dtypes that a virtual GPU lacks, and counts memory: this function calls no `_C_ops`
    Private("virtual GPUs", "paddle", ("to_tensor",)),
    # the same for the method by which `to`, `cpu` and `cuda` move a tensor
    Private("virtual GPUs", "paddle.Tensor", ("_copy_to",)),
    # keeps the tracer of bytecode from rewriting xdevice's own functions;
    # `paddle.jit.ignore_module` reaches only the tracer of source code
    Private("compile", "paddle.jit.sot.opcode_translator.skip_files", ("skip_file_names",), "newer"),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # copies a tensor to a device. `to` can clear its source, and before 3.0 works in place;
    # `cpu` and `cuda` cannot copy to a plugin's device
    Private("tensors", "paddle.Tensor", ("_copy_to",)),
    # makes a tensor on a named device: in 2.6 no other functions take one. Without them
    # Paddle's own copies are used instead of the ring, and NumPy makes the values
    Private("tensors", "paddle._C_ops", ("empty", "full")),
    # keeps dygraph mode on: it ends with the thread that imported Paddle unless something
    # refers to this object
    Private("tensors", "paddle.base.framework.global_var", ("_functional_dygraph_context_manager",)),
    # moves a parameter that must stay the same object, because optimizers and other layers
    # refer to it
    Private("models", "paddle.base.core.DenseTensor", ("_share_data_with",), "newer"),
    # the optimizer that `prepare` was given, which moves with the network
    Private("models", "paddle.Model", ("_optimizer",)),
    # the only part of a `DataParallel` that cannot be copied
    Private("models", "paddle.DataParallel", ("_strategy",)),
    # counts the memory of the CPU: `paddle.device` counts that of accelerators only
    Private("memory", "paddle.base.core", ("host_memory_stat_current_value", "host_memory_stat_peak_value")),
    # resets the peak of the memory of the CPU
    Private("memory", "paddle.base.core", ("host_memory_stat_reset_peak_value",), "newer"),
    # the tensors of an optimizer, for each parameter: the names in `state_dict` contain numbers
    # that differ in another process
    Private(
        "optimizers", "paddle.optimizer.Optimizer",
        ("_accumulators", "_learning_rate_map", "_master_weights", "_parameter_list"),
    ),
    # makes the state that the first step would make, so that it can be loaded before that step
    Private(
        "optimizers", "paddle.optimizer.Optimizer", ("_accumulators_holder", "_create_accumulators", "_opti_name_list"),
    ),
    # the parameters for which Adam has made its state; needed to make it before the first step
    Private("optimizers", "paddle.optimizer.Adam", ("_already_create_accumulator",), "newer"),
    # the same list in Paddle 2.6, with a spelling mistake
    Private("optimizers", "paddle.optimizer.Adam", ("_already_create_accumulater",), "older"),
    # an optimizer's settings and its scheduler: the public `get_lr` returns only the rate
    Private("optimizers", "paddle.optimizer.Optimizer", ("_default_dict", "_grad_clip", "_learning_rate")),
    # a setting of Adam that is not in `_default_dict`
    Private("optimizers", "paddle.optimizer.Adam", ("_amsgrad",), "newer"),
    # settings of AdamW for each parameter, which are not in `_default_dict`
    Private("optimizers", "paddle.optimizer.AdamW", ("_apply_decay_param_fun", "_lr_ratio")),
    # the factor of a weight decay, of which `str` prints only six digits
    Private("optimizers", "paddle.regularizer.L2Decay", ("_coeff",)),
    # the settings of a convolution: `extra_repr` leaves out those with the usual value
    Private(
        "layers", "paddle.nn.Conv2D", ("_data_format", "_dilation", "_groups", "_padding", "_padding_mode", "_stride"),
    ),
    # the settings of a batch norm: `extra_repr` leaves out those with the usual value
    Private("layers", "paddle.nn.BatchNorm2D", ("_epsilon", "_momentum", "_use_global_stats")),
    # the activation of `paddle.nn.BatchNorm`, which has no `extra_repr`
    Private("layers", "paddle.nn.BatchNorm", ("_act",)),
    # a setting of an embedding that `extra_repr` leaves out if it has the usual value
    Private("layers", "paddle.nn.Embedding", ("_padding_idx",)),
    # a setting of embeddings in newer versions that `extra_repr` leaves out
    Private("layers", "paddle.nn.Embedding", ("_max_norm",), "newer"),
    # whether a layer has hooks: they may compute its weight, as weight norm does, or change its
    # output
    Private("layers", "paddle.nn.Layer", ("_forward_pre_hooks", "_forward_post_hooks")),
    # the layers of a layer under all their names: `named_children` lists a layer that has two
    # names once
    Private("layers", "paddle.nn.Layer", ("_sub_layers",)),
    # passes on the error of a dataset, which Paddle loses between the loader's thread and the
    # loop: without workers the loader hangs, with workers the loop gets a SystemError without a
    # reason
    Private("data loaders", "paddle.io.dataloader.dataloader_iter", ("_DataLoaderIterMultiProcess",)),
    # the parts of the loader that are replaced to pass on the error of a dataset
    Private(
        "data loaders", "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess",
        ("_exit_thread_unexpectedly", "_thread_done_event", "_thread_loop", "_try_shutdown_all"),
    ),
    # tells when a gradient has been stored: `register_hook` is called before that
    Private("several processes", "paddle.Tensor", ("_register_backward_hook",)),
    # makes groups of processes that can be left again: init_parallel_env keeps one store for
    # the process, which could join others only once
    Private("several processes", "paddle.base.core", ("TCPStore", "ProcessGroupGloo")),
    # makes a group of processes that use NCCL
    Private("several processes", "paddle.base.core", ("ProcessGroupNCCL",), "CUDA"),
    # the object with the settings of AMP in a thread: `paddle.amp` does not tell the level
    Private("parallel", "paddle.base.framework", ("_dygraph_tracer",)),
    # the settings of AMP in a thread
    Private("parallel", "paddle.base.dygraph.tracer.Tracer", ("_amp_dtype", "_amp_level", "_use_promote")),
    # a step of Adam in one kernel. Without it the core computes the step by its formula
    Private("nn", "paddle._C_ops", ("adam_",)),
    # the operation that `functional.softmax_with_cross_entropy` calls; calling it directly
    # takes a quarter of the time
    Private("nn", "paddle._C_ops", ("cross_entropy_with_softmax",)),
    # makes a change of `skip_file_names` take effect
    Private("compile", "paddle.jit.sot.opcode_translator.skip_files", ("setup_skip_files",), "newer"),
)  # fmt: skip

private = Names("paddle", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
