"""The verbs: functions that name devices, move and copy tensors, and find and compare the
devices of tensors. Each verb follows the same rule on every backend."""

from __future__ import annotations

from functools import partial

from xdevice.base import devices, spellings
from xdevice.base.devices import CPU, Named

# exported from here, because this module imports `scopes`, which `with device:` needs
from xdevice.base.devices import Device as Device
from xdevice.containers import trees
from xdevice.core import registry, scopes, selection
from xdevice.errors import (
    DeviceError,
    DeviceMismatchError,
    NotATensorError,
    UnsupportedError,
    shown,
)

from . import contents, leaves
from .refusals import refuse_non_container

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, NoReturn, TypeVar

    from xdevice.contract import Backend

    from .leaves import Location

    T = TypeVar("T")

# the default argument of `device`, because `device(None)` raises an error
_DEFAULT = object()
# names of this module, because reading them is faster than reading attributes of other modules
_by_spelling = devices.by_spelling
_probes = registry.probes
_movable = registry.movable


# naming and counting devices


def device(spec: object = _DEFAULT) -> Device:
    """Returns the device that `spec` names. `spec` is a `Device`, a string in any framework's spelling, or a native
    device object.

    Like `torch.get_default_device`, `device()` returns the device on which this thread creates tensors. This is the
    device of the innermost `with device:` block, else of `set_default_device`, else `cpu:0`. Defaults that were set
    with a framework's own functions are ignored.

    Args:
        spec: "cpu", "gpu" (the first), "gpu:1", "cuda:1", "GPU:1", "/GPU:1", "gpu(1)", "mps", "xpu:0",
            "/job:localhost/replica:0/task:0/device:GPU:1", `torch.device`, `mx.gpu(1)`, `paddle.CUDAPlace(1)`,
            `jax.Device`, `tf.config.LogicalDevice`, `tf.DeviceSpec`. A `torch.device("cuda")` without an index means
            PyTorch's current device.

    Raises:
        DeviceError: if `spec` does not name a device: a string such as "", "gpu:-1", "gpu:1:2"
            or "gqu", or another object, such as a bare int, a bool or None.

    The device need not exist: its existence is checked when it is used. Costs 0.1 us for a string that was used before.

    Example:
        >>> xdevice.device("/GPU:1"), xdevice.device()
        (Device('gpu:1'), Device('cpu:0'))
    """
    return scopes.current_device() if spec is _DEFAULT else devices.parse(spec)


def cpu(index: int = 0) -> Device:
    """Returns the host's device: `torch.device("cpu")`, `"/CPU:0"`, `mx.cpu(0)`, `paddle.CPUPlace()`,
    `jax.devices("cpu")[0]`.

    Only TensorFlow (logical CPUs), JAX (`--xla_force_host_platform_device_count`) and MXNet (`mx.cpu(1)`) have CPUs
    with an `index` above 0. The device need not exist.

    Raises:
        DeviceError: if `index` is negative or not an int.

    Example:
        >>> xdevice.cpu()
        Device('cpu:0')
    """
    return devices.of("cpu", _index(index))


def gpu(index: int = 0) -> Device:
    """Returns the accelerator with this index, even if it does not exist. (In that case, `try_gpu` returns the CPU.)

    `gpu(0)` corresponds to `torch.device("cuda:0")`, `"/GPU:0"`, `mx.gpu(0)`, `paddle.CUDAPlace(0)` and
    `jax.devices("gpu")[0]`.

    Raises:
        DeviceError: if `index` is negative or not an int.

    Example:
        >>> xdevice.gpu(1)
        Device('gpu:1')
    """
    return devices.of("gpu", _index(index))


def num_gpus() -> int:
    """Returns the number of GPUs of the selected backend, or of its TPUs if it has no GPU; 0 on NumPy. Starts no CUDA
    context.

    Raises:
        SettingError: if XDEVICE_VIRTUAL_GPUS was set after the backend was loaded. `try_gpu` and `try_all_gpus` raise
            this error, too.

    Example:
        >>> xdevice.num_gpus() >= 0
        True
    """
    backend = _backend_for_counting()
    return backend.count("gpu") or backend.count("tpu")


def try_gpu(i: int = 0) -> Device:
    """Returns `gpu:i`, or `tpu:i` if the backend has TPUs but no GPUs. If that device does not exist: `cpu:0`. Costs
    under 1 us.

    Raises:
        DeviceError: if `i` is negative, a bool, or not an int. (In d2l itself, `try_gpu(-1)` returns a device that does
            not exist.)

    Example:
        >>> xdevice.try_gpu() in (xdevice.gpu(), xdevice.cpu())
        True
    """
    # the usual case is checked without a call, because this function is called often
    if type(i) is not int or i < 0:
        i = _index(i)
    backend = _backend_for_counting()
    if backend.count("gpu") > i:
        return devices.of("gpu", i)
    # TPUs are used only if there is no GPU, as in `num_gpus`. For the many backends without
    # TPUs, the first condition avoids counting
    if "tpu" in backend.kinds and not backend.count("gpu") and backend.count("tpu") > i:
        # if this returned cpu:0, the program would move its work away from the TPU, JAX's
        # default
        return devices.of("tpu", i)
    return CPU


def try_all_gpus() -> list[Device]:
    """Returns all GPUs of the selected backend, else all TPUs, else `[cpu:0]`. The list is never empty.

    Example:
        >>> len(xdevice.try_all_gpus()) >= 1
        True
    """
    backend = _backend_for_counting()
    kind = "gpu" if backend.count("gpu") else "tpu"
    return [devices.of(kind, i) for i in range(backend.count(kind))] or [CPU]


def _backend_for_counting() -> Backend:
    """Returns the selected backend, for functions that count its GPUs. Raises `SettingError` if
    XDEVICE_VIRTUAL_GPUS was set after the backend was loaded."""
    backend = selection.current()
    if selection.are_virtual_gpus_requested():
        from xdevice.contract import environment

        environment.refuse_too_late(backend)
    return backend


def _index(i: object) -> int:
    """Returns the index of a device, an int or a NumPy int, as an int. Raises `DeviceError` for
    a negative index and for any other object."""
    if isinstance(i, bool) or not hasattr(type(i), "__index__"):
        raise DeviceError(
            f"a device index must be a non-negative int, not {shown(i)} of type {type(i).__qualname__}"
        )
    index = int(i.__index__())  # type: ignore[attr-defined]
    if index < 0:
        raise DeviceError(
            f"a device index must be a non-negative int, not {index}; the first GPU has index 0"
        )
    return index


# moving and copying


def to_device(x: T, device: object, non_blocking: bool = False, **misspelled: NoReturn) -> T:
    """Moves `x` to a device. Returns `x` itself if it is there already, otherwise a new tensor. Models move in place.

    Values, dtype, shape and `requires_grad` stay the same, and gradients flow through the move (on MXNet inside
    `record()`). Each tensor is moved by its own backend, whichever backend is selected. docs/reference/devices.md lists
    which containers and objects are known, and says what `non_blocking` does on each backend.

    Args:
        x: a tensor, a model or optimizer, an object with its own method for moving, such as a `TensorDict`, or a
            container of these, which may be nested. Containers keep their type, a tensor that occurs twice stays one
            tensor, and other values pass through.
        device: any form that `xdevice.device` accepts.
        non_blocking: if True, the call returns before the copy is complete, if the framework supports this. The first
            use of the result waits for the copy. Do not write into the source before `xdevice.sync()`.

    Raises:
        DeviceNotFoundError, DeviceError: if a tensor's backend lacks the device; if `device` is not a device.
        DTypeError: if the device lacks the dtype of a tensor, such as float64 on Apple's GPUs. Nothing moves then.
        NotATensorError, NotBuiltError: if `x` contains nothing that could move; if a model has no variables yet.
        ContainerError: if a container cannot be rebuilt, or if tensors in an object of an unknown type would not move.

    Costs less than the framework's own call if `x` is on the device already, otherwise one copy of each tensor.

    Example:
        >>> xdevice.to_device(x := xdevice.ones(2, 3), "cpu") is x
        True
    """
    if misspelled:
        spellings.refuse("to_device", misspelled, "device=, non_blocking=")
    if type(device) is Device:
        target = device
    elif type(device) is str:
        # the look-up saves a call for a string that was used before
        target = _by_spelling.get(device) or devices.parse(device)
    else:
        target = devices.parse(device)
    try:
        # the fast path, for a tensor that is on the device already
        probe = _probes.get(type(x))
        if probe is not None:
            place = probe(x)
            if place is target:
                return x
            # `cuda:1` names the tensor's device, and the backend has confirmed before that its
            # GPUs are of this hardware
            if (
                type(target) is Named
                and place is target.plain
                and target.word in _movable[type(x)].answered
            ):
                return x
    # `x` is on several devices, or on a device of an unknown kind, and is moved below; or its
    # type is unhashable because of the metaclass
    except (UnsupportedError, TypeError):
        pass
    moved: T = contents.transfer(
        x, target, leaves.start_move if non_blocking else leaves.move, verb="move"
    )
    return moved


def copy_to(x: T, device: object) -> T:
    """Returns a copy of `x` on a device. The copy is always in new storage, even on the device of `x`. Gradients flow.

    Arguments and errors are those of `to_device`. The copy of a model or container is a new object. A tensor or model
    that appears twice is copied once. If a container contains a model and some of its layers or parameters, the copy
    contains the layers or parameters of the copied model. `UnsupportedError` is raised for a container in which two
    models share a part, and for an optimizer, unless it belongs to a Keras model that is copied.

    Costs one copy.

    Example:
        >>> x = xdevice.ones(2)
        >>> xdevice.copy_to(x, "cpu") is x
        False
    """
    copied: T = contents.transfer(x, devices.parse(device), leaves.copy, verb="copy")
    return copied


# finding and comparing devices


def device_of(x: object) -> Device:
    """Returns the device of a tensor, of a model, or of all tensors in a container. Costs under 1 us for a tensor.

    On TensorFlow, this is the device of the memory (`backing_device`): an int32 tensor "on" GPU:0 may be on the CPU.

    In a container, NumPy arrays are ignored if there are tensors of another backend, but tensors in objects of unknown
    types are included. A model's tensors in plain attributes, lists and dicts are included too, and so are an
    optimizer's parameters. Tensors that an object keeps in C or in a closure are not found, nor are tensors in objects
    of unknown types to which a model refers: docs/reference/devices.md has the list.

    Raises:
        DeviceMismatchError: if a model or container is spread over devices; the error names two tensors on different
            devices.
        NotBuiltError, NotATensorError: if a model has no variables yet; if `x` contains nothing that has a device.
        UnsupportedError: for a symbolic tensor (inside `jax.jit` or `tf.function`), a tensor spread over devices, or a
            tensor on a device that xdevice does not know (such as PyTorch's "lazy").

    Example:
        >>> xdevice.device_of(xdevice.ones(2, device="cpu"))
        Device('cpu:0')
    """
    try:
        probe = _probes[type(x)]
    # TypeError: the type is unhashable because of its metaclass
    except (KeyError, TypeError):
        return _device_of(x)
    return probe(x)


def _device_of(x: object) -> Device:
    """Does the work of `device_of` for an object whose type is not in `_probes`. Raises the
    same errors."""
    owned = None
    # `x` is not a container of a known type
    if trees.walks.get(id(type(x))) is None:
        x = registry.as_array(x)
        owned = registry.owner_and_kind(type(x))
    if owned is not None:
        # `str()` is "": errors need no name for the only argument
        common = _common_device(leaves.places(*owned, x, str))
    else:
        # this search does not record the names of the tensors, which only an error needs
        places = contents.device_set(x)
        if places is not None and len(places) == 1:
            return places.pop()
        refuse_non_container(x, "find the device of")
        common = _common_device(contents.places(x, ""))
    if common is None:
        raise NotATensorError(
            f"{shown(x)} of type {type(x).__qualname__} contains no tensor, so it has no device; pass a tensor or model"
        )
    return common


def same_device(*xs: object) -> bool:
    """Whether all tensors in the arguments, even of different frameworks, are on the same device. True if there are no
    tensors.

    `torch.device("cuda:1")`, `"/GPU:1"`, `mx.gpu(1)` and `paddle.CUDAPlace(1)` are the same
    device. The same tensors are included as in `device_of`. Costs 0.1 us for each tensor.

    Raises:
        NotATensorError: if an argument is not a tensor, a model or a container.

    Example:
        >>> xdevice.same_device(xdevice.ones(2), {"y": xdevice.ones(3)})
        True
    """
    # tensors of the same type are compared by their backend, which is fastest; this loop is
    # faster than building a set of the types
    cls: Any = type(xs[0]) if xs else None
    for x in xs:
        if type(x) is not cls:
            break
    else:
        try:
            owner = _movable.get(cls)
            if owner is not None:
                return len(owner.devices_of(cls, xs)) == 1
        # a tensor is on several devices: the loop below may find two devices before it reaches
        # this tensor; or the type is unhashable
        except (UnsupportedError, TypeError):
            pass
    first = None
    for x in xs:
        try:
            probe = _probes[type(x)]
        except (KeyError, TypeError):
            return _same_device(xs)
        place = probe(x)
        if place is not first:
            if first is not None:
                return False
            first = place
    return True


def _same_device(xs: tuple[object, ...]) -> bool:
    """Does the work of `same_device` if some of the arguments `xs` are not tensors of known
    types. Raises `NotATensorError` for an argument that cannot have a device."""
    places = _device_set(xs)
    # `_device_set` includes string tensors, which `_argument_places` leaves out
    if places is None or len(places) > 1:
        places = {place for _, place, _ in _argument_places(xs, named={})}
    return len(places) <= 1


def check_same_device(*xs: object, **named: object) -> Device | None:
    """Returns the common device of all tensors in the arguments; None if there are no tensors. Raises an error if
    devices differ.

    The same tensors are included as in `device_of`.

    Args:
        xs: tensors, models, containers. The error calls them `argument 0`, `argument 1`, ...
        named: more such objects, which the error calls by their keywords: `batch['x'][1]` for a tensor in the argument
            `batch`.

    Raises:
        DeviceMismatchError: if two devices differ; the error names the first tensor whose device differs from the first
            tensor's device.
        NotATensorError: if an argument is not a tensor, a model or a container.

    Example:
        >>> xdevice.check_same_device(x=xdevice.ones(2), y=[xdevice.ones(3)])
        Device('cpu:0')
    """
    # the fast way first, without the names of the tensors, which only an error needs
    places = _device_set((*xs, *named.values()))
    if places is not None and len(places) <= 1:
        return places.pop() if places else None
    return _common_device(_argument_places(xs, named))


def _device_set(xs: tuple[object, ...]) -> set[Device] | None:
    """Returns the set of the devices of all tensors in the arguments `xs` of a verb. Returns None if an argument is
    neither a tensor of a known type nor a container, or if only the slower `_argument_places` can find the devices."""
    try:
        for x in xs:
            if type(x) not in _movable and trees.walks.get(id(type(x))) is None:
                return None
        is_container = len(xs) == 1 and type(xs[0]) not in _movable
    # the type is unhashable because of its metaclass
    except TypeError:
        return None
    # a single container is searched directly; several arguments, or one tensor, are searched as
    # the tuple `xs`
    return contents.device_set(xs[0] if is_container else xs)


def _argument_places(xs: tuple[object, ...], named: dict[str, object]) -> Iterator[Location]:
    """Yields a `Location` for each tensor in the arguments `xs` and `named` of a verb, with its
    name in errors. Raises `NotATensorError` for an argument that cannot have a device."""
    for name, x in [*((f"argument {i}", x) for i, x in enumerate(xs)), *named.items()]:
        array = registry.as_array(x)
        owned = registry.owner_and_kind(type(array))
        if owned is not None:
            yield from leaves.places(*owned, array, partial(str, name))
        else:
            refuse_non_container(x, "compare")
            yield from contents.places(x, name)


def _common_device(places: Iterable[Location]) -> Device | None:
    """Returns the device that the tensors at `places` have in common; None if `places` is
    empty. Raises `DeviceMismatchError` if two devices differ."""
    first: Location | None = None
    for location in places:
        # `location[1]` is the device
        if first is None:
            first = location
        elif location[1] is not first[1]:
            raise _mismatch(location, first)
    return first[1] if first is not None else None


def _mismatch(location: Location, first: Location) -> DeviceMismatchError:
    """Returns the error for a tensor at `location`, which is not on the same device as the tensor at `first`. The error
    ends with the hint in one of the two locations; if neither has a hint, with the advice to move the tensor."""
    (name, place, own_hint), (first_name, first_place, first_hint) = location, first
    hint = (
        own_hint or first_hint or f"move it with xdevice.to_device(..., {str(first_place)!r})"
    )
    return DeviceMismatchError(
        f"{name()} is on {place}, but {first_name()} is on {first_place}; {hint}"
    )
