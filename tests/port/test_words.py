"""The table of words: each of its rows is ported, and runs before and after, on the CPU and on virtual GPUs."""

from __future__ import annotations

import json
from functools import cache

import pytest
from helpers.environment import printed
from helpers.port_texts import ported_to

from xdevice.port.words import TABLE, TARGETS

RUNNER = """
import contextlib, io, json, os, sys, warnings
warnings.simplefilter("ignore")
if os.environ.get("XDEVICE_VIRTUAL_GPUS"):
    import xdevice
    xdevice.set_backend(FRAMEWORK)
ends = []
for program in json.loads(PROGRAMS):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(program, {})
        ends.append(out.getvalue().strip())
    except Exception as error:
        ends.append(type(error).__name__)
    if FRAMEWORK == "torch" and os.environ.get("XDEVICE_VIRTUAL_GPUS"):
        sys.modules["torch"].accelerator.set_device_index(0)
print(json.dumps(ends))
"""
AS_ON_THE_CPU = None
NOT_COUNTED = "UnsupportedError"  # the memory of virtual GPUs is the host's
NO_STATE = "NotImplementedError"  # virtual GPUs have no generator of their own
NOT_THERE = "AttributeError"  # the module of virtual GPUs has no such function
TORCH = {  # the row, a program, and what it prints on two virtual GPUs
    "torch.cuda.is_available": ("print(torch.cuda.is_available())", "True"),
    "torch.cuda.device_count": ("print(torch.cuda.device_count())", "2"),
    'torch.device("cuda")': ("d = torch.device('cuda')\nprint(torch.ones(2, device=d).sum().item())", "2.0"),
    'device="cuda"': ("print(torch.ones(2, device='cuda').sum().item())", "2.0"),
    '"cuda" if torch.cuda.is_available() else "cpu"': (
        "d = 'cuda' if torch.cuda.is_available() else 'cpu'\nprint(torch.ones(2, device=d).sum().item())",
        "2.0",
    ),
    'x.to("cuda")': ("x = torch.ones(2)\ny = x.to('cuda')\nprint(y.sum().item(), y.device.type != 'cpu')", "2.0 True"),
    "x.cuda()": ("x = torch.ones(2)\ny = x.cuda()\nprint(y.sum().item(), y.device.type != 'cpu')", "2.0 True"),
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
    "torch.cuda.set_stream": ("torch.cuda.set_stream(torch.cuda.current_stream())\nprint('done')", NOT_COUNTED),
    "torch.cuda.stream": (
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    print(torch.ones(2).sum().item())",
        "2.0",
    ),
    "torch.cuda.Stream": ("s = torch.cuda.Stream()\ns.synchronize()\nprint(s.query())", "True"),
    "torch.cuda.Event": ("e = torch.cuda.Event(True)\nprint(e.query())", "True"),
    "torch.cuda.is_current_stream_capturing": ("print(torch.cuda.is_current_stream_capturing())", "False"),
    "torch.cuda.empty_cache": ("torch.cuda.empty_cache()\nprint('done')", "done"),
    "torch.cuda.memory_allocated": ("print(torch.cuda.memory_allocated(device=0) > 0)", NOT_COUNTED),
    "torch.cuda.max_memory_allocated": ("print(torch.cuda.max_memory_allocated() > 0)", NOT_COUNTED),
    "torch.cuda.memory_reserved": ("print(torch.cuda.memory_reserved() > 0)", NOT_COUNTED),
    "torch.cuda.max_memory_reserved": ("print(torch.cuda.max_memory_reserved() > 0)", NOT_COUNTED),
    "torch.cuda.memory_stats": ("print(len(torch.cuda.memory_stats()) > 0)", NOT_COUNTED),
    "torch.cuda.reset_peak_memory_stats": ("torch.cuda.reset_peak_memory_stats()\nprint('done')", NOT_COUNTED),
    "torch.cuda.reset_accumulated_memory_stats": (
        "torch.cuda.reset_accumulated_memory_stats()\nprint('done')",
        NOT_COUNTED,
    ),
    "torch.cuda.mem_get_info": ("free, total = torch.cuda.mem_get_info()\nprint(free <= total)", NOT_COUNTED),
    "torch.cuda.memory_cached": ("print(torch.cuda.memory_cached() > 0)", NOT_COUNTED),
    "torch.cuda.max_memory_cached": ("print(torch.cuda.max_memory_cached() > 0)", NOT_COUNTED),
    "torch.cuda.reset_max_memory_allocated": ("torch.cuda.reset_max_memory_allocated()\nprint('done')", NOT_COUNTED),
    "torch.cuda.reset_max_memory_cached": ("torch.cuda.reset_max_memory_cached()\nprint('done')", NOT_COUNTED),
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
    "torch.cuda.set_rng_state_all": ("torch.cuda.set_rng_state_all([])\nprint('done')", NOT_THERE),
    "torch.cuda.amp.autocast": (
        "with torch.cuda.amp.autocast():\n    print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)",
        "torch.float32",
    ),
    "torch.cuda.amp.GradScaler": ("print(torch.cuda.amp.GradScaler(2.0).is_enabled())", "True"),
    'torch.autocast("cuda")': (
        "with torch.autocast('cuda', enabled=True):\n    print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)",
        "torch.float32",
    ),
    'torch.amp.GradScaler("cuda")': ("print(torch.amp.GradScaler('cuda', enabled=False).is_enabled())", "False"),
    "torch.cuda.get_device_name": ("print(torch.cuda.get_device_name(0))", NOT_THERE),
    "torch.cuda.get_device_properties": ("print(torch.cuda.get_device_properties(0).name)", NOT_THERE),
    "torch.cuda.get_device_capability": ("print(torch.cuda.get_device_capability())", NOT_THERE),
    "torch.cuda.is_initialized": ("torch.cuda.is_initialized()\nprint('done')", "done"),
    "torch.cuda.is_bf16_supported": ("print(torch.cuda.is_bf16_supported())", "True"),
    'torch.distributed.init_process_group("nccl")': (
        "if torch.cuda.is_available() and torch.cuda.device_count() > 99:\n"
        "    torch.distributed.init_process_group('nccl')\nprint('done')",
        "done",
    ),
}


def test_every_row_that_is_written_has_a_program():
    written = {row.name for row in TABLE if row.rule}
    assert written - set(TORCH) - {"torch.cuda.get_device_capability"} == set()


@cache
def results(framework, version, gpus=None):
    """What each program prints, or how it ends: as it is, or ported to a target."""
    programs = {"torch": TORCH}[framework]
    texts = [text_of(framework, name, version) for name in programs]
    head = f"FRAMEWORK = {framework!r}\nPROGRAMS = {json.dumps(texts)!r}\n"
    settings = {} if gpus is None else {"XDEVICE_VIRTUAL_GPUS": str(gpus)}
    shown = printed("-c", head + RUNNER, **settings)
    return dict(zip(programs, json.loads(shown.splitlines()[-1]), strict=True))


def text_of(framework, name, version):
    text = f"import {framework}\n{TORCH[name][0]}\n"
    return text if version == "before" else ported_to(version, text)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TORCH)
def test_a_word_runs_as_the_name_did_on_a_cpu_and_on_virtual_gpus(name, target):
    left = "cuda" if target == "accelerator" else "torch.cuda"
    assert left not in text_of("torch", name, target)
    before, after = results("torch", "before")[name], results("torch", target)[name]
    failed_before = before.endswith("Error")
    assert after == before or failed_before
    expected = TORCH[name][1]
    assert results("torch", target, gpus=2)[name] == (before if expected is AS_ON_THE_CPU else expected)
