"""Records the calls of a model's layers. The code is the same for every framework; the adapter says which layers are
recorded.

While a block of `recording` is open, `__call__` is patched in the class from which all layers inherit. The patch
affects all threads, so each call first checks whether its own thread or task is being watched. The frameworks' own
forward hooks would not be enough: Keras has none, Gluon does not call its hooks for a layer that raises an error, and
no framework has hooks for all models of a program.

This code must follow these rules:

- Inputs and outputs are copied immediately, because a later layer may write into them.
- A layer with parameters is recorded as a single call, and the calls of the layers inside it are not recorded. The only
  exception is the layer's activation, which is recorded as a separate call after the layer. The input of the activation
  is then recorded as the layer's output, as if the program had defined the layer and its activation as two layers.
- A call that raises an error is not recorded, and leaves no state behind in this module.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from xdevice.base.devices import CPU
from xdevice.contract import patching
from xdevice.errors import set_on_error

from . import layouts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import ExitStack
    from types import FrameType

    from xdevice.contract.conversion import Conversion
    from xdevice.contract.primitives import Primitives

_Go = Callable[[Any], Any]
"""A function that calls a layer. Its argument is a pair of the positional arguments (a tuple) and the keyword arguments
(a dict)."""
Around = Callable[[Any, Any, Callable[[], Any]], Any]
"""A function that is called in place of a layer, and returns the result for the caller. Its arguments are the layer,
the arguments of the call, and a function that makes the original call."""

Run = Callable[..., Any]
"""A function that runs an operation. Its arguments include the name of the operation, the arguments of the call, and a
function that makes the call; `Backend.operation_calls` describes all arguments."""
Leaf = Callable[..., None]
"""A function that is called with a tensor (a parameter or an input), the tensor's gradient, and the tensor's name in
the framework, if the tensor has a name."""

FAILED: Final = "xdevice_failed_in"
"""An error that is raised in a recorded layer gets an attribute with this name. The attribute's value is the path of
the layer."""


class Call(NamedTuple):
    """One recorded call of a layer, with copies of its tensors on the host. `Backend.calls` returns a list of calls."""

    path: str
    """The path from the model to the layer, as in `Layer.path`."""
    layer: Any
    """The layer, as an object of the framework; for the activation of a Keras layer, a function."""
    inputs: tuple[Any, ...]
    """The tensors among the arguments of the call, including those in containers."""
    outputs: tuple[Any, ...]
    gradients: list[Any]
    """For each output, the last gradient that has reached it; None if no gradient has reached it yet."""


class _Frame:
    """A running call of a recorded layer: the call has begun, but has not returned yet."""

    def __init__(self, watch: Watch, path: str, layer: Any, inputs: tuple[Any, ...]) -> None:
        self._watch, self._path, self._layer, self._inputs = watch, path, layer, inputs
        self._has_ended = False

    def record_end(self, result: Any) -> Any:
        """Records the call with its result, unless the call has been recorded already. Returns the value with which the
        model continues: the result or, inside a block of `replacing_results`, the value that replaces the result."""
        # an activation inside the layer has already ended the call, with its own input as the result
        if self._has_ended:
            return result
        self._has_ended = True
        outputs = self._watch.copies(result)
        call = Call(self._path, self._layer, self._inputs, outputs, [None] * len(outputs))
        # appended here, because calls are listed in the order in which they end
        self._watch.calls.append(call)
        stand_in = _stand_in.get()
        return self._watch.record_gradients(
            call, result if stand_in is None else stand_in(call, result)
        )


def is_called(name: str) -> bool:
    """Whether a function named `name` is running in this thread. Adapters pass the name of the function that runs the
    backward pass in their framework."""
    # walks from the caller outward
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None


class GradientHooks:
    """Sets hooks on tensors: a hook is called with each gradient that reaches its tensor. The framework's tensors must
    have a method `register_hook`."""

    def __init__(
        self, backend: Conversion, stack: ExitStack, needs_gradient: Callable[[Any], bool]
    ) -> None:
        """All hooks are removed when `stack` is closed. `needs_gradient(x)` returns whether `x` is a tensor that
        requires a gradient."""
        self._backend, self._stack, self._needs_gradient = backend, stack, needs_gradient
        # the tensors that have a hook of `follow_leaves`, by their `id`s
        self._leaves: dict[int, Any] = {}

    def follow(self, result: Any, put: Callable[[int, Any], None]) -> Any:
        """Sets a hook on each tensor in `result` that requires a gradient. The hook calls `put(number, gradient)` for
        each gradient that reaches the tensor; `number` is the tensor's index in `result`. Returns `result`."""
        for number, x in enumerate(tensors(self._backend, result)):
            # setting a hook on a tensor that requires no gradient would raise an error
            if self._needs_gradient(x):
                self._stack.callback(x.register_hook(partial(put, number)).remove)
        return result

    def follow_leaves(self, arguments: Any, leaf: Callable[[Any, Any], object]) -> None:
        """Sets a hook on each tensor in the arguments that requires a gradient and is not the result of a computation.
        The hook calls `leaf(x, gradient)` for each gradient of the tensor `x`. A tensor gets only one hook, however
        often it is passed as an argument."""
        for x in tensors(self._backend, arguments):
            if self._needs_gradient(x) and x.is_leaf and id(x) not in self._leaves:
                self._leaves[id(x)] = x  # kept alive, so that no other tensor gets its id
                self._stack.callback(x.register_hook(partial(leaf, x)).remove)


class Watch:
    """Records the calls of selected layers in the list `calls`, while a block of `recording` is open. Adapters create a
    `Watch` in their method `calls`."""

    def __init__(
        self,
        backend: Conversion,
        paths: Mapping[int, str],
        activations: Iterable[Any] = (),
        follow: Callable[[Any, Callable[[int, Any], None]], Any] | None = None,
    ) -> None:
        """`paths` gives the path of each layer to record, by the layer's `id`. `activations` are layers that serve as
        activations of other layers; they are recorded even if a recorded layer calls them. `follow(result, put)`
        returns the result or a stand-in for it, and arranges that `put(number, gradient)` is called for each gradient
        that reaches the returned value. `follow` is None if gradients are not recorded."""
        self.calls: list[Call] = []
        self.paths = paths
        self._backend = backend
        self._activations = frozenset(map(id, activations))
        self._follow = follow
        # its attribute `frame`, which each thread has separately, is the call in progress
        self._here: Any = threading.local()

    def run(
        self, layer: Any, path: str, arguments: Any, go: _Go, is_activation: bool = False
    ) -> Any:
        """Calls a layer with `go(arguments)`, records the call under `path`, and returns the result. Inside another
        recorded layer, only an activation is recorded. If the call raises an error, the layer's path is stored in the
        error's attribute named `FAILED`."""
        outer: _Frame | None = getattr(self._here, "frame", None)
        # symbols have no values that could be recorded
        if self._is_symbolic(arguments):
            return go(arguments)
        # a layer inside a recorded layer is part of that layer
        if outer is not None:
            if not (is_activation or id(layer) in self._activations):
                return go(arguments)
            # the outer layer's output is the input of its activation
            arguments = outer.record_end(arguments)
        frame = self._here.frame = _Frame(self, path, layer, self.copies(arguments))
        try:
            result = go(arguments)
        except Exception as error:
            if getattr(error, FAILED, None) is None:  # keeps the path of the innermost layer
                set_on_error(error, FAILED, path)
            raise
        # also after an error; otherwise every later call in this thread would be treated as a call inside this layer
        finally:
            self._here.frame = outer
        return frame.record_end(result)

    def _is_symbolic(self, arguments: Any) -> bool:
        """Whether a layer is called with symbols (stand-ins for tensors, without values), as when Keras builds a model.
        Raises `UnsupportedError` if a compiler is tracing the call."""
        tracer = self._backend.tracing()
        if tracer is not None:
            raise self._backend.unsupported(
                f"recording the calls of layers inside {tracer}, where tensors have no values",
                f"call the model outside {tracer}",
            )
        return next(symbols(self._backend, arguments), None) is not None

    def copies(self, value: Any) -> tuple[Any, ...]:
        """Returns copies, on the host, of the tensors in a value and in the containers inside it."""
        return tuple(map(self._copy, tensors(self._backend, value)))

    def _copy(self, x: Any) -> Any:
        """Returns a copy, on the host, of a tensor or a NumPy array, as a tensor of the framework."""
        # `unreported`, because this copy to the host, which the program has not requested, must not be recorded as one
        # of the program's transfers
        with patching.unreported():
            if isinstance(x, numpy.ndarray):
                # a copy, because the array belongs to the program
                return self._backend.from_numpy(x, CPU)
            # detached, because a copy that is part of the graph would keep the graph alive
            return self._backend.copy(self._backend.detached(x), CPU)

    def record_gradients(self, call: Call, result: Any) -> Any:
        """Returns the result, or a stand-in for it. Each gradient that reaches the returned value is stored in
        `call.gradients` when it is computed."""
        if self._follow is None:
            return result

        def put(number: int, gradient: Any) -> None:
            """Stores a copy of the gradient of the output with this index."""
            # a second backward pass replaces the gradients of the first
            call.gradients[number] = self._copy(gradient)

        return self._follow(result, put)


_watches: Final[ContextVar[tuple[Watch, ...]]] = ContextVar("xdevice_watches", default=())
"""The watches of the blocks that are open in this thread or task. Tasks that `xdevice.parallel.run` starts inherit
these watches."""
_is_inside: Final[ContextVar[bool]] = ContextVar("xdevice_is_inside", default=False)
"""Whether this thread or task is inside a call of a model."""
_arounds: Final[list[Around]] = []
"""The functions `around` of the open blocks of `outermost`. Only the last function in the list is called."""


_stand_in: Final[ContextVar[Callable[[Call, Any], Any] | None]] = ContextVar(
    "xdevice_stand_in", default=None
)
"""The function `substitute` of the innermost open block of `replacing_results` in this thread or task; None if no block
is open."""


@contextmanager
def replacing_results(substitute: Callable[[Call, Any], Any]) -> Iterator[None]:
    """While the block is open, the result of each recorded call in this thread or task is replaced by
    `substitute(call, result)`. The model continues with this replacement."""
    token = _stand_in.set(substitute)
    try:
        yield
    finally:
        _stand_in.reset(token)


def _is_never_compiling() -> bool:
    """Returns False. This is the default of `is_compiling`, for a framework in which no compiler traces calls."""
    return False


@contextmanager
def recording(
    watch: Watch, *classes: type, is_compiling: Callable[[], bool] = _is_never_compiling
) -> Iterator[None]:
    """While the block is open, `watch` records the calls of its layers in this thread or task. A call is not recorded
    if `is_compiling()` returns True, which means that a compiler is tracing. `classes` are the classes from which the
    layers inherit `__call__`."""
    with patching.Patches() as patches:
        # patched in the class, because Python looks up `__call__` in the class and not in the object
        for cls in classes:
            patches.replace(cls, "__call__", partial(_watched, is_compiling))
        _watches.set((*_watches.get(), watch))
        try:
            yield
        finally:  # not reset with a token, which would also remove the watches of blocks opened later
            _watches.set(tuple(other for other in _watches.get() if other is not watch))


@contextmanager
def outermost(
    cls: type, around: Around, is_compiling: Callable[[], bool] = _is_never_compiling
) -> Iterator[None]:
    """While the block is open, calls of layers in all threads are passed to `around`, except calls made inside the call
    of another layer. `around` makes the call and returns the result. `cls` is the class from which layers inherit
    `__call__`. Calls made while `is_compiling()` returns True are not passed to `around`."""
    with patching.Patches() as patches:
        patches.replace(cls, "__call__", partial(_watched, is_compiling))
        _arounds.append(around)
        try:
            yield
        finally:
            _arounds.remove(around)


def _watched(is_compiling: Callable[[], bool], original: Any) -> Any:
    """Returns the function that replaces `original`, the `__call__` of a class of layers. The new function passes each
    call to the open blocks of `recording` and `outermost`, except while `is_compiling()` returns True."""

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer `self`, records the call if a block watches the layer, and returns the result."""
        if is_compiling():
            return original(self, *args, **kwargs)
        arguments = args, kwargs
        go = partial(
            _call_watched,
            _watches.get(),
            self,
            partial(original, self),
            activation=None,
            arguments=arguments,
        )
        # `around` is called only for the outermost call, which the program itself makes
        if _is_inside.get() or not _arounds:
            return go()
        token = _is_inside.set(True)
        try:
            return _arounds[-1](self, arguments, go)
        finally:
            _is_inside.reset(token)

    return call


def recorded_activation(owner: Any, function: Any) -> Any:
    """Returns a function that calls `function` and records the call. `function` is the activation of the layer `owner`;
    adapters replace the activation by the returned function."""

    @wraps(function)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        """Calls the activation, records the call if a block watches the layer, and returns the result."""
        return _call_watched(
            _watches.get(), owner, function, activation=function, arguments=(args, kwargs)
        )

    return stand_in


def _call_watched(
    watches: tuple[Watch, ...], layer: Any, function: Any, activation: Any, arguments: Any
) -> Any:
    """Returns the result of `function` for `arguments` (a pair of a tuple and a dict). Each watch in `watches` records
    the call if it watches `layer`. If `activation` is None, `function` calls the layer itself; otherwise `function` and
    `activation` are both the layer's activation function."""
    # several blocks may watch the same layer: each records the call that the remaining watches make
    for number, watch in enumerate(watches):
        if id(layer) in watch.paths:
            path = watch.paths[id(layer)]
            go = partial(_call_watched, watches[number + 1 :], layer, function, activation)
            if activation is None:
                return watch.run(layer, path, arguments, go)
            path = layouts.join(path, "activation")
            return watch.run(activation, path, arguments, go, is_activation=True)
    args, kwargs = arguments
    return function(*args, **kwargs)


def tensors(backend: Primitives, value: Any) -> Iterator[Any]:
    """Yields the tensors in a value and in the containers inside it. NumPy arrays are yielded too, because Keras's
    layers accept arrays."""
    return _leaves(backend, value, "tensor")


def symbols(backend: Primitives, value: Any) -> Iterator[Any]:
    """Yields the symbols, stand-ins for tensors without values, in a value and in the containers inside it."""
    return _leaves(backend, value, "symbol")


def replace_tensors(backend: Primitives, value: Any, new: Iterator[Any]) -> Any:
    """Returns a copy of `value` with each tensor and NumPy array replaced by the next item of `new`, in the order in
    which `tensors` yields them. A mapping becomes a dict. Objects that are neither tensors nor containers are kept."""
    if isinstance(value, Mapping):
        return {key: replace_tensors(backend, inside, new) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        inside = [replace_tensors(backend, item, new) for item in value]
        # a named tuple is constructed from separate arguments, any other sequence from one iterable
        return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # copied without calling `__init__`, whose arguments may differ from the fields
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(
                twin, field.name, replace_tensors(backend, getattr(value, field.name), new)
            )
        return twin
    return next(new) if _is_of_kind(backend, value, "tensor") else value


def _leaves(backend: Primitives, value: Any, kind: str) -> Iterator[Any]:
    """Yields the tensors or symbols in a value and in the containers inside it. `kind` is "tensor" or "symbol"."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    # an object of any other type, such as a cache or a configuration, is skipped; if the model itself returns such an
    # object, the comparison of the model's outputs reads or rejects it
    if isinstance(value, list | tuple):
        for inside in value:
            yield from _leaves(backend, inside, kind)
    elif _is_of_kind(backend, value, kind):
        yield value


def _is_of_kind(backend: Primitives, value: Any, kind: str) -> bool:
    """Whether a value is of the given kind, "tensor" or "symbol". NumPy arrays are treated as tensors."""
    return backend.classify(type(value)) == kind or (
        kind == "tensor" and isinstance(value, numpy.ndarray)
    )
