"""Checks of the functions for data-parallel training: splitting and joining tensors, copying tensors for training,
writing into tensors, and summing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xdevice
from xdevice.base.dtypes import dtype_name

from .base import Suite, cast, skip_if_none
from .capabilities import needs
from .values import FLOATS, small_numbers, without_nans

if TYPE_CHECKING:
    from .values import Array


class ReplicaChecks(Suite):
    """Checks of splitting, joining, writing and reducing tensors."""

    @needs("Replicas")
    def test_a_tensor_splits_and_joins(self) -> None:
        self.skip_without_kernels()
        for name, odd in self.odd_arrays().items():
            array = without_nans(odd)
            x = self.make(array, array.dtype.name)
            twice = self.adapter.join([x, x])
            # 0-d tensors cannot be concatenated, so `join` stacks them
            if name == "0-d":
                self.assert_holds(twice, np.stack([array, array]), name)
                continue
            self.assert_holds(twice, np.concatenate([array, array]), name)
            length = x.shape[0]
            # a batch with fewer rows than devices has parts without elements
            for sizes in ([length, 0], [0, length - 1, 1]):
                self.assert_splits(x, array, sizes, f"{name} {sizes}")
        # tested on each device, because TensorFlow computes on the device of the block instead
        # of the device of the tensors
        for place in self.devices_with_values():
            parts = self.adapter.split(xdevice.to_device(self.make(), place), [1, 1])
            results = {xdevice.device_of(x) for x in (*parts, self.adapter.join(parts))}
            assert results == {place}, (
                f"split() or join() of tensors on {place} returned tensors on {results}"
            )

    def assert_splits(self, x: Any, array: Array, sizes: list[int], name: str) -> None:
        """Checks that `x`, which has the values of `array`, is split into parts of these sizes. Joining the parts must
        create a new tensor that equals `x`."""
        parts = self.adapter.split(x, sizes)
        for part, size, end in zip(parts, sizes, np.cumsum(sizes), strict=True):
            self.assert_on(self.home_device, part, array[end - size : end], name)
        joined = self.adapter.join(parts)
        self.assert_on(self.home_device, joined, array, name)
        self.assert_different_memory(joined, x, name)

    @needs("Replicas")
    def test_gradients_flow_through_splits_and_joins(self) -> None:
        # `assert_gradient` expects the gradient -2.5
        self.assert_gradient(lambda x: self.adapter.join(self.adapter.split(x * -2.5, [1, 1])))
        self.assert_gradient(lambda x: self.adapter.join(self.adapter.split(x, [2, 0])) * -2.5)

    def test_ordinary_tensors_are_dense(self) -> None:
        for name, x in self.odd_tensors().items():
            assert self.adapter.is_dense(x) is True, name
            # only special tensors, such as TensorFlow's strings, must stay on the host
            assert self.adapter.is_host_bound(x) is False, name

    @needs("Replicas")
    def test_a_leaf_is_a_copy_that_asks_for_gradients(self) -> None:
        """`leaf(x, target)` must return a copy of `x` on `target`. The copy is a tensor or a variable of the framework,
        and must require gradients if its dtype is floating-point."""
        self.skip_without_kernels()
        for target in self.all_devices():
            for name, x, array in self.odd_tensors_and_arrays():
                leaf = self.adapter.leaf(x, target)
                tensor = self.tensor_of(leaf)
                self.assert_on(target, tensor, array, name)
                # only floats are marked, because frameworks refuse gradients for ints
                assert self.requires_grad(leaf) in (None, dtype_name(x.dtype) in FLOATS), name
                if self.holds_values(target):
                    self.assert_different_memory(tensor, x, name)

    def tensor_of(self, leaf: Any) -> Any:
        """Returns the tensor of `leaf`, a result of the adapter's `leaf`. If `leaf` is a variable, as on TensorFlow,
        returns its value; otherwise `leaf` is a tensor, and is returned itself."""
        tensor = self.adapter.tensor_of(leaf)
        return leaf if tensor is None else tensor

    @needs("Replicas")
    def test_a_leaf_has_no_link_to_its_source(self) -> None:
        self.skip_without_kernels()
        skip_if_none(self.samples.gradient(lambda x: x * 3, self.make()), "gradients")
        source = self.samples.marked(self.make())
        if self.requires_grad(source) is None:
            pytest.skip(f"{self.backend} does not mark tensors")
        for target in self.devices_with_values():
            leaf = self.tensor_of(self.adapter.leaf(source, target))
            # inside a block, because TensorFlow would compute on its first GPU
            with target:
                gradient = self.samples.gradient(lambda x: x * -2.5, leaf)
            self.assert_reads(gradient, np.full((2, 3), -2.5, "float32"))
            # a leaf that is still linked to its source adds to the source's gradient
            reached = getattr(source, "grad", None)
            assert reached is None or not xdevice.to_numpy(reached).any(), (
                "the gradient reaches the source"
            )

    @needs("Replicas")
    def test_write_puts_values_into_the_memory_that_is_there(self) -> None:
        self.skip_without_kernels()
        for name, x, array in self.odd_tensors_and_arrays():
            leaf = self.adapter.leaf(xdevice.copy_to(x, self.home), self.home_device)
            dtype = dtype_name(x.dtype)
            # the new values must differ from the old ones. In tensors that are named after a
            # dtype, neighbouring values differ, so these are shifted; all other tensors are
            # filled with ones
            new = (
                np.roll(array, 1)
                if name in self.adapter.dtypes
                else cast(np.full(tuple(x.shape), 1), dtype)
            )
            value = self.make(new, dtype=dtype)
            # False if the leaf is a variable, as on TensorFlow, which can always be written
            is_tensor = self.adapter.tensor_of(leaf) is None
            if is_tensor and not self.adapter.can_write(leaf):
                with pytest.raises(
                    xdevice.errors.UnsupportedError, match="writing into a tensor"
                ):
                    self.adapter.write(leaf, value)
                continue
            was_marked = self.requires_grad(leaf)
            before = self.address(leaf) if is_tensor else None
            self.adapter.write(leaf, value)
            self.assert_holds(self.tensor_of(leaf), new, name)
            # a write must not consume its source
            self.assert_holds(value, new, f"{name}: the value")
            # an update must not turn a parameter into a constant
            assert self.requires_grad(leaf) is was_marked, name
            assert before is None or self.address(leaf) == before, name
            if is_tensor:
                self.assert_different_memory(leaf, value, name)
            self.assert_holds(x, array, f"{name}: the source of the leaf")

    def test_where_write_writes_is_known(self) -> None:
        """`memory_of` must return the address and the strides of the memory into which `write` writes, because xdevice
        uses them to detect tensors that share memory."""
        self.skip_without_kernels()
        for name, x in self.odd_tensors().items():
            # such tensors cannot be written, so their memory does not matter
            if 0 in tuple(x.shape) or not self.adapter.can_write(x):
                continue
            memory = self.adapter.memory_of(x)
            if memory is None:
                self.assert_shares_nothing(x, name)
                continue
            address, strides = memory
            assert address == skip_if_none(self.samples.address(x), "addresses"), (
                f"{name}: memory_of returned another address"
            )
            assert len(strides) == len(tuple(x.shape)), f"{name}: {strides}"
            self.assert_strides(x, strides, name)
        self.assert_waits_only_for_memory()

    def assert_strides(self, x: Any, strides: tuple[int, ...], name: str) -> None:
        """Checks that the strides of `x`, in bytes, are right: along each axis, a view of only the last element must
        begin at the address that follows from the strides."""
        first = self.samples.address(x)
        for axis, (size, step) in enumerate(zip(tuple(x.shape), strides, strict=True)):
            index = tuple(size - 1 if i == axis else 0 for i in range(len(strides)))
            with self.home_device:
                # slices, because an int as an index would drop the axis
                view = x[tuple(slice(i, i + 1) for i in index)]
            memory = self.adapter.memory_of(view)
            # the slice may be a copy, whose address says nothing about the strides of `x`
            if memory is not None and self.is_view(view, x):
                assert memory[0] == first + (size - 1) * step, f"{name}: {strides}"

    def is_view(self, view: Any, x: Any) -> bool:
        """Whether writing into `view`, a slice of `x` with the same number of axes, also changes `x`. The old values
        are restored."""
        before = self.adapter.to_numpy(x).tobytes()
        kept = xdevice.copy_to(view, self.home)
        # two numbers, because the slice may already contain one of the two
        for number in (0.0, 1.0):
            self.adapter.write(
                view, self.make(np.full(tuple(view.shape), number), dtype=dtype_name(x.dtype))
            )
            is_changed = self.adapter.to_numpy(x).tobytes() != before
            self.adapter.write(view, kept)
            if is_changed:
                return True
        return False

    def assert_shares_nothing(self, x: Any, name: str) -> None:
        """Checks that a slice of `x` has its own memory. An adapter promises this if its `memory_of` returns None.
        Checks nothing for a 0-d tensor."""
        if not tuple(x.shape):
            return
        with self.home_device:
            view = x[:1]
        # frameworks such as JAX return `x` itself for a slice that contains the whole tensor
        if view is not x:
            assert not self.is_view(view, x), (
                f"{name}: memory_of returned None for memory that a view shares"
            )

    def assert_waits_only_for_memory(self) -> None:
        """Checks when `memory_of` waits for a computation. It must wait if the framework allocates the memory of the
        result during the computation, and must not wait if the memory exists before. Tries three times, because the
        machine may pause."""
        for _ in range(3):
            # the work is long, so that it is still in progress when `memory_of` is called
            work = self.samples.long_work(self.home_device)
            if work is None or not self.adapter.can_write(work.result):
                return
            self.adapter.memory_of(work.result)
            if work.is_done() is not self.samples.makes_memory_first:
                return
        assert not self.samples.makes_memory_first, (
            "memory_of waited for the computation, although the memory existed before it"
        )
        raise AssertionError(
            "memory_of returned an address before the value was computed: wait in memory_of, or set "
            "samples.makes_memory_first"
        )

    def test_a_written_value_is_not_aliased(self) -> None:
        self.skip_without_kernels()
        x = xdevice.copy_to(self.make(), self.home)
        if not self.adapter.can_write(x):
            pytest.skip(f"{self.backend} does not write into tensors")
        value = self.make(small_numbers("float32")[:2, :3])
        self.adapter.write(x, value)
        self.assert_different_memory(x, value)
        # this would also change `x` if `x` had taken over the memory of `value`
        self.adapter.write(value, self.make(np.zeros((2, 3), "float32")))
        self.assert_holds(x, small_numbers("float32")[:2, :3])

    def test_a_lone_variable_is_written_in_place(self) -> None:
        self.skip_without_kernels()
        lone = 0
        for name, make in self.samples.models().items():
            model = xdevice.to_device(make(), self.home)
            tensor = self.adapter.tensor_of(model)
            if tensor is None or not self.adapter.can_write(model):
                continue
            lone += 1
            array = cast(np.full(tuple(tensor.shape), 3), dtype_name(tensor.dtype))
            self.adapter.write(model, self.make(array, dtype=dtype_name(tensor.dtype)))
            self.assert_holds(self.adapter.tensor_of(model), array, name)
        if not lone:
            pytest.skip("the samples do not have: a model that is one variable")

    @needs("Replicas")
    def test_a_total_is_new_and_keeps_its_dtype(self) -> None:
        """`total` must return the sum or the mean of several tensors as a new tensor of the same dtype, on the same
        device."""
        self.skip_without_kernels()
        for name, x in self.plain_tensors().items():
            # booleans have no sum
            if name == "bool":
                continue
            array = xdevice.to_numpy(x)
            # False: the sum instead of the mean
            total = self.adapter.total([x, x, x], False)
            self.assert_on(
                self.home_device, total, (array + array + array).astype(array.dtype), name
            )
            # NumPy's sum of int8 is int64, for example
            assert str(total.dtype) == str(x.dtype), name
            self.assert_holds(x, array, f"{name}: total() wrote into its first tensor")
            self.assert_different_memory(total, x, name)
            # the mean of two equal tensors is exact
            if dtype_name(x.dtype) in FLOATS:
                # an iterator, because the caller may create the tensors one by one to save
                # memory; True: the mean
                self.assert_holds(self.adapter.total(iter([x, x]), True), array, name)
        for place in self.devices_with_values():
            total = self.adapter.total([xdevice.to_device(self.make(), place)] * 2, False)
            assert xdevice.device_of(total) is place, (
                f"the total of tensors on {place} is on {xdevice.device_of(total)}"
            )

    @needs("Replicas")
    def test_a_total_is_added_in_order_and_rounded_once(self) -> None:
        self.skip_without_kernels()
        cases: list[tuple[str, list[float], float]] = [
            # 1e8 + 1 is 1e8 in float32, so the sum depends on the order
            ("float32", [1e8, 1.0, -1e8], 0.0),
            ("float32", [1e8, -1e8, 1.0], 1.0),
            # 2048 + 1 is 2048 in float16, so both ones are lost unless the sum is rounded only
            # once
            ("float16", [2048.0, 1.0, 1.0], 2050.0),
            ("bfloat16", [256.0, 1.0, 1.0], 258.0),
            # the first integer that float64 cannot represent
            ("int64", [2**53, 1, 0], 2**53 + 1),
        ]
        for name, numbers, expected in cases:
            if name not in self.dtypes():
                continue
            xs = [self.make(cast([number] * 5, name), dtype=name) for number in numbers]
            # False: the sum instead of the mean
            self.assert_holds(
                self.adapter.total(xs, False), cast([expected] * 5, name), f"{name} {numbers}"
            )

    @needs("Replicas")
    def test_all_reduce_gives_both_devices_the_same(self) -> None:
        self.skip_without_kernels()
        for name, x in self.plain_tensors().items():
            if name == "bool":
                continue
            array = xdevice.to_numpy(x)
            # the sum of `x`, `x` and `2 * x`, and the mean of `x` and `x`
            self.assert_reduces(name, x, (array * 4).astype(array.dtype), mean=False)
            if dtype_name(x.dtype) in FLOATS:
                self.assert_reduces(name, x, array, mean=True)

    def assert_reduces(self, name: str, x: Any, expected: Array, mean: bool) -> None:
        """Checks `all_reduce` of copies of `x`, `x` and `2 * x` on two devices. Without `mean`, the sum must be
        `expected`. With `mean`, the mean must be near 4/3 of `x` if `name` is "float32" or "float64". For all other
        names, only the mean of `x` and `x` is computed, and must be near `expected`: backends differ in how they round
        the mean of three tensors of these dtypes. `name` is the name of `x` in the table of plain tensors."""
        # if there is no second device whose tensors have values, the home device is used twice
        first, second = (self.devices_with_values() * 2)[:2]
        array = xdevice.to_numpy(x)
        xs = [xdevice.copy_to(x, first), xdevice.copy_to(x, second)]
        if not mean or name in ("float32", "float64"):
            # `2 * x` is the sum (False) of two tensors, because not every tensor can be multiplied by a number
            xs.append(xdevice.copy_to(self.adapter.total([x, x], False), first))
            expected = (array * 4 / 3).astype(array.dtype) if mean else expected
        before = [(self.adapter.can_write(y), self.address(y)) for y in xs]
        # a copy of the list, because an adapter may return the same list, with the results in place of the tensors
        results = self.adapter.all_reduce(list(xs), mean)
        assert len(results) == len(xs)
        for y, result, (in_place, address) in zip(xs, results, before, strict=True):
            assert xdevice.device_of(result) is self.adapter.device_of(y), name
            # if a tensor can be written, the result is written in place, so that optimizers and
            # views see it, too
            assert (result is y) is in_place, name
            is_kept = address is None or self.address(result) == address
            assert is_kept or not in_place, (
                f"{name}: the result has new memory, although the tensor can be written"
            )
            if mean:
                assert_close(xdevice.to_numpy(result), expected, name)
            else:
                self.assert_holds(result, expected, name)
        # replicas that differ in the last bit drift apart over many steps
        bits = {xdevice.to_numpy(y).tobytes() for y in results}
        assert len(bits) == 1, f"{name}: the results differ between the devices"
        self.assert_holds(x, array, f"{name}: the source")


def assert_close(actual: Any, expected: Any, name: str) -> None:
    """Checks that two arrays have the same dtype, and that their values are equal up to a relative difference of
    1e-6."""
    assert actual.dtype == expected.dtype, name
    np.testing.assert_allclose(
        actual.astype("complex128"), expected.astype("complex128"), rtol=1e-6, err_msg=name
    )
