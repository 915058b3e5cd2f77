"""The private names of MXNet that this adapter reads, and the attributes that it replaces, each
with the capability that needs it. The adapter's other modules read them as
`private["mxnet...."]`. The names will not change, because 1.9.1 is MXNet's last release."""

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
    # which layers a model calls
    Private("layers' calls", "mxnet.gluon.Block", ("__call__",)),
    # notices reads by the host, and moves
    Private("transfers", "mxnet.nd.NDArray", (*READS, *MOVES)),
    # notices the reads and moves by methods that only `mx.np` arrays have
    Private("transfers", "mxnet.np.ndarray", (*NUMPY_READS, *NUMPY_MOVES)),
    # notices reads by NumPy, which uses its own protocol
    Private("transfers", "numpy", ("asarray", "array")),
    # waits after each operation. MXNet itself can wait for one array or for all work, and its
    # own switch, `MXNET_ENGINE_TYPE`, is only read when MXNet is imported
    Private("blocking", "mxnet.base._LIB", ("MXNetFuncCall", "MXInvokeCachedOpEx")),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # waits after each operation, until the last block of blocking mode ends; and refuses
    # operands on several virtual GPUs, which are CPU devices that MXNet mixes silently
    Private("blocking and virtual GPUs", "mxnet.base._LIB", ("MXImperativeInvokeEx", "MXAutogradBackwardEx")),
    # refuses a gradient on another virtual GPU than its array
    Private("virtual GPUs", "mxnet.base._LIB", ("MXAutogradMarkVariables",)),
    # notices each array that is made or released: MXNet does not count the memory of CPUs, and
    # a virtual GPU may lack the array's dtype
    Private("virtual GPUs", "mxnet.ndarray._internal.NDArrayBase", ("__init__", "__del__")),
    # tells whether the program has set NumPy's semantics. Without it, a program that has set
    # them is asked to set them in each thread, and MXNet announces them by the root logger
    Private("tensors", "mxnet.util", ("_set_np_array_logged",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # MXNet's library, whose functions take half the time of those in Python, and which tells
    # whether arrays were made that are gone. Without it the library is opened again, and a
    # program that keeps no legacy array counts as one with NumPy's semantics
    Private("tensors", "mxnet.base", ("_LIB",)),
    # the arrays of a parameter, also row-sparse ones
    Private("models", "mxnet.gluon.Parameter", ("_data",)),
    # puts a parameter on another device: the public `reset_ctx` copies through cpu(0)
    Private("models", "mxnet.gluon.Parameter", ("_init_impl",)),
    # the Trainer of a parameter, which has to move with it
    Private("models", "mxnet.gluon.Parameter", ("_trainer",)),
    # marks a gradient as computed since the last step: without the mark a Trainer refuses a
    # gradient that was moved
    Private("models", "mxnet.nd.NDArray", ("_fresh_grad",)),
    # deletes a compiled graph, which keeps its arrays; the public `hybridize` would forget its
    # settings
    Private("models", "mxnet.gluon.HybridBlock", ("_clear_cached_op",)),
    # moves a Trainer, which has no method for that, and hands out its state only as a file
    Private(
        "optimizers", "mxnet.gluon.Trainer",
        ("_contexts", "_kvstore", "_kvstore_params", "_reset_kvstore", "_updaters"),
    ),
    # the optimizer's state while a key-value store updates the parameters
    Private("optimizers", "mxnet.kvstore.KVStore", ("_updater",)),
    # the number of steps taken on each device
    Private("optimizers", "mxnet.optimizer.Optimizer", ("_all_index_update_counts",)),
    # makes the object that will hold the state, before the first step
    Private("optimizers", "mxnet.gluon.Trainer", ("_init_kvstore",)),
    # whether a Trainer compresses gradients
    Private("optimizers", "mxnet.gluon.Trainer", ("_compression_params",)),
    # the names of parameters as in `save_parameters`
    Private("saving", "mxnet.gluon.Block", ("_collect_params_with_prefix",)),
    # the blocks in a block with their names; Gluon's layers have no public attributes for their
    # settings
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
    # how many elements ReflectionPad2D adds
    Private("layers", "mxnet.gluon.nn.ReflectionPad2D", ("_padding",)),
    # the factor of PixelShuffle1D
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle1D", ("_factor",)),
    # the factors of PixelShuffle2D and PixelShuffle3D
    Private("layers", "mxnet.gluon.contrib.nn.PixelShuffle2D", ("_factors",)),
    # whether a block is compiled, so that calls of its layers are not seen
    Private("layers' calls", "mxnet.gluon.HybridBlock", ("_active",)),
)  # fmt: skip

private = Names("mxnet", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
