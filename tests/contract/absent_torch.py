"""The steps of `absent_names.py` that only PyTorch has: its wrapped tensors, tracers, hooks, layouts and processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch

from xdevice.distributed.contract.processes import Group

nn = torch.nn
CPU = torch.device("cpu")


def wrapped_tensors(xd: Any) -> Any:
    """What stands for another tensor, whose memory holds garbage."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    said = []

    def read(x: Any) -> Any:
        said.append(refusal(lambda: xd.convert(x, "numpy")))
        return x.sum()

    read(FakeTensorMode().from_tensor(torch.ones(3)))
    torch.func.functionalize(read)(torch.ones(3))
    return said


def traced_numbers(xd: Any) -> Any:
    def noisy(x: Any) -> Any:
        return x + xd.random.normal(3)

    traced = (
        lambda: torch.fx.symbolic_trace(noisy),
        lambda: torch.jit.trace(noisy, torch.ones(3)),
    )
    return [refusal(ask) for ask in traced]


def registered_containers(xd: Any) -> Any:
    from torch.nn.utils.rnn import pack_sequence
    from torch.utils._pytree import register_pytree_node

    class Pair:
        def __init__(self, *parts: Any) -> None:
            self.parts = parts

    register_pytree_node(Pair, lambda pair: (pair.parts, None), lambda parts, _: Pair(*parts))
    pair = xd.copy_to(Pair(xd.ones(1), xd.zeros(1)), "cpu")
    packed = xd.copy_to(pack_sequence([torch.ones(2), torch.ones(1)]), "cpu")
    found = torch.futures.Future()
    found.set_result({"x": torch.ones(2)})
    held = str(xd.device_of([found])), str(xd.device_of(torch.ones(2).untyped_storage()))
    return len(pair.parts), packed.data.tolist(), held


def moved_by_itself(xd: Any) -> Any:
    class Metric(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.ones(2)

        def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
            self.total = fn(self.total)
            return super()._apply(fn, recurse)

    metric = xd.to_device(Metric(), xd.try_all_gpus()[-1])
    norm = nn.BatchNorm1d(2)
    twice = nn.Sequential(norm, nn.BatchNorm1d(2))
    twice[1].running_mean = norm.running_mean
    moved = xd.to_device(twice, xd.try_all_gpus()[-1])
    return xd.same_device(metric), moved[0].running_mean is moved[1].running_mean


def lazy_device(xd: Any) -> Any:
    import torch._lazy.ts_backend

    torch._lazy.ts_backend.init()
    return refusal(lambda: xd.sync())


def modes(xd: Any) -> Any:
    from xdevice_torch.blocking import _Wait
    from xdevice_torch.modes import enter_mode
    from xdevice_torch.performance.graphs import Inputs, OnlyOn

    ends = [enter_mode(mode) for mode in (_Wait(xd.backend()), Inputs(), OnlyOn(CPU))]
    made = (torch.ones(2) + 1).tolist(), xd.to_numpy(xd.tensor([1.0, 2.0])).tolist()
    for end in ends:
        end()
    return made


def inner_gradients(xd: Any) -> Any:
    return refusal(
        lambda: torch.func.grad(lambda x: xd.math.value_and_grad(lambda y: y * y)(x)[0])(
            torch.tensor(2.0)
        )
    )


def one_kernel(xd: Any) -> Any:
    params = {"w": xd.ones(3)}
    params, _ = xd.optim.adam(params, params, xd.optim.init(xd.optim.adam, params), lr=0.5)
    return xd.to_numpy(params["w"]).round(3).tolist()


def kinds_of_layers(xd: Any) -> Any:
    weight_norm = nn.utils.parametrizations.weight_norm
    net = nn.Sequential(
        nn.Conv1d(2, 2, 1),
        nn.ZeroPad1d(1),
        nn.InstanceNorm1d(2, affine=True),
        nn.BatchNorm1d(2),
    )
    net.append(weight_norm(nn.Linear(4, 3)))
    hooked = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    hooked[1].register_forward_hook(lambda *_: None)
    hooked[1].register_forward_pre_hook(lambda *_: None)
    backend = xd.backend()
    kinds = [
        (layer.path, layer.kind)
        for model in (net, hooked)
        for layer in backend.operations(model, backend.layers(model))
    ]
    return kinds, [layer.kind for layer in backend.layers(nn.MultiheadAttention(4, 2))]


def hidden_calls(xd: Any) -> Any:
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].compile(backend="eager")

    def traced() -> None:
        with xd.parity.capture_intermediates(net):
            net(torch.ones(1, 2))

    return refusal(traced)


def hooked_optimizer(xd: Any) -> Any:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        register(lambda *_: None)
    return [
        sorted(map(str, one.settings.items()))
        for one in xd.backend().optimizer(optimizer).parameters
    ]


def programs(xd: Any) -> Any:
    """What a compiled function may do beside plain operations."""
    z = torch.tensor([1.0 + 2.0j, 3.0j])

    def turned(x: Any) -> Any:
        y = (x * 2).t_()
        return y.contiguous() + torch.ops.aten._efficientzerotensor(y.shape)

    for function, x in (
        (turned, torch.ones(2, 3)),
        (lambda x: x.conj().imag + x.conj().real, z),
    ):
        compiled = xd.compile(function)
        made = [compiled(x).sum() for _ in range(2)]
        assert made[0] == made[1] == function(x).sum(), made
    with CPU:
        again = xd.compile(lambda x: x + 1)
        return [again(torch.ones(2)).tolist() for _ in range(2)]


def several_processes(xd: Any) -> Any:
    group = Group(0, 1, 0, 1, xd.cpu(), "127.0.0.1", 30.0, lambda text: [text], wait_until)
    engine = xd.backend().start_engine("gloo", group)
    total = engine.all_reduce(torch.ones(2), "sum").tolist()
    tensors = [torch.zeros(2), torch.zeros(3)]
    engine.unpack(engine.pack([torch.ones(2), torch.ones(3)]), tensors)
    engine.close()
    native = xd.backend().start_native_group(group)
    with native.scope:
        x = torch.ones(2)
        torch.distributed.all_reduce(x)
    native.close()
    return total, [x.tolist() for x in tensors], x.tolist()


def wait_until(is_done: Callable[[float], bool]) -> None:
    while not is_done(0.1):
        pass


def virtual_gpus(xd: Any) -> Any:
    """Whatever virtual GPUs replace in PyTorch; nothing without them."""
    if not xd.backend().virtual:
        return None
    there = torch.device("vgpu", 1)
    x = torch.arange(6.0, device=there).reshape(2, 3).requires_grad_()
    z = torch.tensor([1.0 + 2.0j], device=there)
    sparse = torch.eye(2).to_sparse().to(there)
    net, lstm = nn.Linear(3, 2), nn.LSTM(3, 2).to(there)
    net.weight.register_hook(lambda g: g * 2)
    net.weight.register_post_accumulate_grad_hook(lambda p: None)
    net.to(there)
    net(x).sum().backward()
    packed = nn.utils.rnn.pack_sequence(
        [torch.ones(2, 3, device=there), torch.ones(1, 3, device=there)]
    )
    accelerator = torch.accelerator
    with accelerator.device_index(1):
        places = [
            str(one.device)
            for one in (torch.tensor(1.0, device="vgpu"), torch.ones(1).to("vgpu"), x.new(2))
        ]
    accelerator.synchronize()
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    dual = torch.func.jvp(lambda t: t * 2, (x.detach(),), (x.detach(),))[1]
    said = [
        refusal(ask)
        for ask in (
            accelerator.memory_allocated, accelerator.get_memory_info, lambda: x.detach().pin_memory(),
            lambda: accelerator.set_stream(None), lambda: torch.eye(2).to_sparse_csr().to(there),
            lambda: nn.DataParallel(nn.Linear(3, 2).to("vgpu:0"), [0, 1])(torch.ones(2, 3, device="vgpu:0")),
        )
    ]  # fmt: skip
    values = (
        net.weight.grad,
        z.conj().imag,
        (z.conj() * z).real,
        sparse @ sparse.to_dense(),
        dual,
    )
    sent = pickle.loads(pickle.dumps(x.detach()))
    return (
        [one.tolist() for one in values],
        lstm(packed)[0].data.shape,
        places,
        said,
        str(sent.device),
    )


def cuda_by_name(xd: Any) -> Any:
    if not xd.backend().virtual:
        return None
    xd.backend().take_for_cuda(xd.gpu(1))
    torch.set_default_device(None)
    return (
        str(torch.ones(2, device="cuda").device),
        torch.cuda.is_available(),
        torch.backends.cuda.is_built(),
    )


def refusal(ask: Callable[[], Any]) -> str:
    """The error by which something is refused as it should be. One that says what is lacking is no such error."""
    from xdevice.contract.private import AbsentNameError

    try:
        return f"not refused: {ask()}"
    except AbsentNameError:
        raise
    except Exception as error:
        return type(error).__name__


STEPS = {
    "wrapped tensors": ("conversion", wrapped_tensors), "traced numbers": ("random numbers", traced_numbers),
    "registered containers": ("containers", registered_containers), "moved by itself": ("models", moved_by_itself),
    "modes": ("blocking", modes), "inner gradients": ("gradients", inner_gradients), "one kernel": ("nn", one_kernel),
    "kinds of layers": ("layers", kinds_of_layers), "hidden calls": ("layers' calls", hidden_calls),
    "hooked optimizer": ("optimizers", hooked_optimizer), "programs": ("compile", programs),
    "several processes": ("several processes", several_processes), "virtual GPUs": ("virtual GPUs", virtual_gpus),
    "cuda by name": ("--xd-cuda", cuda_by_name), "lazy device": ("waiting", lazy_device),
}  # fmt: skip
