"""What a device lacks of the dtypes of its framework: refused before anything is made or moved.

tests/accelerators has the real lacks, on simulated accelerators; here a device is said to lack what all tensors have.
"""

from __future__ import annotations

import pytest

import xdevice

pytestmark = [
    pytest.mark.virtual,
    pytest.mark.xd_skip("numpy", reason="its arrays are on cpu:0, which is not asked"),
]


@pytest.fixture
def place(xd_device, xd_other_device):
    """A device other than cpu:0, which is never asked."""
    return xd_other_device if xd_device is xdevice.cpu() else xd_device


@pytest.fixture
def lack(xd, place, monkeypatch):
    def lack(*dtypes):
        monkeypatch.setattr(
            xd, "lacks", lambda device: frozenset(dtypes if device is place else ())
        )

    return lack


def test_nothing_is_made_of_it(xd, lack, place, tmp_path):
    x = xdevice.ones(2)
    xdevice.save(tmp_path / "x", {"x": x})
    lack("float32")
    assert not xdevice.accelerator.is_dtype_supported("float32", place)
    assert xdevice.accelerator.is_dtype_supported("int32", place)
    assert xdevice.accelerator.is_dtype_supported("float32", "cpu")
    for task in (
        lambda: xdevice.tensor([1.0], device=place),
        lambda: xdevice.tensor([1], device=place, dtype="float32"),
        lambda: xdevice.zeros(2, device=place),
        lambda: xdevice.random.uniform(2, device=place),
        lambda: xdevice.random.normal(2, device=place),
        lambda: xdevice.load(tmp_path / "x", device=place),
        lambda: xdevice.array_namespace().ones(2, device=place),
        lambda: next(iter(xdevice.prefetch([{"x": x}], place))),
        lambda: xdevice.split_batch([x], [place]),
    ):
        with pytest.raises(
            xdevice.errors.DTypeError,
            match=rf"is float32, which {place} .*does not support; keep it on cpu:0",
        ):
            task()
    assert xdevice.device_of(xdevice.tensor([1], device=place)) is place
    lack("float16")
    with pytest.raises(
        xdevice.errors.DTypeError,
        match=rf"is float16, which {place} .*does not support; keep it on cpu:0",
    ):
        xdevice.zeros(2, device=place, dtype="float16")
    lack("float64")
    with pytest.raises(
        xdevice.errors.DTypeError, match=r"is float64, which .*; use float32, or keep it on"
    ):
        xdevice.zeros(2, device=place, dtype="float64")


@pytest.mark.xd_only("torch", "jax")
def test_what_is_converted_is_refused_where_it_is_to_be(xd, lack, place):
    with xdevice.use_backend("jax" if xd.name == "torch" else "torch"):
        x = xdevice.ones(2, device=place)
    lack("float32")
    with pytest.raises(
        xdevice.errors.DTypeError, match=f"the tensor is float32, which {place}"
    ):
        xdevice.convert(x, xd.name)


def models_of(xd):
    """Those with floats."""
    made = {name: make() for name, make in xd.samples().models().items()}
    return {name: model for name, model in made.items() if name != "tf.random.Generator"}


def test_nothing_moves_to_it(xd, lack, place):
    x, number = xdevice.ones(2, device="cpu"), xdevice.tensor(1, device="cpu")
    models = models_of(xd)
    before = {name: xdevice.device_of(model) for name, model in models.items()}
    lack("float32")
    for thing in [
        x,
        [{"x": x}, number],
        *models.values(),
        *([x, {"net": model}] for model in models.values()),
    ]:
        for move in (xdevice.to_device, xdevice.copy_to):
            with pytest.raises(xdevice.errors.DTypeError, match=f"float32, which {place}"):
                move(thing, place)
    assert xdevice.device_of([x, number]) is xdevice.cpu()
    assert before == {name: xdevice.device_of(model) for name, model in models.items()}
    assert xdevice.device_of(xdevice.to_device([number], place)) is place
