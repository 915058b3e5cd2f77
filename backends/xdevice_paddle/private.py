"""Lists the attributes of Paddle that this adapter replaces, and the private names of Paddle that it uses."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Patch, Private

from . import transfers, virtual_operations

PATCHES: Final = (
    Patch("paddle.nn.Layer", ("__call__",), "`trace`: the layers that a model calls", "block"),
    Patch(
        "paddle.Tensor", (*transfers.READS, "cpu", "cuda", "to", "_copy_to"),
        "`transfers`: reads and moves", "block",
    ),
    Patch(
        "paddle.base.core.eager", ("run_partial_grad",),
        "`parallel`: `paddle.grad` in two threads at once segfaults (3.3.1)", "block",
    ),
    Patch("paddle._C_ops", ("*",), "virtual GPUs: Paddle compares no devices", "process"),
    Patch("paddle._legacy_C_ops", ("*",), "the same", "process"),
    Patch("paddle.Tensor", virtual_operations.METHODS, "the same", "process"),
    Patch(
        "paddle.jit.sot.opcode_translator.skip_files", ("skip_file_names",),
        "the tracer rewrites xdevice's own functions; `paddle.jit.ignore_module` reaches the other one only", "process",
    ),
)  # fmt: skip

PRIVATE: Final = (
    Private("paddle.Tensor", ("_register_backward_hook",), "`averaging`: when a gradient is there"),
    Private("paddle.nn.Conv2D", ("_data_format",), "`assert_parity(inputs=)`: where the channels of images are"),
    Private("paddle", ("_C_ops", "_legacy_C_ops"), "tensors made on a device; see above"),
    Private("paddle.base", ("core", "framework"), "see below"),
    Private("paddle.base.framework", ("EagerParamBase", "global_var"), "parameters; the next line"),
    Private(
        "paddle.base.framework.global_var", ("_functional_dygraph_context_manager",),
        "dygraph mode ends with the thread that imported Paddle unless this is kept",
    ),
    Private(
        "paddle.base.framework", ("_current_expected_place", "_dygraph_tracer", "_set_expected_place"),
        "what Paddle keeps for each thread",
    ),
    Private("paddle.base.dygraph.tracer.Tracer", ("_amp_dtype", "_amp_level", "_use_promote"), "the same"),
    Private("paddle.base.core", ("_set_current_stream",), "`stream_guard` may change the device of all threads"),
    Private("paddle.Tensor", ("_copy_to", "_grad_ivar", "_is_initialized"), "copies; models that move in place"),
    Private("paddle.base.core.DenseTensor", ("_share_data_with",), "models move in place"),
    Private(
        "paddle.optimizer.Optimizer",
        ("_accumulators", "_accumulators_holder", "_create_accumulators", "_learning_rate_map", "_master_weights",
         "_opti_name_list", "_parameter_list"),
        "the state of optimizers",
    ),
    Private("paddle.optimizer.Adam", ("_already_create_accumulator",), "the same"),
    Private("paddle.optimizer.Adam", ("_already_create_accumulater",), "the same up to 2.6", "older"),
    Private(
        "paddle.optimizer.Optimizer", ("_default_dict", "_grad_clip", "_learning_rate"), "what an optimizer computes"
    ),
    Private("paddle.optimizer.Momentum", ("_momentum", "_use_nesterov", "_rescale_grad"), "the same"),
    Private("paddle.optimizer.Adam", ("_beta1", "_beta2", "_epsilon"), "the same"),
    Private("paddle.optimizer.Adam", ("_amsgrad",), "the same"),
    Private("paddle.optimizer.AdamW", ("_apply_decay_param_fun", "_lr_ratio", "_weight_decay"), "the same"),
    Private("paddle.optimizer.RMSProp", ("_rho", "_centered"), "the same"),
    Private("paddle.regularizer.L2Decay", ("_coeff",), "the same"),
    Private("paddle.Model", ("_optimizer",), "the optimizer that `prepare` was given"),
    Private("paddle.DataParallel", ("_strategy",), "copies of models"),
    Private(
        "paddle.io.dataloader.dataloader_iter",
        ("_DataLoaderIterBase", "_DataLoaderIterMultiProcess", "_DatasetKind", "_flatten_batch", "_restore_batch"),
        "a dataset that raises hangs the loader, or loses its error",
    ),
    Private(
        "paddle.io.dataloader.dataloader_iter._DataLoaderIterBase",
        ("_auto_collate_batch", "_collate_fn", "_dataset", "_dataset_kind", "_drop_last", "_sampler_iter"), "the same",
    ),
    Private(
        "paddle.io.dataloader.dataloader_iter._DataLoaderIterMultiProcess",
        ("_thread_done_event", "_try_shutdown_all", "_thread_loop", "_exit_thread_unexpectedly"), "the same",
    ),
    Private(
        "paddle.nn.Layer", ("_forward_pre_hooks", "_forward_post_hooks"),
        "whether a weight norm makes the weight, and whether hooks change what a layer gives",
    ),
    Private("paddle.nn.layer.conv", ("_ConvNd",), "what a layer computes"),
    Private(
        "paddle.nn.layer.conv._ConvNd",
        ("_dilation", "_groups", "_kernel_size", "_padding_mode", "_stride", "_padding"),
        "the same",
    ),
    Private("paddle.nn.layer.norm", ("_BatchNormBase",), "the same"),
    Private("paddle.nn.Layer", ("_sub_layers",), "whether a layer holds others"),
    Private("paddle.optimizer.Optimizer", ("_param_groups",), "an optimizer that keeps tensors elsewhere is refused"),
    Private("paddle.nn.AdaptiveAvgPool2D", ("_output_size",), "what a layer without parameters is set to"),
    Private("paddle.nn.ELU", ("_alpha",), "the same"),
    Private("paddle.nn.GELU", ("_approximate",), "the same"),
    Private("paddle.nn.Hardshrink", ("_threshold",), "the same"),
    Private("paddle.nn.Hardtanh", ("_max", "_min"), "the same"),
    Private("paddle.nn.LeakyReLU", ("_negative_slope",), "the same"),
    Private("paddle.nn.Pad2D", ("_mode",), "the same"),
    Private("paddle.nn.PixelShuffle", ("_upscale_factor",), "the same"),
    Private("paddle.nn.PixelUnshuffle", ("_downscale_factor",), "the same"),
    Private("paddle.nn.SELU", ("_scale",), "the same"),
    Private("paddle.nn.Softmax", ("_axis",), "the same"),
    Private("paddle.nn.Softplus", ("_beta",), "the same"),
    Private(
        "paddle.nn.layer.norm._BatchNormBase",
        ("_epsilon", "_momentum", "_mean", "_variance", "_use_global_stats"),
        "the same",
    ),
    Private("paddle.nn.BatchNorm", ("_act",), "the same"),
    Private("paddle.nn.layer.norm", ("_InstanceNormBase",), "the same"),
    Private("paddle.nn.GroupNorm", ("_num_groups",), "the same"),
    Private("paddle.nn.TransformerEncoderLayer", ("_config",), "the same: which activation"),
    Private("paddle.nn.LayerNorm", ("_normalized_shape",), "the same"),
    Private("paddle.nn.Embedding", ("_max_norm", "_padding_idx"), "the same"),
    Private("paddle.nn.PReLU", ("_weight",), "the same"),
)  # fmt: skip
