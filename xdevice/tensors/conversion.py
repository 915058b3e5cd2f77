"""`convert`: turns a tensor of one framework into a tensor of another, in the same memory if
both frameworks can use it.

Frameworks also accept memory in which they cannot compute: TensorFlow ends the process at the first operation on
misaligned memory, PyTorch ends it if a stride is negative, and JAX reads wrong values from transposed memory.
Therefore, each adapter states its framework's requirements on memory (`Backend.takes`), and this module compares these
requirements with the memory that a DLPack capsule describes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from xdevice.base import devices
from xdevice.base.dtypes import host_dtype
from xdevice.contract import Backend, dlpack
from xdevice.core import registry
from xdevice.errors import (
    ArgumentError,
    DeviceNotFoundError,
    NotATensorError,
    SharingError,
    UnsupportedError,
    shown,
)

from . import leaves
from .leaves import dtype_of
from .refusals import require_dtype, symbol_error

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract import Takes

_FASTER_TO_READ: Final = 32768
"""Up to this many elements, `to_numpy` is faster than sharing memory with NumPy, even if
`to_numpy` copies."""


def convert(
    x: Any,
    backend: str | Backend | None = None,
    *,
    device: object = None,
    like: Any = None,
    copy: bool | None = None,
) -> Any:
    """Returns `x` as a tensor of another framework, in the same memory if both frameworks can use it.

    Values, dtype and shape stay the same, and so does the device unless `device` or `like` names another device. The
    result never requires grad, and no gradients flow through the conversion. While two tensors share memory, only read
    it; docs/reference/conversion.md says why, and lists the tensors that are always copied.

    Args:
        x: a tensor, or a container of tensors; other values in it pass through.
        backend: the target: "torch", "tensorflow", "paddle", "mxnet", "jax", "numpy", an alias or a `Backend`.
        device: the result's device, by default the device of `x`. like: a tensor with the backend and device to use.
        copy: None shares memory if that is safe, else copies. True always copies. False shares or raises an error.

    | to | shares | copies |
    |---|---|---|
    | torch | any layout | negative strides |
    | tensorflow | C-contiguous at a multiple of 64 bytes | all else |
    | mxnet | C-contiguous | all else |
    | paddle | any layout; nothing before Paddle 3 | negative strides |
    | jax | C-contiguous at a multiple of 64 bytes | all else |
    | numpy | any layout; the array is not writable | |

    Raises:
        SharingError: if `copy` is False and the memory cannot be shared; it is a `BufferError`.
        DTypeError, DeviceNotFoundError: if the target lacks the dtype or device, or would narrow the dtype.
        NotATensorError, ContainerError: if `x` is not a tensor; if `x` is a container of an unknown type.
        UnsupportedError: for a sparse tensor, a masked array, or a symbolic tensor in a traced function.
        BackendNotFoundError, BackendImportError, DeviceError, ArgumentError: for wrong or conflicting arguments.

    Costs 7 to 120 us if memory is shared, whatever its size; else one copy on the device, or copies through the host.

    Example:
        >>> type(xdevice.convert(xdevice.ones(2, 3), "numpy")).__name__
        'ndarray'
    """
    if copy is not None and type(copy) is not bool:
        raise ArgumentError(
            f"copy must be None (share if possible), True (never share) or False (never copy), not {shown(copy)}"
        )
    target, place = _target(backend, device, like)
    # NumPy scalars are treated as arrays here
    array = registry.as_array(x)
    owned = registry.owner_and_kind(type(array))
    if owned is not None:
        return _convert_one(*owned, x, array, target, place, copy)
    from xdevice.containers import trees

    if not (trees.is_container(x) or trees.stranger(x)):
        raise NotATensorError(
            f"cannot convert {shown(x)} of type {type(x).__qualname__}: expected a tensor, or a container of tensors"
        )

    def converted_leaves(values: list[Any]) -> list[Any]:
        """Returns the leaves of the container, with each tensor converted."""
        if place is not None:
            _require_all(values, target, place, copy)
        # results by the `id` of the old tensor, so that a tensor in two places stays one tensor
        done: dict[int, Any] = {}
        for value in values:
            array = registry.as_array(value)
            owned = registry.owner_and_kind(type(array))
            if owned is not None and id(value) not in done:
                done[id(value)] = _convert_one(*owned, value, array, target, place, copy)
        return [done.get(id(value), value) for value in values]

    return trees.map_leaves(x, converted_leaves, copies=copy is True)


def _target(
    backend: str | Backend | None, device: object, like: Any
) -> tuple[Backend, Device | None]:
    """Returns the backend and the device to which `convert` converts. The device is None if
    each tensor stays on its own device. Raises `ArgumentError` unless exactly one of `backend` and
    `like` is passed, and if both `like` and `device` are passed. Raises `NotATensorError` if `like`
    is not a tensor. Also raises the errors of `registry.load`, `devices.parse` and
    `Backend.require`."""
    if (backend is None) == (like is None) or (like is not None and device is not None):
        raise ArgumentError(
            'convert expects either a backend and optionally a device, as in convert(x, "torch", device="gpu:1"), or a '
            "tensor whose backend and device it uses, as in convert(x, like=y)"
        )
    if backend is None:
        owned = registry.owner_and_kind(type(registry.as_array(like)))
        if owned is None:
            raise NotATensorError(
                f"like= must be a tensor, not {shown(like)} of type {type(like).__qualname__}"
            )
        _refuse_non_tensor(*owned, like)
        return owned.backend, owned.backend.device_of(registry.as_array(like))
    target = registry.load(backend.name if isinstance(backend, Backend) else backend)
    return target, None if device is None else target.require(devices.parse(device))


def _require_all(values: list[Any], target: Backend, place: Device, copy: bool | None) -> None:
    """Checks the leaves `values` before any of them is converted to a tensor of `target` on the device `place`. Raises
    `NotATensorError` for a model, `UnsupportedError` for a symbol, and the errors of `_require_there` for a tensor.
    Leaves of other types are ignored."""
    for value in values:
        array = registry.as_array(value)
        owned = registry.owner_and_kind(type(array))
        if owned is not None:
            _refuse_non_tensor(*owned, array)
            _require_there(owned.backend, array, target, place, copy)


def _require_there(
    source: Backend, x: Any, target: Backend, place: Device, copy: bool | None
) -> None:
    """Raises `DTypeError` if tensors of the target cannot have the dtype of `x` on the device `place`. Raises
    `SharingError` if `copy` is False and `x` is on another device than `place`. `source` is the backend of `x`."""
    require_dtype(
        target, dtype_of(source, x), what="the tensor", instead="cast it first", place=place
    )
    if copy is False and source.device_of(x) is not place:
        raise SharingError(
            f"the tensor is on {source.device_of(x)}, so its memory cannot be shared on {place}; pass copy=None to copy"
        )


def _convert_one(
    source: Backend,
    kind: str,
    x: Any,
    array: Any,
    target: Backend,
    place: Device | None,
    copy: bool | None,
) -> Any:
    """Returns the leaf `x` as a tensor of the target. The result is on the device `place` or, if that is None, on the
    device of `x`. `source` and `kind` are the backend and the kind of `x`. `array` is `x` itself or, if `x` is a NumPy
    scalar, an array with its value. A scalar is returned unchanged if NumPy is the target, because a scalar is
    immutable; for other targets, its value is copied. Raises the errors of `_convert` and `_require_there`, and
    `SharingError` if `copy` is False and a scalar would have to be copied."""
    if array is not x and source is not target and copy is False:
        raise SharingError(
            f"a NumPy scalar ({type(x).__qualname__}) has no memory to share; pass copy=None to make a copy"
        )
    if place is not None and kind == "tensor" and source.device_of(array) is not place:
        return _on_other_device(source, array, target, place, copy)
    if array is x:
        return _convert(source, kind, x, target, copy)
    # a copy is always made, because other frameworks could write into the memory of a scalar
    return x if source is target else _convert(source, kind, array, target, copy=True)


def _on_other_device(
    source: Backend, x: Any, target: Backend, place: Device, copy: bool | None
) -> Any:
    """Returns `x`, a tensor of `source`, as a tensor of the target on another device, `place`. The tensor is converted
    on its present device if the target has that device too, otherwise on the host. The target then moves the result to
    `place`. Raises the errors of `_convert` and `_require_there`, such as `SharingError` if `copy` is False."""
    _require_there(source, x, target, place, copy)
    # no gradient flows into another framework
    x = source.detached(x)
    if source is not target:
        # if the target has the same GPU, the data is not copied through the host
        if not target.has(source.device_of(x)):
            x = leaves.move(source, "tensor", x, devices.CPU)
        x = _convert(source, "tensor", x, target, copy=None)
    return leaves.move(target, "tensor", x, place)


def _convert(source: Backend, kind: str, x: Any, target: Backend, copy: bool | None) -> Any:
    """Returns `x` as a tensor of the target, on the same device. The result shares the memory if
    this is possible and `copy` is not True; otherwise it is a copy. Never copies if `copy` is
    False.

    Raises:
        SharingError: if `copy` is False and the memory cannot be shared.
        NotATensorError, UnsupportedError: if `x` is a model or a symbol.
        DeviceNotFoundError, DTypeError: if the target lacks the device or the dtype.
    """
    _refuse_non_tensor(source, kind, x)
    device = source.device_of(x)
    # a view of `x` without a gradient, in the same memory
    plain = source.detached(x)
    if source is target:
        return source.copy(plain, device) if copy else plain
    dtype = dtype_of(source, x)
    _require_device_and_dtype(target, device, dtype)
    # without elements there is no memory to share
    if 0 in x.shape:
        import numpy

        return target.from_numpy(numpy.empty(tuple(x.shape), host_dtype(dtype)), device)
    # the target does not wait for work of the source that is still in progress
    source.finish(plain)
    # sharing is not tried if the layout alone shows that it would fail
    if copy is False or (copy is None and not _cannot_share(source, plain, target)):
        try:
            return _shared(source, plain, target, device, dtype)
        except (BufferError, UnsupportedError) as error:
            if copy is False:
                raise _not_shared(source, target, error) from error
        # any other error is unexpected, so it is not hidden by making a copy
        except Exception as error:
            if copy is None:
                raise
            raise _not_shared(source, target, error) from error
    return _copied(source, plain, target, device, dtype)


def _refuse_non_tensor(source: Backend, kind: str, x: Any) -> None:
    """Raises `NotATensorError` for a model of the backend `source`, and `UnsupportedError` for
    a symbol; does nothing for a tensor."""
    if kind == "model":
        raise NotATensorError(
            f"convert accepts tensors, not {source.name} models such as this object of type {type(x).__qualname__}: "
            f"convert the model's weights with xdevice.models.convert_state, which handles their layouts; if the "
            f"object is a single variable, turn it into a tensor first (tf.convert_to_tensor(x))"
        )
    if kind == "symbol":
        raise symbol_error(source, f"this {type(x).__qualname__}")


def _require_device_and_dtype(target: Backend, device: Device, dtype: str) -> None:
    """Raises `DeviceNotFoundError` if the target lacks the device, and `DTypeError` if it lacks
    the dtype there."""
    try:
        target.require(device)
    except DeviceNotFoundError as error:
        raise DeviceNotFoundError(
            f"{error}; without device=, convert keeps the device: pass device=, or move the tensor first"
        ) from None
    require_dtype(target, dtype, what="the tensor", instead="cast it first", place=device)


# sharing memory


def _cannot_share(source: Backend, x: Any, target: Backend) -> bool:
    """Whether it is certain, without an attempt, that the target cannot use the memory of `x`, a tensor of `source`.
    This is so if the target never uses memory of other frameworks, or cannot use memory with this address or these
    strides. False if an attempt is necessary to decide this."""
    takes = target.takes()
    if takes is None:
        return True
    if takes.alignment == 1 and takes.strides == "any":
        return False
    layout = source.memory_layout(x)
    # the adapter cannot tell the layout quickly, so sharing has to be tried
    if layout is None:
        return False
    address, is_compact, is_forward = layout
    return (
        bool(address % takes.alignment)
        or (takes.strides == "compact" and not is_compact)
        or (takes.strides == "forward" and not is_forward)
    )


def _shared(source: Backend, x: Any, target: Backend, device: Device, dtype: str) -> Any:
    """Returns a tensor of the target in the memory of `x`, a tensor of `source` on `device`
    with this dtype. Raises `BufferError` if one of the frameworks does not share memory on this
    device, or if the target could not compute in this memory. Raises `UnsupportedError` if an
    adapter does not implement `export` or `adopt`."""
    takes = target.takes()
    if takes is None:
        raise BufferError(
            f"{target.name} {target.version} cannot use the memory of other frameworks"
        )
    for backend in (source, target):
        if not backend.shares(device):
            raise BufferError(
                f"other frameworks cannot use the memory of {device} on {backend.name}"
            )
    # the source may need some state during the exchange: PyTorch makes the GPU of `x` the
    # current one
    with source.lending(x):
        return _adopted(source, dlpack.Lent(source.export(x)), takes, target, device, dtype)


def _adopted(
    source: Backend,
    lent: dlpack.Lent,
    takes: Takes,
    target: Backend,
    device: Device,
    dtype: str,
) -> Any:
    """Returns a tensor of the target in the memory `lent`, which belongs to a tensor of
    `source` with this `device` and `dtype`. `takes` describes the memory in which the target
    can compute. Raises `BufferError` if the target could not compute in this memory, or regards
    it as memory of another device."""
    reason = _why_unusable(lent, takes, device, dtype)
    if reason is not None:
        raise BufferError(f"{reason}, and {target.name} cannot compute in such memory")
    # the target may expect another label for the dtype than DLPack's own
    lent.relabel(takes.labels.get(dtype) or dlpack.label_of(dtype))
    # MXNet, for example, refuses other strides even along axes of size 1, where they have no effect
    if takes.strides == "compact":
        lent.set_compact_strides()
    # in a thread of xdevice, because a framework that holds its lock while it releases memory could deadlock with
    # itself
    if source.releases_under_lock or target.releases_under_lock:
        result = lent.hand_over(lambda lent: target.adopt(lent, dtype))
    else:
        result = target.adopt(lent, dtype)
    if target.device_of(result) is not device:
        raise BufferError(
            f"{target.name} mistakes memory of {device} for memory of {target.device_of(result)}"
        )
    return result


def _why_unusable(lent: dlpack.Lent, takes: Takes, device: Device, dtype: str) -> str | None:
    """Returns the part of an error that says why a framework cannot compute in the lent memory as it is. Returns None
    if the framework can do so. `takes` describes the memory in which the framework can compute. The lent tensor has the
    dtype `dtype`, and should be on `device`."""
    if not _is_on(lent, device):
        return f"its memory is on the DLPack device {lent.device}, not on {device}"
    # some kernels crash on numbers whose address is not a multiple of their size, although the
    # framework accepts such memory; 8 is enough for complex128, which consists of two float64
    # numbers
    alignment = max(takes.alignment, min(host_dtype(dtype).itemsize, 8))
    if lent.address % alignment:
        return f"its memory does not begin at a multiple of {alignment} bytes"
    if takes.strides == "compact" and not lent.is_compact():
        return f"its strides {tuple(lent.strides)} are not those of a C-contiguous array"
    if takes.strides == "forward" and any(stride < 0 for stride in lent.strides):
        return f"its strides {tuple(lent.strides)} include negative ones"
    return None


def _is_on(lent: dlpack.Lent, device: Device) -> bool:
    """Whether lent memory is on a device, according to its DLPack capsule."""
    kind, index = lent.device
    if device is devices.CPU:
        return kind == dlpack.CPU
    # CUDA and ROCm are different kinds in DLPack
    return kind in dlpack.GPUS and index == device.index


def _not_shared(source: Backend, target: Backend, error: Exception) -> SharingError:
    """Returns the error that `convert` raises for copy=False if sharing the memory of `source` with
    the target has failed with `error`."""
    return SharingError(
        f"cannot share the memory of this {source.name} tensor with {target.name}: {error}; pass copy=None to make a "
        f"copy"
    )


# copying, if memory cannot be shared


def _copied(source: Backend, x: Any, target: Backend, device: Device, dtype: str) -> Any:
    """Returns a copy of `x`, a tensor of `source`, as a tensor of the target. Both are on
    `device`. If the target can use memory of the source, the source makes the copy on this
    device; otherwise the values are copied through the host."""
    if target.takes() is not None and source.shares(device) and target.shares(device):
        if device is devices.CPU:
            return _copied_on_host(source, x, target, dtype)
        try:
            compact = source.compact(x)
            # on a GPU the copy may not be complete yet
            source.finish(compact)
            return _shared(source, compact, target, device, dtype)
        # the copy through the host below always works
        except (BufferError, UnsupportedError):
            pass
    import numpy

    # `asarray` converts to the host's byte order, because a NumPy array may have the opposite
    # order
    return target.from_numpy(numpy.asarray(source.to_numpy(x), host_dtype(dtype)), device)


def _copied_on_host(source: Backend, x: Any, target: Backend, dtype: str) -> Any:
    """Returns a copy of `x`, a tensor of `source` on the host, as a tensor of the target. NumPy allocates the memory
    for the copy, because it requests huge pages for 4 MB or more. With ordinary pages, the first use of the memory
    would take longer than the copy."""
    host = registry.load("numpy")
    return target.from_buffer(host.compact(_host_view(source, x, host, dtype)))


def _host_view(source: Backend, x: Any, host: Backend, dtype: str) -> Any:
    """Returns the values of `x`, a tensor of `source` on the host, as a NumPy array. The array
    uses the memory of `x` if sharing is faster than copying. `host` is NumPy's backend."""
    # `x` is a NumPy array
    if source is host:
        return x
    if math.prod(x.shape) <= _FASTER_TO_READ:
        return source.to_numpy(x)
    try:
        return _shared(source, x, host, devices.CPU, dtype)
    except (BufferError, UnsupportedError):
        return source.to_numpy(x)
