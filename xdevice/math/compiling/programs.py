"""`compile`: turns a function of tensors into a program of the framework, which runs without Python.

A compiler calls a function once, with symbols in place of the tensors, and from then on repeats the operations that
it recorded. A program would therefore silently continue to use the values that other variables had during that call.
This module compiles the function again if a variable that the function reads has changed since then
(`OutsideVariables`), and refuses a variable whose changes it cannot notice.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict, deque
from contextlib import suppress
from functools import wraps
from numbers import Number
from threading import local
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy

from xdevice.base import spellings
from xdevice.base.devices import Device
from xdevice.containers import trees
from xdevice.containers.attributes import attributes
from xdevice.contract import Backend
from xdevice.core import registry, scopes, selection
from xdevice.errors import ArgumentError, DeviceMismatchError, shown
from xdevice.math.contract.compiling import Compiling

from .outside import CODE_TYPES, OutsideVariables, is_constant, random_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from xdevice.containers.trees import Walked

    # the positional arguments and the keyword arguments of a call
    Call = tuple[tuple[Any, ...], dict[str, Any]]
    # a function from an iterator of tensors to a result that contains these tensors
    Build = Callable[[Iterator[Any]], Any]
F = TypeVar("F", bound="Callable[..., Any]")

# the containers that `_leaf_reader` and `_builder` handle without `trees.flatten` and
# `trees.rebuild`, which take longer
_CONTAINER_TYPES: Final = frozenset((dict, list, tuple))
_MANY: Final = 8
"""When a function has been compiled this many times, a warning explains why it keeps being recompiled."""


def compile(function: F, **misspelled: NoReturn) -> F:
    """Returns a variant of the function that is compiled into a framework's program at its first call:
    `step = xdevice.compile(step)`.

    Experimental: it may change in a minor version.

    The program accepts the arguments of the function: tensors of the same backend and on the same device, alone or in
    containers. Other values in the arguments (numbers, strings, functions) become part of the program. Each new value,
    shape or dtype needs another compilation, so pass values that change at each step as tensors. The program returns
    the function's results in the same containers, even with `value_and_grad` or `xdevice.nn` in the function.

    | backend | the program is |
    |---|---|
    | jax | `jax.jit` |
    | tensorflow | `tf.function` |
    | torch | the operations of the function and its backward pass, one after another; not on MPS, XPU or the like |
    | paddle, mxnet, numpy | the function itself, which is not compiled |

    Costs 0.3 to 2 s for each program of a small network (0.02 s on PyTorch), and 4 to 15 us per call.

    Raises:
        ArgumentError: `function` is not a function; an argument is of any other kind, or no argument is a tensor; or
            the tensors belong to different backends. DeviceMismatchError: the tensors are on different devices.
        UnsupportedError: on JAX, TensorFlow and PyTorch, the function reads a value (`item`, `to_numpy`), draws random
            numbers, reads the device of a tensor, or changes an argument or a variable of the program. Also if the
            function uses a variable whose changes xdevice cannot notice: its value is not a number, string, tensor,
            function, class or container of these (docs/reference/compiling.md). Pass such values as arguments.

    Example:
        >>> step = xdevice.compile(lambda params, lr: {"w": params["w"] - lr * params["w"]})
        >>> xdevice.to_numpy(step({"w": xdevice.tensor([1.0, 2.0])}, 0.5)["w"]).tolist()
        [0.5, 1.0]
    """
    if misspelled:
        spellings.refuse(
            "compile",
            misspelled,
            "only the function; arguments of the function that are not tensors are static, and nothing is donated",
        )
    if not callable(function):
        raise ArgumentError(
            f"compile expects a function, not {shown(function)} of type {type(function).__qualname__}"
        )
    programs = _Programs(function)

    @wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        # a compiler such as torch.compile could not compile the walk over the arguments, so the
        # call runs outside such compilers
        return registry.call_outside_compilers(lambda: programs.call(args, kwargs))

    return compiled  # type: ignore[return-value]


class _Arguments:
    """The arguments of one call, separated into tensors and other values. `call` is the pair of the positional and
    the keyword arguments. Raises `ArgumentError` if there is no tensor, if the tensors belong to different backends, or
    for a value that a program cannot contain."""

    def __init__(self, call: Call) -> None:
        # `walk[0]` is the node of the pair (args, kwargs), and `walk[1]` is the list of leaves
        self.walk = trees.flatten(call)
        self.backend: Backend | None = None
        self.tensors: list[Any] = []
        self.tensor_indices: list[int] = []
        """The indices of the tensors among the leaves."""
        self.structure: list[Any] = [_structure(self.walk[0])]
        """The parts of the key under which a pattern is stored: the types and keys of the containers, the values that
        are not tensors, and the types of the tensors."""
        self.has_symbols = False
        """Whether an argument is a symbol of another compiler, which is tracing this call."""
        for i, x in enumerate(self.walk[1]):
            # a variable, such as tf.Variable, is replaced by the tensor in it
            owner, value = self._backend_and_tensor(x)
            if owner is None:
                _require_static(self._name(i), x)
                # such a value becomes part of the program, so another value needs another
                # program
                self.structure += _exact_key(x)
                continue
            # a program belongs to the compiler of a single framework
            if self.backend is not None and owner is not self.backend:
                raise ArgumentError(
                    f"a compiled function accepts only tensors of the same framework, but {self._name(i)} belongs to "
                    f"{owner.name}, and an earlier tensor belongs to {self.backend.name}; convert one of these "
                    f"tensors: xdevice.convert(x, {self.backend.name!r})"
                )
            self.backend = owner
            self.tensors.append(value)
            self.tensor_indices.append(i)
            self.structure.append(type(value))
        if self.backend is None:
            raise ArgumentError(
                "a compiled function needs at least one tensor among its arguments"
            )
        self.extras = self._find_extras()
        """The values that containers have in addition to their items, with the paths of these values."""

    def _find_extras(self) -> list[trees.Leaf]:
        """Returns the values that containers have in addition to their items, such as attributes of a subclass of
        list, and adds these values to `structure`. Values that are also items are left out. Raises `ArgumentError` for
        a value that a program cannot contain."""
        extras = trees.Tree([*map(_extra_parts, _all_nodes(self.walk[0]))])
        self.structure.append(_structure(extras.root))
        item_ids = {*map(id, self.walk[1])}
        leaves = [leaf for leaf in extras.named_leaves() if id(leaf.value) not in item_ids]
        for path, x in leaves:
            # a path begins with the index of a container, such as `[0]`, which is omitted in
            # the error
            _require_static(
                f"apart from its items, an argument has {path[path.index(']') + 1 :]}, which", x
            )
            self.structure += _exact_key(x)
        return leaves

    def _backend_and_tensor(self, x: Any) -> tuple[Backend | None, Any]:
        """Returns the backend of `x`, and `x` as a tensor. If `x` is a variable, this is the tensor in the variable. If
        `x` is neither a tensor nor a variable, returns None and `x`."""
        owned = registry.owner_and_kind(type(x))
        if owned is None:
            return None, x
        # if `x` is a symbol, another compiler is tracing this call
        self.has_symbols |= owned.kind == "symbol"
        value = owned.backend.tensor_of(x) if owned.kind == "model" else x
        return (None, x) if value is None else (owned.backend, value)

    def _name(self, i: int) -> str:
        """Returns the name of the leaf with the index `i` in errors: "argument", followed by
        the path of the leaf in the arguments."""
        # None in place of the arguments, because the walk contains them
        return "argument" + trees.Tree(None, walk=self.walk).path(i)

    def device(self) -> Device:
        """Returns the common device of all tensors. Raises `DeviceMismatchError` if the tensors are on several
        devices."""
        assert self.backend is not None
        devices: list[Device] = [self.backend.operand_device(x) for x in self.tensors]
        # the first tensor on another device, which the error names
        i = next((i for i, device in enumerate(devices) if device != devices[0]), None)
        if i is not None:
            raise DeviceMismatchError(
                f"a compiled function accepts only tensors on one device, but {self._name(self.tensor_indices[i])} is "
                f"on {devices[i]}, and {self._name(self.tensor_indices[0])} is on {devices[0]}; move them to one "
                f"device with xdevice.to_device"
            )
        return devices[0]

    def require_dense(self) -> None:
        """Raises `UnsupportedError` if a tensor is not dense."""
        assert self.backend is not None
        if not all(map(self.backend.is_dense, self.tensors)):
            raise self.backend.unsupported(
                "compiled functions with arguments that are not dense",
                "convert these arguments to dense tensors first",
            )

    def with_tensors(self, tensors: list[Any]) -> Call:
        """Returns the positional and keyword arguments of the call, with the given `tensors` in place of the call's own
        tensors, in the same order."""
        leaves = list(self.walk[1])
        for i, x in zip(self.tensor_indices, tensors, strict=True):
            leaves[i] = x
        return trees.rebuild(self.walk, leaves)  # type: ignore[no-any-return]


class _Pattern:
    """The arguments of a call without their tensors: the containers, and the values that are not tensors. The method
    `tensors_of` recognizes arguments of the same pattern, and returns their tensors. This method takes only a fifth of
    the time of `trees.flatten`, which matters because it is called in each step of a training loop."""

    def __init__(self, arguments: _Arguments) -> None:
        assert arguments.backend is not None
        # `root` is the node of the pair (args, kwargs); see `_Node` in `containers/trees.py`
        root, leaves, _ = arguments.walk
        assert root is not None
        self.backend: Backend = arguments.backend
        self.code: list[Any] = [
            x
            for x in [*leaves, *(leaf.value for leaf in arguments.extras)]
            if isinstance(x, CODE_TYPES)
        ]
        self.code += [type(node[0]) for node in _all_nodes(root)]
        """The functions and classes among the arguments, and the classes of the arguments' containers. The variables
        that they read are watched, like the variables that the compiled function reads."""
        self.numbers = [x for x in leaves if type(x) is int]
        """The ints among the arguments, which the warning about repeated compilation shows."""
        self._tensor_indices = arguments.tensor_indices
        self._static = [
            (i, x) for i, x in enumerate(leaves) if i not in set(self._tensor_indices)
        ]
        """The values that are not tensors, with their indices among the leaves."""
        self._types = [*map(type, leaves)]
        # False if an argument is a variable, whose tensor may differ at each call
        is_plain = all(
            leaves[i] is x for i, x in zip(self._tensor_indices, arguments.tensors, strict=True)
        )
        self._leaf_readers: list[Callable[[Any, list[Any]], bool]] = []
        """Two readers, for the positional arguments and for the keyword arguments. The list is empty if the arguments
        must be walked at each call."""
        if is_plain:
            # `root[4]` contains the nodes of args and kwargs. A LookupError means that no
            # reader can read a container
            with suppress(LookupError):
                self._leaf_readers = [_leaf_reader(child) for child in root[4].values()]

    def tensors_of(self, call: Call) -> list[Any] | None:
        """Returns the tensors of the call `call` if its arguments have this pattern. Returns None if the arguments have
        a different pattern, or if only a full walk over the arguments could recognize this pattern."""
        if not self._leaf_readers:
            return None
        leaves: list[Any] = []
        (args, kwargs), (read_args, read_kwargs) = call, self._leaf_readers
        # each reader adds leaves to the list, and returns True if its container is built
        # differently. If this method returns None, the caller walks the arguments
        # (`_Arguments`)
        if read_args(args, leaves) or read_kwargs(kwargs, leaves):
            return None
        if [*map(type, leaves)] != self._types:
            return None
        # all arguments are tensors
        if not self._static:
            return leaves
        # these must be the same objects; for an equal value that is a different object, the
        # caller walks the arguments
        if any(leaves[i] is not x for i, x in self._static):
            return None
        return [leaves[i] for i in self._tensor_indices]


def _leaf_reader(node: Any) -> Callable[[Any, list[Any]], bool]:
    """Returns a function `read(container, leaves)` for containers with the same structure as the container of the
    given node. For such a container, `read` appends the leaves to the list `leaves`, and returns False. For a container
    with a different structure, `read` returns True. Raises LookupError unless the node's container is a list, a tuple,
    or a dict with strings as keys."""
    # `inner` maps the indices of those children that are containers to the children's nodes; see
    # `_Node` in `containers/trees.py`
    x, _, keys, children, inner = node
    cls, names, length = type(x), [*keys], len(children)
    # other containers have special rules, which only `trees.flatten` implements
    if cls not in _CONTAINER_TYPES or (cls is dict and {*map(type, names)} - {str}):
        raise LookupError
    # for each child, its reader, or None if the child is a leaf
    parts = [_leaf_reader(inner[i]) if i in inner else None for i in range(length)]

    def read(x: Any, leaves: list[Any]) -> bool:
        # annotated as Any, because type checkers narrow the type of `x`
        children: Any = x
        # a dict with the same keys in another order is treated as different, because leaves are
        # read in order
        if type(x) is not cls or ([*x] != names if cls is dict else len(x) != length):
            return True
        for child, read_child in zip(children if cls is not dict else children.values(), parts):  # noqa: B905  # of one length
            if read_child is None:
                leaves.append(child)
            elif read_child(child, leaves):
                return True
        return False

    # the usual case of parameters, a flat dict of tensors, is read without a loop in Python
    def read_flat_dict(x: Any, leaves: list[Any]) -> bool:
        if type(x) is not dict or [*x] != names:
            return True
        leaves += x.values()
        return False

    return read_flat_dict if cls is dict and not inner else read


class _Programs:
    """The programs into which a function has been compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._last: _Pattern | None = None
        """The pattern of the previous call. The next call is first compared with this pattern."""
        self._patterns: dict[Any, _Pattern] = {}
        """Maps each structure of arguments to its pattern."""
        self._programs: dict[Any, _Program] = {}
        """Maps each combination of pattern, device, scope and selected backend to its program."""
        self._count = 0
        """The number of times that the function has been compiled, for `_count_compilation`."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the results of the function for these arguments. They are computed by a program, which is created
        if there is none yet."""
        call, pattern = (args, kwargs), self._last
        tensors = None if pattern is None else pattern.tensors_of(call)
        # if the backend may not be used in this process (`refusal`), such as after a fork, the
        # walk raises the error
        if pattern is None or tensors is None or pattern.backend.refusal is not None:
            arguments = _Arguments(call)
            tensors = arguments.tensors
            # if there are symbols, this call is inside a function that another compiler is
            # tracing, and that compiler also compiles this function
            if arguments.has_symbols:
                return self._function(*args, **kwargs)
            # the same object is used for the same structure, because it is part of the
            # programs' keys
            self._last = pattern = self._patterns.get((*arguments.structure,)) or _Pattern(
                arguments
            )
        backend = pattern.backend
        # `common_device` returns None if each tensor must be examined
        device = backend.common_device(tensors) or _Arguments(call).device()
        # the adapter has no compiler if it inherits the contract's default method
        if getattr(backend.compile, "__func__", None) is Compiling.compile:
            return self._function(*args, **kwargs)
        # the key contains the scope and the selected backend, because the function may create
        # tensors on the device of a `with device:` block, or for the selected backend
        key = pattern, device, scopes.current(), selection.current()
        program = self._programs.get(key)
        # the values of the other variables that the function reads are also part of the program
        if program is None or program.outside.changed_variable():
            # the slow checks run only when a program is created
            arguments = _Arguments(call)
            arguments.device()
            arguments.require_dense()
            self._patterns[(*arguments.structure,)] = pattern
            self._programs[key] = program = _Program(self._function, pattern, device)
        result = program.run(call, tensors)
        if program.is_new:
            program.is_new = False
            self._count_compilation(pattern.numbers)
        return result

    def _count_compilation(self, numbers: list[int]) -> None:
        """Counts a compilation. At the eighth compilation, warns that the function is compiled again and again.
        `numbers` are the ints among the arguments, which are the most likely reason."""
        self._count += 1
        # not `<`, so that the warning is issued only once
        if self._count != _MANY:
            return
        name = getattr(self._function, "__qualname__", shown(self._function))
        warnings.warn(
            f"{name} was compiled {_MANY} times, because the shapes of its tensors or the values of its other "
            f"arguments keep changing{f' (now {numbers})' if numbers else ''}; pass values that change at each call "
            f"as tensors",
            RuntimeWarning,
            stacklevel=_stack_level(),
        )


def _stack_level() -> int:
    """Returns the `stacklevel` with which a warning in the calling function refers to the user's line."""
    # goes up from the calling function to the first frame that does not belong to xdevice
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0].startswith(
        "xdevice"
    ):
        depth, frame = depth + 1, frame.f_back
    return depth


class _Program:
    """A function that is compiled for all arguments with the same key in `_Programs`. For each combination of shapes
    and dtypes, the adapter stores a separate program."""

    def __init__(self, function: Callable[..., Any], pattern: _Pattern, device: Device) -> None:
        self.outside = OutsideVariables([function, *pattern.code])
        self.is_new = False
        """Whether the function has been compiled for new shapes or dtypes since `_Programs.call` last reset this
        attribute."""
        self._shapes: set[Any] = set()
        self._function = function
        self._backend = pattern.backend
        # the arguments of the call that is running in this thread; `_trace` needs the
        # containers of these arguments
        self._running = local()
        self._compiled = pattern.backend.compile(self._trace, device)
        # replaces the tensors in the template of a result
        self._placeholder = self._backend.from_numpy(numpy.zeros(0, "float32"), device)

    def run(self, call: Call, tensors: list[Any]) -> Any:
        """Returns the results of the function for the arguments `call`. `tensors` are the tensors in these
        arguments."""
        self._running.call = call
        try:
            result = self._compiled(tensors)
        except DeviceMismatchError:
            # this call raises an error that names the arguments, unless the mismatch is inside
            # the function
            _Arguments(call).device()
            raise
        finally:
            del self._running.call
        # None means that the adapter cannot compute this call with a program
        if result is None:
            args, kwargs = call
            return self._function(*args, **kwargs)
        build, tensors = result
        return build(iter(tensors))

    def _trace(self, tensors: list[Any]) -> tuple[Build, list[Any]]:
        """Calls the compiled function with `tensors`, which are usually symbols, in place of the tensors of its
        arguments. Returns a function that builds the result from tensors, and a list of the tensors in the result.
        Raises `UnsupportedError` if the compiled function has an effect that a program would not repeat: if it
        changes a container or a variable, or draws random numbers."""
        args, kwargs = call = _Arguments(self._running.call).with_tensors(tensors)
        # the leaves of the arguments, and the states of random generators, before the call
        before = trees.flatten(call)[1]
        states_before = random_states()
        result = self._function(*args, **kwargs)
        after = trees.flatten(call)[1]
        # the function changed a container among its arguments; a program would not repeat this
        # change
        if len(before) != len(after) or any(
            x is not y for x, y in zip(before, after, strict=True)
        ):
            raise self._backend.unsupported(
                "compiling a function that changes a container among its arguments",
                "return a new container instead",
            )
        changed = self.outside.changed_variable()
        if changed:
            raise self._backend.unsupported(
                f"compiling a function that changes {changed}: the change would happen only once, during tracing",
                "return the new value instead",
            )
        # the states are compared by value, so drawing is noticed wherever in the program it
        # happens
        if random_states() != states_before:
            raise self._backend.unsupported(
                "compiling a function that draws random numbers: the numbers would be the same in every call",
                "draw the numbers outside the function, and pass them as arguments",
            )
        shapes = tuple([(tuple(x.shape), x.dtype) for x in tensors])
        if shapes not in self._shapes:
            self._shapes.add(shapes)
            self.is_new = True
        return self._builder_and_tensors(result)

    def _builder_and_tensors(self, result: Any) -> tuple[Build, list[Any]]:
        """Returns two values: a function that builds a result with the structure of `result` from other tensors, and
        the list of the tensors in `result`. Raises `UnsupportedError` if the result contains something that a program
        cannot return."""
        walk = trees.flatten(result)
        tensors, tensor_indices, leaves = [], [], list(walk[1])
        for i, x in enumerate(walk[1]):
            owned = registry.owner_and_kind(type(x))
            if owned is not None and owned.backend is self._backend and owned.kind != "model":
                tensors.append(x)
                tensor_indices.append(i)
                # replaces the compiler's symbol, which must not stay alive after tracing. The
                # placeholder is a tensor, because a container without tensors might be walked
                # differently
                leaves[i] = self._placeholder
            elif not _is_static(x):
                raise self._backend.unsupported(
                    f"compiling a function that returns {shown(x)} of type {type(x).__qualname__}",
                    f"return {self._backend.name} tensors, numbers, strings, or containers of these",
                )
        return _builder(trees.flatten(trees.rebuild(walk, leaves)), tensor_indices), tensors


def _builder(template: Walked, tensor_indices: list[int]) -> Build:
    """Returns a function that builds a result from an iterator of its tensors. `template` is the result of
    `trees.flatten` for a result with the same structure, and `tensor_indices` are the indices of the tensors among the
    leaves. If the result contains only tensors in dicts, lists and tuples, the returned function takes a third of the
    time of `trees.rebuild`."""

    # builds any result
    def rebuild(tensors: Iterator[Any]) -> Any:
        leaves = list(template[1])
        for i in tensor_indices:
            leaves[i] = next(tensors)
        return trees.rebuild(template, leaves)

    # returns a function that builds tensors in dicts, lists and tuples; raises LookupError for
    # other containers
    def quick_builder(node: Any) -> Build:
        x, _, keys, children, inner = node
        cls, names = type(x), list(keys)
        if cls not in _CONTAINER_TYPES:
            raise LookupError
        # the function that builds each child; a leaf is the next tensor of the iterator
        parts = [quick_builder(inner[i]) if i in inner else next for i in range(len(children))]
        if cls is not dict:
            return lambda tensors: cls([build(tensors) for build in parts])
        if not inner:
            # zip stops after the last name, because the remaining tensors of the iterator
            # belong to other containers
            return lambda tensors: dict(zip(names, tensors))  # noqa: B905
        return lambda tensors: dict(
            zip(names, [build(tensors) for build in parts], strict=True)
        )

    # some leaves are not tensors
    if len(tensor_indices) < len(template[1]):
        return rebuild
    try:
        # without a container, the result is the only tensor
        return next if template[0] is None else quick_builder(template[0])
    except LookupError:
        return rebuild


def _is_static(x: Any) -> bool:
    """Whether `x`, which is neither a tensor nor a container, may be an argument or a result of a compiled function.
    This is the case for numbers, strings, functions and classes. The function is compiled separately for each value
    of such an argument."""
    return isinstance(x, CODE_TYPES) or is_constant(x)


def _require_static(name: str, x: Any) -> None:
    """Raises `ArgumentError` unless `_is_static(x)` is True. `name` is the argument name to show in the error
    message."""
    if not _is_static(x):
        raise ArgumentError(
            f"{name} is {shown(x)} of type {type(x).__qualname__}, but a compiled function accepts only "
            f"tensors, numbers, strings, functions, and containers of these; pass a dict of the object's tensors "
            f"instead"
        )


def _all_nodes(root: Any) -> list[Any]:
    """Returns a list of the nodes of a container and of all containers in it. `root` is the container's node; if it
    is None, the list is empty."""
    return (
        []
        if root is None
        else [root, *(node for child in root[4].values() for node in _all_nodes(child))]
    )


def _extra_parts(node: Any) -> dict[str, Any]:
    """Returns, by name, the parts of a container that are not its items: attributes of a subclass of list, the factory
    of a defaultdict, or the `maxlen` of a deque. `node` is the container's node; see `_Node` in
    `containers/trees.py`."""
    x, _, _, children, _ = node
    item_ids = {*map(id, children)}
    kind = type(x).__qualname__
    extras = {
        f"{kind}.{name}": value
        for name, value in attributes(x).items()
        if id(value) not in item_ids
    }
    # a defaultdict has the first attribute, and a deque has the second
    for name in ("default_factory", "maxlen"):
        if isinstance(x, defaultdict | deque) and hasattr(x, name):
            extras[name] = getattr(x, name)
    return extras


def _structure(node: Any) -> Any:
    """Returns a hashable key that consists of the types and keys of a container and of all containers in it. `node`
    is the container's node (see `_Node` in `containers/trees.py`). For a leaf, `node` and the result are None."""
    if node is None:
        return None
    # `inner` maps the indices of those children that are containers to the children's nodes
    x, _, keys, _, inner = node
    return (
        type(x),
        tuple(map(_exact_key, keys)),
        tuple((i, _structure(child)) for i, child in inner.items()),
    )


def _exact_key(x: Any) -> tuple[type, Any]:
    """Returns a key that distinguishes a value even from different values that are equal to it: 0.0 from -0.0, 1 from
    True, and `range(0, 1, 2)` from `range(1)`."""
    return type(x), repr(x) if isinstance(x, Number | range) else x
