"""An adapter as a third party would write it, for `toyframe`: every method of the contract that it may have.

What it must keep: nothing is computed before it is waited for, so whatever reads waits; `numpy()` shares memory on
every device; moves and copies are work of the current stream of their target.
"""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager

import numpy as np

from xdevice.base import devices
from xdevice.base.dtypes import DTYPES, host_dtype
from xdevice.contract import VIRTUAL_GPU, Backend, DeviceInfo, Memory, Takes, Way
from xdevice.contract.loader import importing
from xdevice.distributed.contract.stored import GradientWatch
from xdevice.errors import DeviceMismatchError, NotBuiltError
from xdevice.performance.contract.hooks import Hooks
from xdevice.twins.contract import calls, layouts, optimizers
from xdevice.twins.contract import operations as ops

with importing():
    import toyframe

_READS = ("numpy", "item", "tolist", "__float__", "__bool__", "__repr__")
_SHORT = ("float16", "bfloat16")
_FLOATS = "fc"


_watch = GradientWatch(lambda x, told: x.hooks.append(told))


class ToyBackend(Backend):
    name = "toyframe"
    modules = ("toyframe",)
    minimum = (1, 0)
    dtypes = frozenset(DTYPES)
    moves_by = "to"
    most_axes = toyframe.MOST_AXES
    longest_axis = toyframe.LONGEST_AXIS
    most_virtual_gpus = 8
    compiler = "toyframe.hurry"

    # the framework

    @property
    def framework(self):
        return toyframe

    @property
    def version(self):
        return toyframe.__version__

    def classify(self, cls):
        if issubclass(cls, toyframe.ToyArray):
            return "tensor"
        return (
            "model"
            if issubclass(cls, (toyframe.Module, toyframe.Variable, toyframe.SGD))
            else None
        )

    # devices

    def count(self, kind):
        return {"cpu": 1, "gpu": toyframe.gpu_count()}.get(kind, 0)

    def describe(self, device):
        if device.kind == "gpu" and self.virtual:
            return VIRTUAL_GPU
        return DeviceInfo(f"Toy {device.kind.upper()} {device.index}", toyframe.TOTAL)

    def is_started(self, device):
        return toyframe.is_started(self.to_native(device))

    def to_native(self, device):
        return toyframe.Place(device.kind, device.index)

    def describe_missing(self, device):
        return self.to_native(device)

    def from_native(self, native):
        return (
            devices.of(native.kind, native.index)
            if isinstance(native, toyframe.Place)
            else None
        )

    def scope(self, device):
        return toyframe.on(self.to_native(device))

    # tensors

    def device_of(self, x):
        place = x.value.place if isinstance(x, toyframe.Variable) else x.place
        return devices.of(place.kind, place.index)

    def move(self, x, device):
        return x.to(self.to_native(device))

    def copy(self, x, device):
        return x.clone(self.to_native(device))

    def synchronize(self, device):
        toyframe.synchronize(None if device is None else self.to_native(device))

    def wait(self, x):
        x.wait()

    # values

    def from_numpy(self, array, device):
        return toyframe.array(array, self.to_native(device))

    def from_buffer(self, array):
        return toyframe.borrowed(array)

    def to_numpy(self, x):
        return (x.value if isinstance(x, toyframe.Variable) else x).numpy()

    def gives_away(self, x):
        return False

    def peek(self, x):
        return self.to_numpy(x)

    def full(self, shape, value, device, dtype):
        return toyframe.full(shape, value, self.to_native(device), host_dtype(dtype))

    def seed_generators(self, n):
        toyframe.seed(n)

    @contextmanager
    def deterministic(self):
        before, toyframe.is_deterministic = toyframe.is_deterministic, True
        try:
            yield []
        finally:
            toyframe.is_deterministic = before

    # arithmetic

    def value_and_grad(self, leaves, call, nested):
        if nested:
            raise self.unsupported("gradients of gradients", "take them one after the other")
        with toyframe._with(grad=True):
            inputs = [x.detach() for x in leaves]
            for x in inputs:
                x.requires_grad = True
            loss, rest = call(inputs)
        found = toyframe.gradients(loss, inputs)
        return (
            loss.detach(),
            found,
            [x.detach() if isinstance(x, toyframe.ToyArray) else x for x in rest],
        )

    def stop_gradient(self, x):
        return x.detach()

    def update(self, rows, rule, nested, writes):
        with toyframe._with(grad=nested):
            return [rule(*(x.clone() if writes else x for x in row)) for row in rows]

    # sharing memory with another framework

    def takes(self):
        return Takes(labels={"bfloat16": (1, 16)})

    def shares(self, device):
        return device is devices.CPU

    def detached(self, x):
        return x.detach() if x.requires_grad else x

    def finish(self, x):
        x.wait()

    def lending(self, x):
        return _lending

    def memory_layout(self, x):
        values = x._values
        return x.address, values.flags.c_contiguous, min(values.strides, default=0) >= 0

    def export(self, x):
        values = x.numpy()
        return (
            values.view("uint16") if values.dtype.name == "bfloat16" else values
        ).__dlpack__()

    def compact(self, x):
        return x.clone()

    def adopt(self, lent, dtype):
        values = np.from_dlpack(lent)
        return toyframe.borrowed(
            values.view(host_dtype(dtype)) if dtype == "bfloat16" else values
        )

    # models

    def model_devices(self, model):
        return [(name, self.device_of(x)) for name, x in self.variables(model)]

    def require_built(self, model):
        self.variables(model)

    def is_all_on(self, model, device):
        return all(place is device for _, place in self.model_devices(model))

    def variables(self, model):
        if isinstance(model, toyframe.Variable):
            return [("", model)]
        found = list(model.named())
        if any(x is None for _, x in found):
            raise NotBuiltError(f"{type(model).__name__} has no weights yet; call it once")
        return found

    def gradients(self, model):
        return [(name, x, x.grad) for name, x in self.variables(model) if x.requires_grad]

    def watch_gradients(self, variables, ready):
        return _watch.watch(variables, ready)

    def state_to_come(self, optimizer, names):
        if not isinstance(optimizer, toyframe.SGD):
            return {}
        numbered = (
            (f"{i}.speed", x)
            for i, x in enumerate(optimizer.parameters)
            if id(x) not in optimizer.speed
        )
        return {
            name: toyframe.full(x.shape, 0, x.place, x.dtype)
            for name, x in numbered
            if name in names
        }

    def take_state(self, optimizer, state):
        if isinstance(optimizer, toyframe.SGD):
            for name, x in state.items():
                optimizer.speed[id(optimizer.parameters[int(name.partition(".")[0])])] = x

    def optimizer(self, optimizer):
        if not isinstance(optimizer, toyframe.SGD):
            raise self.unsupported("reading any other optimizer", "use toyframe.SGD")
        settings = optimizers.settings("sgd", lr=optimizer.rate, momentum=0.9)
        parameters = (
            optimizers.Parameter(x, settings, {"momentum_buffer": f"{i}.speed"})
            for i, x in enumerate(optimizer.parameters)
        )
        return optimizers.Optimizer("sgd", "SGD", settings, tuple(parameters), {"lr": "rate"})

    def layers(self, model):
        names = {name for name, _ in self.variables(model)}
        return [
            layouts.present_layer(path, "linear", self.parts("linear", {}), names, {})
            for path, module in _modules(model)
            if isinstance(module, toyframe.Linear)
        ]

    def parts(self, kind, settings):
        return layouts.parts(kind, settings, rules={"linear": {"weight": layouts.TRANSPOSED}})

    def operations(self, model, layers):
        layers = {layer.path: layer for layer in layers}
        return [
            layers[path] if path in layers else _operation(path, module)
            for path, module in _modules(model)
            if path in layers or not (module.children or module.own)
        ]

    @contextmanager
    def calls(self, model):
        known = {layer.path for layer in self.layers(model)}
        paths = {
            id(module): path
            for path, module in _modules(model)
            if path in known or not module.children
        }
        watch = calls.Watch(self, paths)
        with calls.recording(watch, toyframe.Module):
            yield watch.calls

    def outermost(self, around):
        return calls.outermost(toyframe.Module, around)

    def infer(self, model, inputs, /, **named):
        with toyframe.no_grad():
            return model(*inputs, **named)

    def has_channels_last(self, model):
        return False

    def move_model(self, model, device):
        place = self.to_native(device)
        if isinstance(model, toyframe.Variable):
            model.value = model.value.to(place)
            return
        if isinstance(model, toyframe.SGD):
            model.speed = {key: x.to(place) for key, x in model.speed.items()}
            return
        _each(model, lambda x: x if x.place == place else _moved(x, place), {})

    def copy_model(self, model, device):
        place = self.to_native(device)
        if isinstance(model, toyframe.Variable):
            return toyframe.Variable(model.value.clone(place))
        if isinstance(model, toyframe.SGD):
            raise self.no_copy_of_optimizer("make one for the copied model")
        twin = _bare(model)
        self.variables(model)
        _each(twin, lambda x: self._twin(x, place), {})
        return twin

    def model_parts(self, model):
        if not isinstance(model, toyframe.Module):
            return ()
        return [
            part
            for _, module in _modules(model)
            for part in (module, *module.own.values(), *module.buffers.values())
        ]

    def rebind(self, model, new):
        for _, module in _modules(model):
            module.buffers = {name: new.get(id(x), x) for name, x in module.buffers.items()}

    def _twin(self, x, place):
        copied = x.detach().clone(place)
        return toyframe.Parameter(copied) if isinstance(x, toyframe.Parameter) else copied

    # what is neither a tensor nor a model

    def container_way(self, x):
        if not isinstance(x, toyframe.Padded):
            return None
        return Way(lambda x: [x.rows], lambda x, inside: toyframe.Padded(inside[0], x.lengths))

    # several devices

    def split(self, x, sizes):
        ends = np.cumsum(sizes)
        return [x[int(end - size) : int(end)] for size, end in zip(sizes, ends, strict=True)]

    def join(self, parts):
        return toyframe.concatenate(parts) if parts[0].shape else toyframe.stack(parts)

    def leaf(self, x, device):
        place = self.to_native(device)
        if isinstance(x, toyframe.Variable):
            return toyframe.Variable(x.value.clone(place))
        copied = x.detach().clone(place)
        if isinstance(x, toyframe.Parameter):
            return toyframe.Parameter(copied)
        copied.requires_grad = copied.dtype.kind in _FLOATS or copied.dtype.name == "bfloat16"
        return copied

    def is_dense(self, x):
        return True

    def tensor_of(self, model):
        return model.value if isinstance(model, toyframe.Variable) else None

    def can_write(self, x):
        return True

    def memory_of(self, x):
        return x.address, x.strides

    def write(self, x, value):
        (x.value if isinstance(x, toyframe.Variable) else x).write(value)

    def total(self, tensors, mean):
        return toyframe.compute(lambda *xs: _total(xs, mean), *(x.detach() for x in tensors))

    def all_reduce(self, tensors, mean):
        first = tensors[0].place
        total = self.total([x.detach().to(first) for x in tensors], mean)
        for x in tensors:
            x.write(total.to(x.place))
        return tensors

    # streams and events

    def new_stream(self, device):
        self._only_gpus(device, "streams")
        return toyframe.Stream(self.to_native(device))

    def current_stream(self, device):
        self._only_gpus(device, "streams")
        return toyframe.current_stream(self.to_native(device))

    def stream_scope(self, stream):
        return toyframe.use_stream(stream)

    def stream_wait(self, stream, event):
        event.make_wait(stream)

    def new_event(self, device):
        self._only_gpus(device, "events")
        return toyframe.Event(self.to_native(device))

    def require_events(self, device):
        self._only_gpus(device, "events")

    def record(self, event, stream):
        event.record(stream)

    def wait_event(self, event):
        event.wait()

    def elapsed(self, start, end):
        return end.seconds - start.seconds

    def keep_for(self, x, stream):
        x._owner.kept = [*x._owner.kept, stream]

    def _only_gpus(self, device, what):
        if device.kind != "gpu":
            raise self.unsupported(
                f"{what} on the CPU",
                "xdevice.parallel.run() runs tasks side by side; xdevice.Timer times",
            )

    # graphs of recorded work

    def new_graph(self, device):
        if device.kind != "gpu":
            raise self.no_graphs()
        return toyframe.Graph(self.to_native(device))

    @contextmanager
    def only_on(self, device):
        try:
            with toyframe.only_on(self.to_native(device)):
                yield
        except toyframe.ElsewhereError as error:
            raise DeviceMismatchError(
                f"{error}; a graph holds the work of {device} only"
            ) from error

    def capture(self, graph, stream, task):
        with toyframe.recording(graph), toyframe.no_grad():
            return task()

    def replay(self, graph):
        graph.replay()

    # compiled functions

    def compile(self, call, device):
        def program(tensors):
            with toyframe._with(place=self.to_native(device)):
                return call(tensors)

        return program

    # threads

    def thread_state(self):
        seen = toyframe.state.place, toyframe.state.grad, toyframe.state.blocking

        @contextmanager
        def entered():
            with toyframe._with(place=seen[0], grad=seen[1], blocking=seen[2]):
                yield

        return entered

    # copying in the background

    def stage(self, x, device):
        if isinstance(x, np.ndarray):
            return toyframe.array(x, self.to_native(device))
        return toyframe.array(x.numpy(), self.to_native(device))

    def iterate(self, source):
        return _unwrapped(iter(source)) if isinstance(source, toyframe.Loader) else iter(source)

    # seeing asynchrony

    def blocking(self):
        return toyframe.blocking()

    @contextmanager
    def watch(self, report):
        def target(x, place, *_):
            return self.from_native(place)

        with Hooks(self, report, lambda x: x._values.nbytes) as hooks:
            hooks.verbs()
            hooks.reads(toyframe.ToyArray, *_READS)
            hooks.moves(toyframe.ToyArray, "to", target)
            yield

    # memory

    def memory(self, device):
        return Memory(*toyframe.memory(self.to_native(device)))

    def reset_peak(self, device):
        toyframe.reset_peak(self.to_native(device))

    # virtual GPUs

    def why_no_virtual_gpus(self):
        return None

    def make_virtual_gpus(self, n):
        toyframe.make_gpus(n)

    def default_to_float64(self):
        toyframe.default_dtype = "float64"

    # what people ask

    def why_no_gpu(self):
        return "TOYFRAME_GPUS is 0"

    # the process

    def after_fork(self):
        return None

    def samples(self):
        from .samples import ToySamples

        return ToySamples()


class _Lending:
    """A lock that other frameworks' threads would wait for."""

    def __init__(self):
        self.lock = threading.RLock()

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


_lending = _Lending()


def _moved(x, place):
    new = x.detach().clone(place)
    if isinstance(x, toyframe.Parameter):
        x.take(new)
        return x
    return new


def _modules(module, path=""):
    yield path, module
    for name, child in module.children.items():
        yield from _modules(child, layouts.join(path, name))


def _operation(path, module):
    if isinstance(module, toyframe.LeakyReLU):
        return ops.activation(path, "leaky_relu", slope=module.slope)
    if isinstance(module, toyframe.Dropout):
        return ops.dropout(path, module.rate)
    if isinstance(module, toyframe.MaxPool):
        return ops.max_pool(path, 2, module.window, module.step, 0)
    return ops.unknown_layer(path, module)


def _each(module, change, done):
    """Changes parameters and buffers of a tree of modules, a shared one once."""
    for held in (module.own, module.buffers):
        for name, x in held.items():
            if x is None:
                raise NotBuiltError(f"{type(module).__name__} has no weights yet; call it once")
            if id(x) not in done:
                done[id(x)] = x, change(x)
            held[name] = done[id(x)][1]
    for child in module.children.values():
        _each(child, change, done)


def _bare(module):
    """The same tree of modules with the same arrays in dicts of its own."""
    twin = copy.copy(module)
    twin.own, twin.buffers = dict(module.own), dict(module.buffers)
    twin.children = {name: _bare(child) for name, child in module.children.items()}
    return twin


def _total(arrays, mean):
    first = arrays[0]
    total = np.array(first, dtype="float32" if first.dtype.name in _SHORT else first.dtype)
    for x in arrays[1:]:
        total += x
    if mean:
        total /= len(arrays)
    return total.astype(first.dtype)


def _unwrapped(loading):
    try:
        yield from loading
    except toyframe.LoaderError as error:
        raise error.__cause__ from None
    finally:
        loading.close()
