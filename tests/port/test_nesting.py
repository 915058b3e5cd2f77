"""Every rule, nested into what Python has, between comments in Chinese, with every kind of line end."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest
from helpers.port_texts import examined, ported, ported_to
from hypothesis import given, settings
from hypothesis import strategies as st

from xdevice.port.words import TARGETS

HEAD = "import torch\n设备 = torch.device('cuda')\nx = torch.ones(2)\nnet = torch.nn.Linear(1, 1)\n"
REWRITTEN = (
    "x.to(设备)", "x.cuda()", "x.cuda(0)", "x.cpu()", "x.item()", "x.numpy()", "x.detach().cpu().numpy()", "x.tolist()",
    "torch.cuda.is_available()", "torch.cuda.device_count()", "torch.device('cuda:1')", "torch.device('cuda', 1)",
    "torch.device(设备)", "x.to(device=设备)", "x.to(设备, non_blocking=True)", "(x + x).to(设备)", "net.to(设备)",
    "torch.cuda.memory_allocated()", "x.to(0)", "(x\n  # 注释 .to(\n  .to(\n    设备  # 到\n  ))", "(x).cpu()",
    "x.to(设备,)", "x.cuda(0,)", "x . to ( 设备 )", "x.cuda(\n)", "(lambda: x)().cpu()", "(y := x).cpu()",
    "torch.device('cuda' if torch.cuda.is_available() else 'cpu')", "[x.cpu(), x.cuda()][0].item()",
)  # fmt: skip
WORDS = (
    "torch.cuda.memory_allocated()", "torch.cuda.memory_stats(device=0)", "torch.cuda.current_device()",
    "torch.cuda.Event(True)", "torch.cuda.is_bf16_supported()", "torch.cuda.stream(torch.cuda.Stream())",
    "torch.cuda.amp.autocast(x > 1, dtype=x.dtype)", "torch.autocast('cuda', x.dtype, x or x)",
    "torch.cuda.amp.GradScaler(2.0,)", "torch.cuda.device(0)", "x.is_cuda", "id(torch.cuda.synchronize)",
)  # fmt: skip
AROUND = (
    "({})", "[{}]", "{{'键': {}}}", "(lambda a={}: a)", "[{} for _ in range(2)]", "f({}, *[{}], k={})", "not {}",
    "{} or {}", "{} if {} else {}", "({}, {})", "f'长 {{{}}} 短'", "(z := {})", "{} == 1", "-{}", "{}[0]", "{}.shape",
    "'a' + str({})",
    "(\n    {}  # 说明\n)", "f({},\n  # 空\n  {})", "{{**{}}}", "[*{}]", "f'{{{}!r:>{{10}}}}'",
)  # fmt: skip
STATEMENTS = (
    "y = {}", "def g(a={}, *, b={}):\n    return {}", "async def h():\n    return await ({})",
    "@f({})\ndef g():\n\tpass",
    "for i in {}:\n    pass", "with f({}) as a:\n    pass", "assert {}, {}", "y[{}] = {}", "if {}:\n    y = {}",
    "class C:\n    a: int = {}  # 类", "return_ = yield_ = {}", "print({}); y = {}", "while {}:\n\tbreak", "del y[{}]",
)  # fmt: skip


def filled(pattern, parts):
    """A pattern with one part for each pair of brackets; in f-strings parts without quotes, lines and comments."""
    for part in parts:
        pattern = pattern.replace("{}", part, 1)
    return pattern.replace("{{", "{").replace("}}", "}")


def is_plain(part):
    return not set("'\n#:{\\!=") & set(part)


@st.composite
def expressions(draw, depth=2):
    part = draw(st.sampled_from(REWRITTEN))
    for _ in range(draw(st.integers(0, depth))):
        around = draw(st.sampled_from(AROUND))
        count = around.replace("{{", "").replace("}}", "").count("{}") or around.count("{}")
        if "f'" in around and not is_plain(part):
            continue
        part = filled(around, [part] * count)
    return part


@st.composite
def scripts(draw):
    lines = [HEAD]
    for _ in range(draw(st.integers(1, 4))):
        statement = draw(st.sampled_from(STATEMENTS))
        lines.append(
            filled(statement, [draw(expressions()) for _ in range(statement.count("{}"))])
            + "  # 行尾注释\n"
        )
    text = "".join(lines).replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    return draw(st.sampled_from(["", "\ufeff"])) + text


def parses(text):
    try:
        ast.parse(text.lstrip("\ufeff"))
    except SyntaxError:
        return False
    return True


def comments(text):
    tokens = tokenize.generate_tokens(io.StringIO(text.lstrip("\ufeff")).readline)
    return [token.string.rstrip() for token in tokens if token.type == tokenize.COMMENT]


@settings(max_examples=400, deadline=None)
@given(scripts())
def test_what_comes_out_parses_keeps_its_comments_and_is_left_alone(text):
    if not parses(text):
        return
    new = examined(text, only="likely")
    raw = new.ported(new.sources[0])
    again = raw.decode()
    assert parses(again), again
    assert comments(again) == comments(text)
    assert again.startswith("\ufeff") == text.startswith("\ufeff")
    assert ("\r\n" in again) == ("\r\n" in text)
    assert (
        again.replace("\r\n", "").count("\n") == text.replace("\r\n", "").count("\n")
        or "\r\n" not in text
    )
    assert examined(again, only="likely").ported(examined(again).sources[0]) == raw


@pytest.mark.parametrize("part", REWRITTEN)
@pytest.mark.parametrize("around", AROUND)
def test_each_rule_in_each_place(part, around):
    if "f'" in around and not is_plain(part):
        pytest.skip("a text that cannot stand in an f-string of Python 3.11")
    text = f"{HEAD}结果 = {filled(around, [part] * 3)}  # 完\n"
    if not parses(text):
        pytest.skip("not Python")
    new = ported(text, "likely")
    assert parses(new), new
    assert new != text
    assert comments(new) == comments(text)
    assert ported(new, "likely") == new


@pytest.mark.parametrize("part", WORDS)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("target", TARGETS)
def test_each_word_in_each_place(part, around, target):
    if "f'" in around and not is_plain(part):
        pytest.skip("a text that cannot stand in an f-string of Python 3.11")
    text = f"{HEAD}结果 = {filled(around, [part] * 3)}  # 完\n"
    if not parses(text):
        pytest.skip("not Python")
    new = ported_to(target, text)
    assert parses(new), new
    assert part not in new
    assert comments(new) == comments(text)
    assert ported_to(target, new) == new


@pytest.mark.parametrize("part", [part for part in REWRITTEN if "\n" not in part])
def test_nothing_but_the_edits_changes(part):
    before = f"{HEAD}# 前面 \t\n结果 = [1,2 ,  3]\n"
    after = "\n\n\n# 后面\x0c\nq = '''  x.to(d)  '''\n"
    new = ported(f"{before}y = {part}\n{after}", "likely")
    assert new.endswith(after)
    assert "# 前面 \t\n结果 = [1,2 ,  3]\n" in new
