"""Checks of moves, copies, gradients through them, and containers."""

from __future__ import annotations

from collections import UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import xdevice

from .base import Suite, assert_same, need, side_by_side

_LARGE = (33, 1_017_001)
"""The shape of a tensor of bytes that is larger than the pieces in which adapters copy."""

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Batch:
    """A container of a class that tree libraries (`jax.tree`, `optree`) do not know, so that they do not look
    inside."""

    x: Any
    label: str
    extra: Any = field(init=False, default=None)


class Moving(Suite):
    def test_to_device_gives_the_same_object_where_it_is_there(self) -> None:
        for name, x in self.odd_tensors().items():
            for spelling in (self.here(), self.home, self.here().native):
                assert xdevice.to_device(x, spelling) is x, name
        batch = {"x": [self.make()]}
        assert xdevice.to_device(batch, self.home) is batch

    def test_to_device_moves_and_leaves_the_source(self) -> None:
        there, arrays = self.there(), self.odd_arrays()
        for name, x in self.odd_tensors().items():
            moved = xdevice.to_device(x, there)
            assert moved is not x
            assert xdevice.device_of(moved) is there, name
            self.assert_holds(moved, arrays[name], name)
            assert str(moved.dtype) == str(x.dtype), name
            assert xdevice.device_of(x) is self.here(), name
            assert_same(xdevice.to_numpy(x), arrays[name], f"{name}: the source")

    def test_a_batch_moves_as_its_tensors_do(self) -> None:
        there, arrays, shared = self.there(), self.odd_arrays(), self.make()
        marked = {
            wanted: self.samples.marked(self.make()) if wanted else self.make() for wanted in (False, self.computes)
        }
        batch: dict[str, Any] = {"odd": self.odd_tensors(), "twice": [shared, shared], "marked": list(marked.values())}
        moved = xdevice.to_device(batch, there)
        for name, x in moved["odd"].items():
            assert xdevice.device_of(x) is there, name
            self.assert_holds(x, arrays[name], name)
            assert str(x.dtype) == str(batch["odd"][name].dtype), name
        assert moved["twice"][0] is moved["twice"][1]
        assert [*map(self.samples.requires_grad, moved["marked"])] == [
            *map(self.samples.requires_grad, batch["marked"])
        ]
        assert xdevice.device_of(batch) is self.here()
        mixed = xdevice.to_device([moved["twice"][0], *batch["odd"].values()], there)
        assert mixed[0] is moved["twice"][0]
        for name, x in zip(batch["odd"], mixed[1:], strict=True):
            self.assert_holds(x, arrays[name], name)

    def test_a_tensor_comes_back_as_it_went(self) -> None:
        there, arrays = self.there_with_values(), self.odd_arrays()
        for name, x in self.odd_tensors().items():
            back = xdevice.to_device(xdevice.to_device(x, there), self.home)
            assert xdevice.device_of(back) is self.here(), name
            self.assert_holds(back, arrays[name], name)

    def test_a_move_is_in_memory_of_its_own(self) -> None:
        there = self.there_with_values()
        if "gpu" not in (there.kind, self.here().kind) and not self.adapter.can_write(self.make()):
            pytest.skip(f"{self.backend} may share what is on the host, where nothing can be written into it")
        for name, x in self.odd_tensors().items():
            moved = xdevice.to_device(x, there)
            self.assert_apart(moved, x, name)
            self.assert_apart(xdevice.to_device(moved, self.home), x, name)

    def test_large_tensors_move_whole_and_leave_their_source_free(self) -> None:
        """Writing into the source right after a move, or into the array that it was made of, does not change the moved
        tensor, which has all its values when it is read at once."""
        pattern = np.resize(np.arange(251, dtype="uint8"), _LARGE)
        places = (self.here(), self.there_with_values())
        for source, target in (places, places[::-1]):
            for verb in (xdevice.to_device, xdevice.copy_to):
                buffer = pattern.copy()
                x = xdevice.tensor(buffer, device=source)
                buffer[...] = 255
                moved = verb(x, target)
                if self.computes and self.adapter.can_write(x):
                    self.adapter.write(x, xdevice.zeros(_LARGE, dtype="uint8", device=source))
                self.assert_holds(moved, pattern, f"{verb.__name__} from {source} to {target}")

    def test_large_moves_of_threads_do_not_meet(self) -> None:
        places = (self.here(), self.there_with_values())
        arrays = [np.resize(np.arange(start, start + 101, dtype="uint8"), _LARGE) for start in (0, 101)]
        backend = self.adapter

        def there_and_back(array: np.ndarray[Any, Any]) -> Any:
            with xdevice.use(backend):
                return xdevice.to_device(xdevice.to_device(xdevice.tensor(array, device=places[0]), places[1]), "cpu")

        for found, array in zip(side_by_side(there_and_back, arrays), arrays, strict=True):
            self.assert_holds(found, array)

    def test_what_is_not_waited_for_cannot_be_read_early(self) -> None:
        there = self.there_with_values()
        for source, target in ((self.here(), there), (there, self.here())):
            for read in (xdevice.to_numpy, self._after_sync, lambda x: xdevice.to_numpy(xdevice.copy_to(x, "cpu"))):
                x, expected = self.pending()
                x = xdevice.to_device(x, source)
                moved = xdevice.to_device(x, target, non_blocking=True)
                assert moved is not x
                assert xdevice.device_of(moved) is target
                assert_same(read(moved), expected, f"from {source} to {target}")
        x = self.make()
        assert xdevice.to_device(x, self.home, non_blocking=True) is x
        moved = xdevice.to_device({"x": [x]}, there, non_blocking=True)["x"][0]
        self.assert_holds(moved, xdevice.to_numpy(x))
        for name, x in self.odd_tensors().items():
            self.assert_holds(xdevice.to_device(x, there, non_blocking=True), self.odd_arrays()[name], name)

    def _after_sync(self, x: Any) -> Any:
        xdevice.sync(x)
        return xdevice.to_numpy(x)

    def test_a_move_waits_for_what_is_computed(self) -> None:
        there = self.there_with_values()
        for verb in (xdevice.to_device, xdevice.copy_to):
            for target in (there, self.here()):
                x, expected = self.pending()
                assert_same(xdevice.to_numpy(verb(x, target)), expected, f"{verb.__name__} to {target}")

    def test_every_device_reaches_every_other(self) -> None:
        expected = self.odd_arrays()["float32"]
        gpus = [xdevice.gpu(i) for i in range(self.adapter.count("gpu"))][:3]
        places = [xdevice.cpu(), *gpus]
        for source in places:
            x = self.adapter.from_numpy(expected, source)
            for target in places:
                for moved in (xdevice.to_device(x, target), xdevice.copy_to(x, target)):
                    assert xdevice.device_of(moved) is target
                    assert_same(xdevice.to_numpy(moved), expected, f"{source} to {target}")

    def test_copy_to_is_new_storage_on_the_same_device(self) -> None:
        arrays = self.odd_arrays()
        for name, x in self.odd_tensors().items():
            copied = xdevice.copy_to(x, self.home)
            assert copied is not x, name
            assert xdevice.device_of(copied) is self.here(), name
            self.assert_holds(copied, arrays[name], name)
            self.assert_holds(x, arrays[name], f"{name}: the source")
            self.assert_apart(copied, x, name)

    def test_copy_to_another_device(self) -> None:
        arrays = self.odd_arrays()
        for name, x in self.odd_tensors().items():
            copied = xdevice.copy_to(x, self.there())
            assert xdevice.device_of(copied) is self.there(), name
            assert xdevice.device_of(x) is self.here(), name
            self.assert_holds(copied, arrays[name], name)
            if self.holds_values(self.there()):
                self.assert_apart(copied, x, name)

    def test_requires_grad_stays(self) -> None:
        self.needs_kernels()
        for wanted in (True, False):
            x = self.samples.marked(self.make()) if wanted else self.make()
            if self.samples.requires_grad(x) is None:
                pytest.skip(f"{self.backend} does not mark tensors")
            targets = [self.here(), *filter(None, [self.second()])]
            for target in targets:
                assert self.samples.requires_grad(xdevice.to_device(x, target)) is wanted
                assert self.samples.requires_grad(xdevice.copy_to(x, target)) is wanted
            assert self.samples.requires_grad(x) is wanted

    def test_gradients_flow_through_a_copy_on_the_same_device(self) -> None:
        self.assert_gradient(lambda x: xdevice.copy_to(x * -2.5, self.home))

    def test_gradients_flow_through_to_device_that_does_nothing(self) -> None:
        self.assert_gradient(lambda x: xdevice.to_device(x * -2.5, self.home))

    def test_gradients_flow_there_and_back(self) -> None:
        there = self.there_with_values()
        for verb in (xdevice.to_device, xdevice.copy_to):
            self.assert_gradient(lambda x, verb=verb: verb(verb(x * -2.5, there), self.home))  # type: ignore[misc]

    def test_gradients_arrive_where_the_source_is(self) -> None:
        there = self.there_with_values()
        for verb in (xdevice.to_device, xdevice.copy_to):
            self.assert_gradient(lambda x, verb=verb: verb(x, there) * -2.5)  # type: ignore[misc]

    def test_objects_that_the_framework_knows_are_walked(self) -> None:
        for thing in (object(), 3, "text", self.make(), *(make() for make in self.samples.models().values())):
            assert self.adapter.container_way(thing) is None, f"{thing!r:.60} has no way into it"
        there = self.there()
        holders = self.samples.holders(self.make())
        if not holders:
            pytest.skip("the samples do not have: objects that the framework knows")
        array = xdevice.to_numpy(self.make())
        for name, (held, read) in holders.items():
            x, beside = read(held)
            for verb in (xdevice.to_device, xdevice.copy_to):
                for target in (there, self.here()):
                    moved = verb(held, target)
                    assert type(moved) is type(held), name
                    assert xdevice.device_of(moved) is target, name
                    inside, its = read(moved)
                    assert xdevice.device_of(inside) is target, name
                    self.assert_holds(inside, array, name)
                    assert str(its) == str(beside), f"{name}: what is beside the tensor"
                    if verb is xdevice.copy_to and self.holds_values(target):
                        self.assert_apart(inside, x, name)
                    assert read(held)[0] is x, f"{name}: the source has changed"
                    assert xdevice.device_of(held) is self.here(), name

    def test_what_moves_itself_is_told_a_native_device(self) -> None:
        method = need(self.adapter.moves_by, "a method by which objects move themselves")
        assert isinstance(method, str)
        there = self.there()
        x = self.make()
        assert callable(getattr(x, method, None)), f"tensors of {self.backend} have no {method}()"
        assert xdevice.device_of(getattr(x, method)(there.native)) is there
        told: list[Any] = []

        class Mover:
            def __init__(self, x: Any) -> None:
                self.x = x

        def move(mover: Mover, native: Any) -> Mover:
            told.append(native)
            return Mover(getattr(mover.x, method)(native))

        setattr(Mover, method, move)
        mover = Mover(x)
        moved = xdevice.to_device([mover], there)[0]
        assert told == [there.native], "it is asked once, with the framework's own device"
        assert xdevice.device_of(moved.x) is there
        assert xdevice.device_of(mover.x) is self.here()

    def test_what_cannot_move_is_refused(self) -> None:
        for thing in (object(), 3, 2.5, "gpu", None, iter(())):
            for verb in (xdevice.to_device, xdevice.copy_to):
                with pytest.raises(xdevice.NotATensorError, match=type(thing).__qualname__):
                    verb(thing, self.home)

    # containers

    def test_containers_keep_their_shape_and_types(self) -> None:
        target = self.second() or self.here()
        x = self.make()
        batch = Batch(x, "cat")
        nested: dict[str, Any] = {
            "list": [x, 1],
            "tuple": (x, "text"),
            "named": Pair(x, None),
            "default": defaultdict(list, a=[x]),
            "frozen": batch,
            "user": UserDict(x=x),
            "proxy": MappingProxyType({"x": x}),
        }
        for verb in (xdevice.to_device, xdevice.copy_to):
            moved = verb(nested, target)
            assert list(moved) == list(nested)
            assert [type(value) for value in moved.values()] == [type(value) for value in nested.values()]
            assert moved["frozen"].label == "cat"
            assert moved["named"].right is None
            assert moved["default"].default_factory is list
            tensors = [
                moved["list"][0], moved["tuple"][0], moved["named"].left, moved["default"]["a"][0],
                moved["frozen"].x, moved["user"]["x"], moved["proxy"]["x"],
            ]  # fmt: skip
            assert all(tensor is tensors[0] for tensor in tensors), "one tensor in seven places must stay one"
            assert xdevice.device_of(tensors[0]) is target
            assert nested["list"][0] is x

    def test_a_container_that_contains_itself_is_refused(self) -> None:
        loop: list[Any] = [self.make()]
        loop.append(loop)
        with pytest.raises(xdevice.ContainerError, match="contains itself"):
            xdevice.to_device(loop, self.home)
