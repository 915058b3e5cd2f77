"""What holds for every type of a peer: moved, copied, compared and read, it stays what it was.

A test module derives a class from `Laws` and lists its peers. Tensors are found, read and located by the peer's and the
framework's own means, never by ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import xdevice


@dataclass(frozen=True)
class Peer:
    make: Callable[[], Any]
    """A new one on the host."""
    tensors: Callable[[Any], dict[str, Any]]
    """The tensors that it holds, by the names in it, read by its own means."""
    facts: Callable[[Any], Any] = lambda x: None
    """What else has to stay as it is."""
    moves_in_place: bool = False
    """Whether its documented `.to` changes it and gives it back, so that a move may do that too. Models have to."""
    numpy: Callable[[Any], dict[str, Any]] | None = None
    """Reads what `to_numpy` gives; as `tensors` does if it is None."""
    is_model: bool = False
    """Models are no batches: they are not read, fetched or split."""
    reads: bool = True
    """Whether `to_numpy` has to read it; else it may also refuse it by name."""
    splits: bool = False
    replicates: bool = True
    backend: str = "torch"


def host(x: Any) -> np.ndarray[Any, Any]:
    """The values, by the framework's own means."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    return np.asarray(x, "float32" if str(x.dtype) == "bfloat16" else None)


def place_of(x: Any) -> xdevice.Device:
    """Where a tensor is, by the framework's own word."""
    if isinstance(x, np.ndarray):
        return xdevice.cpu()
    for name in ("torch", "jax"):
        backend = xdevice.backend(name)
        if isinstance(
            x, backend.framework.Tensor if name == "torch" else backend.framework.Array
        ):
            (native,) = [x.device] if name == "torch" else x.devices()
            return next(place for place in _places() if backend.to_native(place) == native)
    raise AssertionError(f"{type(x)} is no tensor of PyTorch or JAX")


def _places() -> list[xdevice.Device]:
    return [xdevice.cpu(), xdevice.gpu(0), xdevice.gpu(1)]


def address(x: Any) -> int:
    return int(x.data_ptr() if hasattr(x, "data_ptr") else x.unsafe_buffer_pointer())


def other_than(place: xdevice.Device) -> xdevice.Device:
    return xdevice.gpu(1 if place is xdevice.gpu(0) else 0)


def assert_alike(peer: Peer, new: Any, old: Any, place: xdevice.Device | None) -> None:
    """`new` is `old` but for the place of its tensors."""
    assert type(new) is type(old)
    assert_same(peer.facts(new), peer.facts(old))
    found, expected = peer.tensors(new), peer.tensors(old)
    assert list(found) == list(expected)
    for name, x in found.items():
        assert place is None or place_of(x) is place, (
            f"{name} is on {place_of(x)}, not on {place}"
        )
        assert type(x) is type(expected[name]) or place is not xdevice.cpu(), name
        assert x.dtype == expected[name].dtype, name
        assert tuple(x.shape) == tuple(expected[name].shape), name
        np.testing.assert_array_equal(host(x), host(expected[name]), err_msg=name)
        assert getattr(x, "requires_grad", None) == getattr(
            expected[name], "requires_grad", None
        ), name


def assert_same(new: Any, old: Any) -> None:
    assert new == old


def assert_new_storage(peer: Peer, new: Any, old: Any) -> None:
    there = {address(x) for x in peer.tensors(old).values() if x.shape != () or x.nbytes}
    for name, x in peer.tensors(new).items():
        assert address(x) not in there, f"{name} is in the memory that was copied"


def assert_shared(peer: Peer, first: Any, *others: Any) -> None:
    """A tensor that stands in several places stands there still, as one."""
    for other in others:
        for name, x in peer.tensors(first).items():
            assert peer.tensors(other)[name] is x, name


def fingerprint(peer: Peer, x: Any) -> Any:
    """Everything that a move elsewhere must not change about its source."""
    return {
        name: (id(tensor), place_of(tensor), str(tensor.dtype), host(tensor).tolist())
        for name, tensor in peer.tensors(x).items()
    }


class Laws:
    peers: dict[str, Peer]

    @pytest.fixture(autouse=True)
    def _backend(self, request: pytest.FixtureRequest):
        """Whether a peer's framework is selected plays no role for tensors; it does for arrays in `prefetch`."""
        peer = (
            request.node.callspec.params.get("peer")
            if hasattr(request.node, "callspec")
            else None
        )
        with xdevice.use_backend(peer.backend if peer is not None else "torch"):
            yield

    def test_to_device(self, peer, place):
        x, expected = peer.make(), peer.make()
        before = fingerprint(peer, x)
        moved = xdevice.to_device(x, place)
        assert_alike(peer, moved, expected, place)
        if peer.is_model and peer.moves_in_place:
            assert moved is x
        if moved is not x or not peer.moves_in_place:
            assert fingerprint(peer, x) == before
            assert_same(peer.facts(x), peer.facts(expected))

    def test_to_device_of_what_is_there(self, peer, place):
        moved = xdevice.to_device(peer.make(), place)
        assert xdevice.to_device(moved, place) is moved

    def test_from_one_gpu_to_another_and_back(self, peer):
        moved = peer.make()
        for place in (xdevice.gpu(1), xdevice.gpu(0), xdevice.cpu()):
            moved = xdevice.to_device(moved, place)
            assert_alike(peer, moved, peer.make(), place)

    def test_copy_to(self, peer, place):
        x, expected = peer.make(), peer.make()
        for source in (x, xdevice.to_device(peer.make(), xdevice.gpu(0))):
            before = fingerprint(peer, source)
            copied = xdevice.copy_to(source, place)
            assert copied is not source
            assert_alike(peer, copied, expected, place)
            assert_new_storage(peer, copied, source)
            assert fingerprint(peer, source) == before
            assert_same(peer.facts(source), peer.facts(expected))

    def test_device_of(self, peer, place):
        assert xdevice.device_of(peer.make()) is xdevice.cpu()
        moved = xdevice.to_device(peer.make(), place)
        assert xdevice.device_of(moved) is place
        assert xdevice.device_of([moved, {"x": moved}]) is place

    def test_comparing(self, peer, place):
        moved = xdevice.to_device(peer.make(), place)
        there, elsewhere = (
            xdevice.ones(2, device=where) for where in (place, other_than(place))
        )
        assert xdevice.same_device(moved, there)
        assert not xdevice.same_device(moved, elsewhere)
        assert not xdevice.same_device({"x": elsewhere, "peer": [moved]})
        assert xdevice.check_same_device(batch={"peer": moved, "x": there}) is place
        with pytest.raises(
            xdevice.errors.DeviceMismatchError, match=rf"batch\['peer'\].* is on {place}"
        ):
            xdevice.check_same_device(batch={"a": elsewhere, "peer": moved})

    def test_inside_containers(self, peer, place):
        x, expected = peer.make(), peer.make()
        batch = {"one": x, "list": [x, "text", 3], "tuple": (None, {"deep": x})}
        moved = xdevice.to_device(batch, place)
        assert_shared(peer, moved["one"], moved["list"][0], moved["tuple"][1]["deep"])
        assert moved["list"][1:] == ["text", 3]
        assert_alike(peer, moved["one"], expected, place)
        x = peer.make()
        copied = xdevice.copy_to({"one": x, "list": [x]}, place)
        assert_shared(peer, copied["one"], copied["list"][0])
        assert copied["one"] is not x
        assert_alike(peer, copied["one"], expected, place)
        assert_new_storage(peer, copied["one"], x)

    def test_to_numpy(self, peer, place):
        if peer.is_model:
            with pytest.raises(xdevice.errors.NotATensorError):
                xdevice.to_numpy(peer.make())
            return
        expected = peer.tensors(peer.make())
        source = xdevice.to_device(peer.make(), place)
        before = fingerprint(peer, source)
        try:
            read = xdevice.to_numpy(source)
        except (xdevice.errors.NotATensorError, xdevice.errors.ContainerError):
            if peer.reads:
                raise
            return
        arrays = (peer.numpy or peer.tensors)(read)
        assert list(arrays) == list(expected)
        for name, array in arrays.items():
            assert type(array) is np.ndarray, f"{name} is a {type(array)}"
            assert str(array.dtype) == str(expected[name].dtype).removeprefix("torch.")
            np.testing.assert_array_equal(host(array), host(expected[name]))
        assert fingerprint(peer, source) == before

    def test_prefetch(self, peer, place):
        if peer.is_model:
            model = xdevice.to_device(peer.make(), "cpu" if place.kind == "gpu" else "gpu:1")
            with pytest.raises(xdevice.errors.UnsupportedError, match="move in place"):
                list(xdevice.prefetch([model], place))
            model = xdevice.to_device(model, place)
            [passed] = xdevice.prefetch([model], place)
            assert passed is model
            return
        batches = list(xdevice.prefetch((peer.make() for _ in range(3)), place))
        assert len(batches) == 3
        for batch in batches:
            assert_alike(peer, batch, peer.make(), place)

    def test_broadcast(self, peer):
        x, places = peer.make(), [xdevice.cpu(), xdevice.gpu(1), xdevice.gpu(1)]
        copies = xdevice.parallel.broadcast(x, places)
        for copied, place in zip(copies, places, strict=True):
            assert_alike(peer, copied, peer.make(), place)
            assert_new_storage(peer, copied, x)
        assert_new_storage(peer, copies[1], copies[2])

    def test_replicate(self, peer):
        if not peer.replicates:
            return
        x, places = peer.make(), [xdevice.cpu(), xdevice.gpu(1)]
        for replica, place in zip(xdevice.parallel.replicate(x, places), places, strict=True):
            assert type(replica) is type(x)
            assert_new_storage(peer, replica, x)
            for name, tensor in peer.tensors(replica).items():
                assert place_of(tensor) is place
                np.testing.assert_array_equal(host(tensor), host(peer.tensors(x)[name]))

    def test_split_batch(self, peer):
        if not peer.splits:
            return
        places = [xdevice.gpu(0), xdevice.gpu(1)]
        whole = peer.tensors(peer.make())
        parts = xdevice.split_batch(peer.make(), places, even=False)
        for part, place in zip(parts, places, strict=True):
            assert type(part) is type(peer.make())
            assert all(place_of(x) is place for x in peer.tensors(part).values())
        for name, x in whole.items():
            rows = np.concatenate([host(peer.tensors(part)[name]) for part in parts])
            np.testing.assert_array_equal(rows, host(x))

    def test_a_device_that_does_not_exist_changes_nothing(self, peer):
        x = peer.make()
        before = fingerprint(peer, x)
        for verb in (xdevice.to_device, xdevice.copy_to):
            with pytest.raises(xdevice.errors.DeviceNotFoundError):
                verb(x, "gpu:7")
            with pytest.raises(xdevice.errors.DeviceNotFoundError):
                verb([x], "gpu:7")
        assert fingerprint(peer, x) == before
