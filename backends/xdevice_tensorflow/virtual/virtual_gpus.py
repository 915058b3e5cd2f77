"""Virtual GPUs for TensorFlow: its logical CPUs, which can be made only before TensorFlow has run anything.

TensorFlow copies operands between them by itself, as between real GPUs, so no operation is replaced for that. These
functions are replaced (the second and third row only for virtual GPUs of a character):

| in place of | stands | because |
|---|---|---|
| `device_util.canonicalize`, which every `tf.distribute` strategy calls | `refusing` | a strategy that is told \
"/GPU:0", which does not exist while the GPUs are virtual, hangs in `fit` or trains on the CPU (2.21; no upstream \
issue known) |
| `TFE_Py_FastPathExecute`, `TFE_Py_Execute` | `_checking` | all eager operations are called by them; what a compiled \
function computes inside is not seen, only its results |
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
    """Makes `tf.distribute` strategies refuse names such as "/GPU:0", which do not exist while the GPUs are virtual. A
    strategy with such a name would hang in `fit`, or train on the CPU (2.21)."""

    canonicalize = getattr(*_STRATEGIES)

    def refusing(d: Any, default: Any = None) -> str:
        full: str = canonicalize(d, default)
        if ":GPU:" in full:
            raise backend.unsupported(
                f"{getattr(d, 'name', d)} for a tf.distribute strategy, because its GPUs are virtual",
                "write device.native: MirroredStrategy([gpu.native for gpu in xdevice.try_all_gpus()])",
            )
        return full

    setattr(*_STRATEGIES, refusing)


_MAKERS = (
    private.place("tensorflow.python.pywrap_tfe.TFE_Py_FastPathExecute"),
    private.place("tensorflow.python.pywrap_tfe.TFE_Py_Execute"),
    private.place("tensorflow.python.framework.constant_op.convert_to_eager_tensor"),
    private.place("tensorflow.__internal__.EagerTensor._copy"),
)
_values = private.field("tensorflow.__internal__.EagerTensor._numpy_internal")
_ASSIGN, _READ = "AssignVariableOp", "ReadVariableOp"


class TensorflowVirtualGpus(LimitedGpus, VirtualGpus):
    _places: dict[str, Device]
    _natives: dict[Device, str]
    _counts: dict[str, int]

    def why_no_virtual_gpus(self) -> str | None:
        private.require("waiting")
        private.require("virtual GPUs")
        if not is_started():
            return None
        return (
            "TensorFlow has already been used, and its devices are fixed from then on; move `import xdevice`, with "
            "XDEVICE_VIRTUAL_GPUS set, above `import tensorflow`, or xdevice.virtual_gpus(n) above its first use"
        )

    def make_virtual_gpus(self, n: int) -> None:
        cpus = tf.config.list_physical_devices("CPU")
        # a real GPU that stays visible would be where TensorFlow places operations by itself
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * (n + 1)
        )
        for cached in (self._places, self._natives, self._counts):
            cached.clear()
        self._counts.update(cpu=1, gpu=n)
        for index in range(n):
            # TensorFlow takes both, and gives the first
            for name in (f"CPU:{index + 1}", f"cpu:{index + 1}"):
                for prefix in ("/", "/device:", HERE):
                    devices.spell(prefix + name, devices.of("gpu", index))
        _keep_out_of_strategies(self)

    def limit(self) -> None:
        if not any(self.characters):
            return
        if self.is_limited():
            self.count_memory()
        for owner, name in _MAKERS:
            setattr(owner, name, self._checking(getattr(owner, name)))

    def lack_error(self, text: str) -> Exception:
        return tf.errors.UnimplementedError(None, None, text)

    def memory_error(self, text: str) -> Exception:
        return tf.errors.ResourceExhaustedError(None, None, text)

    def _checking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function of TensorFlow's that makes tensors: each new tensor is checked, and its memory is
        counted."""

        @wraps(call)
        def checked(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if _READ not in args[1:3]:  # it gives the memory of the variable
                for x in result if isinstance(result, list | tuple) else (result,):
                    if isinstance(x, _Tensor):
                        self._check(x, x)
            if _ASSIGN in args[1:3]:
                handle, value = args[3][:2] if isinstance(args[3], list | tuple) else args[3:5]
                self._check(tf.convert_to_tensor(value), handle)
            return result

        return checked

    def _check(self, x: Any, owner: Any) -> None:
        """Checks a tensor, and counts its memory as long as `owner` lives: the tensor itself, or the handle of the
        variable that it was assigned to."""
        # by its name, because `device_of` may make a tensor itself
        index = int(x.backing_device.rpartition(":")[2]) - 1
        if index < 0 or x.dtype in (tf.string, tf.resource, tf.variant):
            return
        self.refuse_lacking(index, [x.dtype.name])
        if self.ledger is None:
            return
        key = object()
        # of a 0-d tensor it makes a number
        values = _values(x)() if owner is x and x.shape.rank else None
        address = key if values is None else values.ctypes.data
        self.ledger.hold(key, index, address, int(x.shape.num_elements()) * int(x.dtype.size))
        weakref.finalize(owner, self.ledger.drop, key).atexit = False
