"""Splits and joins tensors, creates replicas of parameters, and adds tensors."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import paddle

from xdevice.base.dtypes import dtype_name
from xdevice.contract.replicas import Replicas, add_up
from xdevice.errors import DTypeError

from . import copying

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xdevice.base.devices import Device


_ADDED_AS = {"float16": "float32", "bfloat16": "float32", "uint8": "int32", "int8": "int32"}
"""For each dtype that Paddle cannot sum on the CPU, the dtype in which such tensors are added. Paddle lacks the kernel
for 8-bit integers in version 2.6, and for 16-bit floats in all versions."""


class PaddleReplicas(Replicas):
    """Handles Paddle's tensors on several devices of this process."""

    if TYPE_CHECKING:
        # a method of the backend, which inherits from this class

        def _moved_if_elsewhere(self, x: paddle.Tensor, device: Device) -> paddle.Tensor: ...

    def split(self, x: paddle.Tensor, sizes: Sequence[int]) -> list[paddle.Tensor]:
        """Returns consecutive parts of `x` along its first axis. `sizes` are the lengths of the
        parts along this axis. Raises `DTypeError` for 8-bit floats."""
        name = dtype_name(x.dtype)
        if name.startswith("float8"):
            raise DTypeError(
                f"paddle has no kernel that slices a tensor of dtype {name}; split x.astype('float16') instead"
            )
        place = self.device_of(x)
        return [self._moved_if_elsewhere(part, place) for part in super().split(x, sizes)]

    def join(self, parts: list[paddle.Tensor]) -> paddle.Tensor:
        """Returns the parts joined along their first axis; 0-d parts are joined into a
        vector."""
        place = self.device_of(parts[0])
        if any(part.size for part in parts):
            return self._moved_if_elsewhere(
                paddle.concat(parts) if parts[0].ndim else paddle.stack(parts), place
            )
        # Paddle 2.6 refuses to concatenate tensors that are all empty
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        return self.full(shape, 0, place, dtype_name(parts[0].dtype))

    def leaf(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        """Returns a copy of `x` on a device. The copy of a tensor of floats or complex numbers
        requires a gradient; the copy of a parameter is a parameter."""
        if hasattr(x, "optimize_attr"):  # a parameter
            twin = copy.deepcopy(x)
            if self.device_of(twin) is not device:
                copying.relocate(twin, self.to_native(device))
            return twin
        new = copying.copied_without_gradient(x.detach(), self.to_native(device))
        new.stop_gradient = not (new.is_floating_point() or new.is_complex())
        return new

    def can_write(self, x: paddle.Tensor) -> bool:
        """Returns True, because every Paddle tensor can be written into."""
        return True

    def memory_of(self, x: paddle.Tensor) -> tuple[int, tuple[int, ...]]:
        """Returns the address of a tensor, and its strides converted from elements to bytes."""
        return x.data_ptr(), tuple(step * x.element_size() for step in x.strides)

    def write(self, x: paddle.Tensor, value: paddle.Tensor) -> None:
        """Writes the values of `value` into the memory of `x`."""
        # empty tensors are skipped, because `copy_` would set their flags to those of `value`.
        # `x.size` is not used, because it takes 8 us
        if 0 not in x.shape:
            with paddle.no_grad():
                x.copy_(value, True)  # True: returns after the copy

    def total(self, tensors: Iterable[paddle.Tensor], mean: bool) -> paddle.Tensor:
        """Returns the sum of tensors on one device, or their mean if `mean` is True, in the dtype of the first tensor.
        The tensors are added in the given order. Tensors with a dtype in `_ADDED_AS` are added in the wider dtype
        listed there."""
        remaining = iter(tensors)
        first = next(remaining)
        wide = _ADDED_AS.get(dtype_name(first.dtype), first.dtype)
        with paddle.no_grad():
            # a copy, because `add_up` adds in place. Not made with clone(), which fails for empty
            # tensors in Paddle 2.6
            start = copying.copied_without_gradient(first.astype(wide), first.place)
            total = add_up(start, (x.astype(wide) for x in remaining), mean)
            return self._moved_if_elsewhere(total.astype(first.dtype), self.device_of(first))
