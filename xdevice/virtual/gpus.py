"""`virtual_gpus`: gives each framework devices in host memory that act as GPUs, for a machine with no GPU or too
few."""

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
"""Whether a call of `virtual_gpus` has passed `force=True`."""
# two threads may load one backend at the same time, and a framework can be given virtual GPUs only once
_lock = forks.renewed(threading.Lock())


def virtual_gpus(n: int | str, *, force: bool = False) -> None:
    """Gives every framework `n` virtual GPUs, `gpu:0` to `gpu:{n-1}`, until the process ends.

    Virtual GPUs are additional devices of the framework in host memory: they show whether code for several devices is
    correct, and are no faster than the CPU. `cpu:0` stays, and is the only CPU. `XDEVICE_VIRTUAL_GPUS=4 python
    script.py` does the same, and child processes inherit it. docs/explanation/virtual.md says what each operation
    costs, and lists the characters of virtual GPUs: the dtypes that they can lack, and limits of their memory.

    | backend | `xdevice.gpu(1).native` | request them before |
    |---|---|---|
    | torch 2.13 or newer | `torch.device("vgpu:1")`, at most 128 of them | nothing |
    | tensorflow | `"/CPU:2"` | TensorFlow has run anything |
    | mxnet | `mx.cpu(2)`, at most 15 of them | nothing |
    | paddle | `paddle.CustomPlace("vgpu", 1)`, at most 16 of them | Paddle is imported |
    | jax | `jax.devices("cpu")[2]` | JAX has run anything |
    | numpy | none: `try_gpu` gives the CPU | |

    Args:
        n: their number, 1 or more, or a text with their number and character: "2:no_float64,memory=256MB". A second
            call with the same `n` changes nothing.
        force: hides the machine's real GPUs, for later calls too. Without it, real GPUs raise `UnsupportedError`.

    Raises:
        ArgumentError: if `n` is neither an int of 1 or more nor a description of virtual GPUs, or if another number or
            character was requested before.
        UnsupportedError: if a framework that is already loaded cannot have virtual GPUs, or has real GPUs; nothing has
            changed then. A framework that is loaded later raises the same error when it is loaded.

    Example:
        >>> try:
        ...     xdevice.virtual_gpus(0)
        ... except xdevice.errors.ArgumentError as error:
        ...     print(error)
        virtual_gpus() expects an int of 1 or more, or a string such as '2:mps', got 0
    """
    # Python counts True as the int 1
    is_number = isinstance(n, int) and not isinstance(n, bool) and n > 0
    # a text describes characters after a colon; a number alone is passed as an int
    if not (is_number or (isinstance(n, str) and ":" in n)):
        raise ArgumentError(
            f"virtual_gpus() expects an int of 1 or more, or a string such as '2:mps', got {shown(n)}"
        )
    _give_all(str(n), force)
    # the kind of a tensor's type depends on its framework's devices, and these have changed
    registry.forget_types()


def give(backend: Backend, wanted: tuple[Any, ...]) -> None:
    """Gives a backend virtual GPUs, one for each `Character` in `wanted`. It is called while
    the backend is loaded. Raises `UnsupportedError` if the backend cannot have them, or has
    real GPUs that may not be hidden."""
    with _lock:
        _refuse_backend(backend, len(wanted), _hides_real_gpus)
        _make(backend, wanted)


def _give_all(text: str, force: bool) -> None:
    """Gives the virtual GPUs that `text` describes, such as "2" or "2:mps", to each backend
    that is loaded, and has them given to each that is loaded later. `force` is that of
    `virtual_gpus`.

    Raises `ArgumentError` if `text` describes none or others were requested before, and
    `UnsupportedError` if a loaded backend cannot have them. No backend has changed then."""
    global _hides_real_gpus
    with _lock:
        before = environment.requested_gpus()
        try:
            wanted = environment.parsed(text)
        except ValueError as error:
            raise ArgumentError(f"virtual_gpus({text!r}): {error}") from None
        # () means that nobody has requested any yet
        if before not in ((), wanted):
            requester, earlier = environment.request()
            raise ArgumentError(
                f"{requester} has requested {earlier} virtual GPUs, which is fixed for the process, but "
                f"virtual_gpus() now requests {text}; request the same, or start a new process"
            )
        unchanged = [
            backend
            for backend in registry.list_loaded()
            # `refusal` is set in a forked child that cannot use the backend's devices
            if not backend.virtual and backend.refusal is None
        ]
        force = force or _hides_real_gpus
        # every backend is checked before the first is changed, because a framework's new
        # devices cannot be removed
        for backend in unchanged:
            _refuse_backend(backend, len(wanted), force)
        for backend in unchanged:
            _make(backend, wanted)
        # last, because a request that failed must not apply to backends that are loaded later
        environment.remember(text)
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
        reason = f"{n} are too many; ask for at most {most}"
    if reason is not None:
        raise UnsupportedError(f"{backend.name} cannot have virtual GPUs here: {reason}")


def _make(backend: Backend, wanted: tuple[Any, ...]) -> None:
    """Makes the virtual GPUs of one backend, one for each `Character` in `wanted`."""
    backend.make_virtual_gpus(len(wanted))
    backend.virtual = len(wanted)
    backend.take_characters(wanted)
