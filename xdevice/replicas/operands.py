"""Finds the tensors and models in an argument, checks them, and puts results in their places.

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
from xdevice.tensors.refusals import refuse_non_container, traced

from . import overlaps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.base.devices import Device
    from xdevice.contract import Backend


class Operand(NamedTuple):
    """A tensor or model inside an argument of a verb: its name in an error, its value, and its backend and kind."""

    name: str
    value: Any
    backend: Backend
    kind: str


def leaves_in(x: Any, name: str, verb: str) -> list[Operand]:
    """The tensors and models in `x`, as operands. Raises an error for an object in `x` whose tensors cannot be handled
    one by one."""
    owner = registry.kind_of(type(x))
    if owner is not None:
        return [Operand(name, x, *owner)]
    # once to find objects of unknown types, and then with every place, because results go to every place
    once = trees.searched(x)
    once.refuse_strangers()
    if verb == "replicate":
        once.refuse_shared()
    tree = trees.Tree(x)
    tree.refuse_sparse(name, verb)
    owned = [(leaf, registry.kind_of(type(leaf.value))) for leaf in tree.named_leaves()]
    return [
        Operand(name + leaf.path, leaf.value, *owner)
        for leaf, owner in owned
        if owner is not None
    ]


def tensors_in(x: Any, name: str, verb: str) -> list[Operand]:
    """The tensors in `x`, as operands. Raises `NotATensorError` if there is none, or if there is a model among them."""
    operands = leaves_in(x, name, verb)
    if not operands:
        refuse_non_container(x, verb)
        raise NotATensorError(f"{name} holds no tensor: {shown(x)}")
    for operand in operands:
        if operand.kind == "model":
            raise NotATensorError(
                f"{operand.name} is a model of type {type(operand.value).__qualname__}, expected a tensor; "
                "xdevice.parallel.replicate(model, devices) copies a model to several devices"
            )
        refuse_sparse(operand, verb)
    return operands


def summands_in(x: Any, name: str, who: str = "this replica") -> list[Operand]:
    """The tensors and variables in `x`, as operands of a sum. Raises `NotATensorError` if anything else is in `x`."""
    rows = []
    for path, value in dense_leaves(x, name, "all_reduce"):
        if value is None:
            raise NotATensorError(
                f"{name}{path} is None: {who} has no gradient there; run its backward pass first, and leave out "
                "the parameters that the loss does not depend on"
            )
        owner = registry.kind_of(type(value))
        if owner is None or (owner.kind == "model" and owner.backend.tensor_of(value) is None):
            raise NotATensorError(
                f"{name}{path} is {shown(value)} of type {type(value).__qualname__}, expected a tensor or a variable; "
                "for a model, pass its gradients or its parameters as a list"
            )
        operand = Operand(name + path, value, *owner)
        if operand.kind != "model":
            refuse_symbol(operand)
            refuse_sparse(operand, "all_reduce")
        # raises for a tensor that is spread over devices
        owner.backend.device_of(read(operand))
        rows.append(operand)
    return rows


def dense_leaves(x: Any, name: str, verb: str) -> list[trees.Leaf]:
    """Every leaf of `x`, or `x` itself if it is no container. Raises an error for a sparse array among the
    containers."""
    if is_leaf(x):
        return [trees.Leaf("", x)]
    tree = trees.Tree(x)
    tree.refuse_sparse(name, verb)
    return tree.named_leaves()


def refuse_symbol(operand: Operand) -> None:
    if operand.kind == "symbol":
        raise traced(operand.backend, operand.name)


def refuse_sparse(operand: Operand, verb: str) -> None:
    if not operand.backend.is_dense(operand.value):
        raise operand.backend.unsupported(
            f"{verb} of {operand.name}, a {type(operand.value).__qualname__} that is not dense",
            "make it dense first, by x.to_dense(), x.todense() or tf.convert_to_tensor(x), or take its parts",
        )


def require_built(operands: Iterable[Operand]) -> None:
    for operand in operands:
        if operand.kind == "model":
            operand.backend.require_built(operand.value)


def read(operand: Operand) -> Any:
    return (
        operand.backend.tensor_of(operand.value) if operand.kind == "model" else operand.value
    )


def rebuilt(x: Any, row: list[Operand], new: list[Any]) -> Any:
    """`x` with the values `new` in the places of its operands `row`; `x` itself if no value is new."""
    # by identity: an argument may hold one tensor in several places
    by_id = {id(operand.value): value for operand, value in zip(row, new, strict=True)}
    if id(x) in by_id:
        return by_id[id(x)]
    return trees.map_leaves(x, lambda values: [by_id.get(id(value), value) for value in values])


def length_of(operands: list[Operand]) -> int:
    """Returns the length of all operands along their first axis. Raises `ShapeError` if they differ, or have none."""
    first = operands[0]
    for operand in operands:
        shape = tuple(operand.value.shape)
        if not shape:
            raise ShapeError(
                f"{operand.name} is a single number and has no first axis to split"
            )
        # TensorFlow's symbols have unknown lengths
        if shape[0] is None:
            raise ShapeError(
                f"the length of {operand.name} is not known while {operand.backend.name} traces a function"
            )
        if shape[0] != first.value.shape[0]:
            raise ShapeError(
                f"{operand.name} has {shape[0]} along its first axis, expected {first.value.shape[0]} as {first.name} "
                "has"
            )
    return int(first.value.shape[0])


def sizes_of(length: int, count: int, even: bool, what: str = "devices") -> list[int]:
    size, rest = divmod(length, count)
    sizes = [size + (i < rest) for i in range(count)]
    if even and rest:
        raise ShapeError(
            f"{length} along the first axis cannot be split evenly over {count} {what}; even=False gives parts of "
            f"{', '.join(map(str, sizes))}"
        )
    return sizes


def is_leaf(x: Any) -> bool:
    return registry.kind_of(type(x)) is not None


def shape_of(operand: Operand) -> tuple[int, ...]:
    return tuple(operand.value.shape)


def dtype_of(operand: Operand) -> str:
    return leaves.dtype_of(operand.backend, operand.value)


def bytes_of(operand: Operand) -> int:
    return prod(shape_of(operand)) * host_dtype(dtype_of(operand)).itemsize


def check_sum(operand: Operand, op: str) -> None:
    """Raises `DTypeError` for a dtype that has no sum or no mean."""
    dtype = dtype_of(operand)
    if dtype == "bool":
        raise DTypeError(f"{operand.name} is bool, which has no {op}; make it int32 first")
    if dtype in SHORT_FLOATS:
        raise DTypeError(f"{operand.name} is {dtype}, which has no {op}; make it float16 first")
    if op == "mean" and dtype not in (*FLOATS, *PARTS):
        raise DTypeError(
            f"{operand.name} is {dtype}, which cannot hold a mean; make it float32 first, or take the sum"
        )


def refuse_overlaps(operands: list[Operand]) -> None:
    """Raises `ContainerError` if two of the tensors share memory, so that writing one would change the other."""
    twins = first_overlap(operands)
    if twins is not None:
        raise ContainerError(
            f"{twins[0]} and {twins[1]} share memory and are not one tensor, so that a sum "
            "written into one would change the other; pass copies: xdevice.copy_to(x, device)"
        )


def first_overlap(operands: list[Operand]) -> tuple[str, str] | None:
    """The names of two of the operands that share memory; None if no two do."""
    blocks: dict[tuple[Backend, Device], dict[int, overlaps.Block]] = {}
    for operand in operands:
        tensor = read(operand)
        block = _block(operand, tensor) if operand.backend.can_write(tensor) else None
        if block is not None:
            # the same address on two devices is not the same memory
            blocks.setdefault((operand.backend, operand.backend.device_of(tensor)), {})[
                id(operand.value)
            ] = block
    for together in blocks.values():
        twins = overlaps.first_overlap(together.values())
        if twins is not None:
            return twins[0].name, twins[1].name
    return None


def _block(operand: Operand, tensor: Any) -> overlaps.Block | None:
    shape = shape_of(operand)
    # a tensor without elements shares no byte with any other
    memory = operand.backend.memory_of(tensor) if 0 not in shape else None
    if memory is None:
        return None
    return overlaps.Block(operand.name, *memory, shape, host_dtype(dtype_of(operand)).itemsize)
