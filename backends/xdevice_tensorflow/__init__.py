"""The adapter for TensorFlow, and for Keras 3 if it runs on TensorFlow: xdevice's hooks (the methods that its core
calls), written with TensorFlow's functions.

The rules that it must keep, and the facts behind them:

- The device of a tensor is where its memory is, as `backing_device` says: an int32 tensor "on" GPU:0 may have its
  memory on the CPU (tensorflow/tensorflow#46833). `_copy` puts every dtype on the device that it is given; a
  `tf.device` scope does not (tensorflow/tensorflow#34071).
- Between two CPUs `_copy` shares the memory, and on one device `tf.identity` does (measured on 2.21). So `DeepCopy`
  makes a copy there, which has no gradient of its own.
- `tf.device(...)` objects are opaque and stateful, so the native devices are strings. Soft placement silently turns
  /GPU:7 into GPU:0, so nothing is placed on a device that the core has not checked with `count`.
- A virtual GPU is a logical CPU: gpu:0 is "/CPU:1". TensorFlow's texts for it become spellings of gpu:0 in xdevice.
- Counting devices does not start TensorFlow's runtime: before the start, the list of physical devices and their
  configuration give the same numbers.
- After an asynchronous operation has failed, all later ones fail too, until `async_clear_error` is called.
- The device of a Keras model is that of its weights. `fit` creates metrics and the optimizer's slots on the default
  device, because it opens no scope. They move with the model.
- A copy is made by `Snapshot` only inside a graph: XLA has no `DeepCopy`, and an eager `Snapshot` may share memory.
- Importing TensorFlow also imports Keras, and JAX if that is installed (for tf.lite).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.base.dtypes import DTYPES, SHORT_FLOATS
from xdevice.contract import VIRTUAL_GPU, Backend, DeviceInfo, Kind, Memory
from xdevice.contract.loader import import_apart, importing
from xdevice.errors import DeviceError, XDeviceError

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with importing():
    import_apart("triton._C.libtriton", beside="torch")
    import keras
    import tensorflow as tf

    from . import accelerators, models, staging
    from .blocking import TensorflowBlocking
    from .conversion import COMPOSITES, TensorflowConversion
    from .models import TensorflowModels
    from .placing import moved
    from .private import private
    from .replicas import TensorflowReplicas
    from .runtime import HERE, address, is_started

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    import numpy as np

    from xdevice.base.devices import Device


_CONFIG = (tf.config.LogicalDevice, tf.config.PhysicalDevice)
_AUTOGRAPH, _RULES = private.place("tensorflow.python.autograph.core.config.CONVERSION_RULES")
_Rule = private.get("tensorflow.python.autograph.core.config.DoNotConvert")


class TensorflowBackend(
    TensorflowConversion, TensorflowModels, TensorflowReplicas, TensorflowBlocking, Backend
):
    name = "tensorflow"
    private_names = private
    modules = ("tensorflow", "keras")
    minimum = (2, 16)
    dtypes = frozenset(DTYPES)
    short_floats = frozenset(
        name for name in SHORT_FLOATS if hasattr(tf.dtypes.experimental, name)
    )
    guests = ("keras",)
    computes_on = "scope"

    def __init__(self) -> None:
        self._places: dict[str, Device] = {}
        self._natives: dict[Device, str] = {}
        self._counts: dict[str, int] = {}
        self._saw_gpus = False
        _give_copies_a_gradient()
        _keep_autograph_out()

    # the framework

    @property
    def framework(self) -> ModuleType:
        return tf

    def classify(self, cls: type) -> Kind | None:
        if hasattr(cls, "backing_device") or issubclass(cls, COMPOSITES):
            return "tensor"
        if issubclass(cls, tf.Tensor | keras.KerasTensor):
            return "symbol"
        return "model" if models.is_model(cls) else None

    # devices

    def count(self, kind: str) -> int:
        count = self._counts.get(kind)
        if count is not None:
            return count
        name = accelerators.kind() if kind == "gpu" else kind.upper()
        if is_started():
            self._counts[kind] = sum(map(_is_here, tf.config.list_logical_devices(name)))
            return self._counts[kind]
        physical = tf.config.get_visible_devices(name)
        self._saw_gpus = self._saw_gpus or (kind == "gpu" and bool(physical))
        if not physical and not tf.config.list_physical_devices(name):
            self._counts[kind] = 0
        return sum(
            len(tf.config.get_logical_device_configuration(one) or (one,)) for one in physical
        )

    def describe(self, device: Device) -> DeviceInfo:
        if device.kind != "gpu":
            return DeviceInfo(device.kind, None)
        if self.virtual:
            return VIRTUAL_GPU
        owners = [
            one
            for one in tf.config.get_visible_devices(accelerators.kind())
            for _ in tf.config.get_logical_device_configuration(one) or (one,)
        ]
        details = tf.config.experimental.get_device_details(owners[device.index])
        return DeviceInfo(details.get("device_name", accelerators.kind()), None)

    def hardware(self) -> frozenset[str]:
        return accelerators.words()

    def to_native(self, device: Device) -> str:
        native = self._natives.get(device)
        if native is None:
            is_virtual = self.virtual and device.kind == "gpu"
            kind, index = (
                ("cpu", device.index + 1) if is_virtual else (device.kind, device.index)
            )
            name = accelerators.kind() if kind == "gpu" else kind.upper()
            native = self._natives[device] = f"/{name}:{index}"
        return native

    def describe_missing(self, device: Device) -> str:
        return f"/{device.kind.upper()}:{device.index}"

    def from_native(self, native: Any) -> Device | None:
        if isinstance(native, tf.DeviceSpec):
            return devices.parse(native.to_string()) if native.device_type else None
        return devices.parse(native.name) if isinstance(native, _CONFIG) else None

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        return tf.device(self.to_native(device))

    # tensors

    def device_of(self, x: Any) -> Device:
        try:
            return self._places[x.backing_device]
        except KeyError:
            return self._place(x.backing_device)
        except AttributeError:
            if isinstance(x, tf.Variable):
                return self._place(x.device)
            return self._device_of_composite(x)

    def move(self, x: Any, device: Device) -> Any:
        if hasattr(x, "backing_device") and tf.executing_eagerly():
            if device.kind == "gpu" and x.dtype == tf.string:
                raise self.unsupported(
                    "strings on a GPU", "leave them on cpu:0, and move numbers made from them"
                )
            staged = staging.moved(x, device, self)
            if staged is not None:
                return staged
            # the name contains no job, because in a cluster this process has another job
            there = moved(x, self.to_native(device)[1:])
            return self._own(there, device) if self.virtual else there
        if isinstance(x, COMPOSITES):
            return tf.nest.map_structure(
                lambda part: self.move(part, device), x, expand_composites=True
            )
        _refuse_keras_tensor(x, self)
        with self.scope(device):
            return tf.identity(x)

    def copy(self, x: Any, device: Device) -> Any:
        if isinstance(x, COMPOSITES):
            return tf.nest.map_structure(
                lambda part: self.copy(part, device), x, expand_composites=True
            )
        _refuse_keras_tensor(x, self)
        if hasattr(x, "backing_device") and (place := self.device_of(x)) is not device:
            x = self.move(x, device)
            if self.virtual or place.kind != "cpu" or device.kind != "cpu":
                return x
        return self._own(x, device)

    def synchronize(self, device: Device | None) -> None:
        if not is_started():
            return  # nothing has run, and sync_devices would start the GPUs
        try:
            tf.test.experimental.sync_devices()
            accelerators.wait_for_others()
        except tf.errors.OpError:
            tf.experimental.async_clear_error()
            raise

    def wait(self, x: Any) -> None:
        self.synchronize(None)

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        staged = staging.put(array, device, self)
        if staged is not None:
            return staged
        with tf.device("/CPU:0"):
            x = tf.constant(array)
        return self._settled(x, device)

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        import numpy

        if isinstance(x, COMPOSITES):
            raise self.unsupported(
                f"reading an object of type {type(x).__name__} as a NumPy array",
                "make it dense: tf.sparse.to_dense(x), x.to_tensor() or tf.convert_to_tensor(x)",
            )
        if x.dtype in (tf.variant, tf.resource):
            raise self.unsupported(
                f"reading {x.dtype.name} tensors with NumPy", "read the object they refer to"
            )
        if x.shape.rank == 0:
            # x.numpy() gives a scalar, and NumPy cannot read x itself if it is bfloat16 or a string
            return numpy.array(x.numpy(), dtype=x.dtype.as_numpy_dtype)
        if not staging.is_read(x, self):
            return numpy.asarray(x)
        staged = staging.read(x, self)
        # TensorFlow would keep the array that `asarray` gives
        return x.numpy() if staged is None else staged

    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        with self.scope(device):
            # not tf.cast, which converts Python's numbers to float32 or int32 first (tensorflow/tensorflow#64548)
            x = tf.fill(shape, tf.constant(bool(value) if dtype == "bool" else value, dtype))
        return self._settled(x, device)

    def tracing(self) -> str | None:
        return None if tf.executing_eagerly() else "tf.function"

    # several devices

    def is_dense(self, x: Any) -> bool:
        return not isinstance(x, COMPOSITES)

    def is_host_bound(self, x: Any) -> bool:
        return bool(x.dtype == tf.string)

    # memory

    def memory(self, device: Device) -> Memory:
        try:
            usage = tf.config.experimental.get_memory_info(self.to_native(device)[1:])
        except ValueError:
            # on a CPU, memory is counted only by the allocators of oneDNN and BFC
            return Memory()
        return Memory(None, None, usage["current"], usage["peak"])

    def reset_peak(self, device: Device) -> None:
        try:
            tf.config.experimental.reset_memory_stats(self.to_native(device)[1:])
        except ValueError:
            raise self.unsupported(
                f"counting the memory of {device} with the allocator that TensorFlow uses without oneDNN",
                "set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is imported",
            ) from None

    # floats of a parity run

    def default_to_float64(self) -> None:
        # TensorFlow itself has no default: tf.Variable(1.0) stays float32
        tf.keras.backend.set_floatx("float64")

    # the process

    def after_fork(self) -> str | None:
        # counting GPUs initialises CUDA, and a child cannot do that again
        if not is_started() and not self._saw_gpus:
            return None
        return (
            "tensorflow was used, or its GPUs were counted, before this process was forked, so it hangs or fails in "
            "the child; start the child with multiprocessing.get_context('spawn')"
        )

    def _place(self, name: str) -> Device:
        device = self._places.get(name)
        if device is None:
            here = name
            if is_started():  # in a cluster this process has a different job than the one in the names of virtual GPUs
                here = name.replace(f"{address()}/device:", HERE, 1)
            try:
                device = devices.parse(here)
                is_other = (
                    device.kind == "gpu"
                    and not self.virtual
                    and f":{accelerators.kind()}:" not in here
                )
                if is_other or device.kind not in self.kinds:
                    raise DeviceError(f"gpu:i is {accelerators.kind()} here")
            except DeviceError as error:
                raise self.unsupported(
                    f"an xdevice.Device for {name!r}",
                    "move only tensors on this process's own CPUs and GPUs",
                ) from error
            device = self._places[name] = devices.plain(device)
        return device

    def _device_of_composite(self, x: Any) -> Device:
        parts = tf.nest.flatten(x, expand_composites=True)
        if not all(hasattr(part, "backing_device") for part in parts):
            raise self.unsupported(
                f"reporting the device of a symbolic object of type {type(x).__name__}",
                "ask for it outside the traced function; inside, move the components: x.values or x.flat_values",
            )
        places = {self.device_of(part) for part in parts}
        if len(places) > 1:
            raise self.unsupported(
                f"reporting one device for a tensor ({type(x).__name__}) on {', '.join(map(str, places))}",
                "bring its components together with xdevice.copy_to(x, device)",
            )
        return places.pop()

    def _own(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` in new storage. `x` is on `device` already, or is a traced tensor, which has no
        device."""
        with self.scope(device):
            if x.dtype.name in self.short_floats and (self.virtual or device.kind == "cpu"):
                return tf.constant(self.to_numpy(x))  # DeepCopy has no kernel for these dtypes
            try:
                if tf.executing_eagerly() or x.dtype == tf.string:
                    copied = tf.raw_ops.DeepCopy(x=x)
                else:
                    copied = tf.raw_ops.Snapshot(input=x)
            except tf.errors.InvalidArgumentError as error:
                raise self.unsupported(
                    f"copying {x.dtype.name} tensors", "copy their numbers"
                ) from error
        # where the GPU has no kernel for the dtype, TensorFlow has made the copy on the CPU
        return self._settled(copied, device)

    def _settled(self, x: Any, device: Device) -> Any:
        """Returns `x` on `device`. `x` was made in the scope of `device`, and is moved if TensorFlow has put it on the
        host nevertheless, as it does with int32 and strings."""
        if not hasattr(x, "backing_device") or self.device_of(x) is device:
            return x
        return self.move(x, device)

    def _refuse_models_here(self) -> None:
        if not tf.executing_eagerly():
            raise self.unsupported(
                "moving models inside tf.function", "move the model before calling the function"
            )
        if tf.distribute.has_strategy():
            raise self.unsupported(
                "moving models inside a tf.distribute strategy", "let the strategy place them"
            )


def _is_here(device: tf.config.LogicalDevice) -> bool:
    """Whether a device belongs to this process: in a cluster TensorFlow lists the devices of all processes."""
    is_of_cluster = device.name.startswith("/job:")
    return not is_of_cluster or device.name.startswith(address() + "/")


def _give_copies_a_gradient() -> None:
    """Registers a gradient for TensorFlow's operations that copy tensors. `tf.custom_gradient` would do the same, but
    takes 100 us a call, ten times as long as the copy."""
    for op in ("DeepCopy", "Snapshot"):
        with suppress(KeyError):  # a later TensorFlow may have registered a gradient
            tf.RegisterGradient(op)(lambda op, gradient: gradient)


def _keep_autograph_out() -> None:
    """Keeps AutoGraph from rewriting xdevice's code in a `tf.function`: AutoGraph warns about code that it cannot
    rewrite, and wraps xdevice's errors in its own."""
    if _Rule is not None and private.has(
        "tensorflow.python.autograph.core.config.CONVERSION_RULES"
    ):
        setattr(
            _AUTOGRAPH,
            _RULES,
            (*map(_Rule, ("xdevice", __name__)), *getattr(_AUTOGRAPH, _RULES)),
        )
    # AutoGraph passes on errors with this attribute as they are
    XDeviceError.ag_pass_through = True  # type: ignore[attr-defined]


def _refuse_keras_tensor(x: Any, backend: Backend) -> None:
    if isinstance(x, keras.KerasTensor):
        raise backend.unsupported(
            "moving or reading a KerasTensor, which has no values",
            "build the keras.Model, and move or read the model",
        )
