"""Defines `virtual_gpus`, which adds virtual GPUs (devices in host memory) to each framework, for machines with no GPUs
or too few."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from xdevice.base import forks
from xdevice.contract import environment
from xdevice.core import registry
from xdevice.errors import ArgumentError, UnsupportedError, shown

if TYPE_CHECKING:
    from xdevice.contract import Backend

_hides_real_gpus = False
"""Whether any call of `virtual_gpus` has passed `force=True`."""
# two threads may load the same backend at the same time, but virtual GPUs can be added to a framework
# only once
_lock = forks.unlocked_in_child(threading.Lock())


def virtual_gpus(n: int | str, *, force: bool = False) -> None:
    """Adds `n` virtual GPUs, `gpu:0` to `gpu:{n-1}`, to every framework, until the process ends.

    Virtual GPUs are additional devices of the framework in host memory. They are for testing code for several devices,
    and are no faster than the CPU. `cpu:0` remains available, and is the only CPU.
    `XDEVICE_VIRTUAL_GPUS=4 python script.py` does the same, and child processes inherit the variable.
    docs/explanation/virtual.md states the cost of each operation, and lists possible limits of dtypes and memory.

    | backend | `xdevice.gpu(1).native` | request them before |
    |---|---|---|
    | torch 2.13 or newer | `torch.device("vgpu:1")`, at most 128 | nothing |
    | tensorflow | `"/CPU:2"` | TensorFlow has run anything |
    | mxnet | `mx.cpu(2)`, at most 15 | nothing |
    | paddle | `paddle.CustomPlace("vgpu", 1)`, at most 16 | Paddle is imported |
    | jax | `jax.devices("cpu")[2]` | JAX has run anything |
    | numpy | none: `try_gpu` returns the CPU | |

    Args:
        n: the number of virtual GPUs, at least 1, or a string with their number and limits:
            "2:no_float64,memory=256MB". A second call with the same `n` changes nothing.
        force: hides the machine's real GPUs, in all later calls too. Without it, real GPUs cause an `UnsupportedError`.

    Raises:
        ArgumentError: if `n` is neither a positive int nor a description of virtual GPUs, or if a different number or
            different limits were requested before.
        UnsupportedError: if a framework that is already loaded cannot have virtual GPUs, or has real GPUs. In that
            case, no framework is changed. A framework that is loaded later raises the same error when it is loaded.

    Example:
        >>> try:
        ...     xdevice.virtual_gpus(0)
        ... except xdevice.errors.ArgumentError as error:
        ...     print(error)
        virtual_gpus() expects a positive int, or a string such as '2:mps', got 0
    """
    # in Python, True is an int
    is_number = isinstance(n, int) and not isinstance(n, bool) and n > 0
    # a string must describe characters after a colon, because a number alone is passed as an int
    if not (is_number or (isinstance(n, str) and ":" in n)):
        raise ArgumentError(
            f"virtual_gpus() expects a positive int, or a string such as '2:mps', got {shown(n)}"
        )
    _give_all(str(n), force)
    # the cached facts about types depend on the devices of the frameworks, which have changed
    registry.forget_types()


def give_virtual_gpus(backend: Backend, wanted: tuple[Any, ...]) -> None:
    """Adds virtual GPUs to a backend, one for each `Character` in `wanted`. Called while the backend is being loaded.
    Raises `UnsupportedError` if the backend cannot have these virtual GPUs, or has real GPUs and `force` was never
    passed."""
    with _lock:
        _refuse_backend(backend, len(wanted), _hides_real_gpus)
        _make(backend, wanted)


def _give_all(text: str, force: bool) -> None:
    """Adds the virtual GPUs that `text` describes ("2" or "2:mps", for example) to each loaded backend. Also records
    the request for backends that are loaded later. `force` is the argument of `virtual_gpus`.

    Raises `ArgumentError` if `text` does not describe virtual GPUs, or if other virtual GPUs were requested before.
    Raises `UnsupportedError` if a loaded backend cannot have these virtual GPUs. If it raises an error, no backend has
    been changed."""
    global _hides_real_gpus
    with _lock:
        before = environment.requested_gpus()
        try:
            wanted = environment.parse_virtual_gpus(text)
        except ValueError as error:
            raise ArgumentError(f"virtual_gpus({text!r}): {error}") from None
        # () means that no virtual GPUs have been requested yet
        if before not in ((), wanted):
            requester, earlier = environment.request()
            raise ArgumentError(
                f"{requester} has requested {earlier} virtual GPUs, and the number cannot change within a process, "
                f"but virtual_gpus() now requests {text}; request {earlier} again, or start a new process"
            )
        unchanged = [
            backend
            for backend in registry.list_loaded()
            # `refusal` is set in a forked child that cannot use the backend's devices
            if not backend.virtual and backend.refusal is None
        ]
        force = force or _hides_real_gpus
        # all backends are checked before the first one is changed, because the new devices of a framework
        # cannot be removed
        for backend in unchanged:
            _refuse_backend(backend, len(wanted), force)
        for backend in unchanged:
            _make(backend, wanted)
        # recorded last, because a failed request must not apply to backends that are loaded later
        environment.remember_request(text)
        _hides_real_gpus = force


def _refuse_backend(backend: Backend, n: int, force: bool) -> None:
    """Raises `UnsupportedError` if a backend cannot have `n` virtual GPUs, or if it has real
    GPUs and `force` is False."""
    real = 0 if force or "gpu" not in backend.kinds else backend.count("gpu")
    if real:
        raise UnsupportedError(
            f"{backend.name} has {real} real GPU{'s' * (real > 1)} here, but real GPUs are hidden only on request: "
            f"xdevice.virtual_gpus(n, force=True)"
        )
    reason, most = backend.why_no_virtual_gpus(), backend.most_virtual_gpus
    if reason is None and most is not None and n > most:
        reason = f"{n} virtual GPUs are too many; request at most {most}"
    if reason is not None:
        raise UnsupportedError(f"{backend.name} cannot have virtual GPUs here: {reason}")


def _make(backend: Backend, wanted: tuple[Any, ...]) -> None:
    """Creates the virtual GPUs of one backend, one for each `Character` in `wanted`."""
    backend.make_virtual_gpus(len(wanted))
    backend.virtual = len(wanted)
    backend.take_characters(wanted)
