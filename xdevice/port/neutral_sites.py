"""The sites of a module whose words are the framework's own: `xdevice port --to accelerator`."""

from __future__ import annotations

import ast
import re
from typing import Any, ClassVar, Final

from . import rules_of_words
from .idioms import Idiom
from .judging import Edits, Judgement, Use, left_open, proven, text_of
from .knowledge import framework_of
from .rules import Judged, JudgedSites
from .rules_of_calls import stands_loose
from .values import AVAILABLE, DEVICES, means_of, only
from .words import ROWS

_VENDORS: Final = (
    "torch.cuda.",
    "torch.xpu.",
    "torch.npu.",
    "torch.mps.",
    "torch.backends.mps.",
)
_NEUTRAL: Final = Judgement("neutral", "the framework's own word, for any vendor's device")
_TAKE_DEVICES: Final = {
    "torch.device",
    "torch.Generator",
    "torch.set_default_device",
    "torch.get_device_module",
}
_ON_DEVICE: Final = {"device", "map_location"}
"""The keywords of PyTorch that take a device, and not only a text."""
_QUOTED: Final = re.compile(rb"""(["'])cuda(:\d+)?\1""")
_FILLED: Final = re.compile(rb"""[fF](["'])cuda:""")


class NeutralSites(JudgedSites):
    """The sites of one module, for the target "accelerator"."""

    def _judge_method(self, use: Use, full_name: str) -> Judged | None:
        """The judgement on a method: PyTorch's own are right on any device, except `.cuda()`."""
        judged = super()._judge_method(use, full_name)
        if judged is None or judged[1].verdict == "not a device":
            return judged
        # .to() and .cpu() are right on any device
        if use.method != "cuda":
            return use, _NEUTRAL
        if "torch" not in self.frameworks:
            return use, left_open("only PyTorch has a neutral word for this", "XD155")
        return use, rules_of_words.move(use)

    def _of_call(self, use: Use, full_name: str) -> Judgement:
        if full_name == "torch.device":
            return self._of_device(use)
        if full_name.startswith(_VENDORS):
            return left_open(use.idiom.why)
        row = ROWS.get(full_name)
        if row is not None and row.xdevice and "neutral" not in row.differs:
            return left_open(f"{row.differs}; --to xdevice writes {row.xdevice}")
        # a call of d2l has its own device inside, which no word of PyTorch changes
        if full_name.startswith("d2l."):
            return left_open("a helper of d2l, for which xdevice has a word")
        return _NEUTRAL

    def _of_device(self, use: Use) -> Judgement:
        """The judgement on `torch.device("cuda")`; any other argument is judged by itself."""
        argument = use.only_argument
        if argument is None or text_of(argument) != "cuda":
            return _NEUTRAL
        text = self.accelerator
        # a fallback would make a comparison on the CPU true
        if not rules_of_words.has_gpu(use) and not isinstance(use.parent, ast.Compare):
            text = f'{text} or {self.torch_name}.device("cpu")'
            text = text if stands_loose(use) else f"({text})"
        why = "the present accelerator"
        return proven(why, use.replace(text), argument, since="2.6")

    def _judge_keyword(self, node: ast.keyword) -> Judged | None:
        judged = super()._judge_keyword(node)
        if judged is None or text_of(node.value) not in (None, "cpu"):
            return None  # the text is a site itself
        return judged[0], judged[1] if judged[1].verdict != "rewritten" else _NEUTRAL

    # texts that name CUDA

    def _judge_text(self, node: ast.expr) -> Judged | None:
        judged = super()._judge_text(node)
        if judged is not None or "torch" not in self.frameworks:
            return judged
        filling = self._filling(node)
        if filling is not None:
            use = Use(self, node, Idiom('"cuda"', "XD111", "text"))
            return use, self._of_text(use, self._place_of(filling), filling)
        if not only(means_of(node), DEVICES):
            return None
        match = re.match(r"cuda(:|$)", str(next(iter(means_of(node))).subject))
        if match is None:
            return None
        use = Use(self, node, Idiom('"cuda"', "XD111", "text"))
        if self._is_compared(node):
            # "cuda:1" has no counterpart among the kinds of devices
            if text_of(node) != "cuda":
                return use, left_open("is compared with one device")
            edits = use.replace(self.accelerator_name)
            return use, proven("the kind of the present accelerator", edits, since="2.6")
        # a text in a call that is a site itself is rewritten with it
        place = self._place_of(node)
        return None if place == "a site" else (use, self._of_text(use, place))

    def _filling(self, node: ast.expr) -> ast.expr | None:
        """The value that fills in a text such as "cuda:%d" or "cuda:{}"; None if the node is no such text."""
        parent = self.parents.get(node)
        match text_of(node), parent:
            case "cuda:%d" | "cuda:%s", ast.BinOp(op=ast.Mod(), left=left) if left is node:
                return parent
            case "cuda:{}", ast.Attribute(attr="format"):
                call = self.parents.get(parent)
                return call if isinstance(call, ast.Call) and call.func is parent else None
        return None

    def _of_text(self, use: Use, place: str, filling: ast.expr | None = None) -> Judgement:
        """The judgement on a text that names CUDA, by where it occurs; `filling` fills in its index."""
        if place == "elsewhere":
            return left_open(
                "a text that names CUDA, and what is made of it is not known", "XD165"
            )
        accelerator = self.accelerator
        segment = self.segment(use.node).encode()
        why = "the present accelerator"
        if text_of(use.node) == "cuda":
            text = accelerator if place == "device" else rules_of_words.device_type(use)
            return proven(why, use.replace(text), since="2.6")
        if (
            filling is None
            and _QUOTED.fullmatch(segment) is None
            and _FILLED.match(segment) is None
        ):
            return left_open("a text in another form", "XD165")
        # the new text stands inside the old quotes, behind an f
        quote = segment.index(b"cuda") - 1
        # without an accelerator the text would be "None:0"
        if place != "device" and not rules_of_words.has_gpu(use):
            other = "'" if segment[quote : quote + 1] == b'"' else '"'
            accelerator = f"{accelerator} or {other}cpu{other}"
        start = use.start + quote + 1
        if isinstance(filling, ast.Call):
            at = use.find(b"(", self.span(filling.func)[1]) + 1
            edits: Edits = (
                use.edit(start, start + len("cuda"), "{}"),
                use.edit(at, at, f"{accelerator}, "),
            )
            return proven(why, edits, since="2.6")
        edits = (use.edit(start, start + len("cuda"), f"{{{accelerator}}}"),)
        if segment[:quote].lower() != b"f":
            edits = (use.edit(use.start, use.start, "f"), *edits)
        return proven(why, edits, since="2.6")

    def _place_of(self, node: ast.expr) -> str:
        """Where a text occurs: "device" where PyTorch takes a device and would fail without it, "text" where a device
        is made of it later, "a site" where the call itself is one, and else "elsewhere"."""
        parent = self.parents.get(node)
        call = self.parents.get(parent) if isinstance(parent, ast.keyword) else parent
        if isinstance(call, ast.Call):
            name = self.full_name(call.func)
            is_move = isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")
            if isinstance(parent, ast.keyword):
                takes_device = parent.arg in _ON_DEVICE and (
                    is_move or framework_of(name) == "torch"
                )
            else:
                takes_device = (
                    is_move or name in _TAKE_DEVICES or name.startswith("torch.cuda.")
                )
                if name == "torch.device":
                    return "text"  # which need not be there
            if takes_device:
                return "device"
            if name in rules_of_words.WITH_DEVICES:
                return "a site"
        is_choice = (
            isinstance(parent, ast.IfExp)
            and parent.body is node
            and means_of(parent.test) == AVAILABLE
        )
        return "text" if is_choice or node in self.device_origins else "elsewhere"

    def _is_compared(self, node: ast.expr) -> bool:
        """Whether a text is compared with the kind or the name of a device."""
        parent = self.parents.get(node)
        match parent:
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                return _names_device(right if node is left else left)
            case ast.Call(func=ast.Attribute(attr="startswith", value=owner), args=[argument]):
                return argument is node and _names_device(owner)
        return False

    _JUDGES: ClassVar[dict[type, Any]] = {
        **JudgedSites._JUDGES,
        ast.Compare: None,
        ast.Constant: _judge_text,
        ast.IfExp: None,
        ast.JoinedStr: _judge_text,
        ast.keyword: _judge_keyword,
    }


def _names_device(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in ("type", "device_type"):
        return only(means_of(node.value), ("device",))
    return only(means_of(node), DEVICES)
