"""`convert_state`: the parameters of a model of one framework, for a model of another; `layouts` has the rules.

Everything goes by way of PyTorch's layout: each parameter of the source becomes the parameters of PyTorch that it
stands for, and these become the parameters of the target. What a parameter is comes from a layer, of the source or of
the target, or from `kinds`; never from its name or shape alone.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base import devices
from xdevice.base.dtypes import dtype_name
from xdevice.contract import Backend, layouts
from xdevice.contract.layouts import Layer, Part
from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown
from xdevice.tensors.refusals import require_dtype

from .files import lack_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["State", "convert_state", "load_state"]

_SHAPING: Final = ("groups", "layers", "bidirectional")
"""Settings without which the parameters of two layers are not the same ones."""
_MOST_LAYERS: Final = 32


class State(dict[str, Any]):
    """Named tensors of one framework: what `convert_state` gives. It is a dict; `print` shows what became of what.

    Attributes:
        backend: the name of the framework that the tensors are of.
        origins: for each name, the names in the source that it was made of.
        unmapped: what found no place, or was not filled: a name of the source or of `like`, and why. `state[name] = x`
            takes a name out.
        differences: what is not in the values, and changes outputs or training: another eps, momentum, padding, ...

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

    def __setitem__(self, name: str, value: Any) -> None:
        """What is given by hand is mapped."""
        super().__setitem__(name, value)
        getattr(self, "unmapped", {}).pop(name, None)  # unpickling sets items before attributes

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
        lines = [f"{count}:" if self else f"{count}"]
        for name, value in self.items():
            origin = f"  from {' and '.join(self.origins[name])}" if name in self.origins else ""
            lines.append(f"  {name:{wide}}  {dtype_name(value.dtype)} {tuple(value.shape)}{origin}")
        lines += ["not mapped:"] * bool(self.unmapped) + [f"  {name}: {why}" for name, why in self.unmapped.items()]
        lines += ["differences:"] * bool(self.differences) + [f"  {text}" for text in self.differences]
        return "\n".join(lines)


def convert_state(
    source: Any,
    backend: str | Backend,
    *,
    like: Any = None,
    kinds: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    device: object = None,
) -> State:
    """The parameters and running statistics of a model, in the layouts of another framework.

    Args:
        source: a built model of PyTorch, Paddle, Gluon or Keras, or a flat dict of the named tensors of one; or of JAX
            or NumPy tensors, in PyTorch's layout and with PyTorch's names.
        backend: the target: "torch", "paddle", "mxnet", "tensorflow" (Keras), "jax", "numpy", or a `Backend`.
        like: a built model of the target. The result has its names, on its devices.
        kinds: what the layers of a dict are, or those layers of a model whose class is not the framework's: `{"fc":
            "linear", "block.conv1": "conv"}`. Each must fit the shapes. Kinds: linear, conv, conv_transpose,
            batch_norm, embedding, layer_norm, lstm, gru, prelu, and "same" for a single tensor of one layout
            everywhere.
        names: which layer of the source is which of `like`, where that is not clear: `{"fc1": "head.dense"}`. Paths
            are written with dots, also for Keras.
        device: where to put the tensors; without it, where those of `like` are, or those of the source.

    Without `like`, names are the source's paths and the target's parameters: `fc.weight` of PyTorch is `fc.kernel` for
    Keras. With it, layers are paired by their paths if both models have the same ones; else in the order of definition,
    if kinds and shapes agree in that order, and no two layers of one kind and shape have names that would fit better
    exchanged; else each with the only one of its kind and shape. A layer that is then still unpaired is an error.

    | layer, in PyTorch | torch | paddle | mxnet (Gluon) | tensorflow (Keras) |
    |---|---|---|---|---|
    | Linear `weight` (O, I) | same | transposed | same | `kernel`, transposed |
    | Conv `weight` (O, I, h, w) | same | same | same | `kernel` (h, w, I, O) |
    | ConvTranspose `weight` (I, O, h, w) | same | same | same | `kernel` (h, w, O, I), no groups |
    | BatchNorm | same | `_mean`, `_variance` | `gamma`, `beta` | `gamma`, `beta`, `moving_mean`, `moving_variance` |
    | LayerNorm | same | same, flat | `gamma`, `beta` | `gamma`, `beta` |
    | Embedding `weight` | same | same | same | `embeddings` |
    | PReLU `weight` | same | `_weight` | `alpha` | `alpha`, with the axes of its input |
    | LSTM | same | same | `i2h_weight`, ... | `kernel`, transposed; `bias` is the sum of both |
    | GRU | same | same | `i2h_weight`, ... | gates z, r, n, transposed; `bias` (2, 3H) |

    From a Keras LSTM, `bias_ih` is its bias and `bias_hh` is 0. An LSTM or GRU of Keras has one layer.

    The result is a `State`, whose `unmapped` and `differences` say what could not be kept: read them, or print it.
    Dtypes stay; nothing is cast. The tensors share no memory with the source, and ask for no gradient.

    Raises:
        StateError: tensors whose kind nothing says, or whose shapes do not fit that kind; layers that pair in more than
            one way or in none.
        NotATensorError: neither a model nor a flat dict of tensors of one framework; `like` not a model of `backend`.
        NotBuiltError: a model that has no variables yet. DTypeError: a dtype that the target lacks or would narrow.
        DeviceNotFoundError: a device that the target lacks: say `device`. UnsupportedError: an optimizer.
        BackendNotFoundError, BackendImportError: no such backend here.

    Costs a copy of every tensor through the host.

    Example:
        >>> import numpy as np
        >>> state = {"fc.weight": np.zeros((2, 3), "float32"), "fc.bias": np.zeros(2, "float32")}
        >>> sorted(xdevice.convert_state(state, "numpy", kinds={"fc": "linear"}))
        ['fc.bias', 'fc.weight']
    """
    target = registry.load(backend.name if isinstance(backend, Backend) else backend)
    given, renamed = dict(kinds or {}), dict(names or {})
    _check_kinds(given)
    wanted = (
        None if like is None else _model_side(_model_of(like, target), {renamed.get(k, k): given[k] for k in given})
    )
    found = registry.kind_of(type(source))
    if found is not None and found[1] == "model":
        origin = _model_side((found[0], source), given)
    else:
        origin = _flat_side(source, _kinds_with(given, wanted, renamed))
    if wanted is None and renamed:
        raise StateError("names= says which layer of like= is meant; give like=, the model")
    state = State(target.name)
    writer = _Writer(origin, target, state, device)
    if wanted is None:
        for layer in origin.layers:
            writer.put_freely(layer)
    else:
        pairs = _paired(origin, wanted, renamed)
        for one, other in pairs:
            writer.put(one, other, wanted)
        writer.list_rest(pairs, wanted)
    for name in origin.unknown:
        state.unmapped[name] = f"no layer that xdevice knows has it; kinds={{{name!r}: 'same'}} takes it as it is"
    return state


def load_state(model: Any, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Writes named tensors into the variables of a model, in place.

    Args:
        model: a built model: a PyTorch Module, a Paddle or Keras Layer or Model, a Gluon Block.
        state: tensors of the model's framework by the model's names: what `convert_state(..., like=model)` gives.
        strict: whether every variable must be given, and nothing of a `State` be unmapped. With False, variables that
            are not given stay as they are. A name that the model does not have, or another shape or dtype, is
            always an error.

    A variable with several names is given by one of them, or by all with one value. PyTorch's `num_batches_tracked`
    may always be missing. What a `State` lists in `differences` is not an error.

    Raises:
        StateError: the state does not fit; all reasons are listed, and nothing was written.
        NotATensorError: no model. NotBuiltError: it has no variables yet.

    Costs one copy of each tensor.

    Example:
        >>> xdevice.load_state([], {})
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: expected a model to load into, not [] of type list
    """
    found = registry.kind_of(type(model))
    if found is None or found[1] != "model":
        raise NotATensorError(
            f"expected a model to load into, not {shown(model, 60)} of type {type(model).__qualname__}"
        )
    backend = found[0]
    variables = dict(backend.variables(model))
    wrong = [*_misfits(backend, variables, state)]
    if strict:
        wrong += _missing(backend, model, variables, state)
    if wrong:
        raise StateError(
            f"the state does not fit this {type(model).__qualname__} of {backend.name}, and nothing was written:\n  "
            + "\n  ".join(wrong)
        )
    for name, value in state.items():
        variable = variables[name]
        place = backend.device_of(variable)
        backend.write(variable, value if backend.device_of(value) is place else backend.move(value, place))


# loading


def _misfits(backend: Backend, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    written: dict[int, str] = {}
    for name, value in state.items():
        if name not in variables:
            yield f"{name}: the model has no such variable; it has {_some(variables)}"
            continue
        variable = variables[name]
        owner = registry.kind_of(type(value))
        if owner is None or owner[1] != "tensor" or owner[0] is not backend:
            yield f"{name}: a {type(value).__qualname__} came, expected a tensor of {backend.name}; use convert_state"
            continue
        there, here = _form(variable), _form(value)
        if there != here:
            yield f"{name}: {here} came, expected {there}"
        elif not _is_writable(backend, variable):
            yield f"{name}: the variable cannot be written"
        elif lack := lack_of_memory(backend, variable):
            yield f"{name}: the variable {lack}"
        elif backend.device_of(value).kind == "meta":
            yield f"{name}: it came on meta, where it has no values"
        first = written.setdefault(id(variable), name)
        if first != name and there == here and not _equal(backend, value, state[first]):
            yield f"{name} and {first} are one variable in the model, and two different values came"


def _missing(backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    given = {id(variables[name]) for name in state if name in variables}
    counters = {part.name for layer in backend.layers(model) for part in layer.parts if part.of == (layouts.COUNTER,)}
    unmapped = state.unmapped if isinstance(state, State) else {}
    for name, variable in variables.items():
        if id(variable) not in given and name not in counters and name not in unmapped:
            yield f"{name}: missing; strict=False leaves it as it is"
    for name, why in unmapped.items():
        if name not in state:
            yield f"{name}: {why}; strict=False loads the rest"


def _form(x: Any) -> str:
    return f"{dtype_name(x.dtype)} {tuple(x.shape)}"


def _is_writable(backend: Backend, variable: Any) -> bool:
    return backend.tensor_of(variable) is not None or backend.can_write(variable)


def _equal(backend: Backend, one: Any, other: Any) -> bool:
    return backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:8]) + (f", ... ({len(every)} in all)" if len(every) > 8 else "") or "none"


# reading both sides


class _Side(NamedTuple):
    """A model, or a flat dict, as layers."""

    backend: Backend
    layers: list[Layer]
    variables: dict[str, Any]
    unknown: list[str]
    """The variables of no layer, each under one of its names."""


def _check_kinds(kinds: Mapping[str, str]) -> None:
    for path, kind in kinds.items():
        if kind not in layouts.KINDS:
            raise StateError(f"kinds says that {path!r} is a {kind!r}; expected one of {', '.join(layouts.KINDS)}")


def _model_of(like: Any, target: Backend) -> tuple[Backend, Any]:
    found = registry.kind_of(type(like))
    if found is None or found[1] != "model" or found[0] is not target:
        of = f" of {found[0].name}" if found else ""
        raise NotATensorError(
            f"like= is a built model of {target.name}, not {shown(like, 60)} of type {type(like).__qualname__}{of}"
        )
    return target, like


def _model_side(of: tuple[Backend, Any], kinds: Mapping[str, str]) -> _Side:
    backend, model = of
    variables = dict(backend.variables(model))
    known = list(backend.layers(model))
    paths = {layer.path for layer in known}
    rest = _rest(variables, known)
    told = [layer for path, kind in kinds.items() if path not in paths and (layer := _told(backend, path, kind, rest))]
    return _Side(backend, known + told, variables, list(_rest(variables, known + told)))


def _flat_side(source: Any, kinds: Mapping[str, str]) -> _Side:
    if not isinstance(source, dict):
        raise NotATensorError(
            f"expected a model, or a flat dict of named tensors, not {shown(source, 60)} of type "
            f"{type(source).__qualname__}"
        )
    owners = {name: registry.kind_of(type(value)) for name, value in source.items()}
    for name, owner in owners.items():
        if owner is None or owner[1] == "symbol" or not isinstance(name, str):
            raise NotATensorError(
                f"{name!r} is a {type(source[name]).__qualname__}, not a named tensor: expected a flat dict"
            )
    backends = {owner[0].name: owner[0] for owner in owners.values() if owner is not None}
    if len(backends) > 1:
        raise NotATensorError(f"the tensors of one state are of one framework, not of {', '.join(backends)}")
    backend = next(iter(backends.values()), None) or registry.load("numpy")
    variables = {name: _tensor(backend, value) for name, value in source.items()}
    layers = []
    for path, kind in kinds.items():
        layer = _told(backend, path, kind, variables)
        if layer is None:
            raise StateError(
                f"kinds says that {path!r} is a {kind}, and the state has no {_expected(backend, path, kind)}; "
                f"it has {_some(variables)}"
            )
        layers.append(layer)
    unknown = list(_rest(variables, layers))
    if unknown:
        raise StateError(
            f"nothing says what these parameters are: {', '.join(unknown)}; give the model instead of its state, a "
            "model of the target as like=, or kinds={'path.to.layer': 'linear'}, 'same' for a single tensor"
        )
    return _Side(backend, layers, variables, [])


def _tensor(backend: Backend, value: Any) -> Any:
    """A lone variable has the name "" in it."""
    found = registry.kind_of(type(value))
    return dict(backend.variables(value))[""] if found is not None and found[1] == "model" else value


def _expected(backend: Backend, path: str, kind: str) -> str:
    return " or ".join(layouts.join(path, part.name) for part in backend.parts(kind, {}))


def _kinds_with(kinds: dict[str, str], wanted: _Side | None, renamed: Mapping[str, str]) -> dict[str, str]:
    """The kinds that were said, and those that a target's layers say of the ways that lead to them."""
    if wanted is None:
        return kinds
    back = {there: here for here, there in renamed.items()}
    return {back.get(layer.path, layer.path): layer.kind for layer in wanted.layers} | kinds


def _told(backend: Backend, path: str, kind: str, variables: Mapping[str, Any]) -> Layer | None:
    """The layer that somebody says is there; None if none of its parameters are."""
    for settings in _possible(kind):
        for separator in (".", "/"):
            prefix = path + separator if path else ""
            named = (
                part._replace(name=prefix + part.name if part.name else path) for part in backend.parts(kind, settings)
            )
            parts = tuple(named)
            there = tuple(part for part in parts if part.name in variables)
            if there and (kind not in layouts.RECURRENT or _weights(there) == _weights(parts)):
                layer = Layer(path.replace("/", "."), kind, there, settings)
                _check_shapes(layer, variables)
                return layer
    return None


def _check_shapes(layer: Layer, variables: Mapping[str, Any]) -> None:
    """That the layer can be of the kind that somebody says it is."""
    try:
        wrong = layouts.misfit(layer.kind, _shapes(variables, layer))
    except (ValueError, IndexError) as error:  # NumPy's, of a rule that needs other axes
        wrong = str(error)
    if wrong:
        came = ", ".join(f"{part.name} {tuple(variables[part.name].shape)}" for part in layer.parts)
        raise StateError(f"{layer.path!r} is said to be a {layer.kind}, and cannot be with {came}: {wrong}")


def _possible(kind: str) -> Iterator[Mapping[str, object]]:
    """The settings that a state may have been made with, those with the most parameters first."""
    if kind not in layouts.RECURRENT:
        yield {}
        return
    for number in range(_MOST_LAYERS, 0, -1):
        yield {"layers": number, "bidirectional": True}
        yield {"layers": number, "bidirectional": False}


def _weights(parts: tuple[Part, ...]) -> list[str]:
    return [part.name for part in parts if "bias" not in part.name]


def _rest(variables: Mapping[str, Any], layers: Iterable[Layer]) -> dict[str, Any]:
    """The variables of no layer, each under its first name."""
    seen = {id(variables[part.name]) for layer in layers for part in layer.parts}
    rest = {}
    for name, value in variables.items():
        if id(value) not in seen:
            seen.add(id(value))
            rest[name] = value
    return rest


# pairing


def _paired(source: _Side, target: _Side, renamed: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    ours, theirs = _by_path(source), _by_path(target)
    pairs = [(_at(ours, here, source), _at(theirs, there, target)) for here, there in renamed.items()]
    if len({other.path for _, other in pairs}) < len(pairs):
        raise StateError(f"names gives one layer of like= twice: {dict(renamed)}")
    left = [layer for layer in source.layers if layer.path not in renamed]
    right = [layer for layer in target.layers if layer.path not in renamed.values()]
    pairs += _matched(source, left, target, right)
    for one, other in pairs:
        _check_pair(source, one, target, other)
    return pairs


def _by_path(side: _Side) -> dict[str, Layer]:
    return {layer.path: layer for layer in side.layers}


def _at(layers: Mapping[str, Layer], path: str, side: _Side) -> Layer:
    if path not in layers:
        raise StateError(f"names= says {path!r}, and {side.backend.name} has no layer there; it has {_some(layers)}")
    return layers[path]


def _matched(source: _Side, left: list[Layer], target: _Side, right: list[Layer]) -> list[tuple[Layer, Layer]]:
    there = {layer.path: layer for layer in right}
    if {layer.path for layer in left} == set(there):
        return [(layer, there[layer.path]) for layer in left]
    ours = [_signature(source, layer) for layer in left]
    theirs = [_signature(target, layer) for layer in right]
    if ours == theirs and not _crosses(left, right, ours):
        return list(zip(left, right, strict=True))
    if _is_part(left, ours, right, theirs) or _is_part(right, theirs, left, ours):
        return [(layer, there[layer.path]) for layer in left if layer.path in there]
    return _only_ones(source, left, ours, target, right, theirs)


def _crosses(left: list[Layer], right: list[Layer], signatures: list[Any]) -> bool:
    """Whether two layers of one kind and shape, both paired in their order, would fit better by their names exchanged:
    q, k, o beside k, q, out."""
    ours, theirs = ([_words(layer.path) for layer in layers] for layers in (left, right))
    for group in _groups(signatures):
        for one, two in combinations(group, 2):
            straight = len(ours[one] & theirs[one]) + len(ours[two] & theirs[two])
            if len(ours[one] & theirs[two]) + len(ours[two] & theirs[one]) > straight:
                return True
    return False


def _groups(signatures: list[Any]) -> Iterable[list[int]]:
    """The places of equal ones."""
    groups: dict[Any, list[int]] = {}
    for place, signature in enumerate(signatures):
        groups.setdefault(signature, []).append(place)
    return groups.values()


def _words(path: str) -> set[str]:
    """The names on the way, whole and in parts: block1_q has a q. A mere number is a place, and no name."""
    names = path.split(".")
    return {word for word in (*names, *chain.from_iterable(name.split("_") for name in names)) if not word.isdigit()}


def _is_part(few: list[Layer], own: list[Any], many: list[Layer], others: list[Any]) -> bool:
    """Whether all layers of one model are in the other, by their ways, which are not mere numbers."""
    there = {layer.path: signature for layer, signature in zip(many, others, strict=True)}
    named = all(not layer.path.rpartition(".")[2].isdigit() for layer in few)
    return named and all(there.get(layer.path) == signature for layer, signature in zip(few, own, strict=True))


def _only_ones(
    source: _Side, left: list[Layer], ours: list[Any], target: _Side, right: list[Layer], theirs: list[Any]
) -> list[tuple[Layer, Layer]]:
    """The pairs of which there is one of a kind and shape on either side; several on both sides are an error."""
    counted, others = Counter(ours), Counter(theirs)
    unclear = [signature for signature in counted if signature in others and counted[signature] + others[signature] > 2]
    if unclear:
        of_ours = _names_of(layer for layer, signature in zip(left, ours, strict=True) if signature in unclear)
        of_theirs = _names_of(layer for layer, signature in zip(right, theirs, strict=True) if signature in unclear)
        first = left[ours.index(unclear[0])].path
        fitting = [layer.path for layer, signature in zip(right, theirs, strict=True) if signature == unclear[0]]
        likely = max(fitting, key=lambda path: len(_words(first) & _words(path)))
        raise StateError(
            f"these parameters of {source.backend.name} fit more than one of {target.backend.name}: {of_ours} may be "
            f"{of_theirs}; say which layer is which: names={{{first!r}: {likely!r}, ...}}"
        )
    place = {signature: layer for layer, signature in zip(right, theirs, strict=True)}
    return [(layer, place[signature]) for layer, signature in zip(left, ours, strict=True) if signature in place]


def _names_of(layers: Iterable[Layer]) -> str:
    return ", ".join(part.name for layer in layers for part in layer.parts)


def _signature(side: _Side, layer: Layer) -> tuple[object, ...]:
    """Kind and shape, in PyTorch's layout, of what every layer of the kind has."""
    shapes = _shapes(side.variables, layer)
    telling = next((name for name in ("running_mean", "weight", "weight_ih_l0", "") if name in shapes), None)
    if telling is None:
        return (layer.kind,)
    shape = shapes[telling]
    groups = layer.settings.get("groups", 1)
    if isinstance(groups, int) and layer.kind.startswith("conv"):
        shape = (shape[0], shape[1] * groups, *shape[2:])
    return layer.kind, shape


def _shapes(variables: Mapping[str, Any], layer: Layer) -> dict[str, tuple[int, ...]]:
    """Those of its parameters in PyTorch's layout."""
    found = {}
    for part in layer.parts:
        stand_in = np.broadcast_to(np.zeros((), "bool"), tuple(variables[part.name].shape))
        for name, array in zip(part.of, part.rule.canonical(stand_in), strict=True):
            found[name] = array.shape
    return found


def _check_pair(source: _Side, one: Layer, target: _Side, other: Layer) -> None:
    ours, theirs = _shapes(source.variables, one), _shapes(target.variables, other)
    if one.kind == other.kind and any(one.settings.get(name) != other.settings.get(name) for name in _SHAPING):
        return  # listed, for it is not a mistake in the pairing
    off = [
        f"{name or 'the tensor'} {ours[name]} and {theirs[name]}"
        for name in ours
        if name in theirs and ours[name] != theirs[name]
    ]
    if one.kind == other.kind and not off:
        return
    same_kind = one.kind == other.kind
    what = f"of the shapes {', '.join(off)}" if same_kind else f"a {one.kind} and a {other.kind}"
    raise StateError(
        f"{_names_of([one])} of {source.backend.name} cannot become {_names_of([other])} of {target.backend.name}: "
        f"they are {what} (in PyTorch's layout); say which layer is which by names={{{one.path!r}: ...}}"
    )


# writing


class _Writer:
    """Fills a state, layer by layer, and lists what it could not."""

    def __init__(self, source: _Side, target: Backend, state: State, device: object) -> None:
        self._source, self._target, self._state = source, target, state
        self._device = None if device is None else devices.parse(device)
        if self._device is not None:
            target.require(self._device)
        self._made: dict[int, tuple[str, int, str]] = {}
        """For each variable of the target that has a value: its name, the source's variable, the way to its layer."""

    def put_freely(self, layer: Layer) -> None:
        parts = [
            part._replace(name=layouts.join(layer.path, part.name))
            for part in self._target.parts(layer.kind, layer.settings)
        ]
        self._fill(layer, parts, None)

    def put(self, layer: Layer, other: Layer, wanted: _Side) -> None:
        self._compare(layer, other)
        shaping = [name for name in _SHAPING if layer.settings.get(name) != other.settings.get(name)]
        told = [name for name in shaping if name in layer.settings and name in other.settings]
        if told:
            why = "; ".join(
                f"{name} is {layer.settings[name]} in {self._source.backend.name}, "
                f"{other.settings[name]} in {self._target.name}"
                for name in told
            )
            self._leave([layer, other], why)
            return
        self._fill(layer, other.parts, wanted)

    def list_rest(self, pairs: list[tuple[Layer, Layer]], wanted: _Side) -> None:
        paired = {id(layer) for pair in pairs for layer in pair}
        for side, other in ((self._source, wanted), (wanted, self._source)):
            extra = [layer for layer in side.layers if id(layer) not in paired]
            self._leave(extra, f"only {side.backend.name} has this layer, not {other.backend.name}")
        for name in wanted.unknown:
            self._state.unmapped[name] = (
                f"no layer of {self._target.name} that xdevice knows has it; kinds={{{name!r}: 'same'}} "
                "fills it with the tensor of that name"
            )

    def _leave(self, layers: list[Layer], why: str) -> None:
        for layer in layers:
            for part in layer.parts:
                self._state.unmapped[part.name] = why

    def _compare(self, layer: Layer, other: Layer) -> None:
        # of what kinds= or a name says there is at most what shapes it
        known = all(set(one.settings).difference(_SHAPING) for one in (layer, other))
        for name in dict.fromkeys((*layer.settings, *other.settings)):
            ours, theirs = layer.settings.get(name), other.settings.get(name)
            told = name in layer.settings and name in other.settings if name in _SHAPING else known
            if told and not _alike(ours, theirs):
                self._state.differences.append(
                    f"{other.path or other.kind}: {name} is {_shown(ours)} in {self._source.backend.name}, "
                    f"{_shown(theirs)} in {self._target.name}"
                )

    def _fill(self, layer: Layer, parts: Iterable[Part], wanted: _Side | None) -> None:
        arrays, origins = self._read(layer)
        used: set[str] = set()
        for part in parts:
            missing = [name for name in part.of if name not in arrays]
            used.update(part.of)
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
            elif missing:
                self._list_missing(part, missing, origins, wanted)
            else:
                self._write(layer, part, arrays, origins, wanted)
        for name in [name for name in arrays if name not in used]:
            self._list_unused(layer, origins[name], name)

    def _read(self, layer: Layer) -> tuple[dict[str, Any], dict[str, str]]:
        """The layer's arrays in PyTorch's layout, and the name in the source of each."""
        arrays, origins = {}, {}
        for part in layer.parts:
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
                continue
            host = self._source.backend.to_numpy(self._source.variables[part.name])
            for name, array in zip(part.of, part.rule.canonical(host), strict=True):
                arrays[name], origins[name] = array, part.name
        return arrays, origins

    def _list_missing(self, part: Part, missing: list[str], origins: Mapping[str, str], wanted: _Side | None) -> None:
        if part.of == (layouts.COUNTER,):
            if wanted is not None:
                self._state.differences.append(f"{part.name}: {self._source.backend.name} counts no batches; it stays")
            return
        present = [origins[name] for name in part.of if name in origins]
        if wanted is not None or present:
            self._state.unmapped[part.name] = f"{self._source.backend.name} has no {' and no '.join(missing)} for it"

    def _list_unused(self, layer: Layer, origin: str, name: str) -> None:
        if name == layouts.COUNTER:
            self._state.differences.append(f"{origin}: left out, for {self._target.name} counts no batches")
        elif not any(origin in names for names in self._state.origins.values()):
            self._state.unmapped[origin] = f"{self._target.name} has no {name} in this {layer.kind}"

    def _write(
        self,
        layer: Layer,
        part: Part,
        arrays: Mapping[str, Any],
        origins: Mapping[str, str],
        wanted: _Side | None,
    ) -> None:
        array = part.rule.native(*(arrays[name] for name in part.of))
        names = tuple(dict.fromkeys(origins[name] for name in part.of))
        first = self._source.variables[names[0]]
        place = self._device or self._source.backend.device_of(first)
        if wanted is not None:
            variable = wanted.variables[part.name]
            place = self._device or self._target.device_of(variable)
            self._check_form(part.name, variable, array)
            self._check_ties(layer, part.name, id(variable), id(first), array)
        self._target.require(place)
        require_dtype(self._target, array.dtype.name, part.name, "cast the model first")
        # a new array in C order; np.ascontiguousarray would give a number an axis
        self._state[part.name] = self._target.from_numpy(np.array(array, order="C"), place)
        self._state.origins[part.name] = names

    def _check_form(self, name: str, variable: Any, array: Any) -> None:
        wanted, came = dtype_name(variable.dtype), array.dtype.name
        if wanted != came:
            self._state.differences.append(f"{name}: {came} came, {wanted} in {self._target.name}; cast before loading")

    def _check_ties(self, layer: Layer, name: str, variable: int, first: int, array: Any) -> None:
        """One variable of the target cannot hold two values; two that were one will not stay equal."""
        before = self._made.setdefault(variable, (name, first, layer.path))
        held = None if before[0] == name else self._target.to_numpy(self._state[before[0]])
        if held is not None and (held.shape != array.shape or (held != array).any()):
            raise StateError(
                f"{before[0]} and {name} are one variable of {self._target.name}, and "
                f"{self._source.backend.name} has two different values for it; untie them in like="
            )
        for other, (known, origin, path) in self._made.items():
            if origin == first and other != variable and path != layer.path:
                self._state.differences.append(
                    f"{known} and {name} are one parameter in {self._source.backend.name}, two in {self._target.name}"
                )
                return


def _alike(ours: object, theirs: object) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-6)
    return ours == theirs


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
