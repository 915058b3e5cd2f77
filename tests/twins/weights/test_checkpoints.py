"""Checkpoints as they come: several files with an index, PyTorch's own, and files that are something else."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

import xdevice

torch = pytest.importorskip("torch")


def numbers(*shape):
    return np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)


@pytest.fixture
def sharded(tmp_path):
    """A folder as transformers writes it, with small tensors and one that is read by itself."""
    folder = tmp_path / "model"
    folder.mkdir()
    parts = {
        "a.safetensors": {"w": numbers(80, 80), "b": numbers(3)},
        "b.safetensors": {"v": numbers(2, 2), "c": numbers(4)},
    }
    for name, tensors in parts.items():
        save_file(tensors, folder / name)
    index(folder, {name: file for file, tensors in parts.items() for name in tensors})
    return folder


def index(folder, places):
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )


WANTED = {"w": numbers(80, 80), "b": numbers(3), "v": numbers(2, 2), "c": numbers(4)}


def assert_wanted(loaded):
    assert {name: xdevice.to_numpy(x).tolist() for name, x in loaded.items()} == {
        name: x.tolist() for name, x in WANTED.items()
    }


def test_a_folder_and_its_index_are_one_file(sharded):
    assert_wanted(xdevice.load(sharded, backend="numpy"))
    assert_wanted(xdevice.load(sharded / "model.safetensors.index.json", backend="torch"))
    assert_wanted(
        xdevice.load(sharded, into={name: np.zeros_like(x) for name, x in WANTED.items()})
    )


def test_an_index_that_does_not_fit_is_named(sharded):
    index(sharded, {"w": "a.safetensors", "x": "b.safetensors"})
    with pytest.raises(
        xdevice.errors.FileFormatError, match=r"names x, which b\.safetensors does not contain"
    ):
        xdevice.load(sharded)
    index(sharded, {"w": "../a.safetensors"})
    with pytest.raises(xdevice.errors.FileFormatError, match="a file in another folder"):
        xdevice.load(sharded)
    index(sharded, {"w": "c.safetensors"})
    with pytest.raises(xdevice.errors.MissingFileError, match=r"c\.safetensors"):
        xdevice.load(sharded)
    for name in sharded.iterdir():
        name.unlink()
    with pytest.raises(xdevice.errors.MissingFileError, match="is a folder without weights"):
        xdevice.load(sharded)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_file_of_pytorch_is_read_without_its_code(tmp_path, is_new, nested):
    state = {name: torch.from_numpy(x) for name, x in WANTED.items()}
    state["v"] = state["v"].T.contiguous().T
    whole = (
        {"epoch": 3, "state_dict": state, "optimizer": {"state": {0: {"m": torch.ones(2)}}}}
        if nested
        else state
    )
    torch.save(whole, tmp_path / "a.pt", _use_new_zipfile_serialization=is_new)
    for backend in ("numpy", "torch"):
        assert_wanted(xdevice.load(tmp_path / "a.pt", backend=backend))
    assert_wanted(
        xdevice.load(
            tmp_path / "a.pt", into={name: np.zeros_like(x) for name, x in WANTED.items()}
        )
    )


class _Evil:
    def __reduce__(self):
        return sys.exit, (3,)


def test_a_file_of_pytorch_with_code_is_refused(tmp_path):
    torch.save({"a": torch.ones(2), "b": _Evil()}, tmp_path / "a.pt")
    with pytest.raises(
        xdevice.errors.FileFormatError, match=r"without running code from it.*exit"
    ):
        xdevice.load(tmp_path / "a.pt")
    whole = {"a": {"x": torch.ones(2)}, "b": {"x": torch.ones(2)}}
    torch.save(whole, tmp_path / "b.pt")
    assert sorted(xdevice.load(tmp_path / "b.pt", backend="numpy")) == ["a.x", "b.x"]
    torch.save({**whole, "epoch": 3}, tmp_path / "b.pt")
    with pytest.raises(xdevice.errors.StateError, match="several states, 'a', 'b'"):
        xdevice.load(tmp_path / "b.pt")


def zipped(*names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return file.getvalue()


def saved_by_pytorch(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(50), "damaged, or not in Keras's format"),
        (
            "a.keras",
            zipped("config.json", "model.weights.h5"),
            "damaged, or not in Keras's format",
        ),
        ("a.npz", zipped("w.npy", "b.npy"), r"NumPy's \.npz.*numpy\.load"),
        ("a.pt", zipped("a/code/x.py", "a/data.pkl"), r"TorchScript.*torch\.jit\.load"),
        ("a.zip", zipped("w"), "a zip archive.*unpack"),
        ("a.npy", b"\x93NUMPY\x01\0" + bytes(50), r"an array of NumPy.*numpy\.load"),
        (
            "a.params",
            b"\x12\x01" + bytes(14) + b"\x01" + bytes(50),
            "damaged, or is an unsupported kind of MXNet file",
        ),
        (
            "a.pdparams",
            pickle.dumps({"w": io.BytesIO}, protocol=4),
            r"without running code.*paddle\.load",
        ),
        (
            "a.pdparams",
            pickle.dumps([{"lr": 0.1}]),
            r"a\.pdparams contains no tensors: the value of 0 is of type dict; .* is a pickle",
        ),
        (
            "a.pdparams",
            pickle.dumps(3),
            r"a\.pdparams contains an object of type int; .* is a pickle",
        ),
        (
            "a.pt",
            saved_by_pytorch({"epoch": 3}),
            r"a\.pt contains no tensors: the value of 'epoch' is of type int; .* is a checkpoint of PyTorch",
        ),
        (
            "a.pt",
            saved_by_pytorch(3),
            r"a\.pt contains an object of type int; .* is a checkpoint of PyTorch",
        ),
        ("a.gguf", b"GGUF\x03\0\0\0" + bytes(50), "GGUF.*quantized"),
        ("a.onnx", b"\x08\x07\x12\x07pytorch" + bytes(50), "ONNX"),
        (
            "a.safetensors",
            b"version https://git-lfs.github.com/spec/v1\n",
            "Git LFS.*git lfs pull",
        ),
        ("a.bin", b"<!DOCTYPE html><html>", "web page.*download the file again"),
        ("a.bin", b"nothing that is known" * 9, "not a safetensors file, or is damaged"),
    ],
)
def test_a_file_that_is_something_else_is_told_what_it_is(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(xdevice.errors.FileFormatError, match=said):
        xdevice.load(tmp_path / name)
