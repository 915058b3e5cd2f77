"""`virtual_gpus`: gives each framework devices in host memory that act as GPUs, for a machine with no GPU or too
few."""

from __future__ import annotations

from xdevice.contract import environment
from xdevice.core import registry
from xdevice.errors import ArgumentError, shown


def virtual_gpus(n: int | str, *, force: bool = False) -> None:
    """Gives every framework `n` virtual GPUs, `gpu:0` to `gpu:{n-1}`, from now to the end of the process.

    Virtual GPUs are other devices of the framework, in host memory: they show whether code for several devices is
    correct, and are not faster. `cpu:0` stays, and is the only CPU. `XDEVICE_VIRTUAL_GPUS=4 python script.py` does the
    same, and child processes inherit it. docs/explanation/virtual.md says what each operation costs, and lists the
    characters: dtypes that virtual GPUs lack, as Apple's lack float64, and how much memory they have.

    | backend | `xdevice.gpu(1).native` | request them before |
    |---|---|---|
    | torch 2.13 or newer | `torch.device("vgpu:1")`, at most 128 of them | nothing |
    | tensorflow | `"/CPU:2"` | TensorFlow has run anything |
    | mxnet | `mx.cpu(2)`, at most 15 of them | nothing |
    | paddle | `paddle.CustomPlace("vgpu", 1)`, at most 16 of them | Paddle is imported |
    | jax | `jax.devices("cpu")[2]` | JAX has run anything |
    | numpy | none: `try_gpu` gives the CPU | |

    Args:
        n: how many, 1 or more, or with their character: "2:no_float64,memory=256MB". The same again changes nothing.
        force: hides the real GPUs of the machine; without it, real GPUs are an error. Once given, it holds for later
            calls.

    Raises:
        ArgumentError: `n` is neither an int of 1 or more nor describes any, or others were asked for before.
        UnsupportedError: a framework that is loaded already cannot have them, or has real GPUs; nothing has changed
            then. A framework that is loaded later raises the same error when it is loaded.

    Example:
        >>> try:
        ...     xdevice.virtual_gpus(0)
        ... except xdevice.errors.ArgumentError as error:
        ...     print(error)
        virtual_gpus() takes an int of 1 or more, or a text such as '2:mps', not 0
    """
    is_number = isinstance(n, int) and not isinstance(n, bool) and n > 0
    if not (is_number or (isinstance(n, str) and ":" in n)):
        raise ArgumentError(
            f"virtual_gpus() takes an int of 1 or more, or a text such as '2:mps', not {shown(n)}"
        )
    environment.ask_for_virtual_gpus(str(n), registry.list_loaded(), force=force)
    registry.forget_types()
