"""Networks, gradients and other samples for the conformance suite (the tests in
`xdevice.testing` that every adapter must pass). They are written only with TensorFlow and
Keras."""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.base import devices
from xdevice.contract.loader import importing
from xdevice.testing.contract.samples import Samples, Work
from xdevice_tensorflow.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xdevice.base.devices import Device
    from xdevice.testing.contract.samples import Step

with importing():
    import keras

# reads the pointer in a DLPack capsule. This is not ctypes.pythonapi.PyCapsule_GetPointer
# itself, because argument types that are set on that function apply to every library in the
# process, and would break MXNet
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Subclassed(keras.Model):  # type: ignore[misc]
    """A subclassed model like the models in tutorials. It is not registered for saving, has no `get_config`, and
    contains a seed generator in its Dropout layer."""

    def __init__(self, units: int = 3) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(units), keras.layers.Dropout(0.5)]
        self.scale = tf.Variable(2.0, name="scale")

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = block(x)
        return x * self.scale


class Module(tf.Module):  # type: ignore[misc]
    """A plain TensorFlow module with a Keras layer inside."""

    def __init__(self) -> None:
        super().__init__(name="module")
        self.weight = tf.Variable(tf.ones((4, 3)), name="weight")
        self.inner = {"dense": keras.layers.Dense(2)}
        self.inner["dense"].build((None, 3))

    def __call__(self, x: Any) -> Any:
        return self.inner["dense"](x @ self.weight)


class TensorflowSamples(Samples):
    """The samples of TensorFlow and Keras. `xdevice.testing.contract.samples` describes each
    method."""

    def other_device(self) -> Device | None:
        """Returns a second device for the tests, or None if there is only one device."""
        if self.backend.virtual:
            return devices.of("gpu")
        cpus = tf.config.list_physical_devices("CPU")
        # TensorFlow accepts a configuration only before it has started
        if tf.config.get_logical_device_configuration(cpus[0]) is None:
            two = [tf.config.LogicalDeviceConfiguration()] * 2
            try:
                tf.config.set_logical_device_configuration(cpus[0], two)
            except RuntimeError:  # TensorFlow has started without it
                return None
        return devices.of("cpu", 1)

    def native_ones(self, *shape: int) -> Any:
        """Returns a tensor of ones with this shape, created with TensorFlow's own function."""
        return tf.ones(shape)

    def address(self, x: Any) -> int | None:
        """Returns the address at which the memory of a tensor begins, or None for a tensor of strings."""
        if x.dtype == tf.string:
            return None  # `to_dlpack` of a string tensor crashes the process
        capsule = tf.experimental.dlpack.to_dlpack(x)
        # the first field of a DLManagedTensor is the address of the tensor's memory
        return ctypes.c_void_p.from_address(_pointer(capsule, b"dltensor")).value

    def gradient(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Returns the gradient of `sum(function(x))` with respect to `x`."""
        with tf.GradientTape() as tape:
            # a tape watches variables automatically, but not tensors
            tape.watch(x)
            total = tf.reduce_sum(function(x))
        return tape.gradient(total, x)

    def draw(self) -> list[Any]:
        """Returns a few random numbers of TensorFlow's default generators."""
        # Keras uses a different generator from TensorFlow's
        return [
            tf.random.uniform([5]).numpy().tolist(),
            keras.random.uniform([5]).numpy().tolist(),
        ]

    def determinism(self) -> object:
        """Returns the current value of the setting that deterministic mode changes."""
        is_on = private.get("tensorflow.python.framework.config.is_op_determinism_enabled")
        return is_on() if is_on else NotImplemented

    def network(self, inputs: int, outputs: int) -> Any:
        """Returns a model on the CPU that consists of one linear layer, from `inputs` to
        `outputs` features."""
        # without the scope, TensorFlow would create the variables on the first GPU
        with tf.device("/CPU:0"):
            return keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(outputs)])

    def settings(self) -> Any:
        """Returns a model whose layers have settings, which the suite compares."""
        kl = keras.layers
        # the suite expects these numbers, and expects the last two layers in a separate block
        with tf.device("/CPU:0"):
            block = keras.Sequential(
                [keras.Input((3, 3, 4)), kl.Dropout(0.375), kl.MaxPooling2D((3, 2), (1, 2))]
            )
            return keras.Sequential(
                [keras.Input((3, 3, 3)), kl.Dense(4), kl.LeakyReLU(0.25), block]
            )

    def floats(self) -> Any:
        """Returns a tensor of floats in Keras's default dtype."""
        return keras.ops.ones(2)

    def models(self) -> Mapping[str, Callable[[], Any]]:
        """Returns a dict that maps the name of each kind of model to a function that creates
        such a model."""
        kinds: dict[str, Callable[[], Any]] = {
            "tf.Variable": lambda: tf.Variable(tf.ones((2, 3)), name="weight"),
            "tf.Module": Module,
            "tf.random.Generator": lambda: tf.random.Generator.from_seed(1),
            "keras.Variable": lambda: keras.Variable([1.0, 2.0]),
            "keras.Layer": lambda: _built(keras.layers.LSTM(3), (None, 5, 4)),
            "sequential": _sequential,
            "functional": _functional,
            "subclassed": _subclassed,
            "compiled": _compiled,
        }
        return {name: _on_the_cpu(make) for name, make in kinds.items()}

    def variables(self, model: Any) -> Mapping[str, Any]:
        """Returns a dict that maps the names of a model's variables to their values, which are
        tensors."""
        return {
            f"{number}.{_label(variable)}": _read(variable)
            for number, variable in enumerate(_variables(model))
        }

    def tied(self) -> tuple[Any, Callable[[Any], bool]]:
        """Returns a model with two layers that share one weight. Also returns a function that returns whether the two
        layers of a given model, such as a copy, share their weight."""
        with tf.device("/CPU:0"):
            dense = keras.layers.Dense(3)
            parts = [keras.Sequential([keras.Input((3,)), dense]) for _ in range(2)]
            both = keras.Sequential([keras.Input((3,)), *parts])

        def is_tied(net: Any) -> bool:
            # `net` is `both` or a copy of it: the first layer of each of its two parts is `dense`
            first, second = (part.layers[0].kernel.value for part in net.layers)
            return first is second

        return both, is_tied

    def spread(self, device: Device) -> Any:
        """Returns a model with one part on cpu:0 and another part on `device`."""
        with tf.device("/CPU:0"):
            first = _built(keras.layers.Dense(2), (None, 2))
        with tf.device(self.backend.to_native(device)):
            second = _built(keras.layers.Dense(2), (None, 2))
        return keras.Sequential([keras.Input((2,)), first, second])

    def unbuilt(self) -> Any:
        """Returns a model that has no variables yet."""
        return keras.Sequential([keras.layers.Dense(2)])

    def trainable(self) -> tuple[Any, Step]:
        """Returns a model and a function `step(x, y)`. The function trains the model for one step on the batch `x` with
        the targets `y`, and returns the loss."""
        with tf.device("/CPU:0"):
            net = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")]
            )
            net.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")

        def step(x: Any, y: Any) -> float:
            # reset, because Keras returns the mean of all losses since the last reset
            net.reset_metrics()
            return float(net.train_on_batch(x, y))

        return net, step

    def failing_work(self) -> Any:
        """Starts work on the CPU that will fail, and returns the result of this work."""
        _go_asynchronous()
        with tf.device("/CPU:0"):
            return _fail(tf.ones(4))

    def settle(self) -> None:
        """Enables synchronous execution again, which other samples have disabled."""
        config = tf.config.experimental
        # otherwise, an error of asynchronous work would be raised in the next check
        if not config.get_synchronous_execution():
            with suppress(tf.errors.OpError):
                tf.test.experimental.sync_devices()
            tf.experimental.async_clear_error()
            config.set_synchronous_execution(True)

    def long_work(self, device: Device) -> Work:
        """Starts long-running work on a device. Returns the result of the work, and a function
        that returns whether the work is done."""
        _go_asynchronous()
        done = threading.Event()

        @tf.function  # type: ignore[untyped-decorator]
        def work(x: Any) -> Any:
            return tf.numpy_function(lambda value: _slow(value, done), [x], tf.float32)

        with tf.device(self.backend.to_native(device)):
            x = tf.ones(4)
            # traced in advance, because tracing waits
            work.get_concrete_function(x)
            return Work(work(x), done.is_set)


def _slow(value: Any, done: threading.Event) -> Any:
    """Sets `done` after 0.3 s, and returns `value`. TensorFlow calls this function in another
    thread."""
    time.sleep(0.3)
    done.set()
    return value


@tf.function  # type: ignore[untyped-decorator]
def _fail(x: Any) -> Any:
    """Returns `x + 1`. The computation fails if the sum of `x` is not negative."""
    tf.debugging.Assert(tf.reduce_sum(x) < 0, [x])
    return x + 1


def _go_asynchronous() -> None:
    """Makes TensorFlow's operations return before their results are computed, until `settle` is called."""
    tf.config.experimental.set_synchronous_execution(False)


def _on_the_cpu(make: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that calls `make` and creates its variables on the CPU."""

    def make_there() -> Any:
        """Returns `make()`, called with the CPU as the default device."""
        with tf.device("/CPU:0"):
            return make()

    return make_there


def _label(variable: Any) -> str:
    """Returns the path of a Keras variable, or the name of a `tf.Variable`, which has no
    path."""
    label: str = getattr(variable, "path", variable.name)
    return label


def _read(variable: Any) -> Any:
    """Returns the value of a TensorFlow or Keras variable, on the variable's device."""
    # `value` of a Keras variable is the `tf.Variable` in it; a generator's state is already a
    # `tf.Variable`
    plain = (
        variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
    )
    with tf.device(plain.device):
        # without the scope, TensorFlow would copy the value to the default device
        return plain.read_value()


def _built(layer: Any, shape: tuple[int | None, ...]) -> Any:
    """Builds a layer, that is, creates its variables for inputs of this shape, and returns the
    layer."""
    layer.build(shape)
    return layer


def _sequential() -> Any:
    """Returns a sequential model with a layer that has running statistics, and a layer that
    draws random numbers."""
    layers = [
        keras.layers.Dense(3),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
    ]
    return keras.Sequential([keras.Input((4,)), *layers])


def _functional() -> Any:
    """Returns a functional model that calls one of its layers twice, and contains an addition
    that is not a layer."""
    x = keras.Input((4,))
    shared = keras.layers.Dense(4)
    return keras.Model(x, keras.layers.Dense(1)(shared(shared(x)) + x))


def _subclassed() -> Any:
    """Returns a `Subclassed` model that has been called once, so that it has its variables."""
    net = Subclassed()
    net(tf.ones((1, 4)))
    return net


def _compiled() -> Any:
    """Returns a compiled model after one training step, so that its optimizer and metrics have
    their variables."""
    net = _functional()
    # eagerly, because tracing and compiling would take half a second
    net.compile(optimizer="adam", loss="mse", metrics=["mae"], run_eagerly=True)
    net.train_on_batch(tf.ones((2, 4)), tf.ones((2, 1)))
    return net


def _variables(model: Any) -> list[Any]:
    """Returns the variables of a model, which is of one of the kinds in `models`. A copy of the model has its variables
    in the same order."""
    if isinstance(model, tf.Variable | keras.Variable):
        return [model]
    if isinstance(model, tf.random.Generator):
        return [model.state]
    if isinstance(model, Module):
        return [model.weight, *model.inner["dense"].variables]
    variables = list(model.variables)
    if isinstance(model, Subclassed):
        # Keras does not include a plain `tf.Variable` in the variables of a model
        variables.append(model.scale)
    if getattr(model, "optimizer", None) is not None:
        variables += [*model.metrics_variables, *model.optimizer.variables]
    return variables
