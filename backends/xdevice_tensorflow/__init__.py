"""The adapter for TensorFlow, and for Keras 3 if it runs on TensorFlow. It implements xdevice's
hooks (the methods that xdevice's core calls) with TensorFlow's functions.

The rules that the adapter must follow, and the facts behind them:

- The device of a tensor is the device of its memory, which `backing_device` returns: an int32 tensor "on" GPU:0 may
  have its memory on the CPU (tensorflow/tensorflow#46833). `_copy` copies tensors of every dtype to the device in its
  argument; a copy in a `tf.device` scope may be elsewhere (tensorflow/tensorflow#34071).
- Between two CPUs, `_copy` does not copy the memory, but shares it. On a single device, `tf.identity` also shares the
  memory (measured on 2.21). In these cases, copies are made with `DeepCopy`, for which TensorFlow registers no
  gradient.
- `tf.device(...)` objects are opaque and stateful, so the native devices are strings. Soft placement silently turns
  /GPU:7 into GPU:0. Therefore the core must check with `count` that a device exists before anything is placed on the
  device.
- A virtual GPU is a logical CPU: gpu:0 is "/CPU:1". xdevice accepts TensorFlow's names of this
  CPU as spellings of gpu:0.
- Counting devices must not start TensorFlow's runtime. Before the runtime has started, the devices are counted from the
  list of physical devices and their configuration.
- After an asynchronous operation has failed, all later operations fail, too, until
  `async_clear_error` is called.
- The device of a Keras model is the device of its weights. `fit` creates metrics and the
  optimizer's slots on the default device, because it opens no scope. Both move together with
  the model.
- The operation `Snapshot` makes copies only inside a graph; an eager `Snapshot` may share memory. Graphs need
  `Snapshot`, because XLA has no `DeepCopy`.
- Importing TensorFlow also imports Keras, and JAX (for tf.lite) if JAX is installed.
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

# both variables must be set before TensorFlow is imported. Without the first, TensorFlow
# allocates nearly all memory of each GPU at once, and leaves none to other frameworks in the
# process. Without the second, it logs lines about its build
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with importing():
    # PyTorch may import triton later, which would crash if some versions of TensorFlow are
    # loaded; the docstring of `import_apart` says why
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
# the rules that decide which modules AutoGraph rewrites: the module that contains them, and
# their name there
_AUTOGRAPH, _RULES = private.place("tensorflow.python.autograph.core.config.CONVERSION_RULES")
# None if this TensorFlow does not have this class of rules
_Rule = private.get("tensorflow.python.autograph.core.config.DoNotConvert")


class TensorflowBackend(
    TensorflowConversion, TensorflowModels, TensorflowReplicas, TensorflowBlocking, Backend
):
    """TensorFlow as a backend. `xdevice.contract` describes each hook in detail."""

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
        # maps TensorFlow's long name of a device, such as "/job:localhost/.../device:GPU:0", to
        # its `Device`
        self._places: dict[str, Device] = {}
        self._natives: dict[Device, str] = {}
        # maps each kind to the number of its devices, once this number can no longer change
        self._counts: dict[str, int] = {}
        # whether GPUs were listed before TensorFlow started; `after_fork` reads this
        self._saw_gpus = False
        _give_copies_a_gradient()
        _keep_autograph_out()

    # the framework

    @property
    def framework(self) -> ModuleType:
        """The module `tensorflow`."""
        return tf

    def classify(self, cls: type) -> Kind | None:
        """Returns "tensor" for a class of eager or composite tensors (sparse, ragged), "symbol" for a class of tensors
        in a graph, "model" for a class of objects with variables, and None otherwise."""
        # only eager tensors have a backing device
        if hasattr(cls, "backing_device") or issubclass(cls, COMPOSITES):
            return "tensor"
        if issubclass(cls, tf.Tensor | keras.KerasTensor):
            return "symbol"
        return "model" if models.is_model(cls) else None

    # devices

    def count(self, kind: str) -> int:
        """Returns the number of devices of a kind, without starting TensorFlow."""
        count = self._counts.get(kind)
        if count is not None:
            return count
        name = accelerators.kind() if kind == "gpu" else kind.upper()
        if is_started():
            self._counts[kind] = sum(map(_is_here, tf.config.list_logical_devices(name)))
            return self._counts[kind]
        # the program may still hide physical devices, or divide each into several logical
        # devices, so the devices are counted again at each call. The number is final only if
        # there are no devices at all
        physical = tf.config.get_visible_devices(name)
        self._saw_gpus = self._saw_gpus or (kind == "gpu" and bool(physical))
        if not physical and not tf.config.list_physical_devices(name):
            self._counts[kind] = 0
        return sum(
            len(tf.config.get_logical_device_configuration(device) or (device,))
            for device in physical
        )

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name and the memory of a device. The memory is None, because TensorFlow
        does not report it."""
        if device.kind != "gpu":
            return DeviceInfo(device.kind, memory=None)
        if self.virtual:
            return VIRTUAL_GPU
        # the physical device of each logical device, in the order of the indices of the logical
        # devices
        owners = [
            physical
            for physical in tf.config.get_visible_devices(accelerators.kind())
            for _ in tf.config.get_logical_device_configuration(physical) or (physical,)
        ]
        details = tf.config.experimental.get_device_details(owners[device.index])
        return DeviceInfo(details.get("device_name", accelerators.kind()), memory=None)

    def hardware(self) -> frozenset[str]:
        """Returns the words that users may write instead of "gpu" on this machine, such as
        "cuda"."""
        return accelerators.hardware_names()

    def to_native(self, device: Device) -> str:
        """Returns TensorFlow's short name of a device: for `gpu:1`, "/GPU:1" or, if it is a
        virtual GPU, "/CPU:2"."""
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
        """Returns TensorFlow's name of a device that this machine does not have. The name is a
        string, so TensorFlow does not check it."""
        return f"/{device.kind.upper()}:{device.index}"

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` of a `tf.DeviceSpec`, or of an object with which `tf.config` describes a device. Returns
        None for any other object, and for a `DeviceSpec` without a type. Strings are parsed by the core."""
        if isinstance(native, tf.DeviceSpec):
            return devices.parse(native.to_string()) if native.device_type else None
        return devices.parse(native.name) if isinstance(native, _CONFIG) else None

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager. In its block, TensorFlow creates new tensors on the
        device."""
        return tf.device(self.to_native(device))

    # tensors

    def device_of(self, x: Any) -> Device:
        """Returns the device of a tensor or variable. For an eager tensor, this is the device of its memory; for a
        composite tensor, it is the device of its components."""
        # the usual case comes first, without a check: `x` is an eager tensor, and its device is
        # in the cache
        try:
            return self._places[x.backing_device]
        except KeyError:
            return self._place(x.backing_device)
        except AttributeError:
            if isinstance(x, tf.Variable):
                return self._place(x.device)
            return self._device_of_composite(x)

    def move(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on another device. A composite tensor is moved component by
        component. For a tensor in a graph, an operation of the graph makes the copy. Raises
        `UnsupportedError` for strings on a GPU and for a `KerasTensor`."""
        # only eager tensors have a backing device
        if hasattr(x, "backing_device") and tf.executing_eagerly():
            if device.kind == "gpu" and x.dtype == tf.string:
                raise self.unsupported(
                    "string tensors on a GPU",
                    "leave strings on cpu:0, and move numbers made from the strings",
                )
            # None if the tensor is not copied through page-locked memory
            staged = staging.moved(x, device, self)
            if staged is not None:
                return staged
            # `[1:]` removes the slash of "/GPU:0". The name contains no job, because this process has a different job
            # in a cluster
            result = moved(x, self.to_native(device)[1:])
            # virtual GPUs are CPUs, and `moved` shares the memory between two CPUs
            return self._own_copy(result, device) if self.virtual else result
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
            # a move has already made a copy, except between two CPUs that are not virtual GPUs:
            # these share memory, so `_own_copy` has to make the copy
            if self.virtual or place.kind != "cpu" or device.kind != "cpu":
                return x
        return self._own_copy(x, device)

    def synchronize(self, device: Device | None) -> None:
        """Waits for all devices, because TensorFlow cannot wait for a single device. If earlier work has failed, raises
        the error of this work once. After that, the error does not affect later work."""
        if not is_started():
            return  # nothing has run, and sync_devices would start the GPUs
        try:
            tf.test.experimental.sync_devices()
            accelerators.wait_for_other_devices()
        except tf.errors.OpError:
            tf.experimental.async_clear_error()
            raise

    def wait(self, x: Any) -> None:
        """Waits for all devices, because TensorFlow cannot wait for one tensor."""
        self.synchronize(None)

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        """Returns a new tensor on a device with the dtype and values of an array."""
        # a large array is copied to a GPU through page-locked memory, which is faster; None if
        # TensorFlow has to create the tensor
        staged = staging.put(array, device, self)
        if staged is not None:
            return staged
        # the tensor is created on the host and then moved, because even in the scope of a GPU,
        # TensorFlow would leave int32 and strings on the host
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
                f"reading tensors of dtype {x.dtype.name} with NumPy",
                "read the object to which the tensor refers",
            )
        if x.shape.rank == 0:
            # x.numpy() returns a scalar, and NumPy cannot read x itself if its dtype is
            # bfloat16 or string
            return numpy.array(x.numpy(), dtype=x.dtype.as_numpy_dtype)
        # a large tensor on a GPU is read through page-locked memory, which is faster
        if not staging.should_read(x, self):
            return numpy.asarray(x)
        staged = staging.read(x, self)
        # if the ring has refused, `numpy()` creates the array. TensorFlow would keep the array
        # that `asarray` returns, but `gives_away` has promised an array that nothing else uses
        return x.numpy() if staged is None else staged

    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        """Returns a tensor of this shape and dtype on a device, filled with `value`."""
        with self.scope(device):
            # not tf.cast, which would first convert Python's numbers to float32 or int32
            # (tensorflow/tensorflow#64548)
            x = tf.fill(shape, tf.constant(bool(value) if dtype == "bool" else value, dtype))
        return self._moved_if_elsewhere(x, device)

    def tracing(self) -> str | None:
        """Returns "tf.function" while TensorFlow or Keras traces a function, and None otherwise."""
        return None if tf.executing_eagerly() else "tf.function"

    # properties of tensors

    def is_dense(self, x: Any) -> bool:
        """Whether `x` is stored as one block of numbers, unlike a sparse or ragged tensor."""
        return not isinstance(x, COMPOSITES)

    def is_host_bound(self, x: Any) -> bool:
        """Whether `x` is a tensor of strings, which cannot be on a GPU."""
        return bool(x.dtype == tf.string)

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns a `Memory` with the current and the peak number of bytes that TensorFlow has allocated on a device.
        All other numbers in the `Memory` are None. On a CPU whose allocator does not count bytes, all numbers are
        None."""
        try:
            usage = tf.config.experimental.get_memory_info(self.to_native(device)[1:])
        except ValueError:
            # on a CPU, memory is counted only by the allocators of oneDNN and BFC
            return Memory()
        return Memory(allocated=usage["current"], peak=usage["peak"])

    def reset_peak(self, device: Device) -> None:
        """Resets the peak of the memory that is allocated on a device. Raises
        `UnsupportedError` for a device whose allocator does not count bytes."""
        try:
            tf.config.experimental.reset_memory_stats(self.to_native(device)[1:])
        except ValueError:
            raise self.unsupported(
                f"counting the memory of {device}, because TensorFlow's allocator does not count bytes here",
                "set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is imported",
            ) from None

    # the default dtype in a parity run

    def default_to_float64(self) -> None:
        """Makes float64 Keras's default dtype for floats, for a run of the parity check."""
        # TensorFlow itself has no such setting: tf.Variable(1.0) stays float32
        tf.keras.backend.set_floatx("float64")

    # the process

    def after_fork(self) -> str | None:
        """Returns why TensorFlow cannot be used in a forked child, or None if it can be used."""
        # counting GPUs initializes CUDA, which cannot be initialized again in a child
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
            # in a cluster, the names of devices begin with a different job, but `devices.parse`
            # accepts only names with the job "localhost"
            if is_started():
                local_name = name.replace(f"{address()}/device:", HERE, 1)
            try:
                device = devices.parse(local_name)
                # `parse` returns a GPU for the name of any accelerator, even if `gpu:i` means
                # another accelerator here
                is_other = (
                    device.kind == "gpu"
                    and not self.virtual
                    and f":{accelerators.kind()}:" not in local_name
                )
                if is_other or device.kind not in self.kinds:
                    raise DeviceError(
                        f"gpu:i refers to a device of type {accelerators.kind()} here"
                    )
            except DeviceError as error:
                raise self.unsupported(
                    f"tensors on {name!r}, which is not in xdevice.devices()",
                    "move only tensors on this process's own CPUs and GPUs",
                ) from error
            # named by its kind, and not by a word for its hardware: `gpu:1` instead of `xpu:1`
            device = self._places[name] = devices.without_hardware_name(device)
        return device

    def _device_of_composite(self, x: Any) -> Device:
        """Returns the common device of all components of a composite tensor. Raises `UnsupportedError` if the
        components are on several devices, or have no device because they are symbolic."""
        parts = tf.nest.flatten(x, expand_composites=True)
        if not all(hasattr(part, "backing_device") for part in parts):
            raise self.unsupported(
                f"reporting the device of a symbolic object of type {type(x).__name__}",
                "call device_of outside the traced function; inside it, move the components: x.values or x.flat_values",
            )
        places = {self.device_of(part) for part in parts}
        if len(places) > 1:
            raise self.unsupported(
                f"reporting one device for a {type(x).__name__} with components on {' and '.join(map(str, places))}",
                "copy all components to one device: xdevice.copy_to(x, device)",
            )
        return places.pop()

    def _own_copy(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` in new storage. `x` must already be on `device`, or be a traced
        tensor, which has no device."""
        with self.scope(device):
            # DeepCopy has no kernel for these dtypes on CPUs, and virtual GPUs are CPUs
            if x.dtype.name in self.short_floats and (self.virtual or device.kind == "cpu"):
                return tf.constant(self.to_numpy(x))
            try:
                # inside a graph, use Snapshot, because XLA may compile the graph, and has no
                # DeepCopy. Otherwise, use DeepCopy, because an eager Snapshot may share memory,
                # and because Snapshot has no kernel for strings
                if tf.executing_eagerly() or x.dtype == tf.string:
                    copied = tf.raw_ops.DeepCopy(x=x)
                else:
                    copied = tf.raw_ops.Snapshot(input=x)
            except tf.errors.InvalidArgumentError as error:
                raise self.unsupported(
                    f"copying tensors of dtype {x.dtype.name}",
                    "first cast x to another dtype (tf.cast, tf.bitcast), or copy the object to which x refers",
                ) from error
        # if the GPU has no kernel for the dtype, TensorFlow has created the copy on the CPU
        return self._moved_if_elsewhere(copied, device)

    def _moved_if_elsewhere(self, x: Any, device: Device) -> Any:
        """Returns `x` if it is on `device`, otherwise a copy of `x` on `device`. The copy is needed because TensorFlow
        creates int32 and string tensors on the host even in the scope of a GPU."""
        # a traced tensor has no device
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
                "moving models inside the scope of a tf.distribute strategy",
                "let the strategy place the models",
            )


def _is_here(device: tf.config.LogicalDevice) -> bool:
    """Whether a device belongs to this process. In a cluster, TensorFlow lists the devices of
    all processes. Called only after TensorFlow has started."""
    # if a process is not in a cluster, the names of its devices may contain no job
    is_of_cluster = device.name.startswith("/job:")
    return not is_of_cluster or device.name.startswith(address() + "/")


def _give_copies_a_gradient() -> None:
    """Registers a gradient for TensorFlow's operations that copy tensors. `tf.custom_gradient`
    would have the same effect, but takes 100 us per call, ten times as long as the copy."""
    for op in ("DeepCopy", "Snapshot"):
        # RegisterGradient raises KeyError if a later TensorFlow already has a gradient for the
        # operation
        with suppress(KeyError):
            tf.RegisterGradient(op)(lambda _, gradient: gradient)


def _keep_autograph_out() -> None:
    """Prevents AutoGraph from rewriting xdevice's code in a `tf.function`. Otherwise, AutoGraph
    would warn about code that it cannot rewrite, and would wrap xdevice's errors in its own."""
    # xdevice's rules come first, because AutoGraph applies the first rule that matches a module
    if _Rule is not None and private.has(
        "tensorflow.python.autograph.core.config.CONVERSION_RULES"
    ):
        own_rules = [_Rule(package) for package in ("xdevice", __name__)]
        setattr(_AUTOGRAPH, _RULES, (*own_rules, *getattr(_AUTOGRAPH, _RULES)))
    # AutoGraph does not wrap errors that have this attribute
    XDeviceError.ag_pass_through = True  # type: ignore[attr-defined]


def _refuse_keras_tensor(x: Any, backend: Backend) -> None:
    """Raises `UnsupportedError` if `x` is a `KerasTensor`, which stands for a tensor in Keras's
    functional models."""
    if isinstance(x, keras.KerasTensor):
        raise backend.unsupported(
            "moving or reading a KerasTensor, which has no values",
            "build the keras.Model, and move or read the model",
        )
