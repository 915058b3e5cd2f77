"""Finds the framework that a function uses, and the model that it calls, so that functions can be compared like models.

A function does not state which framework's tensors it accepts. The framework is inferred from tensors and models that
the function refers to: in its closure, in partials, in bound methods and in the globals that its code names. If there
are none, it is inferred from a framework's modules and functions among these globals.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack, suppress
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base.devices import CPU
from xdevice.core import frameworks, registry
from xdevice.errors import (
    ArgumentError,
    NotATensorError,
    NotBuiltError,
    UnsupportedError,
    listed,
    shown,
)
from xdevice.twins import owners

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

_MOST: Final = 5_000
"""The maximum number of objects that are searched inside one function."""
_OURS: Final = "xdevice"
"""The prefix of the names of xdevice's own packages. Their functions accept tensors of any framework, so they do not
show which framework is used."""


class Subject(NamedTuple):
    """A model to run, or a function that is compared like a model."""

    itself: Any
    """The model or function. It is called with only the inputs as arguments."""
    backend: Backend
    model: Any
    """The model whose layers are traced: `itself`, or the model that the function calls. None if the function calls no
    model or several models, or if the layers of the model cannot be listed. An example is a linen module that is not
    bound to variables."""
    models: tuple[Any, ...]
    """All models of the backend that the function contains."""
    tensor: Any
    """A tensor that the function contains; None if it contains no tensor. The inputs are copied to the tensor's
    device."""

    @property
    def is_function(self) -> bool:
        """Whether this is a function, not a model."""
        return self.itself is not self.model

    @property
    def device(self) -> Device:
        """The device to which the inputs are copied: the device of the model's first variable or of the function's
        tensor, or the CPU if there is neither a variable nor a tensor."""
        if self.model is not None:
            return next((device for _, device in self.backend.model_devices(self.model)), CPU)
        return CPU if self.tensor is None else self.backend.device_of(self.tensor)

    @property
    def has_channels_last(self) -> bool | None:
        """Whether the model expects images with the channels last; None if this is not known. Also None for a function,
        because its inputs are passed unchanged. For a method of the model, and for the compiled model, the value is
        that of the model."""
        owner = getattr(self.itself, "__self__", self.itself)
        if self.model is None or owner is not self.model:
            return None
        is_last: bool | None = self.backend.has_channels_last(self.model)
        return is_last

    def infer(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Calls the model or function with these arguments, with all its models in evaluation mode, and returns the
        result. `named` are the keyword arguments."""
        if not self.is_function:
            return self.backend.infer(self.itself, tensors, **named)
        with ExitStack() as stack:
            for model in self.models:
                stack.enter_context(self.backend.evaluating(model))
            return self.itself(*tensors, **named)


def name_of(x: Any) -> str:
    """Returns the name of a function, of the function inside a partial, or of a model's class."""
    while isinstance(x, partial):
        x = x.func
    return getattr(x, "__qualname__", type(x).__name__).replace("<locals>.", "")


def is_function(x: object) -> bool:
    """Whether `x` can be compared as a function. Such an `x` is a callable that is not a model, a class or a
    tensor, or a pair `(apply, parameters)`, which is common in programs that use haiku."""
    # a string cannot be the parameters
    if isinstance(x, tuple) and len(x) == 2:
        return not isinstance(x[1], str) and (is_function(x[0]) or hasattr(x[0], "apply"))
    if not callable(x) or isinstance(x, type):
        return False
    kind = registry.owner_and_kind(type(x))
    return kind is None and owners.backend_of_model(x) is None


def subject_of(
    x: Any, requirement: str = "with inputs= both values must be models or functions"
) -> Subject:
    """Returns a model or function as a `Subject`, with its framework.

    Raises:
        NotATensorError: if `x` is neither a model nor a function; the message begins with `requirement`.
        ArgumentError: if nothing in the function shows its framework, or if it refers to several frameworks.
    """
    if isinstance(x, Subject):
        return x
    owner = owners.backend_of_model(x)
    # a model is its own only model, and its variables show the device, so no tensor is needed
    if owner is not None:
        return Subject(x, owner, model=x, models=(x,), tensor=None)
    if not is_function(x):
        raise NotATensorError(
            f"{requirement}, not {shown(x, 60)} of type {type(x).__qualname__}"
        )
    # a tuple is a pair `(apply, parameters)`, because `is_function` accepts no other
    itself = _bound_to_parameters(x) if isinstance(x, tuple) else x
    search = _ModelSearch(itself)
    backend = registry.load(search.framework())
    models = [model for model in search.models if owners.backend_of_model(model) is backend]
    # the tensors may include NumPy arrays in addition to those of the framework
    tensor = next(
        (candidate for candidate in search.tensors if _owner_name(candidate) == backend.name),
        None,
    )
    model = models[0] if len(models) == 1 and _has_layers(backend, models[0]) else None
    return Subject(itself, backend, model, tuple(models), tensor)


def _has_layers(backend: Backend, model: Any) -> bool:
    """Whether the layers of a model can be listed."""
    try:
        list(backend.layers(model))
    except (UnsupportedError, NotBuiltError):
        return False
    return True


def _bound_to_parameters(pair: tuple[Any, Any]) -> Any:
    """Returns a function that expects only the inputs, made from the pair `(apply, parameters)`. haiku's `apply` also
    expects a random key after the parameters; the returned function passes None as the key."""
    function, parameters = pair
    # `pair[0]` is the function itself, or an object such as `hk.transform(...)` with a method `apply`
    function = getattr(function, "apply", function)
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # functions written in C may have no signature
        names = []
    return (
        partial(function, parameters, None)
        if names[1:2] == ["rng"]
        else partial(function, parameters)
    )


def _owner_name(x: object) -> str:
    """Returns the name of the backend to which a tensor belongs; "" for an object that belongs to no framework."""
    kind = registry.owner_and_kind(type(x))
    return kind.backend.name if kind is not None else ""


class _ModelSearch:
    """Finds the models, the tensors and the frameworks among the values that a function contains."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.models: list[Any] = []
        self.tensors: list[Any] = []
        self._mentioned: dict[str, None] = {}
        """The frameworks whose modules or functions the searched function mentions. The keys are their names, in the
        order in which they were found; the values are not used."""
        self._search(function)

    def framework(self) -> str:
        """Returns the name of the framework that the function uses. This is the framework of the function's tensors and
        models or, if it contains no tensors or models, the framework that its code mentions. NumPy is returned only if
        there is no other framework. Raises `ArgumentError` if there are several frameworks or none."""
        owned = dict.fromkeys(_owner_name(x) for x in self.tensors)
        owned |= dict.fromkeys(
            owner.name for x in self.models if (owner := owners.backend_of_model(x)) is not None
        )
        for names in (owned, self._mentioned):
            # programs of every framework use NumPy too
            others = [name for name in names if name != "numpy"]
            if len(others) > 1:
                raise ArgumentError(
                    f"{name_of(self._function)} refers to {listed(others, 3)}, so its framework is unclear; pass a "
                    f"function that uses only one framework"
                )
            if others:
                return others[0]
        if owned or self._mentioned:
            return "numpy"
        raise ArgumentError(
            f"nothing in {name_of(self._function)}, {shown(self._function, 60)}, shows which framework it uses: it "
            f"contains no tensor and no model, and refers to no framework; pass functools.partial(function, "
            f"parameters), or a function that uses a framework, such as jax.numpy"
        )

    def _search(self, function: Any) -> None:
        """Visits the function and the objects inside it, in the order of the code, until `_MOST` objects have been
        visited."""
        visited: set[int] = set()
        kept: list[Any] = []  # kept alive, because the id of a freed object could be reused
        waiting = [function]
        while waiting and len(kept) < _MOST:
            x = waiting.pop()
            if id(x) in visited:
                continue
            visited.add(id(x))
            kept.append(x)
            # `_contents` also records `x` itself; reversed, because the last item of `waiting` is visited next
            waiting += reversed(list(self._contents(x)))

    def _contents(self, x: Any) -> Iterable[Any]:
        """Records `x` if it is a tensor, a model or a module of a framework. Otherwise returns the objects to search
        next: the items of a container, or the objects to which `x` refers."""
        # an object of these types contains no tensor or model
        if x is None or isinstance(x, str | bytes | int | float | complex | CodeType | type):
            return ()
        kind = registry.owner_and_kind(type(x))
        if kind is not None and kind.kind == "tensor":
            self.tensors.append(x)
            return ()
        if owners.backend_of_model(x) is not None:
            self.models.append(x)
            return ()
        if isinstance(x, ModuleType):
            self._note_framework(x.__name__)
            return ()
        if isinstance(x, dict):
            return x.values()
        if isinstance(x, list | tuple | set | frozenset):
            return x
        return self._contents_of_code(x)

    def _contents_of_code(self, x: Any) -> Iterable[Any]:
        """Returns the objects to which `x` refers; `x` is a function or any other object. If `x` belongs to a
        framework, records the framework, and returns only the function that `x` wraps, if any."""
        if isinstance(x, partial):
            return [x.func, x.args, x.keywords]
        if isinstance(x, MethodType):
            return [x.__self__, x.__func__]
        # a framework's function is recorded by its module. Nothing inside it is searched except a function of the user
        # that it wraps, as with `jax.jit`
        if self._note_framework(_module_of(x)):
            return [] if not hasattr(x, "__wrapped__") else [x.__wrapped__]
        if isinstance(x, FunctionType):
            return [*_values_used_by(x), x.__defaults__, x.__kwdefaults__]
        # compilers and `functools.wraps` store the wrapped function in this attribute
        if hasattr(x, "__wrapped__"):
            return [x.__wrapped__]
        return vars(x).values() if hasattr(x, "__dict__") else ()

    def _note_framework(self, module: str) -> bool:
        """Records the framework to which a module belongs, if any. `module` is the name of the module. Returns whether
        the module belongs to a framework or to xdevice; nothing in such a module has to be searched."""
        root = module.partition(".")[0]
        name = frameworks.LIBRARIES.get(root) or next(
            (framework.name for framework in frameworks.KNOWN if root in framework.modules), ""
        )
        if name:
            self._mentioned[name] = None
        return bool(name) or root.startswith(_OURS)


def _module_of(x: Any) -> str:
    """Returns the name of the module in which a function, or the class of a callable object, is defined; "" if it is
    not known."""
    owner: Any = x if isinstance(x, FunctionType | BuiltinFunctionType) else type(x)
    if isinstance(x, BuiltinFunctionType) and not x.__module__:
        # a function such as torch.tanh has no `__module__`, but the class to which it is bound has one
        owner = x.__self__ if isinstance(x.__self__, type) else type(x.__self__)
    return getattr(owner, "__module__", None) or ""


def _values_used_by(function: FunctionType) -> Iterator[Any]:
    """Yields the values in a function's closure, and the values of the globals that its code names."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # raised for a variable that has no value yet
            yield cell.cell_contents
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names_in(code: CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes in a function's code, and in the functions defined inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
