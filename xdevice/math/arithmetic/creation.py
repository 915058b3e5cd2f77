"""The functions of the Python Array API standard that make tensors: by default float32 and int64, on the device of
`with device:`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.base import devices, floats
from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.core import registry
from xdevice.errors import DTypeError, ShapeError, SharingError, shown
from xdevice.tensors import conversion, creation, verbs
from xdevice.tensors.refusals import require_dtype

from . import dtypes
from .checks import NUMBERS, Checks, Room, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from xdevice.base.devices import Device

    Shape = int | Sequence[int]


class Creation(Room):
    """Functions that make tensors of a shape, of numbers, or like other tensors."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(checks)
        self._backend = checks.backend
        self._spread = checks.fused(self._along_axes)

    # of values

    def asarray(
        self, obj: Any, /, *, dtype: Any = None, device: object = None, copy: bool | None = None
    ) -> Any:
        if not self._is_mine(obj):
            if copy is False:
                raise SharingError(
                    "asarray(copy=False) takes a tensor of the backend; anything else is copied"
                )
            return creation.tensor_of(
                self._backend, obj, device, None if dtype is None else dtype_name(dtype)
            )
        x = self._checks.tensor(obj, "asarray")
        result = (
            x
            if dtype is None
            else self._checks.cast(x, self._checks.supported(dtype_name(dtype)))
        )
        result = result if device is None else verbs.to_device(result, device)
        # a cast and a move both copy
        if copy is False and result is not x:
            raise SharingError(
                "asarray(copy=False) cannot change dtype or device without a copy"
            )
        return self._kernels.copy(result) if copy and result is x else result

    def _is_mine(self, x: Any) -> bool:
        owned = registry.kind_of(type(registry.as_array(x)))
        return owned is not None and owned.backend is self._backend

    def from_dlpack(self, x: Any, /, *, device: object = None, copy: bool | None = None) -> Any:
        result = conversion.convert(x, self._backend.name, copy=copy)
        if device is None:
            return result
        moved = verbs.to_device(result, device)
        if copy is False and moved is not result:
            raise SharingError(
                "from_dlpack(copy=False) cannot change the device without a copy"
            )
        return moved

    # of a shape

    def full(
        self, shape: Shape, fill_value: complex, *, dtype: Any = None, device: object = None
    ) -> Any:
        if type(fill_value) not in NUMBERS:
            fill_value = creation.item(fill_value)
        name = self._named(dtype, dtypes.with_number("bool", fill_value), device)
        dtypes.require_fits(fill_value, name)
        return self._filled(shape, fill_value, name, device)

    def empty(self, shape: Shape, *, dtype: Any = None, device: object = None) -> Any:
        return self.zeros(shape, dtype=dtype, device=device)

    def ones(self, shape: Shape, *, dtype: Any = None, device: object = None) -> Any:
        return self._filled(shape, 1, self._named(dtype, "float32", device), device)

    def zeros(self, shape: Shape, *, dtype: Any = None, device: object = None) -> Any:
        return self._filled(shape, 0, self._named(dtype, "float32", device), device)

    def _named(self, dtype: Any, default: str, device: object) -> str:
        if dtype is None:
            return self._checks.supported(
                creation.usual(
                    self._backend, creation.place_for(self._backend, device), default
                )
            )
        return self._checks.supported(dtype_name(dtype))

    def _filled(self, shape: Shape, value: Any, name: str, device: object) -> Any:
        place = self._place(name, device)
        return self._backend.full(creation.shape_of((shape,), name), value, place, name)

    def _place(self, dtype: str, device: object) -> Device:
        place = creation.place_for(self._backend, device)
        require_dtype(self._backend, dtype, "the dtype", "say another", place=place)
        return place

    # like another

    def full_like(
        self, x: Any, /, fill_value: complex, *, dtype: Any = None, device: object = None
    ) -> Any:
        x = self._checks.tensor(x, "full_like")
        if type(fill_value) not in NUMBERS:
            fill_value = creation.item(fill_value)
        name = self._checks.supported(
            self._checks.name(x) if dtype is None else dtype_name(dtype)
        )
        dtypes.require_fits(fill_value, name)
        if device is not None:
            return self._filled(
                self._checks.full_shape(x, "full_like"), fill_value, name, device
            )
        return self._kernels.full_like(x, fill_value, name)

    def empty_like(self, x: Any, /, *, dtype: Any = None, device: object = None) -> Any:
        return self.full_like(x, 0, dtype=dtype, device=device)

    def ones_like(self, x: Any, /, *, dtype: Any = None, device: object = None) -> Any:
        return self.full_like(x, 1, dtype=dtype, device=device)

    def zeros_like(self, x: Any, /, *, dtype: Any = None, device: object = None) -> Any:
        return self.full_like(x, 0, dtype=dtype, device=device)

    # values by a rule, computed by NumPy so that the bits are the same everywhere

    def arange(
        self,
        start: float,
        /,
        stop: float | None = None,
        step: float = 1,
        *,
        dtype: Any = None,
        device: object = None,
    ) -> Any:
        import numpy

        if step == 0:
            raise ShapeError("arange takes a step other than 0")
        start, stop, step = _plain(start), _plain(stop), _plain(step)
        first, last = (0, start) if stop is None else (start, stop)
        # by the standard three ints give integers, and one float gives floats
        default = "int64" if all(isinstance(x, int) for x in (first, last, step)) else "float32"
        name = self._named(dtype, default, device)
        # the ceiling of the quotient, exact for ints of any size
        number = max(0, -int((first - last) // step))
        # each is computed from the start, so that no error adds up
        if default != "int64":
            return self._placed(
                first + step * numpy.arange(number, dtype="float64"), name, device
            )
        for value in (first, first + step * (number - 1)) if number else ():
            dtypes.require_fits(value, name)
        return self._placed(numpy.arange(first, first + step * number, step), name, device)

    def linspace(
        self,
        start: complex,
        stop: complex,
        /,
        num: int,
        *,
        dtype: Any = None,
        device: object = None,
        endpoint: bool = True,
    ) -> Any:
        import numpy

        name = self._named(dtype, "float32", device)
        if dtypes.kind_of(name) not in "fc":
            raise DTypeError(f"linspace gives floats, not {name}")
        start, stop = _plain(start), _plain(stop)
        return self._placed(numpy.linspace(start, stop, num, endpoint=endpoint), name, device)

    def eye(
        self,
        n_rows: int,
        n_cols: int | None = None,
        /,
        *,
        k: int = 0,
        dtype: Any = None,
        device: object = None,
    ) -> Any:
        import numpy

        name = self._named(dtype, "float32", device)
        return self._placed(
            numpy.eye(n_rows, n_cols, max(-n_rows, k), dtype=host_dtype(name)), name, device
        )

    def _placed(self, values: np.ndarray[Any, Any], name: str, device: object) -> Any:
        place = self._place(name, device)
        return self._backend.from_numpy(values.astype(host_dtype(name), copy=False), place)

    # of other tensors

    def meshgrid(self, *arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
        if indexing not in ("xy", "ij"):
            raise ShapeError(f"meshgrid: indexing must be 'xy' or 'ij', not {shown(indexing)}")
        tensors = [self._checks.tensor(x, "meshgrid") for x in arrays]
        if any(len(x.shape) != 1 for x in tensors):
            raise ShapeError(
                f"meshgrid takes vectors, not the shapes {[shape_of(x) for x in tensors]}"
            )
        if tensors:
            self._checks.require_one_device("meshgrid", *tensors)
            tensors = self._checks.promoted(tensors)
        places = list(range(len(tensors)))
        # in this order the first two axes are exchanged
        if indexing == "xy":
            places[:2] = reversed(places[:2])
        shape = [0] * len(tensors)
        for place, x in zip(places, tensors, strict=True):
            (shape[place],) = self._checks.full_shape(x, "meshgrid")
        return tuple(self._spread(tuple(tensors), tuple(places), tuple(shape)))

    def _along_axes(self, *arguments: Any) -> list[Any]:
        *tensors, places, shape = arguments
        rows = [
            (*(1,) * place, shape[place], *(1,) * (len(shape) - place - 1)) for place in places
        ]
        pairs = zip(tensors, rows, strict=True)
        return [
            self._kernels.broadcast_to(self._kernels.reshape(x, row), shape) for x, row in pairs
        ]

    def tril(self, x: Any, /, *, k: int = 0) -> Any:
        return self._triangle("tril", x, lambda rows, columns: columns - rows <= k, k)

    def triu(self, x: Any, /, *, k: int = 0) -> Any:
        return self._triangle("triu", x, lambda rows, columns: columns - rows >= k, k)

    def _triangle(self, function: str, x: Any, inside: Any, k: int) -> Any:
        import numpy

        x = self._checks.tensor(x, function)
        shape = self._checks.full_shape(x, function)
        if len(shape) < 2:
            raise ShapeError(f"{function} takes two dimensions or more, not the shape {shape}")
        if hasattr(self._kernels, function):
            return getattr(self._kernels, function)(x, k)
        rows, columns = numpy.ogrid[: shape[-2], : shape[-1]]
        # not by a product with ones, which would make NaN of infinity
        mask = self._checks.constant(inside(rows, columns), x)
        return self._kernels.where(mask, x, self._kernels.number(0, self._checks.name(x), x))


class Types(Room):
    """The functions of the Python Array API standard that convert dtypes or describe them."""

    def astype(self, x: Any, dtype: Any, /, *, copy: bool = True, device: object = None) -> Any:
        x = self._checks.tensor(x, "astype")
        result = self._checks.cast(x, self._checks.supported(dtype_name(dtype)))
        result = self._checks.kernels.copy(result) if copy and result is x else result
        return result if device is None else verbs.to_device(result, devices.parse(device))

    def can_cast(self, from_: Any, to: Any, /) -> bool:
        return dtypes.can_cast(self._name(from_), dtype_name(to))

    def finfo(self, type: Any, /) -> dtypes.FInfo:
        name = self._name(type)
        if dtypes.kind_of(name) not in "fc":
            raise DTypeError(
                f"finfo takes a dtype of floats, not {name}; iinfo is for integers"
            )
        return dtypes.floats(name, self._checks.kernels.dtype(floats.PARTS.get(name, name)))

    def iinfo(self, type: Any, /) -> dtypes.IInfo:
        name = self._name(type)
        if dtypes.kind_of(name) not in "iu":
            raise DTypeError(
                f"iinfo takes a dtype of integers, not {name}; finfo is for floats"
            )
        return dtypes.integers(name, self._checks.kernels.dtype(name))

    def isdtype(self, dtype: Any, kind: Any) -> bool:
        name = dtype_name(dtype)
        if isinstance(kind, tuple):
            return any(self.isdtype(dtype, one) for one in kind)
        return (
            dtypes.is_dtype(name, kind) if isinstance(kind, str) else name == dtype_name(kind)
        )

    def result_type(self, *arrays_and_dtypes: Any) -> Any:
        names = [self._name(x) for x in arrays_and_dtypes if not _is_number(x)]
        if not names:
            raise DTypeError("result_type needs a tensor or a dtype among the numbers")
        name = names[0]
        for other in names[1:]:
            name = dtypes.promoted(name, other)
        for x in arrays_and_dtypes:
            name = (
                self._checks.supported(dtypes.with_number(name, x)) if _is_number(x) else name
            )
        return self._checks.kernels.dtype(name)

    def _name(self, x: Any) -> str:
        if registry.kind_of(type(registry.as_array(x))) is not None:
            return self._checks.name(self._checks.tensor(x, "this function"))
        return dtype_name(x)


def _plain(x: Any) -> Any:
    """Turns a number of NumPy, or a tensor of one number, into a Python number, so that `isinstance` can tell ints
    from floats."""
    return creation.item(x) if hasattr(x, "dtype") else x


def _is_number(x: Any) -> bool:
    return type(x) in NUMBERS
