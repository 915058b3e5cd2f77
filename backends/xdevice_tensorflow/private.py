"""The private names of TensorFlow and Keras that this adapter reads, and the attributes that it replaces. Each entry
states the capability that needs the name. The adapter's other modules read these names as
`private["tensorflow.python...."]`.

`tf.__internal__` is not listed, because TensorFlow exports it for Keras, which is released
separately.
"""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Names, Private

TESTED: Final = "2.21.0"

READS: Final = (
    "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__",
    "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip
"""Methods of a tensor with which the host reads its values."""

IN_BLOCKS: Final = (
    # shows which layers a model calls, because Keras has no hooks on calls
    Private("layers' calls", "keras.Layer", ("__call__",)),
    # also computes the gradients of the layers' outputs, in the same call of the tape as the
    # gradients of the variables
    Private("layers' calls", "tensorflow.GradientTape", ("gradient",)),
    # reports the methods of a tensor with which the host reads its values
    Private("transfers", "tensorflow.__internal__.EagerTensor", (*READS, "_numpy_internal")),
    # copies to the named device. `xdevice.transfers` replaces this method to record moves.
    # Without it, `tf.identity` makes the copies, but leaves int32 and strings on the host; no
    # upstream issue
    Private("tensors", "tensorflow.__internal__.EagerTensor", ("_copy",)),
    # reports reads by NumPy, which uses the buffer protocol, and none of the tensor's methods
    Private("transfers", "numpy", ("asarray", "array")),
)  # fmt: skip
"""Attributes that are replaced until the last block that needs them ends."""

FOR_GOOD: Final = (
    # raises an error for GPUs that do not exist, because a tf.distribute strategy on such a GPU hangs in `fit`; no
    # upstream issue
    Private("virtual GPUs", "tensorflow.python.distribute.device_util", ("canonicalize",)),
    # rejects operations with a dtype that a virtual GPU lacks. TensorFlow's callbacks cannot do that: they are
    # called only for the operations of one thread, and only after an operation has run
    Private("virtual GPUs", "tensorflow.python.pywrap_tfe", ("TFE_Py_FastPathExecute", "TFE_Py_Execute")),
    # rejects constants of a dtype that a virtual GPU lacks
    Private("virtual GPUs", "tensorflow.python.framework.constant_op", ("convert_to_eager_tensor",)),
    # rejects copies of a dtype that a virtual GPU lacks
    Private("virtual GPUs", "tensorflow.__internal__.EagerTensor", ("_copy",)),
    # prevents AutoGraph from rewriting xdevice's own functions; the public `do_not_convert` prevents it for only
    # one function at a time. Without it, a trace takes ten times as long, and AutoGraph warns
    Private("compile", "tensorflow.python.autograph.core.config", ("CONVERSION_RULES",)),
)  # fmt: skip
"""Attributes that are replaced until the process ends."""

PRIVATE: Final = (
    # disables deterministic mode, and reports whether it is enabled. The public `enable_op_determinism` cannot be
    # undone; no upstream issue known
    Private(
        "deterministic", "tensorflow.python.framework.config", ("disable_op_determinism", "is_op_determinism_enabled"),
    ),
    # the class of the rules in `CONVERSION_RULES` that prevent AutoGraph from rewriting a
    # module
    Private("compile", "tensorflow.python.autograph.core.config", ("DoNotConvert",)),
    # calls a compiled function whose arguments xdevice has already checked. Without it, a call
    # takes 150 us longer
    Private(
        "compile", "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction", ("_call_flat",),
    ),
    # the object with the state of TensorFlow's runtime, whose methods and attributes are listed below. No public
    # function can report whether the runtime has started without starting it or counting the GPUs; no upstream
    # issue. Without it, TensorFlow is assumed to have started
    Private("waiting, transfers, blocking and several processes", "tensorflow.python.eager.context", ("context",)),
    # whether the runtime has started. Without it, TensorFlow is assumed to have started
    Private("waiting", "tensorflow.python.eager.context.Context", ("_initialized",)),
    # reports each operation of a thread with its values, which `tf.debugging` only writes to
    # files. Blocking mode needs it only on GPUs
    Private(
        "blocking, operations and transfers", "tensorflow.python.framework.op_callbacks",
        ("add_op_callback", "remove_op_callback"),
    ),
    # removes the callback of one thread while other threads still have callbacks
    Private("transfers and blocking", "tensorflow.python.eager.context.Context", ("remove_op_callback",)),
    # make collectives possible without a strategy. MultiWorkerMirroredStrategy is built on
    # them, but ends processes whose peers have died
    Private(
        "several processes", "tensorflow.python.eager.context.Context",
        ("configure_collective_ops", "enable_collective_ops"),
    ),
    # replaced in each variable when a model is moved in place; no upstream issue
    Private("models", "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", ("_handle",)),
    # the name under which Keras's optimizers store the slots of a variable. In a copied
    # optimizer, it must be the name of the copied variable
    Private("models", "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", ("_unique_id",)),
    # shows whether a tf.data pipeline reads a variable, because such a variable cannot be moved
    Private("models", "tensorflow.python.data.ops.structured_function", ("StructuredFunctionWrapper",)),
    # creates a `tf.function` with the same settings around a method of the copied model
    Private("models", "tensorflow.__internal__.function.Function", ("_clone",)),
    # prevents Keras's lists from registering their items with a layer while a model is copied
    Private("models", "keras.src.utils.tracking", ("DotNotTrackScope",)),
    # the `id`s of a layer's objects; a copied layer needs the `id`s of its own objects
    Private("models", "keras.src.utils.tracking.Tracker", ("stored_ids",)),
    # the layers and variables directly in a layer, in order; the public lists also contain
    # those of inner layers
    Private("layers", "keras.Layer", ("_layers", "_trainable_variables", "_non_trainable_variables")),
    # the calls of a layer in the graph of a functional model
    Private("layers", "keras.Operation", ("_inbound_nodes",)),
    # the layer, and the call of that layer, that produced a tensor in the graph of a functional model
    Private("layers", "keras.src.ops.node.Node", ("_keras_history",)),
    # an optimizer's learning rate or schedule, the parameters that it updates, and the test of
    # whether a parameter has weight decay
    Private(
        "optimizers", "keras.optimizers.Optimizer", ("_learning_rate", "_trainable_variables", "_use_weight_decay"),
    ),
)  # fmt: skip

private = Names("tensorflow", TESTED, PRIVATE, IN_BLOCKS, FOR_GOOD)
