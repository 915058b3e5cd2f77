"""A small framework over NumPy with two GPUs, on which every fault of an adapter shows.

Nothing is computed before somebody waits for it, memory that was not written yet holds rubbish, and memory that was
given back is overwritten as soon as its stream comes to it. So what is not waited for, not ordered, or not kept is
never right by luck.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

__version__ = "1.2"
TOTAL = 1 << 30
MOST_AXES = 12
LONGEST_AXIS = 1 << 20
_RUBBISH = 0xA5
default_dtype = "float32"


class ToyError(RuntimeError):
    """What the framework raises."""


class Place(NamedTuple):
    kind: str
    index: int

    def __str__(self):
        return f"{self.kind}{self.index}"


CPU = Place("cpu", 0)
_gpus = int(os.environ.get("TOYFRAME_GPUS", "2"))
_started: set[Place] = set()


def gpu_count():
    return _gpus


def make_gpus(n):
    """Other devices in the host's memory, as every device here is."""
    global _gpus
    _gpus = n


def places():
    return [CPU, *(Place("gpu", i) for i in range(_gpus))]


def is_started(place):
    return place in _started


class _Thread(threading.local):
    """What each thread has of its own."""

    def __init__(self):
        self.place = CPU
        self.grad = True
        self.blocking = False
        self.streams = {}
        self.graph = None
        self.only = None


state = _Thread()


@contextmanager
def _with(**new):
    before = {name: getattr(state, name) for name in new}
    for name, value in new.items():
        setattr(state, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(state, name, value)


def on(place):
    """`with on(place):` makes creators place there."""
    return _with(place=place)


def no_grad():
    return _with(grad=False)


def blocking():
    return _with(blocking=True)


def only_on(place):
    """Work of this thread on another place is an error inside."""
    return _with(only=place)


# work

_lock = threading.RLock()
_freed: deque = deque()


def _after_fork():
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Op(NamedTuple):
    work: object
    out: object


class Stream:
    """A queue of work on a place, done when somebody waits for it."""

    def __init__(self, place):
        if place not in places():
            raise ToyError(f"there is no {place}")
        self.place = place
        self.ops = deque()
        self.given = self.done = 0
        self.errors = []
        _started.add(place)
        _streams.append(self)

    def give(self, work, out=None):
        with _lock:
            _give_back()
            self._give(work, out)

    def _give(self, work, out=None):
        self.ops.append(Op(work, out))
        self.given += 1
        if out is not None:
            out.last = self, self.given

    def run(self, until=None):
        with _lock:
            _give_back()
            until = self.given if until is None else until
            while self.done < until:
                op = self.ops.popleft()
                self.done += 1
                try:
                    op.work()
                except Exception as error:
                    if op.out is None:
                        raise
                    op.out.error = error
                    self.errors.append(error)


_streams: list[Stream] = []
_defaults: dict[Place, Stream] = {}


def current_stream(place):
    found = state.streams.get(place)
    if found is not None:
        return found
    with _lock:
        if place not in _defaults:
            _defaults[place] = Stream(place)
        return _defaults[place]


def use_stream(stream):
    return _with(streams={**state.streams, stream.place: stream})


class Event:
    def __init__(self, place):
        self.place = place
        self.mark = None
        self.seconds = None

    def record(self, stream):
        if stream.place != self.place:
            raise ToyError(f"an event of {self.place} recorded on {stream.place}")
        stream.give(self._happen)
        self.mark = stream, stream.given

    def _happen(self):
        self.seconds = time.perf_counter()

    def wait(self):
        stream, position = self.mark
        stream.run(position)

    def make_wait(self, stream):
        other, position = self.mark
        stream.give(lambda: other.run(position))


def synchronize(place=None):
    _not_in_graph()
    for stream in tuple(_streams):
        if place in (None, stream.place):
            stream.run()
    for stream in tuple(_streams):
        if place in (None, stream.place) and stream.errors:
            error = stream.errors[0]
            stream.errors.clear()
            raise error


# memory


class _Block:
    """Memory: what work reads and writes."""

    def __init__(self, array):
        self.array = array
        self.error = None
        self.last = None


class _Owner:
    """Held by arrays only: when the last one goes, the memory is given back, whatever work still means to read it."""

    def __init__(self, block, home):
        place = home.place
        self.block, self.place, self.nbytes, self.home = block, place, block.array.nbytes, home
        self.kept = []
        _started.add(place)
        with _lock:
            used = _used.setdefault(place, [0, 0])
            used[0] += self.nbytes
            used[1] = max(used)

    def __del__(self, _freed=_freed):
        _freed.append((self.block, self.place, self.nbytes, self.home, self.kept))


_used: dict[Place, list[int]] = {}


def _give_back():
    while _freed:
        block, place, nbytes, home, kept = _freed.popleft()
        _used[place][0] -= nbytes
        marks = [(stream, stream.given) for stream in kept]

        def spoil(block=block, marks=marks):
            for stream, position in marks:
                stream.run(position)
            _spoil(block.array)

        home._give(spoil)


def _spoil(array):
    array.reshape(-1).view("uint8")[:] = _RUBBISH


def memory(place):
    with _lock:
        _give_back()
        allocated, peak = _used.get(place, [0, 0])
    return TOTAL, TOTAL - allocated, allocated, peak


def reset_peak(place):
    with _lock:
        _give_back()
        _used.setdefault(place, [0, 0])[1] = _used.get(place, [0, 0])[0]


class _Lease:
    """Memory in NumPy's hands, kept while they have it."""

    def __init__(self, x):
        self.owner = x._owner
        self.__array_interface__ = x._values.view(_plain(x.dtype)).__array_interface__


def _plain(dtype):
    return np.dtype("uint16") if dtype.name == "bfloat16" else dtype


# arrays


class ToyArray:
    """Values of one dtype on one place, which are there once somebody has waited."""

    def __init__(self, block, values, owner, place):
        self._block, self._values, self._owner, self.place = block, values, owner, place
        self.requires_grad = False
        self.grad = None
        self.hooks = []
        self._from = ()

    @property
    def shape(self):
        return self._values.shape

    @property
    def dtype(self):
        return self._values.dtype

    @property
    def strides(self):
        return self._values.strides

    @property
    def address(self):
        return self._values.__array_interface__["data"][0]

    def wait(self):
        _not_in_graph()
        if self._block.last is not None:
            stream, position = self._block.last
            stream.run(position)
        if self._block.error is not None:
            for stream in tuple(_streams):
                stream.errors = [
                    error for error in stream.errors if error is not self._block.error
                ]
            raise self._block.error

    def numpy(self):
        """The values in the memory of the array, wherever that is."""
        self.wait()
        return np.asarray(_Lease(self)).view(self.dtype)

    def item(self):
        return self.numpy().item()

    def tolist(self):
        return self.numpy().tolist()

    def __float__(self):
        return float(self.item())

    def __bool__(self):
        return bool(self.item())

    def __repr__(self):
        return f"ToyArray({self.numpy()}, {self.place})"

    def detach(self):
        return ToyArray(self._block, self._values, self._owner, self.place)

    def to(self, place):
        """The array itself if it is there, else a copy."""
        return self if place == self.place else self.clone(place)

    def clone(self, place=None):
        return _op(
            lambda x: x,
            [self],
            self.shape,
            self.dtype,
            [lambda g: g.to(self.place)],
            place or self.place,
            crosses=True,
        )

    def write(self, value):
        """Puts values into the memory, when the stream comes to it."""
        source, target = value._block, self._values
        given = value._values

        def work():
            if source.error is not None:
                raise source.error
            np.copyto(target, given)

        _launch(work, self._block, self.place)

    def __getitem__(self, index):
        view = ToyArray(self._block, self._values[index], self._owner, self.place)
        if not isinstance(view._values, np.ndarray):
            view._values = self._values[index, ...]

        def back(g):
            return _op(
                lambda y: _scattered(self, index, y),
                [g],
                self.shape,
                self.dtype,
                [None],
                self.place,
            )

        return _linked(view, [self], [back])

    @property
    def T(self):  # noqa: N802  # NumPy's name
        view = ToyArray(self._block, self._values.T, self._owner, self.place)
        return _linked(view, [self], [lambda g: g.T])

    def sum(self):
        def back(g):
            def spread(y):
                return np.broadcast_to(y, self.shape)

            return _op(spread, [g], self.shape, self.dtype, [None], self.place)

        return _op(lambda x: x.sum(dtype=x.dtype), [self], (), self.dtype, [back], self.place)

    def __add__(self, other):
        if not isinstance(other, ToyArray):
            return _op(
                lambda x: x + x.dtype.type(other),
                [self],
                self.shape,
                self.dtype,
                [lambda g: g],
                self.place,
            )
        backs = [lambda g: _shrunk(g, self.shape), lambda g: _shrunk(g, other.shape)]
        shape = np.broadcast_shapes(self.shape, other.shape)
        return _op(lambda x, y: x + y, [self, other], shape, self.dtype, backs, self.place)

    def __mul__(self, other):
        if not isinstance(other, ToyArray):
            back = lambda g: g * other  # noqa: E731
            return _op(
                lambda x: x * x.dtype.type(other),
                [self],
                self.shape,
                self.dtype,
                [back],
                self.place,
            )
        backs = [lambda g: g * other, lambda g: g * self]
        return _op(lambda x, y: x * y, [self, other], self.shape, self.dtype, backs, self.place)

    def __sub__(self, other):
        return self + other * -1

    def __matmul__(self, other):
        shape = (*self.shape[:-1], other.shape[-1])
        backs = [lambda g: g @ other.T, lambda g: self.T @ g]
        return _op(lambda x, y: x @ y, [self, other], shape, self.dtype, backs, self.place)

    def backward(self):
        for leaf, found in self._gradients().values():
            leaf.grad = found if leaf.grad is None else leaf.grad + found
            for told in leaf.hooks:
                told()

    def _gradients(self):
        """The leaves that it depends on, each with its gradient, by their `id`s."""
        leaves, order, seen = {}, [], set()

        def visit(x):
            if id(x) not in seen:
                seen.add(id(x))
                for source, _ in x._from:
                    visit(source)
                order.append(x)

        visit(self)
        with no_grad():
            grads = {id(self): full((), 1, self.place, self.dtype)}
            for x in reversed(order):
                grad = grads.get(id(x))
                if grad is None:
                    continue
                if not x._from and x.requires_grad:
                    leaves[id(x)] = x, grad
                for source, back in x._from:
                    if source.requires_grad:
                        more = back(grad)
                        grads[id(source)] = (
                            grads[id(source)] + more if id(source) in grads else more
                        )
        return leaves


def gradients(y, leaves):
    """The gradient of a number with respect to each leaf, None where it does not depend on it; `grad`s stay."""
    found = y._gradients() if y.requires_grad else {}
    return [found[id(x)][1] if id(x) in found else None for x in leaves]


def _scattered(x, index, y):
    found = np.zeros(x.shape, x.dtype)
    found[index] = y
    return found


def _shrunk(g, shape):
    if g.shape == shape:
        return g
    return _op(lambda y: y.sum(axis=0), [g], shape, g.dtype, [None], g.place)


def _linked(x, inputs, backs):
    if state.grad and any(source.requires_grad for source in inputs):
        x.requires_grad = True
        x._from = [
            (source, back)
            for source, back in zip(inputs, backs, strict=True)
            if source.requires_grad
        ]
    return x


def _op(function, inputs, shape, dtype, backs, place, crosses=False):
    for x in inputs:
        if x.place != place and not crosses:
            raise ToyError(f"an array on {x.place} among arrays on {place}")
    out = empty(shape, place, dtype)
    blocks, arrays, target = (
        [x._block for x in inputs],
        [x._values for x in inputs],
        out._values,
    )

    def work():
        out_block.error = next(
            (block.error for block in blocks if block.error is not None), None
        )
        if out_block.error is None:
            np.copyto(target, function(*arrays), casting="unsafe")

    out_block = out._block
    far = {x.place for x in inputs} - {place}
    for source in far:
        _order(current_stream(source), current_stream(place))
    _launch(work, out_block, place, {x.place for x in inputs})
    for source in far:
        # who writes there next comes after the copy
        _order(current_stream(place), current_stream(source))
    return _linked(out, inputs, backs)


def _order(first, second):
    position = first.given
    second.give(lambda: first.run(position))


def _launch(work, out, place, sources=()):
    if state.only is not None and {place, *sources} != {state.only}:
        raise ElsewhereError(f"work on {place} where only {state.only} is allowed")
    if state.graph is not None:
        state.graph.ops.append(Op(work, out))
        return
    stream = current_stream(place)
    stream.give(work, out)
    if state.blocking:
        stream.run()
        if out.error is not None:
            stream.errors.clear()
            raise out.error


class ElsewhereError(ToyError):
    """Work on a place that `only_on` does not allow."""


def empty(shape, place, dtype):
    if len(shape) > MOST_AXES or max(shape, default=0) > LONGEST_AXIS:
        raise ToyError(f"no array of shape {shape}: {MOST_AXES} axes of {LONGEST_AXIS} at most")
    array = np.empty(shape, np.dtype(dtype))
    _spoil(array)
    block = _Block(array)
    return ToyArray(block, array, _Owner(block, current_stream(place)), place)


def full(shape, value, place=None, dtype="float32"):
    dtype = np.dtype(dtype)
    return _op(lambda: np.full(shape, value, dtype), [], shape, dtype, [], place or state.place)


def ones(*shape):
    return full(shape, 1, dtype=default_dtype)


def array(values, place=None):
    """An array of these values, which are read at once."""
    values = np.array(values, order="C", copy=True)
    return _op(lambda: values, [], values.shape, values.dtype, [], place or state.place)


def borrowed(values):
    """An array on the CPU in NumPy's memory."""
    block = _Block(values)
    return ToyArray(block, values, _Borrowed(), CPU)


class _Borrowed:
    kept: tuple = ()


_generator = np.random.RandomState(0)


def seed(n):
    _generator.seed(n)


is_deterministic = False


def draw():
    return _generator.random_sample(5).tolist()


def concatenate(parts):
    sizes = np.cumsum([0, *(x.shape[0] for x in parts)])
    backs = [lambda g, i=i: g[sizes[i] : sizes[i + 1]] for i in range(len(parts))]
    shape = (int(sizes[-1]), *parts[0].shape[1:])
    return _op(
        lambda *xs: np.concatenate(xs), parts, shape, parts[0].dtype, backs, parts[0].place
    )


def stack(parts):
    backs = [lambda g, i=i: g[i] for i in range(len(parts))]
    shape = (len(parts), *parts[0].shape)
    return _op(lambda *xs: np.stack(xs), parts, shape, parts[0].dtype, backs, parts[0].place)


def compute(function, *arrays):
    """An array of what a NumPy function makes of others, of the first one's shape and dtype; no gradient."""
    first = arrays[0]
    with no_grad():
        return _op(
            function, list(arrays), first.shape, first.dtype, [None] * len(arrays), first.place
        )


def sleep(seconds, place):
    """Work that takes its time."""

    def nap():
        time.sleep(seconds)
        return np.ones(4, "float32")

    return _op(nap, [], (4,), "float32", [], place)


# graphs of work


class Graph:
    def __init__(self, place):
        self.place = place
        self.ops = []

    def replay(self):
        stream = current_stream(self.place)
        for work, out in self.ops:
            stream.give(work, out)


def recording(graph):
    return _with(graph=graph)


def _not_in_graph():
    if state.graph is not None:
        raise ToyError("nothing may be waited for while a graph is recorded")


# models


class Parameter(ToyArray):
    """A leaf of a model, which asks for its gradient and keeps its identity when it moves."""

    def __init__(self, x):
        super().__init__(x._block, x._values, x._owner, x.place)
        self.requires_grad = True

    def take(self, x):
        """The memory of another array instead of its own."""
        self._block, self._values, self._owner, self.place = (
            x._block,
            x._values,
            x._owner,
            x.place,
        )
        self.grad = None


class Variable:
    """One array that can be written; a model of its own."""

    def __init__(self, value):
        self.value = value

    @property
    def shape(self):
        return self.value.shape

    @property
    def dtype(self):
        return self.value.dtype


class Module:
    def __init__(self, **children):
        self.own, self.buffers, self.children = {}, {}, children

    def __call__(self, x):
        return self.forward(x)

    def named(self, prefix=""):
        """Parameters and buffers, a shared one under each of its names."""
        for name, x in {**self.own, **self.buffers}.items():
            yield prefix + name, x
        for name, child in self.children.items():
            yield from child.named(f"{prefix}{name}.")

    def parameters(self):
        return [x for _, x in self.named() if isinstance(x, Parameter)]


class Linear(Module):
    def __init__(self, inputs, outputs, value=0.5):
        super().__init__()
        self.outputs = outputs
        self.own = {"weight": None, "bias": Parameter(full((outputs,), 0.25, CPU))}
        if inputs is not None:
            values = (
                value
                + np.arange(inputs * outputs, dtype="float32").reshape(inputs, outputs) / 7
            )
            self.own["weight"] = Parameter(array(values, CPU))

    def forward(self, x):
        return x @ self.own["weight"] + self.own["bias"]


class Norm(Module):
    def __init__(self, size):
        super().__init__()
        self.buffers = {
            "mean": array(np.arange(size, dtype="float32") / 3, CPU),
            "steps": array(np.int64(2**53 + 1), CPU),
        }


class LeakyReLU(Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return compute(
            lambda values: np.where(values > 0, values, values * np.float32(self.slope)), x
        )


class Dropout(Module):
    """This framework only evaluates models that have one."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        return x


class MaxPool(Module):
    """Of the last two axes."""

    def __init__(self, window, step=None):
        super().__init__()
        self.window, self.step = window, step or window

    def forward(self, x):
        (height, width), (down, right) = self.window, self.step

        def pool(values):
            windows = np.lib.stride_tricks.sliding_window_view(
                values, (height, width), (-2, -1)
            )
            return windows[..., ::down, ::right, :, :].max((-2, -1))

        shape = (
            *x.shape[:-2],
            (x.shape[-2] - height) // down + 1,
            (x.shape[-1] - width) // right + 1,
        )
        with no_grad():
            return _op(pool, [x], shape, x.dtype, [None], x.place)


class Sequential(Module):
    def __init__(self, *layers):
        super().__init__(**{str(i): layer for i, layer in enumerate(layers)})

    def forward(self, x):
        for layer in self.children.values():
            x = layer(x)
        return x


class Padded:
    """Rows of different lengths in one array: neither an array nor a model."""

    def __init__(self, rows, lengths):
        self.rows, self.lengths = rows, lengths


class SGD:
    """Gradient descent with momentum, whose state is made in the first step and follows its parameters."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate, self.speed = list(parameters), rate, {}

    def named(self):
        """The state, by the number of its parameter."""
        numbered = ((i, self.speed.get(id(x))) for i, x in enumerate(self.parameters))
        return [(f"{i}.speed", speed) for i, speed in numbered if speed is not None]

    def step(self):
        with no_grad():
            for x in self.parameters:
                before = self.speed.get(id(x))
                self.speed[id(x)] = (
                    x.grad if before is None else before.to(x.place) * 0.9 + x.grad
                )
                x.write(x - self.speed[id(x)] * self.rate)
                x.grad = None


class LoaderError(ToyError):
    """What a loader raises for whatever its source has raised."""


class Loader:
    """Items made by a thread of its own, which wraps errors."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return _Loading(self.items)


class _Loading:
    """Hands over one item at a time, and hangs on to its thread until it is closed."""

    def __init__(self, items):
        self.ended = False
        self._items = iter(items)
        self._wanted, self._there = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, name="toy-loader", daemon=True)
        self._thread.start()

    def _work(self):
        while True:
            self._wanted.acquire()
            if self.ended:
                return
            try:
                self._made = next(self._items), None
            except BaseException as error:
                self._made = None, error
            self._there.release()

    def __iter__(self):
        return self

    def __next__(self):
        self._wanted.release()
        self._there.acquire()
        item, error = self._made
        if isinstance(error, StopIteration):
            raise StopIteration
        if error is not None:
            raise LoaderError("the loader failed") from error
        return item

    def close(self):
        self.ended = True
        self._wanted.release()
        self._thread.join()
