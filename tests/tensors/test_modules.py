"""PyTorch's modules that keep tensors in ways of their own, and what is packed."""

from __future__ import annotations

import threading
import warnings

import pytest

import xdevice
from xdevice.core import registry

torch = pytest.importorskip("torch")
prune = pytest.importorskip("torch.nn.utils.prune")


class Metric(torch.nn.Module):
    """Keeps a state that is neither parameter nor buffer, and moves it itself, as torchmetrics does."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(1)
        self.seen = [torch.zeros(1)]

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.total = fn(self.total)
        self.seen = [fn(x) for x in self.seen]
        return self


class Bare(torch.nn.Module):
    """Has nothing but a device of its own, as Lightning's modules do."""

    def __init__(self):
        super().__init__()
        self._device = torch.device("cpu")

    @property
    def device(self):
        return self._device

    def to(self, device):
        self._device = device
        return super().to(device)


class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.first.register_buffer("mask", torch.ones(2))
        self.second.register_buffer("mask", self.first.mask)


def test_a_module_without_parameters_moves_what_it_keeps():
    metric = Metric()
    assert xdevice.device_of(metric) is xdevice.cpu()
    assert xdevice.to_device(metric, "meta") is metric
    assert metric.total.is_meta
    assert metric.seen[0].is_meta
    assert xdevice.device_of(metric).kind == "meta"


def test_a_model_moves_its_metrics_even_if_its_parameters_are_there():
    net = torch.nn.Linear(2, 2, device="meta")
    net.metric = Metric()
    with pytest.raises(xdevice.errors.DeviceMismatchError, match=r"metric\.total"):
        xdevice.device_of(net)
    xdevice.to_device({"net": net}, "meta")
    assert net.metric.total.is_meta
    assert not xdevice.copy_to(Metric(), "cpu").total.is_meta


def test_a_module_that_holds_nothing_moves_without_a_word():
    bare = Bare()
    assert xdevice.to_device(bare, "meta") is bare
    assert bare.device.type == "meta"
    assert xdevice.device_of(bare).kind == "meta"
    flat = torch.nn.Flatten()
    assert xdevice.to_device(flat, "meta") is flat


@pytest.mark.parametrize("verb", [xdevice.to_device, xdevice.copy_to])
def test_shared_buffers_stay_shared(verb):
    moved = verb(Shared(), "meta")
    assert moved.first.mask.is_meta
    assert moved.first.mask is moved.second.mask


def test_nothing_moves_if_a_container_cannot_be_rebuilt():
    class Stubborn(frozenset):
        def __new__(cls, one, two):
            return super().__new__(cls, [one, two])

    net = torch.nn.Linear(2, 2)
    weight = net.weight
    with pytest.raises(xdevice.errors.ContainerError, match="Stubborn"):
        xdevice.to_device([net, Stubborn(torch.ones(1), 2)], "meta")
    assert net.weight is weight
    assert not net.weight.is_meta
    free = [net, Stubborn(1, 2)]
    assert xdevice.to_device(free, "cpu") is free


@pytest.mark.parametrize(
    "attempt",
    [
        lambda net: xdevice.to_device(net, "cpu"),
        lambda net: xdevice.to_device([net], "cpu"),
        lambda net: xdevice.copy_to(net, "cpu"),
        lambda net: xdevice.parallel.replicate(net, ["cpu"]),
        lambda net: xdevice.parallel.broadcast(net, ["cpu"]),
    ],
)
def test_models_on_meta_need_memory_first(attempt):
    net = torch.nn.Sequential(
        torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1, affine=False, device="meta")
    )
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"1\.running_mean of this Sequential.*to_empty\(device=",
    ):
        attempt(net)
    assert xdevice.copy_to(net, "meta")[0].weight.is_meta
    assert xdevice.to_device(net.to_empty(device="cpu"), "cpu") is net


def test_a_to_of_its_own_may_know_the_values_of_a_model_on_meta():
    net = torch.nn.Linear(1, 1, device="meta")
    net.to = lambda device: net.to_empty(device=device)
    assert not xdevice.to_device(net, "cpu").weight.is_meta


def packed(**more):
    return torch.nn.utils.rnn.pack_sequence(
        [torch.ones(1, 2, **more), torch.ones(3, 2, **more)], enforce_sorted=False
    )


def test_packed_sequences_move_with_their_lengths_on_the_host():
    x = packed()
    moved = xdevice.to_device({"x": x}, "meta")["x"]
    assert type(moved) is torch.nn.utils.rnn.PackedSequence
    assert moved.data.is_meta
    assert moved.sorted_indices.is_meta
    assert not moved.batch_sizes.is_meta
    assert xdevice.check_same_device(moved, moved.data).kind == "meta"
    assert xdevice.to_device(moved, "meta") is moved
    assert not x.data.is_meta


def test_packed_sequences_are_pytorchs_also_where_jax_was_there_first(monkeypatch):
    loaded = [xdevice.backend("jax"), xdevice.backend("torch")]
    monkeypatch.setattr(registry, "list_loaded", lambda: loaded)
    moved = xdevice.to_device(packed(), "meta")
    assert not moved.batch_sizes.is_meta
    assert xdevice.device_of(moved).kind == "meta"


def test_packed_sequences_are_copied_with_their_gradients_and_read():
    x = packed(requires_grad=True)
    copied = xdevice.copy_to([x], "cpu")[0]
    assert copied.data.data_ptr() != x.data.data_ptr()
    assert copied.batch_sizes.data_ptr() != x.batch_sizes.data_ptr()
    assert copied.data.requires_grad
    assert xdevice.to_numpy(x).data.shape == (4, 2)
    (prefetched,) = xdevice.prefetch([packed()], "cpu")
    assert type(prefetched) is torch.nn.utils.rnn.PackedSequence


@pytest.mark.virtual
def test_packed_sequences_run_on_a_gpu():
    moved = xdevice.to_device(packed(), "gpu:1")
    net = xdevice.to_device(torch.nn.LSTM(2, 2), "gpu:1")
    output, _ = net(moved)
    assert xdevice.device_of(output) is xdevice.gpu(1)
    (prefetched,) = xdevice.prefetch([packed()], "gpu:1")
    assert xdevice.device_of(prefetched) is xdevice.gpu(1)


class Masked(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)


def test_buffers_that_two_models_share_stay_shared():
    mask = torch.ones(3)
    one, other = Masked(mask), Masked(mask)
    moved = xdevice.to_device({"mask": mask, "one": one, "other": other}, "meta")
    assert moved["one"] is one
    assert moved["other"] is other
    assert moved["mask"].is_meta
    assert moved["mask"] is one.mask is other.mask
    assert not mask.is_meta


def test_layers_that_two_models_share_stay_shared_or_are_named():
    layer, weight = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))
    models = {
        "one": torch.nn.Sequential(layer),
        "other": torch.nn.Sequential(torch.nn.ReLU(), layer),
    }
    for verb in (xdevice.copy_to, lambda *args: xdevice.parallel.broadcast(args[0], [args[1]])):
        with pytest.raises(
            xdevice.errors.UnsupportedError, match=r"\['one'\] and \['other'\] share .*Linear"
        ):
            verb(models, "cpu")
    tied = [
        torch.nn.ParameterList([weight]),
        torch.nn.ParameterList([weight, torch.nn.Parameter(torch.ones(1))]),
    ]
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="share an object of type Parameter"
    ):
        xdevice.copy_to(tied, "cpu")
    moved = xdevice.to_device(models, "meta")
    assert moved["one"][0] is moved["other"][1] is layer
    assert layer.weight.is_meta


def test_parts_beside_a_copied_model_are_those_of_the_copy():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    copied = xdevice.copy_to(
        {"w": net[0].weight, "part": net[1], "net": net, "b": net[1].running_mean}, "cpu"
    )
    assert copied["net"] is not net
    assert copied["w"] is copied["net"][0].weight
    assert copied["part"] is copied["net"][1]
    assert copied["b"] is copied["net"][1].running_mean


def normed():
    linear = prune.l1_unstructured(torch.nn.Linear(2, 2), "bias", 1)
    return torch.nn.Sequential(weight_norm(torch.nn.Linear(2, 2)), linear)


def weight_norm(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and everywhere
        return torch.nn.utils.weight_norm(module)


def test_a_module_that_keeps_results_is_copied():
    net, x = normed(), torch.ones(3, 2)
    expected = net(x)
    for copied in (
        xdevice.copy_to(net, "cpu"),
        xdevice.copy_to({"net": net, "x": x}, "cpu")["net"],
    ):
        assert torch.equal(copied(x), expected)
        copied(x).sum().backward()
        assert copied[0].weight_g.grad is not None
        assert net[0].weight_g.grad is None
        with torch.no_grad():
            copied[0].weight_g.zero_()
        assert torch.equal(net(x), expected)
    assert xdevice.device_of(xdevice.copy_to(net, "meta")).kind == "meta"


def test_a_module_that_pytorch_cannot_copy_is_named():
    net = torch.nn.Linear(2, 2)
    net.lock = threading.Lock()
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"copy this Linear \(cannot pickle .*lock.*load_state_dict",
    ):
        xdevice.copy_to([net, torch.ones(2)], "cpu")


# deprecated, in a class that changes with the version
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_torchscript_would_leave_behind_is_named():
    x = torch.ones(3, 2)
    scripted = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(2, 2)))
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(2, 2).eval()))
    places = ["meta"] if not xdevice.backend("torch").virtual else ["meta", "gpu:0"]
    for there in places:
        for verb in (xdevice.to_device, xdevice.copy_to):
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match=r"the ScriptModule 0 to .* before torch\.jit\.script",
            ):
                verb(scripted, there)
            with pytest.raises(
                xdevice.errors.UnsupportedError,
                match=r"torch\.jit\.freeze has put its tensors into its code",
            ):
                verb([frozen, x], there)
    copied = xdevice.copy_to(scripted, "cpu")
    assert torch.equal(copied(x), scripted(x))
    copied(x).sum().backward()
    assert copied[0].weight.grad is not None
    assert scripted[0].weight.grad is None
    assert xdevice.to_device(frozen, "cpu") is frozen
    assert xdevice.device_of(scripted) is xdevice.cpu()


@pytest.mark.parametrize(
    "make",
    [
        lambda net: xdevice.copy_to(net, "cpu"),
        lambda net: xdevice.parallel.replicate(net, ["cpu", "cpu"])[1],
        lambda net: xdevice.copy_to({"net": net}, "cpu")["net"],
        lambda net: xdevice.to_device(net, "cpu"),
    ],
)
def test_a_model_made_in_inference_mode_can_be_trained_outside(make):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with torch.inference_mode():
        net = make(net)
        assert torch.is_inference_mode_enabled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = net[0].weight.detach().clone()
    (net(torch.tensor([[1.0, 2.0], [3.0, 5.0]])) ** 3).sum().backward()
    optimizer.step()
    assert not any(x.is_inference() for x in (*net.parameters(), *net.buffers()))
    assert before.shape == net[0].weight.shape


def test_each_tensor_in_the_state_of_an_optimizer_has_its_own_name():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight]["history"] = [[torch.ones(1), torch.ones(1)], [torch.ones(1)]]
    names = [name for name, _ in xdevice.backend("torch").model_devices(optimizer)]
    assert names == [f"state[0]['history']{place}" for place in ("[0][0]", "[0][1]", "[1][0]")]
