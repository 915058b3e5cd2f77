"""`State`, named tensors of one framework, and `load_state`, which writes them into a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdevice.base.dtypes import dtype_name
from xdevice.contract import Backend
from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown
from xdevice.tensors.refusals import lack_of_memory
from xdevice.twins import owners
from xdevice.twins.contract import layouts

from .twin import some_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST: Final = 12
"""How many reasons an error names."""


class State(dict[str, Any]):
    """Named tensors of one framework: what `convert_state` gives. A dict; `print` shows what each tensor came from.

    Young: it may change in a minor version.

    Attributes:
        backend: the name of the framework that the tensors are of.
        origins: for each name, the names of the source's tensors that the tensor was made of.
        unmapped: names, each with the reason: tensors of the source that found no place, and variables of `like` that
            were not filled. `state[name] = x` takes out a name of `like`, `settle` any name.
        differences: a line for each difference that is not in the values, but changes outputs or training: another eps,
            momentum, padding, pool, activation or dropout's mode; what could not be compared; with `inputs=`, outputs
            that differ.
        settings: those lines of `differences` that say why equal parameters may give other outputs: what two layers set
            differently, and what could not be compared.
        pairs: which layer of the source became which of `like`, by path: a dict that `names=` takes again.
        done: a line for each thing that was done to make the source fit: a prefix taken off, a nested state taken out.
        skipped: the names of the variables of `like` that stay as they are, because `skip=` says so.

    Example:
        >>> import numpy as np
        >>> state = xdevice.convert_state({"fc.weight": np.ones((2, 3), "float32")}, "numpy", kinds={"fc": "linear"})
        >>> print(state)
        1 tensor for numpy:
          fc.weight  float32 (2, 3)  from fc.weight
    """

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend
        self.origins: dict[str, tuple[str, ...]] = {}
        self.unmapped: dict[str, str] = {}
        self.differences: list[str] = []
        self.settings: list[str] = []
        self.pairs: dict[str, str] = {}
        self._forms: dict[str, str] = {}
        self.done: list[str] = []
        self.skipped: list[str] = []

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a tensor, and takes its name out of `unmapped`."""
        super().__setitem__(name, value)
        getattr(self, "unmapped", {}).pop(name, None)  # unpickling sets items before attributes

    def settle(self, *names: str) -> None:
        """Takes names out of `unmapped`, to say that you have dealt with these tensors or do not need them.

        A tensor of the source that you split or merged by hand stays in `unmapped` until you call this, and strict
        loading fails. A variable of the model that has no value yet is still missing when loading: `state[name] = x`
        gives it one.

        Raises:
            StateError: a name is not in `unmapped`; then no name was taken out.

        Costs nothing.

        Example:
            >>> state = xdevice.convert_state({}, "numpy", kinds={})
            >>> state.settle("fc.weight")
            Traceback (most recent call last):
            xdevice.errors.StateError: 'fc.weight' is not in unmapped, which has none
        """
        for name in names:
            if name not in self.unmapped:
                raise StateError(f"{shown(name)} is not in unmapped, which has {some_of(self.unmapped)}")
        for name in dict.fromkeys(names):
            del self.unmapped[name]

    def load_into(self, model: Any, *, strict: bool = True) -> None:
        """The same as `xdevice.load_state(model, self, strict=strict)`.

        Raises:
            StateError: as `load_state` does.

        Costs one copy of each tensor.

        Example:
            >>> state = xdevice.convert_state({}, "numpy", kinds={})
            >>> state.load_into("no model")
            Traceback (most recent call last):
            xdevice.errors.NotATensorError: expected a model to load into, not 'no model' of type str
        """
        load_state(model, self, strict=strict)

    def __str__(self) -> str:
        count = f"{len(self)} tensor{'' if len(self) == 1 else 's'} for {self.backend}"
        wide = max(map(len, self), default=0)
        lines = [f"{count}:" if self else count]
        for name, value in self.items():
            origin = f"  from {' and '.join(self.origins[name])}" if name in self.origins else ""
            lines.append(f"  {name:{wide}}  {_form(value)}{origin}{self._forms.get(name, '')}")
        unmapped = [f"{name}: {why}" for name, why in self.unmapped.items()]
        for title, texts in (("done", self.done), ("not mapped", unmapped), ("differences", self.differences)):
            if texts:
                lines += [f"{title}:", *(f"  {text}" for text in texts)]
        return "\n".join(lines)


def load_state(model: Any, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Writes named tensors into the variables of a model, in place.

    Young: it may change in a minor version.

    Args:
        model: a built model: a PyTorch Module, a Paddle or Keras Layer or Model, a Gluon Block.
        state: tensors of the model's framework by the model's names: what `convert_state(..., like=model)` gives.
        strict: whether every variable must be given, and `unmapped` of a `State` be empty. With False, variables that
            are not given stay as they are. A name that the model does not have, or another shape or dtype, is
            always an error.

    A variable with several names is given by one of them, or by all with one value. PyTorch's `num_batches_tracked`
    may always be missing. What a `State` lists in `differences` is not an error.

    Raises:
        StateError: the state does not fit; all reasons are listed, and nothing was written.
        NotATensorError: `model` is not a model. NotBuiltError: the model has no variables yet.

    Costs one copy of each tensor.

    Example:
        >>> xdevice.load_state([], {})
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: expected a model to load into, not [] of type list
    """
    backend = owners.backend_of_model(model)
    if backend is None:
        raise NotATensorError(
            f"expected a model to load into, not {shown(model, 60)} of type {type(model).__qualname__}"
        )
    variables = dict(backend.variables(model))
    wrong = []
    has_other_names = False
    if unknown := [name for name in state if name not in variables]:
        wrong.append(f"{some_of(unknown)}: the model has no such variable; it has {some_of(variables)}")
        has_other_names = isinstance(state, State) and not state.pairs
    if has_other_names:
        wrong.append("the state was converted without like=, which gives it the names of this model")
    wrong += _misfits(backend, model, variables, state)
    if strict and not has_other_names:
        wrong += _missing(backend, model, variables, state)
    if len(wrong) > _MOST:
        wrong[_MOST:] = [f"and {len(wrong) - _MOST} more"]
    if wrong:
        raise StateError(
            f"the state does not fit this {type(model).__qualname__} of {backend.name}, and nothing was written:\n  "
            + "\n  ".join(wrong)
        )
    write_variables(backend, model, variables, state)
    backend.take_state(model, variables)


def write_variables(backend: Backend, model: Any, variables: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Writes values into `variables` of a model, which `values` names. Each has the dtype and the shape of its
    variable."""

    def there(name: str) -> Any:
        place, value = backend.device_of(variables[name]), values[name]
        return value if backend.device_of(value) is place else backend.move(value, place)

    if backend.has_layers(model):
        backend.write_layers(model, {name: there(name) for name in values})
        return
    for name in values:  # one at a time, so that no second copy of a model is on its device
        backend.write(variables[name], there(name))


def _misfits(backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    written: dict[int, str] = {}
    casts: dict[tuple[str, str], list[str]] = {}
    for name, value in state.items():
        if name not in variables:
            continue
        variable = variables[name]
        owner = registry.kind_of(type(value))
        if owner is None or owner.kind != "tensor" or owner.backend is not backend:
            yield f"{name}: got a {type(value).__qualname__}, expected a tensor of {backend.name}; use convert_state"
            continue
        there, here = _form(variable), _form(value)
        if there != here and tuple(variable.shape) == tuple(value.shape):
            casts.setdefault((dtype_name(value.dtype), dtype_name(variable.dtype)), []).append(name)
        elif there != here:
            yield f"{name}: got {here}, expected {there}"
        elif not (backend.has_layers(model) or _is_writable(backend, variable)):
            yield f"{name}: the variable cannot be written"
        elif lack := lack_of_memory(backend, variable):
            yield f"{name}: the variable {lack}"
        elif backend.device_of(value).kind == "meta":
            yield f"{name}: it is on meta, where it has no values"
        first = written.setdefault(id(variable), name)
        # the same value twice is how a checkpoint writes a tied weight
        if first != name and there == here and not _equal(backend, value, state[first]):
            yield f"{name} and {first} are one variable in the model, but two different values were given"
    for (came, expected), names in casts.items():
        yield f"{tensors_are(names)} {came}, expected {expected}; dtype='like' of convert_state casts"


def _missing(backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    present = {id(variables[name]) for name in state if name in variables}
    unmapped, skipped = (state.unmapped, state.skipped) if isinstance(state, State) else ({}, ())
    missing = [
        name for name, variable in variables.items()
        if id(variable) not in present and name not in unmapped and name not in skipped
    ]  # fmt: skip
    parts = (part for layer in backend.layers(model) for part in layer.parts) if missing else ()
    counters = {part.name for part in parts if part.of == (layouts.COUNTER,)}
    yield from (f"{name}: missing; strict=False leaves it as it is" for name in missing if name not in counters)
    for name, why in unmapped.items():
        if name not in state:
            yield f"{name}: {why}; strict=False loads the rest"


def tensors_are(names: list[str]) -> str:
    return f"{names[0]}: it is" if len(names) == 1 else f"{len(names)} tensors are"


def _form(x: Any) -> str:
    return f"{dtype_name(x.dtype)} {tuple(x.shape)}"


def _is_writable(backend: Backend, variable: Any) -> bool:
    return backend.tensor_of(variable) is not None or backend.can_write(variable)


def _equal(backend: Backend, one: Any, other: Any) -> bool:
    return backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()
