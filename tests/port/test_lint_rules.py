"""The rules of lint: what each finds, and what looks like it and is right."""

from __future__ import annotations

import pytest

from xdevice.port import engine, lint_rules, sources
from xdevice.port.engine import Examined


def found(text, path="train.py"):
    source = sources.parse(text.encode(), path)
    return [hit.code for module in source.modules for hit in lint_rules.hits(module)]


LOOP = """import torch
for step, (x, y) in enumerate(loader):
    loss = net(x)
    loss.backward()
    {}
"""

WRONG = {
    "XD201": [
        "import time, torch\nt = time.time()\ny = net.forward(x)\nprint(time.time() - t)",
        "from time import perf_counter as now\nimport jax\ndef f():\n    t = now()\n    a.dot(b)\n    return now() - t",
    ],
    "XD202": [
        'import torch\nd = torch.device("cuda:0")',
        "import torch\nx = y.to('cuda')",
        "import torch\nx = torch.ones(2, device='mps')",
        "import torch\nwith torch.autocast(device_type='cuda'): pass",
        "import paddle\npaddle.set_device('gpu:1')",
        "import tensorflow as tf\nwith tf.device('/GPU:0'): pass",
        "from torch import device\nd = device('xpu')",
    ],
    "XD203": ["import torch\nnet = torch.nn.DataParallel(net).cuda()"],
    "XD204": ["x = y.to('cpu', non_blocking=flag)", "x = y.cpu(non_blocking=True)"],
    "XD205": [
        "import torch\nw = torch.load('a.pt')",
        "from torch import load\nw = load('a.pt', weights_only=True)",
    ],
    "XD207": ["import torch\ndevices = try_all_gpus()\ntorch.cuda.synchronize()"],
    "XD208": [LOOP.format("total += loss.item()"), LOOP.format("seen.append(loss.numpy()[0])")],
    "XD209": ["import tensorflow as tf\nwith try_gpu(1):\n    Z = X"],
    "XD211": ["ok = 'cuda' in device", "ok = x.device.endswith('GPU:0')"],
    "XD214": ["import os, torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'"],
    "XD217": [
        "import torch\nok = torch.cuda.is_available()",
        "from torch.cuda.amp import GradScaler\ns = GradScaler()",
        "import paddle\np = paddle.CUDAPlace(0)",
        "wait = __import__ and x.is_cuda",
        "import torch\nok = x.device.type == 'cuda'",
        "import torch\nok = torch.cuda.is_bf16_supported()",
        "import torch.distributed as dist\ndist.init_process_group('nccl', rank=0)",
        "from torch.distributed import init_process_group\ninit_process_group(backend='nccl')",
    ],
    "XD222": [
        "def f(x, device='cuda'): pass",
        "async def f(x, *, to_device: str = 'cuda:0'): pass",
        "def f(x, device='npu', /): pass",
    ],
    "XD224": [
        "import torch\nx = y.pin_memory()",
        "x = torch.ones(2).pin_memory().to(d, non_blocking=True)",
    ],
    "XD219": [
        "import torch\ng = torch.cuda.CUDAGraph()",
        "import torch\nmodule = torch.cuda",
        "import torch\na = [torch.profiler.ProfilerActivity.CUDA]",
        "import torch\nn = torch.cuda.get_device_capability()[0]",
        "from torch.cuda import nvtx\nnvtx.mark('x')",
    ],
    "XD218": ["x = y.cuda()", "net = f(x).cuda(1, non_blocking=True)"],
    "XD402": [
        LOOP.format("if step % 10 == 0: print(loss.item())"),
        LOOP.format("s = loss.item() if step else 0"),
    ],
}

RIGHT = {
    "XD201": [
        "import time, torch\nt = time.time()\ny = net.forward(x)\ntorch.cuda.synchronize()\nprint(time.time() - t)",
        "import time, torch\nt = time.time()\ny = net.forward(x).item()\nprint(time.time() - t)",
        "import time\nt = time.time()\ny = net.forward(x)\nprint(time.time() - t)",
        "import time, tensorflow\nt = time.time()\ny = net.forward(x)\nprint(time.time() - t)",
        "import time, torch\nt = time.time()\nopen('f')\nprint(time.time() - t)",
    ],
    "XD202": [
        'import torch\nd = torch.device("cuda" if ok else "cpu")',
        "import torch\nd = torch.device('cuda:0') if torch.cuda.is_available() else None",
        "import torch\nif args.cuda:\n    net.to('cuda')",
        "import torch\nd = torch.device('cpu')",
        "import dali\nx = dali.ops.Resize(device='gpu')",
        "import torch\nprint('cuda')",
        "x = y.to(z, 'cuda')",  # where PyTorch takes a dtype
        "import torch\nx = torch.autocast('cpu', 'cuda')",
    ],
    "XD203": ["import torch\nx = y.cuda()", "import torch\ntorch.cuda.set_device(1)\nnet = DataParallel(net).cuda()"],
    "XD204": ["x = y.to('cpu')", "x = y.to(device, non_blocking=True)", "x = y.cpu(non_blocking=False)"],
    "XD205": ["import torch\nw = torch.load('a', map_location='cpu')", "import torch\nw = torch.load('a', None)",
              "import json\nw = json.load(f)", "import torch\nw = torch.load('a', **how)"],
    "XD207": ["import torch\ntorch.cuda.synchronize()", "import torch\ntry_all_gpus()\ntorch.cuda.synchronize(0)"],
    "XD208": [
        LOOP.format("total += loss"),
        "import torch\nfor x in data:\n    print(net(x).item())", "for x in data:\n    x.backward(); x.item()",
        "import torch\nfor e in epochs:\n    for x in data:\n        x.backward()\n    print(x.item())",
        "import torch\nfor x in data:\n    def f(): x.backward()\n    print(x.item())",
        "import torch\nfor x in data:\n    async def f(): x.backward()\n    print(x.item())",
    ],
    "XD209": ["import torch\nwith try_gpu(1):\n    Z = X",
              "import tensorflow as tf\nwith try_gpu(1):\n    Z = tf.identity(X)"],
    "XD211": ["ok = 'cuda' in names", "ok = name.endswith('GPU:0')"],
    "XD214": ["import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\nimport torch"],
    "XD217": [
        "import torch\nok = torch.xpu.is_available()",
        "import torch\nif has_npu():\n    x = 1\nelif torch.cuda.is_available():\n    x = 2",
        "import torch\nif torch.cuda.is_available():\n    x = 2\nelif torch.backends.mps.is_available():\n    x = 1",
        "import torch\nok = x.is_cuda or x.is_xpu",
        "from torch.cuda.amp import GradScaler\ndef f(scaler: GradScaler | None): pass",
        "from torch.cuda.amp import GradScaler\ndef f() -> GradScaler | None: pass",
        "ok = x.device.type == 'mps'",
        "import torch\nif not is_rocm() and torch.cuda.is_available(): pass",
        "import torch\nclass CUDAAccelerator:\n    def set(self, i): torch.cuda.set_device(i)",
        "import torch\ns = torch.amp.GradScaler() if _TORCH_GREATER_EQUAL_2_4 else torch.cuda.amp.GradScaler()",
    ],
    "XD224": ["import torch\nif torch.accelerator.is_available():\n    x = y.pin_memory()",
              "DataLoader(d, pin_memory=True)"],
    "XD218": ["import tvm\nd = tvm.cuda()", "import torch\nif d == 'npu':\n    pass\nelif d == 'cuda':\n    x.cuda()"],
    "XD222": ["def f(x, device_type='cuda'): pass", "def to_tensorrt(x, device='cuda'): pass",
              "def f(x, device='cpu'): pass", "def f(x, backend='cuda'): pass", "def f(x, device=None): pass"],
    "XD219": ["import torch\ntorch.cuda.synchronize()", "import cupy\ncupy.cuda.Stream()", "import torch.cuda",
              "import torch\nhas = hasattr(torch.cuda.amp, 'autocast')"],
    "XD402": [LOOP.format("total += loss.item()")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "text"), [(code, text) for code, texts in WRONG.items() for text in texts]
)
def test_what_a_rule_finds(code, text):
    assert code in found(text)


@pytest.mark.parametrize(
    ("code", "text"), [(code, text) for code, texts in RIGHT.items() for text in texts]
)
def test_what_looks_like_it_and_is_right(code, text):
    assert code not in found(text)


def test_every_rule_has_cases_and_a_meaning():
    of_comments, of_values, of_tests = {"XD401"}, {"XD212"}, {"XD403"}
    assert (
        set(WRONG) == set(RIGHT) == set(lint_rules.RULES) - of_comments - of_values - of_tests
    )


def test_a_chain_of_reads_is_found_once():
    assert found(LOOP.format("seen += loss.numpy().tolist()")) == ["XD208"]


@pytest.mark.parametrize(
    "path", ["tests/a.py", "x/test/b.py", "test_a.py", "x/a_test.py", "conftest.py"]
)
def test_vendors_in_tests_have_a_code_of_their_own(path):
    assert found("x = y.cuda()", path) == ["XD403"]
    assert found("x = y.cuda()", "latest.py") == ["XD218"]


@pytest.mark.parametrize("path", ["setup.py", "x/setup.py", "x/cuda/nccl.py", "cuda_graphs.py"])
def test_code_about_cuda_on_purpose_keeps_its_words(path):
    assert found("import torch\ntorch.cuda.synchronize()", path) == []
    assert found("import torch\ntorch.cuda.init()", path) == ["XD219"]


def test_a_copy_that_is_thrown_away_needs_a_proven_tensor():
    def thrown(text):
        source = sources.parse(text.encode(), "a.py")
        made = Examined(engine.Path("."), "proven", None, [source])
        engine.judge(made)
        return [hit.code for module in source.modules for hit in lint_rules.hits(module)]

    assert "XD212" in thrown("import torch\nx = torch.ones(1)\nx.to('cpu')")
    assert "XD212" not in thrown("import torch\nx = torch.nn.Linear(1, 1)\nx.to('cpu')")
    assert "XD212" not in thrown("import torch\nx.to('cpu')")
    assert "XD212" not in thrown("import torch\nx = torch.ones(1)\nx = x.to('cpu')")
    # nobody asked what x is
    assert "XD212" not in found("import torch\nx = torch.ones(1)\nx.to('cpu')")
