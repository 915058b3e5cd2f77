"""The adapter for TensorFlow, and for Keras 3 if it runs on TensorFlow: xdevice's hooks (the
methods that its core calls), written with TensorFlow's functions.

The rules that it must keep, and the facts behind them:

- The device of a tensor is where its memory is, as `backing_device` says: an int32 tensor "on"
  GPU:0 may have its memory on the CPU (tensorflow/tensorflow#46833). `_copy` puts every dtype
  on the device that it is given; a `tf.device` scope does not (tensorflow/tensorflow#34071).
- Between two CPUs `_copy` shares the memory, and on one device `tf.identity` does (measured on
  2.21). So copies are made there by `DeepCopy`, for which TensorFlow registers no gradient.
- `tf.device(...)` objects are opaque and stateful, so the native devices are strings. Soft
  placement silently turns /GPU:7 into GPU:0, so nothing is placed on a device that the core has
  not checked with `count`.
- A virtual GPU is a logical CPU: gpu:0 is "/CPU:1". TensorFlow's names for this CPU become
  spellings of gpu:0 in xdevice.
- Counting devices does not start TensorFlow's runtime: before the start, the list of physical
  devices and their configuration give the same numbers.
- After an asynchronous operation has failed, all later ones fail too, until `async_clear_error`
  is called.
- The device of a Keras model is that of its weights. `fit` creates metrics and the optimizer's
  slots on the default device, because it opens no scope. Both move with the model.
- A copy is made by `Snapshot` only inside a graph: XLA has no `DeepCopy`, and an eager
  `Snapshot` may share memory.
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

# both must be set before TensorFlow is imported. Without the first it takes nearly all memory
# of each GPU at once, and other frameworks in the process get none; without the second it logs
# lines about its build
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with importing():
    # PyTorch may import triton later, which would crash next to some versions of TensorFlow;
    # `import_apart` says why
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
"""The types of the objects with which `tf.config` lists devices."""
# AutoGraph's rules for which modules it rewrites: the module that has them, and their name
# there
_AUTOGRAPH, _RULES = private.place("tensorflow.python.autograph.core.config.CONVERSION_RULES")
# None in a TensorFlow without this class of rules
_Rule = private.get("tensorflow.python.autograph.core.config.DoNotConvert")


class TensorflowBackend(
    TensorflowConversion, TensorflowModels, TensorflowReplicas, TensorflowBlocking, Backend
):
    """TensorFlow as a backend. `xdevice.contract` says more about each hook."""

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
        # TensorFlow's long name of a device, such as "/job:localhost/.../device:GPU:0", to its
        # `Device`
        self._places: dict[str, Device] = {}
        self._natives: dict[Device, str] = {}
        # the number of devices of a kind, once it can no longer change
        self._counts: dict[str, int] = {}
        # whether GPUs were listed before TensorFlow started: `after_fork` depends on it
        self._saw_gpus = False
        _give_copies_a_gradient()
        _keep_autograph_out()

    # the framework

    @property
    def framework(self) -> ModuleType:
        """The module `tensorflow`."""
        return tf

    def classify(self, cls: type) -> Kind | None:
        """Returns "tensor" if objects of the class are eager tensors or composite ones (sparse, ragged), "symbol" if
        they are tensors in a graph, "model" if they own variables, and None otherwise."""
        # only eager tensors have a backing device
        if hasattr(cls, "backing_device") or issubclass(cls, COMPOSITES):
            return "tensor"
        if issubclass(cls, tf.Tensor | keras.KerasTensor):
            return "symbol"
        return "model" if models.is_model(cls) else None

    # devices

    def count(self, kind: str) -> int:
        """Returns how many devices of a kind there are, without starting TensorFlow."""
        count = self._counts.get(kind)
        if count is not None:
            return count
        name = accelerators.kind() if kind == "gpu" else kind.upper()
        if is_started():
            self._counts[kind] = sum(map(_is_here, tf.config.list_logical_devices(name)))
            return self._counts[kind]
        # the program may still hide physical devices, or divide each into several logical ones,
        # so the number is counted again at each call; only "none at all" is final
        physical = tf.config.get_visible_devices(name)
        self._saw_gpus = self._saw_gpus or (kind == "gpu" and bool(physical))
        if not physical and not tf.config.list_physical_devices(name):
            self._counts[kind] = 0
        return sum(
            len(tf.config.get_logical_device_configuration(device) or (device,))
            for device in physical
        )

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name of a device. The memory is None, because TensorFlow does not report
        it."""
        if device.kind != "gpu":
            return DeviceInfo(device.kind, None)
        if self.virtual:
            return VIRTUAL_GPU
        # the physical device of each logical one, in the order of their indices
        owners = [
            physical
            for physical in tf.config.get_visible_devices(accelerators.kind())
            for _ in tf.config.get_logical_device_configuration(physical) or (physical,)
        ]
        details = tf.config.experimental.get_device_details(owners[device.index])
        return DeviceInfo(details.get("device_name", accelerators.kind()), None)

    def hardware(self) -> frozenset[str]:
        """Returns the words that users may write for `gpu:i` here, such as "cuda"."""
        return accelerators.words()

    def to_native(self, device: Device) -> str:
        """Returns TensorFlow's short name of a device, such as "/GPU:1" for `gpu:1`, or
        "/CPU:2" if that is a virtual GPU."""
        native = self._natives.get(device)
        if native is None:
            is_virtual = self.virtual and device.kind == "gpu"
            # /CPU:0 is the CPU itself, so the virtual GPUs begin at /CPU:1
            kind, index = (
                ("cpu", device.index + 1) if is_virtual else (device.kind, device.index)
            )
            name = accelerators.kind() if kind == "gpu" else kind.upper()
            native = self._natives[device] = f"/{name}:{index}"
        return native

    def describe_missing(self, device: Device) -> str:
        """Returns TensorFlow's name of a device that this machine lacks. The name is a string,
        so TensorFlow does not check it."""
        return f"/{device.kind.upper()}:{device.index}"

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` that a `tf.DeviceSpec` or an object of `tf.config` names; None
        for any other object, and for a `DeviceSpec` without a type. The core itself reads
        strings."""
        if isinstance(native, tf.DeviceSpec):
            return devices.parse(native.to_string()) if native.device_type else None
        return devices.parse(native.name) if isinstance(native, _CONFIG) else None

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager in which TensorFlow makes new tensors on a device."""
        return tf.device(self.to_native(device))

    # tensors

    def device_of(self, x: Any) -> Device:
        """Returns the device of a tensor or variable: for an eager tensor, the device of its memory; for a composite
        tensor, the device of its components."""
        # the usual case comes first and without a check: an eager tensor on a device that is in
        # the cache
        try:
            return self._places[x.backing_device]
        except KeyError:
            return self._place(x.backing_device)
        except AttributeError:
            if isinstance(x, tf.Variable):
                return self._place(x.device)
            return self._device_of_composite(x)

    def move(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on another device. Composite tensors are moved component by
        component, and tensors in a graph by an operation of the graph. Raises
        `UnsupportedError` for strings on a GPU and for a `KerasTensor`."""
        # only eager tensors have a backing device
        if hasattr(x, "backing_device") and tf.executing_eagerly():
            if device.kind == "gpu" and x.dtype == tf.string:
                raise self.unsupported(
                    "strings on a GPU", "leave them on cpu:0, and move numbers made from them"
                )
            # None if the tensor does not go through page-locked memory
            staged = staging.moved(x, device, self)
            if staged is not None:
                return staged
            # `[1:]` drops the slash of "/GPU:0". The name contains no job, because in a cluster this
            # process has another job
            result = moved(x, self.to_native(device)[1:])
            # between two CPUs, as which virtual GPUs count, `moved` shares the memory
            return self._own(result, device) if self.virtual else result
        if isinstance(x, COMPOSITES):
            return tf.nest.map_structure(
                lambda part: self.move(part, device), x, expand_composites=True
            )
        _refuse_keras_tensor(x, self)
        with self.scope(device):
            return tf.identity(x)

    def copy(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` in new storage on a device, which may be the device of `x`.
        Raises `UnsupportedError` for a `KerasTensor`."""
        if isinstance(x, COMPOSITES):
            return tf.nest.map_structure(
                lambda part: self.copy(part, device), x, expand_composites=True
            )
        _refuse_keras_tensor(x, self)
        if hasattr(x, "backing_device") and (place := self.device_of(x)) is not device:
            x = self.move(x, device)
            # a move is a copy already, except between two CPUs that are no virtual GPUs: those
            # share memory, and only `_own` copies
            if self.virtual or place.kind != "cpu" or device.kind != "cpu":
                return x
        return self._own(x, device)

    def synchronize(self, device: Device | None) -> None:
        """Waits for all devices, because TensorFlow cannot wait for one. Raises the error of
        failed work once; that error does not affect later work."""
        if not is_started():
            return  # nothing has run, and sync_devices would start the GPUs
        try:
            tf.test.experimental.sync_devices()
            accelerators.wait_for_others()
        except tf.errors.OpError:
            tf.experimental.async_clear_error()
            raise

    def wait(self, x: Any) -> None:
        """Waits for all devices, because TensorFlow cannot wait for one tensor."""
        self.synchronize(None)

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        """Returns a new tensor on a device with the dtype and values of an array."""
        # a large array goes to a GPU through page-locked memory, which is faster; None if
        # TensorFlow has to make the tensor
        staged = staging.put(array, device, self)
        if staged is not None:
            return staged
        # made on the host and then moved, because in the scope of a GPU TensorFlow would leave
        # int32 and strings on the host
        with tf.device("/CPU:0"):
            x = tf.constant(array)
        return self._moved_if_elsewhere(x, device)

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """Returns the values of a tensor as an array, which may share the tensor's memory.
        Raises `UnsupportedError` for composite tensors and for handles."""
        import numpy

        if isinstance(x, COMPOSITES):
            raise self.unsupported(
                f"reading an object of type {type(x).__name__} as a NumPy array",
                "make it dense: tf.sparse.to_dense(x), x.to_tensor() or tf.convert_to_tensor(x)",
            )
        if x.dtype in (tf.variant, tf.resource):
            raise self.unsupported(
                f"reading {x.dtype.name} tensors with NumPy",
                "read the object that they refer to",
            )
        if x.shape.rank == 0:
            # x.numpy() gives a scalar, and NumPy cannot read x itself if it is bfloat16 or a
            # string
            return numpy.array(x.numpy(), dtype=x.dtype.as_numpy_dtype)
        # a large tensor on a GPU is read through page-locked memory, which is faster
        if not staging.is_read(x, self):
            return numpy.asarray(x)
        staged = staging.read(x, self)
        # if the ring has refused, `numpy()` makes the array: TensorFlow would keep the array
        # that `asarray` gives, and `gives_away` has promised one that nobody else uses
        return x.numpy() if staged is None else staged

    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        """Returns a tensor of this shape and dtype on a device, filled with `value`."""
        with self.scope(device):
            # not tf.cast, which converts Python's numbers to float32 or int32 first
            # (tensorflow/tensorflow#64548)
            x = tf.fill(shape, tf.constant(bool(value) if dtype == "bool" else value, dtype))
        return self._moved_if_elsewhere(x, device)

    def tracing(self) -> str | None:
        """Returns "tf.function" while TensorFlow traces a function, as Keras does too;
        otherwise None."""
        return None if tf.executing_eagerly() else "tf.function"

    # what a tensor is made of

    def is_dense(self, x: Any) -> bool:
        """Whether `x` is one block of numbers in memory: not sparse, not ragged."""
        return not isinstance(x, COMPOSITES)

    def is_host_bound(self, x: Any) -> bool:
        """Whether `x` is a tensor of strings, which no GPU can hold."""
        return bool(x.dtype == tf.string)

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns a `Memory` with the bytes that TensorFlow has allocated on a device now and
        at the peak. All other numbers are None, and all are None on a CPU whose allocator does
        not count bytes."""
        try:
            usage = tf.config.experimental.get_memory_info(self.to_native(device)[1:])
        except ValueError:
            # on a CPU, memory is counted only by the allocators of oneDNN and BFC
            return Memory()
        return Memory(None, None, usage["current"], usage["peak"])

    def reset_peak(self, device: Device) -> None:
        """Resets the peak of a device's allocated memory. Raises `UnsupportedError` for a
        device whose allocator does not count bytes."""
        try:
            tf.config.experimental.reset_memory_stats(self.to_native(device)[1:])
        except ValueError:
            raise self.unsupported(
                f"counting the memory of {device} with the allocator that TensorFlow uses without oneDNN",
                "set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is imported",
            ) from None

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Makes float64 the default dtype of Keras, for a run of the parity check."""
        # TensorFlow itself has no default: tf.Variable(1.0) stays float32
        tf.keras.backend.set_floatx("float64")

    # the process

    def after_fork(self) -> str | None:
        """Returns why TensorFlow cannot be used in a forked child; None if it can."""
        # counting GPUs initialises CUDA, and a child cannot do that again
        if not is_started() and not self._saw_gpus:
            return None
        return (
            "tensorflow was used, or its GPUs were counted, before this process was forked, so it hangs or fails in "
            "the child; start the child with multiprocessing.get_context('spawn')"
        )

    def _place(self, name: str) -> Device:
        """Returns the `Device` for TensorFlow's long name of a device, and caches it. Raises
        `UnsupportedError` for a device of another process, or of a type that xdevice does not
        support."""
        device = self._places.get(name)
        if device is None:
            local_name = name
            # in a cluster the names of devices begin with another job, while `devices.parse`
            # reads only those of the job "localhost"
            if is_started():
                local_name = name.replace(f"{address()}/device:", HERE, 1)
            try:
                device = devices.parse(local_name)
                # `parse` returns a gpu for the name of any accelerator, even of one that is not
                # `gpu:i` here
                is_other = (
                    device.kind == "gpu"
                    and not self.virtual
                    and f":{accelerators.kind()}:" not in local_name
                )
                if is_other or device.kind not in self.kinds:
                    raise DeviceError(f"gpu:i is {accelerators.kind()} here")
            except DeviceError as error:
                raise self.unsupported(
                    f"tensors on {name!r}, which is none of xdevice.devices()",
                    "move only tensors on this process's own CPUs and GPUs",
                ) from error
            # named by its kind, and not by a word for its hardware: `gpu:1` for `xpu:1`
            device = self._places[name] = devices.plain(device)
        return device

    def _device_of_composite(self, x: Any) -> Device:
        """Returns the device on which all components of a composite tensor are. Raises
        `UnsupportedError` if the components are on several devices, or have no device because
        they are symbolic."""
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
        """Returns a copy of `x` in new storage. `x` is on `device` already, or is a traced
        tensor, which has no device."""
        with self.scope(device):
            # on CPUs, as which virtual GPUs count, DeepCopy has no kernel for these dtypes
            if x.dtype.name in self.short_floats and (self.virtual or device.kind == "cpu"):
                return tf.constant(self.to_numpy(x))
            try:
                # Snapshot only inside a graph: an eager Snapshot may share memory, and XLA,
                # which may compile the graph, has no DeepCopy. Snapshot has no kernel for
                # strings
                if tf.executing_eagerly() or x.dtype == tf.string:
                    copied = tf.raw_ops.DeepCopy(x=x)
                else:
                    copied = tf.raw_ops.Snapshot(input=x)
            except tf.errors.InvalidArgumentError as error:
                raise self.unsupported(
                    f"copying {x.dtype.name} tensors",
                    "cast them to another dtype first (tf.cast, tf.bitcast), or copy the object that they refer to",
                ) from error
        # if the GPU has no kernel for the dtype, TensorFlow has made the copy on the CPU
        return self._moved_if_elsewhere(copied, device)

    def _moved_if_elsewhere(self, x: Any, device: Device) -> Any:
        """Returns `x`, a tensor that is to be on `device`, and moves it if it is elsewhere:
        TensorFlow makes int32 and strings on the host, even in the scope of a GPU."""
        # a traced tensor is on no device
        if not hasattr(x, "backing_device") or self.device_of(x) is device:
            return x
        return self.move(x, device)

    def _refuse_models_here(self) -> None:
        """Raises `UnsupportedError` inside a `tf.function` or the scope of a tf.distribute
        strategy, in which models cannot be moved or copied."""
        if not tf.executing_eagerly():
            raise self.unsupported(
                "moving models inside tf.function", "move the model before calling the function"
            )
        if tf.distribute.has_strategy():
            raise self.unsupported(
                "moving models inside a tf.distribute strategy", "let the strategy place them"
            )


def _is_here(device: tf.config.LogicalDevice) -> bool:
    """Whether a device belongs to this process: in a cluster TensorFlow lists the devices of
    all processes. Called only after TensorFlow has started."""
    # names without a job are those of a process outside clusters
    is_of_cluster = device.name.startswith("/job:")
    return not is_of_cluster or device.name.startswith(address() + "/")


def _give_copies_a_gradient() -> None:
    """Registers a gradient for TensorFlow's operations that copy tensors. `tf.custom_gradient`
    would do the same, but takes 100 us a call, ten times as long as the copy."""
    for op in ("DeepCopy", "Snapshot"):
        # RegisterGradient raises KeyError if a later TensorFlow has a gradient for the
        # operation
        with suppress(KeyError):
            tf.RegisterGradient(op)(lambda op, gradient: gradient)


def _keep_autograph_out() -> None:
    """Keeps AutoGraph from rewriting xdevice's code in a `tf.function`: AutoGraph warns about
    code that it cannot rewrite, and wraps xdevice's errors in its own."""
    # xdevice's rules come first, because AutoGraph obeys the first rule that fits a module
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
    """Raises `UnsupportedError` for a `KerasTensor`, the stand-in for a tensor in Keras's
    functional models."""
    if isinstance(x, keras.KerasTensor):
        raise backend.unsupported(
            "moving or reading a KerasTensor, which has no values",
            "build the keras.Model, and move or read the model",
        )
