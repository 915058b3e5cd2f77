"""torchvision's tv_tensors, which have a format or a size beside their numbers, and transforms that know them."""

from __future__ import annotations

import copy
import pickle

import pytest

import xdevice

torch = xdevice.backend("torch").framework
torchvision = pytest.importorskip(
    "torchvision", reason="it goes with PyPI's own build of PyTorch only (conftest.py)"
)
tv_tensors = pytest.importorskip("torchvision.tv_tensors")
v2 = pytest.importorskip("torchvision.transforms.v2")

MAKERS = {
    "Image": lambda: tv_tensors.Image(torch.arange(192, dtype=torch.uint8).reshape(3, 8, 8)),
    "Video": lambda: tv_tensors.Video(torch.ones(2, 3, 8, 8)),
    "Mask": lambda: tv_tensors.Mask(torch.eye(8, dtype=torch.bool).expand(2, 8, 8).clone()),
    "BoundingBoxes": lambda: tv_tensors.BoundingBoxes(
        torch.tensor([[0, 0, 4, 4], [1, 1, 6, 6]]), format="XYWH", canvas_size=(8, 9)
    ),
}
BESIDE = ("format", "canvas_size", "clamping_mode")


def assert_same(x, wanted, place):
    assert type(x) is type(wanted)
    assert xdevice.device_of(x) is place
    assert [getattr(x, name, None) for name in BESIDE] == [
        getattr(wanted, name, None) for name in BESIDE
    ]
    torch.testing.assert_close(
        x.cpu().as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_tv_tensor_stays_one_wherever_it_goes(make, place):
    here = make()
    there = xdevice.to_device(here, place)
    for x in (
        there,
        here.to(place.native),
        xdevice.copy_to(here, place),
        pickle.loads(pickle.dumps(there)),
    ):
        assert_same(x, here, place)
    for x in (
        copy.deepcopy(there),
        xdevice.to_device([{"x": here}], place)[0]["x"],
        there.clone(),
    ):
        assert_same(x, here, place)
    (batch,) = xdevice.prefetch([{"x": here}], device=place)
    assert_same(batch["x"], here, place)
    assert_same(xdevice.copy_to(there, "cpu"), here, xdevice.cpu())


def test_transforms_give_what_they_give_on_the_host(place):
    sample = {name: make() for name, make in MAKERS.items() if name != "Video"}
    transform = v2.Compose([v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
                            v2.Resize((6, 6)), v2.RandomCrop(4), v2.RandomHorizontalFlip(1.0)])  # fmt: skip
    found = []
    for device in (xdevice.cpu(), place):
        torch.manual_seed(0)
        found.append(transform(xdevice.to_device(sample, device)))
    for name, x in found[1].items():
        assert_same(x, found[0][name], place)


def test_operators_give_what_they_give_on_the_host(place):
    boxes, scores = (
        torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 5], [4, 4, 8, 8]]),
        torch.tensor([0.5, 0.9, 0.1]),
    )
    images = torch.rand(1, 3, 8, 8)
    for use in (
        lambda b, s, i: torchvision.ops.nms(b, s, 0.5),
        lambda b, s, i: torchvision.ops.box_iou(b, b),
        lambda b, s, i: torchvision.ops.roi_align(i, [b], 2),
    ):
        there = use(*xdevice.to_device((boxes, scores, images), place))
        assert xdevice.device_of(there) is place
        torch.testing.assert_close(there.cpu(), use(boxes, scores, images))
