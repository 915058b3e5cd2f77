"""Reads DLPack capsules (descriptions of the memory of a tensor), and corrects the capsules before a framework consumes
them.

Every framework that shares memory uses the DLPack protocol, but no framework checks a capsule as thoroughly as it
should. Therefore the core reads the fields of each capsule with this module. The dtype in a capsule is rewritten if the
two frameworks label the same dtype differently. The strides are rewritten if they differ from C order only along
dimensions of size 1, where strides have no effect.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

# the codes of dlpack.h for the kinds of dtypes, for bool, and for the host
_CODES: Final = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
BOOL: Final = (6, 8)
CPU: Final = 1
GPUS: Final = (2, 10)
"""DLPack's device types for CUDA and ROCm. Metal and oneAPI are left out, because their pointers are not addresses that
another framework can use."""

Label = tuple[int, int]
"""The form of a dtype in DLPack: a code for the kind, and the number of bits."""


class _Tensor(ctypes.Structure):
    """`DLTensor` of dlpack.h. It is the first member of `DLManagedTensor`, to which an unversioned capsule points."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """`DLManagedTensor` of dlpack.h, to which an unversioned capsule points."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# the name of an unversioned capsule; it is a global, because a capsule stores only a pointer to its
# name
_NAME: Final = b"dltensor"

# a separate prototype, because types that are set on the functions of ctypes.pythonapi apply to all
# callers, and break MXNet's capsules
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def label_of(dtype: str) -> Label:
    """Returns DLPack's code and number of bits for the dtype with this name."""
    if dtype == "bool":
        return BOOL
    # "float32" is a float of 32 bits
    kind = dtype.rstrip("0123456789")
    return _CODES[kind], int(dtype[len(kind) :])


class Lent:
    """A tensor's memory, to be lent through DLPack: a capsule that has not been consumed yet, and the fields read from
    that capsule. An importer, such as a framework's `from_dlpack`, accepts a `Lent` as it accepts an array.

    `address` is the address of the first element, `strides` are counted in elements, and `device` is DLPack's pair of
    device type and index.
    """

    __slots__ = ("_tensor", "address", "capsule", "device", "shape", "strides")

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule
        # raises ValueError if the capsule was already consumed, because its name has changed then
        tensor = self._tensor = _Tensor.from_address(_pointer_of(capsule, _NAME))
        self.address: int = (tensor.data or 0) + tensor.byte_offset
        self.device: tuple[int, int] = (tensor.device_type, tensor.device_id)
        self.shape: list[int] = tensor.shape[: tensor.ndim]
        self.strides: list[int] = (
            tensor.strides[: tensor.ndim] if tensor.strides else compact_strides(self.shape)
        )

    def is_compact(self) -> bool:
        """Whether the elements follow one another in C order. Strides in dimensions of size 1 are ignored."""
        wanted = compact_strides(self.shape)
        if self.strides == wanted:
            return True
        for size, stride, compact in zip(self.shape, self.strides, wanted, strict=True):
            # the stride of an axis with one element is never used
            if size != 1 and stride != compact:
                return False
        return True

    def relabel(self, label: Label) -> None:
        """Replaces the dtype in the capsule by `label`, the code and number of bits that the consuming framework uses
        for the dtype."""
        self._tensor.code, self._tensor.bits = label

    def set_compact_strides(self) -> None:
        """Replaces the strides in the capsule of a compact tensor by the strides of C order. Only strides along
        dimensions of size 1 change."""
        if self.strides != compact_strides(self.shape):
            # a null pointer means C order; the list of strides must not be changed, because it may belong to
            # the source tensor: PyTorch 2.13 does not copy the list
            self._tensor.strides = None

    def hand_over(self, adopt: Callable[[Lent], Any]) -> Any:
        """Returns the importer's tensor, the result of `adopt(self)`. Once the importer no longer needs the memory, a
        thread of xdevice releases the memory.

        This prevents deadlocks if the importing or the exporting framework holds its own lock while it releases memory
        (`Primitives.releases_under_lock`). If such a framework imports memory, the release of that memory may also
        release one of the framework's own tensors, which needs the same lock again. If such a framework exports memory,
        the importer may release the memory without holding Python's lock. The importer then holds the framework's lock
        and waits for Python's lock, while the thread that holds Python's lock waits for the framework's lock.
        """
        import numpy

        # In place of the original capsule, the importer gets a second one: NumPy's capsule of `token`, with
        # the fields of this tensor written into it. When the importer releases the second capsule, `token`
        # dies, `released` puts itself into `_no_longer_used`, and the releasing thread removes the entry
        # from `_in_use`, which releases the original capsule. The second capsule is NumPy's because it may
        # be released while an exception propagates: NumPy's deleter and the callbacks of weak references
        # preserve the exception, but a callback of ctypes loses the exception or crashes.
        token = numpy.empty(1, "uint8")
        capsule = token.__dlpack__()
        managed = _Managed.from_address(_pointer_of(capsule, _NAME))
        managed.tensor = self._tensor
        # `put` is written in C; with a Python function, the interpreter could switch threads while the
        # importer holds its lock
        released = weakref.ref(token, _no_longer_used.put)
        _in_use[id(released)] = _InUse(released, managed, self.capsule)
        _start_releaser()
        self.capsule = capsule
        # from here on only the importer keeps `token` alive
        del token
        return adopt(self)

    def numpy_view(self) -> np.ndarray[Any, Any]:
        """Returns the memory as a NumPy array that is meant only for reading. The array keeps the memory alive."""
        import numpy

        return numpy.from_dlpack(self)

    def __dlpack__(self, **_: Any) -> Any:
        """Returns the capsule, which can be consumed only once. Ignores the stream that an importer may pass, because
        the exporter has already waited for all work on the memory."""
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def compact_strides(shape: list[int]) -> list[int]:
    """Returns the strides of C order for a shape, in elements."""
    strides = []
    step = 1
    # in C order, the elements along the last axis are adjacent
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


class _InUse(NamedTuple):
    """The objects that must stay alive while an importer uses memory from `hand_over`. `released` is a weak reference
    that is dead once the importer is done. `managed` is the `DLManagedTensor` that was passed to the importer. `owner`
    is the original capsule, which owns the memory."""

    released: weakref.ref[Any]
    managed: _Managed
    owner: Any


_in_use: dict[int, _InUse] = {}
"""The `_InUse` entries of all importers, by the `id` of the weak reference in each entry."""

# the dead weak references whose entries the thread `_releaser` will remove from `_in_use`
_no_longer_used: SimpleQueue[weakref.ref[Any]] = SimpleQueue()
_releaser: threading.Thread | None = None


def _start_releaser() -> None:
    """Starts the thread that releases memory, unless the thread is running already."""
    global _releaser
    # in a forked child, the object exists, but its thread does not run
    if _releaser is None or not _releaser.is_alive():
        _releaser = threading.Thread(target=_release, name="xdevice-release", daemon=True)
        _releaser.start()


def _release() -> None:
    """Runs in the releasing thread. Once an importer is done with its memory, removes its entry from `_in_use`, which
    releases the capsule in the entry."""
    while True:
        # `get` waits for the next importer that is done
        _in_use.pop(id(_no_longer_used.get()), None)


@atexit.register
def _leave_to_the_system() -> None:
    """Removes the deleters of memory that importers still use. Called at exit, because an importer could otherwise call
    such a deleter after Python has ended. The operating system frees the memory."""
    for export in tuple(_in_use.values()):
        if export.released() is not None:
            export.managed.deleter = None
