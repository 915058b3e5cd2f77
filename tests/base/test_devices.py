"""The value `Device` and its spellings."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import xdevice
from xdevice import Device
from xdevice.base import devices
from xdevice.errors import shown

ACCELERATORS = ("gpu", "cuda", "rocm", "hip", "mps", "xpu")
FORMS = (
    "{kind}:{index}",
    "/{kind}:{index}",
    "device:{kind}:{index}",
    "/device:{kind}:{index}",
    "/physical_device:{kind}:{index}",
    "/job:localhost/replica:0/task:0/device:{kind}:{index}",
    "{kind}({index})",
    "Place({kind}:{index})",
)


@given(
    kind=st.sampled_from([*ACCELERATORS, "cpu", "tpu", "meta"]),
    index=st.integers(0, 99999),
    form=st.sampled_from(FORMS),
    case=st.sampled_from([str.lower, str.upper, str.capitalize]),
)
def test_every_accepted_spelling_names_one_device(kind, index, form, case):
    device = xdevice.device(form.format(kind=case(kind), index=index))
    assert device.kind == ("gpu" if kind in ACCELERATORS else kind)
    assert device.index == index
    assert xdevice.device(str(device)) == device


@given(kind=st.sampled_from([*ACCELERATORS, "cpu", "tpu"]))
def test_without_an_index_it_is_the_first(kind):
    assert xdevice.device(kind) == xdevice.device(f"{kind}:0")


@given(st.text(max_size=20) | st.text("cpugda:/()0123456789-", max_size=12))
def test_random_text_is_a_device_or_the_named_error(text):
    try:
        device = xdevice.device(text)
    except xdevice.errors.DeviceError as error:
        device, said = None, str(error)
    if device is None:
        assert shown(text) in said
        assert "accepted" in said
    else:
        assert xdevice.device(str(device)) == device


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "gpu:-1", "gpu:1:2", "gqu", "gpu:", "gpu:01", "gpu: 1", "gpu 1", "gpu(1", "gpu:1)", "1", "gpu:1.0",
        "cpu\n", "gpu:\u0663", "/job:worker/replica:0/task:3/device:GPU:1", "GPU:9999999999",
        "Place(gpu:1", "(gpu:1)",
    ],
)  # fmt: skip
def test_text_that_is_no_device_is_refused(text):
    with pytest.raises(xdevice.errors.DeviceError, match="accepted"):
        xdevice.device(text)


def test_a_near_miss_is_pointed_out():
    with pytest.raises(xdevice.errors.DeviceError, match="did you mean 'gpu'"):
        xdevice.device("gqu:1")


@pytest.mark.parametrize(
    "thing", [0, 1, -1, True, False, None, 1.0, object(), [], (), b"gpu", int]
)
def test_things_that_are_no_device_are_refused(thing):
    advice = "one device was expected" if isinstance(thing, list | tuple) else "accepted"
    for takes_a_device in (xdevice.device, Device):
        with pytest.raises(xdevice.errors.DeviceError, match=advice) as raised:
            takes_a_device(thing)
        assert isinstance(raised.value, TypeError)


def test_an_int_is_told_how_to_say_it():
    with pytest.raises(xdevice.errors.DeviceError, match=r"xdevice\.gpu\(1\)"):
        xdevice.device(1)


@pytest.mark.parametrize("make", [xdevice.try_gpu, xdevice.gpu, xdevice.cpu])
def test_a_bad_index_is_refused(make):
    with pytest.raises(xdevice.errors.DeviceError, match="-1"):
        make(-1)
    for thing in (True, "0", 1.0, None):
        with pytest.raises(xdevice.errors.DeviceError, match="a non-negative int, not"):
            make(thing)


def test_numpy_ints_are_indices():
    import numpy as np

    assert xdevice.gpu(np.int64(2)) is xdevice.gpu(2)
    with xdevice.use_backend("numpy"):
        assert xdevice.try_gpu(np.int64(2)) is xdevice.cpu()


@pytest.mark.parametrize(
    ("text", "meant"),
    [("gpu1", "gpu:1"), ("GPU 1", "gpu:1"), ("gpu-1", "gpu:1"), ("cuda_0", "cuda:0")],
)
def test_a_kind_and_a_number_without_a_colon_are_pointed_out(text, meant):
    with pytest.raises(xdevice.errors.DeviceError, match=f"did you mean '{meant}'"):
        xdevice.device(text)


def test_a_device_compares_with_a_text():
    assert xdevice.gpu(1) == "gpu:1" == xdevice.gpu(1)
    assert xdevice.gpu(1) == "cuda:1"
    assert xdevice.Device("cuda:1") == "gpu:1"
    assert xdevice.gpu(1) != "gpu:0"
    assert xdevice.gpu(1) != 1
    assert xdevice.gpu(1) not in ("label", "gqu:1")


def test_devices_are_one_object_each():
    device = xdevice.gpu(3)
    assert Device("gpu:3") is Device("/GPU:3") is Device(device) is device
    assert Device() is xdevice.cpu()
    assert (
        copy.copy(device)
        is copy.deepcopy(device)
        is pickle.loads(pickle.dumps(device))
        is device
    )
    assert {device: 1}[Device("GPU:3")] == 1
    assert device
    assert device != Device("gpu:2")
    assert (str(device), repr(device)) == ("gpu:3", "Device('gpu:3')")


def test_a_word_for_hardware_is_equal_to_the_neutral_one_and_is_kept():
    device = xdevice.gpu(3)
    for word in ACCELERATORS[1:]:
        named = Device(f"{word}:3")
        assert named == device == named == Device(named)
        assert hash(named) == hash(device)
        assert {device: 1}[named] == {named: 1}[device] == 1
        assert len({device, named, Device("cuda:3")}) == 1
        assert named not in (Device("gpu:2"), Device(f"{word}:2"), "gpu:2")
        assert isinstance(named, Device)
        assert (str(named), repr(named), named.kind, named.index) == (
            "gpu:3",
            "Device('gpu:3')",
            "gpu",
            3,
        )
        for again in (
            copy.copy(named),
            copy.deepcopy(named),
            pickle.loads(pickle.dumps(named)),
        ):
            assert again == device
            assert again.word == word
        with pytest.raises(AttributeError, match="immutable"):
            named.word = "cuda"


def test_devices_are_immutable():
    device = xdevice.gpu(3)
    with pytest.raises(AttributeError, match="immutable"):
        device.index = 4
    with pytest.raises(AttributeError, match="immutable"):
        device.anything = 4
    with pytest.raises(AttributeError, match="immutable"):
        del device.kind


def test_interning_from_many_threads_makes_one():
    made = []
    barrier = threading.Barrier(8)

    def make():
        barrier.wait()
        made.extend(devices.of("gpu", index) for index in range(7000, 7200))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(device) for device in made}) == 200


def test_device_specs_of_tensorflow_name_devices():
    tf = xdevice.backend("tensorflow").framework
    assert xdevice.device(tf.DeviceSpec(device_type="GPU", device_index=1)) is xdevice.gpu(1)
    spec = tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0/device:CPU:0")
    assert xdevice.device(spec) is xdevice.cpu()
    with xdevice.use_backend("tensorflow"):
        assert xdevice.device_of(xdevice.ones(2, device=spec)) is xdevice.cpu()
    with pytest.raises(xdevice.errors.DeviceError):
        xdevice.device(tf.DeviceSpec(job="worker"))
