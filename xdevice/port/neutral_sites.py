"""The sites of a module for `xdevice port --to accelerator`, which writes names of PyTorch that
work for the devices of any vendor."""

from __future__ import annotations

import ast
import re
from typing import Any, ClassVar, Final

from . import rules_of_words
from .idioms import Idiom
from .judging import MAY_BE_STORAGE, Edits, Judgement, Use, left_open, proven, string_value
from .knowledge import framework_of
from .rules import Judged, JudgedSites
from .rules_of_calls import needs_no_brackets
from .values import AVAILABLE, DEVICES, inferred, is_only
from .words import ROWS

# the full names of functions for one vendor's devices begin like this
_VENDOR_PREFIXES: Final = (
    "torch.cuda.",
    "torch.xpu.",
    "torch.npu.",
    "torch.mps.",
    "torch.backends.mps.",
)
_NEUTRAL: Final = Judgement("neutral", "the framework's own vendor-neutral name")
# functions whose first argument is a device
_TAKE_DEVICES: Final = {
    "torch.device",
    "torch.Generator",
    "torch.set_default_device",
    "torch.get_device_module",
}
_DEVICE_KEYWORDS: Final = {"device", "map_location"}
"""PyTorch's keyword arguments whose value may be a device or the name of a device."""
# the two forms of a literal in which "cuda" can be replaced: a string such as "cuda:1", and an
# f-string that begins like f"cuda:..."
_QUOTED: Final = re.compile(rb"""(["'])cuda(:\d+)?\1""")
_FILLED: Final = re.compile(rb"""[fF](["'])cuda:""")


class NeutralSites(JudgedSites):
    """The sites of one module for the target "accelerator": uses of devices, with their
    verdicts.

    This target differs from the target "xdevice" in two ways. Each string that names CUDA is a separate site, wherever
    it occurs. Most methods and functions stay as they are.
    """

    def _judge_method(self, use: Use, full_name: str) -> Judged | None:
        """Judges a method call. Returns None if the call is not a use of a device. All methods of
        PyTorch except `.cuda()` work on any device."""
        judged = super()._judge_method(use, full_name)
        if judged is None:
            return None
        _, judgement = judged
        if judgement is MAY_BE_STORAGE or judgement.verdict == "not a device":
            return judged
        # .to() and .cpu() work on any device
        if use.method != "cuda":
            return use, _NEUTRAL
        if "torch" not in self.frameworks:
            return use, left_open("only PyTorch has a neutral replacement for this", "XD155")
        return use, rules_of_words.judge_cuda_method(use)

    def _judge_listed_call(self, use: Use, full_name: str) -> Judgement:
        """Judges a call of a name that is in the table of calls, but not in the table of
        `words`."""
        if full_name == "torch.device":
            return self._judge_torch_device(use)
        if full_name.startswith(_VENDOR_PREFIXES):
            return left_open(use.idiom.why)
        names_gpu = any(map(_names_gpu, use.arguments))
        # such as mxnet.Context("gpu")
        if full_name.endswith("Context") and names_gpu:
            return left_open(use.idiom.why)
        # such as paddle.set_device("cpu"), or a call with a device that is chosen elsewhere
        if full_name.endswith("set_device") and not names_gpu:
            return _NEUTRAL
        row = ROWS.get(full_name)
        # `differs` is "neutral as it is" for names that are already right for any vendor
        if row is not None and row.xdevice and "neutral as" not in row.differs:
            return left_open(f"{row.differs}; --to xdevice writes {row.xdevice}")
        # d2l's helpers choose a device themselves, and no word of PyTorch changes that
        if full_name.startswith("d2l."):
            return left_open(
                "only --to xdevice has a neutral replacement for this helper of d2l"
            )
        return _NEUTRAL

    def _judge_torch_device(self, use: Use) -> Judgement:
        """Judges `torch.device("cuda")`, which is replaced as a whole. With any other argument,
        the call is neutral; a string in it that names CUDA is a separate site."""
        argument = use.only_argument
        if argument is None or string_value(argument) != "cuda":
            return _NEUTRAL
        text = self.accelerator_text
        # on a machine without an accelerator, the value of the new text is None, so `or
        # torch.device("cpu")` is added. In a comparison, it is not added, because the
        # comparison would then be true for a tensor on the CPU
        if not use.is_behind_gpu_test and not isinstance(use.parent, ast.Compare):
            text = f'{text} or {self.torch_name}.device("cpu")'
            text = text if needs_no_brackets(use) else f"({text})"
        why = "names the current accelerator"
        return proven(why, use.replace(text), argument, since="2.6")

    def _judge_keyword(self, node: ast.keyword) -> Judged | None:
        """Judges a keyword argument such as `device=x`. Returns None if the call has its own rule. Also returns None
        for strings other than "cpu": a string that names CUDA is a separate site."""
        judged = super()._judge_keyword(node)
        if judged is None or string_value(node.value) not in (None, "cpu"):
            return None
        use, judgement = judged
        # if `--to xdevice` would rewrite the argument, it is a device or None, which PyTorch accepts on any accelerator
        return use, judgement if judgement.verdict != "rewritten" else _NEUTRAL

    # strings that name CUDA

    def _judge_text(self, node: ast.expr) -> Judged | None:
        """Judges a string that names CUDA, and the string "nccl". Returns None for any other
        string, and for a string in a call that is itself a site."""
        judged = self._judge_nccl(node)
        if judged is not None or "torch" not in self.frameworks:
            return judged
        filling = self._filling(node)
        if filling is not None:
            use = Use(self, node, Idiom('"cuda"', "XD111", "text"))
            return use, self._judge_cuda_text(use, self._place_of(filling), filling)
        if not is_only(inferred(node), DEVICES):
            return None
        # the value of a string is a single atom. Its subject is the text, with a star for each part that is filled in
        match = re.match(r"cuda(:|$)", str(next(iter(inferred(node))).subject))
        if match is None:
            return None
        use = Use(self, node, Idiom('"cuda"', "XD111", "text"))
        if self._is_compared(node):
            # the type of an accelerator has no index, so it cannot replace "cuda:1"
            if string_value(node) != "cuda":
                return use, left_open(
                    "the string has an index, but the neutral replacement in comparisons has none"
                )
            edits = use.replace(self.accelerator_type_text)
            return use, proven("the type of the current accelerator", edits, since="2.6")
        # if the call is itself a site, the string is rewritten together with the call
        place = self._place_of(node)
        return None if place == "a site" else (use, self._judge_cuda_text(use, place))

    def _filling(self, node: ast.expr) -> ast.expr | None:
        """Returns the expression that inserts a value into a string such as "cuda:%d" or
        "cuda:{}": the operation with `%`, or the call of `format`. Returns None for any other
        string."""
        parent = self.parents.get(node)
        match string_value(node), parent:
            case "cuda:%d" | "cuda:%s", ast.BinOp(op=ast.Mod(), left=left) if left is node:
                return parent
            case "cuda:{}", ast.Attribute(attr="format"):
                call = self.parents.get(parent)
                return call if isinstance(call, ast.Call) and call.func is parent else None
        return None

    def _judge_cuda_text(
        self, use: Use, place: str, filling: ast.expr | None = None
    ) -> Judgement:
        """Judges a string that names CUDA. `place` says where the string occurs (see
        `_place_of`). `filling` is the expression that inserts an index into the string, or
        None."""
        if place == "elsewhere":
            return left_open("the string names CUDA, but its use is not known", "XD165")
        accelerator = self.accelerator_text
        segment = self.source_text(use.node).encode()
        why = "names the current accelerator"
        # "cuda" alone is replaced by the device or, where the device may be missing, by the type of the device
        if string_value(use.node) == "cuda":
            text = accelerator if place == "device" else rules_of_words.device_type_text(use)
            return proven(why, use.replace(text), since="2.6")
        # from here on, only the "cuda" in "cuda:1", f"cuda:{i}", "cuda:%d" or "cuda:{}" is replaced
        if (
            filling is None
            and _QUOTED.fullmatch(segment) is None
            and _FILLED.match(segment) is None
        ):
            return left_open("the string is not written as one plain literal", "XD165")
        # the position of the opening quote in the literal, which is 0, or 1 after an `f`: the
        # literal becomes an f-string with the same quotes
        quote = segment.index(b"cuda") - 1
        # on a machine without an accelerator, the text would be "None:0", so `or "cpu"` is added. Its quotes must
        # differ from those of the literal
        if place != "device" and not use.is_behind_gpu_test:
            inner_quote = "'" if segment[quote : quote + 1] == b'"' else '"'
            accelerator = f"{accelerator} or {inner_quote}cpu{inner_quote}"
        start = use.start + quote + 1  # of the text "cuda"
        # "cuda:{}".format(i) becomes "{}:{}".format(accelerator, i)
        if isinstance(filling, ast.Call):
            after_bracket = use.find(b"(", self.span(filling.func)[1]) + 1
            edits: Edits = (
                use.edit(start, start + len("cuda"), "{}"),
                use.edit(after_bracket, after_bracket, f"{accelerator}, "),
            )
            return proven(why, edits, since="2.6")
        # the accelerator in the braces of an f-string; the rest, such as `:%d`, stays. A literal
        # that is not an f-string yet gets an `f`
        edits = (use.edit(start, start + len("cuda"), f"{{{accelerator}}}"),)
        if segment[:quote].lower() != b"f":
            edits = (use.edit(use.start, use.start, "f"), *edits)
        return proven(why, edits, since="2.6")

    def _place_of(self, node: ast.expr) -> str:
        """Returns a word that says where a string occurs:

        - "device": the string is the device in a call of a PyTorch function; the call fails if the machine does not
          have this device;
        - "text": a device object is created from the string, here or later; the device need not exist on the machine;
        - "a site": the string is in a call that is itself a site;
        - "elsewhere": the use of the string is not known.
        """
        parent = self.parents.get(node)
        call = self.parents.get(parent) if isinstance(parent, ast.keyword) else parent
        if isinstance(call, ast.Call):
            name = self.full_name(call.func)
            is_move = isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")
            if isinstance(parent, ast.keyword):
                takes_device = parent.arg in _DEVICE_KEYWORDS and (
                    is_move or framework_of(name) == "torch"
                )
            else:
                takes_device = (
                    is_move or name in _TAKE_DEVICES or name.startswith("torch.cuda.")
                )
                # `torch.device` creates an object even if the machine does not have the device
                if name == "torch.device":
                    return "text"
            if takes_device:
                return "device"
            if name in rules_of_words.JUDGED_BY_ARGUMENT:
                return "a site"
        # `"cuda" if torch.cuda.is_available() else "cpu"`
        is_choice = (
            isinstance(parent, ast.IfExp)
            and parent.body is node
            and inferred(parent.test) == AVAILABLE
        )
        return "text" if is_choice or node in self.device_origins else "elsewhere"

    def _is_compared(self, node: ast.expr) -> bool:
        """Whether a string is compared with the type or the name of a device, either with an
        operator or with `startswith`."""
        parent = self.parents.get(node)
        match parent:
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                return _names_device(right if node is left else left)
            case ast.Call(func=ast.Attribute(attr="startswith", value=owner), args=[argument]):
                return argument is node and _names_device(owner)
        return False

    # comparisons and conditional expressions are not sites here, but the strings in them are
    _JUDGES: ClassVar[dict[type, Any]] = {
        **JudgedSites._JUDGES,
        ast.Compare: None,
        ast.Constant: _judge_text,
        ast.IfExp: None,
        ast.JoinedStr: _judge_text,
        ast.keyword: _judge_keyword,
    }


def _names_gpu(node: ast.expr) -> bool:
    """Whether an expression may be a string that names a GPU."""
    return any(
        atom.kind == "spelling" and "cpu" not in atom.subject.lower() for atom in inferred(node)
    )


def _names_device(node: ast.expr) -> bool:
    """Whether an expression is known to be a device, or the name or type of a device."""
    if isinstance(node, ast.Attribute) and node.attr in ("type", "device_type"):
        return is_only(inferred(node.value), ("device",))
    return is_only(inferred(node), DEVICES)
