"""Makes Paddle refuse operations on tensors of two different virtual GPUs, and leave empty results on their GPU.

A virtual GPU is a device of a plugin without kernels. If a plugin has no kernel for an operation, Paddle computes it on
the CPU, and copies operands and results (https://github.com/PaddlePaddle/Paddle/pull/44639 and
https://github.com/PaddlePaddle/Paddle/pull/44681).

| in place of | stands | because |
|---|---|---|
| each function of `paddle._C_ops` and `_legacy_C_ops`, except those that move | `_checked` | Paddle does not compare \
the devices of operands: the kernel of one real GPU accesses the memory of the other, and of two virtual GPUs both \
operands would silently be copied to the host |
| methods of `paddle.Tensor` written in C++ (`CHECKED` in private.py) | `_checked` | Paddle's Python calls them \
beside `_C_ops` |
| `to_tensor`, `Tensor.to`, `_copy_to`, for a character | `_checking` | they make tensors without `_C_ops` |
| the place of results without elements | `_settle` | Paddle copies results back to the GPU, but not those |

Operands on the CPU are allowed, because Paddle copies them to the GPU, real or virtual. No upstream issue is known for
what is replaced here. custom_device.py says how Paddle gets the plugin, and machine_code.py why that needs machine
code.
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
_REFUSED = "rmsprop_"
"""The step of Paddle's RMSProp: its kernel requires the memory of its operands, and Paddle gives it copies on the
host."""


def refuse_mixed_devices() -> None:
    """Makes Paddle's operations refuse tensors of two virtual GPUs, until the process ends, by replacing the functions
    and methods through which Paddle's Python calls them."""

    for module in (private["paddle._C_ops"], private["paddle._legacy_C_ops"]):
        for name, call in list(vars(module).items()):
            if isinstance(call, BuiltinFunctionType) and not any(
                move in name for move in _MOVES
            ):
                setattr(module, name, _checked(name, call))
    for name in (*CHECKED, *NEWER_CHECKED):
        method: Any = getattr(paddle.Tensor, name, None)
        if type(method) is _Method:
            setattr(paddle.Tensor, name, _checked(name, method))


_Method = type(paddle.Tensor.clone)


def _checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an operation of Paddle: operands on two virtual GPUs are refused, and empty results stay on the GPU."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        first = there = None
        operands = []
        for x in _tensors(args):
            place = x.place
            if not place.is_custom_place():
                continue
            operands.append(x)
            index = place.custom_device_id()
            if first is None:
                first, there = index, place
            elif index != first:
                raise DeviceMismatchError(
                    f"{name} takes tensors of one GPU, but they are on gpu:{first} and gpu:{index}; "
                    "move them with xdevice.to_device"
                )
        if operands and name == _REFUSED:
            raise UnsupportedError(
                "RMSProp is not supported on virtual GPUs of paddle; take Adam, or stay on the CPU"
            )
        result = call(*args, **kwargs)
        if operands:
            _settle([result, *operands], there)  # what is written in place is moved as well
        if _check is not None:
            _check_all([result, *operands])
        return result

    return checked


_check: Callable[[Any, int], None] | None = None


def check_results(check: Callable[[Any, int], None]) -> None:
    """Calls `check` with each tensor on a virtual GPU that Paddle makes from now on, and the index of the GPU."""
    global _check
    _check = check
    # they make tensors without the functions of `_C_ops`
    for owner, name in (
        (paddle, "to_tensor"),
        (paddle.Tensor, "_copy_to"),
        (paddle.Tensor, "to"),
    ):
        setattr(owner, name, _checking(getattr(owner, name)))


def _checking(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        _check_all([result])
        return result

    return checked


def _check_all(tensors: Iterable[Any]) -> None:
    for x in _tensors(tensors):
        place = x.place
        if _check is not None and place.is_custom_place():
            _check(x, place.custom_device_id())


def _settle(tensors: Iterable[Any], place: Any) -> None:
    for x in _tensors(tensors):
        if x.is_dense() and not x.size and x.place.is_cpu_place():
            copying.relocate(x, place)


def _tensors(args: Iterable[Any]) -> Iterable[Any]:
    for x in args:
        if isinstance(x, paddle.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)
