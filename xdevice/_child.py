"""What the conformance suite asks of a fresh process. Each function prints its answer as one line of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import xdevice
from xdevice import loader, registry

if TYPE_CHECKING:
    from collections.abc import Callable

_IMPORTED = sorted({known.modules[0] for known in registry.KNOWN} & set(sys.modules))


def load(name: str) -> None:
    """How a backend is loaded: behind the lock, by eight threads at once, and without importing another."""
    seen: dict[str, Any] = {"imported by xdevice": _IMPORTED}
    root = _root(name)
    loaded: list[Any] = []
    threads = [threading.Thread(target=lambda: loaded.append(xdevice.backend(name))) for _ in range(8)]
    with loader.import_lock:
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        # NumPy is imported for other reasons too, such as dtypes
        seen["imported under a held lock"] = root in sys.modules and root != "numpy"
    for thread in threads:
        thread.join()
    seen["loaded in threads"] = sum(backend is xdevice.backend(name) for backend in loaded)
    seen["other backends"] = sorted({backend.name for backend in registry.loaded()} - {name, "numpy"})
    seen["works in the main thread"] = _work(name)
    results: list[Any] = []
    worker = threading.Thread(target=lambda: results.append(_work(name)))
    worker.start()
    worker.join()
    seen["works in a new thread"] = results[0]
    print(json.dumps(seen))


def fork(name: str) -> None:
    """What a forked child can do after its parent has loaded a backend, and after its parent has used it."""
    seen = {}
    with xdevice.use(name):
        xdevice.num_gpus()
        xdevice.try_gpu()
        xdevice.device("gpu:1")
    seen["child after loading"] = _in_fork(lambda: str(_work(name)))
    _work(name)
    seen["child after use"] = _in_fork(lambda: str(_work(name)))
    print(json.dumps(seen))


def _root(name: str) -> str:
    return next((known.modules[0] for known in registry.KNOWN if known.name == name), name)


def _work(name: str) -> float:
    """1 + 1 by way of creating, copying and reading; large enough for the framework to use its threads."""
    with xdevice.use(name) as backend:
        x = xdevice.tensor([1.0] * 100_000)
        y = backend.samples().add(x, xdevice.copy_to(x, "cpu"))
        xdevice.sync(y)
        return float(xdevice.to_numpy(y)[-1])


def _in_fork(work: Callable[[], str]) -> str:
    """What `work` gives in a forked child: its text, the name of its error, or how the child ended."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # JAX and Python 3.12 warn of any fork; here it is the thing under test
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            answer = work()
        except Exception as error:
            answer = type(error).__name__
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    answer = os.read(read, 1000).decode()
    _, status = os.waitpid(child, 0)
    return answer or f"ended with status {status}"
