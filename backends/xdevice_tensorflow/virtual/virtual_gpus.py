"""Virtual GPUs for TensorFlow: its logical CPUs, which can be made only before TensorFlow has run anything.

TensorFlow itself copies operands between them, as between real GPUs, so no operation is
replaced for that. These functions are replaced (those in the second and third row only for
virtual GPUs with limits):

| function of TensorFlow | replaced by | because |
|---|---|---|
| `device_util.canonicalize`, which every `tf.distribute` strategy calls | `refusing` | a strategy with the device \
"/GPU:0", which does not exist while the GPUs are virtual, hangs in `fit` or trains on the CPU (2.21; no upstream \
issue known) |
| `TFE_Py_FastPathExecute`, `TFE_Py_Execute` | `_checking` | all eager operations go through them; of a compiled \
function, only the results are checked |
| `convert_to_eager_tensor`, `EagerTensor._copy` | `_checking` | constants and copies are made without an operation |
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
    which do not exist while the GPUs are virtual. A strategy with such a name would hang in
    `fit`, or train on the CPU (2.21)."""

    canonicalize = getattr(*_STRATEGIES)

    def refusing(d: Any, default: Any = None) -> str:
        """Replaces `canonicalize`, whose arguments are the device and a default for the parts
        that its name leaves out."""
        # the full name, such as "/job:localhost/replica:0/task:0/device:GPU:0", whichever
        # spelling `d` has
        full: str = canonicalize(d, default)
        if ":GPU:" in full:
            raise backend.unsupported(
                f"{getattr(d, 'name', d)} for a tf.distribute strategy, because its GPUs are virtual",
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
"""The functions and the method that make tensors: all of them are replaced by `_checking`."""
_values = private.field("tensorflow.__internal__.EagerTensor._numpy_internal")
# the operations that assign a variable's value, and that read it
_ASSIGN, _READ = "AssignVariableOp", "ReadVariableOp"


class TensorflowVirtualGpus(LimitedGpus, VirtualGpus):
    """TensorFlow's virtual GPUs: the logical CPU "/CPU:1" is gpu:0, and so on."""

    _places: dict[str, Device]
    _natives: dict[Device, str]
    _counts: dict[str, int]

    def why_no_virtual_gpus(self) -> str | None:
        """Returns why TensorFlow cannot have virtual GPUs now; None if it can. Raises
        `UnsupportedError` if it lacks a private name that they need."""
        # "waiting" has the private name by which `is_started` looks without starting TensorFlow
        private.require("waiting")
        private.require("virtual GPUs")
        if not is_started():
            return None
        return (
            "TensorFlow has already been used, so its devices are fixed; move `import xdevice`, with "
            "XDEVICE_VIRTUAL_GPUS set, above `import tensorflow`, or xdevice.virtual_gpus(n) above its first use"
        )

    def make_virtual_gpus(self, n: int) -> None:
        """Makes `n` logical CPUs besides the first, which are the virtual GPUs, and hides real
        GPUs."""
        cpus = tf.config.list_physical_devices("CPU")
        # TensorFlow places operations on a real GPU by default if one is visible
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * (n + 1)
        )
        # these caches still describe the devices before this call
        for cached in (self._places, self._natives, self._counts):
            cached.clear()
        self._counts.update(cpu=1, gpu=n)
        # xdevice accepts each of TensorFlow's names of the device
        for index in range(n):
            # TensorFlow accepts both spellings, and returns the first
            for name in (f"CPU:{index + 1}", f"cpu:{index + 1}"):
                for prefix in ("/", "/device:", HERE):
                    devices.spell(prefix + name, devices.of("gpu", index))
        _keep_out_of_strategies(self)

    def limit(self) -> None:
        """Checks each new tensor against the limits of its virtual GPU, and counts its memory
        until it is freed if that is limited."""
        # virtual GPUs without limits do not pay for a check of each tensor
        if not any(self.characters):
            return
        if self.is_limited():
            self.count_memory()
        for owner, name in _MAKERS:
            setattr(owner, name, self._checking(getattr(owner, name)))

    def lack_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU lacks a dtype."""
        return tf.errors.UnimplementedError(None, None, text)

    def memory_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU has too little memory."""
        return tf.errors.ResourceExhaustedError(None, None, text)

    def _checking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a TensorFlow function that makes tensors. The new function counts the memory of
        each new tensor, and raises TensorFlow's error if its virtual GPU lacks the dtype or the
        memory."""

        @wraps(call)
        def checked(*args: Any, **kwargs: Any) -> Any:
            """Replaces TensorFlow's function."""
            result = call(*args, **kwargs)
            # the name of the operation is the second or third argument. A read returns the
            # variable's own memory, which was counted when it was assigned
            if _READ not in args[1:3]:
                for x in result if isinstance(result, list | tuple) else (result,):
                    if isinstance(x, _Tensor):
                        self._check(x, x)
            # `TFE_Py_Execute` takes the inputs as a list, `TFE_Py_FastPathExecute` one by one
            if _ASSIGN in args[1:3]:
                handle, value = args[3][:2] if isinstance(args[3], list | tuple) else args[3:5]
                self._check(tf.convert_to_tensor(value), handle)
            return result

        return checked

    def _check(self, x: Any, owner: Any) -> None:
        """Counts the memory of a tensor as long as `owner` exists: the tensor itself, or the
        handle of the variable that it was assigned to. Raises TensorFlow's error if its virtual
        GPU lacks the dtype or the memory."""
        # from the name of its CPU, where CPU:1 is gpu:0; not by `device_of`, which may itself
        # make a tensor
        index = int(x.backing_device.rpartition(":")[2]) - 1
        # tensors of these dtypes hold no numbers
        if index < 0 or x.dtype in (tf.string, tf.resource, tf.variant):
            return
        self.refuse_lacking(index, [x.dtype.name])
        if self.ledger is None:
            return
        key = object()
        # the address of the memory, which tensors may share; for a 0-d tensor `_values` returns
        # a number without one. A variable has memory of its own
        values = _values(x)() if owner is x and x.shape.rank else None
        address = key if values is None else values.ctypes.data
        self.ledger.hold(key, index, address, int(x.shape.num_elements()) * int(x.dtype.size))
        # not at the end of the process, when nobody reads the ledger any more
        weakref.finalize(owner, self.ledger.drop, key).atexit = False
