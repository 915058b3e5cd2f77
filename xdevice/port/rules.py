"""Finds the sites of a module, and gives the verdict on each by the rule that `idioms` names."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

from . import idioms
from .judging import Finding, left_open, text_of
from .knowledge import SPELLING, framework_of
from .project import SCOPES
from .rules_of_calls import CallRules
from .rules_of_methods import MethodRules
from .sites import Site
from .values import may_be, means_of, only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .idioms import Idiom

_USES: Final = (ast.Call, ast.keyword, ast.IfExp, ast.Compare, ast.Attribute)
"""The kinds of nodes that may be sites."""


class Rules(CallRules, MethodRules):
    """The sites of one module."""

    def sites(self) -> Iterator[Site]:
        if not self.uses:
            return
        for node in self.nodes:
            if not isinstance(node, _USES) or node in self.consumed:
                continue
            found = self._idiom(node)
            if found is None:
                continue
            idiom, finding = found
            for inner in finding.consumed:
                self.consumed.update(ast.walk(inner))
            yield self._site(node, idiom, finding)

    def _site(self, node: Any, idiom: Idiom, finding: Finding) -> Site:
        where = node.value if isinstance(node, ast.keyword) else node
        if finding.edits and not self._is_located(where):
            finding = left_open("inside an f-string whose parts this version of Python cannot locate", "XD165")
        if finding.edits and len(self.uses) > 1 and _asks_the_selected(idiom):
            finding = left_open("several frameworks in this file: the selected one would be asked", "XD168")
        if finding.edits and idiom.code == "XD101" and self._is_identified(where):
            finding = left_open("compared by identity, which another object of the same device may pass", "XD169")
        if finding.edits and self._is_printed(where):
            finding = left_open("an f-string with = prints the expression itself", "XD169")
        if finding.edits and self._is_scripted(where):
            finding = left_open("TorchScript compiles this function, and knows no other module", "XD167")
        position = node.lineno, node.col_offset
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and idiom.name.startswith("."):
            position = self.source.position(self._dot(node.func))  # several calls on one line have a position each
        return Site(
            self.source.path, *position, idiom.name, finding.code or idiom.code, self._framework(node), finding.verdict,
            finding.grade, finding.why or idiom.why, (where.end_lineno or 0, where.end_col_offset or 0),
            self.module.segment(where), None, idiom.link or None, finding.edits,
        )  # fmt: skip

    def _framework(self, node: Any) -> str:
        full = self.full(node.func) if isinstance(node, ast.Call) else ""
        return framework_of(full) or (min(self.uses) if len(self.uses) == 1 else "several")

    # which idiom

    def _idiom(self, node: ast.AST) -> tuple[Idiom, Finding] | None:
        if not hasattr(node.value if isinstance(node, ast.keyword) else node, "means"):
            return None  # never reached: the expression is behind a `return`, or in other tabs
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.keyword):
            return self._keyword(node)
        if isinstance(node, ast.IfExp):
            return self._chosen_text(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Attribute) and node.attr in idioms.WHERE and isinstance(node.ctx, ast.Load):
            return self._where(node)
        return None

    def _call(self, node: ast.Call) -> tuple[Idiom, Finding] | None:
        full = self.full(node.func)
        if isinstance(node.func, ast.Name) and self._is_parameter(node.func):
            return None  # a parameter of a function: its callers choose the device
        idiom = idioms.CALLS.get(full)
        if idiom is not None:
            return idiom, getattr(self, f"_{idiom.way}")(node, idiom)
        name = full.rpartition(".")[2]
        if name in idioms.HELPERS and not framework_of(full) and not full.startswith("xdevice."):
            helper = idioms.Idiom(name, "XD101", "helper")
            return helper, Finding("neutral", "a function of the project: what is in it is rewritten")
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in idioms.METHODS:
            return None
        idiom = idioms.METHODS[node.func.attr]
        receiver = means_of(node.func.value)
        if full and (framework_of(full) is None or not may_be(receiver, ("foreign",))):
            return None
        if isinstance(node.func.value, ast.Name) and node.func.value.id in idioms.MODULES:
            return None
        if may_be(receiver, ("foreign", "module", "class", "dict", "list", "tuple", "namespace")):
            foreign = idiom.way not in ("none", "listed_values")
            return (idiom, Finding("not a device", "a name of a module or a container")) if foreign else None
        if idiom.way == "to" and not node.args and not any(k.arg == "device" for k in node.keywords):
            if not node.keywords and node.func.attr == "to":
                return None
            return idiom, Finding("not a device", "no device among the arguments")
        return idiom, getattr(self, f"_{idiom.way}")(node, idiom)

    # what is no call

    def _keyword(self, node: ast.keyword) -> tuple[Idiom, Finding] | None:
        call = self.parents.get(node)
        if node.arg not in idioms.KEYWORDS or not isinstance(call, ast.Call):
            return None
        callee = self.full(call.func)
        if callee.startswith("xdevice.") or (isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")):
            return None
        if callee in idioms.CALLS or callee.startswith(("argparse", "builtins")):
            return None
        idiom = idioms.Idiom(f"{node.arg}=", "XD111", "keyword")
        text = text_of(node.value)
        if text is None or text.lower() in ("cpu", "auto", "meta"):
            return idiom, Finding("neutral", "takes what it is given")
        if framework_of(callee) is None or not SPELLING.fullmatch(text):
            return idiom, left_open("a text, for a function that may read it", "XD165")
        if self.sets_current and ":" not in text:
            return idiom, left_open("after set_device this is another GPU than the first", "XD151")
        index = text.partition(":")[2]
        edits = self._replace(node.value, f"xdevice.native.gpu({index})")
        return idiom, self._rewrite("proven", "a text that names it, for a function of the framework", edits)

    def _chosen_text(self, node: ast.IfExp) -> tuple[Idiom, Finding] | None:
        """The verdict on `"cuda" if torch.cuda.is_available() else "cpu"` where it is used as text."""
        if not self._is_choice(node) or "torch" not in self.uses:
            return None
        idiom = idioms.Idiom('"cuda" if ... else "cpu"', "XD101", "chosen_text")
        indexed = text_of(node.body) == "cuda:0"
        if node.body in self.text_origins or node.orelse in self.text_origins or indexed:
            return idiom, Finding("open", "a text that is read as text, too", "XD169", consumed=(node.test,))
        edits = self._replace(node, "xdevice.native.try_gpu().type")
        return idiom, self._rewrite(
            "proven", "the same text, and right where the GPU is called something else", edits, node.test
        )

    def _compare(self, node: ast.Compare) -> tuple[Idiom, Finding] | None:
        """The verdict on `device.type == "cuda"`."""
        left = node.left
        if not isinstance(left, ast.Attribute) or left.attr not in ("type", "device_type") or len(node.ops) != 1:
            return None
        text = text_of(node.comparators[0])
        if not only(means_of(left.value), ("device",)) or text not in ("cuda", "cpu", "gpu"):
            return None
        idiom = idioms.Idiom(f".{left.attr} == {text}", "XD112", "compare")
        if text == "cpu":
            return idiom, Finding("neutral", "a CPU is called cpu everywhere", consumed=(left,))
        return idiom, Finding(
            "open", "asks for one vendor's device: xdevice.device(d).kind is gpu on all", "XD112", consumed=(left,)
        )

    def _where(self, node: ast.Attribute) -> tuple[Idiom, Finding] | None:
        means = means_of(node.value)
        if may_be(means, ("foreign", "module", "class", "namespace", "instance", "result")) or not means:
            return None
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "args", "opt", "cfg", "config"):
            return None
        idiom = idioms.Idiom(f".{node.attr}", "XD112", "where")
        if node.attr == "is_cuda":
            return idiom, left_open("asks for one vendor's device: xdevice.device_of(x).kind is gpu on all", "XD162")
        return idiom, Finding("neutral", "reads where it is")

    # what forbids an edit

    def _is_located(self, node: ast.AST) -> bool:
        """Whether the positions of a node can be trusted: before Python 3.12 those inside of f-strings may be wrong."""
        inside = any(isinstance(around, ast.JoinedStr) for around in self._around(node))
        return not inside or self._is_exact(node)

    def _is_printed(self, node: ast.AST) -> bool:
        inner = node
        for around in self._around(node):
            if isinstance(around, ast.FormattedValue) and inner is around.value:
                rest = self.source.text[self._span(inner)[1] :][:40]
                return re.match(rb"\s*=\s*[}!:]", rest) is not None
            inner = around
        return False

    def _is_identified(self, node: ast.AST) -> bool:
        parent = self.parents.get(node)
        return isinstance(parent, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in parent.ops)

    def _is_scripted(self, node: ast.AST) -> bool:
        for around in self._around(node):
            for decorator in getattr(around, "decorator_list", ()):
                if self.full(decorator) in ("torch.jit.script", "torch.jit.script_method"):
                    return True
        return False

    def _is_parameter(self, node: ast.Name) -> bool:
        scopes = (around for around in self._around(node) if isinstance(around, SCOPES))
        return any(node.id == arg.arg for scope in scopes for arg in ast.walk(scope.args) if isinstance(arg, ast.arg))

    def _has_sites(self, node: ast.AST) -> bool:
        return any(self._idiom(inner) is not None for inner in ast.walk(node) if not isinstance(inner, ast.keyword))


def _asks_the_selected(idiom: Idiom) -> bool:
    """Whether the neutral word of an idiom asks the selected backend; the others have a tensor to ask."""
    return idiom.code in ("XD101", "XD102", "XD108", "XD110", "XD111", "XD151") or idiom.way == "wait"
