"""The private names of Paddle that this adapter uses, and the attributes of Paddle that it replaces, each by the
capability that needs it. Its other modules read them as `private["paddle...."]`. Where no issue is named, none is known
upstream.

The settings of a layer without parameters need no private name: `extra_repr` says them, on 2.6.2 in the same words as
on 3.3.1.
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
"""Methods of a tensor that compute in C++ without the functions of `_C_ops`. With a number on the left, only the
reflected ones see the tensor; `__rmatmul__` takes no number."""
NEWER_CHECKED: Final = ("__rfloordiv__", "__rmod__")

IN_BLOCKS: Final = (
    # hooks of a layer miss calls of its `forward`
    Private("layers' calls", "paddle.nn.Layer", ("__call__",)),
    # reads, and moves: `to`, `cpu`, `cuda` and `pin_memory` call `_copy_to`. Paddle reports neither
    Private("transfers", "paddle.Tensor", (*READS, "_copy_to")),
    # the same
    Private("transfers", "paddle.Tensor", NEWER_READS, "newer"),
    # `paddle.grad` in two threads at once segfaults (3.3.1; PaddlePaddle/Paddle#36078)
    Private("parallel", "paddle.base.core.eager", ("run_partial_grad",)),
    # steps, which `inplace_version` does not count
    Private("several processes", "paddle.optimizer.Optimizer", ("_apply_optimize",)),
    # each operation that Paddle runs
    Private("operations", "paddle._C_ops", ("*",)),
    # the same
    Private("operations", "paddle.Tensor", CHECKED),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # Paddle compares no devices, and leaves empty results
    Private("virtual GPUs", "paddle._C_ops", ("*",)),
    # the same
    Private("virtual GPUs", "paddle._legacy_C_ops", ("*",)),
    # the same
    Private("virtual GPUs", "paddle.Tensor", CHECKED),
    # the same
    Private("virtual GPUs", "paddle.Tensor", NEWER_CHECKED, "newer"),
    # the tracer rewrites xdevice's own functions; `paddle.jit.ignore_module` reaches the other one only
    Private("compile", "paddle.jit.sot.opcode_translator.skip_files", ("skip_file_names",), "newer"),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # copies. `to` can clear its source, and before 3.0 works in place; `cpu` and `cuda` know no plugin
    Private("tensors", "paddle.Tensor", ("_copy_to",)),
    # in 2.6 no other functions take a device. Without them: copies by Paddle's own way, NumPy's values, a scope
    Private("tensors", "paddle._C_ops", ("empty", "full")),
    # dygraph mode ends with the thread that imported Paddle unless this is kept
    Private("tensors", "paddle.base.framework.global_var", ("_functional_dygraph_context_manager",)),
    # a parameter stays the same object when it is moved: optimizers and other layers refer to it
    Private("models", "paddle.base.core.DenseTensor", ("_share_data_with",), "newer"),
    # the optimizer that `prepare` was given moves with the network
    Private("models", "paddle.Model", ("_optimizer",)),
    # the one part that cannot be copied
    Private("models", "paddle.DataParallel", ("_strategy",)),
    # `paddle.device` counts the memory of accelerators only
    Private("memory", "paddle.base.core", ("host_memory_stat_current_value", "host_memory_stat_peak_value")),
    # the same
    Private("memory", "paddle.base.core", ("host_memory_stat_reset_peak_value",), "newer"),
    # the tensors of each parameter: `state_dict` names them by numbers that differ in another process
    Private(
        "optimizers", "paddle.optimizer.Optimizer",
        ("_accumulators", "_learning_rate_map", "_master_weights", "_parameter_list"),
    ),
    # state that the first step would make, so that it can be loaded before
    Private(
        "optimizers", "paddle.optimizer.Optimizer", ("_accumulators_holder", "_create_accumulators", "_opti_name_list"),
    ),
    # the same
    Private("optimizers", "paddle.optimizer.Adam", ("_already_create_accumulator",), "newer"),
    # the same in 2.6
    Private("optimizers", "paddle.optimizer.Adam", ("_already_create_accumulater",), "older"),
    # its settings, and the scheduler. `get_lr` has the rate only
    Private("optimizers", "paddle.optimizer.Optimizer", ("_default_dict", "_grad_clip", "_learning_rate")),
    # a setting that is not in `_default_dict`
    Private("optimizers", "paddle.optimizer.Adam", ("_amsgrad",), "newer"),
    # settings of each parameter that are not in `_default_dict`
    Private("optimizers", "paddle.optimizer.AdamW", ("_apply_decay_param_fun", "_lr_ratio")),
    # `str` has six digits of it
    Private("optimizers", "paddle.regularizer.L2Decay", ("_coeff",)),
    # settings, which `extra_repr` leaves out where they are the usual ones
    Private(
        "layers", "paddle.nn.Conv2D", ("_data_format", "_dilation", "_groups", "_padding", "_padding_mode", "_stride"),
    ),
    # the same; `paddle.nn.BatchNorm` has no `extra_repr`
    Private("layers", "paddle.nn.BatchNorm2D", ("_epsilon", "_momentum", "_use_global_stats")),
    # the same
    Private("layers", "paddle.nn.BatchNorm", ("_act",)),
    # the same
    Private("layers", "paddle.nn.Embedding", ("_padding_idx",)),
    # the same
    Private("layers", "paddle.nn.Embedding", ("_max_norm",), "newer"),
    # whether a weight norm makes the weight, and whether hooks change what a layer gives
    Private("layers", "paddle.nn.Layer", ("_forward_pre_hooks", "_forward_post_hooks")),
    # `named_children` has a layer once that is there twice
    Private("layers", "paddle.nn.Layer", ("_sub_layers",)),
    # the error of a dataset is lost between the loader's thread and the loop: a dataset that raises hangs the loader
    # without workers; with them, the loop has a SystemError that says nothing
    Private("data loaders", "paddle.io.dataloader.dataloader_iter", ("_DataLoaderIterMultiProcess",)),
    # the same
    Private(
        "data loaders", "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess",
        ("_exit_thread_unexpectedly", "_thread_done_event", "_thread_loop", "_try_shutdown_all"),
    ),
    # when a gradient is there: `register_hook` is called before
    Private("several processes", "paddle.Tensor", ("_register_backward_hook",)),
    # groups that can be left again: init_parallel_env keeps one store for the process, which could join others only
    # once
    Private("several processes", "paddle.base.core", ("TCPStore", "ProcessGroupGloo")),
    # the same
    Private("several processes", "paddle.base.core", ("ProcessGroupNCCL",), "CUDA"),
    # AMP is a setting of a thread, of which `paddle.amp` does not say the level
    Private("parallel", "paddle.base.framework", ("_dygraph_tracer",)),
    # the same
    Private("parallel", "paddle.base.dygraph.tracer.Tracer", ("_amp_dtype", "_amp_level", "_use_promote")),
    # a step of Adam in one kernel. Without it the core computes it by the formula
    Private("nn", "paddle._C_ops", ("adam_",)),
    # what `functional.softmax_with_cross_entropy` calls, in a quarter of its time
    Private("nn", "paddle._C_ops", ("cross_entropy_with_softmax",)),
    # makes a new list count
    Private("compile", "paddle.jit.sot.opcode_translator.skip_files", ("setup_skip_files",), "newer"),
)  # fmt: skip

private = Names("paddle", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
