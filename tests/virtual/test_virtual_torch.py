"""What PyTorch's own code sees of virtual GPUs: XDEVICE_VIRTUAL_GPUS=4 pytest tests/virtual/test_virtual_torch.py"""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest
from helpers.environment import python

import xdevice

pytestmark = pytest.mark.virtual

torch = pytest.importorskip("torch")
HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def _torch():
    with xdevice.use_backend("torch") as backend:
        if backend.virtual < 4:
            pytest.skip("needs XDEVICE_VIRTUAL_GPUS=4")
        yield


@pytest.fixture
def gpu():
    return xdevice.gpu(1).native


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Dropout(0.0), torch.nn.Linear(27, 4),
    )  # fmt: skip


def trained(place, optimizer, steps=4):
    """The parameters after some steps, the model being made on the host."""
    model = net().to(place)
    step = optimizer(model.parameters())
    torch.manual_seed(1)
    x, y = torch.rand(8, 1, 8, 8).to(place), torch.arange(8).remainder(4).to(place)
    for _ in range(steps):
        step.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
    ],
)
def test_training_gives_what_it_gives_on_the_host(gpu, optimizer):
    for there, here in zip(trained(gpu, optimizer), trained(HOST, optimizer), strict=True):
        torch.testing.assert_close(there, here)


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: torch.nn.LSTM(4, 3, batch_first=True), 1),
        (lambda: torch.nn.GRU(4, 3), 1),
        (lambda: torch.nn.RNN(4, 3), 1),
        (lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 1),
        (lambda: torch.nn.MultiheadAttention(4, 2), 3),
    ],
)
def test_layers_with_fused_kernels_give_what_they_give_on_the_host(gpu, layer, inputs):
    here = layer()
    there = copy.deepcopy(here).to(gpu)
    found = []
    for module, place in ((here, HOST), (there, gpu)):
        x = torch.linspace(0, 1, 24).reshape(2, 3, 4).to(place)
        out = module(*[x] * inputs)
        out = out if isinstance(out, torch.Tensor) else out[0]
        out.sum().backward()
        assert out.device == place
        found.append([out, *(p.grad for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)


def test_a_packed_sequence_goes_through_an_lstm(gpu):
    here = torch.nn.LSTM(3, 4)
    there = copy.deepcopy(here).to(gpu)
    x, lengths = torch.rand(3, 2, 3), torch.tensor([3, 2])
    pack = torch.nn.utils.rnn.pack_padded_sequence
    out, _ = there(pack(x.to(gpu), lengths))
    assert out.batch_sizes.device == HOST
    torch.testing.assert_close(out.data.cpu(), here(pack(x, lengths))[0].data)


def test_operands_on_two_devices_are_an_error_as_on_cuda(gpu):
    x = torch.ones(2, device=gpu)
    for other in (torch.ones(2), torch.ones(2, device="vgpu:2")):
        for operation in (
            torch.add,
            torch.dot,
            lambda a, b: torch.stack([a, b]),
            lambda a, b: a.add_(b),
        ):
            with pytest.raises(
                RuntimeError, match=r"same device, but found at least two devices, .*vgpu:1"
            ):
                operation(x, other)
    assert (x + torch.tensor(1.0)).tolist() == [2, 2], "a number on the host goes along"
    assert x[torch.tensor([0])].device == gpu, "indices on the host go along"
    with pytest.raises(RuntimeError, match="invalid device ordinal 9"):
        torch.ones(2, device="vgpu:9")


def test_a_host_tensor_is_an_error_where_cuda_refuses_it(gpu):
    c, i = torch.arange(4.0), torch.tensor([0, 2])
    g, gi = c.to(gpu), i.to(gpu)
    total, out = torch.tensor(0.0), torch.zeros(())
    for write in (
        lambda: total.add_(g.sum()),
        lambda: torch.add(g[0], g[1], out=out),
        lambda: torch._foreach_add_([total], [g.sum()]),
        lambda: c[gi],
        lambda: c[c.to(gpu) > 1],
        lambda: c.__setitem__(gi, torch.ones(2)),
        lambda: c.__setitem__(i, torch.ones(2, device=gpu)),
        lambda: g.__setitem__(i, torch.ones(2)),
        lambda: g.__setitem__(gi, torch.ones(2)),
        lambda: g[gi.to("vgpu:2")],
    ):
        with pytest.raises(RuntimeError, match="same device, but found at least two devices"):
            write()
    assert (total.item(), out.item(), c.tolist(), g.tolist()) == (
        0,
        0,
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    )


def test_a_host_tensor_goes_along_where_cuda_takes_it(gpu):
    g, i, one = torch.arange(4.0, device=gpu), torch.tensor([0, 2]), torch.tensor(1.0)
    assert (g + one).device == g[i].device == g[g.cpu() > 1].device == gpu
    g[i] = 5.0
    g[torch.tensor([1])] = one
    g.add_(one)
    torch._foreach_add_([g], one)
    assert g.tolist() == [7, 3, 7, 5]
    c, total = torch.zeros(4), torch.zeros(())
    c[i] = g.sum()
    c[c < 1] = torch.ones((), device=gpu)
    g[i] = torch.ones((), device="vgpu:2")
    total.copy_(g.sum())
    torch._foreach_copy_([total], [total.to(gpu) + 1])
    assert (c.tolist(), g.tolist(), total.item()) == ([22, 1, 22, 1], [1, 3, 1, 5], 11)
    assert c.index_put((i,), g.sum()).device == total.device == HOST


def test_ctc_loss_takes_lengths_from_the_host(gpu):
    torch.manual_seed(0)
    scores, targets, lengths = (
        torch.randn(4, 1, 5),
        torch.tensor([[1, 2]]),
        (torch.tensor([4]), torch.tensor([2])),
    )
    found = []
    for place in (HOST, gpu):
        x = scores.clone().to(place).requires_grad_()
        loss = torch.nn.functional.ctc_loss(x.log_softmax(-1), targets.to(place), *lengths)
        loss.backward()
        assert loss.device == x.grad.device == place
        with torch.inference_mode():
            again = torch.nn.functional.ctc_loss(x.log_softmax(-1), targets.to(place), *lengths)
        found.append([loss.detach().cpu(), x.grad.cpu(), again.cpu()])
    torch.testing.assert_close(*found)


def test_new_tensors_are_where_their_source_is(gpu):
    for x in (torch.ones(3, device=gpu), torch.nn.Parameter(torch.ones(3, device=gpu))):
        for new in (x.new_tensor([1.0]), x.new(2), x.new([1.0, 2.0]), x.new(), x.new(x)):
            assert (new.device, new.dtype) == (gpu, torch.float32)
        assert x.new(x).data_ptr() == x.data_ptr()
        assert {str(x.new(what, device="vgpu:2").device) for what in (2, [1.0])} == {"vgpu:2"}
        assert x.new_tensor([1], device="cpu").device == HOST
        made = x.new_tensor([1.0], dtype=torch.double, device="vgpu:2", requires_grad=True)
        assert (str(made.device), made.dtype, made.requires_grad) == (
            "vgpu:2",
            torch.double,
            True,
        )
    assert torch.vgpu.current_device() == 0


def test_a_move_in_inference_mode_is_a_copy(gpu):
    with torch.inference_mode():
        x = torch.zeros(2, device=gpu)
        for place in ("vgpu:2", "cpu"):
            moved = x.to(place)
            moved += 1
            assert str(moved.device) == place
        assert x.to(gpu) is x
        assert x.tolist() == [0, 0]


def test_views_and_changes_in_place(gpu):
    x = torch.zeros(2, 3, device=gpu)
    row = x[0]
    row += 1
    x[:, 1] = 5
    x[x > 4] = 7
    assert x.tolist() == [[1, 7, 1], [0, 7, 0]]
    assert row.tolist() == [1, 7, 1]
    assert x.data_ptr() == row.data_ptr() == x.view(6).data_ptr() != x.clone().data_ptr()
    x.t_()
    assert (tuple(x.shape), x.is_contiguous()) == ((3, 2), False)
    out = torch.empty(0, device=gpu)
    assert torch.add(row, row, out=out) is out
    assert out.tolist() == [2, 14, 2]
    out.data = torch.zeros(4, device=gpu)
    assert tuple(out.shape) == (4,)


def test_gradients_cross_devices_and_threads(gpu):
    for start in (HOST, gpu):
        x = torch.ones(3, device=start, requires_grad=True)
        y = (x * 2).to("vgpu:3") * 3
        grad = torch.ones(3, device="vgpu:3")
        thread = threading.Thread(target=lambda y=y, grad=grad: y.backward(grad))
        thread.start()
        thread.join()
        assert x.grad.device == start
        assert x.grad.tolist() == [6, 6, 6]
    assert torch._C._is_multithreading_enabled()


def test_derivatives_are_right(gpu):
    x = torch.rand(3, dtype=torch.double, device=gpu, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: (v**3).sum() / v.norm(), x)
    assert torch.autograd.gradgradcheck(lambda v: (v**3).sum(), x)


# of jvp, on the host too; its class changes
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
# of linearize, on the host too
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_forward_mode_derivatives_are_those_of_the_host(gpu):
    func = torch.func
    here = torch.nn.Linear(3, 2)
    there = copy.deepcopy(here).to(gpu)
    found = []
    for layer, place in ((here, HOST), (there, gpu)):
        x = torch.linspace(1, 2, 3, device=place)
        cube = lambda t: (t**3).sum() / 2  # noqa: E731
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x) / 2
            tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
        out, along = func.linearize(lambda t: t / 2 + t.exp(), x)
        found.append(
            [
                *func.jvp(lambda t: t * 2, (x,), (x,)),
                *func.jvp(layer, (x,), (x,)),
                func.hessian(cube)(x),
                func.jacfwd(layer)(x),
                func.jacrev(layer)(x),
                func.vmap(func.grad(cube))(torch.stack([x, x * 2])),
                tangent,
                out,
                along(x),
            ]
        )
        assert {value.device for value in found[-1]} == {place}
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b.cpu(), a)


def test_a_change_of_what_backward_needs_is_noticed(gpu):
    x = torch.ones(2, device=gpu, requires_grad=True)
    y = x * 2
    z = y * y
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_parameters_stay_the_same_objects_when_a_module_moves(gpu):
    model = net()
    before = list(model.parameters())
    model(torch.ones(2, 1, 8, 8)).sum().backward()
    for place in (gpu, "vgpu:2", "cpu", gpu):
        model.to(place)
        for p, old in zip(model.parameters(), before, strict=True):
            assert p is old
            assert isinstance(p, torch.nn.Parameter)
            assert p.device == p.grad.device == torch.device(place)


def test_hooks_on_a_parameter_are_called_after_a_move(gpu):
    layer, called = torch.nn.Linear(2, 2), []
    layer.weight.register_hook(lambda gradient: called.append(("gradient", gradient.device)))
    layer.weight.register_post_accumulate_grad_hook(
        lambda p: called.append(("accumulated", p.grad.device))
    )
    for place in (gpu, xdevice.gpu(2).native, HOST):
        called.clear()
        layer.to(place)
        layer(torch.ones(1, 2, device=place)).sum().backward()
        assert called == [("gradient", place), ("accumulated", place)]


def test_lazy_modules_move_before_they_have_a_shape(gpu):
    model = torch.nn.Sequential(
        torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(1)
    )
    linear = torch.nn.Sequential(torch.nn.LazyLinear(3))
    for place in (gpu, "cpu", "vgpu:2", gpu):
        model.to(place), linear.to(place)
    # PyTorch copies no lazy batch norm, on the CPU either
    for one in (model, copy.deepcopy(linear)):
        one(torch.ones(2, 4, device=gpu)).sum().backward()
        assert {p.device for p in (*one.parameters(), *one.buffers())} == {gpu}
        assert all(isinstance(p, torch.nn.Parameter) for p in one.parameters())
    assert (
        torch.nn.LazyLinear(2).to("cpu").double()(torch.ones(1, 3).double()).dtype
        is torch.double
    )


def test_files_remember_the_device_and_obey_map_location(gpu):
    def loaded(thing, place):
        file = io.BytesIO()
        torch.save(thing, file)
        file.seek(0)
        return torch.load(file, map_location=place)

    for source in (gpu, HOST):
        state = {
            "x": torch.arange(6.0).reshape(2, 3)[:, 1:].to(source),
            "net": net().to(source).state_dict(),
        }
        for place in (None, "cpu", "vgpu:3"):
            back = loaded(state, place)
            wanted = torch.device(place) if place else source
            assert back["x"].device == back["net"]["0.weight"].device == wanted
            assert (back["x"] + 1).tolist() == [[2, 3], [5, 6]]
    copied = copy.deepcopy(torch.ones(2, device=gpu, requires_grad=True))
    assert (copied.device, copied.requires_grad) == (gpu, True)


def test_numbers_are_those_of_the_host_with_the_same_seed(gpu):
    for draw in (
        torch.rand,
        torch.randn,
        lambda *shape, device: torch.randperm(9, device=device),
    ):
        torch.manual_seed(3)
        there = draw(2, 3, device=gpu)
        torch.manual_seed(3)
        assert there.device == gpu
        assert (there.cpu() == draw(2, 3, device=HOST)).all()


def test_scopes_hold_for_one_thread(gpu):
    seen = []
    with xdevice.gpu(2):
        assert (
            torch.ones(1).device
            == torch.tensor([1]).device
            == torch.nn.Linear(1, 1).weight.device
        )
        thread = threading.Thread(
            target=lambda: seen.append((torch.ones(1).device, torch.vgpu.current_device()))
        )
        thread.start()
        thread.join()
    with torch.vgpu.device(3):
        assert torch.ones(1, device="vgpu").device.index == 3
        assert xdevice.device(torch.device("vgpu")) is xdevice.gpu(3)
    assert xdevice.device(gpu.type) is xdevice.gpu(0)
    assert seen == [(HOST, 0)]
    assert torch.vgpu.current_device() == 0


def test_what_loads_data_draws_its_order_where_its_generator_is():
    from torch.utils import data

    numbers = data.TensorDataset(torch.arange(10.0))

    def orders():
        torch.manual_seed(0)
        return [
            [x.tolist() for (x,) in data.DataLoader(numbers, batch_size=3, shuffle=True)],
            [list(part) for part in data.random_split(range(10), [7, 3])],
            list(data.RandomSampler(numbers, replacement=True, num_samples=40)),
            list(data.DistributedSampler(numbers, num_replicas=2, rank=0)),
        ]

    expected = orders()
    with xdevice.gpu(1):
        assert orders() == expected
        assert torch.get_default_device() == torch.ones(1).device == torch.device("vgpu", 1)
        with pytest.raises(RuntimeError, match="device type for generator"):
            # a program's own draw is refused, as by PyTorch
            torch.randperm(3, generator=torch.Generator())
        compiled = torch.compile(lambda x: x + torch.ones(3), backend="eager", fullgraph=True)
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
    xdevice.set_default_device("gpu:2")
    try:
        assert orders() == expected
    finally:
        xdevice.set_default_device(None)


def test_values_are_printed_with_their_device(gpu):
    x = torch.tensor([1.5], device=gpu, requires_grad=True)
    assert repr(x) == "tensor([1.5000], device='vgpu:1', requires_grad=True)"
    assert repr(x.sum()) == "tensor(1.5000, device='vgpu:1', grad_fn=<SumBackward0>)"
    assert repr(torch.nn.Parameter(x.detach())).startswith(
        "Parameter containing:\ntensor([1.5000], device='vgpu:1'"
    )
    assert f"{x.sum():.1f}" == "1.5"
    assert (x.sum().item(), x.tolist(), float(x.detach())) == (1.5, [1.5], 1.5)


def test_a_tensor_becomes_an_array_only_by_way_of_the_host(gpu):
    import numpy as np

    x = torch.ones(2, device=gpu)
    for read in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
            read()
    assert x.cpu().numpy().tolist() == [1, 1]


def test_what_asks_the_accelerator_works(gpu):
    assert torch.accelerator.current_accelerator().type == "vgpu"
    assert torch.accelerator.device_count() == 4
    torch.accelerator.synchronize()
    torch.vgpu.synchronize(1)
    with pytest.raises(RuntimeError, match="invalid device ordinal 7"):
        torch.accelerator.synchronize(7)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="set a limit: XDEVICE_VIRTUAL_GPUS=2:memory=8GB"
    ):
        torch.accelerator.get_memory_info()
    with pytest.raises(xdevice.errors.UnsupportedError, match="remove the call of torch"):
        torch.accelerator.set_stream(torch.accelerator.current_stream())
    torch.accelerator.empty_cache(), torch.accelerator.empty_host_cache()
    assert torch.ones(2).pin_memory().tolist() == [1, 1]
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    batches = [
        x.to(gpu, non_blocking=True)
        for (x,) in torch.utils.data.DataLoader(data, 2, pin_memory=True)
    ]
    assert torch.cat(batches).tolist() == [0, 1, 2, 3]


def test_autocast_changes_nothing(gpu):
    x = torch.ones(2, 2, device=gpu)
    with torch.autocast("vgpu", torch.float16), torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype is torch.float32


def test_a_real_gpu_is_not_taken_for_a_virtual_one():
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="cuda:0 while its GPUs are virtual"
    ):
        xdevice.device(torch.device("cuda:0"))


def test_transfers_are_seen(gpu):
    x = torch.ones(2, device=gpu)
    with xdevice.transfers() as log:
        x.tolist()
        x.sum().item()
        x.cpu()
        x.to("vgpu:2")
        repr(x)
    assert [(record.how, str(record.source), str(record.destination)) for record in log] == [
        ("tolist", "gpu:1", "cpu:0"),
        ("item", "gpu:1", "cpu:0"),
        ("cpu", "gpu:1", "cpu:0"),
        ("to", "gpu:1", "gpu:2"),
        ("print", "gpu:1", "cpu:0"),
    ]


def test_the_current_device_is_the_one_chosen(gpu):
    accelerator, host = torch.accelerator, torch.ones(2)
    try:
        with accelerator.device_index(2):
            assert accelerator.current_device_index() == 2
        assert accelerator.current_device_index() == 0
        accelerator.set_device_index(1)
        place = accelerator.current_accelerator()
        for made in (
            torch.ones(1, device=place), host.to(place), host.to(device="vgpu"), torch.tensor([1.0], device="vgpu"),
            torch.as_tensor([1.0], device=place), host.vgpu(), torch.nn.Linear(2, 1).to(place).weight,
        ):  # fmt: skip
            assert made.device == gpu
        x = torch.ones(1, device=gpu)
        assert x.to("vgpu") is x
        with pytest.raises(RuntimeError, match="invalid device ordinal 9"):
            accelerator.set_device_index(9)
        assert accelerator.current_device_index() == 1
    finally:
        accelerator.set_device_index(0)


class Boxes(torch.Tensor):
    """A tensor with a class and attributes of its own, as `tv_tensors` are."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return (
            out.as_subclass(cls)
            if isinstance(out, torch.Tensor) and func is not torch.Tensor.sum
            else out
        )


def test_subclasses_of_tensors_move_and_compute(gpu):
    here = torch.arange(4.0).as_subclass(Boxes)
    there = here.to(gpu)
    for x in (there, there * 2, there[1:], there.clone(), there.cpu()):
        assert type(x) is Boxes
    assert (there.device, (there * 2).tolist(), there.sum().item()) == (gpu, [0, 2, 4, 6], 6)
    with pytest.raises(RuntimeError, match="found at least two devices"):
        there + here


def test_a_tensor_has_the_class_that_it_has_on_cuda(gpu):
    assert type(torch.ones(2, device=gpu)) is torch.Tensor
    assert type(torch.nn.Linear(1, 1).to(gpu).weight) is torch.nn.Parameter


def test_contents_go_to_a_device_and_back(gpu):
    p = torch.nn.Parameter(torch.ones(2))
    for place in (gpu, HOST, gpu):
        p.data = p.data.to(place)
        assert (p.device, p.requires_grad, type(p)) == (place, True, torch.nn.Parameter)
        (p * 2).sum().backward()
        assert p.grad.device == place
    one = torch.ones((), device=gpu)
    assert torch.tensor([one, one]).tolist() == [1, 1]


def test_conjugates_and_negatives_keep_their_sign(gpu):
    z = torch.ones(2, 2, dtype=torch.cfloat) * 1j
    for value in (
        lambda x: x.conj().imag + 1,
        lambda x: torch.view_as_real(x.mH @ x),
        lambda x: x.conj().tolist(),
    ):
        torch.testing.assert_close(*(torch.as_tensor(value(x)).cpu() for x in (z, z.to(gpu))))


def test_sparse_embeddings_train_as_on_the_host(gpu):
    found = []
    for place in (HOST, gpu):
        torch.manual_seed(0)
        layer = torch.nn.Embedding(5, 3, sparse=True).to(place)
        optimizer = torch.optim.SparseAdam(layer.parameters())
        layer(torch.tensor([1, 1, 2], device=place)).pow(2).sum().backward()
        assert layer.weight.grad.device == place
        optimizer.step()
        found.append(layer.weight.detach().cpu())
    torch.testing.assert_close(*found)


# PyTorch's, that these are in beta, prototypes, or deprecated
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_layouts_that_are_not_there_are_refused_by_name(gpu):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    for x in (
        torch.eye(3).to_sparse_csr(),
        torch.eye(4).to_sparse_bsr((2, 2)),
        nested,
        quantized,
    ):
        with pytest.raises(
            xdevice.errors.UnsupportedError,
            match=r"torch's virtual GPUs do not support .* tensors",
        ):
            x.to(gpu)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="do not support sparse_csc tensors"
    ):
        torch.eye(3, device=gpu).to_sparse_csc()
    model = torch.nn.DataParallel(torch.nn.Linear(2, 1).to("vgpu:0"), device_ids=[0, 1])
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"DataParallel .*use xdevice\.parallel\.replicate",
    ):
        model(torch.ones(2, 2, device="vgpu:0"))


def test_what_cuda_refuses_is_refused(gpu):
    x = torch.ones(3, 2, 3, device=gpu)
    data = torch.utils.data.TensorDataset(x)
    for message, use in (
        (
            "1D CPU int64",
            lambda: torch.nn.utils.rnn.pack_padded_sequence(
                x, torch.tensor([3, 2], device=gpu)
            ),
        ),
        (
            "device type for generator",
            lambda: torch.randn(2, device=gpu, generator=torch.Generator()),
        ),
        ("device type for generator", lambda: x.normal_(generator=torch.Generator())),
        ("only dense CPU tensors can be pinned", x.pin_memory),
        (
            "only dense CPU tensors can be pinned",
            lambda: torch.ones(2, device=gpu, pin_memory=True),
        ),
        (
            "only dense CPU tensors can be pinned",
            lambda: list(torch.utils.data.DataLoader(data, pin_memory=True)),
        ),
    ):
        with pytest.raises(RuntimeError, match=message):
            use()


def test_a_generator_of_a_gpu_draws_there_from_its_seed():
    drawn = torch.rand(5, generator=torch.Generator().manual_seed(3))
    for spelled, index in (("vgpu", 0), ("vgpu:1", 1), (torch.device("vgpu", 2), 2)):
        generator = torch.Generator(device=spelled).manual_seed(3)
        assert generator.device == torch.device("vgpu", index)
        x = torch.rand(5, generator=generator, device=generator.device)
        assert x.device == generator.device
        assert x.tolist() == drawn.tolist()
        hosts = torch.Generator().manual_seed(3)
        torch.rand(5, generator=hosts)
        assert (
            x.normal_(generator=generator).tolist()
            == torch.empty(5).normal_(generator=hosts).tolist()
        )
    with torch.device("vgpu:1"):
        loader = torch.utils.data.DataLoader(
            range(8), shuffle=True, generator=torch.Generator("vgpu:1")
        )
        assert sorted(int(x) for x in loader) == [*range(8)]
    assert torch.Generator().device == torch.device("cpu")
    assert isinstance(torch.default_generator, torch.Generator)
    assert not isinstance(3, torch.Generator)


def test_a_subclass_of_the_generator_is_its_own_class():
    class Counted(torch.Generator):
        pass

    assert isinstance(Counted("vgpu"), Counted)
    assert not isinstance(torch.default_generator, Counted)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"subclass of torch\.Generator on cpu"
    ):
        Counted()


def test_a_generator_is_forgotten_with_its_object():
    from xdevice_torch.virtual import virtual_generators

    gone = torch.Generator("vgpu")
    address = gone._cdata
    assert address in virtual_generators._addresses
    del gone
    assert address not in virtual_generators._addresses


class Marked(torch.Tensor):
    """A tensor class of a user's, which pickle finds by its name."""


def test_the_first_tensor_of_a_kind_may_be_made_in_inference_mode(gpu):
    with torch.inference_mode():
        torch.ones(2, dtype=torch.complex128, device=gpu)  # no other test uses it on gpu:1
    x = torch.ones(2, dtype=torch.complex128, device=gpu, requires_grad=True)
    (x * 2).abs().sum().backward()
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("is_legacy", [False, True])
def test_torch_saves_and_loads_in_both_formats(gpu, is_legacy):
    x = torch.arange(6.0, device=gpu).reshape(2, 3)

    def loaded(saved, **how):
        file = io.BytesIO()
        torch.save(saved, file, _use_new_zipfile_serialization=not is_legacy)
        file.seek(0)
        return torch.load(file, **how)

    whole, row = loaded((x, x[1]))
    assert whole.device == row.device == gpu
    assert torch.equal(whole, x)
    whole[1, 0] = 9
    assert row[0] == 9
    assert x[1, 0] == 3
    for place in ("cpu", "vgpu:0"):
        moved = loaded(x, map_location=place)
        assert str(moved.device) == place
        assert torch.equal(moved.cpu(), x.cpu())
    assert torch.equal(loaded(x.cpu(), map_location=gpu), x)
    model = loaded(torch.nn.Linear(3, 2).to(gpu), weights_only=False)
    model(x).sum().backward()
    assert type(model.weight) is torch.nn.Parameter
    assert model.weight.grad.device == gpu


def test_pickle_keeps_values_devices_and_kinds(gpu):
    x = torch.arange(6.0, device=gpu).reshape(2, 3)
    kept = (
        x,
        x.t(),
        x[:0],
        x.sum(),
        x.bfloat16(),
        x > 2,
        (x * 1j).conj(),
        x.clone().requires_grad_(),
    )
    for one in (*kept, torch.nn.Parameter(x), x.as_subclass(Marked)):
        for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
            new = pickle.loads(pickle.dumps(one, protocol=protocol))
            assert (type(new), new.device, new.requires_grad) == (
                type(one),
                gpu,
                one.requires_grad,
            )
            assert torch.equal(new, one)


def test_processes_send_each_other_tensors(gpu):
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    x = torch.arange(6.0, device=gpu).reshape(2, 3)
    for one in (x, x.t(), torch.nn.Parameter(x)):
        queue.put(one)
        new = queue.get()
        assert (type(new), new.device, new.requires_grad) == (type(one), gpu, one.requires_grad)
        assert torch.equal(new, one)


def test_torch_compile_runs_the_graph_and_says_so(gpu):
    here, x = torch.nn.Linear(3, 2), torch.rand(4, 3)
    there = torch.compile(copy.deepcopy(here).to(gpu), fullgraph=True)
    with pytest.warns(UserWarning, match="does not compile for virtual GPUs"):
        there(x.to(gpu)).sum().backward()
    here(x).sum().backward()
    torch.testing.assert_close(there.weight.grad.cpu(), here.weight.grad)


@pytest.mark.parametrize("make", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells_give_what_they_give_on_the_host(gpu, make):
    here = make(4, 3)
    there, x = copy.deepcopy(here).to(gpu), torch.rand(2, 4)
    first = lambda out: out[0] if isinstance(out, tuple) else out  # noqa: E731
    torch.testing.assert_close(first(there(x.to(gpu))).cpu(), first(here(x)))
    with torch.inference_mode():
        torch.testing.assert_close(first(there(x.to(gpu))).cpu(), first(here(x)))


FORKED = """
import torch, xdevice
xdevice.set_backend("torch")
x = xdevice.tensor([0.0, 1.0, 2.0, 3.0], device="gpu:1")
try:
    next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 2, num_workers=1)))
except RuntimeError as error:
    print(error)
"""


def test_a_forked_worker_is_told_that_it_cannot_use_them():
    done = python("-W", "ignore", "-c", FORKED, XDEVICE_VIRTUAL_GPUS="2")
    assert done.returncode == 0, done.stderr
    assert "Cannot re-initialize vgpu in forked subprocess" in done.stdout, done.stdout
    assert "'spawn'" in done.stdout
