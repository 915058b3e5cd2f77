"""Virtual GPUs for MXNet. They are MXNet's CPU devices: `mx.cpu(1)` is gpu:0. This module makes operators on these
devices refuse the same arrays as operators on real GPUs.

MXNet's operators compare only the kind of memory of their arrays (`dev_mask`, in the error of
https://github.com/apache/mxnet/issues/6333). Therefore they silently accept arrays of `cpu(0)` and `cpu(1)` together.
With real GPUs, operators refuse to mix arrays on the CPU and on a GPU, and one GPU may be unable to read the memory of
another. MXNet is retired, so this will not change.

| function of MXNet's library | replaced by | reason |
|---|---|---|
| `MXImperativeInvokeEx` | `invoke` | all operators are called through it; copies to another device are allowed |
| `MXAutogradBackwardEx` | `_with_gradients` | the caller may pass gradients to `backward` |
| `MXAutogradMarkVariables` | `_with_gradients` | the caller may pass memory on another device to `attach_grad` |
| `NDArrayBase.__del__`, `__init__` | `free`, `_checking` | only for virtual GPUs with limits: each array \
is checked when it is created, and its memory is counted until it is freed |

A hybridized block itself refuses arrays on different devices.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from xdevice.base import devices
from xdevice.errors import DeviceNotFoundError
from xdevice.virtual.contract.limited_gpus import LimitedGpus
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_mxnet.library import library
from xdevice_mxnet.private import private

if TYPE_CHECKING:
    from xdevice.base.devices import Device

# a new object for this function, because setting the `argtypes` of MXNet's own object would
# also affect MXNet's calls
_get_context = ctypes.PyDLL(library._name).MXNDArrayGetContext
_get_context.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

_NEW_ARRAY = private.place("mxnet.ndarray._internal.NDArrayBase.__init__")
_FREE_ARRAY = private.place("mxnet.ndarray._internal.NDArrayBase.__del__")
_CPU = mx.Context.devstr2type["cpu"]
"""MXNet's number for the kind of device "cpu". Arrays on "cpu_pinned" have another number and are not checked. The
reason is that a key-value store passes them to operators together with arrays on devices."""


def refuse_mixed_devices() -> None:
    """Makes MXNet's operators raise an `MXNetError` for arrays on different devices, until the process ends. A second
    call has no effect."""
    call = library.MXImperativeInvokeEx
    if hasattr(call, "refuses_mixed"):
        return

    def invoke(
        operator: Any, count: Any, handles: Any, outputs: Any, results: Any, *others: Any
    ) -> int:
        """Replaces `MXImperativeInvokeEx`, and checks the arrays before it calls `operator`. `handles` contains
        `count` operands. `results` contains the arrays of `out=`, and `outputs` contains the number of these arrays,
        which may be 0."""
        # the number of arrays in `out=`; MXNet would write into these arrays on any device.
        # `_obj` is the argument of `byref`
        written_count = outputs._obj.value
        # a single array cannot be on two devices
        if count.value + written_count > 1:
            arrays = handles
            if written_count:
                arrays = [*handles[: count.value], *results._obj[:written_count]]
            places = _places(arrays)
            # `copyto` is an operator whose `out=` is the array on the other device
            if len(places) > 1 and not (written_count and _is_copy(operator)):
                raise _mixed(f"operator {_name(operator)}", places)
        return int(call(operator, count, handles, outputs, results, *others))

    invoke.refuses_mixed = True  # type: ignore[attr-defined]
    library.MXImperativeInvokeEx = invoke
    library.MXAutogradBackwardEx = _with_gradients(
        library.MXAutogradBackwardEx, "backward", at=0
    )
    library.MXAutogradMarkVariables = _with_gradients(
        library.MXAutogradMarkVariables, "mark_variables", at=1
    )


def _is_null(pointer: object) -> bool:
    """Whether an argument for MXNet's library is the null pointer that MXNet passes instead of
    a C array."""
    return isinstance(pointer, ctypes.c_void_p)


def _with_gradients(call: Any, name: str, at: int) -> Any:
    """Returns a wrapper of `call`, a function of MXNet's library whose arguments include arrays and their gradients.
    The wrapper raises an `MXNetError` that contains `name` if an array and its gradient are on different devices.

    `at` is the index of the gradients among the arguments that follow the arrays."""

    def checked(count: int, arrays: Any, *others: Any) -> int:
        """Replaces the function of MXNet's library, and returns its status."""
        gradients = others[at]
        # MXNet passes a null pointer if no array has a gradient, and a null handle for each
        # array without a gradient
        if not _is_null(gradients):
            for i in range(count):
                places = _places([arrays[i], gradients[i]]) if gradients[i] else []
                if len(places) > 1:
                    raise _mixed(name, places)
        return int(call(count, arrays, *others))

    return checked


def _places(handles: list[int]) -> list[int]:
    """Returns a sorted list of the indices of the CPU devices on which the arrays are, without duplicates. `handles`
    contains the handle of each array, which is the address of MXNet's object."""
    return sorted({index for kind, index in map(_place, handles) if kind == _CPU})


def _place(handle: int) -> tuple[int, int]:
    """Returns MXNet's number for the kind of the array's device, and the index of the device. `handle` is the array's
    handle."""
    kind, index = ctypes.c_int(), ctypes.c_int()
    _get_context(handle, ctypes.byref(kind), ctypes.byref(index))
    return kind.value, index.value


def _address(handle: Any) -> int:
    """Waits until MXNet has computed an array, and returns the address of its memory. An array shares its memory with
    its views."""
    mx.base.check_call(library.MXNDArrayWaitToRead(handle))
    address = ctypes.c_void_p()
    mx.base.check_call(library.MXNDArrayGetData(handle, ctypes.byref(address)))
    # an array without elements has no memory, so its handle is used instead, which no other
    # array has
    return address.value or int(handle.value)


def _name(operator: Any) -> str:
    """Returns the name of an operator, such as "_npi_add"."""
    name = ctypes.c_char_p()
    mx.base.check_call(library.MXSymbolGetAtomicSymbolName(operator, ctypes.byref(name)))
    return (name.value or b"").decode()


def _is_copy(operator: Any) -> bool:
    """Whether an operator copies an array. Such an operator may write to another device."""
    return "copyto" in _name(operator)


def _mixed(what: str, places: list[int]) -> Exception:
    """Returns the error for the operation `what` with arrays on several CPU devices. `places` contains the indices of
    these devices."""
    names = " and ".join(f"cpu({index})" for index in places)
    error: Exception = mx.MXNetError(
        f"{what} requires all its arrays on one device, but they are on {names} (cpu(1) is the virtual gpu:0); move "
        f"them to one device with xdevice.to_device"
    )
    return error


class MxnetVirtualGpus(LimitedGpus, VirtualGpus):
    """MXNet's virtual GPUs: `mx.cpu(1)` is gpu:0, and so on."""

    _cpus: int
    _gpus: int | None
    _places: dict[int, Device]

    def why_no_virtual_gpus(self) -> None:
        """Returns None, because virtual GPUs are always possible on MXNet, which has 16 CPU devices."""

    def make_virtual_gpus(self, n: int) -> None:
        """Turns cpu(1) to cpu(n) into the virtual GPUs, and makes MXNet's operators refuse arrays on different
        devices."""
        private.require_names_for("virtual GPUs")
        # only cpu:0 remains a CPU; the other CPU devices are the virtual GPUs, or are ignored
        self._cpus, self._gpus = 1, n
        # clears the cache of `device_of`, in which cpu(1) may still be a CPU
        self._places.clear()
        refuse_mixed_devices()

    def limit(self) -> None:
        """Replaces methods of MXNet's arrays until the process ends. For each new array, the replacements check
        whether its virtual GPU supports the array's dtype. If any virtual GPU has limited memory, they also count the
        memory of each array until the array is freed. If no virtual GPU has limits, nothing is replaced."""
        # each item of `characters` describes the dtypes that a virtual GPU lacks, and its
        # memory; an item is false if the GPU has no limits. If no GPU has limits, arrays are
        # not checked, because the check costs time
        if not any(self.characters):
            return
        setattr(*_NEW_ARRAY, self._checking(getattr(*_NEW_ARRAY)))
        if self.is_limited():
            ledger = self.count_memory()
            delete = getattr(*_FREE_ARRAY)

            def free(array: Any) -> None:
                """Replaces `__del__` of MXNet's arrays."""
                # this must happen before MXNet frees the handle, because the next array may get
                # the same handle
                ledger.drop(array.handle.value if array.handle is not None else None)
                delete(array)

            setattr(*_FREE_ARRAY, free)

    def lack_error(self, text: str) -> Exception:
        """Returns the error that is raised if a virtual GPU lacks a dtype, or has too little memory. `text` is its
        message."""
        error: Exception = mx.MXNetError(text)
        return error

    memory_error = lack_error

    def _checking(self, make: Any) -> Any:
        """Returns a wrapper of `make`, the method that creates an array object for each array that MXNet has
        computed. The wrapper raises MXNet's error if a virtual GPU lacks the array's dtype, or has too little memory
        for the array. It also counts that memory."""

        def checked(array: Any, handle: Any, writable: bool = True) -> None:
            """Replaces `__init__` of MXNet's arrays."""
            make(array, handle, writable)
            # an array that is being unpickled has no handle yet
            kind, index = _place(handle) if handle is not None and handle.value else (None, 0)
            # cpu(0), and CPU devices beyond the virtual GPUs, have no limits
            if kind != _CPU or not 0 < index <= self.virtual:
                return
            self.refuse_lacking(index - 1, [np.dtype(array.dtype).name])
            # a sparse array has several blocks of memory and no single address
            if self.ledger is not None and array.stype == "default":
                self.ledger.hold(
                    handle.value,
                    index - 1,
                    _address(handle),
                    array.size * np.dtype(array.dtype).itemsize,
                )

        return checked

    def _virtual_gpu(self, native: Any) -> Device | None:
        """Returns the virtual GPU for an `mx.Context`, or None if the context is cpu(0) or page-locked memory. Raises
        `UnsupportedError` for a real GPU, and `DeviceNotFoundError` for a CPU device beyond the virtual GPUs."""
        if native.device_type == "gpu":
            raise self.unsupported(
                f"the real device {native} while its GPUs are virtual",
                "use xdevice.gpu(i).native",
            )
        is_gpu = native.device_type == "cpu" and native.device_id > 0
        if is_gpu and native.device_id > self.virtual:
            raise DeviceNotFoundError(
                f"{native} does not exist on mxnet with {self.virtual} virtual GPUs, which are cpu(1) to "
                f"cpu({self.virtual}); use xdevice.gpu(i).native"
            )
        return devices.of("gpu", native.device_id - 1) if is_gpu else None
