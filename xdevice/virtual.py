"""Virtual GPUs: devices of each framework's own, in host memory, for a machine that has no GPU or too few."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from . import registry
from .errors import CountError, UnsupportedError

if TYPE_CHECKING:
    from .contract import Backend

VARIABLE: Final = "XDEVICE_VIRTUAL_GPUS"

_asked = 0
"""What `virtual_gpus` has asked for."""
_hides_real_gpus = False
# threads that load one backend at once each have an adapter, and a framework can be given devices once
_lock = threading.Lock()


def virtual_gpus(n: int, *, force: bool = False) -> None:
    """Gives every framework `n` virtual GPUs, `gpu:0` to `gpu:{n-1}`, from now to the end of the process.

    They are other devices of the framework, and their memory is the host's. Tensors say where they are, moving copies,
    networks train on them, and code of the framework's own takes `device.native`. `cpu:0` stays, and is the only CPU.
    They are not faster than the CPU: they show whether code for several devices is right (docs/virtual.md).

    `XDEVICE_VIRTUAL_GPUS=4 python script.py` does the same as `xdevice.virtual_gpus(4)` in its first line, and child
    processes inherit it.

    | backend | `xdevice.gpu(1).native` | has to be asked for before |
    |---|---|---|
    | torch 2.13 or newer | `torch.device("vgpu:1")`, at most 128 of them | nothing |
    | tensorflow | `"/CPU:2"` | TensorFlow has run anything |
    | mxnet | `mx.cpu(2)`, at most 15 of them | nothing |
    | paddle | `paddle.CustomPlace("vgpu", 1)`, at most 16 of them | Paddle is imported |
    | jax | `jax.devices("cpu")[2]` | JAX has run anything |
    | numpy | none: questions for GPUs are an error | |

    Args:
        n: how many, 1 or more. The same number again changes nothing.
        force: hides the GPUs that the machine has; without it they are a reason to refuse. It stays once it was said.

    Raises:
        CountError: `n` is no int of 1 or more, or another number than before.
        UnsupportedError: a framework that is loaded already cannot have them, not so many, or not any more, or has real
            GPUs.
            Nothing has changed then. A framework that is loaded later raises the same at that time.

    Costs what starting the devices costs: nothing on most; see docs/virtual.md for what each operation costs.

    Example:
        >>> try:
        ...     xdevice.virtual_gpus(0)
        ... except xdevice.CountError as error:
        ...     print(error)
        virtual_gpus() takes an int of 1 or more, not 0
    """
    global _asked, _hides_real_gpus
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise CountError(f"virtual_gpus() takes an int of 1 or more, not {n!r}")
    with _lock:
        before = wanted()
        if before not in (0, n):
            by = "virtual_gpus()" if _asked else VARIABLE
            raise CountError(f"{by} has asked for {before} virtual GPUs, and a process has one number of them, not {n}")
        waiting = [backend for backend in registry.loaded() if not backend.virtual and backend.refusal is None]
        force = force or _hides_real_gpus
        for backend in waiting:
            _refuse(backend, n, force)
        for backend in waiting:
            _make(backend, n)
        _asked, _hides_real_gpus = n, force


def wanted() -> int:
    """How many virtual GPUs are asked for; 0 for none. Adapters ask that must act before their framework's import.

    Raises:
        CountError: the value of XDEVICE_VIRTUAL_GPUS is no int of 0 or more.

    Example:
        >>> from xdevice.virtual import wanted
        >>> wanted() >= 0
        True
    """
    if _asked:
        return _asked
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise CountError(f"{VARIABLE} is an int of 0 or more, not {text!r}; {VARIABLE}=4 gives 4 virtual GPUs")
    return int(text)


def provide(backend: Backend) -> None:
    """Gives a backend that is being loaded what was asked for."""
    n = wanted()
    if not n:
        return
    with _lock:
        _refuse(backend, n, _hides_real_gpus)
        _make(backend, n)


def _refuse(backend: Backend, n: int, force: bool) -> None:
    real = 0 if force or "gpu" not in backend.kinds else backend.count("gpu")
    if real:
        raise UnsupportedError(
            f"{backend.name} has {real} real GPU{'s' * (real > 1)} here, and real GPUs are never hidden unless asked: "
            f"xdevice.virtual_gpus(n, force=True)"
        )
    reason, most = backend.why_no_virtual_gpus(), backend.most_virtual_gpus
    if reason is None and most is not None and n > most:
        reason = f"{n} are too many for it; ask for {most} at most"
    if reason is not None:
        raise UnsupportedError(f"{backend.name} cannot have virtual GPUs here: {reason}")


def _make(backend: Backend, n: int) -> None:
    backend.make_virtual_gpus(n)
    backend.virtual = n
