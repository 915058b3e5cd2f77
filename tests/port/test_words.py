"""The table of words: each of its rows is ported, and runs before and after, on the CPU and on virtual GPUs."""

from __future__ import annotations

import json
from functools import cache

import pytest
from helpers.environment import BACKENDS, ROOT, printed
from helpers.port_texts import ported_to

from xdevice.port.words import TABLE, TARGETS

RUNNER = """
import contextlib, io, json, os, sys, warnings
warnings.simplefilter("ignore")
if os.environ.get("XDEVICE_VIRTUAL_GPUS") or FRAMEWORK == "mxnet":  # which needs it beside today's NumPy
    import xdevice
    xdevice.set_backend(FRAMEWORK)
ends = []
for program in json.loads(PROGRAMS):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(program, {})
        ends.append(out.getvalue().strip())
    except BaseException as error:
        ends.append(type(error).__name__)
    if FRAMEWORK == "torch" and os.environ.get("XDEVICE_VIRTUAL_GPUS"):
        sys.modules["torch"].accelerator.set_device_index(0)
print(json.dumps(ends))
"""
AS_ON_THE_CPU = None
NOT_COUNTED = (
    "UnsupportedError"  # the memory of virtual GPUs is the host's, if xdevice does not count it
)
NO_STATE = "NotImplementedError"  # virtual GPUs have no generator of their own
NOT_THERE = "AttributeError"  # the module of virtual GPUs has no such function
TORCH = {  # the row, a program, and what it prints on two virtual GPUs
    "torch.cuda.is_available": ("print(torch.cuda.is_available())", "True"),
    "torch.cuda.device_count": ("print(torch.cuda.device_count())", "2"),
    'torch.device("cuda")': (
        "d = torch.device('cuda')\nprint(torch.ones(2, device=d).sum().item())",
        "2.0",
    ),
    'device="cuda"': ("print(torch.ones(2, device='cuda').sum().item())", "2.0"),
    '"cuda" if torch.cuda.is_available() else "cpu"': (
        "d = 'cuda' if torch.cuda.is_available() else 'cpu'\nprint(torch.ones(2, device=d).sum().item())",
        "2.0",
    ),
    'x.to("cuda")': (
        "x = torch.ones(2)\ny = x.to('cuda')\nprint(y.sum().item(), y.device.type != 'cpu')",
        "2.0 True",
    ),
    "x.cuda()": (
        "x = torch.ones(2)\ny = x.cuda()\nprint(y.sum().item(), y.device.type != 'cpu')",
        "2.0 True",
    ),
    "x.is_cuda": ("x = torch.ones(2)\ny = x.is_cuda\nprint(y)", "False"),
    'device.type == "cuda"': ("d = torch.ones(2).device\nprint(d.type == 'cuda')", "False"),
    "torch.cuda.current_device": ("print(torch.cuda.current_device())", "0"),
    "torch.cuda.set_device": (
        "torch.cuda.set_device(1)\nprint(torch.cuda.current_device())\ntorch.cuda.set_device(0)",
        "1",
    ),
    "torch.cuda.device": (
        "with torch.cuda.device(1):\n    print(torch.cuda.current_device())\nprint(torch.cuda.current_device())",
        "1\n0",
    ),
    "torch.cuda.synchronize": ("torch.cuda.synchronize()\nprint('done')", "done"),
    "torch.cuda.current_stream": ("print(torch.cuda.current_stream() is not None)", "True"),
    "torch.cuda.set_stream": (
        "torch.cuda.set_stream(torch.cuda.current_stream())\nprint('done')",
        NOT_COUNTED,
    ),
    "torch.cuda.stream": (
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    print(torch.ones(2).sum().item())",
        "2.0",
    ),
    "torch.cuda.Stream": ("s = torch.cuda.Stream()\ns.synchronize()\nprint(s.query())", "True"),
    "torch.cuda.Event": ("e = torch.cuda.Event(True)\nprint(e.query())", "True"),
    "torch.cuda.is_current_stream_capturing": (
        "print(torch.cuda.is_current_stream_capturing())",
        "False",
    ),
    "torch.cuda.empty_cache": ("torch.cuda.empty_cache()\nprint('done')", "done"),
    "torch.cuda.memory_allocated": (
        "print(torch.cuda.memory_allocated(device=0) > 0)",
        NOT_COUNTED,
    ),
    "torch.cuda.max_memory_allocated": (
        "print(torch.cuda.max_memory_allocated() > 0)",
        NOT_COUNTED,
    ),
    "torch.cuda.memory_reserved": ("print(torch.cuda.memory_reserved() > 0)", NOT_COUNTED),
    "torch.cuda.max_memory_reserved": (
        "print(torch.cuda.max_memory_reserved() > 0)",
        NOT_COUNTED,
    ),
    "torch.cuda.memory_stats": ("print(len(torch.cuda.memory_stats()) > 0)", NOT_COUNTED),
    "torch.cuda.reset_peak_memory_stats": (
        "torch.cuda.reset_peak_memory_stats()\nprint('done')",
        NOT_COUNTED,
    ),
    "torch.cuda.reset_accumulated_memory_stats": (
        "torch.cuda.reset_accumulated_memory_stats()\nprint('done')",
        NOT_COUNTED,
    ),
    "torch.cuda.OutOfMemoryError": (
        "try:\n    raise torch.cuda.OutOfMemoryError\nexcept torch.cuda.OutOfMemoryError:\n    print('caught')",
        "caught",
    ),
    "torch.cuda.mem_get_info": (
        "free, total = torch.cuda.mem_get_info()\nprint(free <= total)",
        NOT_COUNTED,
    ),
    "torch.cuda.memory_cached": ("print(torch.cuda.memory_cached() > 0)", NOT_COUNTED),
    "torch.cuda.max_memory_cached": ("print(torch.cuda.max_memory_cached() > 0)", NOT_COUNTED),
    "torch.cuda.reset_max_memory_allocated": (
        "torch.cuda.reset_max_memory_allocated()\nprint('done')",
        NOT_COUNTED,
    ),
    "torch.cuda.reset_max_memory_cached": (
        "torch.cuda.reset_max_memory_cached()\nprint('done')",
        NOT_COUNTED,
    ),
    "torch.cuda.manual_seed": (
        "torch.manual_seed(7)\ntorch.cuda.manual_seed(7)\nprint(torch.rand(1).item())",
        AS_ON_THE_CPU,
    ),
    "torch.cuda.manual_seed_all": ("torch.cuda.manual_seed_all(7)\nprint('done')", "done"),
    "torch.cuda.get_rng_state": ("print(len(torch.cuda.get_rng_state()) > 0)", NO_STATE),
    "torch.cuda.get_rng_state_all": ("print(len(torch.cuda.get_rng_state_all()))", NO_STATE),
    "torch.cuda.initial_seed": ("print(torch.cuda.initial_seed() > 0)", NO_STATE),
    "torch.cuda.set_rng_state": (
        "torch.get_device_module().set_rng_state(torch.get_device_module().get_rng_state())\nprint('done')",
        "done",
    ),
    "torch.cuda.set_rng_state_all": (
        "torch.cuda.set_rng_state_all([])\nprint('done')",
        NOT_THERE,
    ),
    "torch.cuda.amp.autocast": (
        "with torch.cuda.amp.autocast():\n    print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)",
        "torch.float32",
    ),
    "torch.cuda.amp.GradScaler": ("print(torch.cuda.amp.GradScaler(2.0).is_enabled())", "True"),
    'torch.autocast("cuda")': (
        "with torch.autocast('cuda', enabled=True):\n    print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)",
        "torch.float32",
    ),
    'torch.amp.GradScaler("cuda")': (
        "print(torch.amp.GradScaler('cuda', enabled=False).is_enabled())",
        "False",
    ),
    "torch.cuda.get_device_name": ("print(torch.cuda.get_device_name(0))", NOT_THERE),
    "torch.cuda.get_device_properties": (
        "print(torch.cuda.get_device_properties(0).name)",
        NOT_THERE,
    ),
    "torch.cuda.is_initialized": ("torch.cuda.is_initialized()\nprint('done')", "done"),
    "torch.cuda.is_bf16_supported": ("print(torch.cuda.is_bf16_supported())", "True"),
    'torch.distributed.init_process_group("nccl")': (
        "if torch.cuda.is_available() and torch.cuda.device_count() > 99:\n"
        "    torch.distributed.init_process_group('nccl')\nprint('done')",
        "done",
    ),
}

OTHERS = {  # the framework, the row, a program, and what it prints on two virtual GPUs
    "paddle": {
        "paddle.is_compiled_with_cuda": ("print(paddle.is_compiled_with_cuda())", "True"),
        "paddle.device.cuda.device_count": ("print(paddle.device.cuda.device_count())", "2"),
        "paddle.device.cuda.synchronize": (
            "paddle.device.cuda.synchronize()\nprint('done')",
            "done",
        ),
        "paddle.device.cuda.memory_allocated": (
            "print(paddle.device.cuda.memory_allocated())",
            "0",
        ),
        "paddle.device.cuda.max_memory_allocated": (
            "print(paddle.device.cuda.max_memory_allocated())",
            "0",
        ),
        "paddle.CUDAPlace": ("d = paddle.CUDAPlace(1)\nprint(d)", "Place(vgpu:1)"),
        'paddle.set_device("gpu:0")': (
            "paddle.set_device('gpu:1')\nprint(paddle.ones([1]).place)",
            "Place(vgpu:1)",
        ),
    },
    "mxnet": {
        "mxnet.gpu": ("d = mxnet.gpu(1)\nprint(mxnet.nd.ones((1,), ctx=d).asnumpy())", "[1.]"),
        "mxnet.context.num_gpus": ("print(mxnet.context.num_gpus())", "2"),
        "mxnet.npx.num_gpus": ("print(mxnet.npx.num_gpus())", "2"),
        "mxnet.npx.waitall": ("mxnet.npx.waitall()\nprint('done')", "done"),
        "x.as_in_ctx(ctx)": (
            "x = mxnet.nd.ones((2,)).as_in_ctx(mxnet.cpu())\nprint(x.asnumpy())",
            "[1. 1.]",
        ),
    },
    "tensorflow": {
        'tensorflow.config.list_physical_devices("GPU")': (
            "print(len(tensorflow.config.list_physical_devices('GPU')))",
            "2",
        ),
        "tensorflow.test.is_gpu_available": (
            "print(tensorflow.test.is_gpu_available())",
            "True",
        ),
        "tensorflow.test.is_built_with_cuda": (
            "print(tensorflow.test.is_built_with_cuda())",
            "True",
        ),
        'tensorflow.device("/GPU:1")': (
            "with tensorflow.device('/GPU:1'):\n    print(tensorflow.ones(2).numpy().sum())",
            "2.0",
        ),
    },
    "jax": {
        'jax.devices("gpu")[i]': (
            "d = jax.devices('gpu')[1]\nprint(jax.device_put(jax.numpy.ones(()), d))",
            "1.0",
        ),
        'jax.device_count("gpu")': ("print(jax.device_count('gpu'))", "2"),
        "jax.device_put": (
            "x = jax.device_put(jax.numpy.ones(2), jax.devices('cpu')[0])\nprint(x.sum())",
            "2.0",
        ),
    },
}
PROGRAMS = {"torch": TORCH, **OTHERS}


def test_every_row_that_is_written_has_a_program():
    written = {row.name for row in TABLE if row.accelerator or row.xdevice}
    assert written == {name for programs in PROGRAMS.values() for name in programs}


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "reference" / "words.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in page if line.startswith("| `")]
    for row, line in zip(TABLE, shown, strict=True):
        name, accelerator, since, xdevice, differs = (
            cell.strip().strip("`") for cell in line.strip("|").split("|")
        )
        same = "the same" if row.accelerator and not row.xdevice else row.xdevice
        assert (name, accelerator, since, xdevice, differs) == (
            row.name,
            row.accelerator,
            row.since,
            same,
            row.differs,
        )


@cache
def results(framework, version, gpus=None):
    """What each program prints, or how it ends: as it is, or ported to a target."""
    texts = [text_of(framework, name, version) for name in PROGRAMS[framework]]
    head = f"FRAMEWORK = {framework!r}\nPROGRAMS = {json.dumps(texts)!r}\n"
    settings = {"XDEVICE_MXNET_NP": "0"} | (
        {} if gpus is None else {"XDEVICE_VIRTUAL_GPUS": str(gpus)}
    )
    shown = printed("-c", head + RUNNER, **settings)
    return dict(zip(PROGRAMS[framework], json.loads(shown.splitlines()[-1]), strict=True))


def text_of(framework, name, version):
    text = f"import {framework}\n{PROGRAMS[framework][name][0]}\n"
    return text if version == "before" else ported_to(version, text, only="safe")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TORCH)
def test_a_word_runs_as_the_name_did_on_a_cpu_and_on_virtual_gpus(name, target):
    left = "cuda" if target == "accelerator" else "torch.cuda"
    assert left not in text_of("torch", name, target)
    check("torch", name, target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "name"), [(f, name) for f, programs in OTHERS.items() for name in programs]
)
def test_a_word_of_xdevice_runs_as_the_frameworks_name_did(framework, name):
    if framework not in BACKENDS:
        pytest.skip(f"{framework} is not installed")
    assert text_of(framework, name, "xdevice") != text_of(framework, name, "before")
    check(framework, name, "xdevice")


def check(framework, name, target):
    """A program that ran before prints the same afterwards on the CPU, and on virtual GPUs what it should."""
    before, after = results(framework, "before")[name], results(framework, target)[name]
    has_failed = before.endswith("Error")
    assert after == before or has_failed
    expected = PROGRAMS[framework][name][1]
    virtual = results(framework, target, gpus=2)[name]
    if expected == NOT_COUNTED:
        assert virtual == NOT_COUNTED or not virtual.endswith("Error")
    else:
        assert virtual == (before if expected is AS_ON_THE_CPU else expected)
