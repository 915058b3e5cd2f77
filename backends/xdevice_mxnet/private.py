"""The private names of MXNet that this adapter reads, and the attributes that it replaces, each with the capability
that needs it. The other modules of the adapter read these names as `private["mxnet...."]`. The names will not change,
because 1.9.1 is MXNet's last release."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "1.9.1"

READS: Final = ("asnumpy", "asscalar", "__bool__", "__repr__", "__getstate__")
NUMPY_READS: Final = ("item", "tolist", "__float__", "__int__", "__str__", "__format__")
"""Methods with which the host reads an array. Only `mxnet.np.ndarray` has these methods."""
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
    # records which layers a model calls
    Private("layers' calls", "mxnet.gluon.Block", ("__call__",)),
    # detects reads by the host, and moves
    Private("transfers", "mxnet.nd.NDArray", (*READS, *MOVES)),
    # detects reads and moves by methods that only `mx.np` arrays have
    Private("transfers", "mxnet.np.ndarray", (*NUMPY_READS, *NUMPY_MOVES)),
    # detects reads by NumPy, which uses its own protocol
    Private("transfers", "numpy", ("asarray", "array")),
    # waits after each operation. MXNet itself can wait only for one array or for all work, and its own setting,
    # `MXNET_ENGINE_TYPE`, is read only when MXNet is imported
    Private("blocking", "mxnet.base._LIB", ("MXNetFuncCall", "MXInvokeCachedOpEx")),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # waits after each operation, until the last block of blocking mode ends; also rejects operands on several
    # virtual GPUs, which are CPU devices that MXNet mixes silently
    Private("blocking and virtual GPUs", "mxnet.base._LIB", ("MXImperativeInvokeEx", "MXAutogradBackwardEx")),
    # rejects a gradient on a different virtual GPU than its array
    Private("virtual GPUs", "mxnet.base._LIB", ("MXAutogradMarkVariables",)),
    # detects each array that is created or released, because MXNet does not count the memory of CPUs, and a virtual
    # GPU may lack the array's dtype
    Private("virtual GPUs", "mxnet.ndarray._internal.NDArrayBase", ("__init__", "__del__")),
    # detects whether the program has set NumPy's semantics. If the name is missing, a program that has set them is
    # asked to set them in each thread, and MXNet announces them through the root logger
    Private("tensors", "mxnet.util", ("_set_np_array_logged",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # MXNet's library, whose functions take half the time of those in Python, and which shows
    # whether arrays existed that have been released. If the name is missing, the library is
    # opened again, and a program in which no legacy array is left is treated as a program with
    # NumPy's semantics
    Private("tensors", "mxnet.base", ("_LIB",)),
    # the arrays of a parameter, including row-sparse arrays
    Private("models", "mxnet.gluon.Parameter", ("_data",)),
    # moves a parameter to another device, because the public `reset_ctx` copies through cpu(0)
    Private("models", "mxnet.gluon.Parameter", ("_init_impl",)),
    # the Trainer of a parameter, whose state must be moved together with the parameter
    Private("models", "mxnet.gluon.Parameter", ("_trainer",)),
    # marks a gradient as computed since the last step; without this mark, a Trainer rejects a gradient that was
    # moved
    Private("models", "mxnet.nd.NDArray", ("_fresh_grad",)),
    # deletes a compiled graph, which keeps its arrays alive; the public `hybridize` would lose the settings of the
    # graph
    Private("models", "mxnet.gluon.HybridBlock", ("_clear_cached_op",)),
    # move a Trainer, which has no public method for this, and makes its state available only as a file
    Private(
        "optimizers", "mxnet.gluon.Trainer",
        ("_contexts", "_kvstore", "_kvstore_params", "_reset_kvstore", "_updaters"),
    ),
    # the optimizer's state while a key-value store updates the parameters
    Private("optimizers", "mxnet.kvstore.KVStore", ("_updater",)),
    # the number of steps that the optimizer has taken on each device
    Private("optimizers", "mxnet.optimizer.Optimizer", ("_all_index_update_counts",)),
    # creates the object that contains the state, before the first step
    Private("optimizers", "mxnet.gluon.Trainer", ("_init_kvstore",)),
    # whether a Trainer compresses gradients
    Private("optimizers", "mxnet.gluon.Trainer", ("_compression_params",)),
    # the names of parameters that `save_parameters` uses
    Private("saving", "mxnet.gluon.Block", ("_collect_params_with_prefix",)),
    # the blocks in a block, with their names. Gluon's layers have no public attributes for
    # their settings, so the private names below are needed too
    Private("layers", "mxnet.gluon.Block", ("_children",)),
    # the settings of convolutions, pools and norms
    Private("layers", "mxnet.gluon.nn.Conv2D", ("_kwargs",)),
    # the function of an activation layer
    Private("layers", "mxnet.gluon.nn.Activation", ("_act_type",)),
    # the settings of LSTM, RNN and GRU
    Private("layers", "mxnet.gluon.rnn.LSTM", ("_dropout", "_layout", "_mode")),
    # the settings of a dropout
    Private("layers", "mxnet.gluon.nn.Dropout", ("_rate", "_axes")),
    # the slope of LeakyReLU, and the factor of ELU
    Private("layers", "mxnet.gluon.nn.LeakyReLU", ("_alpha",)),
    # the factor of Swish
    Private("layers", "mxnet.gluon.nn.Swish", ("_beta",)),
    # the number of elements that ReflectionPad2D adds
    Private("layers", "mxnet.gluon.nn.ReflectionPad2D", ("_padding",)),
    # the factor of PixelShuffle1D
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle1D", ("_factor",)),
    # the factors of PixelShuffle2D and PixelShuffle3D
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle2D", ("_factors",)),
    # whether a block is compiled, in which case calls of its layers cannot be recorded
    Private("layers' calls", "mxnet.gluon.HybridBlock", ("_active",)),
)  # fmt: skip

private = Names("mxnet", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
