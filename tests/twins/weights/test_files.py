"""Files of tensors: each backend reads what each other wrote, and no crash or mistake costs the file that was there."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import pickle
import stat
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.environment import BACKENDS, WITH_MODELS, framework, python, with_64_bit
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import xdevice
from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.twins.weights import disk, files, format

WRITABLE = ["torch", "paddle", "mxnet", "numpy"]


@pytest.fixture
def backend(xd):
    return xd


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.safetensors"


def values(dtype, shape=(3, 5)):
    """All bytes but those that are no bool, so that every bit is looked at."""
    rng = np.random.default_rng(0)
    held = host_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, (*shape, held.itemsize), dtype="uint8")
    return raw.view(held).reshape(shape)


def has(backend, dtype):
    return dtype in backend.dtypes | backend.short_floats


def made(backend, array):
    """A tensor of any dtype that the backend has, 8-bit floats included."""
    return backend.from_numpy(array, xdevice.cpu())


def same(a, b):
    a, b = (x if isinstance(x, np.ndarray) else xdevice.to_numpy(x) for x in (a, b))
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


# dtypes and shapes


def test_every_dtype_of_every_backend_comes_back_bit_for_bit(backend, path):
    ours = {dtype for dtype in format.DTYPES.values() if has(backend, dtype)}
    assert len(ours) >= 8
    with with_64_bit(backend.name):
        # small ones are copied, large ones take the memory over
        arrays = {
            f"{dtype}.{n}": values(dtype, (n, 5)) for dtype in sorted(ours) for n in (3, 5000)
        }
        xdevice.save(path, {name: made(backend, array) for name, array in arrays.items()})
        loaded = xdevice.load(path)
        for name, array in arrays.items():
            same(backend.to_numpy(loaded[name]), array)
            assert xdevice.device_of(loaded[name]) is xdevice.cpu()


def test_every_backend_reads_the_files_of_every_other(tmp_path):
    for dtype in format.DTYPES.values():
        # small ones are copied, large ones take the memory over
        arrays = {"small": values(dtype), "large": values(dtype, (5000, 5))}
        owners = [name for name in BACKENDS if has(xdevice.backend(name), dtype)]
        with with_64_bit("jax"):
            for writer in owners:
                adapter = xdevice.backend(writer)
                xdevice.save(
                    tmp_path / writer,
                    {name: made(adapter, array) for name, array in arrays.items()},
                )
            # all but the header, which says who wrote it
            contents = [(tmp_path / name).read_bytes() for name in owners]
            ends = {
                content[8 + int.from_bytes(content[:8], "little") :] for content in contents
            }
            assert len(ends) == 1, dtype
            for reader in owners:
                loaded = xdevice.load(tmp_path / reader, backend=reader)
                for name, array in arrays.items():
                    same(xdevice.backend(reader).to_numpy(loaded[name]), array)


def test_the_format_is_that_of_the_library(path):
    xdevice.save(path, {"a": {"b": np.arange(3.0)}})
    assert load_file(path)["a.b"].tolist() == [0, 1, 2]
    save_file({"x": np.arange(4, dtype="int16")}, path, metadata={"format": "np", "x": "x"})
    assert xdevice.load(path, backend="numpy")["x"].tolist() == [0, 1, 2, 3]


def test_odd_shapes_come_back_as_they_were(backend, path):
    with xdevice.cpu():
        whole = xdevice.tensor(np.arange(24, dtype="float32").reshape(4, 6))
        odd = {
            "0-d": xdevice.tensor(2.5),
            "empty": xdevice.zeros(0, 3),
            "sliced": whole[1:3, 2:4],
        }
    odd["transposed"] = whole.T if hasattr(whole, "T") else backend.framework.transpose(whole)
    odd["marked"] = backend.samples().marked(xdevice.ones(2))
    xdevice.save(path, odd)
    loaded = xdevice.load(path)
    for name, x in odd.items():
        same(loaded[name], x)
    assert not backend.samples().requires_grad(loaded["marked"])


def test_odd_arrays_of_numpy_are_saved_by_their_values(path):
    base = np.arange(24.0).reshape(4, 6)
    frozen = base.copy()
    frozen.setflags(write=False)
    odd = {
        "big": base.astype(">f8"), "back": base[::-1], "steps": base[:, ::2], "fortran": np.asfortranarray(base),
        "stride 0": np.broadcast_to(base[0], (3, 6)), "frozen": frozen, "record": np.zeros(2, [("a", "f4")])["a"],
    }  # fmt: skip
    xdevice.save(path, odd)
    for name, array in xdevice.load(path, backend="numpy").items():
        assert (array == odd[name]).all(), name
        assert array.flags.writeable


def test_torch_s_lazy_conjugate_and_negative_are_saved_by_their_values(path):
    torch = xdevice.backend("torch").framework
    x = torch.tensor([1 + 2j, 3 - 4j])
    xdevice.save(path, {"conj": x.conj(), "neg": x.conj().imag})
    loaded = xdevice.load(path, backend="numpy")
    assert loaded["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert loaded["neg"].tolist() == [-2, 4]


@pytest.mark.parametrize("dtype", ["complex128", "object", "datetime64[s]", "U3", "float128"])
def test_a_dtype_that_the_format_has_not_is_named(dtype, path):
    with pytest.raises(xdevice.errors.DTypeError, match=r"^w\.1 has the dtype "):
        xdevice.save(path, {"w": [np.zeros(2), np.zeros(2, dtype)]})
    assert not path.exists()


def test_a_dtype_of_a_framework_s_own_is_named(path):
    torch, jax = (xdevice.backend(name).framework for name in ("torch", "jax"))
    own = {
        "float4": torch.empty(2, dtype=torch.float4_e2m1fn_x2)
        if hasattr(torch, "float4_e2m1fn_x2")
        else None
    }
    own |= {"int4": jax.numpy.ones(2, "int4"), "key<fry>": jax.random.key(0)}
    for x in filter(lambda x: x is not None, own.values()):
        with pytest.raises(
            xdevice.errors.DTypeError,
            match=r"^w has the dtype .*, which the safetensors format does not support",
        ):
            xdevice.save(path, {"w": x})
    assert not path.exists()


def test_a_sparse_tensor_is_refused_by_name(path):
    torch = xdevice.backend("torch").framework
    with pytest.raises(xdevice.errors.UnsupportedError, match="edges is sparse"):
        xdevice.save(path, {"edges": torch.eye(3).to_sparse()})


def test_a_masked_array_is_refused_because_its_mask_would_be_lost(path):
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"w\.0 is sparse, ragged, masked"
    ):
        xdevice.save(path, {"w": [masked]})
    assert not path.exists()
    xdevice.save(path, {"w": np.array([3.0, 4.0])})
    with pytest.raises(xdevice.errors.UnsupportedError, match="w is sparse, ragged, masked"):
        xdevice.load(path, into={"w": masked})
    assert masked.data.tolist() == [1, 2]


def test_a_backend_without_the_dtype_says_which_tensor(path):
    xdevice.save(path, {"a": np.zeros(2, "float32"), "b": np.zeros(2, "int16")})
    with pytest.raises(xdevice.errors.DTypeError, match="b is int16, but mxnet supports"):
        xdevice.load(path, backend="mxnet")


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_jax_without_64_bit_never_narrows(path, dtype):
    xdevice.save(path, {"w": np.zeros(2, dtype)})
    with pytest.raises(xdevice.errors.DTypeError, match=f"w is {dtype}.*jax_enable_x64"):
        xdevice.load(path, backend="jax")


def test_a_dtype_that_numpy_has_no_name_for_is_named(path):
    header = b'{"w":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
    with pytest.raises(xdevice.errors.DTypeError, match="w has the dtype F4"):
        xdevice.load(path, backend="numpy")


# names


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Layer:
    weight: Any


def test_the_names_are_the_ways_to_the_tensors(path):
    x = [np.full(1, i) for i in range(6)]
    xdevice.save(
        path, {"layers": [Layer(x[0]), Pair(x[1], (x[2],))], 3: x[3], "net": {"a": {"b": x[4]}}}
    )
    names = {name: int(value[0]) for name, value in xdevice.load(path, backend="numpy").items()}
    assert names == {
        "layers.0.weight": 0,
        "layers.1.left": 1,
        "layers.1.right.0": 2,
        "3": 3,
        "net.a.b": 4,
    }


def test_a_lone_tensor_is_called_tensor(backend, path):
    xdevice.save(path, xdevice.ones(2))
    assert list(xdevice.load(path)) == ["tensor"]
    tf = xdevice.backend("tensorflow").framework
    xdevice.save(path, tf.Variable([1.0, 2.0]))
    other = tf.Variable([0.0, 0.0])
    assert xdevice.load(path, into=other) is other
    assert other.numpy().tolist() == [1, 2]


def test_nothing_at_all_is_a_file_too(path):
    xdevice.save(path, {})
    assert xdevice.load(path, backend="numpy") == {}


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (
            {"a": {"b": np.zeros(1)}, "a.b": np.ones(1)},
            r"\['a\.b'\] and \['a'\]\['b'\] both have the name 'a\.b'",
        ),
        ({3: np.zeros(1), "3": np.ones(1)}, r"both have the name '3'"),
        (
            {"__metadata__": np.zeros(1)},
            r"conflicts with the metadata, which has the name '__metadata__'",
        ),
        ({"\udc80": np.zeros(1)}, r"be stored under the name '\\udc80'.*UTF-8"),
    ],
)
def test_names_that_a_file_cannot_have_are_refused(container, said, path):
    with pytest.raises(xdevice.errors.ContainerError, match=said):
        xdevice.save(path, container)
    assert not path.exists()


@pytest.mark.parametrize("kind", [list, dict])
def test_a_module_in_a_container_that_contains_itself_is_refused(kind, path):
    equinox = pytest.importorskip("equinox")
    layer = equinox.nn.Linear(1, 1, key=framework("jax").random.key(0))
    cycle = [layer] if kind is list else {"layer": layer}
    cycle.append(cycle) if kind is list else cycle.update(again=cycle)
    for verb in (xdevice.save, lambda path, x: xdevice.load(path, into=x)):
        with pytest.raises(
            xdevice.errors.ContainerError,
            match="pass the tensors in a container without cycles",
        ):
            verb(path, cycle)
    assert not path.exists()


@pytest.mark.parametrize("leaf", [3, "text", None, 2.5, np.float32(1), object()])
def test_a_leaf_that_is_no_tensor_is_named(leaf, path):
    with pytest.raises(
        xdevice.errors.NotATensorError,
        match=r"\['config'\]\[1\] is .*cannot be saved in a file of tensors",
    ):
        xdevice.save(path, {"w": np.zeros(1), "config": [np.zeros(1), leaf]})
    with pytest.raises(xdevice.errors.NotATensorError):
        xdevice.save(path, leaf)
    assert not path.exists()


# where it goes


def test_what_goes_to_another_device_is_read_into_the_same_memory(backend, path, monkeypatch):
    other = backend.samples().other_device()
    if other is None or other.kind == "meta":
        pytest.skip(f"{backend.name} has one device with values here")
    sizes = [600_000, 5_000, 0, 1, 700_000, 600_000]
    xdevice.save(path, {str(i): np.full(size, i, "float32") for i, size in enumerate(sizes)})
    rooms, reading = [], format.Entry.read

    def seen(entry, room=None):
        rooms.append(room)
        return reading(entry, room)

    monkeypatch.setattr(format.Entry, "read", seen)
    every = [xdevice.load(path, other)]
    if backend.name in WRITABLE:
        every.append(xdevice.load(path, into=xdevice.load(path, other)))
    for loaded in every:
        assert xdevice.device_of(loaded) is other
        assert {name: set(xdevice.to_numpy(x)) for name, x in loaded.items()} == {
            str(i): {i} if size else set() for i, size in enumerate(sizes)
        }
    large = [room for room in rooms if room is not None]
    assert len(large) == 4 * len(rooms) / 6  # small ones have memory of their own
    assert len({id(room) for room in large}) == len(rooms) / 6
    assert large[0].nbytes == 2_800_000
    rooms.clear()
    xdevice.load(path)
    assert rooms == [None] * 6  # on the CPU it becomes the tensors' own


def test_it_goes_to_the_device_asked_for(backend, path):
    other = backend.samples().other_device()
    if other is None:
        pytest.skip(f"{backend.name} has one device here")
    xdevice.save(path, {"small": xdevice.ones(2), "large": xdevice.ones(100, 100)})
    for x in xdevice.load(path, device=other).values():
        assert xdevice.device_of(x) is other
    with other:
        assert xdevice.device_of(xdevice.load(path)["large"]) is other
        assert xdevice.device_of(xdevice.load(path, device="cpu")["large"]) is xdevice.cpu()
    if other.kind != "meta":
        xdevice.save(path, xdevice.load(path, device=other))
        assert xdevice.to_numpy(xdevice.load(path)["large"]).sum() == 10_000


def test_a_device_that_is_not_there_is_refused(backend, path):
    xdevice.save(path, xdevice.ones(2))
    with pytest.raises(xdevice.errors.DeviceNotFoundError, match="gpu:99"):
        xdevice.load(path, device="gpu:99")
    with pytest.raises(xdevice.errors.BackendNotFoundError):
        xdevice.load(path, backend="thano")


def test_large_tensors_take_over_the_memory_that_was_read_into(backend, path, monkeypatch):
    if backend.takes() is None:
        pytest.skip(f"{backend.name} {backend.version} takes no memory over")
    xdevice.save(
        path, {"x": xdevice.ones(100, 100), "bits": xdevice.zeros(200, 200, dtype="bool")}
    )
    monkeypatch.setattr(files, "require_dtype", lambda *_, **__: None)
    monkeypatch.setattr(type(backend), "from_numpy", lambda *_: pytest.fail("copied"))
    loaded = xdevice.load(path)
    assert backend.to_numpy(loaded["x"]).sum() == 10_000
    assert not backend.to_numpy(loaded["bits"]).any()
    address = backend.samples().address(loaded["x"])
    assert address is None or address % 64 == 0


def test_the_file_is_read_and_not_mapped(backend, path):
    xdevice.save(path, {"x": xdevice.ones(1000, 1000)})
    loaded = xdevice.load(path)
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(bytes(2_000_000))
    path.unlink()
    assert xdevice.to_numpy(loaded["x"]).min() == 1


def test_loaded_tensors_can_be_computed_with(backend, path):
    xdevice.save(path, {"x": xdevice.ones(100, 100)})
    x = xdevice.load(path)["x"]
    assert (
        xdevice.item(
            (x + x).sum() if hasattr(x, "sum") else backend.framework.reduce_sum(x + x)
        )
        == 20_000
    )


# models, and writing into what is there


MODELS = {
    "torch": ["linear", "buffers"],
    "tensorflow": [
        "tf.Variable", "tf.Module", "tf.random.Generator", "keras.Variable", "keras.Layer", "sequential", "functional",
        "subclassed", "compiled",
    ],
    "paddle": ["linear", "buffers", "recurrent"],
    "mxnet": ["layer", "running statistics", "hybridized", "deferred", "legacy arrays", "constant", "Parameter"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in MODELS.items() for kind in kinds]
)
def test_a_model_s_file_goes_into_another_of_its_kind(name, kind, path):
    backend = xdevice.backend(name)
    with xdevice.use_backend(name):
        first, second = backend.samples().models()[kind](), backend.samples().models()[kind]()
        xdevice.save(path, first)
        for _, value in backend.variables(second):
            backend.write(
                value, backend.from_numpy(np.zeros_like(backend.to_numpy(value)), xdevice.cpu())
            )
        objects = [id(value) for _, value in backend.variables(second)]
        assert xdevice.load(path, into=second) is second
        assert [id(value) for _, value in backend.variables(second)] == objects
        for (key, a), (_, b) in zip(
            backend.variables(first), backend.variables(second), strict=True
        ):
            assert backend.to_numpy(a).tobytes() == backend.to_numpy(b).tobytes(), key


@pytest.mark.parametrize("name", WITH_MODELS)
def test_tied_weights_are_written_once_and_stay_tied(name, path):
    backend = xdevice.backend(name)
    with xdevice.use_backend(name):
        model, is_shared = backend.samples().tied()
        xdevice.save(path, model)
        names = [key for key, _ in backend.variables(model)]
        loaded = xdevice.load(path)
        assert sorted(loaded) == sorted(names)
        assert len({id(x) for x in loaded.values()}) == len(load_file(path)) < len(names)
        again, _ = backend.samples().tied()
        xdevice.load(path, into=again)
        assert is_shared(again)
        values = [
            {key: backend.to_numpy(x).tobytes() for key, x in backend.variables(m)}
            for m in (model, again)
        ]
        assert values[0] == values[1]


def test_only_what_save_has_written_of_shared_tensors_is_read_as_names(path):
    save_file(
        {"pt": np.ones(2), "a": np.zeros(3)},
        path,
        metadata={"format": "pt", "base": "a", "xdevice": "a"},
    )
    assert sorted(xdevice.load(path, backend="numpy")) == ["a", "pt"]
    target = {"pt": np.zeros(2), "a": np.ones(3)}
    xdevice.load(path, into=target)
    assert target["pt"].tolist() == [1, 1]
    torch = xdevice.backend("torch").framework
    from safetensors.torch import save_file as save_torch_file

    save_torch_file(
        {"pt": torch.ones(2), "format": torch.zeros(1)}, path, metadata={"format": "pt"}
    )
    assert sorted(xdevice.load(path, backend="torch")) == ["format", "pt"]
    w = np.ones(2)
    xdevice.save(path, {"a": w, "b": w, "pt": w})
    loaded = xdevice.load(path, backend="numpy")
    assert loaded["a"] is loaded["b"] is loaded["pt"]


def test_the_tied_weights_of_0_1_0_go_where_they_are_tied(path):
    save_file({"0.weight": np.ones((3, 3), "f4")}, path, metadata={"1.weight": "0.weight"})
    w = np.zeros((3, 3), "f4")
    xdevice.load(path, into=[{"weight": w}, {"weight": w}])
    assert w.min() == 1
    with pytest.raises(xdevice.errors.StateError, match=r"lacks '1\.weight'"):
        xdevice.load(path, into=[{"weight": w}, {"weight": w.copy()}])


def test_a_file_with_both_of_two_tied_weights_must_agree(path):
    torch = xdevice.backend("torch").framework
    w = torch.zeros(2)
    pair = {"a": w, "b": w}
    xdevice.save(path, {"a": torch.ones(2), "b": torch.ones(2)})
    xdevice.load(path, into=pair)
    assert w.tolist() == [1, 1]
    xdevice.save(path, {"a": torch.ones(2), "b": torch.zeros(2)})
    with pytest.raises(
        xdevice.errors.StateError, match="a and b are the same variable in into="
    ):
        xdevice.load(path, into=pair)
    assert w.tolist() == [1, 1]
    # equal as numbers, whatever the sign of zero, and NaN where the other has NaN
    xdevice.save(
        path, {"a": torch.tensor([0.0, torch.nan]), "b": torch.tensor([-0.0, torch.nan])}
    )
    xdevice.load(path, into=pair)
    assert w[0] == 0
    assert w[1].isnan()


def test_the_tied_weights_of_safetensors_own_front_end_are_understood(path):
    torch = xdevice.backend("torch").framework
    from safetensors.torch import load_model, save_model

    model, _ = xdevice.backend("torch").samples().tied()
    save_model(model, path)
    other, is_shared = xdevice.backend("torch").samples().tied()
    xdevice.load(path, into=other)
    assert is_shared(other)
    assert torch.equal(model[0].weight, other[0].weight)
    xdevice.save(path, model)
    fresh, _ = xdevice.backend("torch").samples().tied()
    load_model(fresh, path)
    assert torch.equal(model[1].weight, fresh[1].weight)


def test_a_keras_model_is_saved_without_what_begins_anew(path):
    backend = xdevice.backend("tensorflow")
    xdevice.save(path, backend.samples().models()["compiled"]())
    names = list(load_file(path))
    assert sorted(names) == ["dense/bias", "dense/kernel", "dense_1/bias", "dense_1/kernel"]
    plain = backend.samples().models()["functional"]()
    assert xdevice.load(path, into=plain) is plain


@pytest.mark.parametrize("name", ["torch", "paddle", "mxnet"])
def test_the_state_of_an_optimizer_comes_back(name, path):
    with xdevice.use_backend(name):
        backend = xdevice.backend()
        optimizer, train = {"torch": _torch_adam, "paddle": _paddle_adam, "mxnet": _mxnet_adam}[
            name
        ](backend.framework)
        train()
        before = {key: backend.to_numpy(x).copy() for key, x in backend.variables(optimizer)}
        assert len(before) >= 2
        xdevice.save(path, optimizer)
        train()
        assert any(
            (backend.to_numpy(x) != before[key]).any()
            for key, x in backend.variables(optimizer)
        )
        xdevice.load(path, into=optimizer)
        assert all(
            (backend.to_numpy(x) == before[key]).all()
            for key, x in backend.variables(optimizer)
        )


def _torch_adam(torch):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(net.parameters())

    def train():
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return optimizer, train


def _paddle_adam(paddle):
    net = paddle.nn.Linear(4, 1)
    optimizer = paddle.optimizer.Adam(parameters=net.parameters())

    def train():
        net(paddle.ones([2, 4])).sum().backward()
        optimizer.step()

    return optimizer, train


def _mxnet_adam(mx):
    net = mx.gluon.nn.Dense(1, in_units=4)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")

    def train():
        with mx.autograd.record():
            loss = net(mx.np.ones((2, 4))).sum()
        loss.backward()
        trainer.step(1)

    return trainer, train


@pytest.mark.parametrize("name", WRITABLE)
def test_containers_are_written_into(name, path):
    with xdevice.use_backend(name):
        xdevice.save(
            path, {"w": [xdevice.ones(3), xdevice.ones(200, 50)], "n": xdevice.tensor([1, 2])}
        )
        target = {"w": [xdevice.zeros(3), xdevice.zeros(200, 50)], "n": xdevice.tensor([0, 0])}
        inner = target["w"][1]
        assert xdevice.load(path, into=target) is target
        assert target["w"][1] is inner
        assert xdevice.to_numpy(inner).min() == 1
        assert xdevice.to_numpy(target["n"]).tolist() == [1, 2]


def scaled(**more):
    """Two layers of PyTorch that keep a scale beside their parameters, as FP8 layers do."""
    torch = xdevice.backend("torch").framework

    class Scaled(torch.nn.Linear):
        scale = 1.0

        def get_extra_state(self):
            return torch.tensor([self.scale])

    return torch.nn.Sequential(*(type("Scaled", (Scaled,), more)(1, 1) for _ in range(2)))


def test_a_file_of_another_framework_is_not_loaded_into_a_model(path, tmp_path):
    # a square weight would be transposed without an error
    torch, paddle = framework("torch"), framework("paddle")
    ours, theirs = torch.nn.Linear(3, 3), paddle.nn.Linear(3, 3)
    before = theirs.weight.numpy()
    xdevice.save(path, ours)
    torch.save(ours.state_dict(), tmp_path / "net.pt")
    for file in (path, tmp_path / "net.pt"):
        with pytest.raises(
            xdevice.errors.StateError,
            match=r"was written by torch, but into= has a model of paddle, and frameworks arrange weights differently",
        ):
            xdevice.load(file, into=theirs)
    np.testing.assert_array_equal(theirs.weight.numpy(), before)
    xdevice.load(xdevice.models.convert_state(path, "paddle", like=theirs), into=theirs)
    np.testing.assert_array_equal(theirs.weight.numpy(), ours.weight.detach().numpy().T)
    # a file that both wrote
    both = {"ours": ours, "theirs": theirs}
    xdevice.save(path, both)
    assert xdevice.load(path, into=both) is both


def test_a_file_is_loaded_into_tensors_of_any_framework_and_arrays_into_any_model(path):
    torch, tf = framework("torch"), framework("tensorflow")
    xdevice.save(path, {"w": torch.arange(3.0)})
    variable = tf.Variable([0.0, 0.0, 0.0])
    xdevice.load(path, into={"w": variable})
    assert variable.numpy().tolist() == [0, 1, 2]
    xdevice.save(path, {"weight": np.eye(2, dtype="float32"), "bias": np.ones(2, "float32")})
    net = torch.nn.Linear(2, 2)
    xdevice.load(path, into=net)
    assert net.weight.tolist() == [[1, 0], [0, 1]]


def test_extra_state_of_pytorch_s_modules_is_given_back(path):
    def set_extra_state(self, state):
        self.scale = state.item()

    source = scaled(set_extra_state=set_extra_state)
    source[0].scale, source[1].scale = 7.0, 8.0
    xdevice.save(path, {"net": source, "layer": source[1]})
    net, layer = (
        scaled(set_extra_state=set_extra_state),
        scaled(set_extra_state=set_extra_state)[0],
    )
    xdevice.load(path, into={"net": net, "layer": layer})
    assert [net[0].scale, net[1].scale, layer.scale] == [7, 8, 8]
    other = scaled(set_extra_state=set_extra_state)
    xdevice.load(source.state_dict(), into=other)
    assert [other[0].scale, other[1].scale] == [7, 8]


def test_extra_state_that_nothing_would_load_is_refused_before_anything_is_written(path):
    state = scaled().state_dict()
    xdevice.save(path, state)
    net = scaled()
    before = net[0].weight.item()
    for verb in (lambda: xdevice.load(path, into=net), lambda: xdevice.load(state, into=net)):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"0\._extra_state of this model.* no set_extra_state",
        ):
            verb()
    assert net[0].weight.item() == before


def test_a_dtype_that_the_backend_cannot_write_is_refused_before_anything_is_written(
    path, monkeypatch
):
    paddle = xdevice.backend("paddle")
    if not hasattr(paddle.framework, "float8_e5m2"):
        pytest.skip("this Paddle has no 8-bit floats")
    xdevice.save(path, {"a": np.ones(2, "float32"), "b": values("float8_e5m2")})
    target = {
        "a": np.zeros(2, "float32"),
        "b": paddle.framework.ones([3, 5]).astype("float8_e5m2"),
    }
    monkeypatch.setattr(paddle, "short_floats", frozenset())  # as on virtual GPUs
    with pytest.raises(
        xdevice.errors.DTypeError, match="b is float8_e5m2, but paddle supports"
    ):
        xdevice.load(path, into=target)
    assert target["a"].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_tensors_that_never_change_are_refused_before_anything_is_written(name, path):
    xdevice.save(path, {"a": np.ones(2, "float32"), "b": np.ones(2, "float32")})
    with xdevice.use_backend(name):
        target = {"a": np.zeros(2, "float32"), "b": xdevice.zeros(2)}
        with pytest.raises(
            xdevice.errors.UnsupportedError, match=f"b cannot be written into.*{name}"
        ):
            xdevice.load(path, into=target)
    assert target["a"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"a": np.zeros(2)}, "lacks nothing, and into= lacks 'b'"),
        (
            {"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(1)},
            "lacks 'c', and into= lacks nothing",
        ),
        (
            {"a": np.zeros(2), "b": np.zeros((3, 1))},
            r"b does not fit: it is float64 of shape \(3,\).*\(3, 1\)",
        ),
        (
            {"a": np.zeros(2), "b": np.zeros(3, "float32")},
            "b does not fit: it is float64 .* float32",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(target, said, path):
    xdevice.save(path, {"a": np.ones(2), "b": np.ones(3)})
    with pytest.raises(xdevice.errors.StateError, match=said):
        xdevice.load(path, into=target)
    assert not any(x.any() for x in target.values())


@pytest.mark.parametrize("is_a_file", [False, True])
def test_a_model_on_meta_has_nothing_to_load_into(is_a_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch = xdevice.backend("torch").framework
    source = torch.nn.Linear(2, 1)
    xdevice.save("file", source)
    model = torch.nn.Linear(2, 1, device="meta")
    with pytest.raises(
        xdevice.errors.StateError,
        match=r"weight.* is on the meta device and has no memory.*to_empty\(device=",
    ):
        xdevice.load("file" if is_a_file else source.state_dict(), into=model)
    model.to_empty(device="cpu")
    xdevice.load("file" if is_a_file else source.state_dict(), into=model)
    assert torch.equal(model.weight, source.weight)


def test_into_says_itself_where(path):
    xdevice.save(path, {"a": np.ones(2)})
    for more in ({"device": "cpu"}, {"backend": "numpy"}):
        with pytest.raises(xdevice.errors.StateError, match="leave out"):
            xdevice.load(path, into={"a": np.zeros(2)}, **more)


@pytest.mark.parametrize("name", WITH_MODELS)
def test_a_model_without_variables_yet_is_refused(name, path):
    samples = xdevice.backend(name).samples()
    model = samples.unbuilt() or samples.models()["lazy"]()
    with pytest.raises(xdevice.errors.NotBuiltError):
        xdevice.save(path, {"net": model})
    assert not path.exists()


# files that are none


def damaged(path):
    good = path.read_bytes()
    yield from ((f"cut at {n}", good[:n]) for n in (0, 1, 7, 8, 20, len(good) - 1))
    yield "more behind", good + b"x"
    yield "pickle", pickle.dumps({"w": [1, 2]})
    yield "text", b"not a file of tensors" * 10
    yield "zip", b"PK\x03\x04" + bytes(100)
    yield "header of 1 TB", (1 << 40).to_bytes(8, "little") + good[8:]
    yield "offsets that lie", good.replace(b"[0,24]", b"[0,99]")
    yield "shape that lies", good.replace(b"[3]", b"[9]")


def test_damaged_and_foreign_files_are_named_errors(path):
    xdevice.save(path, {"w": np.arange(3.0)})
    before = np.zeros(3)
    cases = list(damaged(path))
    assert len({content for _, content in cases}) == len(cases) == 13
    for what, content in cases:
        path.write_bytes(content)
        for more in ({"backend": "numpy"}, {"into": {"w": before}}):
            said = (
                "is a pickle" if what == "pickle" else "not a safetensors file, or is damaged"
            )
            with pytest.raises(xdevice.errors.FileFormatError, match=said) as raised:
                xdevice.load(path, **more)
            assert isinstance(raised.value.__cause__, SafetensorError | OSError | ValueError), (
                what
            )
    assert not before.any()


def write_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def one(dtype="F32", shape=(1,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


HOSTILE = {
    "more axes than arrays have": {"w": one(shape=[1] * 70)},
    "as many, all of them none": {"w": one(shape=[0] * 70, offsets=(0, 0))},
    "no elements of 2**62": {"w": one(shape=[0, 2**62], offsets=(0, 0))},
    "no elements of 2**63": {"w": one(shape=[2**63, 0], offsets=(0, 0))},
    "a size that no number holds": {"w": one(shape=[2**64])},
    "sizes whose product comes round to 1": {"w": one(shape=[2**32, 2**32, 1])},
    "much more than the file has": {"w": one(shape=[2**40], offsets=(0, 2**42))},
    "a negative size": {"w": one(shape=[-1])},
    "two negative sizes": {"w": one(shape=[-1, -1])},
    "a size of 1.5": {"w": one(shape=[1.5])},
    "a size that is a text": {"w": one(shape=["1"])},
    "a size that is true": {"w": one(shape=[True])},
    "no list of sizes": {"w": {**one(), "shape": 1}},
    "offsets from behind": {"w": one(offsets=(4, 0))},
    "negative offsets": {"w": one(offsets=(-4, 0))},
    "offsets behind the end": {"w": one(offsets=(4, 8))},
    "offsets that overlap": {"v": one(), "w": one()},
    "a hole between offsets": {
        "v": one(offsets=(0, 1), dtype="U8"),
        "w": one(offsets=(2, 3), dtype="U8"),
    },
    "one offset": {"w": one(offsets=(0,))},
    "no dtype": {"w": {"shape": [1], "data_offsets": [0, 4]}},
    "a dtype of nobody's": {"w": one(dtype="F33")},
    "a dtype that is a number": {"w": one(dtype=32)},
    "a tensor that is a list": {"w": []},
    "a tensor that is nothing": {"w": None},
    "metadata that is a list": {"__metadata__": ["a"], "w": one()},
    "metadata of numbers": {"__metadata__": {"a": 1}, "w": one()},
    "metadata within metadata": {"__metadata__": {"a": {"b": "c"}}, "w": one()},
    "shared names that are no JSON": {"__metadata__": {format.SHARED: "{"}, "w": one()},
    "shared names in a list": {"__metadata__": {format.SHARED: "[]"}, "w": one()},
    "shared names of nothing": {"__metadata__": {format.SHARED: '{"a": "b"}'}, "w": one()},
    "shared names of numbers": {"__metadata__": {format.SHARED: '{"a": 1}'}, "w": one()},
    "shared names of lists": {"__metadata__": {format.SHARED: '{"a": ["w"]}'}, "w": one()},
    "a shared name that is taken": {"__metadata__": {format.SHARED: '{"w": "w"}'}, "w": one()},
    "shared names as deep as can be": {
        "__metadata__": {format.SHARED: "[" * 100_000},
        "w": one(),
    },
    "a list": [one()],
    "a number": 1,
    "a name twice": b'{"w": %b, "w": %b}' % ((json.dumps(one()).encode(),) * 2),
    "a name twice, once with an escape": b'{"w": %b, "\\u0077": %b}'
    % ((json.dumps(one()).encode(),) * 2),
    "a remark twice": b'{"__metadata__": {"a": "b", "a": "c"}, "w": %b}'
    % json.dumps(one()).encode(),
    "remarks twice": b'{"__metadata__": {"a": "b"}, "__metadata__": {}, "w": %b}'
    % json.dumps(one()).encode(),
    "as deep as can be": b"[" * 100_000,
    "deep within": b'{"w": ' + b'{"a":' * 100_000,
    "no UTF-8": b'{"\xff": %b}' % json.dumps(one()).encode(),
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_a_named_error_on_every_backend(header, path, monkeypatch):
    write_header(path, header, b"\0\0\x80?")
    monkeypatch.setattr(format.Entry, "read", lambda *_: pytest.fail("allocated"))
    wholes = [
        {"into": {"w": np.zeros(1, "float32")}},
        *({"backend": name} for name in BACKENDS),
    ]
    for more in wholes:
        with pytest.raises(
            xdevice.errors.FileFormatError, match="not a safetensors file, or is damaged"
        ):
            xdevice.load(path, **more)


LIMITS = {
    "paddle": [1] * 10,
    "mxnet": [0, 2**31],
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_shape_that_a_backend_does_not_take_is_named(name, path):
    end = 4 + 4 * math.prod(LIMITS[name])
    write_header(path, {"a": one(), "w": one(shape=LIMITS[name], offsets=(4, end))}, bytes(end))
    with pytest.raises(xdevice.errors.ShapeError, match=f"w has the shape .*{name} supports"):
        xdevice.load(path, backend=name)
    assert xdevice.load(path, backend="numpy")["w"].shape == tuple(LIMITS[name])


GOOD = {
    "__metadata__": {"format": "pt", format.SHARED: '{"c": "a"}'},
    "a": one(shape=[2], offsets=(0, 8)),
    "b": one(dtype="I64", shape=[0, 3], offsets=(8, 8)),
    "d": one(dtype="BF16", shape=[], offsets=(8, 10)),
}
numbers = st.sampled_from(
    [0, 1, 2, 3, 4, 8, 10, 33, 70, -1, 2**31, 2**62, 2**63, 2**64, 2**70, 1.5, True]
)
junk = st.recursive(
    numbers
    | st.none()
    | st.sampled_from(["", "a", "pt", "F32", "{}", "\0", "[1]", "__metadata__", format.SHARED]),
    lambda inner: (
        st.lists(inner, max_size=70)
        | st.dictionaries(st.sampled_from(["a", "shape", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def mutated(draw):
    """A good header with a few things in it put in the place of others, and a few bytes changed."""
    header = json.loads(json.dumps(GOOD))
    for _ in range(draw(st.integers(1, 3))):
        spot = header
        while isinstance(spot, dict | list) and len(spot):
            key = draw(
                st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot)))
            )
            if not isinstance(spot[key], dict | list) or draw(st.booleans()):
                spot[key] = draw(junk)
                break
            spot = spot[key]
    text = bytearray(json.dumps(header).encode())
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        text[draw(st.integers(0, len(text) - 1))] = draw(st.integers(0, 255))
    return bytes(text)


@settings(max_examples=200)
@given(header=mutated(), data=st.sampled_from([10, 10, 10, 9, 18, 0]))
def test_a_mutated_header_is_read_or_a_named_error(header, data, path):
    write_header(path, header, bytes(data))
    # DTypeError: a dtype of the format that NumPy does not have, such as F4
    with contextlib.suppress(xdevice.errors.FileFormatError, xdevice.errors.DTypeError):
        loaded = xdevice.load(path, backend="numpy")
        assert sum(x.nbytes for x in {id(x): x for x in loaded.values()}.values()) == data


def test_paths_that_lead_nowhere_are_named_errors(tmp_path):
    missing, folder = tmp_path / "missing", tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="no file") as raised:
        xdevice.load(missing)
    assert isinstance(raised.value, xdevice.errors.MissingFileError)
    with pytest.raises(xdevice.errors.MissingFileError, match=r"no folder.*makedirs"):
        xdevice.save(missing / "file", np.zeros(1))
    for path in (folder, "/dev/null"):
        for attempt in (
            lambda path=path: xdevice.load(path),
            lambda path=path: xdevice.save(path, np.zeros(1)),
        ):
            with pytest.raises(
                xdevice.errors.FilePathError, match=r"a folder|not a regular file"
            ):
                attempt()
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(folder) == []


def test_what_the_system_refuses_is_a_named_error_of_the_path_that_was_given(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "safetensors.serialize_file",
        lambda *_, **__: pytest.fail("written before it is refused"),
    )
    for name, why in (
        ("a" * 300, "File name too long"),
        ("a\0b", "null byte"),
        ("\ud800", "can't encode"),
    ):
        path = str(tmp_path / name)
        for attempt in (
            lambda path=path: xdevice.load(path),
            lambda path=path: xdevice.save(path, np.zeros(1)),
        ):
            with pytest.raises(xdevice.errors.FilePathError, match=why) as raised:
                attempt()
            assert repr(path) in str(raised.value)
            assert raised.value.__cause__ is not None
    if os.path.isdir("/proc"):
        with pytest.raises(
            xdevice.errors.FilePathError, match="'/proc/x' cannot be written"
        ) as raised:
            xdevice.save("/proc/x", np.zeros(1))
        assert disk._PREFIX not in str(raised.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("end", ["/", "/."])
def test_a_path_that_names_a_folder_makes_no_file(end, path):
    with pytest.raises(xdevice.errors.FilePathError, match="names a folder"):
        xdevice.save(f"{path}{end}", np.zeros(1))
    xdevice.save(path, np.ones(1))
    with pytest.raises(xdevice.errors.FilePathError, match="names a folder"):
        xdevice.save(f"{path}{end}", np.zeros(1))
    assert xdevice.load(path, backend="numpy")["tensor"].tolist() == [1]


def test_a_disk_that_fails_while_it_is_read_is_a_named_error(path):
    xdevice.save(path, np.ones(1))
    broken = "/proc/self/mem"  # reading where nothing is mapped is an input/output error
    if not os.path.exists(broken):
        pytest.skip(f"no {broken}")
    with format.open_file(str(path)) as header:
        entry = header.entries["tensor"]
    with (
        open(broken, "rb", buffering=0) as file,
        pytest.raises(
            xdevice.errors.FilePathError, match=f"'{broken}' cannot be read: Input/output error"
        ),
    ):
        entry._replace(file=file).read()


# crashes and neighbours


def test_a_path_may_be_bytes_and_a_descriptor_is_none(path):
    xdevice.save(os.fsencode(path), np.ones(2))
    assert xdevice.load(os.fsencode(path), backend="numpy")["tensor"].tolist() == [1, 1]
    with open(path, "rb") as file:
        for use in (lambda x: xdevice.save(x, np.ones(2)), xdevice.load):
            with pytest.raises(TypeError, match="of type int"):
                use(file.fileno())
        assert file.read(1), "the descriptor must not have been closed"


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "file")
    for value in (1.0, 2.0):
        xdevice.save(link, np.full(2, value))
        assert link.is_symlink()
        assert xdevice.load(tmp_path / "real" / "file", backend="numpy")["tensor"][0] == value
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask_and_an_old_file_keeps_its_own(umask, path):
    before = os.umask(umask)
    try:
        xdevice.save(path, np.zeros(1))
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
        path.chmod(0o640)
        xdevice.save(path, np.zeros(1))
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_leftovers_of_the_dead_go_and_a_save_under_way_stays(tmp_path):
    dead = tmp_path / ".xdevice-abc.saving"
    dead.mkdir()
    (dead / "new").write_bytes(b"half")
    with disk._own_folder(str(tmp_path)) as alive:
        xdevice.save(tmp_path / "file", np.zeros(1))
        assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(alive), "file"])
    assert os.listdir(tmp_path) == ["file"]


def test_leftovers_go_where_an_open_file_stays_under_another_name(tmp_path, monkeypatch):
    """As on NFS, and on what is mounted by FUSE."""
    dead = tmp_path / ".xdevice-abc.saving"
    dead.mkdir()
    unlink = os.unlink

    def keep(path, *, dir_fd=None):
        if os.path.basename(path) != disk._LOCK:
            return unlink(path, dir_fd=dir_fd)
        hidden = os.path.join(os.path.dirname(path), ".nfs0000")
        return os.rename(path, hidden, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", keep)
    disk._remove_leftovers(str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("function", ["tempfile.mkdtemp", "os.fsync", "os.replace"])
def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(
    function, path, monkeypatch
):
    xdevice.save(path, np.ones(2))
    full = OSError(errno.ENOSPC, "No space left on device", "a name of xdevice's own")
    monkeypatch.setattr(function, lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(xdevice.errors.FilePathError) as raised:
        xdevice.save(path, np.zeros(2))
    monkeypatch.undo()
    assert (
        str(raised.value)
        == f"{str(path)!r} cannot be written, and any existing file is unchanged: No space left on device"
    )
    assert xdevice.load(path, backend="numpy")["tensor"].tolist() == [1, 1]
    assert os.listdir(path.parent) == [path.name]


FULL = """
import resource, signal, sys, numpy as np, xdevice
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    xdevice.save(sys.argv[1], np.zeros(100_000))
except xdevice.errors.FilePathError as error:
    print(error)
"""


def test_a_full_disk_is_a_named_error_and_leaves_the_old_file(path):
    xdevice.save(path, np.ones(2))
    done = child(FULL, path)
    assert "any existing file is unchanged" in done.stdout, done.stderr
    assert xdevice.load(path, backend="numpy")["tensor"].tolist() == [1, 1]
    assert os.listdir(path.parent) == [path.name]


KILLS = """
import os, random, signal, sys, time
import numpy as np, xdevice
path, folder = sys.argv[1], os.path.dirname(sys.argv[1])
xdevice.save(path, np.zeros(1 << 19))
random.seed(0)
left = values = kill = 0
while kill < 50 or left < 10 or values < 10:  # on a busy machine more kills come before a save begins
    kill += 1
    child = os.fork()
    if not child:
        while True:
            kill += 100
            xdevice.save(path, np.full(1 << 19, float(kill)))
    time.sleep(random.uniform(0.001, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    x = xdevice.load(path)["tensor"]
    assert x.shape == (1 << 19,) and (x == x[0]).all(), "the file is torn"
    values += x[0] > 0
    left += len(os.listdir(folder)) > 1
    if kill % 2:
        xdevice.save(path, x)
        assert os.listdir(folder) == [os.path.basename(path)], "leftovers survive the next save"
"""


@pytest.mark.slow
def test_killed_fifty_times_while_writing_the_file_is_whole_each_time(path):
    done = child(KILLS, path)
    assert done.returncode == 0, done.stderr


TWO_AT_ONCE = """
import sys, numpy as np, xdevice
for i in range(30):
    xdevice.save(sys.argv[1], np.full(1 << 17, float(i)))
"""


@pytest.mark.slow
def test_saves_and_loads_of_several_processes_at_once_do_not_disturb_each_other(path):
    xdevice.save(path, np.zeros(1 << 17))
    command = [sys.executable, "-c", TWO_AT_ONCE, str(path)]
    others = [
        subprocess.Popen(command, env=numpy_environment(), stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    while any(other.poll() is None for other in others):
        x = xdevice.load(path, backend="numpy")["tensor"]
        assert (x == x[0]).all()
    for other in others:
        assert other.communicate()[1] == b""
        assert other.returncode == 0
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_the_new_one(path, monkeypatch):
    xdevice.save(path, {"a": np.zeros(100), "b": np.zeros(3)})
    read = format._header

    def late(*arguments):
        monkeypatch.setattr(format, "_header", read)
        xdevice.save(path, {"b": np.ones(3)})
        return read(*arguments)

    monkeypatch.setattr(format, "_header", late)
    loaded = xdevice.load(path, backend="numpy")
    assert {name: x.tolist() for name, x in loaded.items()} == {"b": [1, 1, 1]}


def numpy_environment():
    return {**os.environ, "XDEVICE_BACKEND": "numpy"}


def child(code, path):
    return python("-c", code, path, XDEVICE_BACKEND="numpy")


# anything


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
arrays = st.builds(values, st.sampled_from(sorted(set(format.DTYPES.values()))), shapes)
keys = st.text("ab0é \n", min_size=1, max_size=3)
trees = st.recursive(
    arrays, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


@settings(max_examples=60)
@given(tree=trees, name=st.sampled_from(["numpy", "torch"]))
def test_any_container_comes_back(tree, name, path):
    xdevice.save(path, tree)
    backend = xdevice.backend(name)
    loaded = xdevice.load(path, backend=name)
    leaves = {key: one.value for key, one in files._variables(tree, "save").items()}
    assert set(leaves) == set(loaded)
    for key, array in leaves.items():
        assert dtype_name(loaded[key].dtype) == array.dtype.name
        same(backend.to_numpy(loaded[key]), array)


@pytest.mark.parametrize("kind", ["BCOO", "CSR", "COO"])
@pytest.mark.parametrize("inside", [lambda x: x, lambda x: {"a": x}, lambda x: [1 * [x]]])
def test_a_sparse_array_of_several_parts_is_refused_before_anything_is_written(
    path, kind, inside
):
    """The file would have its values and indices, and not its shape."""
    jax = framework("jax")
    sparse = pytest.importorskip("jax.experimental.sparse")
    x = inside(getattr(sparse, kind).fromdense(jax.numpy.eye(3) * 2.5))
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=rf"is of type {kind}, whose tensors are meaningful only together",
    ):
        xdevice.save(path, x)
    assert not path.exists()


def test_packed_sequences_are_refused_as_sparse_arrays_are(path):
    torch = framework("torch")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"x\['x'\] is .*PackedSequence.*pad_packed_sequence",
    ):
        xdevice.save(path, {"x": packed})


class Tied:
    """Models of PyTorch whose two layers have one weight."""

    @staticmethod
    def make(torch):
        net = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False))
        net[1].weight = net[0].weight
        return net


@pytest.mark.parametrize("copied", [lambda x: x, lambda x: x.clone()])
def test_a_checkpoint_of_pytorch_with_tied_weights_goes_into_a_tied_model(path, copied):
    torch, path = framework("torch"), path.with_suffix(".pt")
    source, target = Tied.make(torch), Tied.make(torch)
    torch.save({name: copied(x) for name, x in source.state_dict().items()}, path)
    xdevice.load(path, into=target)
    assert target[1].weight is target[0].weight
    assert torch.equal(target[0].weight, source[0].weight)
    torch.save({"0.weight": torch.ones(4, 3), "1.weight": torch.zeros(4, 3)}, path)
    with pytest.raises(xdevice.errors.StateError):
        xdevice.load(path, into=target)
    assert torch.equal(target[0].weight, source[0].weight)


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:Validating sparse tensor:UserWarning")
@pytest.mark.parametrize("sparse", [lambda x: x.to_sparse(), lambda x: x.to_sparse_csr()])
def test_a_sparse_tensor_in_a_checkpoint_of_pytorch_is_named(path, sparse):
    torch, path = framework("torch"), path.with_suffix(".pt")
    torch.save({"dense": torch.ones(2), "edges": sparse(torch.eye(3))}, path)
    for read in (
        lambda: xdevice.load(path),
        lambda: xdevice.load(path, into={"edges": torch.eye(3)}),
    ):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"edges in .* is sparse, or made up of other tensors",
        ):
            read()
