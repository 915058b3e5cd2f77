"""Checks of creating and reading tensors, of sharing memory, and of random numbers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import xdevice
from xdevice.base import devices
from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract import dlpack
from xdevice.core.generators import keep_generator
from xdevice.errors import UnsupportedError

from .base import Suite, assert_same, cast, on_one_device, skip_if_none
from .capabilities import needs
from .values import (
    FLOATS,
    aligned_and_misaligned,
    extreme_values,
    small_numbers,
    unusual_arrays,
)


def _name_of(dtype: object) -> str:
    """Returns xdevice's name for a framework's dtype; "no dtype" if xdevice does not know the dtype."""
    try:
        return dtype_name(dtype)
    except xdevice.errors.DTypeError:
        return "no dtype"


class CreationChecks(Suite):
    """Checks of dtypes, of creating and reading tensors, and of sharing memory between frameworks."""

    # which dtype a tensor has, and which dtypes are refused

    def test_dtypes_are_the_same_everywhere(self) -> None:
        int_dtype = xdevice.to_numpy(self.make(np.zeros(1, "int64"))).dtype.name
        # JAX has no 64-bit numbers unless `jax_enable_x64` is set
        assert int_dtype == "int64" or (int_dtype == "int32" and "jax" in self.adapter.modules)
        for data, expected in [
            (1, int_dtype),
            ([1, 2], int_dtype),
            ([True, False], "bool"),
            (1.5, "float32"),
            ([1, 2.5], "float32"),
            (np.ones(2), "float32"),
            (np.ones(2, "float32"), "float32"),
            (np.ones(2, "int32"), "int32"),
            (np.ones(2, ">i4"), "int32"),
            (np.ones(2, "uint8"), "uint8"),
            (np.ones(2, "float16"), "float16"),
        ]:
            assert xdevice.to_numpy(self.make(data)).dtype.name == expected, data
        for name in self.dtypes():
            # frameworks name dtypes in their own way: `torch.float32`, `paddle.float32`, `<f4`
            own = self.make([1], dtype=name).dtype
            read = _name_of(own)
            assert read == name, (
                f"x.dtype of {name} is {own!r}, read as {read}; add its name to dtype_names"
            )

    def test_a_dtype_is_refused_if_and_only_if_it_would_be_narrowed(self) -> None:
        for name in sorted(self.adapter.dtypes - self.adapter.lacks(self.home_device)):
            refusal = self.adapter.dtype_refusal(name)
            assert refusal is None or len(refusal) > 10, (
                f"{name}: the refusal must say why, and what to do instead: {refusal!r}"
            )
            if refusal is None:
                array = extreme_values(name)
                assert_same(
                    self.adapter.to_numpy(self.adapter.from_numpy(array, self.home_device)),
                    array,
                    name,
                )
            else:
                # a refused dtype must not work
                assert not self.keeps_dtype(name), (
                    f"dtype_refusal refuses {name}, but tensors can have this dtype"
                )

    def keeps_dtype(self, name: str) -> bool:
        """Whether a tensor on the home device can be created from an array of the dtype `name`, and still has this
        dtype when it is read. False if a `DTypeError` is raised, or if a warning of the framework is raised as an
        error."""
        try:
            return bool(
                self.adapter.to_numpy(
                    self.adapter.from_numpy(extreme_values(name), self.home_device)
                ).dtype.name
                == name
            )
        except (xdevice.errors.DTypeError, Warning):
            return False

    # creating and reading tensors

    def test_every_dtype_survives_the_way_in_and_out(self) -> None:
        for name in self.dtypes():
            array = extreme_values(name)
            # arrays that a copy of bytes easily gets wrong: with strides, without axes, without elements, with an axis
            # of length 1
            for source in (array, array.T, array[1, 2], array[:0], array[None]):
                x = xdevice.tensor(source, device=self.home, dtype=name)
                self.assert_on(self.home_device, x, np.asarray(source), name)
                self.assert_reads(x, np.asarray(source), name)

    def test_memory_is_taken_over_and_read_without_a_change(self) -> None:
        """`from_numpy` and `from_buffer` create tensors from an array's memory, and `to_numpy` and `peek` read these
        tensors. Every value of every dtype must be the same afterwards."""
        for name in (
            *self.dtypes(),
            *sorted(self.adapter.short_floats - self.adapter.lacks(self.home_device)),
        ):
            # 251 is prime, so that a copy with an offset of a power of two is detected; a bool
            # has only two values. The array begins at a multiple of 64 bytes, because JAX
            # shares no other memory
            raw = np.arange(64 * 80 + 64, dtype="uint8") % (2 if name == "bool" else 251)
            begin = -raw.ctypes.data % 64
            source = raw[begin : begin + 64 * 80].view(host_dtype(name)).reshape(-1, 8)
            expected = source.copy()
            for x in (
                self.adapter.from_numpy(source, self.home_device),
                self.adapter.from_buffer(source),
            ):
                assert self.adapter.device_of(x) in (devices.CPU, self.home_device), name
                # both may return the tensor's own memory, and both must return every value
                for array in (self.adapter.to_numpy(x), self.adapter.peek(x)):
                    assert_same(array, expected, name)
            assert self.adapter.device_of(self.adapter.from_buffer(source)) is devices.CPU

    def test_odd_sources_go_in_right(self) -> None:
        for name, source in unusual_arrays():
            self.assert_holds(self.adapter.from_numpy(source, self.home_device), source, name)
            self.assert_holds(self.make(source), source, name)

    def test_tensor_never_aliases_its_source(self) -> None:
        # an asynchronous framework may read the source after the call has returned
        for waits in (False, True):
            for source in aligned_and_misaligned():
                expected = source.copy()
                tensors = [self.make(source), self.adapter.from_numpy(source, self.home_device)]
                if waits:
                    xdevice.sync(tensors)
                # JAX aliases an aligned array on the CPU, and MXNet's engine reads an array
                # only later
                source[:] = -1
                for x in tensors:
                    self.assert_reads(x, expected, "the source was overwritten afterwards")

    def test_to_numpy_never_aliases(self) -> None:
        for place in self.devices_with_values():
            # a 0-d tensor is tested, too, because NumPy often returns a scalar instead
            # of a 0-d array
            for data in (((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), 1.0):
                x = xdevice.to_device(self.make(data), place)
                read = xdevice.to_numpy(x)
                inside = xdevice.to_numpy({"x": [x]})["x"][0]
                for array in (read, inside):
                    # JAX itself returns read-only arrays
                    assert array.flags.writeable, "the array that was read must be writable"
                    array[...] = -1
                self.assert_reads(x, np.array(data, "float32"), f"on {place}")

    def test_to_numpy_reads_every_tensor(self) -> None:
        for place in self.devices_with_values():
            for name, x, array in self.odd_tensors_and_arrays():
                # compiled code that accepts NumPy arrays often assumes that they are
                # C-contiguous
                assert xdevice.to_numpy(xdevice.to_device(x, place)).flags.c_contiguous, name
                for read in (xdevice.to_numpy, self.adapter.to_numpy, self.adapter.peek):
                    assert_same(read(xdevice.to_device(x, place)), array, f"{name} on {place}")
        nested = xdevice.to_numpy({"x": [self.make()], "n": 3})
        assert type(nested["x"][0]) is np.ndarray
        assert nested["n"] == 3

    def test_what_is_read_is_computed_first(self) -> None:
        for read in (xdevice.to_numpy, self.adapter.to_numpy, self.adapter.peek):
            x, expected = self.pending()
            assert_same(np.asarray(read(x)), expected)
        x, expected = self.pending()
        xdevice.sync(x)
        self.assert_reads(x, expected)
        # each method that returns values or memory must wait by itself
        for take in (
            self.adapter.to_numpy,
            self.adapter.peek,
            lambda x: self.export(self.adapter.detached(x)),
        ):
            work = self.samples.long_work(self.home_device)
            if work is None:
                return
            # None: the adapter cannot export the tensor, so no memory was returned
            assert take(work.result) is None or work.is_done(), (
                "memory was returned before its values were computed"
            )

    def test_what_was_read_outlives_its_tensor(self) -> None:
        array = extreme_values("float32")
        # no variable refers to the two tensors. The adapter's own array may share the memory of its
        # tensor, and must keep this memory alive until it is copied
        arrays = [
            xdevice.to_numpy(self.make(array)),
            self.adapter.to_numpy(self.make(array)).copy(),
        ]
        # new tensors of the same size, which an allocator would place into memory that was
        # freed
        more = [self.make(np.zeros_like(array)) for _ in range(4)]
        xdevice.sync(more)
        for read in arrays:
            assert_same(read, array)

    def test_item_gives_a_python_number(self) -> None:
        for data, expected in [(2.5, 2.5), ([[7]], 7), ([True], True), (-0.75, -0.75)]:
            value = xdevice.item(self.make(data))
            assert value == expected
            # `np.float32(2.5)` equals 2.5, but `json` refuses it
            assert type(value) is type(expected)
        with pytest.raises(ValueError, match="one element"):
            xdevice.item(self.make())

    # functions that create tensors

    def test_creators_place_where_they_are_told(self) -> None:
        for place in self.all_devices():
            # an explicit device must be used, whatever the framework's default is
            for x in self.tensors_created_on(str(place)):
                assert xdevice.device_of(x) is place
                assert tuple(x.shape) == (2, 3)

    def tensors_created_on(self, place: str) -> list[Any]:
        """Returns tensors of shape (2, 3) on the device `place`: a result of `xdevice.tensor` and, if the framework can
        compute on the GPU, results of `ones`, `zeros` and `random.uniform`."""
        creators = (
            (xdevice.ones, xdevice.zeros, xdevice.random.uniform) if self.computes else ()
        )
        x = xdevice.tensor(((1, 2, 3), (4, 5, 6)), device=place)
        return [x, *(create(2, 3, device=place) for create in creators)]

    def test_creators_give_what_they_say(self) -> None:
        self.skip_without_kernels()
        for name in self.dtypes():
            # `()` is among the shapes because in MXNet without NumPy's semantics, it means an
            # unknown shape
            for shape in ((2, 3), (), (0, 3), (1,)):
                for make, value in ((xdevice.ones, 1), (xdevice.zeros, 0)):
                    x = make(shape, device=self.home, dtype=name)
                    self.assert_on(
                        self.home_device, x, np.full(shape, value, host_dtype(name)), name
                    )

    def test_full_gives_any_value_in_new_memory(self) -> None:
        self.skip_without_kernels()
        for name in self.dtypes():
            numbers = (
                [True]
                if name == "bool"
                else [7]
                if name not in FLOATS
                else [-2.25, 0.5, float("inf")]
            )
            for value in numbers:
                # called twice, to detect a tensor that is cached or shared
                x, y = (
                    self.adapter.full((2, 3), value, self.home_device, name) for _ in range(2)
                )
                for tensor in (x, y):
                    self.assert_on(
                        self.home_device, tensor, np.full((2, 3), value, host_dtype(name)), name
                    )
                if self.address(x) is not None:
                    self.assert_different_memory(x, y, name)

    def test_as_many_axes_and_elements_fit_as_it_says(self) -> None:
        axes, longest = self.adapter.most_axes, self.adapter.longest_axis
        # both must be ints, because xdevice compares these limits with shapes
        assert type(axes) is int
        assert type(longest) is int
        # arrays of NumPy 1 have at most 32 axes, so more axes cannot be tested
        fitting: list[tuple[int, ...]] = [(1,) * min(axes, 32)]
        too_much: list[tuple[int, ...]] = [(1,) * (axes + 1)] if axes < 32 else []
        # only a small limit is tested: an array at MXNet's limit, 2**31 - 1, would need 2 GiB,
        # and an array at the default limit, 2**63 - 1, cannot exist
        if longest < 1 << 24:
            fitting.append((longest,))
            too_much.append((longest + 1,))
        for shape in fitting:
            array = np.full(shape, 3, "uint8")
            try:
                x = self.adapter.from_numpy(array, self.home_device)
            except Exception as error:
                raise AssertionError(
                    f"could not create a tensor with {len(shape)} axes of up to {max(shape)} elements: {error}"
                ) from error
            self.assert_holds(x, array)
        # `wait` is called, because an asynchronous framework may raise its error only then
        for shape in too_much:
            with pytest.raises(Exception, match=r".+"):
                self.adapter.wait(
                    self.adapter.from_numpy(np.full(shape, 3, "uint8"), self.home_device)
                )

    def test_what_is_given_away_is_nobody_elses(self) -> None:
        """If `gives_away` says that an array returned by `to_numpy` belongs to the caller, neither the tensor nor
        another array may use the memory of this array."""
        for name, x, array in self.odd_tensors_and_arrays():
            first = self.adapter.to_numpy(x)
            if not self.adapter.gives_away(x):
                continue
            assert not np.shares_memory(first, self.adapter.to_numpy(x)), (
                f"{name}: the memory was given away twice"
            )
            # this detects a framework that still uses the memory that it gave away
            if first.flags.writeable:
                first[...] = np.zeros_like(first)
                self.assert_holds(
                    x, array, f"{name}: the memory that was given away belonged to the tensor"
                )

    # sharing memory with other frameworks

    def test_converting_to_numpy_and_back_keeps_every_tensor(self) -> None:
        for name, x in self.odd_tensors().items():
            host = xdevice.to_device(x, "cpu")
            for copy in (None, True):
                there = xdevice.convert(host, "numpy", copy=copy)
                assert isinstance(there, np.ndarray), name
                self.assert_equal(xdevice.convert(there, self.backend, copy=copy), host, name)

    def test_converting_reads_what_is_computed(self) -> None:
        for copy in (None, True):
            x, expected = self.pending()
            # NumPy can use only memory of the host
            if self.home_device is devices.CPU:
                assert_same(np.asarray(xdevice.convert(x, "numpy", copy=copy)), expected)
            else:
                self.adapter.finish(x)
                assert_same(self.adapter.to_numpy(x), expected)

    def test_converting_shares_memory_only_where_it_says_so(self) -> None:
        x = xdevice.to_device(self.make(), "cpu")
        address = skip_if_none(self.samples.address(x), "an address")
        assert xdevice.convert(x, "numpy", copy=True).ctypes.data != address
        # `copy=False` may be refused, but must not copy
        with suppress(BufferError):
            assert xdevice.convert(x, "numpy", copy=False).ctypes.data == address

    @on_one_device
    def test_what_numpy_lends_can_be_worked_in(self) -> None:
        """A tensor that shares the memory of a NumPy array must have the array's values, and the framework must be able
        to compute with it."""
        for name, source in unusual_arrays():
            before = source.copy()
            for copy in (None, False):
                try:
                    x = xdevice.convert(source, self.backend, copy=copy)
                # no framework shares memory of every layout, and `copy=False` forbids a copy
                except BufferError:
                    continue
                self.assert_holds(x, before, name)
                if source.ndim:
                    with devices.CPU:
                        twice = self.samples.add(x, x)
                    self.assert_reads(twice, before + before, name)
                if copy is False and source.size:
                    assert self.samples.address(x) in (None, source.ctypes.data), (
                        f"{name} was copied"
                    )

    def test_shared_memory_outlives_its_owner(self) -> None:
        array = small_numbers("float32")
        x = xdevice.to_device(self.make(array), "cpu")
        host = xdevice.convert(x, "numpy")
        back = xdevice.convert(xdevice.convert(array.copy(), self.backend), "numpy")
        # the array must keep the memory alive without the tensor. The new tensors have the same
        # size, so an allocator would place them into memory that was freed
        del x
        more = [xdevice.tensor(np.zeros_like(array)) for _ in range(4)]
        xdevice.sync(more)
        assert_same(np.asarray(host), array)
        assert_same(np.asarray(back), array)

    @needs("Conversion")
    def test_memory_is_described_as_it_is(self) -> None:
        """`memory_layout` must return the same address as the samples, and agree with DLPack about the strides."""
        for name, x in self.odd_tensors().items():
            detached = self.adapter.detached(x)
            layout = self.adapter.memory_layout(detached)
            # a tensor without elements has no memory, and None means that only DLPack can tell the layout
            if 0 in tuple(x.shape) or layout is None:
                continue
            assert layout[0] == skip_if_none(self.samples.address(detached), "addresses"), (
                f"{name}: memory_layout returned another address"
            )
            lent = self.export(detached) if self.adapter.shares(self.home_device) else None
            if lent is not None:
                is_forward = min(lent.strides, default=0) >= 0
                assert layout == (lent.address, lent.is_compact(), is_forward), name

    def export(self, x: Any) -> dlpack.Lent | None:
        """Returns the memory of a tensor as DLPack describes it; None if the adapter cannot export the tensor."""
        self.adapter.finish(x)
        try:
            with self.adapter.lending(x):
                return dlpack.Lent(self.adapter.export(x))
        except (BufferError, UnsupportedError):
            return None

    @needs("Conversion")
    def test_memory_is_shared_only_where_others_can_see_it(self) -> None:
        for place in self.devices_with_values():
            x = xdevice.to_device(self.make(), place)
            lent = self.export(self.adapter.detached(x)) if self.adapter.shares(place) else None
            if lent is not None:
                # an importer crashes if the device in the DLPack capsule is wrong
                kinds = (dlpack.CPU,) if place is devices.CPU else dlpack.GPUS
                assert lent.device[0] in kinds, (
                    f"{place}, but the device in the DLPack capsule is {lent.device}"
                )
                assert place is devices.CPU or lent.device[1] == place.index
                assert lent.shape == list(x.shape)
        assert self.adapter.shares(devices.CPU) in (True, False)

    @needs("Conversion")
    def test_lending_lets_go(self) -> None:
        x = self.adapter.detached(self.make())
        self.lend(x)
        # called in another thread, which would wait for a lock that was not released
        self.in_thread(self.lend, x)

    def lend(self, x: Any) -> None:
        """Enters and leaves a block in which the memory of `x` is lent."""
        with self.adapter.lending(x):
            pass

    def test_detached_is_the_same_memory_without_a_gradient(self) -> None:
        self.skip_without_kernels()
        x = self.make()
        # a tensor without a gradient need not be detached
        assert self.adapter.detached(x) is x or self.requires_grad(x) is None
        marked = self.samples.marked(self.make())
        if self.requires_grad(marked) is None:
            return
        detached = self.adapter.detached(marked)
        assert self.requires_grad(detached) is False
        assert self.requires_grad(marked) is True, "detached() has changed its source"
        assert self.address(detached) == self.address(marked)
        self.assert_equal(detached, marked)

    def test_a_compact_copy_is_new_and_in_order(self) -> None:
        self.skip_without_kernels()
        for name, x, array in self.odd_tensors_and_arrays():
            # xdevice does not call `compact` for such tensors
            if name == "empty" or self.adapter.detached(x) is not x:
                continue
            compact = self.adapter.compact(x)
            self.assert_on(self.home_device, compact, array, name)
            self.assert_different_memory(compact, x, name)
            # on cpu:0, xdevice uses only the NumPy adapter's `compact`; on other devices, the memory must begin at a
            # multiple of 64 bytes, so that any framework can adopt it
            must_be_aligned = self.home_device is not devices.CPU and self.adapter.shares(
                self.home_device
            )
            lent = self.export(compact) if must_be_aligned else None
            assert lent is None or (lent.is_compact() and lent.address % 64 == 0), name

    @needs("Conversion")
    @on_one_device
    def test_memory_is_adopted_in_place(self) -> None:
        """An array must be converted without a copy if its memory complies with the rules that `takes` returns."""
        rules = skip_if_none(
            self.adapter.takes(), "a framework that can use the memory of other frameworks"
        )
        assert rules.alignment >= 1
        assert rules.strides in ("any", "forward", "compact")
        for name in self.dtypes():
            # the array is longer than the tensor, so that an aligned part can be cut out
            array = np.zeros(64, host_dtype(name))
            # JAX adopts only memory that begins at a multiple of 64 bytes
            begin = (-array.ctypes.data % 64) // array.itemsize
            source = array[begin : begin + 12].reshape(3, 4)
            source[...] = cast(small_numbers(name), name)
            x = xdevice.convert(source, self.backend, copy=False)
            self.assert_on(devices.CPU, x, source.copy(), name)
            assert self.samples.address(x) in (None, source.ctypes.data), name


class RandomNumberChecks(Suite):
    """Checks of random numbers, and of deterministic kernels."""

    @needs("Reproducibility")
    def test_the_frameworks_numbers_repeat_from_a_seed(self) -> None:
        if self.samples.draw() is NotImplemented:
            pytest.skip("the samples do not have: generators of the framework")
        self.skip_without_kernels()
        first, again, other = (self.numbers_from(seed) for seed in (3, 3, 4))
        assert first == again, "the same seed produced two sequences"
        assert first != other, "two seeds produced the same sequence"

    def numbers_from(self, seed: int) -> object:
        """Seeds all generators, and returns numbers that the framework draws after that."""
        with keep_generator():
            xdevice.random.seed_all(seed)
            return self.samples.draw()

    @needs("Reproducibility")
    def test_deterministic_kernels_are_asked_for_until_the_block_ends(self) -> None:
        before = self.samples.determinism()
        if before is NotImplemented:
            pytest.skip("the samples do not have: settings of determinism")
        for error in (None, ValueError()):
            with suppress(ValueError), xdevice.math.deterministic() as lacking:
                assert self.samples.determinism() != before
                assert all(line.partition(": ")[0] in xdevice.backends() for line in lacking), (
                    lacking
                )
                if error is not None:
                    raise error
            assert self.samples.determinism() == before, (
                "the framework's settings are not restored"
            )

    def test_seeded_numbers_are_the_same_everywhere(self) -> None:
        with xdevice.random.seed(3):
            x = xdevice.random.uniform(50, device=self.home)
        # every backend must draw the numbers of NumPy's Philox
        expected = np.random.Generator(np.random.Philox(3)).random(50, "float32")
        self.assert_on(self.home_device, x, expected, "float32")
