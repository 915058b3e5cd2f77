"""The private names of MXNet that this adapter uses, and the attributes of MXNet that it replaces, each by the
capability that needs it. Its other modules read them as `private["mxnet...."]`. They will not change: 1.9.1 is MXNet's
last release."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "1.9.1"

READS: Final = ("asnumpy", "asscalar", "__bool__", "__repr__", "__getstate__")
NUMPY_READS: Final = ("item", "tolist", "__float__", "__int__", "__str__", "__format__")
"""Methods that read an array and that only `mxnet.np.ndarray` has."""
MOVES: Final = ("copyto", "as_in_context")
NUMPY_MOVES: Final = ("as_in_ctx",)
CALLS: Final = (
    "MXImperativeInvokeEx",
    "MXNetFuncCall",
    "MXInvokeCachedOpEx",
    "MXAutogradBackwardEx",
)
"""Functions of MXNet's library that start work."""

IN_BLOCKS: Final = (
    # the layers that a model calls
    Private("layers' calls", "mxnet.gluon.Block", ("__call__",)),
    # reads and moves
    Private("transfers", "mxnet.nd.NDArray", (*READS, *MOVES)),
    # the same
    Private("transfers", "mxnet.np.ndarray", (*NUMPY_READS, *NUMPY_MOVES)),
    # NumPy reads by its own protocol
    Private("transfers", "numpy", ("asarray", "array")),
    # MXNet waits for one array or for all work; its own switch, `MXNET_ENGINE_TYPE`, is read at its import only
    Private("blocking", "mxnet.base._LIB", ("MXNetFuncCall", "MXInvokeCachedOpEx")),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # as the two above, until the last block of blocking ends; and operators mix CPU devices silently
    Private("blocking and virtual GPUs", "mxnet.base._LIB", ("MXImperativeInvokeEx", "MXAutogradBackwardEx")),
    # the same
    Private("virtual GPUs", "mxnet.base._LIB", ("MXAutogradMarkVariables",)),
    # MXNet does not count the memory of CPUs, and every array is made by it: virtual GPUs may lack its dtype
    Private("virtual GPUs", "mxnet.ndarray._internal.NDArrayBase", ("__init__", "__del__")),
    # whether the program has set NumPy's semantics. Without it, a program that has is asked to set them in each
    # thread, and MXNet announces them by the root logger
    Private("tensors", "mxnet.util", ("_set_np_array_logged",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # MXNet's library, whose functions take half the time of Python's, and whether arrays were made that are gone.
    # Without it the library is opened again, and a program that keeps no legacy array counts as one with NumPy's
    # semantics
    Private("tensors", "mxnet.base", ("_LIB",)),
    # arrays that are row-sparse, too
    Private("models", "mxnet.gluon.Parameter", ("_data",)),
    # `reset_ctx` copies through cpu(0)
    Private("models", "mxnet.gluon.Parameter", ("_init_impl",)),
    # the Trainer has to move along
    Private("models", "mxnet.gluon.Parameter", ("_trainer",)),
    # otherwise a Trainer refuses a gradient that was moved
    Private("models", "mxnet.nd.NDArray", ("_fresh_grad",)),
    # a compiled graph keeps its arrays; `hybridize` would forget its settings
    Private("models", "mxnet.gluon.HybridBlock", ("_clear_cached_op",)),
    # moving a Trainer: a Trainer has no way to move, nor to hand out its state but as a file
    Private(
        "optimizers", "mxnet.gluon.Trainer",
        ("_contexts", "_kvstore", "_kvstore_params", "_reset_kvstore", "_updaters"),
    ),
    # the state, while a store updates the parameters
    Private("optimizers", "mxnet.kvstore.KVStore", ("_updater",)),
    # the steps taken on each device
    Private("optimizers", "mxnet.optimizer.Optimizer", ("_all_index_update_counts",)),
    # what will hold the state, before the first step
    Private("optimizers", "mxnet.gluon.Trainer", ("_init_kvstore",)),
    # whether gradients are compressed
    Private("optimizers", "mxnet.gluon.Trainer", ("_compression_params",)),
    # names as in `save_parameters`
    Private("saving", "mxnet.gluon.Block", ("_collect_params_with_prefix",)),
    # blocks with their names: Gluon's layers keep their settings to themselves
    Private("layers", "mxnet.gluon.Block", ("_children",)),
    # settings, of pools and norms too
    Private("layers", "mxnet.gluon.nn.Conv2D", ("_kwargs",)),
    # the function
    Private("layers", "mxnet.gluon.nn.Activation", ("_act_type",)),
    # settings, of RNN and GRU too
    Private("layers", "mxnet.gluon.rnn.LSTM", ("_dropout", "_layout", "_mode")),
    # settings
    Private("layers", "mxnet.gluon.nn.Dropout", ("_rate", "_axes")),
    # the slope; of ELU too
    Private("layers", "mxnet.gluon.nn.LeakyReLU", ("_alpha",)),
    # settings
    Private("layers", "mxnet.gluon.nn.Swish", ("_beta",)),
    # settings
    Private("layers", "mxnet.gluon.nn.ReflectionPad2D", ("_padding",)),
    # settings
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle1D", ("_factor",)),
    # settings, of three axes too
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle2D", ("_factors",)),
    # whether a block hides its layers
    Private("layers' calls", "mxnet.gluon.HybridBlock", ("_active",)),
)  # fmt: skip

private = Names("mxnet", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
