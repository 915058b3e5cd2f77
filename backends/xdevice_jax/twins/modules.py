"""Lists the variables of modules of Flax (nnx, linen) and Equinox, which are treated as models in conversions and
comparisons. When modules of nnx and Equinox are moved, they are treated as containers.

Facts that the code depends on:
- nnx stores values in `nnx.Variable`s, which are written in place. All variables are listed, including those of classes
  that the user has defined. The exceptions are variables that each run creates anew: keys and counts of random numbers,
  caches, and the values that `sow` and `perturb` store. Arrays that are attributes are listed too.
- Equinox stores arrays as attributes of frozen dataclasses, and expects modules to be replaced, not changed. An array
  that is written into a module is visible through every reference to that module, as with any other framework's model.
- An Equinox module accepts a single example, without an axis for the batch.
- The GRUCell of Equinox stores three of its biases in one array and the fourth in another. Here the two arrays are one
  variable.
- nnx's `eval()` sets two attributes, but only in modules that have these attributes.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from xdevice.contract.models import Models
from xdevice.errors import FileFormatError, UnsupportedError
from xdevice.twins.contract import layouts

from . import linen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from xdevice.base.devices import Device

MODES: Final = ("deterministic", "use_running_average")
"""The attributes by which modules of nnx distinguish evaluation from training."""


class Variable(NamedTuple):
    """A variable of a module. Its value is changed by replacing its array."""

    name: str
    """The dotted name of the variable in the model."""
    value: jax.Array
    write: Callable[[jax.Array], None]
    """Replaces the value with another array."""


def nnx() -> ModuleType | None:
    """Returns Flax's nnx, or None if the program has not imported it."""
    return sys.modules.get("flax.nnx")


def equinox() -> ModuleType | None:
    """Returns Equinox, or None if the program has not imported it."""
    return sys.modules.get("equinox")


def is_nnx(x: object) -> bool:
    """Whether an object is a module of Flax's nnx."""
    library = nnx()
    return library is not None and isinstance(x, library.Module)


def is_equinox(x: object) -> bool:
    """Whether an object is a module of Equinox."""
    library = equinox()
    return library is not None and isinstance(x, library.Module)


def walk(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the path and the module for each module in a model, starting with the model itself. The modules are in the
    order of the attributes, each one directly followed by the modules inside it. No module is yielded twice."""
    visited: set[int] = set()
    # a list serves as the stack, because models may be nested more deeply than Python's recursion limit
    stack = [("", model)]
    while stack:
        path, x = stack.pop()
        # a module that two other modules share is yielded once, under its first path
        if id(x) in visited:
            continue
        visited.add(id(x))
        if _is_module(x):
            yield path, x
        # reversed, because the last item on the stack is processed first
        stack += [
            (layouts.join(path, name), child) for name, _, child in reversed(list(_children(x)))
        ]


def _is_module(x: Any) -> bool:
    """Whether an object is a module of nnx or Equinox."""
    return is_nnx(x) or is_equinox(x)


def _children(x: Any) -> Iterable[tuple[str, Any, Any]]:
    """Returns the name, key and value of each object directly inside a module or a container, or nothing for any other
    object. The name is the key as a string."""
    if isinstance(x, list | tuple):
        return ((str(number), number, child) for number, child in enumerate(x))
    if isinstance(x, Mapping):
        return ((str(key), key, child) for key, child in x.items())
    if _is_module(x):  # the items of an nnx.List are attributes with numbers as names
        return ((str(name), name, child) for name, child in vars(x).items())
    return ()


def variables(model: Any) -> Iterator[Variable]:
    """Yields the variables of a module of nnx, Equinox or linen, in the order of the attributes or collections. Raises
    `NotBuiltError` for a module of linen that is not bound, and `UnsupportedError` for a variable of nnx that does not
    contain a single array or number."""
    if linen.is_linen(model):
        yield from (Variable(*row) for row in linen.arrays(model))
        return
    for path, module in walk(model):
        # the initial values of an Equinox state are not parameters, because a run receives its state as an argument
        if not _is_initial(module):
            # only a tuple has to be replaced when an array in it is written, so a module needs no function `put`
            own_variables = _variables_inside(path, module, put=lambda value: None)
            yield from _with_one_bias(own_variables) if _is_gru(module) else own_variables


def _variables_inside(path: str, x: Any, put: Callable[[Any], None]) -> Iterator[Variable]:
    """Yields the arrays in `x`, which is a module or a container in a module. Arrays in containers inside `x` are
    included, but arrays of modules inside `x` are not. `put(value)` replaces `x` with `value`: an array in a tuple is
    written by replacing the tuple."""
    # a tuple cannot be changed, so its items are changed in a list, which is converted into a new tuple
    items = list(x) if isinstance(x, tuple) else x
    for name, key, value in _children(x):
        child_path, write = layouts.join(path, name), partial(_write, items, key)
        if items is not x:
            write = partial(_write_in_tuple, items, key, type(x), put)
        if _is_variable(value):
            yield from _nnx_variable(child_path, value)
        # a key of random numbers is not a parameter
        elif isinstance(value, jax.Array) and not jax.dtypes.issubdtype(
            value.dtype, jax.dtypes.prng_key
        ):
            yield Variable(child_path, value, write)
        elif not _is_module(value):
            yield from _variables_inside(child_path, value, write)


def _write(holder: Any, key: Any, value: Any) -> None:
    """Writes a value into a module, list or dict. `key` is the name of an attribute, an index or a key."""
    if is_equinox(holder):
        # not setattr, because a module of Equinox is frozen and does not allow assignments
        object.__setattr__(holder, key, value)
    elif _is_module(holder):
        vars(holder)[key] = value
    else:
        holder[key] = value


def _write_in_tuple(
    items: list[Any], key: int, cls: Any, put: Callable[[Any], None], value: Any
) -> None:
    """Writes a value into `items`, the items of a tuple as a list, and passes a new tuple of the class `cls` to
    `put`."""
    items[key] = value
    # the class of a named tuple accepts the items as separate arguments
    put(cls(*items) if hasattr(cls, "_fields") else cls(items))


def _is_variable(value: Any) -> bool:
    """Whether an object is a variable of nnx."""
    library = nnx()
    return library is not None and isinstance(value, library.Variable)


def _nnx_variable(path: str, variable: Any) -> Iterator[Variable]:
    """Yields a variable of nnx, which may be of any class. Yields nothing if the value is None, or if each run creates
    it anew. Raises `UnsupportedError` if the variable does not contain a single array or number."""
    library: Any = nnx()
    value = variable.value
    # created anew in each run (see the module's docstring)
    temporary = (library.RngState, library.Intermediate, library.Cache, library.Perturbation)
    if isinstance(variable, temporary) or value is None:
        return
    if not hasattr(value, "dtype") and not isinstance(value, int | float):
        raise UnsupportedError(
            f"{path} is an nnx variable ({type(variable).__qualname__}) that contains an object of type "
            f"{type(value).__qualname__} instead of one array; make a variable for each array"
        )
    # a Python number becomes an array
    array = value if isinstance(value, jax.Array) else jax.numpy.asarray(value)
    yield Variable(path, array, partial(setattr, variable, "value"))


def _is_initial(module: Any) -> bool:
    """Whether a module only contains the initial value of an Equinox state."""
    library = equinox()
    return library is not None and isinstance(module, library.nn.StateIndex)


def _is_gru(module: Any) -> bool:
    """Whether an object is a GRUCell of Equinox with biases."""
    library = equinox()
    return library is not None and isinstance(module, library.nn.GRUCell) and module.use_bias


def _with_one_bias(own_variables: Iterable[Variable]) -> Iterator[Variable]:
    """Yields the variables of a GRUCell of Equinox. Joins the last two, its two arrays of biases, into one. The joined
    array is new, so writing it requires the function in its `Variable`."""
    *weights, first, second = own_variables
    size = len(first.value)

    def write(value: jax.Array) -> None:
        """Writes the joined biases back into the two arrays."""
        first.write(value[:size])
        second.write(value[size:])

    # the joined variable has the name of the first array
    joined_array = jax.numpy.concatenate([first.value, second.value])
    yield from (*weights, Variable(first.name, joined_array, write))


class JaxModels(Models):
    """The hooks that treat modules as models: for their variables, devices, moves and files. `Models` and `Files`
    describe each hook."""

    def own_file(self, path: str) -> Any:
        """Returns the contents of a msgpack file, which Flax reads, or of an Orbax folder, which Orbax reads. Raises
        `UnsupportedError` if the library is not installed, and `FileFormatError` for a damaged msgpack file."""
        if os.path.isdir(path):
            checkpoint: Any = self._library("orbax.checkpoint", "orbax-checkpoint")
            return checkpoint.PyTreeCheckpointer().restore(os.path.abspath(path))
        # imported only here, because most programs do not read files of Flax
        serialization: Any = self._library("flax.serialization", "flax")
        with open(path, "rb") as file:
            try:
                return serialization.msgpack_restore(file.read())
            except Exception as error:  # msgpack raises its own classes of errors
                raise FileFormatError(f"{path} is not a Flax msgpack file: {error}") from error

    def _library(self, module: str, package: str) -> ModuleType:
        """Imports a module and returns it. If the import fails, raises `UnsupportedError` with the name of the package
        to install."""
        try:
            return importlib.import_module(module)
        except ImportError:
            raise self.unsupported(
                f"reading this file without {package}",
                f"install the package: pip install {package}",
            ) from None

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Returns the name and the device of each variable of a module."""
        return (
            (variable.name, self.device_of(variable.value)) for variable in variables(model)
        )

    def variables(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Returns the name and the array of each variable of a module."""
        return ((variable.name, variable.value) for variable in variables(model))

    def move_model(self, model: Any, device: Device) -> None:
        """Replaces each array of a module with a copy that is on the device."""
        # a list, because writing replaces the values over which the loop iterates
        for variable in list(variables(model)):
            variable.write(self.move(variable.value, device))

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a copy of a module with its arrays copied to the device."""
        return jax.tree.map(
            lambda x: self.copy(x, device) if isinstance(x, jax.Array) else x, model
        )
