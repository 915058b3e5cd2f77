"""Forms of calls that the neutral word does not have, or whose arguments are not proven: they stay, with the reason."""

from __future__ import annotations

import pytest
from helpers.port_texts import examined

HEADS = {
    "d2l": "from d2l import torch as d2l\n",
    "jax": "import jax\nx = jax.numpy.ones(2)\n",
    "mx": "import mxnet as mx\nx = mx.nd.ones((2,))\n",
    "paddle": "import paddle\n",
    "tf": "import tensorflow as tf\n",
    "torch": "import torch\nx = torch.ones(2)\n",
}
OPEN = {
    "XD151": [
        ("mx", "net.reset_ctx([mx.cpu()])"),
        ("paddle", "paddle.set_device(unknown)"),
        ("paddle", "y = paddle.set_device('gpu:1')"),
    ],
    "XD155": [
        ("jax", "y = jax.devices('tpu')"),
        ("jax", "y = jax.device_count('tpu')"),
    ],
    "XD161": [
        ("jax", "y = jax.device_put(x, jax.devices('gpu')[0])"),
        ("jax", "y = jax.device_put(x, unknown)"),
        ("mx", "y = mx.gpu(unknown)"),
        ("mx", "y = mx.gpu(device_id=unknown)"),
        ("torch", "y = torch.device(unknown)"),
        ("torch", "y = torch.device('cuda', unknown)"),
        ("torch", "torch.cuda.synchronize(unknown)"),
        ("torch", "y = x.cuda(unknown)"),
        ("torch", "y = x.to(x)"),
    ],
    "XD162": [
        ("mx", "y = mx.gluon.utils.split_and_load([1], c)"),
        ("jax", "y = jax.device_put(1.0, xdevice.gpu())"),
        ("torch", "y = x.tolist(1)"),
        ("torch", "y = unknown.tolist()"),
    ],
    "XD163": [
        ("torch", "y = torch.cuda.synchronize()"),
        ("torch", "x.numpy()[0] = 1"),
    ],
    "XD165": [
        ("torch", "y = torch.device('quantum')"),
        ("tf", "y = tf.device(unknown)"),
        ("tf", "y = tf.device('/job:a')"),
    ],
    "XD166": [
        ("jax", "jax.device_put(x)"),
        ("jax", "y = jax.device_put(x, device=d)"),
        ("mx", "y = mx.gpu(*args)"),
        ("mx", "y = mx.gpu(1, 2)"),
        ("mx", "y = mx.gpu(index=1)"),
        ("mx", "y = mx.gluon.utils.split_and_load(x)"),
        ("mx", "y = mx.gluon.utils.split_and_load(x, ctx_list=c, size=2)"),
        ("mx", "y = mx.gluon.utils.split_and_load(*x)"),
        ("mx", "y = mx.gluon.utils.split_and_load(x, *y)"),
        ("mx", "y = mx.gluon.utils.split_and_load(x, c, **how)"),
        ("mx", "net.reset_ctx()"),
        ("mx", "y = x.copyto()"),
        ("mx", "x.wait_to_read(1)"),
        ("torch", "y = torch.device(*args)"),
        ("torch", "y = torch.device('cuda', *args)"),
        ("torch", "y = torch.cuda.is_available(1)"),
        ("torch", "torch.cuda.synchronize(device=1)"),
        ("torch", "y = x.cuda(1, 2)"),
        ("torch", "y = x.cuda(memory_format=f)"),
        ("torch", "y = x.cuda(*args)"),
        ("torch", "y = x.item(1)"),
        ("d2l", "y = d2l.split_batch(x, y, devices)"),
        ("d2l", "y, z = d2l.split_batch(x, y)"),
        ("d2l", "y, z = d2l.split_batch(x, y, *devices)"),
        ("d2l", "y = d2l.try_gpu(*args)"),
        ("torch", "y = torch.accelerator.current_accelerator(1)"),
    ],
}


@pytest.mark.parametrize(
    ("code", "framework", "line"),
    [(code, *case) for code, cases in OPEN.items() for case in cases],
)
def test_a_form_without_a_word_stays_and_says_why(code, framework, line):
    text = f"{HEADS[framework]}{line}\n"
    project = examined(text)
    first = next(site for site in project.sites if site.line == text.count("\n"))
    assert (first.verdict, first.code) == ("open", code)
    assert first.why


@pytest.mark.parametrize(
    ("framework", "line", "after"),
    [
        ("torch", "y = x.numpy(force=True)", "y = xdevice.to_numpy(x)"),
        ("torch", "y = torch.device('meta')", "y = torch.device('meta')"),
        (
            "torch",
            "torch.cuda.synchronize(torch.device(1))",
            "xdevice.sync(xdevice.native.gpu(1))",
        ),
        (
            "jax",
            "y = jax.device_put(x, xdevice.gpu())",
            "y = xdevice.to_device(x, xdevice.gpu())",
        ),
        ("mx", "y = mx.gpu(device_id=1)", "y = xdevice.native.gpu(1)"),
    ],
)
def test_a_form_with_a_word_gets_it(framework, line, after):
    project = examined(f"import xdevice\n{HEADS[framework]}{line}\n")
    assert project.ported(project.sources[0]).decode().splitlines()[-1] == after
    assert {site.verdict for site in project.sites} <= {"rewritten", "neutral"}
