"""Several devices in one process: splitting batches over the devices, copying models and parameters to each device, and
summing gradients.

This module contains the rules that apply to all frameworks; an adapter splits, joins, copies and sums individual
tensors. Everything is checked, in all containers and on all devices, before a tensor is created or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdevice.base import devices as _devices
from xdevice.base.devices import Device
from xdevice.containers import trees
from xdevice.containers.attributes import described_prefix, recorded_device
from xdevice.core import registry
from xdevice.errors import (
    ArgumentError,
    ContainerError,
    DeviceError,
    DTypeError,
    NotATensorError,
    ShapeError,
    UnsupportedError,
    shown,
)
from xdevice.tensors import contents as containers
from xdevice.tensors import leaves, verbs
from xdevice.tensors.refusals import refuse_lacking, refuse_non_container

from .operands import (
    Operand,
    dtype_of,
    is_leaf,
    leaves_in,
    length_of,
    read,
    rebuilt,
    refuse_overlaps,
    refuse_sparse,
    refuse_symbol,
    require_built,
    require_summable,
    shape_of,
    sizes_of_parts,
    summands_in,
    tensors_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_RECORDED: Final = object()
"""Takes the place of each attribute that records the device of its object's tensors, when parts are compared. The parts
are on different devices, so these attributes differ."""


def split_batch(x: Any, devices: Iterable[object], even: bool = True) -> list[Any]:
    """Splits a batch along the first axis into one part for each device, in the order of `devices`. Gradients flow.

    Args:
        x: a tensor, or a container of tensors of the same length along the first axis. Each part is a container of the
            same type. Other values are put into every part unchanged: a list of 6 strings is not split.
        devices: a list of devices in any form. A device that is named twice gets two parts.
        even: if True, all parts must have the same length. If False, the lengths differ by at most one, and longer
            parts come first. A length of 5 on 2 devices becomes 3 and 2; 3 on 4 devices becomes 1, 1, 1 and 0.

    Raises:
        ShapeError: if `even` is True and the length cannot be divided evenly; if a tensor has no first axis, or if its
            length differs from the first tensor's length.
        ArgumentError: if `devices` is empty. DeviceError: if `devices` is not a list.
        DeviceNotFoundError: if a tensor's backend lacks a device. NumPy arrays can only be on cpu:0, so convert them to
            tensors first.
        NotATensorError: if `x` contains a model, or no tensor. UnsupportedError: for a sparse, ragged or masked tensor,
            or a tensor that consists of other tensors (DTensor).

    Costs a copy of each part that goes to another device. On PyTorch, NumPy, MXNet and Paddle (from version 3 on), a
    part that stays on the device of `x` may be a view, which costs nothing; writing into the view changes `x`.

    Example:
        >>> first, second = xdevice.split_batch(xdevice.ones(5, 2), ["cpu", "cpu"], even=False)
        >>> tuple(first.shape), tuple(second.shape)
        ((3, 2), (2, 2))
    """
    places = _places(devices)
    # everything is checked first, so that nothing is split if one part cannot be placed
    operands = tensors_in(x, name="x", verb="split")
    places = _checked_devices(operands, places)
    sizes = sizes_of_parts(length_of(operands), len(places), even)
    # the parts of each tensor on their devices, by the tensor's `id`
    parts: dict[int, list[Any]] = {}
    for operand in operands:
        # a tensor in two places is split once, so it is one tensor in each part too
        if id(operand.value) not in parts:
            pieces = operand.backend.split(operand.value, sizes)
            parts[id(operand.value)] = [
                _moved_part(operand, piece, place, argument=x)
                for piece, place in zip(pieces, places, strict=True)
            ]
    return [
        rebuilt(x, operands, [parts[id(operand.value)][i] for operand in operands])
        for i in range(len(places))
    ]


def gather(parts: Iterable[Any], device: object) -> Any:
    """Joins parts along the first axis on one device: the inverse of `split_batch`. Gradients flow.

    Args:
        parts: a list of tensors, or of containers of the same structure, which are joined tensor by tensor. Numbers
            (0-d tensors, such as the loss of each device) become a vector. Other values must be equal in all parts; NaN
            is treated as equal to NaN.
        device: any form that `xdevice.device` accepts.

    Raises:
        ShapeError, DTypeError, ContainerError: if parts differ in anything but their length; the error names the part.
        ArgumentError: if there are no parts, or parts of several backends. DeviceNotFoundError: as in `to_device`.
        NotATensorError: if a part contains a model, or no tensor. UnsupportedError: for a sparse, ragged or masked
            tensor, or a tensor that consists of other tensors (DTensor).

    As in `to_device`, a tensor in a container stays on the host if it can only be there, such as a tensor of strings.

    Costs a copy of each part that is not on the device yet, and one copy of all parts into the result.

    Example:
        >>> halves = xdevice.split_batch(xdevice.tensor([1, 2, 3]), ["cpu", "cpu"], even=False)
        >>> xdevice.parallel.gather(halves, "cpu").tolist()
        [1, 2, 3]
    """
    place = _devices.parse(device)
    listed = _as_list(parts, "parts")
    # a row contains the tensors of one part, and a column the tensors at the same path in all
    # parts
    rows = [
        tensors_in(part, name=f"parts[{i}]", verb="gather") for i, part in enumerate(listed)
    ]
    _check_structures(listed, rows, name="parts")
    _check_non_tensors(listed, rows)
    columns = list(zip(*rows, strict=True))
    for column in columns:
        # the parts may have different lengths along axis 0, along which they are joined
        _check_alike(column, start=1)
    # the same device under its plain name, such as `gpu:1` for `cuda:1`
    [place] = _checked_devices([operand for row in rows for operand in row], [place])
    # results by the `id`s of the joined tensors: if each container holds a tensor in two
    # places, these parts are joined once
    joined: dict[tuple[int, ...], Any] = {}
    for column in columns:
        if _ids(column) not in joined:
            # the first part tells whether the parts are containers, because all parts have the same structure
            joined[_ids(column)] = column[0].backend.join(
                [
                    _moved_part(operand, operand.value, place, argument=listed[0])
                    for operand in column
                ]
            )
    # each tensor of the first part is replaced by the next joined tensor. They are matched by their order, because one
    # tensor in two places of the first part may be two tensors in another part
    tree = trees.Tree(listed[0])
    values = (joined[_ids(column)] for column in columns)
    return tree.rebuilt(
        [
            leaf if registry.owner_and_kind(type(leaf)) is None else next(values)
            for leaf in tree.leaves
        ]
    )


def replicate(params_or_model: Any, devices: Iterable[object]) -> list[Any]:
    """Creates an independent copy of parameters or of a model on each device, to be trained there.

    The copies share no memory with the source or with each other, even on the source's own device, or if a device is
    named twice. No gradients flow back to the source. In each copy, a tensor or model that appears in several places is
    still one object, and tied weights stay tied. A parameter in the same container as its model still belongs to that
    model. Costs a copy for each device.

    Args:
        params_or_model: a model, whose copies keep its frozen parameters, buffers and mode; a tensor; or a container of
            both. Tensors of ints and bools are copied. Other values are put into every copy unchanged.
        devices: a list of devices in any form.

    | backend | a tensor of floats becomes |
    |---|---|
    | torch | a leaf with `requires_grad=True`; an `nn.Parameter` remains a parameter and keeps its flag |
    | tensorflow | a `tf.Variable`, which tapes watch, optimizers update and `all_reduce` writes |
    | paddle | a leaf with `stop_gradient=False`; a `Parameter` remains a parameter and keeps its flag |
    | mxnet | an array with `attach_grad()` |
    | jax | an array: `jax.grad` accepts any array |
    | numpy | an array |

    Raises:
        ArgumentError, DeviceError, DeviceNotFoundError: if `devices` is empty, or not a list; if a backend lacks a
            device.
        NotATensorError: if there is nothing to copy. NotBuiltError: if a model has a variable without values yet.
        UnsupportedError: for an optimizer (create one for each copy), for two models in one container that share a
            variable (put both into one model), and for a sparse or masked tensor, or a tensor that consists of other
            tensors (DTensor).

    Example:
        >>> first, second = xdevice.parallel.replicate({"w": xdevice.ones(2)}, ["cpu", "cpu"])
        >>> first["w"] is second["w"]
        False
    """
    places = _places(devices)
    operands = leaves_in(params_or_model, name="params", verb="replicate")
    if not operands:
        refuse_non_container(params_or_model, "replicate")
        raise NotATensorError(
            f"{shown(params_or_model)} contains no tensor and no model to replicate; pass parameters or a model"
        )
    require_built(operands)
    for operand in operands:
        if operand.kind != "model":
            refuse_symbol(operand)
            refuse_sparse(operand, "replicate")
    places = _checked_devices(operands, places)
    models = _models(operands)
    return [_replica(params_or_model, operands, models, place) for place in places]


def broadcast(x: Any, devices: Iterable[object]) -> list[Any]:
    """Copies `x` to each device with `copy_to`, always into new storage. Gradients flow.

    Args:
        x: a tensor, a model, or a container of these.
        devices: a list of devices in any form.

    Raises:
        ArgumentError: if `devices` is empty.
        DeviceError: if `devices` is not a list.
        DeviceNotFoundError: if one of the devices does not exist. In that case, nothing has been copied.
        NotBuiltError: if a model has a variable without values yet. The other errors of `copy_to` are raised, too.

    Costs a copy for each device.

    Example:
        >>> len(xdevice.parallel.broadcast(xdevice.ones(2), ["cpu", "cpu"]))
        2
    """
    places = _places(devices)
    # everything is checked before the first copy is made
    for backend, kind, value in containers.owned(x):
        if kind == "model":
            backend.require_built(value)
    containers.check_copies(x, places)
    return [verbs.copy_to(x, place) for place in places]


def all_reduce(tensors: Iterable[Any], op: str = "sum") -> list[Any]:
    """Replaces each tensor by the sum, or the mean, of all the tensors, on the tensor's own device. Use the returned
    list.

    Tensors that can be written are changed in place and returned, with the same gradient flags, so this works for
    `.grad`s and for parameters. No gradients flow through the call. The results are identical, bit for bit, on all
    devices and in all runs.

    | backend | in place | several GPUs |
    |---|---|---|
    | torch | yes | NCCL |
    | tensorflow | `tf.Variable`s only; for `tf.Tensor`s, new ones are returned | NCCL (float16, float32, float64) |
    | mxnet | yes | device to device |
    | paddle | yes | device to device |
    | jax | no | NCCL, as a collective of XLA |
    | numpy | yes, unless read-only | |

    Args:
        tensors: a list with one item for each replica: a tensor, a variable, or a container of both.
        op: "sum" or "mean".

    Raises:
        NotATensorError: if a gradient is not a tensor, but None (the error names the replica), a model, or anything
            else.
        ArgumentError, ShapeError, DTypeError, ContainerError: if the replicas differ in structure, dtype or shape.
        DTypeError: if the tensors are bools, or `op` is "mean" and they are ints.
        ArgumentError: if the list is empty, if the tensors belong to several backends, or if `op` is another word.
        ContainerError, UnsupportedError: if two different tensors share memory; if a tensor is sparse or masked.

    Costs as much as NCCL; without NCCL, one copy to the first device and one back (docs/reference/devices.md).

    Example:
        >>> [x.tolist() for x in xdevice.parallel.all_reduce([xdevice.tensor([1.0, 2.0]), xdevice.tensor([3.0, 4.0])])]
        [[4.0, 6.0], [4.0, 6.0]]
    """
    if op not in ("sum", "mean"):
        raise ArgumentError(f"all_reduce: op must be 'sum' or 'mean', not {shown(op)}")
    listed = _as_list(tensors, "tensors")
    # a row contains the tensors of one replica, and a column the tensors at the same path in
    # all replicas
    rows = [summands_in(x, f"tensors[{i}]") for i, x in enumerate(listed)]
    _check_structures(listed, rows, name="tensors")
    columns = list(zip(*rows, strict=True))
    for column in columns:
        _check_alike(column)
        require_summable(column[0], op)
    _check_ties(columns)
    # the sum of one tensor is the tensor itself
    if len(listed) == 1:
        return listed
    refuse_overlaps([operand for row in rows for operand in row])
    # the results of each column, one for each replica, by the `id`s of the tensors
    reduced: dict[tuple[int, ...], list[Any]] = {}
    for column in columns:
        # tied weights are one tensor, and must be summed only once
        if _ids(column) not in reduced:
            reduced[_ids(column)] = _reduce(column, op)
    results = [reduced[_ids(column)] for column in columns]
    return [
        rebuilt(x, rows[i], [values[i] for values in results]) for i, x in enumerate(listed)
    ]


# checking the arguments


def _places(devices: Iterable[object]) -> list[Device]:
    """Returns the devices that an iterable of spellings names. Raises `ArgumentError` for an empty iterable. Raises
    `DeviceError` for a single device, an object of a framework, and anything else that is not an iterable of
    spellings."""
    # strings and a framework's tensors can be iterated over, too, but are not lists of devices
    if (
        isinstance(devices, str | Device)
        or registry.owner_of(type(devices))
        or not hasattr(devices, "__iter__")
    ):
        raise DeviceError(
            f"expected a list of devices, such as ['cpu', 'gpu:0'] or xdevice.try_all_gpus(), not {shown(devices)}; "
            "to pass several tensors as the first argument, put them in a tuple: (X, y)"
        )
    places = [_devices.parse(device) for device in devices]
    if not places:
        raise ArgumentError(
            "the list of devices is empty; expected one or more devices, such as xdevice.try_all_gpus()"
        )
    return places


def _as_list(things: Iterable[Any], name: str) -> list[Any]:
    """Returns `things`, an iterable with one item for each device, as a list. Raises `NotATensorError` for a string, a
    dict, an object of a framework, and anything that cannot be iterated over. (Iterating over a single tensor would
    split it along its first axis.) Raises `ArgumentError` if there are no items. Errors refer to the items as
    `name`."""
    if (
        isinstance(things, str | dict)
        or registry.owner_of(type(things))
        or not hasattr(things, "__iter__")
    ):
        raise NotATensorError(
            f"expected a list of {name}, one for each device, not {shown(things)} of type "
            f"{type(things).__qualname__}"
        )
    listed = [registry.as_array(thing) for thing in things]
    if not listed:
        raise ArgumentError(
            f"the list of {name} is empty; expected one element for each device"
        )
    return listed


def _checked_devices(operands: Iterable[Operand], places: list[Device]) -> list[Device]:
    """Returns the devices `places` under their plain names, such as `gpu:1` for `cuda:1`. Raises `DeviceNotFoundError`
    if the backend of an operand lacks one of the devices, and `DTypeError` if a device lacks the dtype of an
    operand."""
    for backend in {operand.backend for operand in operands}:
        for place in places:
            backend.require(place)
    # `require` has checked the hardware that names such as `cuda:1` mean
    plain = list(map(_devices.without_hardware_name, places))
    for place in plain:
        for operand in operands:
            refuse_lacking(operand.value, place, (operand.backend,), operand.name)
    return plain


def _moved_part(operand: Operand, x: Any, place: Device, argument: Any) -> Any:
    """Returns `x`, a part of `operand`, on a device. As in `to_device`, a tensor that cannot leave the host stays there
    if it is in a container. `argument` is the argument of the verb: the tensor itself, or a container with the
    tensor."""
    if operand.kind == "tensor" and operand.backend.is_host_bound(x) and not is_leaf(argument):
        return x
    return leaves.move(operand.backend, operand.kind, x, place)


def _ids(column: Iterable[Operand]) -> tuple[int, ...]:
    """Returns the `id`s of the tensors in a column. A column contains the operands at the same path, one from each
    replica or part."""
    return tuple(id(operand.value) for operand in column)


# comparing the parts or replicas


def _check_structures(listed: list[Any], rows: list[list[Operand]], name: str) -> None:
    """Raises `ContainerError` unless the items in `listed`, which are tensors or containers, have tensors at the same
    paths. `rows` contains the operands of each item. Errors refer to the list as `name`."""
    # the name of an operand, such as "parts[1]['x']", begins with the name of its item
    paths = [
        [operand.name.removeprefix(f"{name}[{i}]") for operand in row]
        for i, row in enumerate(rows)
    ]
    for i, own_paths in enumerate(paths):
        # an item that is itself a tensor has the single path "", which no tensor in a container has
        if own_paths == paths[0]:
            continue
        missing = [path for path in paths[0] if path not in own_paths]
        extra = [path for path in own_paths if path not in paths[0]]
        difference = "contains its tensors in a different order"
        if missing:
            difference = f"has no tensor at {missing[0]!r}"
        elif extra:
            difference = f"also has a tensor at {extra[0]!r}"
        raise ContainerError(
            f"{name}[{i}] differs in structure from {name}[0]: it {difference}"
        )


def _check_non_tensors(parts: list[Any], rows: list[list[Operand]]) -> None:
    """Raises `ContainerError` if a value that is not a tensor differs between the parts,
    because the joined result can have only one value in its place. `rows` contains the operands of each part."""
    # the values of each part, by their paths. `_check_structures` has ensured that either every part is a tensor,
    # without other values, or no part is a tensor. So `i` below is the index in `parts`
    others = [
        {leaf.path: leaf.value for leaf in trees.leaves(part) if not is_leaf(leaf.value)}
        for part in parts
        if not is_leaf(part)
    ]
    for i, values in enumerate(others):
        tensors = {operand.name.removeprefix(f"parts[{i}]"): operand for operand in rows[i]}
        for path, value in values.items():
            if _records_device(path, value, tensors):
                values[path] = _RECORDED
    for i, values in enumerate(others):
        # all paths in this part or in the first part
        for path in {**others[0], **values}:
            value, first = values.get(path), others[0].get(path)
            # None as a value differs from a missing value, for which `get` returns None as well
            if (path in values) is not (path in others[0]) or not _is_same(value, first):
                raise ContainerError(
                    f"parts[{i}]{path} is {shown(value)}, but parts[0]{path} is {shown(first)}; values that are "
                    "not tensors must be the same in all parts"
                )


def _records_device(path: str, value: Any, tensors: dict[str, Operand]) -> bool:
    """Whether the value at this path is an attribute, such as `device` or `key_device`, in which an object records the
    device of its tensors. Joining the tensors updates it. `tensors` contains the tensors of the part, by their
    paths."""
    holder, _, name = path.rpartition(".")
    if not name.endswith("device"):
        return False
    recorded = recorded_device(value)
    begin = f"{holder}.{described_prefix(name)}"
    described = [
        operand
        for other, operand in tensors.items()
        if other.startswith(begin) and other.rpartition(".")[0] == holder
    ]
    return bool(described) and all(
        operand.backend.device_of(operand.value) is recorded for operand in described
    )


def _is_same(first: Any, second: Any) -> bool:
    """Whether two values are equal. NaN is treated as equal to NaN."""
    # only a NaN is unequal to itself
    return bool(first is second or first == second or (first != first and second != second))


def _check_alike(column: Sequence[Operand], start: int = 0) -> None:
    """Raises an error unless all tensors of a column (see `_ids`) have the same backend (`ArgumentError`), the same
    dtype (`DTypeError`), the same number of axes, and the same sizes from axis `start` on (`ShapeError`)."""
    first = column[0]
    # the framework's own dtypes are compared, because xdevice has no name for some dtypes, such as JAX's random keys
    # and 4-bit ints
    shape, dtype = shape_of(first), first.value.dtype
    for operand in column[1:]:
        if operand.backend is not first.backend:
            raise ArgumentError(
                f"{operand.name} belongs to {operand.backend.name}, but {first.name} belongs to "
                f"{first.backend.name}; gather and all_reduce work within one framework; convert the "
                "tensors first, with xdevice.convert"
            )
        if operand.value.dtype != dtype:
            raise DTypeError(
                f"{operand.name} has dtype {dtype_of(operand)}; expected {dtype_of(first)}, the dtype of {first.name}; "
                "cast the tensor first"
            )
        other_shape = shape_of(operand)
        if len(other_shape) != len(shape) or other_shape[start:] != shape[start:]:
            raise ShapeError(
                f"{operand.name} has the shape {other_shape}, which does not match the shape {shape} of {first.name}"
            )


def _check_ties(columns: Iterable[Sequence[Operand]]) -> None:
    """Raises `ContainerError` if one replica has the same tensor at two paths, but another replica has two different
    tensors at these paths. The two sums may differ, but the single tensor can contain only one of them. Each of the
    `columns` contains the operands at one path."""
    # the first column in which each tensor occurs, by the tensor's `id`
    first_columns: dict[int, Sequence[Operand]] = {}
    for column in columns:
        for operand in column:
            first_column = first_columns.setdefault(id(operand.value), column)
            # all replicas must have the same tensors in both columns
            if _ids(first_column) != _ids(column):
                earlier = next(
                    candidate for candidate in first_column if candidate.value is operand.value
                )
                raise ContainerError(
                    f"{earlier.name} and {operand.name} are the same tensor here, but two different tensors in "
                    "another replica; tie the weights in all replicas or in none"
                )


# copying tensors and models


def _models(operands: list[Operand]) -> list[Operand]:
    """Returns the models among the operands that have to be copied, each model once. These include single variables,
    such as a `tf.Variable`, which have the kind "model", too. A single variable of another model is left out, because
    it is copied together with that model. Raises `UnsupportedError` if any other two models share a variable."""
    # the model to which each variable belongs, by the variable's `id`
    owners: dict[int, Operand] = {}
    models: list[Operand] = []
    # a model may be in several places
    unique = {
        id(operand.value): operand for operand in operands if operand.kind == "model"
    }.values()
    # the variables are compared only if there are other operands
    if _are_same_object(operands):
        return list(unique)
    # pairs of a model and the `id`s of its variables
    pairs = [
        (operand, [id(variable) for _, variable in _variables(operand)]) for operand in unique
    ]
    # models with more variables come first, so that every model comes before its single variables. A single variable
    # is its own only variable, and comes after a model that has no other variable
    for operand, variables in sorted(
        pairs, key=lambda pair: (-len(pair[1]), id(pair[0].value) in pair[1])
    ):
        # a single variable of a model that has come before it
        if id(operand.value) in owners:
            continue
        for variable in variables:
            if variable in owners:
                raise UnsupportedError(
                    f"{owners[variable].name} and {operand.name} share a variable, but their replicas would not; "
                    "put both in one model, or leave one of the two out"
                )
        owners.update(dict.fromkeys(variables, operand))
        models.append(operand)
    return models


def _are_same_object(operands: list[Operand]) -> bool:
    """Whether all operands are the same object."""
    return len({id(operand.value) for operand in operands}) == 1


def _variables(operand: Operand) -> Iterable[tuple[str, Any]]:
    """Returns the names and values of the variables of an operand that is a model."""
    return operand.backend.variables(operand.value)


def _replica(x: Any, operands: list[Operand], models: list[Operand], place: Device) -> Any:
    """Returns a copy of `x` on the device `place`. `operands` are the tensors and models in `x`, and `models` are the
    operands that are copied as models. Models are copied first. If a parameter of a model also occurs in `x` outside
    the model, the copy of `x` has the parameter of the copied model at that place."""
    # the copy of each operand, by the operand's `id`
    new: dict[int, Any] = {}
    for operand in models:
        model = leaves.copy(operand.backend, operand.kind, operand.value, place)
        # other operands may be variables of this model; the copy's variables have the same
        # names
        if not _are_same_object(operands):
            variables = dict(operand.backend.variables(model))
            new.update((id(old), variables[name]) for name, old in _variables(operand))
        new[id(operand.value)] = model
    # all operands that are not part of a copied model
    for operand in operands:
        if id(operand.value) not in new:
            # here a leaf is a tensor at which gradients end, and which is trained itself
            new[id(operand.value)] = leaves.leaf(operand.backend, operand.value, place)
    return rebuilt(x, operands, [new[id(operand.value)] for operand in operands])


# summing


def _reduce(column: Sequence[Operand], op: str) -> list[Any]:
    """Returns a list with the sum or mean (`op`) of a column of operands, once for each operand. An item is the operand
    itself if the result was written into the operand, otherwise a new tensor."""
    tensors = [read(operand) for operand in column]
    # `_check_alike` has checked that all operands have the same backend
    results = column[0].backend.all_reduce(tensors, op == "mean")
    for operand, tensor, result in zip(column, tensors, results, strict=True):
        # the framework has not written into the variable's tensor, but returned a new tensor
        if operand.kind == "model" and result is not tensor:
            operand.backend.write(operand.value, result)
    return [
        operand.value if operand.kind == "model" else result
        for operand, result in zip(column, results, strict=True)
    ]
