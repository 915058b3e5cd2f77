"""Makes Paddle refuse operations on tensors of two different virtual GPUs, and leave empty results on their GPU.

Paddle itself does not compare the devices of operands. If the operands are on two real GPUs, the kernel of one accesses
the memory of the other; if they are on two virtual GPUs, Paddle would silently copy both to the host and compute there.
Operands on the CPU are allowed, because Paddle copies them to the GPU, real or virtual. For lack of kernels it computes
on the CPU, and copies results back, but not those without elements.
"""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.errors import DeviceMismatchError
from xdevice_paddle import copying
from xdevice_paddle.private import CHECKED, NEWER_CHECKED, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOVES = ("copy_to", "memcpy", "assign_")


def refuse_mixed_devices() -> None:
    """Makes Paddle's operations refuse tensors of two virtual GPUs, until the process ends, by replacing the functions
    and methods through which Paddle's Python calls them."""

    for module in (private["paddle._C_ops"], private["paddle._legacy_C_ops"]):
        for name, call in list(vars(module).items()):
            if isinstance(call, BuiltinFunctionType) and not any(move in name for move in _MOVES):
                setattr(module, name, _checked(name, call))
    for name in (*CHECKED, *NEWER_CHECKED):
        method: Any = getattr(paddle.Tensor, name, None)
        if type(method) is _Method:
            setattr(paddle.Tensor, name, _checked(name, method))


_Method = type(paddle.Tensor.clone)


def _checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        first = there = None
        held = []
        for x in _tensors(args):
            place = x.place
            if not place.is_custom_place():
                continue
            held.append(x)
            index = place.custom_device_id()
            if first is None:
                first, there = index, place
            elif index != first:
                raise DeviceMismatchError(
                    f"{name} takes tensors of one GPU, but they are on gpu:{first} and gpu:{index}; "
                    "move them with xdevice.to_device"
                )
        made = call(*args, **kwargs)
        if held:
            _settle([made, *held], there)  # what is written in place is moved as well
        return made

    return checked


def _settle(made: Iterable[Any], place: Any) -> None:
    for x in _tensors(made):
        if x.is_dense() and not x.size and x.place.is_cpu_place():
            copying.relocate(x, place)


def _tensors(args: Iterable[Any]) -> Iterable[Any]:
    for x in args:
        if isinstance(x, paddle.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)
