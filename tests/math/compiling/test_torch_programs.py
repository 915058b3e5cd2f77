"""A compiled function of PyTorch's own operations: its program gives bit for bit what the function gives, at each call
and for other values, and what a program would repeat wrongly is refused."""

from __future__ import annotations

import copy
import math
import warnings
from contextlib import contextmanager
from itertools import cycle

import numpy as np
import pytest
from helpers.environment import BACKENDS

import xdevice

if "torch" not in BACKENDS:
    pytest.skip("needs torch", allow_module_level=True)

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

here, weight = torch.tensor([2.0, 3.0, 5.0]), torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def place(request, monkeypatch):
    monkeypatch.setitem(globals(), "here", here.to(request.param, copy=True))
    monkeypatch.setitem(
        globals(), "weight", torch.nn.Parameter(weight.detach().to(request.param, copy=True))
    )
    with torch.device(request.param):
        yield request.param


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7


class Own(torch.Tensor):
    pass


class Seeing(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen += 1
        return function(*args, **(kwargs or {}))


def normal(*shape):
    return lambda: torch.randn(shape)


def turned():
    return torch.randn(3, 4).t()


def recorded():
    return torch.randn(3, requires_grad=True)


def by_turns(*make):
    turn = cycle(make)
    return lambda: next(turn)()


def into_own(x):
    y, z = x.clone(), torch.tensor([1.0, 1.0, 1.0])
    y[0] = 7.0
    y[1:].mul_(3)
    z += x
    y[y > 6] = 0.0
    return y, z, torch.mul(x, 2, out=torch.empty(3))


def into_an_array(x):
    y = torch.as_tensor(np.zeros(3, "float32"))
    y += x
    return y


def into_its_argument(x):
    x += 1
    return x * 2


def into_its_argument_and_on(x):
    x[1:].add_(torch.rand(2))
    return functional.dropout(x) * weight


def of_parameters(p):
    value, grads = xdevice.math.value_and_grad(lambda p: (p * p).sum())(p)
    return xdevice.math.update(p, grads, lambda p, g: p - 0.1 * g), value


def fitted(x, kernel):
    def loss(kernel):
        made = functional.conv2d(x, kernel, padding=1)
        return (
            functional.max_pool2d(functional.batch_norm(made, None, None, training=True), 2)
            .square()
            .mean()
        )

    return xdevice.math.value_and_grad(loss)(kernel)


def reshaped(x):
    y, z = x.clone(), x * 2
    y.unsqueeze_(0).mul_(3)
    return y, z.t_().detach().squeeze_().add_(1), z, torch.quantile(x, 0.5, dim=0)


GIVEN = {
    "a variable": (lambda x: x * here, normal(3)),
    "into its own tensors": (into_own, normal(3)),
    "into an array of its own": (into_an_array, normal(3)),
    "into its argument": (into_its_argument, normal(3)),
    "random numbers of PyTorch": (lambda x: functional.dropout(x + torch.rand(3) + torch.randn_like(x)), normal(3)),
    "indices": (lambda x: (x[torch.tensor([2, 0, 2])], x[1:, ::2], torch.topk(x, 2)), normal(4, 3)),
    "lists": (lambda x: (torch.split(x, 2), list(x), torch._foreach_add([x, x], 1.0)), normal(4, 3)),
    "strides": (lambda x: (x.reshape(-1), x.t().expand(2, 3, 4).reshape(2, -1)), by_turns(normal(4, 3), turned)),
    "layers": (fitted, normal(2, 3, 8, 8), normal(4, 3, 3, 3)),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), normal(2, 4, 5, 8)),
    "complex": (lambda x: torch.conj(torch.complex(x, x * 2)).imag * torch.fft.fft(x).real, normal(3)),
    "a parameter": (of_parameters, lambda: torch.nn.Parameter(torch.randn(3))),
    "what may require a gradient": (of_parameters, by_turns(normal(3), recorded)),
    "gradients of gradients": (
        xdevice.math.grad(lambda x: xdevice.math.grad(lambda x: (x**3).sum())(x).sum()), normal(3),
    ),
    "torch.func": (torch.func.grad(lambda x: torch.func.vmap(torch.sin)(x).sum()), normal(3)),
    "torch.func forward": (
        lambda x: (torch.func.jvp(torch.sin, (x,), (x,)), torch.func.hessian(lambda x: (x**3).sum())(x)), normal(3),
    ),
    "a backward pass by hand": (xdevice.math.grad(lambda x: Scaled.apply(x).sum()), normal(3)),
    "checkpoints": (xdevice.math.grad(lambda x: checkpoint(torch.sin, x, use_reentrant=False).sum()), normal(3)),
    "other shapes of its own tensors": (reshaped, normal(4, 3)),
    "spectra": (lambda x: torch.view_as_real(torch.stft(x, 8, window=torch.ones(8), return_complex=True)), normal(32)),
    "an argument that is to require a gradient": (
        lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0], normal(3),
    ),
    "no elements": (lambda x: (x * 2, x.sum()), normal(0, 3)),
    "a gradient that flows on": (lambda x: (x * weight).sum(), normal(3)),
    "a gradient that flows on, and effects": (into_its_argument_and_on, normal(3)),
    "a tensor that requires one": (lambda x: (x * x).sum(), by_turns(normal(3), recorded)),
    "gradients of a tensor on the way": (xdevice.math.grad(lambda x: (x * x).sum()), lambda: recorded() * 2),
    "a subclass": (lambda x: x * 2, lambda: torch.randn(3).as_subclass(Own)),
}  # fmt: skip


def twin(x):
    new = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.detach())
    return type(x)(new).requires_grad_(x.requires_grad)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by torch.func
@pytest.mark.parametrize("name", GIVEN)
def test_a_program_gives_what_the_function_gives(name, place):
    function, *make = GIVEN[name]
    compiled = xdevice.compile(function)
    for i in range(4):
        if i == 3:
            here.data = here * 2
        torch.manual_seed(i)
        given = [one() for one in make]
        others = [x if x.grad_fn else twin(x) for x in given]
        torch.manual_seed(i)
        wanted = torch.utils._pytree.tree_leaves(function(*given))
        torch.manual_seed(i)
        made = torch.utils._pytree.tree_leaves(compiled(*others))
        assert [*map(type, made)] == [*map(type, wanted)]
        for x, y in zip([*wanted, *given], [*made, *others], strict=True):
            assert torch.equal(x, y) or (place == "cuda" and torch.allclose(x, y))
            assert (x.dtype, x.stride(), x.requires_grad) == (
                y.dtype,
                y.stride(),
                y.requires_grad,
            )


def test_what_a_function_gives_back_is_no_other_tensor_of_the_program():
    compiled, x = (
        xdevice.compile(lambda x: (x, x.detach(), x[1:], here, torch.zeros(2))),
        torch.randn(3),
    )
    for _ in range(2):
        same, alias, part, outside, new = compiled(x)
        assert same is x
        assert alias is not x
        assert (alias.data_ptr(), part.data_ptr()) == (x.data_ptr(), x[1:].data_ptr())
        new += 1  # would be there at the next call
        assert new.tolist() == [1.0, 1.0]
        outside += 1
        assert here.tolist() == [2.0, 3.0, 5.0]


def backward(x):
    (weight * x).sum().backward()
    return x


def set_data(x):
    y = x * 2
    y.data = x
    return y


REFUSED = {
    "a value": lambda x: x * x[0].item(),
    "values": lambda x: x * x.tolist()[0],
    "an array": lambda x: x + torch.from_numpy(x.numpy()),
    "NumPy's array": lambda x: x + np.asarray(x).sum(),
    "a decision": lambda x: x if x.sum() > 0 else -x,
    "whether it is pinned": lambda x: x if x.is_pinned() else -x,
    "a comparison": lambda x: x if torch.equal(x, here) else -x,
    "an address": lambda x: x * (x.data_ptr() % 2),
    "memory": lambda x: torch.from_dlpack(x),
    "a pickle": lambda x: (x, len(x.__reduce_ex__(2))),
    "a deep copy": lambda x: copy.deepcopy(x),
    "a shape by values": lambda x: x[x > 0],
    "places by values": torch.nonzero,
    "unique values": torch.unique,
    "writing into a variable": lambda x: here.add_(x),
    "writing into a part of a variable": lambda x: here[:2].copy_(x[:2]),
    "backward into a variable": backward,
    "another shape": lambda x: x.unsqueeze_(0),
    "an array of a variable": lambda x: x * float(here.numpy()[0]),
    "NumPy's array of a variable": lambda x: x * float(np.asarray(here)[0]),
    "xdevice's array of a variable": lambda x: x * float(xdevice.to_numpy(here)[0]),
    "values of a variable": lambda x: x * here.tolist()[0],
    "the gradient of a variable": lambda x: x if weight.grad is None else x - weight.grad,
    "another size": lambda x: x.clone().resize_(2),
    "a default dtype": lambda x: x * (torch.set_default_dtype(torch.float64), torch.ones(3))[1],
    "a seed": lambda x: x + (torch.manual_seed(0), torch.rand(3))[1],
    "a seed after all": lambda x: (functional.dropout(x), torch.manual_seed(0))[0],
    "masks drawn again": xdevice.math.grad(
        lambda x: checkpoint(functional.dropout, x, use_reentrant=False).sum()
    ),
    "a generator": lambda x: (
        x + torch.rand(3, generator=torch.Generator(x.device).manual_seed(0))
    ),
    "a tensor of values": lambda x: torch.tensor([x[0], x[1]]),
    "a text": lambda x: (x, f"{x[0]:.2f}"),
    "where its memory begins": lambda x: x * x.storage_offset(),
    "another tensor's data": set_data,
    "a sparse tensor": lambda x: x.to_sparse(),
    "another thread": lambda x: xdevice.parallel.run(lambda: x * 2)[0],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_would_repeat_wrongly_is_refused(name):
    before = here.clone()
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"while a function is compiled|nor created by the compiled function"
        r"|from outside the compiled function",
    ):
        xdevice.compile(REFUSED[name])(torch.randn(3))
    torch.set_default_dtype(torch.float32)
    assert torch.equal(here, before)
    assert weight.grad is None


def test_backward_into_an_argument_is_refused():
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(xdevice.errors.UnsupportedError, match="value_and_grad"):
        xdevice.compile(lambda x: (x * x).sum().backward())(x)
    assert x.grad is None


def test_an_operation_of_another_library_is_refused():
    library = torch.library.Library("xdevice_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    with pytest.raises(xdevice.errors.UnsupportedError, match=r"xdevice_tests\.twice"):
        xdevice.compile(lambda x: torch.ops.xdevice_tests.twice(x))(torch.ones(3))


def test_a_symbol_that_was_kept_is_refused():
    def keep(x):
        math.kept = x  # of libraries `compile` does not see what is changed
        return x * 2

    xdevice.compile(keep)(torch.ones(3))
    kept = vars(math).pop("kept")
    assert "without values" in repr(kept)
    with pytest.raises(
        xdevice.errors.UnsupportedError, match="return the needed tensor from the function"
    ):
        kept + 1


def test_a_tensor_that_is_given_twice_is_one():
    compiled = xdevice.compile(lambda x, y: (x * 2 if x is y else y * 3, x.add_(1)))
    for _ in range(2):
        x, y = torch.ones(3), torch.ones(3)
        for one, other, wanted in ((x, y, 3), (x, x, 4), (y, x, 9)):
            made, written = compiled(one, other)
            assert made.tolist() == [wanted] * 3
            assert written is one


def test_what_is_kept_beside_the_values_of_a_tensor_counts():
    compiled = xdevice.compile(
        lambda x: x * getattr(x, "rate", 2) if x.grad is None else x - x.grad
    )
    for _ in range(2):
        x = torch.ones(3)
        assert compiled(x).tolist() == [2, 2, 2]
        x.rate = 5
        assert compiled(x).tolist() == [5, 5, 5]
        x.grad = torch.ones(3)
        assert compiled(x).tolist() == [0, 0, 0]


@contextmanager
def doubles():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SCOPES = {
    "autocast": lambda: torch.autocast(here.device.type, torch.bfloat16),
    "inference_mode": torch.inference_mode, "no_grad": torch.no_grad, "doubles": doubles,
    "meta": lambda: torch.device("meta"), "cpu": lambda: torch.device("cpu"),
}  # fmt: skip


@pytest.mark.parametrize("scope", SCOPES)
def test_what_is_in_force_around_the_call_counts(scope):
    def function(x):
        return (
            x @ x,
            torch.tensor(1.0),
            x * torch.is_grad_enabled(),
            xdevice.math.grad(lambda x: (x * x).sum())(x),
        )

    compiled, x = xdevice.compile(function), torch.randn(3, 3)
    for _ in range(3):
        for each in (SCOPES[scope], torch.enable_grad):
            with each():
                made, wanted = compiled(x), function(x)
            for one, other in zip(made, wanted, strict=True):
                assert (one.dtype, one.device, one.is_inference()) == (
                    other.dtype,
                    other.device,
                    other.is_inference(),
                )
                assert one.is_meta or torch.equal(one, other)


def test_what_sees_operations_sees_those_of_the_function():
    compiled, x = xdevice.compile(lambda x: x.double().sum()), torch.ones(3)
    for _ in range(2):
        with (
            torch.profiler.profile(acc_events=True) as profile,
            FlopCounterMode(display=False),
            Seeing() as seeing,
        ):
            assert compiled(x).item() == 3
        assert "aten::sum" in {one.key for one in profile.key_averages()}
        assert seeing.seen > 1  # `item` is one
        assert type(FakeTensorMode().from_tensor(x)) is type(
            compiled(FakeTensorMode().from_tensor(x))
        )


def test_a_compiled_function_of_a_variable_is_called_in_another_one():
    inner = xdevice.compile(lambda x: x * 2)
    outer = xdevice.compile(lambda x: x + inner(here))
    assert [outer(torch.zeros(3)).tolist() for _ in range(2)] == [[4.0, 6.0, 10.0]] * 2


def test_it_takes_part_in_transformations():
    cubes = xdevice.compile(lambda x: (x**3).sum())
    x = torch.tensor([1.0, 2.0])
    for _ in range(2):
        assert cubes(x).item() == 9
        assert torch.func.grad(cubes)(x).tolist() == [3, 12]
        assert torch.func.vmap(cubes)(x[:, None]).tolist() == [1, 8]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated from 2.10 on
            traced = torch.jit.trace(cubes, x)
        assert traced(x + 1).item() == 35


@pytest.mark.slow
def test_it_takes_part_in_a_function_of_torch_compile():
    cubes = xdevice.compile(lambda x: (x**3).sum())
    around = torch.compile(lambda x: cubes(x) * 2, backend="eager")
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # before 2.13 it warns of what it leaves to Python
            made = around(x)
        assert made.item() == 2 * cubes(x).item() == 2 * (x**3).sum().item()


@pytest.mark.slow
def test_torch_compile_traces_none_of_the_walks_around_a_compiled_function():
    from torch._dynamo.convert_frame import register_bytecode_hook

    cubes = xdevice.compile(lambda x: (x**3).sum())
    traced = []
    # a warning or an error of torch.compile in code that it should not see depends on the release
    hook = register_bytecode_hook(lambda code, _: traced.append(code.co_filename))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.compile(lambda x: cubes(x) * 2, backend="eager")(
                torch.tensor([1.0, 2.0])
            )
    finally:
        hook.remove()
    assert made.item() == 18
    assert traced
    assert not [file for file in traced if "containers" in file or "outside" in file]


@pytest.mark.gpu
def test_an_index_out_of_range_gives_nan_where_cuda_would_end_all_work():
    def function(scores, labels):
        nn = xdevice.nn
        return (
            nn.cross_entropy(scores, labels, reduction="none"),
            nn.embedding(labels, scores),
            nn.one_hot(labels, 2),
        )

    with torch.device("cuda"):
        scores, labels = torch.zeros(3, 2), torch.tensor([0, 2, -1])
        losses, rows, ones = xdevice.compile(function)(scores, labels)
        assert losses.isnan().tolist() == [False, True, True]
        assert rows.isnan().all(1).tolist() == [False, False, True]  # there are three rows
        assert ones.tolist() == [[1, 0], [0, 0], [0, 0]]
        assert xdevice.compile(xdevice.nn.cross_entropy)(scores, labels).isnan()
        right = torch.tensor([0, 1, 1])
        for one, other in zip(
            xdevice.compile(function)(scores, right), function(scores, right), strict=True
        ):
            assert torch.equal(one, other)
