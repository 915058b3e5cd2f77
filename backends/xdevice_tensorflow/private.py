"""Lists the attributes of TensorFlow and Keras that this adapter replaces, and their private names that it uses."""

from __future__ import annotations

from typing import Final

from xdevice.contract.private import Patch, Private

from . import transfers

PATCHES: Final = (
    Patch("keras.Layer", ("__call__",), "`trace`: the layers that a model calls; Keras has no hooks", "block"),
    Patch("tensorflow.GradientTape", ("gradient",), "`trace`: the gradients of what lies between", "block"),
    Patch(
        "tensorflow.python.framework.ops.EagerTensor", (*transfers.READS, "_numpy_internal", "_copy"),
        "`transfers`: reads and moves", "block",
    ),
    Patch("numpy", ("asarray", "array"), "`transfers`: NumPy reads by the buffer protocol", "block"),
    Patch(
        "tensorflow.python.distribute.device_util", ("canonicalize",),
        "virtual GPUs: a tf.distribute strategy on a GPU that does not exist hangs in `fit`", "process",
    ),
    Patch(
        "tensorflow.python.autograph.core.config", ("CONVERSION_RULES",),
        "AutoGraph rewrites xdevice's own functions; the public `do_not_convert` is for one function each", "process",
    ),
)  # fmt: skip

PRIVATE: Final = (
    Private("tensorflow.python.autograph.core", ("config",), "see above"),
    Private("tensorflow.python.distribute", ("device_util",), "see above"),
    Private("tensorflow.python.framework", ("op_callbacks", "ops"), "seeing each operation of a thread"),
    Private("tensorflow.python.eager", ("context", "record"), "the scope, execution mode, callbacks, tapes"),
    Private("tensorflow.python.eager.context.Context", ("_initialized",), "whether the runtime has started"),
    Private("tensorflow.python.framework.ops.EagerTensor", ("_copy",), "copies that are where they are told"),
    Private("tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", ("_handle", "_unique_id"),
            "models move in place: the handle inside of a variable is swapped"),
    Private("tensorflow.python.ops.resource_variable_ops.ResourceVariable", ("_parent_trackable", "_name"),
            "the same: what a variable writes on its handle, with `_unique_id`"),
    Private("tensorflow.python.eager.polymorphic_function.polymorphic_function.Function",
            ("_clone",), "methods that hold the old model are made anew for its copy"),
    Private("tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction", ("_captured_inputs",),
            "traces go on with the variables that have moved"),
    Private("tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction", ("_call_flat",),
            "`compile`: a call whose signature has been checked"),
    Private("tensorflow.python.data.ops.structured_function", ("StructuredFunctionWrapper",),
            "a variable that a pipeline reads is not moved"),
    Private("tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper", ("_function",), "the same"),
    Private("tensorflow.python.util.tf_decorator.make_decorator", ("_tf_decorator",),
            "what it writes on a function: methods that hold the old model are refused"),
    Private("keras.src.utils.backend_utils", ("DynamicBackend",), "models are copied object by object"),
    Private("keras.src.utils.tracking", ("DotNotTrackScope",),
            "copied lists must not tell their layer of what they get"),
    Private("keras.Variable", ("_value",), "the tf.Variable in a Keras variable"),
    Private("keras.Layer", ("_layers", "_trainable_variables", "_non_trainable_variables", "_flatten_layers",
                            "_losses", "_loss_ids", "_tracker", "_build_shapes_dict"),
            "names, copies, what layers compute"),
    Private("keras.Operation", ("_inbound_nodes", "_outbound_nodes"), "the graph of a functional model"),
    Private("keras.Function", ("_nodes",), "the same"),
    Private("keras.src.ops.node.Node", ("_keras_history",), "the same: what it writes on its outputs"),
    Private("keras.optimizers.Optimizer", ("_trainable_variables_indices", "_var_key"), "Keras keeps `id`s there"),
    Private("keras.optimizers.Optimizer", ("_iterations", "_learning_rate", "_use_weight_decay"),
            "what an optimizer computes"),
    Private("keras.optimizers.Adam", ("_momentums", "_velocities", "_velocity_hats"), "which state is whose"),
    Private("keras.optimizers.RMSprop", ("_average_gradients",), "the same"),
    Private("keras.optimizers.Adagrad", ("_accumulators",), "the same"),
)  # fmt: skip
