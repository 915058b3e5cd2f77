"""Finds the tensors and models in an argument, checks these operands, and replaces them by results.

The verbs for several devices (`replicas`) and for several processes (`distributed`) use these functions.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.base.dtypes import FLOATS, SHORT_FLOATS, host_dtype
from xdevice.base.floats import PARTS
from xdevice.containers import trees
from xdevice.core import registry
from xdevice.errors import ContainerError, DTypeError, NotATensorError, ShapeError, shown
from xdevice.tensors import leaves
from xdevice.tensors.refusals import refuse_non_container, symbol_error

from . import overlaps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.base.devices import Device
    from xdevice.contract import Backend


class Operand(NamedTuple):
    """A tensor, symbol or model inside an argument of a verb: its name in errors, its value,
    and its backend and kind."""

    name: str
    value: Any
    backend: Backend
    kind: str


def leaves_in(x: Any, name: str, verb: str) -> list[Operand]:
    """Returns the tensors, symbols and models in `x`, as operands. Errors refer to `x` as `name`; `verb` is the name of
    the called function. Raises `ContainerError` for an object of an unknown type that contains tensors, and
    `UnsupportedError` for an object whose tensors are meaningful only together, such as a sparse array."""
    owner = registry.owner_and_kind(type(x))
    if owner is not None:
        return [Operand(name, x, *owner)]
    # `x` is walked twice: first to find objects of unknown types, and then to list every place of a tensor that is in
    # several places, because the result is put into each of these places
    walked_once = trees.tree_with_strangers(x)
    # replicas must not share models or arrays that objects of unknown types hold
    walked_once.refuse_strangers(with_models=verb == "replicate")
    if verb == "replicate":
        walked_once.refuse_shared()
    tree = trees.Tree(x)
    tree.refuse_sparse(name, verb)
    # each leaf with its backend and kind, or with None if it is, for example, a number or a string
    owned = [(leaf, registry.owner_and_kind(type(leaf.value))) for leaf in tree.named_leaves()]
    return [
        Operand(name + leaf.path, leaf.value, *owner)
        for leaf, owner in owned
        if owner is not None
    ]


def tensors_in(x: Any, name: str, verb: str) -> list[Operand]:
    """Returns the tensors and symbols in `x`, as operands. Errors refer to `x` as `name`; `verb` is the name of the
    called function. Raises `NotATensorError` if `x` contains a model, or does not contain a tensor; `UnsupportedError`
    for a tensor that is not dense, and for a symbol of MXNet; and the errors of `leaves_in`."""
    operands = leaves_in(x, name, verb)
    if not operands:
        refuse_non_container(x, verb)
        raise NotATensorError(
            f"there is no tensor in {name}, which is {shown(x)}; expected a tensor, or a container of tensors"
        )
    for operand in operands:
        if operand.kind == "model":
            raise NotATensorError(
                f"{operand.name} is a model of type {type(operand.value).__qualname__}; expected a tensor; "
                "to copy a model to several devices, call xdevice.parallel.replicate(model, devices)"
            )
        # symbols of MXNet have no shape, and cannot be split
        if not hasattr(operand.value, "shape"):
            refuse_symbol(operand)
        refuse_sparse(operand, verb)
    return operands


def summands_in(x: Any, name: str, who: str = "this replica") -> list[Operand]:
    """Returns the tensors and variables in `x`, as operands of a sum. Errors refer to `x` as `name`, and to its owner
    as `who`. Raises `NotATensorError` if `x` contains anything else, such as None or a number. Raises
    `UnsupportedError` for a symbol, and for a tensor that is not dense or is spread over devices."""
    operands = []
    for path, value in dense_leaves(x, name, "all_reduce"):
        if value is None:
            raise NotATensorError(
                f"{name}{path} is None: {who} has no gradient there; run the backward pass first, and leave out "
                "parameters that do not affect the loss"
            )
        owner = registry.owner_and_kind(type(value))
        # a model, except a single variable, such as a `tf.Variable`, which has a tensor
        if owner is None or (owner.kind == "model" and owner.backend.tensor_of(value) is None):
            raise NotATensorError(
                f"{name}{path} is {shown(value)} of type {type(value).__qualname__}; expected a tensor or a variable; "
                "for a model, pass its gradients or its parameters as a list"
            )
        operand = Operand(name + path, value, *owner)
        if operand.kind != "model":
            refuse_symbol(operand)
            refuse_sparse(operand, "all_reduce")
        # raises an error for a tensor that is spread over devices
        owner.backend.device_of(read(operand))
        operands.append(operand)
    return operands


def dense_leaves(x: Any, name: str, verb: str) -> list[trees.Leaf]:
    """Returns every leaf of `x`, tensor or not, with its path. If `x` itself is a tensor, symbol or model, returns only
    `x`, with an empty path. Raises `UnsupportedError` if `x` is or contains a sparse array. Errors refer to `x` as
    `name`; `verb` is the name of the called function."""
    if is_leaf(x):
        return [trees.Leaf("", x)]
    tree = trees.Tree(x)
    tree.refuse_sparse(name, verb)
    return tree.named_leaves()


def refuse_symbol(operand: Operand) -> None:
    """Raises `UnsupportedError` if the operand is a symbol."""
    if operand.kind == "symbol":
        raise symbol_error(operand.backend, operand.name)


def refuse_sparse(operand: Operand, verb: str) -> None:
    """Raises `UnsupportedError` if the operand is a tensor that is not dense. `verb` is the name of the called
    function."""
    if not operand.backend.is_dense(operand.value):
        raise operand.backend.unsupported(
            f"{verb} of {operand.name}, an object of type {type(operand.value).__qualname__} that is not dense",
            "make it dense first with x.to_dense(), x.todense(), x.filled() or tf.convert_to_tensor(x), or pass the "
            "dense tensors that it contains",
        )


def require_built(operands: Iterable[Operand]) -> None:
    """Raises `NotBuiltError` if one of the operands is a model with a variable that has no
    values yet. Operands that are tensors are ignored."""
    for operand in operands:
        if operand.kind == "model":
            operand.backend.require_built(operand.value)


def read(operand: Operand) -> Any:
    """Returns the tensor of an operand. If the operand is a variable of a framework, such as a `tf.Variable`, returns a
    tensor with the values of the variable."""
    # variables have the same kind as models: "model"
    return (
        operand.backend.tensor_of(operand.value) if operand.kind == "model" else operand.value
    )


def rebuilt(x: Any, row: list[Operand], new: list[Any]) -> Any:
    """Returns `x` with the values `new` in place of the operands `row`, which were found in `x`. Returns `x` itself if
    all values are the same objects as before."""
    # values by the `id` of the operand, because `x` may contain a tensor in several places
    by_id = {id(operand.value): value for operand, value in zip(row, new, strict=True)}
    # `x` itself is the tensor or model
    if id(x) in by_id:
        return by_id[id(x)]
    return trees.map_leaves(x, lambda values: [by_id.get(id(value), value) for value in values])


def length_of(operands: list[Operand]) -> int:
    """Returns the length that all operands have along their first axis. Raises `ShapeError` if the lengths differ, if
    an operand has no axis, or if a length is unknown because a function is being traced."""
    first = operands[0]
    for operand in operands:
        shape = tuple(operand.value.shape)
        if not shape:
            raise ShapeError(
                f"{operand.name} is a scalar tensor, which has no first axis to split; to copy a number to every part, "
                "pass a Python number"
            )
        # the length of a TensorFlow symbol may be unknown
        if shape[0] is None:
            raise ShapeError(
                f"the length of {operand.name} is unknown while {operand.backend.name} traces a function; "
                "split it outside that function"
            )
        if shape[0] != first.value.shape[0]:
            raise ShapeError(
                f"{operand.name} has a first axis of length {shape[0]}; expected "
                f"{first.value.shape[0]}, as in {first.name}"
            )
    return int(first.value.shape[0])


def sizes_of_parts(length: int, count: int, even: bool, what: str = "devices") -> list[int]:
    """Returns the sizes of the `count` parts into which an axis of this length is split. Sizes differ by at most one,
    and larger parts come first. Raises `ShapeError` if `even` is True and the length cannot be divided evenly. `what`
    is the error's word for the devices or processes that receive the parts."""
    size, remainder = divmod(length, count)
    sizes = [size + (i < remainder) for i in range(count)]
    if even and remainder:
        raise ShapeError(
            f"a first axis of length {length} cannot be split evenly over {count} {what}; pass even=False for parts "
            f"of lengths {', '.join(map(str, sizes))}"
        )
    return sizes


def is_leaf(x: Any) -> bool:
    """Whether `x` itself is a tensor, symbol or model."""
    return registry.owner_and_kind(type(x)) is not None


def shape_of(operand: Operand) -> tuple[int, ...]:
    """Returns the shape of an operand as a tuple of ints."""
    return tuple(operand.value.shape)


def dtype_of(operand: Operand) -> str:
    """Returns NumPy's name of the dtype of an operand."""
    return leaves.dtype_of(operand.backend, operand.value)


def nbytes_of(operand: Operand) -> int:
    """Returns the total size of an operand's elements in bytes."""
    return prod(shape_of(operand)) * host_dtype(dtype_of(operand)).itemsize


def require_summable(operand: Operand, op: str) -> None:
    """Raises `DTypeError` if tensors of the operand's dtype cannot be summed (`op` is "sum") or averaged (`op` is
    "mean"): for bool, for 8-bit floats, and for a mean of integers."""
    dtype = dtype_of(operand)
    if dtype == "bool":
        raise DTypeError(
            f"{operand.name} has dtype bool, which {op} does not support; cast the tensor to int32 first"
        )
    if dtype in SHORT_FLOATS:
        raise DTypeError(
            f"{operand.name} has dtype {dtype}, which {op} does not support; cast the tensor to float16 first"
        )
    # the keys of `PARTS` are the complex dtypes
    if op == "mean" and dtype not in (*FLOATS, *PARTS):
        raise DTypeError(
            f"{operand.name} has dtype {dtype}, which cannot represent a mean; cast to float32, or compute the sum"
        )


def refuse_overlaps(operands: list[Operand]) -> None:
    """Raises `ContainerError` if two of the operands share memory, because writing into one of them
    would change the other."""
    overlap = first_overlap(operands)
    if overlap is not None:
        raise ContainerError(
            f"{overlap[0]} and {overlap[1]} share memory but are not the same tensor, so a sum "
            "written into one would change the other; pass copies: xdevice.copy_to(x, device)"
        )


def first_overlap(operands: list[Operand]) -> tuple[str, str] | None:
    """Returns the names of two operands that share memory; None if no two operands do. Read-only memory is ignored.
    Operands that are the same tensor are treated as one operand."""
    # the memory of the operands, by the operands' `id`s, separately for each backend and device: the same address on
    # another device is other memory
    blocks: dict[tuple[Backend, Device], dict[int, overlaps.Block]] = {}
    for operand in operands:
        tensor = read(operand)
        block = _block(operand, tensor) if operand.backend.can_write(tensor) else None
        if block is not None:
            place = operand.backend, operand.backend.device_of(tensor)
            blocks.setdefault(place, {})[id(operand.value)] = block
    for blocks_of_place in blocks.values():
        overlap = overlaps.first_overlap(blocks_of_place.values())
        if overlap is not None:
            return overlap[0].name, overlap[1].name
    return None


def _block(operand: Operand, tensor: Any) -> overlaps.Block | None:
    """Returns the memory of `tensor`, the tensor of an operand. Returns None if the tensor has no elements, or if
    tensors of its framework never share memory."""
    shape = shape_of(operand)
    # a tensor without elements shares no byte with other tensors
    memory = operand.backend.memory_of(tensor) if 0 not in shape else None
    if memory is None:
        return None
    return overlaps.Block(operand.name, *memory, shape, host_dtype(dtype_of(operand)).itemsize)
