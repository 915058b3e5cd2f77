"""Checks of what data-parallel training needs: splitting, joining, copies to be trained, writing and summing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xdevice
from xdevice.base.dtypes import dtype_name

from .base import Suite, assert_same, cast, need
from .capabilities import needs
from .values import FLOATS, plain, quiet


class SeveralDevices(Suite):
    @needs("Replicas")
    def test_a_tensor_splits_and_joins(self) -> None:
        self.needs_kernels()
        arrays = {name: quiet(array) for name, array in self.odd_arrays().items()}
        for name, array in arrays.items():
            x = self.make(array, array.dtype.name)
            if name == "0-d":
                self.assert_holds(self.adapter.join([x, x]), np.stack([array, array]), name)
                continue
            length = x.shape[0]
            for sizes in ([length, 0], [0, length - 1, 1]):
                parts = self.adapter.split(x, sizes)
                ends = np.cumsum(sizes)
                for part, size, end in zip(parts, sizes, ends, strict=True):
                    assert xdevice.device_of(part) is self.here(), name
                    self.assert_holds(part, array[end - size : end], f"{name} {sizes}")
                joined = self.adapter.join(parts)
                assert xdevice.device_of(joined) is self.here(), name
                self.assert_holds(joined, array, name)
                self.assert_apart(joined, x, name)
            self.assert_holds(self.adapter.join([x, x]), np.concatenate([array, array]), name)
        for place in self.places():
            parts = self.adapter.split(xdevice.to_device(self.make(), place), [1, 1])
            found = {xdevice.device_of(x) for x in (*parts, self.adapter.join(parts))}
            assert found == {place}, f"split() and join() of tensors on {place} give some on {found}"

    @needs("Replicas")
    def test_gradients_flow_through_splits_and_joins(self) -> None:
        self.assert_gradient(lambda x: self.adapter.join(self.adapter.split(x * -2.5, [1, 1])))
        self.assert_gradient(lambda x: self.adapter.join(self.adapter.split(x, [2, 0])) * -2.5)

    def test_ordinary_tensors_are_dense(self) -> None:
        for name, x in self.odd_tensors().items():
            assert self.adapter.is_dense(x) is True, name
            assert self.adapter.is_host_bound(x) is False, name

    @needs("Replicas")
    def test_a_leaf_is_a_copy_that_asks_for_gradients(self) -> None:
        self.needs_kernels()
        arrays = self.odd_arrays()
        for target in filter(None, (self.here(), self.second())):
            for name, x in self.odd_tensors().items():
                leaf = self.adapter.leaf(x, target)
                held = self.tensor_of(leaf)
                assert xdevice.device_of(held) is target, name
                self.assert_holds(held, arrays[name], name)
                assert self.samples.requires_grad(leaf) in (None, dtype_name(x.dtype) in FLOATS), name
                if 0 not in tuple(x.shape) and self.holds_values(target):
                    assert self.samples.address(held) != need(self.samples.address(x), "addresses"), name

    def tensor_of(self, leaf: Any) -> Any:
        held = self.adapter.tensor_of(leaf)
        return leaf if held is None else held

    @needs("Replicas")
    def test_a_leaf_has_no_link_to_its_source(self) -> None:
        self.needs_kernels()
        need(self.samples.gradient(lambda x: x * 3, self.make()), "gradients")
        source = self.samples.marked(self.make())
        if self.samples.requires_grad(source) is None:
            pytest.skip(f"{self.backend} does not mark tensors")
        for target in self.places():
            leaf = self.tensor_of(self.adapter.leaf(source, target))
            with target:
                gradient = self.samples.gradient(lambda x: x * -2.5, leaf)
            assert_same(xdevice.to_numpy(gradient), np.full((2, 3), -2.5, "float32"))
            reached = getattr(source, "grad", None)
            assert reached is None or not xdevice.to_numpy(reached).any(), "the gradient reaches the source"

    @needs("Replicas")
    def test_write_puts_values_into_the_memory_that_is_there(self) -> None:
        self.needs_kernels()
        arrays = self.odd_arrays()
        for name, x in self.odd_tensors().items():
            leaf = self.adapter.leaf(xdevice.copy_to(x, self.home), self.here())
            array = cast(np.full(tuple(x.shape), 1), dtype_name(x.dtype))
            if name in self.adapter.dtypes:
                array = np.roll(arrays[name], 1)
            value = self.make(array, dtype=dtype_name(x.dtype))
            asks = self.samples.requires_grad(leaf)
            if self.adapter.tensor_of(leaf) is None and not self.adapter.can_write(leaf):
                with pytest.raises(xdevice.UnsupportedError, match="written"):
                    self.adapter.write(leaf, value)
                continue
            has_address = self.adapter.tensor_of(leaf) is None and 0 not in tuple(x.shape)
            before = self.samples.address(leaf) if has_address else None
            self.adapter.write(leaf, value)
            self.assert_holds(self.tensor_of(leaf), array, name)
            self.assert_holds(value, array, f"{name}: the value")
            assert self.samples.requires_grad(leaf) is asks, name
            assert before is None or self.samples.address(leaf) == before, name
            if has_address:
                self.assert_apart(leaf, value, name)
            self.assert_holds(x, arrays[name], f"{name}: what the leaf was made of")

    def test_where_write_writes_is_known(self) -> None:
        self.needs_kernels()
        for name, x in self.odd_tensors().items():
            if 0 in tuple(x.shape) or not self.adapter.can_write(x):
                continue
            memory = self.adapter.memory_of(x)
            if memory is None:
                self.shares_nothing(x, name)
                continue
            address, strides = memory
            assert address == need(self.samples.address(x), "addresses"), f"{name}: another address"
            assert len(strides) == len(tuple(x.shape)), f"{name}: {strides}"
            self.assert_strides(x, strides, name)
        self.waits_only_for_memory()

    def assert_strides(self, x: Any, strides: tuple[int, ...], name: str) -> None:
        """Checks that strides are right: along each axis, the last element lies where the strides say, which is where a
        view of it alone begins."""
        first = self.samples.address(x)
        for axis, (size, step) in enumerate(zip(tuple(x.shape), strides, strict=True)):
            index = tuple(size - 1 if i == axis else 0 for i in range(len(strides)))
            with self.here():
                view = x[tuple(slice(i, i + 1) for i in index)]
            memory = self.adapter.memory_of(view)
            if memory is not None and self.is_view(view, x, index):
                assert memory[0] == first + (size - 1) * step, f"{name}: {strides}"

    def is_view(self, view: Any, x: Any, index: tuple[int, ...]) -> bool:
        """Whether writing into the slice `view` changes the whole `x`."""
        value = self.make(np.zeros((1,) * len(index)), dtype=dtype_name(x.dtype))
        before = self.adapter.to_numpy(x).tobytes()
        kept = xdevice.copy_to(view, self.home)
        for _ in range(2):
            self.adapter.write(view, value)
            if self.adapter.to_numpy(x).tobytes() != before:
                self.adapter.write(view, kept)
                return True
            value = self.make(np.ones((1,) * len(index)), dtype=dtype_name(x.dtype))
        self.adapter.write(view, kept)
        return False

    def shares_nothing(self, x: Any, name: str) -> None:
        with self.here():
            view = x[:1] if tuple(x.shape) else x
        if view is not x:
            assert not self.is_view(view, x, (0,) * len(tuple(x.shape))), f"{name}: a view that shares memory"

    def waits_only_for_memory(self) -> None:
        """Checks that asking for an address waits for the computation in a framework that has no memory for the result
        before, and in no other framework. Tries three times, because the machine may pause."""
        for _ in range(3):
            work = self.samples.long_work(self.here())
            if work is None or not self.adapter.can_write(work.result):
                return
            self.adapter.memory_of(work.result)
            if work.is_done() is not self.samples.makes_memory_first:
                return
        assert not self.samples.makes_memory_first, "it waits for the computation, though the memory is there"
        raise AssertionError("an address of what is not computed yet: wait, unless samples.makes_memory_first")

    def test_a_written_value_is_not_aliased(self) -> None:
        self.needs_kernels()
        x = xdevice.copy_to(self.make(), self.home)
        if not self.adapter.can_write(x):
            pytest.skip(f"{self.backend} does not write into tensors")
        value = self.make(plain("float32")[:2, :3])
        self.adapter.write(x, value)
        self.assert_apart(x, value)
        self.adapter.write(value, self.make(np.zeros((2, 3), "float32")))
        self.assert_holds(x, plain("float32")[:2, :3])

    def test_a_lone_variable_is_written_in_place(self) -> None:
        self.needs_kernels()
        asked = 0
        for name, make in self.samples.models().items():
            model = xdevice.to_device(make(), self.home)
            held = self.adapter.tensor_of(model)
            if held is None or not self.adapter.can_write(model):
                continue
            asked += 1
            array = cast(np.full(tuple(held.shape), 3), dtype_name(held.dtype))
            self.adapter.write(model, self.make(array, dtype=dtype_name(held.dtype)))
            self.assert_holds(self.adapter.tensor_of(model), array, name)
        if not asked:
            pytest.skip("the samples do not have: a model that is one variable")

    @needs("Replicas")
    def test_a_total_is_new_and_keeps_its_dtype(self) -> None:
        self.needs_kernels()
        for name, x in self.plain_tensors().items():
            if name == "bool":
                continue
            array = xdevice.to_numpy(x)
            total = self.adapter.total([x, x, x], False)
            assert xdevice.device_of(total) is self.here(), name
            self.assert_holds(total, (array + array + array).astype(array.dtype), name)
            assert str(total.dtype) == str(x.dtype), name
            self.assert_holds(x, array, f"{name}: the first one was written")
            self.assert_apart(total, x, name)
            if dtype_name(x.dtype) in FLOATS:
                self.assert_holds(self.adapter.total(iter([x, x]), True), array, name)
        for place in self.places():
            total = self.adapter.total([xdevice.to_device(self.make(), place)] * 2, False)
            assert xdevice.device_of(total) is place, f"of tensors on {place}, on {xdevice.device_of(total)}"

    @needs("Replicas")
    def test_a_total_is_added_in_order_and_rounded_once(self) -> None:
        self.needs_kernels()
        cases: list[tuple[str, list[float], float]] = [
            ("float32", [1e8, 1.0, -1e8], 0.0),
            ("float32", [1e8, -1e8, 1.0], 1.0),
            ("float16", [2048.0, 1.0, 1.0], 2050.0),
            ("bfloat16", [256.0, 1.0, 1.0], 258.0),
            ("int64", [2**53, 1, 0], 2**53 + 1),
        ]
        for name, numbers, expected in cases:
            if name not in self.dtypes():
                continue
            xs = [self.make(cast([number] * 5, name), dtype=name) for number in numbers]
            self.assert_holds(self.adapter.total(xs, False), cast([expected] * 5, name), f"{name} {numbers}")

    @needs("Replicas")
    def test_all_reduce_gives_both_devices_the_same(self) -> None:
        self.needs_kernels()
        places = (self.places() * 2)[:2]
        for name, x in self.plain_tensors().items():
            for mean in (False, True):
                if name == "bool" or (mean and dtype_name(x.dtype) not in FLOATS):
                    continue
                array = xdevice.to_numpy(x)
                xs = [xdevice.copy_to(x, place) for place in places]
                xs.append(xdevice.copy_to(self.adapter.total([x, x], False), places[0]))
                expected = ((array * 4) / 3 if mean else array * 4).astype(array.dtype)
                if mean and name not in ("float32", "float64"):
                    xs, expected = xs[:2], array
                before = [None if 0 in tuple(y.shape) else self.samples.address(y) for y in xs]
                writable = [self.adapter.can_write(y) for y in xs]
                results = self.adapter.all_reduce(list(xs), mean)
                assert len(results) == len(xs)
                for y, result, in_place, address in zip(xs, results, writable, before, strict=True):
                    assert xdevice.device_of(result) is self.adapter.device_of(y), name
                    assert (result is y) is in_place, name
                    kept = address is None or self.samples.address(result) == address
                    assert not in_place or kept, f"{name}: not in place"
                    if mean:
                        assert_close(xdevice.to_numpy(result), expected, name)
                    else:
                        self.assert_holds(result, expected, name)
                first = xdevice.to_numpy(results[0]).tobytes()
                assert all(xdevice.to_numpy(y).tobytes() == first for y in results), f"{name}: not the same everywhere"
                self.assert_holds(x, array, f"{name}: what was copied")

    # the verbs

    @needs("Replicas")
    def test_a_batch_is_split_gathered_and_reduced(self) -> None:
        self.needs_kernels()
        places, arrays = (self.places() * 2)[:2], self.odd_arrays()
        for name in ("float32", "long"):
            x = self.make(arrays[name])
            parts = xdevice.split_batch({"x": x}, places, even=False)
            assert [xdevice.device_of(part) for part in parts] == places
            assert_same(np.concatenate([xdevice.to_numpy(part["x"]) for part in parts]), arrays[name])
            self.assert_holds(xdevice.gather(parts, self.home)["x"], arrays[name])
        copies = xdevice.broadcast(self.make(arrays["float32"]), places)
        for copy, place in zip(copies, places, strict=True):
            assert xdevice.device_of(copy) is place
            self.assert_holds(copy, arrays["float32"])
        sums = xdevice.all_reduce([xdevice.to_device(self.make(plain("float32")), place) for place in set(places)] * 1)
        for one in sums:
            assert_same(xdevice.to_numpy(one), plain("float32") * len(sums))

    @needs("Models")
    def test_replicas_are_models_of_their_own(self) -> None:
        self.needs_kernels()
        net = self.samples.network(3, 2)
        model = need(net, "models")
        before = {name: self.adapter.to_numpy(x).copy() for name, x in self.adapter.variables(model)}
        replicas = xdevice.replicate(model, self.places())
        for replica, place in zip(replicas, self.places(), strict=True):
            assert replica is not model
            assert xdevice.device_of(replica) is place
            for name, x in self.adapter.variables(replica):
                assert_same(np.asarray(self.adapter.to_numpy(x)), before[name], name)


def assert_close(actual: Any, expected: Any, name: str) -> None:
    assert actual.dtype == expected.dtype, name
    np.testing.assert_allclose(actual.astype("complex128"), expected.astype("complex128"), rtol=1e-6, err_msg=name)
