"""Functions that the conformance suite runs in a fresh process. Each public function prints its report as one line of
JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xdevice
from xdevice.base.statuses import status_text
from xdevice.contract import loader
from xdevice.core import frameworks, registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_IMPORTED = sorted({framework.modules[0] for framework in registry.KNOWN} & set(sys.modules))
"""The frameworks that `import xdevice` alone has imported. The list should be empty."""


def load(name: str) -> None:
    """Loads the backend `name` in eight threads at once, while the main thread holds the import lock. Reports whether
    the framework was imported before the lock was released, which other backends were loaded, and which GPUs were
    started. Also reports whether the backend works in two threads, and the default dtype of its floats."""
    report: dict[str, Any] = {"imported by xdevice": _IMPORTED}
    framework = frameworks.find(name)
    root = framework.modules[0] if framework is not None else name
    # all threads append to this list, which is safe because of Python's lock
    loaded: list[Any] = []
    threads = [
        threading.Thread(target=lambda: loaded.append(xdevice.backend(name))) for _ in range(8)
    ]
    lock = loader.import_lock = _WatchedLock(loader.import_lock)  # type: ignore[assignment]
    with lock.inner:
        for thread in threads:
            thread.start()
        # waits until a thread requests the lock or, with a faulty adapter, until all threads
        # have ended without the lock
        while not lock.is_wanted and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        # NumPy is ignored, because modules other than its adapter import it, too
        report["imported under a held lock"] = root in sys.modules and root != "numpy"
    for thread in threads:
        thread.join()
    report["loaded in threads"] = sum(backend is xdevice.backend(name) for backend in loaded)
    report["other backends"] = sorted(
        {backend.name for backend in registry.list_loaded()} - {name, "numpy"}
    )
    report["started by counting"] = _gpus_started_by_counting(name)
    # a framework may have state that belongs to the thread that imported it, and this thread
    # has ended
    report["works in the main thread"] = _one_plus_one(name)
    report["works in a new thread"] = _in_thread(lambda: _one_plus_one(name))
    report["floats"] = _floats(name)
    print(json.dumps(report))


class _WatchedLock:
    """A lock that records in `is_wanted` whether a thread has tried to acquire it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.is_wanted = False

    def __enter__(self) -> None:
        self.is_wanted = True
        self.inner.acquire()

    def __exit__(self, *_: object) -> None:
        self.inner.release()


def fork(name: str) -> None:
    """Reports the result of `_one_plus_one` in a forked child, or how the child failed. Forks once after the parent has
    loaded a backend, and once after the parent has used the backend."""
    report = {}
    with xdevice.use_backend(name):
        xdevice.num_gpus()
        xdevice.try_gpu()
        # naming a device must not start it
        xdevice.device("gpu:1")
    report["child after loading"] = _in_fork(lambda: str(_one_plus_one(name)))
    _one_plus_one(name)
    report["child after use"] = _in_fork(lambda: str(_one_plus_one(name)))
    print(json.dumps(report))


def end_during_prefetch(name: str, place: str) -> None:
    """Reports the first batch of a `prefetch` to the device `place`, and ends the process while the thread of
    `prefetch` is working. This thread must not prevent the process from ending."""
    global _unfinished
    with xdevice.use_backend(name):
        batches = iter(xdevice.prefetch(_endless_batches(), place))
        first = xdevice.to_numpy(next(batches)).tolist()
    # kept alive to the end of the process
    _unfinished = batches
    print(json.dumps({"first batch": first}), flush=True)


_unfinished: Any = None


def _endless_batches() -> Iterator[Any]:
    """Yields an endless sequence of batches."""
    import numpy

    while True:
        yield numpy.array([1.5, -2.5], "float32")


def use_virtual_gpus(name: str) -> None:
    """Reports the names of two virtual GPUs, and the values of a tensor that was copied to each of these GPUs. If the
    framework cannot have virtual GPUs, reports the message of the `UnsupportedError`."""
    # the variable may request another number of virtual GPUs than the two below
    os.environ.pop("XDEVICE_VIRTUAL_GPUS", None)
    try:
        xdevice.virtual_gpus(2, force=True)
        backend = xdevice.backend(name)
    except xdevice.errors.UnsupportedError as error:
        print(json.dumps({"refused": str(error)}))
        return
    report: dict[str, Any] = {
        "devices": [str(device) for device in backend.devices()],
        "moved": {},
    }
    gpus = [xdevice.gpu(i) for i in range(2)]
    report["described"] = [backend.describe(gpu).name for gpu in gpus]
    with xdevice.use_backend(name):
        x = xdevice.tensor([1.5, -2.5])
        for gpu in gpus:
            moved = xdevice.copy_to(x, gpu)
            report["moved"][str(xdevice.device_of(moved))] = xdevice.to_numpy(moved).tolist()
    print(json.dumps(report))


def _gpus_started_by_counting(name: str) -> list[str]:
    """Counts the GPUs and creates an event, which should not start a GPU. Returns the names of the GPUs that the
    framework has started nevertheless. Returns [] if the GPUs are virtual, or if the adapter cannot tell which GPUs are
    started."""
    from xdevice.contract import Backend

    backend = xdevice.backend(name)
    with xdevice.use_backend(name):
        xdevice.num_gpus()
        xdevice.try_all_gpus()
        with suppress(xdevice.errors.UnsupportedError):
            # an event of CUDA would start the GPU, so xdevice must create the event at its
            # first use
            xdevice.accelerator.Event()
    if backend.virtual or type(backend).is_started is Backend.is_started:
        return []
    return [
        str(gpu)
        for gpu in (xdevice.gpu(i) for i in range(backend.count("gpu")))
        if backend.is_started(gpu)
    ]


def _one_plus_one(name: str) -> float:
    """Returns 1 + 1, computed by creating, copying and reading tensors that are large enough
    for the framework to use its threads."""
    with xdevice.use_backend(name) as backend:
        # small tensors are computed without threads, so they would not show that a lock is
        # never released
        x = xdevice.tensor([1.0] * 100_000)
        y = backend.samples().add(x, xdevice.copy_to(x, "cpu"))
        xdevice.sync(y)
        return float(xdevice.to_numpy(y)[-1])


def _floats(name: str) -> list[str]:
    """Makes float64 the framework's default, and returns the dtypes of the floats that the framework then creates in
    this thread and in another thread. Returns [] if the framework has no such default."""
    from xdevice.base.dtypes import dtype_name

    backend = xdevice.backend(name)
    try:
        backend.default_to_float64()
    except xdevice.errors.UnsupportedError:
        return []
    floats = [backend.samples().floats(), _in_thread(backend.samples().floats)]
    return [dtype_name(x.dtype) for x in floats if x is not None]


def _in_thread(work: Callable[[], Any]) -> Any:
    """Calls a function in a new thread, waits for it, and returns its result."""
    results: list[Any] = []
    worker = threading.Thread(target=lambda: results.append(work()))
    worker.start()
    worker.join()
    return results[0]


def _in_fork(work: Callable[[], str]) -> str:
    """Calls `work` in a forked child. Returns the result of `work`, the name of the type of its error, or a message
    that says how the child ended."""
    # the answer is sent through a pipe, because the child shares no memory with its parent
    read, write = os.pipe()
    with warnings.catch_warnings():
        # JAX and Python 3.12 warn about any fork
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        # ends the child after 20 seconds if it waits for a lock of a thread that exists only in
        # the parent
        signal.alarm(20)
        try:
            answer = work()
        except Exception as error:
            answer = type(error).__name__
        os.write(write, answer.encode())
        # exits without calling exit hooks, because these belong to the parent
        os._exit(0)
    os.close(write)
    answer = os.read(read, 1000).decode()
    _, status = os.waitpid(child, 0)
    return answer or f"ended {status_text(os.waitstatus_to_exitcode(status))}"
