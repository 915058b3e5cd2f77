"""Lists the attributes of MXNet that this adapter replaces, and the private names that it uses. They will not change:
1.9.1 is MXNet's last release."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Patch, Private

from . import blocking, transfers

PATCHES: Final = (
    Patch("mxnet.gluon.Block", ("__call__",), "`trace`: the layers that a model calls", "block"),
    Patch("mxnet.nd.NDArray", (*transfers.READS, *transfers.MOVES), "`transfers`: reads and moves", "block"),
    Patch("mxnet.np.ndarray", (*transfers.NUMPY_READS, *transfers.NUMPY_MOVES), "the same", "block"),
    Patch("numpy", ("asarray", "array"), "`transfers`: NumPy reads by a protocol of its own", "block"),
    Patch("mxnet.base._LIB", blocking.CALLS, "`blocking`: MXNet waits for one array or for all work only", "block"),
    Patch(
        "mxnet.base._LIB",
        ("MXImperativeInvokeEx", "MXAutogradBackwardEx", "MXAutogradMarkVariables"),
        "virtual GPUs: operators mix CPU devices silently",
        "process",
    ),
    Patch(
        "mxnet.util",
        ("_set_np_shape_logged", "_set_np_array_logged"),
        "MXNet announces NumPy's semantics by the root logger, and so configures it; whether the program has set them",
        "process",
    ),
)

PRIVATE: Final = (
    Private("mxnet.gluon.HybridBlock", ("_active",), "`trace`: whether a block hides its layers"),
    Private("mxnet.base", ("_LIB",), "MXNet's library"),
    Private("mxnet.sym.np", ("_Symbol",), "whether a program is a legacy one"),
    Private("mxnet.gluon.HybridBlock", ("_get_graph",), "whether a hybridized block would freeze random numbers"),
    Private(
        "mxnet.gluon.Trainer",
        ("_compression_params", "_contexts", "_init_kvstore", "_kv_initialized", "_kvstore", "_kvstore_params",
         "_optimizer", "_params", "_reset_kvstore", "_update_on_kvstore", "_updaters"),
        "a Trainer has no way to move, nor to hand out its state",
    ),
    Private("mxnet.kvstore.KVStore", ("_updater",), "the same"),
    Private("mxnet.optimizer.Optimizer", ("_all_index_update_counts",), "the steps taken"),
    Private(
        "mxnet.gluon.Parameter", ("_data", "_grad", "_grad_req", "_init_impl", "_trainer", "_var"),
        "`reset_ctx` drops the gradient",
    ),
    Private("mxnet.nd.NDArray", ("_fresh_grad",), "the same"),
    Private("mxnet.gluon.HybridBlock", ("_cached_graph", "_cached_op", "_clear_cached_op"), "compiled graphs"),
    Private("mxnet.gluon.Block", ("_children", "_collect_params_with_prefix"), "names as in `save_parameters`"),
    Private("mxnet.gluon.nn.conv_layers", ("_Conv",), "what a layer computes"),
    Private("mxnet.gluon.nn.conv_layers._Conv", ("_kwargs",), "the same"),
    Private("mxnet.gluon.nn.Activation", ("_act_type",), "the same"),
    Private("mxnet.gluon.nn.LayerNorm", ("_axis", "_epsilon"), "the same"),
    Private("mxnet.gluon.nn.GroupNorm", ("_num_groups",), "the same"),
    Private("mxnet.gluon.nn.InstanceNorm", ("_axis",), "the same"),
    Private("mxnet.gluon.Block", ("_reg_params",), "whether a block has parameters of its own"),
    Private("mxnet.gluon.nn.conv_layers", ("_Pooling",), "what a block without parameters is set to"),
    Private("mxnet.gluon.nn.Dropout", ("_rate", "_axes"), "the same"),
    Private("mxnet.gluon.nn.LeakyReLU", ("_alpha",), "the same"),
    Private("mxnet.gluon.nn.ReflectionPad2D", ("_padding",), "the same"),
    Private("mxnet.gluon.nn.Swish", ("_beta",), "the same"),
    Private("mxnet.gluon.contrib.nn.PixelShuffle1D", ("_factor",), "the same"),
    Private("mxnet.gluon.contrib.nn.PixelShuffle2D", ("_factors",), "the same"),
    Private(
        "mxnet.gluon.rnn.LSTM", ("_dir", "_dropout", "_layout", "_mode", "_num_layers", "_projection_size"), "the same"
    ),
)  # fmt: skip
