"""JAX on a plugin's platform, which its own CPU client stands for, registered by the public factory."""

from __future__ import annotations

from textwrap import dedent

import pytest
from accelerators import npu
from helpers.environment import needs, printed

REGISTER = """
from jax.extend.backend import register_backend_factory
from jaxlib import xla_client

def register(name):
    register_backend_factory(name, xla_client.make_cpu_client, priority=500)
"""
TOOLS = """
import time
import jax
import xdevice

def work(x):
    return jax.lax.fori_loop(0, 40, lambda _, y: y @ y / len(x), x)

xdevice.set_backend("jax")
"""


@pytest.fixture(autouse=True)
def _jax():
    needs("jax")


def on_plugin(script: str, **variables: str) -> None:
    assert printed(
        "-c", REGISTER + TOOLS + dedent(script) + '\nprint("done")', bare=True, **variables
    ).endswith("done")


def test_the_platform_that_jax_computes_on_is_the_gpu_and_is_waited_for():
    on_plugin("""
    register("npu")
    assert xdevice.num_gpus() == 1
    x = xdevice.ones(400, 400, device="npu")
    assert xdevice.device_of(x) is xdevice.try_gpu() is xdevice.gpu(0)
    assert xdevice.device_of(jax.numpy.ones(2)) is xdevice.gpu(0)
    assert xdevice.to_device(x, "npu:0") is xdevice.to_device(x, "gpu:0") is x
    assert xdevice.device_of(xdevice.to_device(x, "cpu")) is xdevice.cpu()
    for word in ("cuda", "rocm", "xpu", "mps", "hpu"):
        try:
            xdevice.to_device(x, word)
        except xdevice.errors.DeviceNotFoundError as error:
            assert f"{word}:0 does not exist on jax" in str(error)
        else:
            raise AssertionError(word)
    task = jax.jit(work)
    task(x).block_until_ready()
    for wait in (xdevice.sync, lambda: xdevice.sync("gpu:0")):
        result = task(x)
        assert not result.is_ready()
        wait()
        assert result.is_ready()
    assert xdevice.memory("gpu:0").allocated >= 2 * x.nbytes
    assert not xdevice.backend().shares(xdevice.gpu())
    """)


def test_sync_waits_on_platforms_that_no_device_names():
    on_plugin("""
    register("npu")
    jax.config.update("jax_platforms", "cpu,npu")
    there = jax.devices("npu")[0]
    assert xdevice.try_gpu() is xdevice.cpu()
    x = jax.device_put(jax.numpy.ones((400, 400)), there)
    fenced, put = [], jax.device_put  # the platforms share the host's threads here: a fence on one waits for the other
    jax.device_put = lambda x, device: fenced.append(device) or put(x, device)
    xdevice.sync()
    assert there in fenced
    """)


def test_where_jax_computes_on_tpus_try_gpu_gives_them():
    on_plugin("""
    register("tpu")
    jax.devices()
    tpu = xdevice.device("tpu")
    assert xdevice.try_gpu() is tpu and xdevice.try_all_gpus() == [tpu] and xdevice.num_gpus() == 1
    assert xdevice.try_gpu(1) is xdevice.cpu()
    try:
        xdevice.ones(2, device="gpu:0")
    except xdevice.errors.DeviceNotFoundError as error:
        assert "tpu:0" in str(error).partition("computes on")[2]
    else:
        raise AssertionError("there is no GPU")
    """)


def test_of_two_plugins_a_variable_chooses():
    on_plugin(
        """
    register("npu")
    register("other")
    assert xdevice.num_gpus() == 1
    assert xdevice.device("other:0") == xdevice.gpu(0)
    assert xdevice.backend().hardware() == {"other"}
    """,
        XDEVICE_ACCELERATOR="other",
    )


def test_a_plugins_registration_is_all_that_a_third_partys_platform_takes(tmp_path):
    (tmp_path / "jax_acme.py").write_text(
        REGISTER + "\ndef initialize():\n    register('acme')\n"
    )
    script = """
    assert xdevice.try_all_gpus() == [xdevice.gpu()]
    x = xdevice.to_device(xdevice.ones(400, 400), "acme:0")
    assert xdevice.device_of(x) is xdevice.device_of(jax.numpy.ones(2)) is xdevice.gpu()
    assert xdevice.to_numpy(xdevice.to_device(x, "cpu")).all()
    task = jax.jit(work)
    task(x).block_until_ready()
    result = task(x)
    assert not result.is_ready()
    xdevice.sync("acme:0")
    assert result.is_ready()
    started = time.perf_counter()
    task(x).block_until_ready()
    usual = time.perf_counter() - started
    assert xdevice.measure(task, x, warmup=1, repeats=3).median > usual / 10
    print("done")
    """
    variables = npu.plugin(tmp_path, "acme", jax_plugins="jax_acme")
    assert printed("-c", TOOLS + dedent(script), bare=True, **variables).endswith("done")


@pytest.mark.parametrize(("platform", "word"), [("tpu", "tpu"), ("METAL", "mps")])
def test_wide_floats_are_refused_where_the_platform_has_none(platform, word):
    on_plugin(
        f"""
    register({platform!r})
    place = {word!r}
    """
        + """
    jax.devices()
    wide = xdevice.ones(2, dtype="float64", device="cpu")
    assert not xdevice.accelerator.is_dtype_supported("float64", place)
    assert not xdevice.accelerator.is_dtype_supported("complex128", place)
    assert xdevice.accelerator.is_dtype_supported("float32", place)
    assert xdevice.accelerator.is_dtype_supported("float64", "cpu")
    for task in (lambda: xdevice.to_device(wide, place),
                 lambda: xdevice.copy_to([1, {"x": wide}], place),
                 lambda: xdevice.zeros(2, device=place, dtype="float64")):
        try:
            task()
        except xdevice.errors.DTypeError as error:
            assert "float64, which " in str(error) and ":0 of jax" in str(error)
        else:
            raise AssertionError("it was taken")
    assert xdevice.device_of(xdevice.to_device([wide.astype("float32"), jax.random.key(0)], place)) != xdevice.cpu()
    """,
        JAX_ENABLE_X64="1",
    )
