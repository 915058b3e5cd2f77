"""What the inference of port knows of values, shown by what port may rewrite because of it."""

from __future__ import annotations

import re

import pytest
from helpers.port_texts import examined, ported

from xdevice.port.values import INT, STR, TENSOR, UNKNOWN, make_value, tuple_of, union

ITEM = "return xdevice.item(x)"


@pytest.mark.parametrize(
    "call",
    [
        "for row in Rows():\n    f(row)",  # by __getitem__, since there is no __iter__
        "for row in Stream():\n    f(row)",
        "f(next(Stream()))",
        "f(Rows()[0])",
    ],
)
def test_an_object_gives_what_its_methods_return(call):
    text = (
        "import torch\n\n\ndef f(x):\n    return x.item()\n\n\n"
        "class Rows:\n    def __getitem__(self, index):\n        return torch.ones(2)[index]\n\n\n"
        "class Stream:\n    def __iter__(self):\n        yield torch.ones(1)\n\n\n"
    )
    assert ITEM in ported(f"{text}{call}\n")
    assert ITEM not in ported(f"{text}{call}\nf(unknown)\n")


@pytest.mark.parametrize(
    ("yielded", "verdict"),
    [
        ("yield torch.ones(1)", "rewritten"),
        ("yield from [torch.ones(1)]", "rewritten"),
        # a generator may yield anything if one of its parts is unknown
        ("yield torch.ones(1)\n    yield from unknown()", "open"),
    ],
)
def test_the_items_of_a_generator_are_what_it_yields(yielded, verdict):
    text = f"import torch\n\n\ndef f():\n    {yielded}\n\n\nfor x in f():\n    x.item()\n"
    (site,) = examined(text).sites
    assert site.verdict == verdict


def test_a_function_that_a_decorator_adds_to_a_class_is_its_method():
    text = (
        "import torch\nfrom d2l import torch as d2l\n\n\nclass Net:\n    pass\n\n\n"
        "@d2l.add_to_class(Net)\ndef f(self, x):\n    return x.item()\n\n\nNet().f(torch.ones(1))\n"
    )
    assert ITEM in ported(text)


def test_a_function_without_parameters_may_be_added_to_a_class():
    head = "import torch\nfrom d2l import torch as d2l\n\n\nclass Net:\n    pass\n\n\n@d2l.add_to_class(Net)\n"
    assert ITEM in ported(f"{head}def f(*args):\n    x = torch.ones(1)\n    return x.item()\n")


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("from making import *", True),
        ("from making import make", True),
        ("from making import make as other\nmake = other", True),
        ("import making\nmake = making.make", True),
        ("from outside import *", False),
    ],
)
def test_names_come_from_the_modules_that_are_imported(line, is_known):
    making = "import torch\n\n\ndef make():\n    return torch.ones(1)\n"
    main = f"{line}\nimport torch\nx = make().item()\n"
    project = examined(making, main, names=("making.py", "main.py"))
    assert (b"x = xdevice.item(make())" in project.ported(project.sources[1])) is is_known


def test_what_a_star_brings_from_outside_is_unknown():
    text = "import torch\nfrom outside import *\nx = ones(1).item()\n"
    assert [(site.verdict, site.code) for site in examined(text).sites] == [("open", "XD162")]


@pytest.mark.parametrize(
    "test",
    [
        "available",
        "available and flag",
        "not (not available)",
        "not (not available or flag)",
        "torch.cuda.device_count() > 0",
        "torch.cuda.device_count() >= 1",
        "1 == 1 and torch.accelerator.device_count() > 1",
    ],
)
def test_a_test_shows_that_there_is_a_gpu(test):
    text = "import torch\navailable = torch.cuda.is_available()\n"
    use = "torch.accelerator.current_accelerator()"
    assert "d = xdevice.native.gpu()" in ported(f"{text}if {test}:\n    d = {use}\n")
    assert "d = xdevice.native.gpu() if" in ported(f"{text}d = {use} if {test} else None\n")
    assert "else:\n    d = xdevice.native.gpu()" in ported(
        f"{text}if not ({test}):\n    pass\nelse:\n    d = {use}\n"
    )
    assert use in ported(f"{text}if {test}:\n    pass\nd = {use}\n")
    assert use in ported(f"{text}if {test}:\n    pass\nelse:\n    d = {use}\n")


@pytest.mark.parametrize(
    "test",
    [
        "torch.cuda.device_count() >= 0",
        "torch.cuda.device_count() < 1",
        "1 > torch.cuda.device_count()",
        "available or flag",
    ],
)
def test_other_tests_show_no_gpu(test):
    text = f"import torch\navailable = torch.cuda.is_available()\nif {test}:\n    d = "
    assert "torch.accelerator.current_accelerator()" in ported(
        f"{text}torch.accelerator.current_accelerator()\n"
    )


@pytest.mark.parametrize(
    "head",
    [
        "",
        "def f():\n    ",
        "class C:\n    ",
        "f = lambda: ",
        "[0 for _ in a if torch.cuda.is_available()]\n",
    ],
)
def test_without_a_test_there_may_be_no_gpu(head):
    text = f"import torch\n{head}torch.accelerator.current_accelerator()\n"
    assert [
        site.code for site in examined(text).sites if site.idiom.endswith("accelerator")
    ] == ["XD170"]


@pytest.mark.parametrize(
    ("line", "verdicts"),
    [
        ("x = numpy.ones(2) + unknown\nx.item()", ["open"]),
        ("x = numpy.ones(2) + 1\nx.item()", ["neutral"]),
        ("x = unknown * 2.0\nx.item()", ["open"]),
        ("[1].cpu()", ["not a device"]),
        ("{1: 2}.to(unknown)", ["not a device"]),
        ("[1].tolist()", []),
        ("unknown.device = 1", []),
        ("del unknown.ctx", []),
    ],
)
def test_values_of_the_host_and_containers_are_no_tensors(line, verdicts):
    text = f"import numpy\nimport torch\n{line}\n"
    assert [site.verdict for site in examined(text).sites] == verdicts


@pytest.mark.parametrize(
    ("layer", "is_known"),
    [
        ("torch.nn.Linear(1, 1)", True),
        ("torch.nn.Sequential(torch.nn.Linear(1, 1))", True),
        ("torch.nn.LSTM(1, 1)", False),  # it returns several tensors
        ("torch.nn.Module()", False),
        ("torchvision.models.resnet18()", False),
    ],
)
def test_a_layer_gives_a_tensor_if_it_gives_one(layer, is_known):
    text = f"import torch\nimport torchvision\nnet = {layer}\ny = net(torch.ones(1)).item()\n"
    assert ("y = xdevice.item(net(torch.ones(1)))" in ported(text)) is is_known


@pytest.mark.parametrize(
    "line",
    [
        "self.kept = torch.ones(1)",
        "Net.kept = torch.ones(1)",
        "for self.kept in [torch.ones(1)]: pass",
    ],
)
def test_an_attribute_is_what_was_ever_bound_to_it(line):
    text = (
        f"import torch\n\n\nclass Net:\n    def __init__(self):\n        {line}\n\n"
        "    def f(self):\n        x = self.kept\n        return x.item()\n"
    )
    assert ITEM in ported(text)
    assert ITEM not in ported(f"{text}\n\nNet().kept = unknown\n")


@pytest.mark.parametrize(
    "expression",
    [
        "max(a, a)",
        "min(a, a)",
        "max([a])",
        "sum([a], a)",
        "sum([[a]], [])[0]",
        "sum([a], start=a)",
        "next(iter([a]))",
        "list([a])[0]",
        "sorted([a])[0]",
        "next(reversed([a]))",
        "abs(a)",
        "list(zip([a], [1]))[0][0]",
        "list(enumerate([a]))[0][1]",
        "list(map(same, [a]))[0]",
        "list(map(lambda x: x, [a]))[0]",
        "dict(b=a)['b']",
        "[*[a]][0]",
        "[*[a], a][1:][0]",
        "{1: a}[1]",
        "{**{1: a}}[1]",
        "[x for x in [a] if x is not None][0]",
        "{1: x for x in [a]}[1]",
        "a if flag else a",
        "a or a",
        "(b := a)",
        "(lambda: a)()",
        "(1, a)[1]",
        "a[0]",
        "-a",
        "a + 1",
        "2 ** a",
        "a.max()",
        "a.max(0)[1]",
        "a.split(1)[0]",
        "[a].copy()[0]",
        "[a].pop()",
        "list({1: a}.values())[0]",
        "list({1: a}.items())[0][1]",
        "same(*[a])",
        "same(x=a)",
        "rest(a)",
        "named(y=a)",
        "named(**{'y': a})['y']",
    ],
)
def test_what_python_does_with_a_tensor_gives_a_tensor(expression):
    text = (
        "import torch\n\n\ndef same(x):\n    return x\n\n\ndef rest(*args):\n    return args[0]\n\n\n"
        f"def named(**options):\n    return options['y']\n\n\na = torch.ones(2)\nz = {expression}\ny = z.item()\n"
    )
    is_hidden = "**{'y'" in expression  # which keywords the stars bring is not known
    assert ("y = xdevice.item(z)" in ported(text)) is not is_hidden
    assert "y = z.item()" in ported(text.replace("torch.ones(2)", "unknown"))


@pytest.mark.parametrize(
    "line",
    [
        "a = unknown[x.item():]",
        "def f():\n    yield from [x.item()]",
        "f = lambda: (yield x.item())",
        "a = [x.item() for _ in [1] if x.item()]",
        "assert x.item(), x.item()",
        "raise ValueError(x.item())",
        "del a[x.item()]",
        "a: int = x.item()",
        "@unknown(x.item())\nclass C(metaclass=unknown(x.item())): pass",
        "with unknown(x.item()): pass",
        "while x.item(): break\nelse: x.item()",
        "try: x.item()\nexcept unknown(x.item()): x.item()\nelse: x.item()\nfinally: x.item()",
        "match x.item():\n    case 1 if x.item(): x.item()",
        "def f(a=x.item(), *, b=x.item()): pass",
        "async def f():\n    await unknown(x.item())\n    async with unknown(x.item()): pass",
        "print(f'{x.item()}', *[x.item()], **{1: x.item()})",
    ],
)
def test_every_place_of_an_expression_is_read(line):
    text = f"import torch\nx = torch.ones(1)\n{line}\n"
    sites = examined(text).sites
    assert len(sites) == text.count(".item()")
    assert {site.verdict for site in sites} == {"rewritten"}


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        # perhaps the loop never runs
        ("x = unknown\nfor _ in unknown: x = torch.ones(1)\nx.item()", "open"),
        ("x = unknown\nwhile unknown: x = torch.ones(1)\nx.item()", "open"),
        ("x = torch.ones(1)\nfor _ in unknown: x = torch.ones(2)\nx.item()", "rewritten"),
        ("try: x = torch.ones(1)\nexcept ValueError: x = torch.ones(2)\nx.item()", "rewritten"),
        ("try: x = torch.ones(1)\nexcept ValueError: x = unknown\nx.item()", "open"),
        ("try: x = torch.ones(1)\nexcept ValueError: raise\nx.item()", "rewritten"),
    ],
)
def test_behind_a_loop_or_a_try_a_name_is_what_any_way_there_made_it(lines, verdict):
    (site,) = examined(f"import torch\n{lines}\n").sites
    assert site.verdict == verdict


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        ("x.max()", "rewritten"),
        ("x.max(0)", "not a device"),
        ("x.min(dim=0)", "not a device"),
        ("x.size()", "not a device"),
        ("x.size(0)", "neutral"),
    ],
)
def test_methods_of_tensors_give_something_else_with_an_axis(call, verdict):
    (site,) = examined(f"import torch\nx = torch.ones(2)\ny = {call}\ny.item()\n").sites
    assert site.verdict == verdict


def test_a_union_grows_towards_anything_so_that_the_inference_ends():
    function, device = make_value("function", "f"), make_value("device", None, "node")
    assert union(TENSOR, UNKNOWN) == UNKNOWN
    # these are followed in any case
    assert union(TENSOR, function, device, UNKNOWN) == function | device | UNKNOWN
    assert union(*[make_value("result", i) for i in range(24)]) != UNKNOWN
    assert union(*[make_value("result", i) for i in range(25)]) == UNKNOWN
    assert union(tuple_of([INT]), tuple_of([STR]), TENSOR) == tuple_of([INT | STR]) | TENSOR
    assert union(tuple_of([INT]), tuple_of([INT, INT])) == tuple_of([INT]) | tuple_of(
        [INT, INT]
    )
    assert tuple_of([tuple_of([tuple_of([INT])])]) == tuple_of([UNKNOWN])
    assert tuple_of([INT] * 13) == tuple_of([UNKNOWN] * 13)


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ("if x is None: x.item()", "not a device"),
        ("if x == None: x.item()", "not a device"),
        ("if x is not None: x.item()", "rewritten"),
        ("if x: x.item()", "rewritten"),
        ("if not x: pass\nelse: x.item()", "rewritten"),
        ("if x is None: x = torch.ones(2)\nx.item()", "rewritten"),
        ("if x is None: raise ValueError\nx.item()", "rewritten"),
        ("if x is None: sys.exit()\nx.item()", "rewritten"),
        ("if x is None and flag: raise ValueError\nx.item()", "open"),
        ("if x is None or flag: raise ValueError\nx.item()", "rewritten"),
        ("while x is not None: x.item()", "rewritten"),
        ("y = x.item() if x is not None else 0", "rewritten"),
        ("y = x is not None and x.item()", "rewritten"),
        ("y = x is None or x.item()", "rewritten"),
        ("y = [z.item() for z in [x] if z is not None]", "rewritten"),
        (
            "x = [x] if flag else torch.ones(2)\nif isinstance(x, list): pass\nelse: x.item()",
            "rewritten",
        ),
        (
            "x = [x] if flag else torch.ones(2)\nif not isinstance(x, (list, tuple)): x.item()",
            "rewritten",
        ),
        (
            "x = [x] if flag else torch.ones(2)\nif isinstance(x, Unknown): pass\nelse: x.item()",
            "not a device",
        ),
        ("y = x\ny.item()", "open"),
    ],
)
def test_a_test_says_what_a_name_is(lines, verdict):
    text = f"import sys\nimport torch\nx = torch.ones(1) if flag else None\n{lines}\n"
    (site,) = examined(text).sites
    assert site.verdict == verdict


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        ("args.gpu is not None", "rewritten"),
        ("flag and args.gpu is not None", "rewritten"),
        ("flag or args.gpu is not None", "open"),
        ("flag", "open"),
    ],
)
def test_a_test_says_what_an_option_is(test, verdict):
    text = (
        "import argparse\nimport torch\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--gpu', default=None, type=int)\nargs = parser.parse_args()\n"
        f"net = torch.nn.Linear(1, 1)\nif {test}: net.cuda(args.gpu)\n"
    )
    (site,) = examined(text).sites
    assert site.verdict == verdict


@pytest.mark.parametrize("definition", ["def f(): ", "async def f(): ", "f = lambda: "])
def test_a_test_outside_a_function_says_nothing_about_its_calls(definition):
    text = (
        "import argparse\nimport torch\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--gpu', default=None, type=int)\nargs = parser.parse_args()\n"
        f"net = torch.nn.Linear(1, 1)\nif args.gpu is not None:\n    {definition}net.cuda(args.gpu)\nf()\n"
    )
    (site,) = examined(text).sites
    assert site.verdict == "open"


@pytest.mark.parametrize(
    "bases",
    [
        "class C(A, B): pass",
        # a diamond: Python looks into A before the base of both
        "class K(Base): pass\nclass C(K, A): pass",
        # A is before B because L says so, and K has only A
        "class L(A, B): pass\nclass K(A): pass\nclass C(L, K): pass",
        "class B(A):\n    pass\nclass C(B, A): pass",
        # what a base inherits comes before the next base
        "class D(A): pass\nclass C(D, B): pass",
        # the later of two classes of one name
        "class B:\n    def run(self, x):\n        return x.item()\nclass C(B): pass",
    ],
)
def test_a_method_is_that_of_the_first_base_in_pythons_order(bases):
    method = "    def run(self, x):\n        return {}\n"
    base = f"class Base:\n{method.format('x')}"
    # often enough that a set cannot have the right order each time by chance
    text = "import torch\n"
    for i in range(8):
        part = (
            f"{base}class A(Base):\n{method.format('x.item()')}"
            f"class B(Base):\n{method.format('x')}{bases}\nC().run(torch.ones(1))\n"
        )
        text += re.sub(r"\b(Base|A|B|C|D|K|L)\b", rf"\g<1>_{i}", part)
    sites = [(site.idiom, site.verdict) for site in examined(text).sites]
    assert sites.count((".item()", "rewritten")) == 8


def test_a_name_that_two_imports_may_give_is_the_same_type_in_each_run():
    text = (
        "try:\n    from torch import Tensor\nexcept ImportError:\n    from {} import Tensor\n\n\n"
        "def f(x: Tensor):\n    return x.item()\n"
    )
    for name in "abcdefgh":
        assert ITEM not in ported(text.format(name))
    assert ITEM in ported(text.format("torch.zoo"))
