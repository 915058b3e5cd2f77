"""Reads the leaves of a value (its tensors, variables and numbers) into host memory for comparisons and recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.containers import trees
from xdevice.core import registry
from xdevice.errors import UnsupportedError
from xdevice.tensors.refusals import symbol_error
from xdevice.twins import owners

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xdevice.contract import Backend

NUMBERS = (bool, int, float, complex)
"""The types of Python's own numbers. Such a number has no dtype: it adopts the dtype of the tensor with which it is
compared."""
PYTHON = "Python"
"""The value of `HostLeaf.owner` for a leaf that is not a tensor."""


class HostLeaf(NamedTuple):
    """A leaf with its value in host memory. The leaf is a tensor, a variable of a model, or an object that is not a
    tensor, such as a number."""

    path: str
    """The path of the leaf in the value, such as `['x'][1]`; empty if the value itself is a tensor."""
    value: Any
    """A NumPy array, which may share the tensor's memory; or the object itself if it is not a tensor."""
    dtype: str
    """The dtype, such as `float32`; for an object that is not a tensor, the name of its type, such as `float`."""
    device: str | None
    """The tensor's device, such as `cpu:0`; None for an object that is not a tensor."""
    owner: str
    """The tensor's framework with its version, such as `torch 2.13.0`; `PYTHON` for an object that is not a tensor."""
    origin: str = ""
    """The parameter's name in its own model if the parameter is compared under its name in the other model; otherwise
    ""."""

    @property
    def is_number(self) -> bool:
        """Whether the value is an array or one of Python's numbers, which can be compared with a tolerance."""
        return isinstance(self.value, (numpy.ndarray, *NUMBERS))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array; () if the value is not an array."""
        return tuple(self.value.shape) if isinstance(self.value, numpy.ndarray) else ()

    @property
    def source(self) -> str:
        """The origin of the leaf for messages: its framework with the version, preceded by the name in `origin` if
        there is one."""
        return f"{self.origin} of {self.owner}" if self.origin else self.owner


def read_leaves(x: object) -> list[HostLeaf]:
    """Returns every leaf of a tensor, model, container or Python number, in the order of the container. The values of
    tensors are NumPy arrays in host memory.

    Raises:
        UnsupportedError: if a tensor is symbolic. NotBuiltError: if a model has no variables yet.
        ContainerError: if a container contains itself, or if xdevice cannot read the tensors in an object of an unknown
            type.
    """
    return [host_leaf for leaf in leaves(x) for host_leaf in read_leaf(leaf.path, leaf.value)]


def leaves(x: object) -> list[trees.Leaf]:
    """Returns the leaves of a container, in which each model is treated as one leaf. If `x` is a tensor or a model, `x`
    itself is the only leaf."""
    # `trees` may treat a model as a container, but here a model is one leaf
    is_leaf = bool(registry.owner_and_kind(type(x)) or owners.backend_of_model(x))
    return [trees.Leaf("", x)] if is_leaf else trees.leaves(x)


def read_leaf(path: str, x: Any) -> Iterator[HostLeaf]:
    """Yields the tensor or other object `x` as a leaf with this path. For a model, yields a leaf for each variable; the
    path of such a leaf is `path` followed by the variable's name. Raises the same errors as `read_leaves`."""
    backend, kind = registry.owner_and_kind(type(x)) or (None, None)
    # checked first, because `registry.owner_and_kind` finds no backend for a module of Flax or Equinox, and because a
    # single variable may be a model
    if model_backend := owners.backend_of_model(x):
        for name, variable in model_backend.variables(x):
            yield read_tensor(model_backend, joined_path(path, name), variable)
    elif backend is None:
        # raises an error for an object of an unknown type that contains tensors, which would otherwise be compared by
        # `==`
        trees.refuse_stranger(path, trees.stranger(x))
        # a scalar of NumPy has a dtype, and Python's own numbers have none. Neither has a device
        if isinstance(x, numpy.generic):
            yield HostLeaf(
                path, numpy.asarray(x), x.dtype.name, None, f"numpy {numpy.__version__}"
            )
        else:
            yield HostLeaf(path, x, type(x).__name__, None, PYTHON)
    elif kind == "symbol":
        raise symbol_error(backend, path or type(x).__qualname__)
    else:
        yield read_tensor(backend, path, x)


def read_tensor(backend: Backend, path: str, x: Any) -> HostLeaf:
    """Returns a tensor, or a variable of a model, as a leaf with this path and with its values in host memory. If the
    tensor is not on a single known device, the leaf's `device` is a message that says so."""
    array = numpy.asarray(backend.to_numpy(x))
    try:
        device = str(backend.device_of(x))
    except UnsupportedError as error:
        # the tensor is on several devices, or on a device of an unknown kind. A message replaces the device instead of
        # an error, because the device matters only for check_device
        device = f"no single device ({error})"
    return HostLeaf(path, array, array.dtype.name, device, f"{backend.name} {backend.version}")


def joined_path(path: str, name: str) -> str:
    """Returns a path followed by a dot and a name; only the name if the path is empty."""
    return f"{path}.{name}".lstrip(".")


def unique_paths(leaves: Sequence[HostLeaf] | Sequence[trees.Leaf]) -> list[str]:
    """Returns a unique path for each leaf. Two keys of a dict may look the same as strings; in that case, a number is
    added to the second path."""
    counts: dict[str, int] = {}
    paths = []
    for leaf in leaves:
        counts[leaf.path] = number = counts.get(leaf.path, 0) + 1
        paths.append(leaf.path if number == 1 else f"{leaf.path} (number {number})")
    return paths
