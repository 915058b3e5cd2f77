"""Implements `save` and `load` for tensors and models in safetensors files. A file saved by one framework can be loaded
by any other framework.

The safetensors library writes the files and checks their headers. The library's own functions for each framework are
not used, because they narrow dtypes, fail on 0-d tensors or bfloat16
(https://github.com/safetensors/safetensors/issues/598), or crash the process. This module adds two guarantees. A file
appears under its name only when it is complete and on the disk. The values of a file are read directly into the memory
of the tensors, or copied there.
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
from xdevice.tensors.refusals import (
    refuse_non_container,
    require_dtype,
    symbol_error,
    why_not_writable,
)
from xdevice.twins import owners

from .added_parameters import advice_on_added
from .checkpoints import open_checkpoint
from .disk import file_to_replace, path_text, replacing_file
from .format import DTYPES, ORIGIN, RESERVED, SHARED, SMALL, read_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

    from .format import FileTensor, Header

    Path = str | os.PathLike[str]
    Array = np.ndarray[Any, Any]
    _Keys = tuple[Any, ...]
    """The container keys that lead to a tensor or model, the outermost key first."""
    _Variables = dict[str, "_Variable"]
    """Variables by their names in the file."""

_WRITABLE: Final = frozenset(DTYPES.values())
"""The names of the dtypes that the format supports."""
_LONE: Final = "tensor"
"""The name that a single tensor gets in the file if it is not in a container or model."""


class _Variable(NamedTuple):
    """A tensor, or a variable of a model, in an argument of `save` or `load`."""

    backend: Backend
    value: Any
    keys: _Keys
    """The container keys that lead to the tensor, or to the variable's model."""
    name: str = ""
    """The name of the variable in its model; "" for a tensor outside all models."""
    model: Any = None
    """The variable's model; None for a tensor outside all models."""

    @property
    def is_in_layers(self) -> bool:
        """Whether the variable's backend writes new values through the model. JAX's backend does so, because JAX's
        arrays cannot be changed in place."""
        return self.model is not None and self.backend.has_layers(self.model)

    @property
    def origin(self) -> str:
        """A description of the variable for error messages. It consists of the container keys that lead to the variable
        and of its name in the model."""
        return (
            f"{trees.path_text(self.keys)} {self.name}".rstrip()
            if self.keys
            else f"variable {shown(self.name)}"
        )


class _PlannedWrite(NamedTuple):
    """A variable of `load`'s argument `into`, and the entry of the file that will be written into this variable."""

    name: str
    variable: _Variable
    entry: FileTensor


# `save`, and the functions that list the tensors and variables in an argument of `save` or `load`


def save(path: Path, x: Any) -> None:
    """Writes tensors, or the variables of a model, into a safetensors file. `load` can read the file on every backend.

    An existing file is replaced atomically when the new file is complete and on the disk; if saving fails, the old file
    is unchanged. docs/reference/files.md describes the name that each tensor has in the file.

    Args:
        path: the file to write; its folder must exist. Other programs expect the ending `.safetensors`.
        x: a model, a container of tensors and models, or a single tensor, on any devices. The file does not record the
            devices. A tensor that occurs twice in `x` is written once, and is again a single tensor after loading.

    Raises:
        NotATensorError: if a leaf is neither a tensor nor a model. ContainerError: if two leaves have the same name.
        UnsupportedError: if a tensor is sparse, masked or made up of several parts, like a BCOO. DTypeError: if the
            format does not support a dtype, such as complex128.
        NotBuiltError: if a model has no variables yet. ArgumentError: if `path` is not a path.
        MissingFileError: if the folder does not exist. FilePathError: if `path` is a folder, the disk is full, ...

    The call writes the file and waits until it is on the disk. All tensors on GPUs are first copied to the host.
    Tensors on the CPU are usually not copied, so no other thread may write into them during the call.

    Example:
        >>> import os, tempfile
        >>> xdevice.save(os.path.join(tempfile.mkdtemp(), "point.safetensors"), {"x": xdevice.tensor([1.0, 2.0])})
    """
    from safetensors import TensorSpec, serialize_file

    # the path is checked first, so that a wrong path raises an error before tensors are copied from a GPU
    target = file_to_replace(path)
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
    with replacing_file(target) as new:
        serialize_file(specs, new, metadata=metadata)


def _variables(x: Any, verb: str) -> _Variables:
    """Returns all tensors in `x`, and all variables of the models in `x`, by their names in the file. `verb` is "save"
    or "load into", for messages.

    Raises:
        ContainerError: if two tensors or variables have the same name, if the format does not allow a name, or if `x`
            is nested too deeply.
        NotATensorError: if a leaf is neither a tensor nor a model.
        UnsupportedError: if a tensor is symbolic, or a model's variables cannot be listed completely.
    """
    variables: _Variables = {}
    for prefix, keys, leaf in _leaves(x, verb):
        kind = registry.owner_and_kind(type(leaf))
        if kind is not None and kind.kind == "model":
            # raises an error if the model has tensors that the framework does not list, because the file would lack
            # them
            unlisted.refuse(kind.backend, leaf, "saving" if verb == "save" else "loading into")
        for variable in _variables_of(keys, leaf):
            # a tensor has no name of its own, and a model that is passed alone has no prefix
            name = (
                f"{prefix}.{variable.name}"
                if prefix and variable.name
                else prefix or variable.name
            )
            # a tensor under the key "" keeps that name; a tensor outside all containers has no key
            name = name or ("" if keys else _LONE)
            # lone surrogates, which Python uses for file names that are not UTF-8, cannot be encoded
            if name.encode(errors="ignore").decode() != name:
                raise ContainerError(
                    f"{variable.origin} would be stored under the name {shown(name)}, which cannot be encoded as "
                    f"UTF-8; rename one of the keys"
                )
            # the format reserves this name for its metadata
            if name == RESERVED or name in variables:
                conflict = (
                    f"and {variables[name].origin} both have"
                    if name in variables
                    else "conflicts with the metadata, which has"
                )
                raise ContainerError(
                    f"{variable.origin} {conflict} the name {shown(name)} in a file, where keys are joined by dots; "
                    "rename one of the keys"
                )
            variables[name] = variable
    return variables


def _leaves(x: Any, verb: str) -> list[tuple[str, _Keys, Any]]:
    """Returns a list with a tuple for each tensor or model in `x`. The tuple consists of the prefix of the names in the
    file, the container keys that lead to the tensor or model, and the tensor or model itself. Raises `ContainerError`
    if `x` is nested too deeply."""
    try:
        return list(_walk(x, verb))
    except RecursionError:
        raise trees.too_deep(x) from None


def _walk(x: Any, verb: str) -> Iterator[tuple[str, _Keys, Any]]:
    """Yields the items of the list that `_leaves` returns, one by one."""
    if registry.owner_and_kind(type(x)) or owners.backend_of_model(x):
        yield "", (), x
        return
    # containers with modules are walked here, because a Tree would walk into the modules of Flax and Equinox instead of
    # listing their variables
    if _has_modules(x):
        for key, child in x.items() if isinstance(x, dict) else enumerate(x):
            for prefix, keys, leaf in _walk(child, verb):
                yield f"{key}.{prefix}" if prefix else str(key), (key, *keys), leaf
        return
    refuse_non_container(x, verb)
    tree = trees.Tree(x)
    tree.refuse_sparse("x", verb)  # the file would lack some of its facts, such as the shape
    for keys, leaf in zip(tree.paths(), tree.leaves, strict=True):
        yield ".".join(map(str, keys)), keys, leaf


def _has_modules(x: Any) -> bool:
    """Whether the dicts, lists and tuples of `x` contain, at any depth, a model of Flax or Equinox, or another
    model that xdevice otherwise treats as a container."""
    inner, visited = [x], set[int]()
    for container in inner:  # the loop also visits the items that are appended to `inner`
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
    """Whether `x` is a model of Flax or Equinox, or another model that xdevice otherwise treats as a
    container."""
    return registry.owner_and_kind(type(x)) is None and owners.backend_of_model(x) is not None


def _variables_of(keys: _Keys, x: Any) -> Iterable[_Variable]:
    """Returns the variables of `x` if it is a model, or `x` as the only variable if it is a tensor. `keys` are the
    container keys that lead to `x`. Raises `NotATensorError` for anything else, and `UnsupportedError` for a symbolic
    tensor."""
    model_backend = owners.backend_of_model(x)
    if model_backend is not None:
        return (
            _Variable(model_backend, value, keys, name, model=x)
            for name, value in model_backend.variables(x)
        )
    owner = registry.owner_and_kind(type(x))
    if owner is None:
        raise NotATensorError(
            f"{_path(keys)} is {shown(x)} of type {type(x).__qualname__}, which cannot be saved in a file of tensors; "
            f"leave it out, or convert it to a tensor: xdevice.tensor(...)"
        )
    # a stand-in without values, inside a function that a compiler is tracing
    if owner.kind == "symbol":
        raise symbol_error(owner.backend, _path(keys))
    return [_Variable(owner.backend, x, keys)]


def _path(keys: _Keys) -> str:
    """Returns the keys in Python's notation, for messages; "the argument" if there are no keys."""
    return trees.path_text(keys) or "the argument"


def _host_arrays(variables: _Variables) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns two dicts. The first contains the values of the variables on the host, by name; a variable with several
    names is included only under the first name. The second maps each other name of such a variable to its first
    name."""
    arrays: dict[str, Array] = {}
    shared: dict[str, str] = {}
    # the first name of each variable, by its id
    first_names: dict[int, str] = {}
    for name, variable in variables.items():
        first_name = first_names.setdefault(id(variable.value), name)
        if first_name != name:
            shared[name] = first_name
        else:
            arrays[name] = _host_array(name, variable.backend, variable.value)
    return arrays, shared


def _host_array(name: str, backend: Backend, value: Any) -> Array:
    """Returns the values of a tensor as a contiguous array in the machine's byte order. The safetensors library
    requires this form. `name` is the tensor's name, for messages. Raises `UnsupportedError` if the tensor is not dense,
    and `DTypeError` if the format does not support its dtype."""
    _require_dense(name, backend, value)
    dtype = _name_of(value.dtype)
    if dtype not in _WRITABLE:
        instead = (
            "as its .real and .imag, or as complex64"
            if dtype.startswith("complex")
            else "in another dtype"
        )
        raise DTypeError(
            f"{name} has the dtype {dtype}, which the safetensors format does not support; save it {instead}"
        )
    # `peek`, because it may share the tensor's memory, which suffices for reading; `to_numpy` may copy the values
    array = backend.peek(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # the library writes the memory as it is, and ignores strides
    return np.asarray(array, order="C")


def _require_dense(name: str, backend: Backend, value: Any) -> None:
    """Raises `UnsupportedError` if a tensor is not a single dense array."""
    if not backend.is_dense(value):
        raise UnsupportedError(
            f"{name} is sparse, ragged, masked, or made up of other tensors, which the format does not support; "
            f"save its parts separately, or make the tensor dense"
        )


# cached, because a model has thousands of variables, but few dtypes
@cache
def _name_of(dtype: Any) -> str:
    """Returns the name of a dtype, or its string form if xdevice does not know the dtype."""
    try:
        return dtype_name(dtype)
    except DTypeError:
        return str(dtype)


# `load`, into new tensors or into existing variables


def load_file(path: Path, device: object, backend: str | Backend | None) -> dict[str, Any]:
    """Reads a file and returns its tensors by name, on the given device and backend. `load(path)` calls this function.
    Raises `DTypeError` or `ShapeError` if the backend does not support the dtype or shape of a tensor. Raises the
    errors that `load` lists if the file is missing or damaged."""
    path = path_text(path, "load")
    owner = selection.backend(backend)
    place = place_for(owner, device)
    with open_checkpoint(path) as header:
        # the dtypes and shapes that have been checked: a model has thousands of tensors, but only a few different
        # dtypes and shapes
        checked: set[str | tuple[int, ...]] = set()
        for name, entry in header.entries.items():
            dtype, shape = entry.dtype, entry.shape
            # everything is checked before any values are read
            if dtype not in checked:
                # in a run in float64, float32 is loaded as float64. `loads` also allows 8-bit floats, which
                # xdevice can only move, save and load
                loaded_dtype = floats.effective_dtype(dtype)
                require_dtype(
                    owner,
                    loaded_dtype,
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
    # the file contains a shared tensor under its first name only; the result has the same object under each name
    tensors.update({name: tensors[first_name] for name, first_name in header.shared.items()})
    return tensors


def load_file_into(path: Path, into: Any) -> Any:
    """Writes the tensors of a file into the variables of `into`, a model or a container, and returns `into`. Nothing is
    written unless all names, shapes and dtypes fit."""
    path = path_text(path, "load")
    variables = _variables(into, "load into")
    # the tensors and models in `into`, by the prefixes of their names in the file. At the end, the backends of models
    # are notified of the new values, because some models must copy them to other places
    leaves = {prefix: leaf for prefix, _, leaf in _leaves(into, "load into")}
    with open_checkpoint(path) as header:
        for prefix, x in leaves.items():
            variables.update(_state_to_come(prefix, x, variables, header))
        # in the order of the file, so that the disk reads it from beginning to end
        order = {entry: number for number, entry in enumerate(header.entries.values())}
        planned = sorted(_plan(path, variables, header), key=lambda write: order[write.entry])
        places = [variable.backend.device_of(variable.value) for _, variable, _ in planned]
        arrays = _arrays([write.entry for write in planned], places)
        for (_, variable, _), place, array in zip(planned, places, arrays, strict=True):
            tensor = _to_tensor(variable.backend, array, place)
            # a variable of a JAX module is replaced in the module; any other variable is written in place
            if variable.is_in_layers:
                variable.backend.write_layers(variable.model, {variable.name: tensor})
            else:
                variable.backend.write(variable.value, tensor)
    for prefix, x in leaves.items():
        _hand_over_state(prefix, x, variables)
    return into


def _arrays(entries: Collection[FileTensor], places: Iterable[Device]) -> Iterator[Array]:
    """Yields the values of the entries as arrays, which the caller copies to the devices `places`. If none of these
    devices is the CPU, each array may overwrite the previous one, because `Backend.stage` reads the whole array before
    it returns."""
    arrays = read_tensors(entries, reuse=all(place is not CPU for place in places))
    # XDEVICE_FLOATS changes all numbers that a program loads: it converts them to float64, or changes them by an ULP
    return map(floats.take, arrays) if floats.setting() else arrays


def _state_to_come(
    prefix: str, x: Any, variables: _Variables, header: Header
) -> Iterator[tuple[str, _Variable]]:
    """Creates the state that the optimizer `x` would otherwise create only in its first step. Yields it as pairs of a
    name in the file and a new variable. State without values in the file is left out. `prefix` is the prefix of the
    names of `x` in the file, and `variables` are the existing variables. Yields nothing if `x` is not a model or
    optimizer, or if it is a JAX module, which is treated as a container here."""
    backend, kind = registry.owner_and_kind(type(x)) or (None, None)
    start = f"{prefix}." if prefix else ""
    names = [
        name for name in header.by_name() if name.startswith(start) and name not in variables
    ]
    # the names in `x` itself of the state that it lacks
    lacking = [name.removeprefix(start) for name in names]
    if backend is None or kind != "model" or not lacking:
        return
    for name, value in backend.state_to_come(x, lacking).items():
        # without keys, which are used only in messages of `_variables`, and it has already run
        yield start + name, _Variable(backend, value, keys=(), name=name, model=x)


def _hand_over_state(prefix: str, x: Any, variables: _Variables) -> None:
    """Passes the values written into the model `x` to the model's backend, by the model's own names. The backend then
    updates the state that some optimizers and modules store outside their variables. `prefix` is the prefix of the
    names of `x` in the file."""
    start = f"{prefix}." if prefix else ""
    state = {
        name.removeprefix(start): variable
        for name, variable in variables.items()
        if variable.model is x
    }
    # the set contains one backend, or none if `x` is not a model
    for backend in {variable.backend for variable in state.values()}:
        backend.take_state(x, {name: variable.value for name, variable in state.items()})


def _plan(where: str, variables: _Variables, header: Header) -> list[_PlannedWrite]:
    """Returns a list with each variable, its name, and the entry of the file that is to be written into it. A shared
    variable is listed once. `where` is the path of the file, for messages.

    Raises:
        StateError: if a name is missing or unexpected, if a shape or dtype does not fit, or if a variable has several
            names and the file has a different value for each.
        DTypeError: if the backend does not support a dtype. UnsupportedError: if a variable cannot be written.
    """
    entries = header.by_name()
    # by the id of the variable's value, so that a variable with several names is written once
    planned: dict[int, _PlannedWrite] = {}
    for name, variable in variables.items():
        if name not in entries:
            continue
        entry = entries[name]
        _require_fit(where, name, variable, entry)
        # the plan under another name of the same variable, if there is one, or else this plan
        earlier = planned.setdefault(id(variable.value), _PlannedWrite(name, variable, entry))
        # the file has two entries for a variable with two names. `equal_nan`, because a tied weight may contain NaN
        if earlier.entry is not entry and not np.array_equal(
            earlier.entry.read(), entry.read(), equal_nan=True
        ):
            raise StateError(
                f"{earlier.name} and {name} are the same variable in into=, but have different values in {where}"
            )
    # one name of a shared variable suffices
    missing = [
        name for name, variable in variables.items() if id(variable.value) not in planned
    ]
    extra = [name for name in entries if name not in variables]
    if not missing and not extra:
        _require_same_framework(where, variables, header.origin)
    else:
        raise StateError(
            f"{where} does not fit into=: the file lacks {_list_names(missing)}, and into= lacks {_list_names(extra)}; "
            f"{advice_on_added(extra) or 'read it as a dict with xdevice.load(path)'}"
        )
    return list(planned.values())


def _require_same_framework(where: str, variables: _Variables, origin: str) -> None:
    """Raises `StateError` if a model in `into` belongs to a framework other than that of the tensors in the file.
    Frameworks arrange weights differently, so a square weight from another framework would be loaded transposed,
    without an error. `origin` contains the names of the frameworks, joined by commas. A file of NumPy arrays, or of
    tensors of unknown frameworks, is accepted. `where` is the path of the file, for messages."""
    if origin in ("", "numpy"):
        return
    for variable in variables.values():
        # a variable without a name is not part of a model, such as a tf.Variable in a dict
        if variable.name and variable.backend.name not in origin.split(","):
            target = variable.backend.name
            raise StateError(
                f"{where} was written by {origin}, but into= has a model of {target}, and frameworks arrange weights "
                f"differently; convert the weights: xdevice.load(xdevice.models.convert_state(path, {target!r}, "
                f"like=model), into=model)"
            )


def _require_fit(where: str, name: str, variable: _Variable, entry: FileTensor) -> None:
    """Raises `StateError`, `DTypeError` or `UnsupportedError` if an entry of a file cannot be written into a variable.
    `where` is the path of the file, for messages."""
    own_dtype, own_shape = _name_of(variable.value.dtype), tuple(variable.value.shape)
    # in a run in float64, the float32 of a file is loaded as float64 (`effective_dtype`)
    if (own_dtype, own_shape) != (floats.effective_dtype(entry.dtype), entry.shape):
        raise StateError(
            f"{name} does not fit: it is {entry.dtype} of shape {entry.shape} in {where}, but {own_dtype} of "
            f"shape {own_shape} in into="
        )
    require_dtype(
        variable.backend,
        floats.effective_dtype(entry.dtype),
        name,
        "load it with another backend=",
        loads=True,
    )
    _require_dense(name, variable.backend, variable.value)
    # an object that a framework calls a variable, such as a tf.Variable, can always be written. The arrays of a JAX
    # module can be written through the module. Any other tensor can be written only if `can_write` says so
    is_variable = variable.backend.tensor_of(variable.value) is not None
    if not (is_variable or variable.is_in_layers or variable.backend.can_write(variable.value)):
        raise UnsupportedError(
            f"{name} cannot be written into; load new tensors instead: "
            f"xdevice.load(path, backend={variable.backend.name!r})"
        )
    lack = why_not_writable(variable.backend, variable.value)
    if lack is not None:
        raise StateError(f"{name} {lack}")


def _list_names(names: list[str]) -> str:
    """Returns a string with the first three names and the number of remaining names; "nothing" if there are no
    names."""
    return listed(map(repr, names), 3) or "nothing"


def _require_shape(backend: Backend, name: str, shape: tuple[int, ...]) -> None:
    """Raises `ShapeError` if the backend's tensors cannot have this shape."""
    if len(shape) > backend.most_axes or max(shape, default=0) > backend.longest_axis:
        raise ShapeError(
            f"{name} has the shape {shape}, but {backend.name} supports at most {backend.most_axes} axes of at most "
            f"{backend.longest_axis:,} elements each; load it with another backend="
        )


def _to_tensor(backend: Backend, array: Array, place: Device) -> Any:
    """Returns a new tensor on a device, with the values of an array. On the CPU, the tensor may use the array's own
    memory if the array has more than `SMALL` bytes."""
    if array.nbytes <= SMALL:
        return backend.from_numpy(array, place)
    return backend.from_buffer(array) if place is CPU else backend.stage(array, place)
