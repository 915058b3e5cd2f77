"""`convert`: makes a tensor of one framework a tensor of another, in the same memory where both can work in it.

Frameworks take over memory that they cannot work in: TensorFlow ends the process at the first operation on a misaligned
buffer, PyTorch on a negative stride, JAX computes with the wrong values of a transposed one. So each adapter states
what memory it can work in (`Backend.takes`), and this module compares that with the memory which a DLPack capsule
offers.
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
from .refusals import require_dtype, traced

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract import Takes

_SOONER_READ: Final = 32768
"""For tensors of at most this many elements, `to_numpy` is faster than sharing memory with NumPy, although `to_numpy`
may copy."""


def convert(
    x: Any,
    backend: str | Backend | None = None,
    *,
    device: object = None,
    like: Any = None,
    copy: bool | None = None,
) -> Any:
    """Returns `x` as a tensor of another framework, in the same memory if both can use it.

    Values, dtype and shape stay the same, and so does the device unless `device` or `like` names another. The result
    never requires grad, and no gradient flows through. While two tensors share memory, only read it;
    docs/reference/conversion.md says why, and lists the tensors that are always copied.

    Args:
        x: a tensor, or a container of tensors; other values in it pass through.
        backend: the target: "torch", "tensorflow", "paddle", "mxnet", "jax", "numpy", an alias or a `Backend`.
        device: the device of the result, by default that of `x`. like: a tensor whose backend and device to use.
        copy: None shares memory where that is correct, else copies. True always copies. False shares or raises.

    | to | shares | copies |
    |---|---|---|
    | torch | any layout | negative strides |
    | tensorflow | C-contiguous at a multiple of 64 bytes | all else |
    | mxnet | C-contiguous | all else |
    | paddle | any layout; nothing before Paddle 3 | negative strides |
    | jax | C-contiguous at a multiple of 64 bytes | all else |
    | numpy | any layout; gives an array that is not writable | |

    Raises:
        SharingError: with `copy=False`, if the memory cannot be shared; it is a `BufferError`.
        DTypeError, DeviceNotFoundError: the target lacks the dtype or device, or would narrow the dtype.
        NotATensorError, ContainerError: not a tensor; a container of an unknown type.
        UnsupportedError: a sparse tensor, a masked array, or a symbolic tensor in a traced function.
        BackendNotFoundError, BackendImportError: no such backend. ArgumentError: another `copy`; no target, or two.

    Costs 7 to 120 us if memory is shared, whatever the size; else one copy on the device, or copies through the host.

    Example:
        >>> type(xdevice.convert(xdevice.ones(2, 3), "numpy")).__name__
        'ndarray'
    """
    if copy is not None and type(copy) is not bool:
        raise ArgumentError(
            f"copy must be None (share where possible), True (never share) or False (never copy), not {shown(copy)}"
        )
    target, place = _target(backend, device, like)
    # NumPy's scalars count as arrays here
    number = registry.as_array(x)
    owned = registry.kind_of(type(number))
    if owned is not None:
        return _convert_one(*owned, x, number, target, place, copy)
    from xdevice.containers import trees

    if not (trees.is_container(x) or trees.stranger(x)):
        raise NotATensorError(
            f"cannot convert {shown(x)} of type {type(x).__qualname__}: expected a tensor, or a container of tensors"
        )

    def all_of(values: list[Any]) -> list[Any]:
        if place is not None:
            _require_all(values, target, place, copy)
        # a tensor in two places stays one
        done: dict[int, Any] = {}
        for value in values:
            number = registry.as_array(value)
            owned = registry.kind_of(type(number))
            if owned is not None and id(value) not in done:
                done[id(value)] = _convert_one(*owned, value, number, target, place, copy)
        return [done.get(id(value), value) for value in values]

    return trees.map_leaves(x, all_of, copies=copy is True)


def _target(
    backend: str | Backend | None, device: object, like: Any
) -> tuple[Backend, Device | None]:
    """The backend and the device that the result is to have; None for the device that a tensor has."""
    if (backend is None) == (like is None) or (like is not None and device is not None):
        raise ArgumentError(
            'convert takes a backend and perhaps a device, convert(x, "torch", device="gpu:1"), or a tensor in place '
            "of both, convert(x, like=y)"
        )
    if backend is None:
        owned = registry.kind_of(type(registry.as_array(like)))
        if owned is None:
            raise NotATensorError(
                f"like= takes a tensor, not {shown(like)} of type {type(like).__qualname__}"
            )
        _refuse_non_tensor(*owned, like)
        return owned.backend, owned.backend.device_of(registry.as_array(like))
    target = registry.load(backend.name if isinstance(backend, Backend) else backend)
    return target, None if device is None else target.require(devices.parse(device))


def _require_all(values: list[Any], target: Backend, place: Device, copy: bool | None) -> None:
    """Raises, before anything is moved, for a tensor that the target cannot hold at the place."""
    for value in values:
        array = registry.as_array(value)
        owned = registry.kind_of(type(array))
        if owned is not None:
            _refuse_non_tensor(*owned, array)
            _require_there(owned.backend, array, target, place, copy)


def _require_there(
    source: Backend, x: Any, target: Backend, place: Device, copy: bool | None
) -> None:
    require_dtype(target, dtype_of(source, x), "the tensor", "cast it first", place=place)
    if copy is False and source.device_of(x) is not place:
        raise SharingError(
            f"the tensor is on {source.device_of(x)}, and its memory cannot be shared on {place}"
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
    """Converts one leaf `x`. `array` is `x` itself, or the array made from a NumPy scalar `x`: a scalar stays as it is
    if NumPy is the target, since nobody can write into it, and is copied otherwise."""
    if array is not x and source is not target and copy is False:
        raise SharingError(
            f"a {type(x).__qualname__} of NumPy has no memory to share; copy=None copies here"
        )
    if place is not None and kind == "tensor" and source.device_of(array) is not place:
        return _elsewhere(source, array, target, place, copy)
    if array is x:
        return _convert(source, kind, x, target, copy)
    return x if source is target else _convert(source, kind, array, target, True)


def _elsewhere(
    source: Backend, x: Any, target: Backend, place: Device, copy: bool | None
) -> Any:
    """`x` as a tensor of the target on another device: converted where it is and then moved if the target knows that
    device, else through the host."""
    _require_there(source, x, target, place, copy)
    # no gradient flows into another framework
    x = source.detached(x)
    if source is not target:
        here = source.device_of(x)
        # the target may have that GPU under the same name, and then the copy stays on it
        x = x if target.has(here) else leaves.move(source, "tensor", x, devices.CPU)
        x = _convert(source, "tensor", x, target, None)
    return leaves.move(target, "tensor", x, place)


def _convert(source: Backend, kind: str, x: Any, target: Backend, copy: bool | None) -> Any:
    """Converts one tensor on the device where it is: in the same memory if that is allowed and possible, else by a
    copy."""
    _refuse_non_tensor(source, kind, x)
    device = source.device_of(x)
    # a view without a gradient, which shares the memory
    plain = source.detached(x)
    if source is target:
        return source.copy(plain, device) if copy else plain
    dtype = dtype_of(source, x)
    _require(target, device, dtype)
    # there is no memory to share
    if 0 in x.shape:
        import numpy

        return target.from_numpy(numpy.empty(tuple(x.shape), host_dtype(dtype)), device)
    # no other framework waits for work that this one has not done yet
    source.finish(plain)
    # no try where the layout alone says that it would fail
    if copy is False or (copy is None and not _is_hopeless(source, plain, target)):
        try:
            return _shared(source, plain, target, device, dtype)
        except (BufferError, UnsupportedError) as error:
            if copy is False:
                raise _not_shared(source, target, error) from error
        except Exception as error:
            if copy is None:
                raise
            raise _not_shared(source, target, error) from error
    return _copied(source, plain, target, device, dtype)


def _refuse_non_tensor(source: Backend, kind: str, x: Any) -> None:
    if kind == "model":
        raise NotATensorError(
            f"convert takes tensors, and a {type(x).__qualname__} is a model of {source.name}: convert its weights "
            f"with xdevice.models.convert_state, which knows their layouts, and a single variable as a tensor "
            f"(tf.convert_to_tensor(x))"
        )
    if kind == "symbol":
        raise traced(source, f"a {type(x).__qualname__}")


def _require(target: Backend, device: Device, dtype: str) -> None:
    try:
        target.require(device)
    except DeviceNotFoundError as error:
        raise DeviceNotFoundError(
            f"{error}; convert keeps the device: move the tensor before, or name another as device="
        ) from None
    require_dtype(target, dtype, "the tensor", "cast it first", place=device)


# sharing


def _is_hopeless(source: Backend, x: Any, target: Backend) -> bool:
    """Whether the address and the strides of `x` are enough to tell that the target cannot work in its memory."""
    takes = target.takes()
    if takes is None:
        return True
    if takes.alignment == 1 and takes.strides == "any":
        return False
    layout = source.memory_layout(x)
    # the source does not say, so only a try can tell
    if layout is None:
        return False
    address, is_compact, is_forward = layout
    return (
        bool(address % takes.alignment)
        or (takes.strides == "compact" and not is_compact)
        or (takes.strides == "forward" and not is_forward)
    )


def _shared(source: Backend, x: Any, target: Backend, device: Device, dtype: str) -> Any:
    """A tensor of the target in the memory of `x`. Raises `BufferError` if the target could not work in that memory."""
    takes = target.takes()
    if takes is None:
        raise BufferError(f"{target.name} {target.version} cannot take over memory")
    for backend in (source, target):
        if not backend.shares(device):
            raise BufferError(
                f"other frameworks cannot see the memory of {device} of {backend.name}"
            )
    # the source must not free or reuse the memory in between
    with source.lending(x):
        return _taken_over(source, dlpack.Lent(source.export(x)), takes, target, device, dtype)


def _taken_over(
    source: Backend,
    lent: dlpack.Lent,
    takes: Takes,
    target: Backend,
    device: Device,
    dtype: str,
) -> Any:
    """Returns a tensor of the target in lent memory. Raises `BufferError` if the target could not work in it, or takes
    it for memory of another device."""
    hindrance = _hindrance(lent, takes, device, dtype)
    if hindrance is not None:
        raise BufferError(f"{hindrance}, and {target.name} could not work in it")
    lent.relabel(takes.labels.get(dtype) or dlpack.label_of(dtype))
    if takes.strides == "compact":
        lent.straighten()
    # a framework that frees lent memory while it holds its own lock would wait for itself
    if source.releases_under_lock or target.releases_under_lock:
        result = lent.hand_over(lambda lent: target.adopt(lent, dtype))
    else:
        result = target.adopt(lent, dtype)
    if target.device_of(result) is not device:
        raise BufferError(
            f"{target.name} mistakes memory of {device} for that of {target.device_of(result)}"
        )
    return result


def _hindrance(lent: dlpack.Lent, takes: Takes, device: Device, dtype: str) -> str | None:
    """A text that says why the target cannot work in the lent memory as it is; None if it can."""
    if not _is_on(lent, device):
        return f"its memory is on device {lent.device} of DLPack, not on {device}"
    # unaligned numbers crash some kernels, even where the framework accepts them
    alignment = max(takes.alignment, min(host_dtype(dtype).itemsize, 8))
    if lent.address % alignment:
        return f"its memory does not begin at a multiple of {alignment} bytes"
    if takes.strides == "compact" and not lent.is_compact():
        return f"its strides {tuple(lent.strides)} are not those of C order"
    if takes.strides == "forward" and any(stride < 0 for stride in lent.strides):
        return f"its strides {tuple(lent.strides)} go backwards"
    return None


def _is_on(lent: dlpack.Lent, device: Device) -> bool:
    kind, index = lent.device
    if device is devices.CPU:
        return kind == dlpack.CPU
    # CUDA and ROCm have numbers of their own in DLPack, and both are GPUs here
    return kind in dlpack.GPUS and index == device.index


def _not_shared(source: Backend, target: Backend, error: Exception) -> SharingError:
    return SharingError(
        f"cannot share the memory of this {source.name} tensor with {target.name}: {error}; copy=None copies here"
    )


# copying


def _copied(source: Backend, x: Any, target: Backend, device: Device, dtype: str) -> Any:
    """A copy for the target. It is made on the device if the target can take the copy's memory over, else through the
    host."""
    if target.takes() is not None and source.shares(device) and target.shares(device):
        if device is devices.CPU:
            return _copied_on_host(source, x, target, dtype)
        try:
            compact = source.compact(x)
            source.finish(compact)  # on a GPU the copy is still being written
            return _shared(source, compact, target, device, dtype)
        except (BufferError, UnsupportedError):
            pass  # only a copy through the host is left
    import numpy

    # asarray brings numbers into the host's byte order: only NumPy has arrays of the other one
    return target.from_numpy(numpy.asarray(source.to_numpy(x), host_dtype(dtype)), device)


def _copied_on_host(source: Backend, x: Any, target: Backend, dtype: str) -> Any:
    """A copy made by NumPy, which asks for huge pages from 4 MB on: with other memory, the first use of its pages takes
    longer than the copy."""
    host = registry.load("numpy")
    return target.from_buffer(host.compact(_host_view(source, x, host, dtype)))


def _host_view(source: Backend, x: Any, host: Backend, dtype: str) -> Any:
    # NumPy's own array needs no view
    if source is host:
        return x
    if math.prod(x.shape) <= _SOONER_READ:
        return source.to_numpy(x)
    try:
        return _shared(source, x, host, devices.CPU, dtype)
    except (BufferError, UnsupportedError):
        return source.to_numpy(x)
