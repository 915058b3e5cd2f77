"""`port --to accelerator`, and what both targets keep: a program that ran before runs afterwards, and none is half
ported without a word."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.environment import BACKENDS, printed
from helpers.port_texts import examined, ported, ported_to

from xdevice.port.words import ROWS, Goal, version

HEAD = "import torch\nx = torch.ones(2)\n"
ACCELERATOR = "torch.accelerator.current_accelerator()"
THERE = "torch.accelerator.is_available()"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # where there is no GPU, the old name gave a value and the word would raise
        ("m = torch.cuda.memory_reserved(0)", f"m = torch.accelerator.memory_reserved(0) if {THERE} else 0"),
        ("print(torch.cuda.memory_stats() or 1)",
         f"print((torch.accelerator.memory_stats() if {THERE} else {{}}) or 1)"),
        ("torch.cuda.empty_cache()  # all of it", f"if {THERE}:\n    torch.accelerator.empty_cache()  # all of it"),
        ("if x is None: torch.cuda.empty_cache()",
         f"if x is None: torch.accelerator.empty_cache() if {THERE} else None"),
        ("if torch.cuda.is_available():\n\ttorch.cuda.empty_cache()",
         f"if {THERE}:\n\ttorch.accelerator.empty_cache()"),
        ("def f():\n    if not torch.cuda.is_available():\n        return\n    torch.cuda.empty_cache()",
         f"def f():\n    if not {THERE}:\n        return\n    torch.accelerator.empty_cache()"),
        # moves and devices
        ("y = x.cuda()", f"y = x.to({ACCELERATOR})"),
        ("y = x.cuda(1, non_blocking=True)", "y = x.to(1, non_blocking=True)"),
        ("y = x.cuda(device=1)", "y = x.to(device=1)"),
        ("y = x.cuda(unknown)", "y = x.cuda(unknown)"),  # it may be None
        ("y = x.to('cuda:1')", f"y = x.to(f'{{{ACCELERATOR}}}:1')"),
        ("y = x.to(torch.device('cuda'))", f"y = x.to({ACCELERATOR} or torch.device(\"cpu\"))"),
        ("d = f'cuda:{i}'\ny = x.to(d)", f"d = f'{{{ACCELERATOR} or \"cpu\"}}:{{i}}'\ny = x.to(d)"),
        ("d = 'cuda'\ny = x.to(d)", f"d = str({ACCELERATOR} or \"cpu\")\ny = x.to(d)"),
        ("d = 'cuda'\nprint(d)", "d = 'cuda'\nprint(d)"),  # no device is made of it
        ("y = x.to('cuda:%d' % i)", f"y = x.to(f'{{{ACCELERATOR}}}:%d' % i)"),
        ("d = 'cuda:{}'.format(i)\ny = x.to(d)",
         f"d = '{{}}:{{}}'.format({ACCELERATOR} or \"cpu\", i)\ny = x.to(d)"),
        ("d = 'cuda:0' if torch.cuda.is_available() else 'cpu'",
         f"d = f'{{{ACCELERATOR}}}:0' if {THERE} else 'cpu'"),
        # which need not be there, and is not the CPU
        ("y = torch.device('cuda:1')", f"y = torch.device(f'{{{ACCELERATOR} or \"cpu\"}}:1')"),
        ("y = x.device == torch.device('cuda')", f"y = x.device == {ACCELERATOR}"),
        ("y = x.device.type == 'cuda'", f"y = x.device.type == str({ACCELERATOR})"),
        ("y = not x.is_cuda", f"y = not x.device.type == str({ACCELERATOR})"),
        # mixed precision is off where there is no accelerator, as it was
        ("s = torch.cuda.amp.GradScaler(2.0, enabled=x or 1)",
         f's = torch.amp.GradScaler(str({ACCELERATOR} or "cpu"), init_scale=2.0, enabled={THERE} and (x or 1))'),
        ("s = torch.autocast('cuda', enabled=False)",
         f's = torch.autocast(str({ACCELERATOR} or "cpu"), enabled=False)'),
        ("if torch.cuda.is_available():\n    s = torch.autocast('cuda')",
         f"if {THERE}:\n    s = torch.autocast({ACCELERATOR}.type)"),
        ("s = torch.autocast(kind)", "s = torch.autocast(kind)"),
        # seeds
        ("torch.manual_seed(3)\ntorch.cuda.manual_seed_all(3)", "torch.manual_seed(3)\ntorch.manual_seed(3)"),
        ("torch.manual_seed(3)\ntorch.cuda.manual_seed_all(4)",
         f"torch.manual_seed(3)\nif {THERE}:\n    torch.get_device_module().manual_seed_all(4)"),
        ("torch.manual_seed(f())\ntorch.cuda.manual_seed(f())",
         f"torch.manual_seed(f())\nif {THERE}:\n    torch.get_device_module().manual_seed(f())"),
        # streams
        ("s = torch.cuda.Stream()\nwith torch.cuda.stream(s): pass", "s = torch.Stream()\nwith s: pass"),
        ("def f(s: torch.cuda.Stream):\n    with torch.cuda.stream(s): pass",
         "def f(s: torch.Stream):\n    with s: pass"),
        ("with torch.cuda.stream(unknown): pass", "with torch.cuda.stream(unknown): pass"),
        ("s = torch.cuda.Stream()\nh = s.cuda_stream", "s = torch.cuda.Stream()\nh = s.cuda_stream"),
        ("ok = torch.cuda.current_stream() != torch.cuda.default_stream()",
         "ok = torch.cuda.current_stream() != torch.cuda.default_stream()"),
        ("d = torch.device('cuda', i)", f'd = torch.device(str({ACCELERATOR} or "cpu"), i)'),
        ("e = torch.cuda.Event(True, blocking=True)", "e = torch.Event(enable_timing=True, blocking=True)"),
        # what others are given
        ("f(torch.cuda.synchronize)", "f(torch.accelerator.synchronize)"),
        ("f(torch.cuda.empty_cache)", "f(torch.cuda.empty_cache)"),
        ("torch.distributed.init_process_group(backend='nccl')",
         f"torch.distributed.init_process_group(backend=torch.distributed.get_default_backend_for_device({ACCELERATOR}))"),
    ],
)  # fmt: skip
def test_pytorchs_own_words(before, after):
    assert ported_to("accelerator", f"{HEAD}{before}\n") == f"{HEAD}{after}\n"
    assert ported_to("accelerator", f"{HEAD}{after}\n") == f"{HEAD}{after}\n"


@pytest.mark.parametrize(
    "code",
    [
        "ok = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)",
        "if torch.cuda.is_available():\n    g = torch.cuda.CUDAGraph()",
        "if x.device.type == 'cuda':\n    g = torch.cuda.CUDAGraph()",
        "ok = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0",
        "@skipUnless(torch.cuda.is_available(), 'CUDA')\ndef f():\n    return torch.cuda.graph_pool_handle()",
        # what leaves early guards what follows
        *(
            f"def f(x=torch.ones(1)):\n    if {test}:\n        {leave}\n    g = torch.cuda.CUDAGraph()"
            for test, leave in (
                ("not torch.cuda.is_available()", "return"),
                ("not torch.cuda.is_available()", "sys.exit()"),
                ("not torch.cuda.is_available() or x is None", "raise OSError"),
                ("torch.cuda.device_count() == 0", "return"),
                ("torch.cuda.device_count() < 2", "self.skipTest('CUDA')"),
                ("0 == torch.cuda.device_count()", "return"),
                ("1 > torch.cuda.device_count()", "return"),
                ("x.device.type != 'cuda'", "return"),
            )
        ),
        "if 0 < torch.cuda.device_count():\n    g = torch.cuda.CUDAGraph()",
        # PyTorch has it for CUDA alone
        "if x.device.type == 'cuda':\n    m = torch.nn.DataParallel(unknown)",
        # other vendors' properties have no such part
        "def f():\n    if not torch.cuda.is_available():\n        return\n"
        "    if torch.cuda.get_device_properties(0).major == 8:\n        print()",
        # so does a name
        "ok = torch.cuda.is_available()\nif ok:\n    g = torch.cuda.CUDAGraph()",
        "ok = unknown and torch.cuda.is_available()\ndef f():\n    return torch.cuda.CUDAGraph() if ok else None",
        "unknown.ok = torch.cuda.is_available()\nif unknown.ok and unknown.go:\n    g = torch.cuda.CUDAGraph()",
        # another vendor's device has a branch of its own, and would no longer come to it
        "if torch.cuda.is_available():\n    f(1)\nelif torch.xpu.is_available():\n    f(2)",
        "if torch.cuda.is_available():\n    a = torch.profiler.ProfilerActivity.CUDA",
    ],
)
@pytest.mark.parametrize("target", ["xdevice", "accelerator"])
def test_a_test_that_guards_what_only_cuda_has_stays(code, target):
    assert ported_to(target, f"{HEAD}{code}\n") == f"{HEAD}{code}\n"


@pytest.mark.parametrize(
    "code",
    [
        "s = torch.amp.GradScaler() if _TORCH_GREATER_EQUAL_2_4 else torch.cuda.amp.GradScaler()",
        "if version.parse(torch.__version__) < old:\n    s = torch.cuda.amp.GradScaler()",
    ],
)
def test_what_an_old_release_needs_stays(code):
    assert ported_to("accelerator", f"{HEAD}{code}\n") == f"{HEAD}{code}\n"


def test_a_name_that_is_given_itself_guards_nothing():
    text = f"{HEAD}ok = torch.cuda.is_available()\nok = ok and x\nif ok:\n    pass\ng = torch.cuda.CUDAGraph()\n"
    assert "ok = torch.accelerator.is_available()" in ported_to("accelerator", text)


def test_a_choice_between_vendors_takes_any_device():
    choice = (
        "if torch.cuda.is_available():\n    d = torch.device('cuda')\n"
        "elif torch.backends.mps.is_available():\n    d = torch.device('mps')\nelse:\n    d = torch.device('cpu')\n"
    )
    new = ported_to("accelerator", f"{HEAD}{choice}")
    assert f"if {THERE}:\n    d = {ACCELERATOR}\n" in new


def test_a_module_has_its_own_name_for_pytorch():
    text = "import torch as th\nth.cuda.synchronize()\n"
    assert (
        ported_to("accelerator", text) == "import torch as th\nth.accelerator.synchronize()\n"
    )


def test_an_import_whose_last_use_is_gone_goes_too():
    text = (
        "from torch import nn\nfrom torch.cuda.amp import GradScaler, autocast\nfrom torch.cuda import Stream, graph\n"
        "s = GradScaler(enabled=False)\nt: Stream = Stream()\nwith graph(): pass\n"
    )
    new = ported_to("accelerator", text)
    assert "GradScaler, autocast" not in new
    assert "from torch.cuda.amp import autocast\n" in new  # it was not used before either
    assert "from torch.cuda import Stream, graph\n" in new  # the annotation needs it
    assert "import torch\n" in new
    compile(new, "main.py", "exec")


@pytest.mark.parametrize(
    ("text", "is_added"),
    [
        ("def f():\n    import torch\n    torch.cuda.synchronize()\n", False),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None\n{}", False),
        ("if __name__ == '__main__':\n    import torch\n    torch.cuda.synchronize()\n", False),
        ("def g():\n    import torch\nfrom torch import cuda\n\ncuda.synchronize()\n", True),
        ("if flag:\n    import torch\nfrom torch import cuda\n\ncuda.synchronize()\n", True),
        (
            "class A:\n    import torch\n\n    def f(self, x):\n        self.torch.cuda.synchronize()\n{}",
            True,
        ),
    ],
)
def test_an_import_of_pytorch_is_added_only_where_the_name_is_unknown(text, is_added):
    new = ported_to("accelerator", text.format("from torch import cuda\ncuda.synchronize()\n"))
    assert "torch.accelerator.synchronize()" in new
    assert any(line == "import torch" for line in new.splitlines()) is is_added


def test_a_minimum_leaves_newer_words_out_and_says_so():
    text = f"{HEAD}torch.cuda.synchronize()\nfree = torch.cuda.mem_get_info()\n"
    new = examined(text, goal=Goal("accelerator", version("2.9")))
    (left,) = [site for site in new.sites if site.verdict == "open"]
    assert (left.idiom, left.code) == ("torch.cuda.mem_get_info", "XD171")
    assert "2.10" in left.why
    assert new.needed_torch(new.sources[0]) == version("2.6")
    newest = examined(text, goal=Goal("accelerator"))
    assert newest.needed_torch(newest.sources[0]) == version("2.10") > version("2.9")


def test_a_word_that_is_not_written_needs_no_release():
    text = "import torch\ndef f(d):\n    with torch.cuda.device(d):\n        pass\n"
    left = examined(text, goal=Goal("accelerator"))
    assert [(site.verdict, site.since) for site in left.sites] == [("open", "2.8")]
    assert left.needed_torch(left.sources[0]) is None


@pytest.mark.parametrize("target", ["xdevice", "accelerator"])
def test_what_stays_is_what_the_table_says(target):
    for name, row in ROWS.items():
        if name.startswith("torch.cuda.") and not row.accelerator:
            (site,) = [
                site
                for site in examined(f"{HEAD}y = {name}()\n", goal=Goal(target)).sites
                if site.idiom == name
            ]
            assert (site.verdict, site.why, site.vendor) == ("open", row.differs, "CUDA")


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("import paddle\nd = paddle.CUDAPlace(0)", "open"),
        ("import mxnet as mx\nd = mx.gpu(0)", "open"),
        ("from mxnet import npx\nnpx.waitall()", "neutral"),
    ],
)
def test_names_of_other_frameworks_have_no_word_of_pytorch(line, verdict):
    (site,) = examined(line, goal=Goal("accelerator")).sites
    assert site.verdict == verdict
    assert ("only PyTorch has neutral words" in site.why) is (verdict == "open")


@pytest.mark.parametrize(
    "code",
    [
        "import mxnet as mx\nmx.npx.gpu(1)",
        "import mxnet as mx\nmx.context.gpu(1)",
        "import mxnet as mx\nmx.device.gpu(1)",
        "import mxnet as mx\nmx.device.num_gpus()",
        'import mxnet as mx\nmx.Context("gpu", 1)',
        'import paddle\npaddle.set_device("gpu")',
        'import paddle\npaddle.set_device(device="gpu:1")',
        'import paddle\npaddle.device.set_device(f"gpu:{i}")',
        'import paddle\npaddle.set_device("gpu" if gpus else "cpu")',
        "import paddle\npaddle.device.is_compiled_with_cuda()",
    ],
)
def test_every_name_of_a_device_of_one_vendor_stays_open(code):
    (site,) = examined(code, goal=Goal("accelerator")).sites
    assert site.verdict == "open"


@pytest.mark.parametrize(
    "code",
    [
        "import mxnet as mx\nmx.npx.cpu()",
        'import mxnet as mx\nmx.Context("cpu")',
        'import paddle\npaddle.set_device("cpu")',
        "import paddle\npaddle.device.set_device(args.device)",
    ],
)
def test_the_cpu_and_a_device_from_elsewhere_are_neutral(code):
    (site,) = examined(code, goal=Goal("accelerator")).sites
    assert site.verdict == "neutral"


def run_port(folder, *arguments):
    command = [sys.executable, "-m", "xdevice.port", "port", *arguments, "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


NCCL = (
    'b = "gloo" if not torch.cuda.is_available() else "nccl"\n',
    'b = "nccl" if torch.cuda.is_available() else "gloo"\n',
    "if torch.cuda.is_available():\n    f(backend='nccl')\n",
)


@pytest.mark.parametrize("target", ["xdevice", "accelerator"])
@pytest.mark.parametrize("code", NCCL)
def test_a_test_that_chooses_the_collectives_of_cuda_is_kept(tmp_path, code, target):
    (tmp_path / "a.py").write_text(f"{HEAD}{code}")
    run_port(tmp_path, "--to", target, "--write")
    assert (tmp_path / "a.py").read_text() == f"{HEAD}{code}"
    assert '"nccl" (line' in run_port(tmp_path, "--to", target, "--check", "-q").stderr


def test_a_file_that_still_needs_a_vendor_is_named_and_fails_the_check(tmp_path):
    (tmp_path / "a.py").write_text(
        f"{HEAD}torch.cuda.synchronize()\ng = torch.cuda.CUDAGraph()\nf(backend='nccl')\n"
    )
    (tmp_path / "b.py").write_text(f"{HEAD}free = torch.cuda.mem_get_info()\n")
    first = run_port(tmp_path, "--to", "accelerator", "--check", "-q")
    assert first.returncode == 1
    assert run_port(tmp_path, "--to", "accelerator", "--write").returncode == 0
    again = run_port(tmp_path, "--to", "accelerator", "--check", "-q")
    assert again.returncode == 3
    assert again.stdout == ""
    assert (
        'a.py will still need CUDA: torch.cuda.CUDAGraph (line 4); "nccl" (line 5)'
        in again.stderr
    )
    assert "b.py will" not in again.stderr
    assert "PyTorch 2.10 or newer is needed by b.py" in first.stderr
    (tmp_path / "a.py").unlink()
    assert run_port(tmp_path, "--to", "accelerator", "--check").returncode == 0


def test_a_wrong_minimum_is_an_error(tmp_path):
    done = run_port(tmp_path, "--torch-minimum", "newest")
    assert done.returncode == 2
    assert "expected a PyTorch release such as 2.9, got 'newest'" in done.stderr


def test_what_asks_for_memory_is_pytorchs_own_word():
    # xdevice.memory(xdevice.gpu()) raises where there is no GPU, and torch.cuda.memory_allocated() is 0 there
    new = ported(f"{HEAD}m = torch.cuda.max_memory_allocated() / 2**20\n")
    assert new.endswith(
        "m = (torch.accelerator.max_memory_allocated() if xdevice.num_gpus() > 0 else 0) / 2**20\n"
    )


LEGACY = """
import mxnet as mx
from mxnet.gluon import nn

net = nn.Dense(2)
net.initialize(mx.init.One(), ctx=mx.cpu())
x = mx.nd.ones((2, 3)).as_in_context(mx.cpu())
print(type(x).__name__, net(x).asnumpy().tolist(), mx.context.num_gpus(), x.reshape((0, -1)).shape)
"""


def test_a_legacy_program_keeps_the_arrays_of_mxnet():
    new = ported(LEGACY)
    assert new.index('os.environ.setdefault("XDEVICE_MXNET_NP", "0")') < new.index(
        "import xdevice\n"
    )
    modern = ported(LEGACY.replace("\nnet =", "\nmx.npx.set_np()\nnet ="))
    assert 'set_backend("mxnet")' in modern
    assert "XDEVICE_MXNET_NP" not in modern


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [None, "2"])
def test_a_legacy_program_of_mxnet_prints_the_same(gpus):
    if "mxnet" not in BACKENDS:
        pytest.skip("MXNet is not installed")
    loads = 'import xdevice\nxdevice.set_backend("mxnet")\n'  # MXNet does not load beside today's NumPy without
    settings = {} if gpus is None else {"XDEVICE_VIRTUAL_GPUS": gpus}
    before = printed("-c", loads + LEGACY, XDEVICE_MXNET_NP="0")
    assert before.startswith("NDArray ")
    after = printed("-c", ported(LEGACY), **settings)
    # only the number of GPUs may differ
    assert after.replace(" 2 (", " 0 (") == before
