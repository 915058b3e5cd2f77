"""The verbs for several devices, on every backend: numbers, gradients, ties, misuse."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import re

import numpy as np
import pytest
from helpers.environment import BACKENDS, ROOT, framework
from hypothesis import given, settings
from hypothesis import strategies as st

import xdevice

WRITABLE = {"torch", "paddle", "mxnet", "numpy"}


@pytest.fixture
def backend(xd):
    return xd


@pytest.fixture
def samples(backend):
    return backend.samples()


def devices(count=2):
    """Virtual GPUs if they are asked for, else the CPUs that the framework has; the last one again if they are few."""
    backend = xdevice.backend()
    kind = "gpu" if backend.virtual else "cpu"
    found = [device for device in backend.devices() if device.kind == kind]
    return [found[min(i, len(found) - 1)] for i in range(count)]


def numbers(x):
    return xdevice.to_numpy(x).tolist()


def tensor(data, device="cpu", dtype=None):
    return xdevice.tensor(data, device=device, dtype=dtype)


def address(x):
    backend = xdevice.backend()
    held = backend.tensor_of(x)
    return backend.samples().address(x if held is None else held)


def gradients(params, weights):
    """The gradient of sum(params * weights) by the framework, as its users take it on a replica."""
    backend = xdevice.backend()
    native, name = backend.framework, backend.name
    if name in ("torch", "paddle"):
        (params * weights).sum().backward()
        return params.grad
    if name == "mxnet":
        with native.autograd.record():
            loss = (params * weights).sum()
        loss.backward()
        return params.grad
    if name == "tensorflow":
        with native.GradientTape() as tape:
            loss = native.reduce_sum(params * weights)
        return tape.gradient(loss, params)
    return native.grad(lambda p: (p * weights).sum())(params)


@dataclasses.dataclass(frozen=True)
class Batch:
    x: object
    label: str


Pair = collections.namedtuple("Pair", ["x", "y"])


# splitting and gathering


@pytest.mark.parametrize(
    ("length", "count", "sizes"), [(5, 2, [3, 2]), (3, 4, [1, 1, 1, 0]), (0, 2, [0, 0])]
)
def test_uneven_batches_lose_nothing(backend, length, count, sizes):
    x = tensor(np.arange(length * 2, dtype="float32").reshape(length, 2))
    places = devices(count)
    parts = xdevice.split_batch(x, places, even=False)
    assert [tuple(part.shape) for part in parts] == [(size, 2) for size in sizes]
    assert [xdevice.device_of(part) for part in parts] == places
    whole = xdevice.parallel.gather(parts, "cpu")
    assert numbers(whole) == numbers(x)
    assert xdevice.device_of(whole) is xdevice.cpu()


def test_an_even_split_is_even(backend):
    parts = xdevice.split_batch(tensor([[1, 2], [3, 4], [5, 6], [7, 8]]), devices())
    assert [numbers(part) for part in parts] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_a_length_that_does_not_divide_says_what_to_do(backend):
    with pytest.raises(
        xdevice.errors.ShapeError,
        match=r"a first axis of length 5 .* over 2 .*pass even=False for parts of lengths 3, 2",
    ):
        xdevice.split_batch(tensor(np.zeros(5)), devices())


def test_containers_split_together_with_mixed_dtypes(backend):
    x, y = tensor([[1.0], [2.0], [3.0]]), tensor([1, 2, 3], dtype="int32")
    batch = {"x": x, "rest": [y, "text", 3], "pair": Pair(x, None), "frozen": Batch(y, "cat")}
    first, second = xdevice.split_batch(batch, devices(), even=False)
    assert numbers(first["x"]) == [[1.0], [2.0]]
    assert numbers(second["rest"][0]) == [3]
    assert second["rest"][1:] == ["text", 3]
    assert type(second["pair"]) is Pair
    assert second["pair"].y is None
    assert (second["frozen"].label, numbers(second["frozen"].x)) == ("cat", [3])
    assert first["pair"].x is first["x"], "a tensor in two places must stay one"
    assert xdevice.to_numpy(first["rest"][0]).dtype.name == "int32"
    whole = xdevice.parallel.gather([first, second], "cpu")
    assert numbers(whole["x"]) == numbers(x)
    assert numbers(whole["frozen"].x) == [1, 2, 3]
    assert whole["pair"].x is whole["x"]
    assert whole["rest"][1:] == ["text", 3]


def test_every_dtype_splits_and_gathers(backend):
    for dtype in sorted(backend.dtypes):
        try:
            x = tensor([[0, 1], [1, 1], [1, 0]], dtype=dtype)
        except xdevice.errors.DTypeError:
            continue  # JAX without 64-bit
        whole = xdevice.parallel.gather(
            xdevice.split_batch(x, devices(), even=False), devices()[1]
        )
        assert str(whole.dtype) == str(x.dtype)
        assert numbers(whole) == numbers(x), dtype
        assert xdevice.device_of(whole) is devices()[1]


@pytest.mark.parametrize("kind", ["keys", "a key", "int4", "uint4", "float4_e2m1fn"])
def test_what_numpy_has_no_dtype_for_is_split_and_gathered(backend, kind):
    if backend.name != "jax":
        pytest.skip("the tensors of JAX alone have such dtypes")
    jax = backend.framework
    if "key" in kind:
        x = jax.random.split(jax.random.key(0), 3)
        read = jax.random.key_data
    else:
        x, read = (
            jax.numpy.asarray([[1, 0], [2, 3], [1, 1]], dtype=getattr(jax.numpy, kind)),
            xdevice.to_numpy,
        )
    parts = (
        [x[i] for i in range(3)]
        if kind == "a key"
        else xdevice.split_batch(x, devices(), even=False)
    )
    whole = xdevice.parallel.gather(parts, devices()[1])
    assert whole.dtype == x.dtype
    assert read(whole).tolist() == read(x).tolist()
    assert xdevice.device_of(whole) is devices()[1]
    with pytest.raises(xdevice.errors.DTypeError):
        xdevice.parallel.gather([x, jax.numpy.zeros(x.shape)], "cpu")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_what_paddle_cannot_split_is_refused_by_its_dtype(backend, dtype):
    if backend.name != "paddle":
        pytest.skip("Paddle alone has a dtype without the kernel")
    x = backend.framework.ones([4, 2]).astype(dtype)
    with pytest.raises(xdevice.errors.DTypeError, match=f"slices .*{dtype}"):
        xdevice.split_batch(x, devices())
    assert xdevice.device_of(xdevice.to_device(x, devices()[0])) is devices()[0]


def test_each_part_may_record_its_own_device(backend):
    @dataclasses.dataclass
    class Held:
        x: object
        device: object
        place: object = None

    whole = Held(tensor([1.0, 2.0]), xdevice.cpu())
    parts = xdevice.split_batch([whole], devices())
    assert [part[0].device for part in parts] == devices()
    [joined] = xdevice.parallel.gather(parts, "cpu")
    assert joined.device is xdevice.cpu()
    assert numbers(joined.x) == [1, 2]
    # an attribute that does not say where the tensors of the object are is a value like any other
    for name, values in (("place", devices()), ("device", [xdevice.gpu(8), xdevice.gpu(9)])):
        for part, value in zip(parts, values, strict=True):
            setattr(part[0], name, value)
        if values[0] is not values[1]:
            with pytest.raises(
                xdevice.errors.ContainerError, match=rf"parts\[1\]\[0\]\.{name} is"
            ):
                xdevice.parallel.gather(parts, "cpu")
        for part in parts:
            part[0].place = None


def test_a_nan_beside_the_tensors_is_the_same_in_all_parts(backend):
    parts = [{"x": tensor([1.0]), "rate": float("nan")} for _ in range(2)]
    whole = xdevice.parallel.gather(parts, "cpu")
    assert numbers(whole["x"]) == [1.0, 1.0]
    assert whole["rate"] is parts[0]["rate"]
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"parts\[1\]\['rate'\] is 1.0, but parts\[0\]\['rate'\] is nan",
    ):
        xdevice.parallel.gather([parts[0], {**parts[1], "rate": 1.0}], "cpu")


def test_single_numbers_become_a_vector(backend):
    losses = [tensor(2.0, device) for device in devices()]
    assert numbers(xdevice.parallel.gather(losses, "cpu")) == [2.0, 2.0]
    assert numbers(
        xdevice.parallel.gather([{"loss": loss} for loss in losses], "cpu")["loss"]
    ) == [2.0, 2.0]


def test_a_tensor_in_two_places_of_one_part_only_is_gathered_for_each_place(backend):
    shared = [tensor([5])] * 2
    for first, second in ((shared, [tensor([0]), tensor([1])]), (shared, shared)):
        made = xdevice.parallel.gather([{"x": first, "n": 1}, {"x": second, "n": 1}], "cpu")
        assert made["n"] == 1
        assert [numbers(x) for x in made["x"]] == [[5, *numbers(x)] for x in second]
        assert (made["x"][0] is made["x"][1]) is (second is shared)


def test_gathering_one_part_gives_new_storage(backend):
    x = tensor([1.0, 2.0])
    whole = xdevice.parallel.gather([x], "cpu")
    assert numbers(whole) == [1.0, 2.0]
    if backend.name in WRITABLE:
        assert address(whole) != address(x)


def test_gradients_flow_through_split_and_gather(backend, samples):
    places = devices()

    def scaled(x):
        first, second = xdevice.split_batch(x, places, even=False)
        return xdevice.parallel.gather([first * 2, second * 3], "cpu")

    x = tensor([1.0, 1.0, 1.0])
    with xdevice.cpu():
        if samples.gradient(lambda x: x * 1, x) is None:
            pytest.skip("no gradients")
        assert numbers(samples.gradient(scaled, x)) == [2.0, 2.0, 3.0]


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    count=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "int32", "bool", "float16", "uint8"]),
)
def test_what_is_split_gathers_to_the_same_bits(backend, shape, count, dtype):
    source = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    x = tensor(source)
    parts = xdevice.split_batch({"x": x, "y": [x]}, devices(count), even=False)
    lengths = [part["x"].shape[0] for part in parts]
    assert sum(lengths) == shape[0]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1
    whole = xdevice.parallel.gather(parts, "cpu")
    assert xdevice.to_numpy(whole["x"]).tobytes() == source.tobytes()
    assert tuple(whole["x"].shape) == tuple(shape)
    assert whole["y"][0] is whole["x"]


def test_what_does_not_split_is_named(backend):
    x, y = tensor([1.0, 2.0]), tensor([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(
        xdevice.errors.ShapeError,
        match=r"x\['b'\]\[0\] has a first axis of length 4; expected 2, as in x\['a'\]",
    ):
        xdevice.split_batch({"a": x, "b": [y]}, devices())
    with pytest.raises(xdevice.errors.ShapeError, match=r"x\['b'\] is a scalar tensor"):
        xdevice.split_batch({"a": x, "b": tensor(1.0)}, devices())
    for thing in (3, "text", None, {"a": 3}, []):
        with pytest.raises(xdevice.errors.NotATensorError):
            xdevice.split_batch(thing, devices())


def test_parts_that_do_not_fit_are_named(backend):
    x = tensor([[1.0, 2.0]])
    wrong = {
        r"parts\[1\]\['x'\] has dtype int32; expected float32": (
            xdevice.errors.DTypeError,
            tensor([[1, 2]], dtype="int32"),
        ),
        r"parts\[1\]\['x'\] has the shape \(1, 3\)": (
            xdevice.errors.ShapeError,
            tensor([[1.0, 2.0, 3.0]]),
        ),
        r"parts\[1\]\['x'\] has the shape \(2,\)": (
            xdevice.errors.ShapeError,
            tensor([1.0, 2.0]),
        ),
        r"parts\[1\]\['x'\] has the shape \(\)": (xdevice.errors.ShapeError, tensor(1.0)),
    }
    for text, (error, other) in wrong.items():
        with pytest.raises(error, match=text):
            xdevice.parallel.gather([{"x": x}, {"x": other}], "cpu")
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"parts\[1\] differs in structure from parts\[0\]: .*\['x'\]",
    ):
        xdevice.parallel.gather([{"x": x}, {"y": x}], "cpu")
    with pytest.raises(xdevice.errors.ContainerError, match=r"parts\[1\] differs in structure"):
        xdevice.parallel.gather([x, {"y": x}], "cpu")
    with pytest.raises(
        xdevice.errors.ContainerError, match=r"\['n'\] is 2, but parts\[0\]\['n'\] is 1"
    ):
        xdevice.parallel.gather([{"x": x, "n": 1}, {"x": x, "n": 2}], "cpu")


# replicas


def test_replicas_share_no_storage_and_no_gradients(backend, samples):
    w, n = samples.marked(tensor([1.0, 2.0])), tensor([1, 2], dtype="int32")
    first, again = devices(1) * 2
    replicas = xdevice.parallel.replicate({"w": w, "n": n}, [first, again, devices()[1]])
    for key in ("w", "n"):
        held = [address(replica[key]) for replica in replicas]
        assert len({*held, address({"w": w, "n": n}[key])}) == 4, key
        assert all(
            numbers(replica[key]) == numbers({"w": w, "n": n}[key]) for replica in replicas
        )
        assert all(
            str(replica[key].dtype) == str({"w": w, "n": n}[key].dtype) for replica in replicas
        )
    assert [xdevice.device_of(replica["w"]) for replica in replicas] == [
        first,
        first,
        devices()[1],
    ]


def test_replicas_ask_for_gradients_of_floats_only(backend, samples):
    if samples.requires_grad(tensor([1.0])) is None:
        pytest.skip("tensors are not marked")
    replicas = xdevice.parallel.replicate(
        [tensor([1.0]), tensor([1], dtype="int32")], devices()
    )
    assert all(
        samples.requires_grad(floats) and not samples.requires_grad(ints)
        for floats, ints in replicas
    )


def test_a_tensor_in_two_places_stays_one_in_each_replica(backend):
    w = tensor([1.0, 2.0])
    first, second = xdevice.parallel.replicate({"encoder": w, "decoder": [w]}, devices())
    assert first["encoder"] is first["decoder"][0]
    assert second["encoder"] is second["decoder"][0]
    assert first["encoder"] is not second["encoder"]


def test_the_expected_gradient_of_two_replicas(backend):
    if backend.name == "numpy":
        pytest.skip("no gradients")
    replicas = xdevice.parallel.replicate(tensor([5.0, 7.0]), devices())
    grads = []
    for replica in replicas:
        place = xdevice.device_of(replica)
        with place:
            grads.append(gradients(replica, tensor([1.0, 2.0], place)))
    assert [numbers(x) for x in grads] == [[1.0, 2.0], [1.0, 2.0]]
    grads = xdevice.parallel.all_reduce(grads)
    assert [numbers(x) for x in grads] == [[2.0, 4.0], [2.0, 4.0]]
    assert [xdevice.device_of(x) for x in grads] == devices()
    if backend.name in WRITABLE:
        assert [numbers(replica.grad) for replica in replicas] == [[2.0, 4.0], [2.0, 4.0]], (
            "the .grad itself"
        )


def test_models_are_replicated_with_buffers(backend, samples):
    if not samples.models():
        pytest.skip("no models")
    for name, make in samples.models().items():
        model = make()
        if name == "lazy":  # test_values.py: it has no values to be copied
            continue
        before = {
            key: xdevice.to_numpy(x).tobytes() for key, x in samples.variables(model).items()
        }
        replicas = xdevice.parallel.replicate(model, devices(3))
        assert len({id(net) for net in (model, *replicas)}) == 4, name
        for net, place in zip(replicas, devices(3), strict=True):
            values = samples.variables(net)
            assert [xdevice.to_numpy(x).tobytes() for x in values.values()][
                : len(before)
            ] == list(before.values())
            assert all(xdevice.device_of(x) is place for x in values.values()), name
        addresses = [
            samples.address(x)
            for net in (model, *replicas)
            for x in samples.variables(net).values()
        ]
        held = [address for address in addresses if address]  # 0 of a tensor without values
        assert len(set(held)) == len(held), name


def test_tied_weights_stay_tied_in_every_replica(backend, samples):
    tied = samples.tied()
    if tied is None:
        pytest.skip("no models")
    model, is_tied = tied
    assert all(is_tied(net) for net in xdevice.parallel.replicate(model, devices()))
    assert all(
        is_tied(nets["net"])
        for nets in xdevice.parallel.replicate({"net": model, "same": model}, devices())
    )


def test_a_parameter_beside_its_model_stays_its_parameter(backend, samples):
    net = samples.network(3, 2)
    if net is None:
        pytest.skip("no models")
    name, weight = next(iter(backend.variables(net)))
    for nets in xdevice.parallel.replicate({"weight": weight, "net": net}, devices()):
        assert nets["weight"] is dict(backend.variables(nets["net"]))[name]
        assert nets["net"] is not net


def test_two_models_that_share_a_variable_are_refused(backend, samples):
    model = (samples.tied() or [None])[0]
    if model is None:
        pytest.skip("no models")
    part = next(
        x
        for x in getattr(model, "layers", None)
        or list(getattr(model, "_children", {}).values() or model)
    )
    with pytest.raises(xdevice.errors.UnsupportedError, match="share a variable"):
        xdevice.parallel.replicate([model, part], devices())


def test_a_frozen_parameter_stays_frozen():
    torch, paddle = (framework(name) for name in ("torch", "paddle"))
    net = torch.nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    (twin,) = xdevice.parallel.replicate(net, ["cpu"])
    assert (twin.weight.requires_grad, twin.bias.requires_grad) == (True, False)
    weight, bias = xdevice.parallel.replicate([net.weight, net.bias], ["cpu"])[0]
    assert isinstance(weight, torch.nn.Parameter)
    assert (weight.requires_grad, bias.requires_grad) == (True, False)
    layer = paddle.nn.Linear(2, 2)
    layer.bias.stop_gradient = True
    weight, bias = xdevice.parallel.replicate([layer.weight, layer.bias], ["cpu"])[0]
    assert type(weight) is type(layer.weight)
    assert (weight.stop_gradient, bias.stop_gradient) == (False, True)


def test_an_optimizer_is_refused_and_says_what_to_do():
    torch = framework("torch")
    net = torch.nn.Linear(1, 1)
    with pytest.raises(xdevice.errors.UnsupportedError, match="make an optimizer for the copy"):
        xdevice.parallel.replicate(
            {"net": net, "optimizer": torch.optim.SGD(net.parameters(), 0.1)}, ["cpu"]
        )


def test_nothing_to_replicate_is_refused(backend):
    for thing in (3, "text", {}, [1, 2]):
        with pytest.raises(xdevice.errors.NotATensorError):
            xdevice.parallel.replicate(thing, devices())


# broadcast


def test_broadcast_makes_new_storage_everywhere(backend):
    x = tensor([1.0, 2.0])
    places = [xdevice.cpu(), *devices(), devices()[0]]
    copies = xdevice.parallel.broadcast({"x": x}, places)
    assert [xdevice.device_of(copy) for copy in copies] == places
    assert all(numbers(copy["x"]) == [1.0, 2.0] for copy in copies)
    assert len({address(y) for y in (x, *(copy["x"] for copy in copies))}) == 5


# all_reduce


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_all_reduce_gives_each_device_the_same_in_place(backend, count, op):
    rows = [[i + 1.0, -2.0 * i] for i in range(count)]
    xs = [tensor(row, device) for row, device in zip(rows, devices(count), strict=True)]
    expected = (np.mean if op == "mean" else np.sum)(np.array(rows, "float32"), axis=0).tolist()
    results = xdevice.parallel.all_reduce(xs, op)
    assert [numbers(x) for x in results] == [expected] * count
    assert [xdevice.device_of(x) for x in results] == devices(count)
    if backend.name in WRITABLE:
        assert all(new is old for new, old in zip(results, xs, strict=True))
    else:
        assert [numbers(x) for x in xs] == rows or count == 1, (
            "what cannot be written must not change"
        )


def test_all_reduce_sums_every_dtype(backend):
    for dtype in sorted(backend.dtypes - {"bool"}):
        try:
            xs = [tensor([[1, 2]], device, dtype=dtype) for device in devices(3)]
        except xdevice.errors.DTypeError:
            continue  # JAX without 64-bit
        dtypes = {str(x.dtype) for x in [*xs, *xdevice.parallel.all_reduce(xs)]}
        assert len(dtypes) == 1, dtype
        again = [tensor([[1, 2]], device, dtype=dtype) for device in devices(3)]
        assert [numbers(x) for x in xdevice.parallel.all_reduce(again)] == [[[3, 6]]] * 3, dtype


def test_sixteen_bits_are_added_in_thirty_two(backend):
    for dtype in {"float16", "bfloat16"} & backend.dtypes:
        # 2048 + 1 is 2048 in float16, and 256 + 1 is 256 in bfloat16; with three ones it is not
        large = 2048.0 if dtype == "float16" else 256.0
        xs = [
            tensor([value], device, dtype=dtype)
            for value, device in zip([large, 1, 1, 2], devices(4), strict=True)
        ]
        assert [numbers(x) for x in xdevice.parallel.all_reduce(xs)] == [[large + 4]] * 4
    if "float16" in backend.dtypes:
        xs = [tensor([60000.0], device, dtype="float16") for device in devices()]
        assert [numbers(x) for x in xdevice.parallel.all_reduce(xs, "mean")] == [
            [60000.0]
        ] * 2, "the sum would be infinite"


def test_odd_shapes_are_reduced(backend):
    for data in (3.0, np.zeros((0, 2)), np.ones((2, 3, 4))):
        results = xdevice.parallel.all_reduce([tensor(data, device) for device in devices()])
        assert all(
            (xdevice.to_numpy(x) == 2 * np.array(data, "float32")).all() for x in results
        )
        assert [tuple(x.shape) for x in results] == [np.shape(data)] * 2


def test_containers_are_reduced_leaf_by_leaf(backend):
    def params(value, device):
        return {
            "w": [tensor([value, 1.0], device)],
            "b": tensor(int(value), device, dtype="int32"),
        }

    given_ = [params(i + 1.0, device) for i, device in enumerate(devices())]
    results = xdevice.parallel.all_reduce(given_)
    assert [(numbers(x["w"][0]), numbers(x["b"])) for x in results] == [([3.0, 2.0], 3)] * 2
    if backend.name in WRITABLE:
        assert all(new is old for new, old in zip(results, given_, strict=True))


def test_conjugate_and_negative_views_of_torch_are_summed():
    torch = framework("torch")
    with xdevice.use_backend("torch"):
        z = [torch.tensor([1 + 2j, 2j]).conj() for _ in range(2)]
        minus = [torch.tensor([1 + 2j, 2j]).conj().imag for _ in range(2)]
        assert z[0].is_conj()
        assert minus[0].is_neg()
        for one, other in zip(
            xdevice.parallel.all_reduce(z), xdevice.parallel.all_reduce(minus), strict=True
        ):
            assert one.tolist() == [2 - 4j, -4j]
            assert other.tolist() == [-4.0, -4.0]


def test_a_tied_weight_is_summed_once(backend):
    xs = [tensor([1.0], device) for device in devices()]
    results = xdevice.parallel.all_reduce([{"a": x, "b": x} for x in xs])
    assert [numbers(x["a"]) for x in results] == [[2.0], [2.0]]
    assert all(x["a"] is x["b"] for x in results)
    y = tensor([1.0], devices()[1])
    with pytest.raises(
        xdevice.errors.ContainerError,
        match=r"tensors\[0\]\['a'\] and tensors\[0\]\['b'\] are the same tensor",
    ):
        xdevice.parallel.all_reduce([{"a": xs[0], "b": xs[0]}, {"a": xs[1], "b": y}])


def test_one_object_on_both_places_counts_twice(backend):
    x = tensor([1.0, 2.0])
    assert [numbers(y) for y in xdevice.parallel.all_reduce([x, x])] == [[2.0, 4.0]] * 2


def test_parameters_that_ask_for_gradients_keep_asking(backend, samples):
    replicas = xdevice.parallel.replicate([tensor([1.0]), tensor([2.0])], devices())
    results = xdevice.parallel.all_reduce(replicas, "mean")
    assert [[numbers(x) for x in replica] for replica in results] == [[[1.0], [2.0]]] * 2
    for x in (x for replica in results for x in replica):
        assert samples.requires_grad(x) in (True, None)
    if backend.name in WRITABLE | {"tensorflow"}:
        assert all(
            new is old
            for pair in zip(results, replicas, strict=True)
            for new, old in zip(*pair, strict=True)
        )


def test_parameters_train_on_after_they_were_reduced(backend):
    if backend.name == "numpy":
        pytest.skip("no gradients")
    replicas = xdevice.parallel.replicate(tensor([1.0, 3.0]), devices())
    for _ in range(2):
        for replica in replicas:
            place = xdevice.device_of(replica)
            with place:
                gradients(replica, tensor([1.0, 2.0], place))
        replicas = xdevice.parallel.all_reduce(replicas, "mean")
    assert [numbers(x) for x in replicas] == [[1.0, 3.0]] * 2


def test_variables_are_written_in_place():
    tf = framework("tensorflow")
    import keras

    if keras.config.backend() != "tensorflow":
        pytest.skip("Keras runs on another framework here")
    with tf.device("/CPU:0"):
        variables = [tf.Variable([1.0]), keras.Variable([2.0]), tf.Variable([3.0])]
    assert all(
        new is old
        for new, old in zip(xdevice.parallel.all_reduce(variables), variables, strict=True)
    )
    assert [numbers(x) for x in variables] == [[6.0]] * 3
    assert xdevice.item(variables[0]) == 6.0


def test_gluon_parameters_are_written_in_place():
    framework("mxnet")
    with xdevice.use_backend("mxnet") as backend:
        nets = xdevice.parallel.replicate(backend.samples().network(2, 1), devices())
        params = [list(net.collect_params().values()) for net in nets]
        for net, value in zip(nets, (1, 3), strict=True):
            for array in backend.samples().variables(net).values():
                backend.write(array, array * 0 + value)
        results = xdevice.parallel.all_reduce(params)
        assert results[0][0] is params[0][0]
        assert {
            float(v)
            for net in nets
            for x in backend.samples().variables(net).values()
            for v in x.asnumpy().ravel()
        } == {4.0}


def test_read_only_arrays_come_back_as_new_ones():
    x = np.ones(2, "float32")
    x.flags.writeable = False
    y = np.ones(2, "float32")
    first, second = xdevice.parallel.all_reduce([x, y])
    assert first is not x
    assert second is y
    assert first.tolist() == second.tolist() == [2, 2]
    assert x.tolist() == [1, 1]


def test_views_are_written_through():
    for name in WRITABLE & set(BACKENDS) - {"mxnet"}:  # whose slices of columns are copies
        with xdevice.use_backend(name) as backend:
            if backend.virtual and name == "paddle":
                continue  # its views are off
            x, y = tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([[1.0, 1.0], [1.0, 1.0]])
            xdevice.parallel.all_reduce([x[:, 1], y[:, 0]])
            assert numbers(x) == [[1.0, 3.0], [3.0, 5.0]], name
            assert numbers(y) == [[3.0, 1.0], [5.0, 1.0]], name


def test_the_order_of_summation_is_that_of_the_list(backend):
    values = [1.0, 2.0**24, -(2.0**24), 1.0]  # float32: ((1 + 2^24) - 2^24) + 1 is 1
    xs = [tensor([value], device) for value, device in zip(values, devices(4), strict=True)]
    assert [numbers(x) for x in xdevice.parallel.all_reduce(xs)] == [[1.0]] * 4


def unchanged(xs, error, match, op="sum"):
    """The error comes before anything is written."""
    tensors = [x["first"] for x in xs]
    before = [numbers(x) for x in tensors]
    with pytest.raises(error, match=match):
        xdevice.parallel.all_reduce(xs, op)
    assert [numbers(x) for x in tensors] == before


def test_replicas_that_differ_are_named_before_anything_is_written(backend):
    def replicas(*later):
        return [{"first": tensor([1.0, 2.0]), "later": value} for value in later]

    x = tensor([1.0, 2.0])
    unchanged(
        replicas(x, None),
        xdevice.errors.NotATensorError,
        r"tensors\[1\]\['later'\] is None: this replica has no grad",
    )
    unchanged(
        replicas(x, 3.0),
        xdevice.errors.NotATensorError,
        r"tensors\[1\]\['later'\] is 3.0 of type float",
    )
    unchanged(
        replicas(x, tensor([1.0])),
        xdevice.errors.ShapeError,
        r"tensors\[1\]\['later'\] has the shape \(1,\)",
    )
    ints = tensor([1, 2], dtype="int32")
    unchanged(
        replicas(x, ints),
        xdevice.errors.DTypeError,
        r"tensors\[1\]\['later'\] has dtype int32; expected float32",
    )
    unchanged(
        replicas(ints, tensor([1, 2], dtype="int32")),
        xdevice.errors.DTypeError,
        "cannot represent a mean",
        op="mean",
    )
    bools = [tensor([True, False]) for _ in range(2)]
    unchanged(
        replicas(*bools),
        xdevice.errors.DTypeError,
        "has dtype bool, which sum does not support",
    )
    unchanged(
        replicas(x, {"a": x}),
        xdevice.errors.ContainerError,
        r"tensors\[1\] differs in structure from tensors\[0\]",
    )
    unchanged(replicas(x, x), xdevice.errors.ArgumentError, "'max'", op="max")


def test_tensors_of_two_frameworks_are_refused():
    with xdevice.use_backend("torch"):
        x = tensor([1.0])
    for verb in (xdevice.parallel.all_reduce, lambda xs: xdevice.parallel.gather(xs, "cpu")):
        with pytest.raises(
            xdevice.errors.ArgumentError, match=r"belongs to numpy, but .* belongs to torch"
        ):
            verb([x, np.ones(1, "float32")])


def test_one_container_may_hold_two_frameworks():
    with xdevice.use_backend("torch"):
        xs = [{"torch": tensor([1.0]), "numpy": np.ones(1)} for _ in range(2)]
    assert [
        (x["torch"].tolist(), x["numpy"].tolist()) for x in xdevice.parallel.all_reduce(xs)
    ] == [([2.0], [2.0])] * 2


# misuse


def test_devices_are_a_list_of_devices_that_exist(backend):
    x = tensor([1.0, 2.0])
    verbs = [xdevice.split_batch, xdevice.parallel.replicate, xdevice.parallel.broadcast]
    for verb in verbs:
        with pytest.raises(xdevice.errors.ArgumentError, match="empty"):
            verb(x, [])
        for one in ("cpu", xdevice.cpu(), None, 3):
            with pytest.raises(xdevice.errors.DeviceError, match="list of devices"):
                verb(x, one)
        with pytest.raises(xdevice.errors.DeviceNotFoundError, match="gpu:99"):
            verb(x, ["cpu", "gpu:99"])
        with pytest.raises(xdevice.errors.DeviceError):
            verb(x, ["cpu", "gqu"])
    with pytest.raises(xdevice.errors.DeviceNotFoundError):
        xdevice.parallel.gather([x], "gpu:99")


def test_lists_of_tensors_are_lists(backend):
    x = tensor([1.0, 2.0])
    for verb in (xdevice.parallel.all_reduce, lambda xs: xdevice.parallel.gather(xs, "cpu")):
        with pytest.raises(xdevice.errors.ArgumentError, match="empty"):
            verb([])
        for one in (x, {"a": x}, 3, None, "text"):
            with pytest.raises(xdevice.errors.NotATensorError, match="expected a list"):
                verb(one)


def test_generators_and_tuples_of_devices_are_fine(backend):
    x = tensor([1.0, 2.0])
    assert len(xdevice.split_batch(x, (place for place in devices()))) == 2
    assert len(xdevice.parallel.broadcast(x, tuple(devices()))) == 2


def test_models_are_neither_split_nor_gathered_nor_summed(backend, samples):
    net = samples.network(3, 2)
    if net is None:
        pytest.skip("no models")
    for attempt in (
        lambda: xdevice.split_batch({"net": net}, devices()),
        lambda: xdevice.parallel.gather([net], "cpu"),
        lambda: xdevice.parallel.all_reduce([net, net]),
    ):
        with pytest.raises(xdevice.errors.NotATensorError, match=r"model|pass its gradients"):
            attempt()


def test_sparse_tensors_are_refused_by_name():
    torch, tf = (framework(name) for name in ("torch", "tensorflow"))
    sparse = [
        torch.eye(2).to_sparse(),
        tf.sparse.from_dense(tf.eye(2)),
        tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])),
    ]
    for x in sparse:
        for attempt in (
            lambda x=x: xdevice.split_batch(x, ["cpu"]),
            lambda x=x: xdevice.parallel.gather([x, x], "cpu"),
            lambda x=x: xdevice.parallel.replicate([x], ["cpu"]),
            lambda x=x: xdevice.parallel.all_reduce([x, x]),
        ):
            with pytest.raises(xdevice.errors.UnsupportedError, match="make it dense"):
                attempt()


def assert_only_copied(x, remedy):
    """Whatever takes tensor by tensor refuses `x`, and what moves or copies all of it does not."""
    inside = {"x": [x]}
    for attempt in (
        lambda: xdevice.split_batch(inside, ["cpu", "cpu"]),
        lambda: xdevice.parallel.gather([inside, inside], "cpu"),
        lambda: xdevice.parallel.replicate(inside, ["cpu"]),
        lambda: xdevice.parallel.all_reduce([inside, inside]),
    ):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=rf"\['x'\]\[0\] is of type {type(x).__name__}.*{remedy}",
        ):
            attempt()
    with xdevice.distributed.processes() as world:
        for verb in (world.all_reduce, world.broadcast, world.all_gather, world.split_batch):
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match=rf"^{verb.__name__.partition('_batch')[0]} .*{remedy}",
            ):
                verb(inside)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=rf"parts\[0\] is of type {type(x).__name__}"
    ):
        xdevice.parallel.gather([x, x], "cpu")
    [copied] = xdevice.parallel.broadcast(x, ["cpu"])
    assert type(copied) is type(x)
    return copied


@pytest.mark.parametrize("name", ["BCOO", "BCSR", "COO", "CSR", "CSC"])
def test_sparse_arrays_of_jax_are_only_moved_and_copied(name):
    framework("jax")
    import jax.experimental.sparse
    from jax import numpy as jnp

    x = getattr(jax.experimental.sparse, name).fromdense(jnp.eye(2))
    assert assert_only_copied(x, r"x\.todense\(\)").todense().tolist() == [[1, 0], [0, 1]]


def test_packed_sequences_are_only_moved_and_copied():
    torch = framework("torch")
    rnn = torch.nn.utils.rnn
    x = rnn.pack_sequence([torch.ones(1), torch.ones(3)], enforce_sorted=False)
    copied = assert_only_copied(x, "pad_packed_sequence")
    assert rnn.pad_packed_sequence(copied)[0].tolist() == [[1, 1], [0, 1], [0, 1]]


def test_masked_arrays_are_refused_by_name():
    masked = [np.ma.array([1.0, 2.0], mask=mask) for mask in ([False, True], [True, False])]
    for attempt in (
        lambda: xdevice.split_batch({"w": masked[0]}, ["cpu"]),
        lambda: xdevice.parallel.gather([{"w": x} for x in masked], "cpu"),
        lambda: xdevice.parallel.replicate({"w": masked[0]}, ["cpu"]),
        lambda: xdevice.parallel.all_reduce([{"w": x} for x in masked]),
    ):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"\['w'\], an object of type MaskedArray that is not dense",
        ):
            attempt()
    assert [x.data.tolist() for x in masked] == [[1, 2]] * 2


def test_traced_functions_split_and_gather_and_refuse_the_rest():
    jax, tf = (framework(name) for name in ("jax", "tensorflow"))

    def there_and_back(x):
        return xdevice.parallel.gather(xdevice.split_batch(x, ["cpu"] * 2, even=False), "cpu")

    assert jax.jit(there_and_back)(jax.numpy.arange(3)).tolist() == [0, 1, 2]
    with tf.device("/CPU:0"):
        assert tf.function(there_and_back, autograph=False)(tf.range(3)).numpy().tolist() == [
            0,
            1,
            2,
        ]
        of_any_length = tf.function(there_and_back, [tf.TensorSpec([None])], autograph=False)
        with pytest.raises(xdevice.errors.ShapeError, match="unknown while tensorflow traces"):
            of_any_length(tf.ones(3))
    for attempt in (
        lambda x: xdevice.parallel.replicate([x], ["cpu"])[0],
        lambda x: xdevice.parallel.all_reduce([x, x]),
    ):
        with pytest.raises(xdevice.errors.UnsupportedError, match="traces"):
            jax.jit(attempt)(jax.numpy.ones(2))


def test_a_symbol_of_mxnet_is_not_split():
    mx = framework("mxnet")
    with pytest.raises(xdevice.errors.UnsupportedError, match=r"x\[0\] is a symbol"):
        xdevice.split_batch([mx.sym.Variable("x")], ["cpu"] * 2)


# the docs


def test_the_example_of_the_docs_prints_what_it_shows(backend):
    page = (ROOT / "docs" / "reference" / "devices.md").read_text()
    code, shown = (
        re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1]
        for language in ("python", "text")
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == shown


def test_collectives_of_jax_give_the_same_as_the_way_device_to_device():
    jax = framework("jax")
    with xdevice.use_backend("jax") as backend:
        backend.samples().other_device()
        if len(set(devices())) < 2:
            pytest.skip("JAX was started with one device")
        from xdevice_jax import replicas

        natives = tuple(device.native for device in devices())
        for shape in ((), (3,), (4, 5)):
            for mean in (False, True):
                xs = [
                    jax.device_put(jax.numpy.full(shape, i + 1.0), native)
                    for i, native in enumerate(natives)
                ]
                results = replicas.by_collectives(xs, natives, mean)
                assert [xdevice.device_of(x) for x in results] == devices()
                assert [x.shape for x in results] == [shape] * 2
                assert all((x == (1.5 if mean else 3.0)).all() for x in results)
