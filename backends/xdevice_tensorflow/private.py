"""The private names of TensorFlow and Keras that this adapter uses, and their attributes that it replaces, each by the
capability that needs it. Its other modules read them as `private["tensorflow.python...."]`.

`tf.__internal__` is not among them: TensorFlow exports it for Keras, which is released separately.
"""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "2.21.0"

READS: Final = (
    "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__",
    "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip
"""Methods of a tensor through which the host reads it."""

IN_BLOCKS: Final = (
    # the layers that a model calls; Keras has no hooks
    Private("layers' calls", "keras.Layer", ("__call__",)),
    # the gradients of what lies between
    Private("layers' calls", "tensorflow.GradientTape", ("gradient",)),
    # reads
    Private("transfers", "tensorflow.__internal__.EagerTensor", (*READS, "_numpy_internal")),
    # copies on the named device; replaced by `xdevice.transfers`, which records moves by it. Without it `tf.identity`
    # copies, except for int32 and strings, which it leaves on the host; no upstream issue
    Private("tensors", "tensorflow.__internal__.EagerTensor", ("_copy",)),
    # NumPy reads by the buffer protocol
    Private("transfers", "numpy", ("asarray", "array")),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # a tf.distribute strategy on a GPU that does not exist hangs in `fit`; no upstream issue
    Private("virtual GPUs", "tensorflow.python.distribute.device_util", ("canonicalize",)),
    # a virtual GPU may lack a dtype; callbacks see the operations of one thread, and see them too late
    Private("virtual GPUs", "tensorflow.python.pywrap_tfe", ("TFE_Py_FastPathExecute", "TFE_Py_Execute")),
    # the same, for constants
    Private("virtual GPUs", "tensorflow.python.framework.constant_op", ("convert_to_eager_tensor",)),
    # the same, for copies
    Private("virtual GPUs", "tensorflow.__internal__.EagerTensor", ("_copy",)),
    # AutoGraph rewrites xdevice's own functions; the public `do_not_convert` is for one function each. Without it a
    # trace takes ten times as long, and AutoGraph warns
    Private("compile", "tensorflow.python.autograph.core.config", ("CONVERSION_RULES",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # each operation with its values; `tf.debugging` keeps them in files alone
    Private("operations", "tensorflow.python.framework.op_callbacks", ("add_op_callback", "remove_op_callback")),
    # the public `enable_op_determinism` cannot be undone; no upstream issue known
    Private(
        "deterministic", "tensorflow.python.framework.config", ("disable_op_determinism", "is_op_determinism_enabled"),
    ),
    # see above
    Private("compile", "tensorflow.python.autograph.core.config", ("DoNotConvert",)),
    # a call whose signature has been checked. Without it a call takes 150 us more
    Private(
        "compile", "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction", ("_call_flat",),
    ),
    # whether the runtime has started. Without it TensorFlow counts as started. Also the owner of other names here:
    # nothing public says it without starting the runtime or counting the GPUs; no upstream issue
    Private("waiting, transfers, blocking and several processes", "tensorflow.python.eager.context", ("context",)),
    # the same
    Private("waiting", "tensorflow.python.eager.context.Context", ("_initialized",)),
    # seeing each operation of a thread; blocking needs it on GPUs only
    Private(
        "transfers and blocking", "tensorflow.python.framework.op_callbacks", ("add_op_callback", "remove_op_callback"),
    ),
    # the same, while other threads are seen
    Private("transfers and blocking", "tensorflow.python.eager.context.Context", ("remove_op_callback",)),
    # collectives without a strategy: MultiWorkerMirroredStrategy is built on them, and ends processes whose peers have
    # died
    Private(
        "several processes", "tensorflow.python.eager.context.Context",
        ("configure_collective_ops", "enable_collective_ops"),
    ),
    # models move in place: the handle inside a variable is swapped; no upstream issue
    Private("models", "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", ("_handle",)),
    # by it Keras's optimizers look variables up, those of a copy too
    Private("models", "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", ("_unique_id",)),
    # a variable that a pipeline reads is not moved
    Private("models", "tensorflow.python.data.ops.structured_function", ("StructuredFunctionWrapper",)),
    # methods that hold the old model are made anew for its copy
    Private("models", "tensorflow.__internal__.function.Function", ("_clone",)),
    # copied lists must not tell their layer of what they get
    Private("models", "keras.src.utils.tracking", ("DotNotTrackScope",)),
    # Keras keeps `id`s there
    Private("models", "keras.src.utils.tracking.Tracker", ("stored_ids",)),
    # what a layer itself has, in order: names, and what layers compute
    Private("layers", "keras.Layer", ("_layers", "_trainable_variables", "_non_trainable_variables")),
    # the graph of a functional model
    Private("layers", "keras.Operation", ("_inbound_nodes",)),
    # the same: what it writes on its outputs
    Private("layers", "keras.src.ops.node.Node", ("_keras_history",)),
    # what an optimizer computes, and for which parameters
    Private(
        "optimizers", "keras.optimizers.Optimizer", ("_learning_rate", "_trainable_variables", "_use_weight_decay"),
    ),
)  # fmt: skip

private = Names("tensorflow", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
