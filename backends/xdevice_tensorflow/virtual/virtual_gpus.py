"""Virtual GPUs for TensorFlow. A virtual GPU is one of TensorFlow's logical CPUs, which can be created only before
TensorFlow has run anything.

TensorFlow itself copies operands between logical CPUs, as it does between real GPUs, so xdevice replaces no operation
to make these copies. It replaces the following functions. The functions in the second and third rows are replaced only
if virtual GPUs have limits:

| function of TensorFlow | replaced by | because |
|---|---|---|
| `device_util.canonicalize`, which every `tf.distribute` strategy calls | `refusing` | a strategy with the device \
"/GPU:0", which does not exist while the GPUs are virtual, hangs in `fit` or trains on the CPU (2.21; no upstream \
issue known) |
| `TFE_Py_FastPathExecute`, `TFE_Py_Execute` | `_checking` | they execute all eager operations; for a compiled \
function, only the results are checked |
| `convert_to_eager_tensor`, `EagerTensor._copy` | `_checking` | they create constants and copies without an operation |
"""

from __future__ import annotations

import weakref
from functools import wraps
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.base import devices
from xdevice.virtual.contract.limited_gpus import LimitedGpus
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_tensorflow.private import private
from xdevice_tensorflow.runtime import HERE, is_started

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device

_Tensor: Any = tf.__internal__.EagerTensor
_STRATEGIES = private.place("tensorflow.python.distribute.device_util.canonicalize")


def _keep_out_of_strategies(backend: VirtualGpus) -> None:
    """Makes `tf.distribute` strategies raise `UnsupportedError` for names such as "/GPU:0",
    because there are no such devices while the GPUs are virtual. A strategy with such a name
    would hang in `fit`, or train on the CPU (in TensorFlow 2.21)."""

    canonicalize = getattr(*_STRATEGIES)

    def refusing(d: Any, default: Any = None) -> str:
        """Returns the full name of a device, as TensorFlow's `canonicalize` does, but raises `UnsupportedError` for a
        GPU. `d` is the name of a device, or an object with an attribute `name`; `default` provides the parts that are
        missing in this name."""
        # the full name for any spelling of the device, such as
        # "/job:localhost/replica:0/task:0/device:GPU:0"
        full: str = canonicalize(d, default)
        if ":GPU:" in full:
            raise backend.unsupported(
                f"passing {getattr(d, 'name', d)} to a tf.distribute strategy while the GPUs are virtual",
                "pass device.native instead: MirroredStrategy([gpu.native for gpu in xdevice.try_all_gpus()])",
            )
        return full

    setattr(*_STRATEGIES, refusing)


_MAKERS = (
    private.place("tensorflow.python.pywrap_tfe.TFE_Py_FastPathExecute"),
    private.place("tensorflow.python.pywrap_tfe.TFE_Py_Execute"),
    private.place("tensorflow.python.framework.constant_op.convert_to_eager_tensor"),
    private.place("tensorflow.__internal__.EagerTensor._copy"),
)
"""Three functions and one method that create tensors. `_checking` wraps each of them."""
_values = private.field("tensorflow.__internal__.EagerTensor._numpy_internal")
# the operations that assign and read the value of a variable
_ASSIGN, _READ = "AssignVariableOp", "ReadVariableOp"


class TensorflowVirtualGpus(LimitedGpus, VirtualGpus):
    """TensorFlow's virtual GPUs. The logical CPU "/CPU:1" is gpu:0, "/CPU:2" is gpu:1, and so
    on."""

    _places: dict[str, Device]
    _natives: dict[Device, str]
    _counts: dict[str, int]

    def why_no_virtual_gpus(self) -> str | None:
        """Returns why virtual GPUs cannot be created now, or None if they can be created. Raises `UnsupportedError` if
        this version of TensorFlow lacks a private function or class that virtual GPUs need."""
        # "waiting" lists the private name with which `is_started` finds out whether TensorFlow
        # has started, without starting it
        private.require_names_for("waiting")
        private.require_names_for("virtual GPUs")
        if not is_started():
            return None
        return (
            "TensorFlow has already been used, so its devices are fixed; set XDEVICE_VIRTUAL_GPUS and move `import "
            "xdevice` above `import tensorflow`, or call xdevice.virtual_gpus(n) before the first use of TensorFlow"
        )

    def make_virtual_gpus(self, n: int) -> None:
        """Creates `n` logical CPUs in addition to the first logical CPU. The new logical CPUs are the virtual GPUs.
        Hides real GPUs."""
        cpus = tf.config.list_physical_devices("CPU")
        # by default, TensorFlow runs operations on a real GPU if one is visible
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * (n + 1)
        )
        # these caches still describe the devices that existed before this call
        for cached in (self._places, self._natives, self._counts):
            cached.clear()
        # the first logical CPU is the only one that remains a CPU
        self._counts.update(cpu=1, gpu=n)
        # make xdevice accept each of TensorFlow's names for the device
        for index in range(n):
            # TensorFlow accepts both spellings, and itself uses the first
            for name in (f"CPU:{index + 1}", f"cpu:{index + 1}"):
                for prefix in ("/", "/device:", HERE):
                    devices.register_spelling(prefix + name, devices.of("gpu", index))
        _keep_out_of_strategies(self)

    def limit(self) -> None:
        """From now on, checks each new tensor against the limits of its virtual GPU. If memory
        is limited, counts the memory of each tensor until the tensor is freed."""
        # without limits, there is nothing to check, so operations stay as fast as they were
        if not any(self.characters):
            return
        if self.is_limited():
            self.count_memory()
        for owner, name in _MAKERS:
            setattr(owner, name, self._checking(getattr(owner, name)))

    def lack_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU does not support a dtype."""
        return tf.errors.UnimplementedError(node_def=None, op=None, message=text)

    def memory_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU has too little memory."""
        return tf.errors.ResourceExhaustedError(node_def=None, op=None, message=text)

    def _checking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a TensorFlow function that creates tensors. The wrapper counts the memory of
        each new tensor, and raises TensorFlow's error if the tensor's virtual GPU does not
        support the dtype, or does not have enough memory."""

        @wraps(call)
        def checked(*args: Any, **kwargs: Any) -> Any:
            """Replaces TensorFlow's function."""
            result = call(*args, **kwargs)
            # the name of the operation is the second or third argument. Reading a variable
            # returns the variable's own memory, which was counted when the value was assigned
            if _READ not in args[1:3]:
                for x in result if isinstance(result, list | tuple) else (result,):
                    if isinstance(x, _Tensor):
                        self._check(x, owner=x)
            # `TFE_Py_Execute` gets the inputs as a list, `TFE_Py_FastPathExecute` as separate
            # arguments
            if _ASSIGN in args[1:3]:
                handle, value = args[3][:2] if isinstance(args[3], list | tuple) else args[3:5]
                self._check(tf.convert_to_tensor(value), owner=handle)
            return result

        return checked

    def _check(self, x: Any, owner: Any) -> None:
        """Counts the memory of the tensor `x` until `owner` is freed. `owner` is the tensor itself, or the handle of
        the variable to which the tensor was assigned. Raises TensorFlow's error if the tensor's virtual GPU does not
        support the dtype, or does not have enough memory."""
        # from the name of the CPU, where CPU:1 is gpu:0. `device_of` is not used, because it
        # may itself create a tensor
        index = int(x.backing_device.rpartition(":")[2]) - 1
        # the CPU itself has no limits, and tensors of these dtypes contain no numbers
        if index < 0 or x.dtype in (tf.string, tf.resource, tf.variant):
            return
        self.refuse_lacking(index, [x.dtype.name])
        if self.ledger is None:
            return
        key = object()
        # several tensors may share the memory at an address, and are then counted once. For a 0-d
        # tensor, `_values` returns a number, which has no address. A variable never shares its
        # memory. In both cases the key, which no other tensor has, stands for the address
        values = _values(x)() if owner is x and x.shape.rank else None
        address = key if values is None else values.ctypes.data
        self.ledger.hold(key, index, address, int(x.shape.num_elements()) * int(x.dtype.size))
        # not at the end of the process, when nothing reads the ledger any more
        weakref.finalize(owner, self.ledger.drop, key).atexit = False
