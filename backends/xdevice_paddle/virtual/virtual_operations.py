"""Makes Paddle refuse operations on tensors of two different virtual GPUs, and leave empty results on their GPU.

A virtual GPU is a device of a plugin without kernels. If a plugin has no kernel for an operation, Paddle computes it on
the CPU, and copies operands and results (https://github.com/PaddlePaddle/Paddle/pull/44639 and
https://github.com/PaddlePaddle/Paddle/pull/44681).

| function of Paddle | replaced by | because |
|---|---|---|
| each function of `paddle._C_ops` and `_legacy_C_ops`, except those that move | `_checked` | Paddle does not compare \
the devices of operands: the kernel of one real GPU accesses the memory of the other, and of two virtual GPUs both \
operands would silently be copied to the host |
| methods of `paddle.Tensor` written in C++ (`CHECKED` in private.py) | `_checked` | Paddle's Python calls them \
without going through `_C_ops` |
| `to_tensor`, `Tensor._copy_to`, if the GPUs have limits | `_checking` | they make tensors without `_C_ops` |

Paddle copies results back to the GPU, except those without elements, so `_checked` moves these
by `_move_empty`. Operands on the CPU are allowed, because Paddle copies them to the GPU, real or
virtual. No upstream issue is known for any of this. custom_device.py says how Paddle gets the
plugin, and machine_code.py why that needs machine code.
"""

from __future__ import annotations

from functools import wraps
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.errors import DeviceMismatchError, UnsupportedError
from xdevice_paddle import copying
from xdevice_paddle.private import CHECKED, NEWER_CHECKED, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOVES = ("copy_to", "memcpy", "assign_")
"""Parts of the names of Paddle's operations that copy between devices: their operands may be on
two GPUs."""
_REFUSED = "rmsprop_"
"""The step of Paddle's RMSProp. Its kernel writes to the operands' own memory, but Paddle
passes it copies on the host."""


def refuse_mixed_devices() -> None:
    """Makes Paddle's operations refuse tensors of two virtual GPUs, until the process ends, by replacing the functions
    and methods through which Paddle's Python calls them."""

    for module in (private["paddle._C_ops"], private["paddle._legacy_C_ops"]):
        # a list, because the loop replaces items of the module's dict
        for name, call in list(vars(module).items()):
            if isinstance(call, BuiltinFunctionType) and not any(
                move in name for move in _MOVES
            ):
                setattr(module, name, _checked(name, call))
    for name in (*CHECKED, *NEWER_CHECKED):
        method: Any = getattr(paddle.Tensor, name, None)
        # methods that this version of Paddle has in Python are left out: they call operations
        # that are replaced already
        if type(method) is _Method:
            setattr(paddle.Tensor, name, _checked(name, method))


_Method = type(paddle.Tensor.clone)
"""The type of methods that are written in C++."""


def _checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `call`, the operation of Paddle with this name. The new function raises
    `DeviceMismatchError` for operands on two virtual GPUs, and moves empty results to the
    operands' GPU."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        """Replaces Paddle's operation: checks the operands, and moves an empty result."""
        first = gpu_place = None
        operands = []
        # of the keywords, `out=` counts too: Paddle would move its tensor to the operands' GPU
        for x in _tensors((*args, *kwargs.values())):
            place = x.place
            # operands on the CPU may be used with those on a GPU
            if not place.is_custom_place():
                continue
            operands.append(x)
            index = place.custom_device_id()
            if first is None:
                first, gpu_place = index, place
            elif index != first:
                raise DeviceMismatchError(
                    f"{name} expects tensors on one GPU, got tensors on gpu:{first} and gpu:{index}; move them to "
                    f"one GPU with xdevice.to_device"
                )
        if operands and name == _REFUSED:
            raise UnsupportedError(
                "RMSProp is not supported on virtual GPUs of paddle; use Adam, or stay on the CPU"
            )
        result = call(*args, **kwargs)
        if operands:
            # the operands too, because one may have been written in place
            _move_empty([result, *operands], gpu_place)
        if _check is not None:
            _check_all([result, *operands])
        return result

    return checked


_check: Callable[[Any, int], None] | None = None
"""The function that `check_results` was called with; None if the virtual GPUs have no
limits."""


def check_results(check: Callable[[Any, int], None]) -> None:
    """Has `check` called, from now on, with each tensor that Paddle makes on a virtual GPU, and
    with the index of that GPU. An error that `check` raises ends the operation."""
    global _check
    _check = check
    # these make tensors without the functions of `_C_ops`, which are replaced already
    for owner, name in (
        (paddle, "to_tensor"),
        (paddle.Tensor, "_copy_to"),
    ):
        setattr(owner, name, _checking(getattr(owner, name)))


def _checking(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of Paddle that makes a tensor: the function of `check_results` is called
    with the new tensor."""

    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        """Replaces Paddle's function, and returns its result after the check."""
        result = call(*args, **kwargs)
        _check_all([result])
        return result

    return checked


def _check_all(tensors: Iterable[Any]) -> None:
    """Calls the function of `check_results`, if there is one, with each of these tensors that
    is on a virtual GPU."""
    for x in _tensors(tensors):
        place = x.place
        if _check is not None and place.is_custom_place():
            _check(x, place.custom_device_id())


def _move_empty(tensors: Iterable[Any], place: Any) -> None:
    """Moves dense tensors without elements from the CPU to `place`, Paddle's object for a GPU.
    The tensors stay the same objects. Other tensors are left as they are."""
    for x in _tensors(tensors):
        # `relocate` moves the memory of dense tensors only
        if x.is_dense() and not x.size and x.place.is_cpu_place():
            copying.relocate(x, place)


def _tensors(args: Iterable[Any]) -> Iterable[Any]:
    """Yields the tensors among these arguments, and those in their lists and tuples."""
    for x in args:
        if isinstance(x, paddle.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)
