"""Makes Paddle refuse operations on tensors of two different virtual GPUs, and keeps empty results on their GPU.

A virtual GPU is a device of a plugin without kernels. If a plugin has no kernel for an operation, Paddle computes the
operation on the CPU, and copies operands and results (https://github.com/PaddlePaddle/Paddle/pull/44639 and
https://github.com/PaddlePaddle/Paddle/pull/44681).

| function of Paddle | replaced by | because |
|---|---|---|
| each function of `paddle._C_ops` and `_legacy_C_ops`, except those that move | `_checked` | Paddle does not compare \
the devices of operands: with real GPUs, the kernel of one GPU accesses the memory of the other GPU; with virtual \
GPUs, both operands would silently be copied to the host |
| methods of `paddle.Tensor` written in C++ (`CHECKED` in private.py) | `_checked` | Paddle's Python code calls them \
without calling functions of `_C_ops` |
| `to_tensor`, `Tensor._copy_to`, if the GPUs have limits | `_checking` | they create tensors without calling \
functions of `_C_ops` |

Paddle copies results back to the GPU unless they have no elements, so `_checked` moves these empty
results with `_move_empty`. Operands on the CPU are allowed, because Paddle copies such operands to
the GPU, whether it is real or virtual. No upstream issue is known for any of these facts.
custom_device.py describes how the plugin is passed to Paddle, and machine_code.py explains why the
plugin needs machine code.
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
"""Parts of the names of Paddle's operations that copy between devices. The operands of such an operation may be on two
GPUs."""
_REFUSED = "rmsprop_"
"""The operation that makes a step of Paddle's RMSProp. Its kernel should write into the memory of
the operands, but Paddle passes it copies of the operands on the host."""


def refuse_mixed_devices() -> None:
    """Makes Paddle's operations refuse tensors of two virtual GPUs, until the process ends. To do so, replaces the
    functions and methods with which Paddle's Python code calls the operations."""
    for module in (private["paddle._C_ops"], private["paddle._legacy_C_ops"]):
        # a list, because the loop replaces items of the module's dict
        for name, call in list(vars(module).items()):
            if isinstance(call, BuiltinFunctionType) and not any(
                move in name for move in _MOVES
            ):
                setattr(module, name, _checked(name, call))
    for name in (*CHECKED, *NEWER_CHECKED):
        method: Any = getattr(paddle.Tensor, name, None)
        # methods that this version of Paddle implements in Python are left out, because they call
        # operations that have already been replaced
        if type(method) is _Method:
            setattr(paddle.Tensor, name, _checked(name, method))


_Method = type(paddle.Tensor.clone)
"""The type of methods that are written in C++."""


def _checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `call`, the operation of Paddle named `name`. The function
    raises `DeviceMismatchError` for operands on two virtual GPUs, and moves empty results to the
    operands' GPU."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        """Replaces Paddle's operation: checks the operands, and moves an empty result."""
        # the index and the place of the virtual GPU of the operands; None if all are on the CPU
        expected = gpu_place = None
        operands = []
        # the keyword arguments include `out=`, whose tensor Paddle would move to the operands' GPU
        for x in _tensors((*args, *kwargs.values())):
            place = x.place
            # operands on the CPU may be combined with operands on a GPU
            if not place.is_custom_place():
                continue
            operands.append(x)
            index = place.custom_device_id()
            if expected is None:
                expected, gpu_place = index, place
            elif index != expected:
                raise DeviceMismatchError(
                    f"{name} expects tensors on one GPU, got tensors on gpu:{expected} and gpu:{index}; move the "
                    f"tensors to one GPU with xdevice.to_device"
                )
        if operands and name == _REFUSED:
            raise UnsupportedError(
                "RMSProp is not supported on virtual GPUs of paddle; use Adam, or stay on the CPU"
            )
        result = call(*args, **kwargs)
        if operands:
            # the operands too, because an operand may have been written in place
            _move_empty([result, *operands], gpu_place)
        if _check is not None:
            _check_all([result, *operands])
        return result

    return checked


_check: Callable[[Any, int], None] | None = None
"""The function that was passed to `check_results`, or None if the virtual GPUs have no limits."""


def check_results(check: Callable[[Any, int], None]) -> None:
    """From now on, calls `check(x, index)` for each tensor `x` that Paddle creates on a virtual
    GPU; `index` is the index of that GPU. If `check` raises an error, the operation fails with
    this error."""
    global _check
    _check = check
    # these functions create tensors without calling the functions of `_C_ops`, which have already
    # been replaced
    for owner, name in (
        (paddle, "to_tensor"),
        (paddle.Tensor, "_copy_to"),
    ):
        setattr(owner, name, _checking(getattr(owner, name)))


def _checking(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `call`, a function of Paddle that creates a tensor. The wrapper passes each new tensor on a virtual GPU to
    the function that `check_results` has received."""

    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        """Replaces Paddle's function, and returns its result after the check."""
        result = call(*args, **kwargs)
        _check_all([result])
        return result

    return checked


def _check_all(tensors: Iterable[Any]) -> None:
    """Calls the function that was passed to `check_results`, if there is one, for each tensor in `tensors` that is on a
    virtual GPU."""
    for x in _tensors(tensors):
        place = x.place
        if _check is not None and place.is_custom_place():
            _check(x, place.custom_device_id())


def _move_empty(tensors: Iterable[Any], place: Any) -> None:
    """Moves each tensor that is dense, has no elements and is on the CPU to `place`, Paddle's object
    for a GPU. The tensors stay the same objects. Other tensors are not changed."""
    for x in _tensors(tensors):
        # `relocate` can move only the memory of dense tensors
        if x.is_dense() and not x.size and x.place.is_cpu_place():
            copying.relocate(x, place)


def _tensors(args: Iterable[Any]) -> Iterable[Any]:
    """Yields the tensors among these arguments, and the tensors in lists and tuples among them."""
    for x in args:
        if isinstance(x, paddle.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)
