"""The private names of Paddle that this adapter reads, and the attributes that it replaces, each
with the capability that needs it. The adapter's other modules read a name as
`private["paddle...."]`. If a comment names no issue, no upstream issue is known.

No private name is needed for the settings of layers without parameters: `extra_repr` returns
these settings, in the same words in 2.6.2 and 3.3.1.
"""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "3.3.1"

READS: Final = (
    "numpy", "item", "tolist", "__array__", "__float__", "__int__", "__bool__", "__index__", "__repr__", "__str__",
    "__format__",
)  # fmt: skip
"""The methods with which the host reads a tensor."""
NEWER_READS: Final = ("__complex__",)

CHECKED: Final = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__floordiv__",
    "__mod__", "__pow__", "__rpow__", "__matmul__", "__eq__", "__ne__", "__lt__", "__le__",
    "__gt__", "__ge__", "_getitem_dygraph", "_setitem_dygraph", "clone",
)  # fmt: skip
"""The methods of a tensor that compute in C++ without calling the functions of `_C_ops`. If the
left operand is a number, only the reflected methods are called; `__rmatmul__` is not listed,
because it does not accept a number."""
NEWER_CHECKED: Final = ("__rfloordiv__", "__rmod__")

IN_BLOCKS: Final = (
    # records which layers a model calls: Paddle's hooks miss direct calls of a layer's `forward`
    Private("layers' calls", "paddle.nn.Layer", ("__call__",)),
    # detects reads by the host, and moves (`to`, `cpu`, `cuda` and `pin_memory` call `_copy_to`).
    # Paddle reports neither
    Private("transfers", "paddle.Tensor", (*READS, "_copy_to")),
    # detects reads by the host as a complex number
    Private("transfers", "paddle.Tensor", NEWER_READS, "newer"),
    # runs `paddle.grad` in one thread at a time: in two threads at once it segfaults (3.3.1;
    # PaddlePaddle/Paddle#36078)
    Private("parallel", "paddle.base.core.eager", ("run_partial_grad",)),
    # counts the steps of an optimizer, because `inplace_version` does not include them as writes
    Private("several processes", "paddle.optimizer.Optimizer", ("_apply_optimize",)),
    # records each operation that Paddle runs
    Private("operations", "paddle._C_ops", ("*",)),
    # records the operations of a tensor's methods, which do not call the functions of `_C_ops`
    Private("operations", "paddle.Tensor", CHECKED),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # rejects operations on tensors of several devices, because Paddle does not compare the devices; moves empty
    # results, which Paddle leaves on the CPU
    Private("virtual GPUs", "paddle._C_ops", ("*",)),
    # makes the same checks as for `_C_ops`, in Paddle's older functions
    Private("virtual GPUs", "paddle._legacy_C_ops", ("*",)),
    # makes the same checks as for `_C_ops`, in a tensor's methods
    Private("virtual GPUs", "paddle.Tensor", CHECKED),
    # makes the same checks as for `_C_ops`, in methods that Paddle 3 added
    Private("virtual GPUs", "paddle.Tensor", NEWER_CHECKED, "newer"),
    # rejects dtypes that a virtual GPU lacks, and counts memory: `to_tensor` calls no function of `_C_ops`
    Private("virtual GPUs", "paddle", ("to_tensor",)),
    # makes the same checks as for `to_tensor`, in the method with which `to`, `cpu` and `cuda` move
    # a tensor
    Private("virtual GPUs", "paddle.Tensor", ("_copy_to",)),
    # prevents the bytecode tracer from rewriting xdevice's own functions; `paddle.jit.ignore_module` affects only
    # the source-code tracer
    Private("compile", "paddle.jit.sot.opcode_translator.skip_files", ("skip_file_names",), "newer"),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # copies a tensor to a device. `to` can clear its source, and before 3.0 it works in place;
    # `cpu` and `cuda` cannot copy to a plugin's device
    Private("tensors", "paddle.Tensor", ("_copy_to",)),
    # creates a tensor on a given device: in 2.6 no other functions can do this. Without these
    # functions, Paddle's own copies are used instead of the ring, and NumPy creates the values
    Private("tensors", "paddle._C_ops", ("empty", "full")),
    # keeps dygraph mode on: it ends with the thread that imported Paddle, unless something
    # refers to this object
    Private("tensors", "paddle.base.framework.global_var", ("_functional_dygraph_context_manager",)),
    # moves a parameter that must stay the same object, because optimizers and other layers
    # refer to it
    Private("models", "paddle.base.core.DenseTensor", ("_share_data_with",), "newer"),
    # the optimizer that was passed to `prepare`, which moves with the network
    Private("models", "paddle.Model", ("_optimizer",)),
    # the only attribute of a `DataParallel` that cannot be copied
    Private("models", "paddle.DataParallel", ("_strategy",)),
    # counts the memory of the CPU: `paddle.device` counts only the memory of accelerators
    Private("memory", "paddle.base.core", ("host_memory_stat_current_value", "host_memory_stat_peak_value")),
    # resets the peak of the memory of the CPU
    Private("memory", "paddle.base.core", ("host_memory_stat_reset_peak_value",), "newer"),
    # the tensors of an optimizer for each parameter: the names in `state_dict` contain numbers
    # that differ in another process
    Private(
        "optimizers", "paddle.optimizer.Optimizer",
        ("_accumulators", "_learning_rate_map", "_master_weights", "_parameter_list"),
    ),
    # creates the state that the first step would create, so that it can be loaded before that step
    Private(
        "optimizers", "paddle.optimizer.Optimizer", ("_accumulators_holder", "_create_accumulators", "_opti_name_list"),
    ),
    # the parameters for which Adam has created its state; needed to create the state before the
    # first step
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
    # the settings of a convolution: `extra_repr` leaves out settings with the default value
    Private(
        "layers", "paddle.nn.Conv2D", ("_data_format", "_dilation", "_groups", "_padding", "_padding_mode", "_stride"),
    ),
    # the settings of a batch norm: `extra_repr` leaves out settings with the default value
    Private("layers", "paddle.nn.BatchNorm2D", ("_epsilon", "_momentum", "_use_global_stats")),
    # the activation of `paddle.nn.BatchNorm`, which has no `extra_repr`
    Private("layers", "paddle.nn.BatchNorm", ("_act",)),
    # a setting of an embedding that `extra_repr` leaves out if it has the default value
    Private("layers", "paddle.nn.Embedding", ("_padding_idx",)),
    # a setting of embeddings in newer versions that `extra_repr` leaves out
    Private("layers", "paddle.nn.Embedding", ("_max_norm",), "newer"),
    # the hooks of a layer: a hook may compute the layer's weight, as weight norm does, or change
    # its output
    Private("layers", "paddle.nn.Layer", ("_forward_pre_hooks", "_forward_post_hooks")),
    # the layers inside a layer, under all their names: `named_children` lists a layer with two
    # names only once
    Private("layers", "paddle.nn.Layer", ("_sub_layers",)),
    # passes on the error of a dataset, which Paddle loses between the loader's thread and the
    # loop: without workers the loader hangs; with workers the loop receives a SystemError without
    # a reason
    Private("data loaders", "paddle.io.dataloader.dataloader_iter", ("_DataLoaderIterMultiProcess",)),
    # the parts of the loader that are replaced to pass on the error of a dataset
    Private(
        "data loaders", "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess",
        ("_exit_thread_unexpectedly", "_thread_done_event", "_thread_loop", "_try_shutdown_all"),
    ),
    # reports when a gradient has been stored: hooks of `register_hook` are called before that
    Private("several processes", "paddle.Tensor", ("_register_backward_hook",)),
    # creates groups of processes that can be left again: init_parallel_env keeps one store for the whole process,
    # so the process could join others only once
    Private("several processes", "paddle.base.core", ("TCPStore", "ProcessGroupGloo")),
    # creates a group of processes that use NCCL
    Private("several processes", "paddle.base.core", ("ProcessGroupNCCL",), "CUDA"),
    # the object with the settings of AMP in a thread: `paddle.amp` does not report the level
    Private("parallel", "paddle.base.framework", ("_dygraph_tracer",)),
    # the settings of AMP in a thread
    Private("parallel", "paddle.base.dygraph.tracer.Tracer", ("_amp_dtype", "_amp_level", "_use_promote")),
    # computes a step of Adam in one kernel. Without it, the core computes the step by its formula
    Private("nn", "paddle._C_ops", ("adam_",)),
    # the operation that `functional.softmax_with_cross_entropy` calls; calling the operation directly takes a
    # quarter of the time
    Private("nn", "paddle._C_ops", ("cross_entropy_with_softmax",)),
    # makes a change of `skip_file_names` take effect
    Private("compile", "paddle.jit.sot.opcode_translator.skip_files", ("setup_skip_files",), "newer"),
)  # fmt: skip

private = Names("paddle", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
