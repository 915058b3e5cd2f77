"""`save` and `load`: tensors and models in safetensors files. A file saved by one framework can be loaded by any other.

The safetensors library writes files and checks headers. Its own front ends for the frameworks are not used: they narrow
dtypes, fail on 0-d tensors or bfloat16 (https://github.com/safetensors/safetensors/issues/598), or crash the process.
This module adds two things: a file gets its name only once it is complete and on the disk, and values are read into
memory that the tensors then own.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base import floats
from xdevice.base.devices import CPU
from xdevice.base.dtypes import dtype_name, name_of
from xdevice.containers import trees
from xdevice.core import registry, selection
from xdevice.errors import (
    ContainerError,
    DTypeError,
    NotATensorError,
    ShapeError,
    StateError,
    UnsupportedError,
    listed,
    shown,
)
from xdevice.tensors import unlisted
from xdevice.tensors.creation import place_for
from xdevice.tensors.refusals import lack_of_memory, refuse_non_container, require_dtype, traced
from xdevice.twins import owners

from .added_parameters import advice
from .checkpoints import open_checkpoint
from .disk import path_text, replacing, target_of
from .format import DTYPES, ORIGIN, RESERVED, SHARED, SMALL, read_all

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

    from .format import FileTensor, Header

    Path = str | os.PathLike[str]
    Array = np.ndarray[Any, Any]
    _Keys = tuple[Any, ...]
    """The keys of containers that lead to a tensor or model."""
    _Variables = dict[str, "_Variable"]
    """Variables by their names in the file."""

_WRITABLE: Final = frozenset(DTYPES.values())
"""The names of the dtypes that the format has."""
_LONE: Final = "tensor"
"""The name that a tensor gets in the file if it is saved by itself, and not in a container or model."""


class _Variable(NamedTuple):
    """A tensor, or a variable of a model, in an argument of `save` or `load`."""

    backend: Backend
    value: Any
    keys: _Keys
    """The keys of containers that lead to the tensor, or to the model."""
    name: str = ""
    """The name of the variable in its model; empty for a tensor."""
    model: Any = None
    """The model of the variable; None for a tensor."""

    @property
    def is_in_layers(self) -> bool:
        """Whether the variable belongs to a model whose backend writes variables through the model, as JAX's does: its
        arrays cannot be changed in place."""
        return self.model is not None and self.backend.has_layers(self.model)

    @property
    def origin(self) -> str:
        """The variable in words, for error messages: the keys that lead to it, and its name in the model."""
        return (
            f"{trees.path_text(self.keys)} {self.name}".rstrip()
            if self.keys
            else f"variable {shown(self.name)}"
        )


class _PlannedWrite(NamedTuple):
    """A variable of the argument `into` of `load`, and the entry of the file that is to be written into the
    variable."""

    name: str
    variable: _Variable
    entry: FileTensor


# `save`, and which tensors and variables are in an argument of `save` or `load`


def save(path: Path, x: Any) -> None:
    """Writes tensors, or the variables of a model, into a safetensors file, which `load` reads on every backend.

    An existing file is replaced atomically, once the new file is complete and on the disk: if saving fails, the old
    file is still there. docs/reference/files.md says which name each tensor has in the file.

    Args:
        path: the file to write; its folder must exist. Other programs look for the ending `.safetensors`.
        x: a model, a container of tensors and models, or one tensor, on any devices; the file does not record the
            devices. A tensor that occurs twice in `x` is written once, and is one tensor again after loading.

    Raises:
        NotATensorError: if a leaf is neither a tensor nor a model. ContainerError: if two leaves have the same name.
        UnsupportedError: if a tensor is sparse, masked or made of several parts, as a BCOO is. DTypeError: if the
            format lacks a dtype, such as complex128.
        NotBuiltError: if a model has no variables yet. ArgumentError: if `path` is not a path.
        MissingFileError: if the folder does not exist. FilePathError: if a folder has that name, the disk is full, ...

    Costs as much as writing the file and waiting for the disk. All tensors on GPUs are first copied to the host.
    Tensors on the CPU are usually not copied, so no other thread may write into them during the call.

    Example:
        >>> import os, tempfile
        >>> xdevice.save(os.path.join(tempfile.mkdtemp(), "point.safetensors"), {"x": xdevice.tensor([1.0, 2.0])})
    """
    from safetensors import TensorSpec, serialize_file

    # the path first, so that a wrong one raises before tensors are copied from a GPU
    target = target_of(path)
    variables = _variables(x, "save")
    arrays, shared = _host_arrays(variables)
    specs = {
        name: TensorSpec(
            dtype=name_of(array.dtype),
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in arrays.items()
    }
    metadata = {
        ORIGIN: ",".join(sorted({variable.backend.name for variable in variables.values()}))
    }
    if shared:
        metadata[SHARED] = json.dumps(shared)
    with replacing(target) as new:
        serialize_file(specs, new, metadata=metadata)


def _variables(x: Any, verb: str) -> _Variables:
    """All tensors in `x`, and all variables of the models in `x`, by their names in the file. `verb` is "save" or
    "load into", for messages. Raises `ContainerError` if two of them have the same name, if the format does not allow
    a name, or if `x` is nested too deeply; `NotATensorError` if a leaf is neither a tensor nor a model;
    `UnsupportedError` for a symbolic tensor or a model that cannot be listed completely."""
    variables: _Variables = {}
    for prefix, keys, leaf in _leaves(x, verb):
        kind = registry.kind_of(type(leaf))
        if kind is not None and kind.kind == "model":
            # tensors that the framework does not list would be left out of the file
            unlisted.refuse(kind.backend, leaf, "saving" if verb == "save" else "loading into")
        for variable in _variables_of(keys, leaf):
            name = (
                f"{prefix}.{variable.name}"
                if prefix and variable.name
                else prefix or variable.name
            )
            # a tensor under the key "" keeps that name; a tensor that is in no container has no key
            name = name or ("" if keys else _LONE)
            # lone surrogates, which Python uses in file names that are not UTF-8, cannot be encoded
            if name.encode(errors="ignore").decode() != name:
                raise ContainerError(
                    f"{variable.origin} has the name {shown(name)}, which cannot be encoded as UTF-8; rename a key"
                )
            # the reserved name is that of the format's metadata
            if name == RESERVED or name in variables:
                both = f"and {variables[name].origin} both have" if name in variables else "has"
                raise ContainerError(
                    f"{variable.origin} {both} the name {shown(name)} in a file, where keys are joined by dots; "
                    "rename a key"
                )
            variables[name] = variable
    return variables


def _leaves(x: Any, verb: str) -> list[tuple[str, _Keys, Any]]:
    """Returns for each tensor or model in `x` the beginning of its names in the file, the keys that lead to it, and the
    tensor or model itself. Raises `ContainerError` if `x` is nested too deeply."""
    try:
        return list(_walk(x, verb))
    except RecursionError:
        raise trees.too_deep(x) from None


def _walk(x: Any, verb: str) -> Iterator[tuple[str, _Keys, Any]]:
    """Yields the items of the list that `_leaves` returns, one by one."""
    if registry.kind_of(type(x)) is not None or owners.backend_of_model(x) is not None:
        yield "", (), x
        return
    # containers with modules are walked here: a Tree would walk into the modules of Flax and Equinox, instead of asking
    # for their variables
    if _has_modules(x):
        for key, child in x.items() if isinstance(x, dict) else enumerate(x):
            for prefix, keys, leaf in _walk(child, verb):
                yield f"{key}.{prefix}" if prefix else str(key), (key, *keys), leaf
        return
    refuse_non_container(x, verb)
    tree = trees.Tree(x)
    tree.refuse_sparse("x", verb)  # the file would lack what rebuilds it, such as its shape
    for keys, leaf in zip(tree.paths(), tree.leaves, strict=True):
        yield ".".join(map(str, keys)), keys, leaf


def _has_modules(x: Any) -> bool:
    """Whether a model that moves as a container, as those of Flax and Equinox do, is somewhere in the dicts, lists and
    tuples of `x`."""
    inner, visited = [x], set[int]()
    for container in inner:  # the loop also visits the items that it appends
        children = container.values() if isinstance(container, dict) else container
        # a container may contain itself
        if id(container) in visited or not isinstance(container, dict | list | tuple):
            continue
        visited.add(id(container))
        if any(map(_is_module, children)):
            return True
        inner += children
    return False


def _is_module(x: Any) -> bool:
    """Whether `x` is a model that moves as a container does, as those of Flax and Equinox."""
    return registry.kind_of(type(x)) is None and owners.backend_of_model(x) is not None


def _variables_of(keys: _Keys, x: Any) -> Iterable[_Variable]:
    """The variables of a model; for a tensor, the tensor as the only variable. Raises `NotATensorError` for anything
    else, and `UnsupportedError` for a symbolic tensor."""
    module = owners.backend_of_model(x)
    if module is not None:
        return (_Variable(module, value, keys, name, x) for name, value in module.variables(x))
    owner = registry.kind_of(type(x))
    if owner is None:
        raise NotATensorError(
            f"{_path(keys)} is {shown(x)} of type {type(x).__qualname__}, which a file of tensors cannot hold; leave "
            f"it out, or convert it to a tensor: xdevice.tensor(...)"
        )
    # a stand-in without values, inside a function that a compiler is tracing
    if owner.kind == "symbol":
        raise traced(owner.backend, _path(keys))
    return [_Variable(owner.backend, x, keys)]


def _path(keys: _Keys) -> str:
    """The keys as Python writes them, for messages."""
    return trees.path_text(keys) or "the argument"


def _host_arrays(variables: _Variables) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns two dicts. The first maps names to the values on the host; it has each variable once, under the first of
    its names. The second maps each further name of a shared variable to the first name."""
    arrays: dict[str, Array] = {}
    shared: dict[str, str] = {}
    # the first name of each variable, by its id
    first: dict[int, str] = {}
    for name, variable in variables.items():
        first_name = first.setdefault(id(variable.value), name)
        if first_name != name:
            shared[name] = first_name
        else:
            arrays[name] = _host_array(name, variable.backend, variable.value)
    return arrays, shared


def _host_array(name: str, backend: Backend, value: Any) -> Array:
    """The values of a tensor as a contiguous array in the machine's byte order, which the library can write. Raises
    `UnsupportedError` if the tensor is not dense, and `DTypeError` if the format lacks its dtype."""
    _require_dense(name, backend, value)
    dtype = _name_of(value.dtype)
    if dtype not in _WRITABLE:
        instead = (
            "as its .real and .imag, or as complex64"
            if dtype.startswith("complex")
            else "in another dtype"
        )
        raise DTypeError(
            f"{name} is {dtype}, which the safetensors format does not support; save it {instead}"
        )
    # `peek` may share the tensor's memory, which is enough for reading; `to_numpy` may copy
    array = backend.peek(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # the library writes the memory as it is, and ignores strides
    return np.asarray(array, order="C")


def _require_dense(name: str, backend: Backend, value: Any) -> None:
    """Raises `UnsupportedError` for a tensor that is not one dense array."""
    if not backend.is_dense(value):
        raise UnsupportedError(
            f"{name} is sparse, ragged, masked, or made up of other tensors, which the format does not support; "
            f"save its parts, or make it dense"
        )


# cached, because a model has thousands of variables, but few dtypes
@cache
def _name_of(dtype: Any) -> str:
    """The name of a dtype; for a dtype that xdevice does not know, its `str`."""
    try:
        return dtype_name(dtype)
    except DTypeError:
        return str(dtype)


# `load`, into new tensors or into existing variables


def load_file(path: Path, device: object, backend: str | Backend | None) -> dict[str, Any]:
    """Reads the tensors of a file, and returns them by name, on a device of a backend: what `load(path)` does. Raises
    `DTypeError` or `ShapeError` if the backend lacks the dtype or shape of a tensor, and the errors of a missing or
    damaged file."""
    path = path_text(path, "load")
    owner = selection.backend(backend)
    place = place_for(owner, device)
    with open_checkpoint(path) as header:
        # the dtypes and shapes that were checked already: a model has thousands of tensors, but few
        # of these
        checked: set[str | tuple[int, ...]] = set()
        for name, entry in header.entries.items():
            dtype, shape = entry.dtype, entry.shape
            # everything is checked before anything is read
            if dtype not in checked:
                # in a run in float64, float32 is loaded as float64. `loads` accepts 8-bit floats, which
                # xdevice only moves, saves and loads
                wanted = floats.effective(dtype)
                require_dtype(
                    owner,
                    wanted,
                    name,
                    "load it with another backend=",
                    place=place,
                    loads=True,
                )
                checked.add(dtype)
            if shape not in checked:
                _require_shape(owner, name, shape)
                checked.add(shape)
        arrays = _arrays(header.entries.values(), [place])
        tensors = {
            name: _to_tensor(owner, array, place)
            for name, array in zip(header.entries, arrays, strict=True)
        }
    # the file has a shared tensor once; all of its names get the same object
    tensors.update({name: tensors[other] for name, other in header.shared.items()})
    return tensors


def load_file_into(path: Path, into: Any) -> Any:
    """Writes the tensors of a file into the variables of `into`, a model or a container, and returns `into`. Writes
    nothing unless all names, shapes and dtypes fit."""
    path = path_text(path, "load")
    variables = _variables(into, "load into")
    # the models: at the end, the backend of each is notified of the new values, which some
    # models must take over
    models = {prefix: x for prefix, _, x in _leaves(into, "load into")}
    with open_checkpoint(path) as header:
        for prefix, x in models.items():
            variables.update(_state_to_come(prefix, x, variables, header))
        # in the order of the file, so that the disk reads it from beginning to end
        order = {entry: number for number, entry in enumerate(header.entries.values())}
        planned = sorted(_plan(path, variables, header), key=lambda write: order[write.entry])
        places = [variable.backend.device_of(variable.value) for _, variable, _ in planned]
        arrays = _arrays([write.entry for write in planned], places)
        for (_, variable, _), place, array in zip(planned, places, arrays, strict=True):
            tensor = _to_tensor(variable.backend, array, place)
            # a variable of a module of JAX is replaced in the module, and any other is written in place
            if variable.is_in_layers:
                variable.backend.write_layers(variable.model, {variable.name: tensor})
            else:
                variable.backend.write(variable.value, tensor)
    for prefix, x in models.items():
        _hand_over_state(prefix, x, variables)
    return into


def _arrays(entries: Collection[FileTensor], places: Iterable[Device]) -> Iterator[Array]:
    """Yields the values of the entries, which the caller will put on the devices `places`. If none goes to the CPU,
    each array may overwrite the one before: `Backend.stage`, which copies an array to a GPU, has read the whole array
    when it returns."""
    arrays = read_all(entries, reuse=all(place is not CPU for place in places))
    # XDEVICE_FLOATS changes all numbers that a program loads: to float64, or by an ULP
    return map(floats.take, arrays) if floats.setting() else arrays


def _state_to_come(
    prefix: str, x: Any, variables: _Variables, header: Header
) -> Iterator[tuple[str, _Variable]]:
    """Yields pairs of a name in the file and a new variable, for the state that an optimizer `x` makes only in its
    first step, if the file has values for that state. `prefix` is how the names of `x` in the file begin; `variables`
    are the existing variables. Yields nothing for anything but a model or optimizer, and nothing for a module of JAX,
    which moves as a container."""
    backend, kind = registry.kind_of(type(x)) or (None, None)
    start = f"{prefix}." if prefix else ""
    names = [
        name for name in header.by_name() if name.startswith(start) and name not in variables
    ]
    lacking = [name.removeprefix(start) for name in names]
    if backend is None or kind != "model" or not lacking:
        return
    for name, value in backend.state_to_come(x, lacking).items():
        yield start + name, _Variable(backend, value, (), name, x)


def _hand_over_state(prefix: str, x: Any, variables: _Variables) -> None:
    """Passes the written values of the model `x`, by the model's own names, to its backend: some optimizers and modules
    keep state outside their variables, and take it over now. `prefix` is how the names of `x` in the file begin."""
    start = f"{prefix}." if prefix else ""
    state = {
        name.removeprefix(start): variable
        for name, variable in variables.items()
        if variable.model is x
    }
    # a set of one backend, or of none for anything but a model
    for backend in {variable.backend for variable in state.values()}:
        backend.take_state(x, {name: variable.value for name, variable in state.items()})


def _plan(where: str, variables: _Variables, header: Header) -> list[_PlannedWrite]:
    """Returns a list that says which entry of the file is written into which variable; a shared variable is written
    once. `where` is the path, for messages.

    Raises:
        StateError: if a name is missing or unexpected, a shape or dtype does not fit, or a shared variable would get
            two values. DTypeError: if the backend lacks a dtype. UnsupportedError: if a variable cannot be written.
    """
    entries = header.by_name()
    planned: dict[int, _PlannedWrite] = {}
    for name, variable in variables.items():
        if name not in entries:
            continue
        entry = entries[name]
        _require_fit(where, name, variable, entry)
        other = planned.setdefault(id(variable.value), _PlannedWrite(name, variable, entry))
        # one variable under two names, with an entry each; a tied weight that has NaN is still tied
        if other.entry is not entry and not np.array_equal(
            other.entry.read(), entry.read(), equal_nan=True
        ):
            raise StateError(
                f"{other.name} and {name} are one variable in into=, but have different values in {where}"
            )
    missing = [
        name for name, variable in variables.items() if id(variable.value) not in planned
    ]
    extra = [name for name in entries if name not in variables]
    if missing or extra:
        raise StateError(
            f"{where} does not fit into=: it lacks {_list_names(missing)}, and into= lacks {_list_names(extra)}; "
            f"{advice(extra) or 'read it as a dict with xdevice.load(path)'}"
        )
    return list(planned.values())


def _require_fit(where: str, name: str, variable: _Variable, entry: FileTensor) -> None:
    """Raises `StateError`, `DTypeError` or `UnsupportedError` if an entry of a file cannot be written into a variable.
    `where` is the path of the file, for messages."""
    own_dtype, own_shape = _name_of(variable.value.dtype), tuple(variable.value.shape)
    # in a run in float64, the float32 of a file is loaded as float64 (`effective`)
    if (own_dtype, own_shape) != (floats.effective(entry.dtype), entry.shape):
        raise StateError(
            f"{name} does not fit: it is {entry.dtype} of shape {entry.shape} in {where}, but {own_dtype} of "
            f"shape {own_shape} in into="
        )
    require_dtype(
        variable.backend,
        floats.effective(entry.dtype),
        name,
        "load it with another backend=",
        loads=True,
    )
    _require_dense(name, variable.backend, variable.value)
    # what a framework calls a variable, such as a tf.Variable, can always be written, and the arrays of a module of JAX
    # through the module; any other tensor only if its backend says so
    is_variable = variable.backend.tensor_of(variable.value) is not None
    if not (is_variable or variable.is_in_layers or variable.backend.can_write(variable.value)):
        raise UnsupportedError(
            f"{name} cannot be written into; use new tensors: xdevice.load(path, backend={variable.backend.name!r})"
        )
    lack = lack_of_memory(variable.backend, variable.value)
    if lack is not None:
        raise StateError(f"{name} {lack}")


def _list_names(names: list[str]) -> str:
    """The first three names, and how many more there are; "nothing" for none."""
    return listed(map(repr, names), 3) or "nothing"


def _require_shape(backend: Backend, name: str, shape: tuple[int, ...]) -> None:
    """Raises `ShapeError` for a shape that the backend's tensors cannot have."""
    if len(shape) > backend.most_axes or max(shape, default=0) > backend.longest_axis:
        raise ShapeError(
            f"{name} has the shape {shape}, but {backend.name} takes at most {backend.most_axes} axes of "
            f"{backend.longest_axis:,} elements; load it with another backend="
        )


def _to_tensor(backend: Backend, array: Array, place: Device) -> Any:
    """Returns a new tensor on a device with the values of an array. On the CPU, the tensor may take over the memory of
    an array of more than `SMALL` bytes."""
    if array.nbytes <= SMALL:
        return backend.from_numpy(array, place)
    return backend.from_buffer(array) if place is CPU else backend.stage(array, place)
