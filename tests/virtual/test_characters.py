"""Virtual GPUs of a character: what they lack is refused by the framework itself, and their memory is counted."""

from __future__ import annotations

import pytest
from helpers.environment import FRAMEWORKS, printed, sampled

import xdevice
from xdevice.base import requested
from xdevice.contract import environment
from xdevice.virtual.contract import characters
from xdevice.virtual.contract.characters import Character
from xdevice.virtual.contract.ledger import Ledger

WIDE = frozenset(("float64", "complex128"))


def run(code, name, **variables):
    lines = printed("-c", code.replace("NAME", repr(name)), bare=True, **variables).splitlines()
    return lines[-1] if lines else ""


# the text


def test_a_text_describes_each_gpu():
    plain, limited = characters.parse("1+1:no_float64,memory=256MB")
    assert not plain
    assert plain == Character()
    assert limited == Character(WIDE, 256_000_000)
    assert characters.parse("3") == (Character(),) * 3
    assert characters.parse("1:no_x64")[0].lacks == WIDE | {"int64", "uint64"}
    assert characters.parse("1:float32_default")[0].is_float32_default
    assert characters.parse("1:memory=3MiB")[0].memory == 3 * 2**20
    assert characters.parse("1:tpu,memory=1GB")[0].memory == 10**9  # the later word


@pytest.mark.parametrize("name", sorted(characters.SETS))
def test_what_exists_lacks_float64(name):
    assert characters.parse(f"2:{name}")[1].lacks >= WIDE


@pytest.mark.parametrize(
    "text",
    ["2:", "2:no_float", "2:memory=256", "2:memory=1PB", ":mps", "2:mps+", "-1:mps", "mps"],
)
def test_a_text_that_describes_nothing_is_refused(text, monkeypatch):
    monkeypatch.setattr(requested, "virtual_gpus", "")
    monkeypatch.setenv("XDEVICE_VIRTUAL_GPUS", text)
    with pytest.raises(
        xdevice.errors.SettingError,
        match="XDEVICE_VIRTUAL_GPUS must be a non-negative int, not",
    ):
        environment.virtual_gpus_wanted()
    monkeypatch.delenv("XDEVICE_VIRTUAL_GPUS")
    with pytest.raises(xdevice.errors.ArgumentError, match="virtual_gpus"):
        xdevice.virtual_gpus(text)


# memory


def test_tensors_at_one_address_are_counted_once():
    ledger = Ledger([None, 100], MemoryError)
    ledger.hold("x", 1, 7, 60)
    ledger.hold("view", 1, 7, 60)
    ledger.drop("x")
    assert ledger.memory(1)[:4] == (100, 40, 60, 60)
    ledger.drop("view")
    ledger.drop("neither")
    assert ledger.memory(1)[:4] == (100, 100, 0, 60)
    ledger.reset_peak(1)
    assert ledger.memory(1).peak == 0
    ledger.take(0, 10**12)
    assert ledger.memory(0)[:3] == (None, None, 10**12)


def test_what_is_too_large_is_not_counted():
    ledger = Ledger([100], MemoryError)
    ledger.take(0, 60)
    with pytest.raises(
        MemoryError, match="tried to allocate 50 bytes, but only 40 of its 100 bytes are free"
    ):
        ledger.hold("x", 0, 7, 50)
    ledger.drop("x")
    assert ledger.memory(0).allocated == 60
    ledger.give_back(0, 60)
    ledger.hold("x", 0, 7, 100)


# the frameworks

REFUSED = """
import numpy as np, xdevice
can = xdevice.accelerator.is_dtype_supported
xdevice.set_backend(NAME)
gpu = xdevice.gpu(1)
n = gpu.native
wide = xdevice.tensor([1.0, 2.0], dtype="float32")
if NAME == "jax":
    import jax, jax.numpy as jnp
    jax.config.update("jax_enable_x64", True)
    lack = jax.errors.JaxRuntimeError
    x = xdevice.ones(2, device=gpu)
    for wider in (lambda x: x.astype(jnp.complex128),
                  lambda x: jnp.abs(x.astype(jnp.complex128)).astype(jnp.float32)):
        try:
            print("not refused", jax.jit(wider)(x))
            raise SystemExit
        except lack as error:
            assert "the virtual gpu:1 does not support complex128" in str(error), error
    own = [lambda: jnp.ones(2, jnp.float64, device=n), lambda: jax.device_put(np.ones(2), n),
           lambda: x.astype(jnp.float64), lambda: jax.jit(lambda x: x.astype(jnp.float64).sum().astype(jnp.float32))(x)]
if NAME == "torch":
    import torch
    lack = TypeError
    own = [lambda: torch.ones(2, dtype=torch.float64, device=n), lambda: torch.ones(2, dtype=torch.float64).to(n),
           lambda: torch.ones(2, device=n).double(), lambda: torch.nn.Linear(2, 2).double().to(n),
           lambda: torch.as_tensor(np.ones(2), device=n)]
if NAME == "tensorflow":
    import tensorflow as tf
    lack = tf.errors.UnimplementedError
    wide = tf.ones(2, tf.float64)
    def on_gpu(make):
        with tf.device(n):
            return make()
    own = [lambda: on_gpu(lambda: tf.ones(2, tf.float64)), lambda: on_gpu(lambda: tf.constant(np.ones(2))),
           lambda: on_gpu(lambda: tf.identity(wide)), lambda: on_gpu(lambda: tf.cast([1.0], tf.float64)),
           lambda: on_gpu(lambda: tf.function(lambda: tf.ones(2, tf.float64))()),
           lambda: on_gpu(lambda: tf.Variable(np.ones(2)))]
if NAME == "mxnet":
    import mxnet as mx
    lack = mx.MXNetError
    own = [lambda: mx.nd.ones(2, dtype="float64", ctx=n), lambda: mx.nd.ones(2, ctx=n).astype("float64"),
           lambda: mx.nd.ones(2, dtype="float64").as_in_context(n), lambda: mx.np.ones(2, dtype="float64", ctx=n)]
if NAME == "paddle":
    import paddle
    lack = RuntimeError
    x = xdevice.ones(2, device=gpu)
    own = [lambda: paddle.to_tensor(np.ones(2), place=n), lambda: x.astype("float64"), lambda: x.cast("float64"),
           lambda: paddle.to_tensor(np.ones(2)).to("vgpu:1")]
for number, make in enumerate(own):
    try:
        print("not refused", number, make())
        raise SystemExit
    except lack as error:
        assert "the virtual gpu:1 does not support float64" in str(error), error
for make in (lambda: xdevice.ones(2, dtype="float64", device=gpu), lambda: xdevice.to_device(
        xdevice.ones(2, dtype="float64"), gpu), lambda: xdevice.tensor(np.ones(2), device=gpu, dtype="float64")):
    try:
        make()
        raise SystemExit("not refused")
    except xdevice.errors.DTypeError as error:
        assert "gpu:1 of NAME (virtual) does not support".replace("NAME", NAME) in str(error), error
assert not can("float64", gpu) and not can("complex128", gpu)
assert can("float64", "gpu:0") and can("float64") and can("float32", gpu)
assert xdevice.item(xdevice.ones(2, dtype="float64", device="gpu:0")[0]) == 1.0
if NAME == "mxnet":
    raise SystemExit(print("as it should"))  # namespaces need NumPy's semantics, which mx.nd above rules out
info = xdevice.array_namespace().__array_namespace_info__()
assert "float64" in info.dtypes(device="gpu:0") and "float64" not in info.dtypes(device=gpu)
assert not WIDE & {*info.dtypes(device=gpu)}
print("as it should")
""".replace("WIDE", repr({*WIDE}))


@pytest.mark.parametrize(
    "name", sampled(FRAMEWORKS, each_time=["jax"], slow=["torch"], others="long")
)
def test_what_a_gpu_lacks_is_refused_by_the_framework(name):
    assert run(REFUSED, name, XDEVICE_VIRTUAL_GPUS="1+1:no_float64") == "as it should"


COUNTED = """
import gc, xdevice
xdevice.set_backend(NAME)
MB = 10**6
gpu = xdevice.gpu(1)
samples = xdevice.backend().samples()
if NAME == "torch":
    import torch
    spent = torch.OutOfMemoryError
if NAME == "tensorflow":
    import tensorflow as tf
    spent = tf.errors.ResourceExhaustedError
if NAME == "mxnet":
    import mxnet as mx
    spent = mx.MXNetError
if NAME == "paddle":
    spent = MemoryError
if NAME == "jax":
    import jax
    spent = jax.errors.JaxRuntimeError

def used():
    gc.collect()
    return xdevice.memory(gpu).allocated

def near(nbytes, expected):  # Paddle allocates whole blocks
    assert expected <= nbytes <= expected + 4096, (nbytes, expected)

before = used()
assert before <= 4096 and xdevice.memory(gpu).total == 10 * MB
x = xdevice.ones(MB // 4, device=gpu)
near(used() - before, MB)
near(xdevice.memory(gpu).free, 9 * MB - before - 4096)
with gpu:
    y = samples.add(x, x)
near(used() - before, 2 * MB)
z = xdevice.copy_to(y, gpu)
del x, y
near(used() - before, MB)
assert 3 * MB <= xdevice.memory(gpu).peak <= 10 * MB
xdevice.accelerator.reset_peak_memory_stats(gpu)
near(xdevice.memory(gpu).peak - before, MB)
kept = []
try:
    with gpu:
        for _ in range(20):
            kept.append(samples.add(z, z))
    raise SystemExit("never out of memory")
except spent as error:
    assert "out of memory on the virtual gpu:1: tried to allocate 1,000,000 bytes" in str(error), error
    del error
assert 7 <= len(kept) <= 9, len(kept)
kept.clear()
near(used() - before, MB)  # what was refused takes none
with gpu:
    assert xdevice.item(samples.add(z, z)[0]) == 4.0  # and the device goes on
assert xdevice.memory("gpu:0").total is None
print("as it should")
"""


@pytest.mark.parametrize(
    "name", sampled(FRAMEWORKS, each_time=["jax"], slow=["torch"], others="long")
)
def test_memory_is_counted_and_can_be_spent(name):
    assert run(COUNTED, name, XDEVICE_VIRTUAL_GPUS="1+1:memory=10MB") == "as it should"


@pytest.mark.slow
def test_torch_counts_the_memory_of_plain_ones_for_its_own_functions_too():
    code = """
import gc, torch, xdevice
xdevice.set_backend("torch")
model = torch.nn.Linear(100, 100).to("vgpu:1")
step = torch.optim.Adam(model.parameters())
model(torch.ones(10, 100, device="vgpu:1")).sum().backward()
step.step(), step.zero_grad(), gc.collect()
print(torch.accelerator.memory_allocated(1), xdevice.memory("gpu:1").allocated, 3 * 4 * 10_100)
assert torch.accelerator.memory_stats(1)["requested_bytes.all.current"] == torch.accelerator.memory_allocated(1)
assert torch.accelerator.max_memory_allocated(1) > torch.accelerator.memory_allocated(1)
view = model.weight[:1]
del model, step
assert xdevice.memory("gpu:1").allocated == 40_000  # a view keeps the whole
try:
    torch.accelerator.get_memory_info(1)
except xdevice.errors.UnsupportedError as error:
    assert "XDEVICE_VIRTUAL_GPUS=2:memory=8GB" in str(error), error
"""
    allocated, counted, expected = map(
        int, run(code, "torch", XDEVICE_VIRTUAL_GPUS="2").split()
    )
    assert allocated == counted == expected


NARROW = """
import xdevice
can = xdevice.accelerator.is_dtype_supported
xdevice.set_backend(NAME)
gpu = xdevice.gpu(1)
print([str(xdevice.tensor(data, device=gpu).dtype).rpartition(".")[2] for data in ([1.5], [1], [1j])])
xp = xdevice.array_namespace()
assert str(xp.arange(3, device=gpu).dtype).endswith("int32"), xp.arange(3, device=gpu).dtype
try:
    xdevice.tensor([2**40], device=gpu)
    raise SystemExit("it does not fit")
except xdevice.errors.DTypeError:
    pass
assert not can("int64", gpu) and can("int64", "cpu") is (NAME != "jax")
default = xp.__array_namespace_info__().default_dtypes(device=gpu)
assert {str(dtype).rpartition(".")[2] for dtype in default.values()} == {"float32", "complex64", "int32"}, default
"""


@pytest.mark.parametrize("name", sampled(["jax", "torch"], each_time=["jax"]))
def test_where_no_dtype_is_named_it_is_one_that_the_gpu_has(name):
    assert (
        run(NARROW, name, XDEVICE_VIRTUAL_GPUS="1+1:no_x64")
        == "['float32', 'int32', 'complex64']"
    )


@pytest.mark.slow
def test_float32_can_be_the_default_of_a_device():
    code = """
import xdevice
xdevice.set_backend("jax")
print(*[xdevice.ones(1, device=gpu).dtype for gpu in ("gpu:0", "gpu:1")])
"""
    variables = {"XDEVICE_VIRTUAL_GPUS": "1+1:float32_default", "XDEVICE_FLOATS": "float64"}
    assert run(code, "jax", **variables) == "float64 float32"


def test_an_adapter_that_cannot_refuse_says_so():
    class Plain(type(xdevice.backend("numpy"))):
        pass

    from xdevice.virtual.contract.virtual_gpus import VirtualGpus

    with pytest.raises(
        xdevice.errors.UnsupportedError, match="does not support limits of virtual GPUs"
    ):
        VirtualGpus.take_characters(Plain(), characters.parse("2:mps"))


# NumPy, and a variable that comes too late


def test_on_numpy_the_cpu_is_tried_instead():
    code = """
import xdevice
xdevice.set_backend("numpy")
print(xdevice.try_gpu(), xdevice.try_all_gpus(), xdevice.num_gpus(), xdevice.native.try_gpu())
"""
    for variable in ("", "2", "2:mps"):
        assert (
            run(code, "numpy", XDEVICE_VIRTUAL_GPUS=variable) == "cpu:0 [Device('cpu:0')] 0 cpu"
        )


TOO_LATE = """
import os, xdevice
xdevice.set_backend(NAME)
assert xdevice.try_all_gpus() == xdevice.backend().devices()[1:] or [xdevice.cpu()]
os.environ["XDEVICE_VIRTUAL_GPUS"] = LATE
for ask in (xdevice.try_gpu, xdevice.try_all_gpus, xdevice.num_gpus, lambda: xdevice.ones(2, device="gpu:5")):
    try:
        print(ask())
    except xdevice.errors.SettingError as error:
        assert "was set after NAME was loaded with".replace("NAME", NAME) in str(error), error
        assert "set the variable before the program starts" in str(error), error
os.environ["XDEVICE_VIRTUAL_GPUS"] = ""
print(xdevice.num_gpus())
"""


@pytest.mark.parametrize(
    ("name", "first", "late"),
    sampled([("jax", "", "2"), ("jax", "2", "4"), ("jax", "2", "2:mps"), ("torch", "", "2"), ("mxnet", "2", "3")],
            each_time=[("jax", "", "2"), ("jax", "2", "2:mps")]),
)  # fmt: skip
def test_a_variable_that_is_set_after_the_first_use_is_an_error(name, first, late):
    code = TOO_LATE.replace("LATE", repr(late))
    assert printed(
        "-c", code.replace("NAME", repr(name)), bare=True, XDEVICE_VIRTUAL_GPUS=first
    ) == (first or "0")
