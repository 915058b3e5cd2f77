"""The private names of MXNet that this adapter uses, and the attributes of MXNet that it replaces, each by the
capability that needs it. Its other modules read them as `private["mxnet...."]`. They will not change: 1.9.1 is MXNet's
last release."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Patch, Private

TESTED: Final = "1.9.1"

READS: Final = ("asnumpy", "asscalar", "__bool__", "__repr__", "__getstate__")
NUMPY_READS: Final = ("item", "tolist", "__float__", "__int__", "__str__", "__format__")
"""Methods that read an array and that only `mxnet.np.ndarray` has."""
MOVES: Final = ("copyto", "as_in_context")
NUMPY_MOVES: Final = ("as_in_ctx",)
CALLS: Final = ("MXImperativeInvokeEx", "MXNetFuncCall", "MXInvokeCachedOpEx", "MXAutogradBackwardEx")
"""Functions of MXNet's library that start work."""

PATCHES: Final = (
    Patch("layers' calls", "mxnet.gluon.Block", ("__call__",), "the layers that a model calls", "block"),
    Patch("transfers", "mxnet.nd.NDArray", (*READS, *MOVES), "reads and moves", "block"),
    Patch("transfers", "mxnet.np.ndarray", (*NUMPY_READS, *NUMPY_MOVES), "the same", "block"),
    Patch("transfers", "numpy", ("asarray", "array"), "NumPy reads by its own protocol", "block"),
    Patch(
        "blocking", "mxnet.base._LIB", ("MXNetFuncCall", "MXInvokeCachedOpEx"),
        "MXNet waits for one array or for all work; its own switch, `MXNET_ENGINE_TYPE`, is read at its import only",
        "block",
    ),
    Patch(
        "blocking and virtual GPUs", "mxnet.base._LIB", ("MXImperativeInvokeEx", "MXAutogradBackwardEx"),
        "the same, to the block's end; and operators mix CPU devices silently", "process",
    ),
    Patch("virtual GPUs", "mxnet.base._LIB", ("MXAutogradMarkVariables",), "the same", "process"),
    Patch(
        "virtual GPUs", "mxnet.ndarray._internal.NDArrayBase", ("__init__", "__del__"),
        "MXNet does not count the memory of CPUs, and every array is made by it: virtual GPUs may lack its dtype",
        "process",
    ),
    Patch(
        "tensors", "mxnet.util", ("_set_np_array_logged",),
        "whether the program has set NumPy's semantics. Without it, a program that has is asked to set them in each "
        "thread, and MXNet announces them by the root logger",
        "process",
    ),
)  # fmt: skip

PRIVATE: Final = (
    Private(
        "tensors", "mxnet.base", ("_LIB",),
        "MXNet's library, whose functions take half the time of Python's, and whether arrays were made that are gone. "
        "Without it the library is opened again, and a program that keeps no legacy array counts as one with NumPy's "
        "semantics",
    ),
    Private("models", "mxnet.gluon.Parameter", ("_data",), "arrays that are row-sparse, too"),
    Private("models", "mxnet.gluon.Parameter", ("_init_impl",), "`reset_ctx` copies through cpu(0)"),
    Private("models", "mxnet.gluon.Parameter", ("_trainer",), "the Trainer has to move along"),
    Private("models", "mxnet.nd.NDArray", ("_fresh_grad",), "otherwise a Trainer refuses a gradient that was moved"),
    Private(
        "models", "mxnet.gluon.HybridBlock", ("_clear_cached_op",),
        "a compiled graph keeps its arrays; `hybridize` would forget its settings",
    ),
    # a Trainer has no way to move, nor to hand out its state but as a file
    Private(
        "optimizers", "mxnet.gluon.Trainer",
        ("_contexts", "_kvstore", "_kvstore_params", "_reset_kvstore", "_updaters"),
        "moving a Trainer",
    ),
    Private("optimizers", "mxnet.kvstore.KVStore", ("_updater",), "the state, while a store updates the parameters"),
    Private("optimizers", "mxnet.optimizer.Optimizer", ("_all_index_update_counts",), "the steps taken on each device"),
    Private("optimizers", "mxnet.gluon.Trainer", ("_init_kvstore",), "what will hold the state, before the first step"),
    Private("optimizers", "mxnet.gluon.Trainer", ("_compression_params",), "whether gradients are compressed"),
    Private("saving", "mxnet.gluon.Block", ("_collect_params_with_prefix",), "names as in `save_parameters`"),
    # Gluon's layers keep their settings to themselves
    Private("layers", "mxnet.gluon.Block", ("_children",), "blocks with their names"),
    Private("layers", "mxnet.gluon.nn.Conv2D", ("_kwargs",), "settings, of pools and norms too"),
    Private("layers", "mxnet.gluon.nn.Activation", ("_act_type",), "the function"),
    Private("layers", "mxnet.gluon.rnn.LSTM", ("_dropout", "_layout", "_mode"), "settings, of RNN and GRU too"),
    Private("layers", "mxnet.gluon.nn.Dropout", ("_rate", "_axes"), "settings"),
    Private("layers", "mxnet.gluon.nn.LeakyReLU", ("_alpha",), "the slope; of ELU too"),
    Private("layers", "mxnet.gluon.nn.Swish", ("_beta",), "settings"),
    Private("layers", "mxnet.gluon.nn.ReflectionPad2D", ("_padding",), "settings"),
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle1D", ("_factor",), "settings"),
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle2D", ("_factors",), "settings, of three axes too"),
    Private("layers' calls", "mxnet.gluon.HybridBlock", ("_active",), "whether a block hides its layers"),
)  # fmt: skip

private = Names("mxnet", TESTED, PRIVATE, PATCHES)
