"""Questions that the conformance suite asks a fresh process. Each function prints its answer as one line of JSON."""

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


def load(name: str) -> None:
    """Reports how a backend is loaded: after waiting for the import lock, by eight threads at once, and without
    importing another backend."""
    answer: dict[str, Any] = {"imported by xdevice": _IMPORTED}
    framework = frameworks.find(name)
    root = framework.modules[0] if framework is not None else name
    # threads append to one list, which is safe under Python's lock
    loaded: list[Any] = []
    threads = [
        threading.Thread(target=lambda: loaded.append(xdevice.backend(name))) for _ in range(8)
    ]
    lock = loader.import_lock = _Watched(loader.import_lock)  # type: ignore[assignment]
    with lock.inner:
        for thread in threads:
            thread.start()
        # until one thread waits for the lock, or all have passed without it, which is the fault
        while not lock.is_wanted and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        # NumPy is not asked for, because modules other than its adapter import it too
        answer["imported under a held lock"] = root in sys.modules and root != "numpy"
    for thread in threads:
        thread.join()
    answer["loaded in threads"] = sum(backend is xdevice.backend(name) for backend in loaded)
    answer["other backends"] = sorted(
        {backend.name for backend in registry.list_loaded()} - {name, "numpy"}
    )
    answer["started by counting"] = _list_started(name)
    # a framework may keep state for the thread that has imported it, which has ended by now
    answer["works in the main thread"] = _work(name)
    answer["works in a new thread"] = _in_thread(lambda: _work(name))
    answer["floats"] = _floats(name)
    print(json.dumps(answer))


class _Watched:
    """A lock that notes whether it was acquired."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.is_wanted = False

    def __enter__(self) -> None:
        self.is_wanted = True
        self.inner.acquire()

    def __exit__(self, *_: object) -> None:
        self.inner.release()


def fork(name: str) -> None:
    """Reports what a forked child can do after its parent has loaded a backend, and after its parent has used it."""
    answer = {}
    with xdevice.use_backend(name):
        xdevice.num_gpus()
        xdevice.try_gpu()
        # naming a device starts none
        xdevice.device("gpu:1")
    answer["child after loading"] = _in_fork(lambda: str(_work(name)))
    _work(name)
    answer["child after use"] = _in_fork(lambda: str(_work(name)))
    print(json.dumps(answer))


def end(name: str, place: str) -> None:
    """Ends the process while a prefetch is under way: its thread must not keep the process from ending."""
    global _unfinished
    with xdevice.use_backend(name):
        batches = iter(xdevice.prefetch(_batches(), place))
        first = xdevice.to_numpy(next(batches)).tolist()
    _unfinished = batches  # kept alive to the end of the process
    print(json.dumps({"first batch": first}), flush=True)


_unfinished: Any = None


def _batches() -> Iterator[Any]:
    import numpy

    while True:
        yield numpy.array([1.5, -2.5], "float32")


def virtual(name: str) -> None:
    """Reports the names of two virtual GPUs, and the values of a tensor copied to each."""
    # the variable may ask for another number of GPUs
    os.environ.pop("XDEVICE_VIRTUAL_GPUS", None)
    try:
        xdevice.virtual_gpus(2, force=True)
        backend = xdevice.backend(name)
    except xdevice.errors.UnsupportedError as error:
        print(json.dumps({"refused": str(error)}))
        return
    answer: dict[str, Any] = {
        "devices": [str(device) for device in backend.devices()],
        "moved": {},
    }
    gpus = [xdevice.gpu(i) for i in range(2)]
    answer["described"] = [backend.describe(gpu).name for gpu in gpus]
    with xdevice.use_backend(name):
        x = xdevice.tensor([1.5, -2.5])
        for gpu in gpus:
            moved = xdevice.copy_to(x, gpu)
            answer["moved"][str(xdevice.device_of(moved))] = xdevice.to_numpy(moved).tolist()
    print(json.dumps(answer))


def _list_started(name: str) -> list[str]:
    """The GPUs that the framework has started although the program has only counted them, and made an event without
    using it."""
    from xdevice.contract import Backend

    backend = xdevice.backend(name)
    with xdevice.use_backend(name):
        xdevice.num_gpus()
        xdevice.try_all_gpus()
        with suppress(xdevice.errors.UnsupportedError):
            # an event of CUDA starts the GPU, so xdevice makes it at the first use
            xdevice.accelerator.Event()
    if backend.virtual or type(backend).is_started is Backend.is_started:
        return []
    return [
        str(gpu)
        for gpu in (xdevice.gpu(i) for i in range(backend.count("gpu")))
        if backend.is_started(gpu)
    ]


def _work(name: str) -> float:
    """Computes 1 + 1 by creating, copying and reading tensors that are large enough for the framework's threads."""
    with xdevice.use_backend(name) as backend:
        # small tensors are computed without threads, and so would hide a lock that is never released
        x = xdevice.tensor([1.0] * 100_000)
        y = backend.samples().add(x, xdevice.copy_to(x, "cpu"))
        xdevice.sync(y)
        return float(xdevice.to_numpy(y)[-1])


def _floats(name: str) -> list[str]:
    """The dtypes of floats that the framework makes in two threads after it was told to make float64; none if it has no
    such setting."""
    from xdevice.base.dtypes import dtype_name

    backend = xdevice.backend(name)
    try:
        backend.default_to_float64()
    except xdevice.errors.UnsupportedError:
        return []
    floats = [backend.samples().floats(), _in_thread(backend.samples().floats)]
    return [dtype_name(x.dtype) for x in floats if x is not None]


def _in_thread(work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    worker = threading.Thread(target=lambda: results.append(work()))
    worker.start()
    worker.join()
    return results[0]


def _in_fork(work: Callable[[], str]) -> str:
    """The result of `work` in a forked child: its text, the name of its error, or how the child ended."""
    # a pipe, because the child shares no memory with its parent
    read, write = os.pipe()
    with warnings.catch_warnings():
        # JAX and Python 3.12 warn of any fork; here it is the thing under test
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        # a child that waits for a lock of a thread that it does not have would wait for ever
        signal.alarm(20)
        try:
            answer = work()
        except Exception as error:
            answer = type(error).__name__
        os.write(write, answer.encode())
        # without exit hooks, which belong to the parent
        os._exit(0)
    os.close(write)
    answer = os.read(read, 1000).decode()
    _, status = os.waitpid(child, 0)
    return answer or f"ended {status_text(os.waitstatus_to_exitcode(status))}"
