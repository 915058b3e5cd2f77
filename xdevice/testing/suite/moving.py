"""Checks of moves and copies, of gradients through moves and copies, and of containers."""

from __future__ import annotations

from collections import UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import xdevice

from .base import Suite, assert_same, call_in_threads, skip_if_none

_LARGE = (33, 1_017_001)
"""The shape of a tensor of bytes. It is larger than the pieces into which adapters divide a copy."""

# a namedtuple, which is rebuilt from its fields
Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Batch:
    """A container that libraries for trees (`jax.tree`, `optree`) treat as a leaf, because its
    class is not registered with them."""

    x: Any
    label: str
    extra: Any = field(init=False, default=None)


def _verbs() -> tuple[Any, Any]:
    """Returns `to_device` and `copy_to`. Both are looked up at each call, because a test of the suite itself may have
    replaced one of these functions."""
    return xdevice.to_device, xdevice.copy_to


class MovingChecks(Suite):
    """Checks of moving and copying tensors and containers, and of gradients through moves and
    copies."""

    def test_to_device_gives_the_same_object_where_it_is_there(self) -> None:
        for name, x in self.odd_tensors().items():
            # a copy would need memory, and optimizers would continue with the old tensor
            for spelling in (self.home_device, self.home, self.home_device.native):
                assert xdevice.to_device(x, spelling) is x, name
        batch = {"x": [self.make()]}
        # the container must be the same, too, because a program may compare it by identity, or
        # refer to it elsewhere
        assert xdevice.to_device(batch, self.home) is batch

    def test_to_device_moves_and_leaves_the_source(self) -> None:
        there = self.second_device()
        for name, x, array in self.odd_tensors_and_arrays():
            moved = xdevice.to_device(x, there)
            assert moved is not x
            self.assert_on(there, moved, array, name)
            # MXNet and JAX silently narrow 64-bit numbers with some settings
            assert str(moved.dtype) == str(x.dtype), name
            assert xdevice.device_of(x) is self.home_device, name
            # a move must not take over the memory of its source
            self.assert_reads(x, array, f"{name}: the source")

    def test_a_batch_moves_as_its_tensors_do(self) -> None:
        there, arrays, shared = self.second_device(), self.odd_arrays(), self.make()
        marked = [self.make()]
        if self.computes:
            marked.append(self.samples.marked(self.make()))
        batch: dict[str, Any] = {
            "odd": self.odd_tensors(),
            "twice": [shared, shared],
            "marked": marked,
        }
        # a tensor in two places must stay one tensor
        moved = xdevice.to_device(batch, there)
        for name, x in moved["odd"].items():
            self.assert_on(there, x, arrays[name], name)
            assert str(x.dtype) == str(batch["odd"][name].dtype), name
        # two copies would cost memory, and an update of one would not reach the other
        assert moved["twice"][0] is moved["twice"][1]
        assert list(map(self.requires_grad, moved["marked"])) == list(
            map(self.requires_grad, marked)
        )
        assert xdevice.device_of(batch) is self.home_device
        # a batch with a tensor that is on the device already, which must stay the same tensor
        mixed = xdevice.to_device([moved["twice"][0], *batch["odd"].values()], there)
        assert mixed[0] is moved["twice"][0]
        for name, x in zip(batch["odd"], mixed[1:], strict=True):
            self.assert_holds(x, arrays[name], name)

    def test_a_tensor_comes_back_as_it_went(self) -> None:
        there = self.second_device_with_values()
        for name, x, array in self.odd_tensors_and_arrays():
            back = xdevice.to_device(xdevice.to_device(x, there), self.home)
            self.assert_on(self.home_device, back, array, name)

    def test_a_move_is_in_memory_of_its_own(self) -> None:
        there = self.second_device_with_values()
        # tensors may share memory if nobody can write into it
        if "gpu" not in (there.kind, self.home_device.kind) and not self.adapter.can_write(
            self.make()
        ):
            pytest.skip(
                f"{self.backend} may share the memory of tensors on the host, because its tensors cannot be written"
            )
        for name, x in self.odd_tensors().items():
            moved = xdevice.to_device(x, there)
            self.assert_different_memory(moved, x, name)
            self.assert_different_memory(xdevice.to_device(moved, self.home), x, name)

    def test_large_tensors_move_whole_and_leave_their_source_free(self) -> None:
        """A moved tensor must have all its values, even if it is read immediately. It must not change if, right after
        the move, the program writes into its source, or into the array from which the source was created."""
        pattern = np.resize(np.arange(251, dtype="uint8"), _LARGE)
        places = (self.home_device, self.second_device_with_values())
        for source, target in (places, places[::-1]):
            for verb in _verbs():
                buffer = pattern.copy()
                x = xdevice.tensor(buffer, device=source)
                buffer[...] = 255
                moved = verb(x, target)
                # immediately, because the copy may still be in progress
                if self.computes and self.adapter.can_write(x):
                    self.adapter.write(x, xdevice.zeros(_LARGE, dtype="uint8", device=source))
                self.assert_holds(moved, pattern, f"{verb.__name__} from {source} to {target}")

    def test_large_moves_of_threads_do_not_meet(self) -> None:
        places = (self.home_device, self.second_device_with_values())
        # the arrays have no number in common, so that even one byte of the other array is
        # detected
        arrays = [
            np.resize(np.arange(start, start + 101, dtype="uint8"), _LARGE)
            for start in (0, 101)
        ]
        backend = self.adapter

        def there_and_back(array: np.ndarray[Any, Any]) -> Any:
            with xdevice.use_backend(backend):
                x = xdevice.tensor(array, device=places[0])
                return xdevice.to_device(xdevice.to_device(x, places[1]), "cpu")

        for x, array in zip(call_in_threads(there_and_back, arrays), arrays, strict=True):
            self.assert_holds(x, array)

    def test_what_is_not_waited_for_cannot_be_read_early(self) -> None:
        there = self.second_device_with_values()
        for source, target in ((self.home_device, there), (there, self.home_device)):
            # each way of reading must wait by itself
            for read in (xdevice.to_numpy, self._after_sync, self._after_a_copy):
                x, expected = self.pending()
                x = xdevice.to_device(x, source)
                moved = xdevice.to_device(x, target, non_blocking=True)
                assert moved is not x
                assert xdevice.device_of(moved) is target
                assert_same(read(moved), expected, f"from {source} to {target}")
        x = self.make()
        # a tensor that is on the device already needs no copy
        assert xdevice.to_device(x, self.home, non_blocking=True) is x
        moved = xdevice.to_device({"x": [x]}, there, non_blocking=True)["x"][0]
        self.assert_holds(moved, xdevice.to_numpy(x))
        # tested with every dtype and shape, because the framework may copy in another way if it does not wait
        for name, x, array in self.odd_tensors_and_arrays():
            self.assert_holds(xdevice.to_device(x, there, non_blocking=True), array, name)

    def _after_sync(self, x: Any) -> Any:
        """Returns the values of a tensor, read after `sync`."""
        xdevice.sync(x)
        return xdevice.to_numpy(x)

    def _after_a_copy(self, x: Any) -> Any:
        """Returns the values of a tensor, read from a copy on the CPU."""
        return xdevice.to_numpy(xdevice.copy_to(x, "cpu"))

    def test_a_move_waits_for_what_is_computed(self) -> None:
        there = self.second_device_with_values()
        for verb in _verbs():
            for target in (there, self.home_device):
                # the computation of the sum may still be in progress when the copy begins
                x, expected = self.pending()
                self.assert_reads(verb(x, target), expected, f"{verb.__name__} to {target}")

    def test_every_device_reaches_every_other(self) -> None:
        expected = self.odd_arrays()["float32"]
        # at most three GPUs, because the number of pairs grows quadratically
        gpus = [xdevice.gpu(i) for i in range(self.adapter.count("gpu"))][:3]
        places = [xdevice.cpu(), *gpus]
        for source in places:
            x = self.adapter.from_numpy(expected, source)
            for target in places:
                # a copy on another stream that does not wait would read the memory too early
                for verb in _verbs():
                    self.assert_on(target, verb(x, target), expected, f"{source} to {target}")

    def test_copy_to_is_new_storage_on_the_same_device(self) -> None:
        for name, x, array in self.odd_tensors_and_arrays():
            copied = xdevice.copy_to(x, self.home)
            assert copied is not x, name
            self.assert_on(self.home_device, copied, array, name)
            self.assert_holds(x, array, f"{name}: the source")
            self.assert_different_memory(copied, x, name)

    def test_copy_to_another_device(self) -> None:
        there = self.second_device()
        for name, x, array in self.odd_tensors_and_arrays():
            copied = xdevice.copy_to(x, there)
            self.assert_on(there, copied, array, name)
            assert xdevice.device_of(x) is self.home_device, name
            if self.holds_values(there):
                self.assert_different_memory(copied, x, name)

    def test_requires_grad_stays(self) -> None:
        self.skip_without_kernels()
        # both are tested, because a faulty copy may mark every result, or no result
        for wanted in (True, False):
            x = self.samples.marked(self.make()) if wanted else self.make()
            # JAX, TensorFlow and NumPy have no such mark
            if self.requires_grad(x) is None:
                pytest.skip(f"{self.backend} does not mark tensors")
            for target in self.all_devices():
                for verb in _verbs():
                    assert self.requires_grad(verb(x, target)) is wanted
            assert self.requires_grad(x) is wanted

    def test_gradients_flow_through_a_copy_on_the_same_device(self) -> None:
        self.assert_gradient(lambda x: xdevice.copy_to(x * -2.5, self.home))

    def test_gradients_flow_there_and_back(self) -> None:
        there = self.second_device_with_values()
        for verb in _verbs():
            self.assert_gradient(lambda x, verb=verb: verb(verb(x * -2.5, there), self.home))  # type: ignore[misc]

    def test_gradients_arrive_where_the_source_is(self) -> None:
        there = self.second_device_with_values()
        for verb in _verbs():
            self.assert_gradient(lambda x, verb=verb: verb(x, there) * -2.5)  # type: ignore[misc]

    def test_objects_that_the_framework_knows_are_walked(self) -> None:
        for thing in (
            object(),
            3,
            "text",
            self.make(),
            *(make() for make in self.samples.models().values()),
        ):
            assert self.adapter.container_way(thing) is None, (
                f"container_way must return None for {thing!r:.60}"
            )
        there = self.second_device()
        holders = self.samples.holders(self.make())
        # holders are, for example, the framework's own containers of tensors, which xdevice
        # walks by the framework's rules
        if not holders:
            pytest.skip("the samples do not have: objects that the framework knows")
        for name, (holder, read) in holders.items():
            for verb in _verbs():
                for target in (there, self.home_device):
                    self.assert_walked(name, holder, read, verb, target)

    def assert_walked(self, name: str, holder: Any, read: Any, verb: Any, target: Any) -> None:
        """Checks the result of `verb`, which is `to_device` or `copy_to`. The result must be an object of the same type
        as `holder`, with the tensor on `target` and the other part unchanged. A copy must be in new storage, and
        `holder` itself must not change. `read` returns the tensor and the other part of such an object. Errors refer to
        the object as `name`."""
        x, beside = read(holder)
        moved = verb(holder, target)
        assert type(moved) is type(holder), name
        assert xdevice.device_of(moved) is target, name
        moved_x, moved_beside = read(moved)
        self.assert_on(target, moved_x, xdevice.to_numpy(self.make()), name)
        assert str(moved_beside) == str(beside), (
            f"{name}: the values next to the tensor have changed"
        )
        if verb is xdevice.copy_to and self.holds_values(target):
            self.assert_different_memory(moved_x, x, name)
        assert read(holder)[0] is x, f"{name}: the source has changed"
        assert xdevice.device_of(holder) is self.home_device, name

    def test_what_moves_itself_is_told_a_native_device(self) -> None:
        method = skip_if_none(
            self.adapter.moves_by, "a method by which objects move themselves"
        )
        assert isinstance(method, str)
        there, x, probe = self.second_device(), self.make(), self.make()
        assert callable(getattr(x, method, None)), (
            f"tensors of {self.backend} have no {method}()"
        )
        assert xdevice.device_of(getattr(probe, method)(there.native)) is there
        # Paddle 2 moves the tensor itself
        home = xdevice.device_of(probe)
        natives: list[Any] = []

        class Mover:
            """An object that contains a tensor. The check adds the method that moves such
            objects."""

            def __init__(self, x: Any) -> None:
                self.x = x

        def move(mover: Mover, native: Any) -> Mover:
            """Records the native device, and returns a new object with the tensor on that device."""
            natives.append(native)
            return Mover(getattr(mover.x, method)(native))

        setattr(Mover, method, move)
        mover = Mover(x)
        moved = xdevice.to_device([mover], there)[0]
        # classes with such a method pass the device to the framework, which does not accept
        # xdevice's `Device`
        assert natives == [there.native], (
            f"{method}() must be called once, with the framework's own device"
        )
        assert xdevice.device_of(moved.x) is there
        assert xdevice.device_of(mover.x) is home

    # containers

    def test_containers_keep_their_shape_and_types(self) -> None:
        target = self.second_device_or_none() or self.home_device
        x = self.make()
        nested: dict[str, Any] = {
            "list": [x, 1],
            "tuple": (x, "text"),
            "named": Pair(x, None),
            "default": defaultdict(list, a=[x]),
            "frozen": Batch(x, "cat"),
            "user": UserDict(x=x),
            "proxy": MappingProxyType({"x": x}),
        }
        for verb in _verbs():
            moved = verb(nested, target)
            assert list(moved) == list(nested)
            assert [type(value) for value in moved.values()] == [
                type(value) for value in nested.values()
            ]
            assert moved["frozen"].label == "cat"
            assert moved["named"].right is None
            # a `defaultdict` that is rebuilt only from its items would lose its factory
            assert moved["default"].default_factory is list
            tensors = [
                moved["list"][0],
                moved["tuple"][0],
                moved["named"].left,
                moved["default"]["a"][0],
                moved["frozen"].x,
                moved["user"]["x"],
                moved["proxy"]["x"],
            ]
            assert all(tensor is tensors[0] for tensor in tensors), (
                "a tensor in seven places must stay one tensor"
            )
            assert xdevice.device_of(tensors[0]) is target
            assert nested["list"][0] is x
