"""The classes and functions that all rules of `port` share: a use of a device, the edits that
can rewrite it, and the judgement on it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from .idioms import OTHER_ARRAYS, Idiom
from .inference import Inference
from .project import frameworks_of, imported_names
from .sites import Edit, Grade, Verdict
from .sources import PythonModule
from .words import ACCELERATOR, AVAILABLE, Goal

Edits = tuple[Edit, ...]


@dataclass(frozen=True)
class Judgement:
    """The verdict on one use, with the reason that reports show (`why`). If the use can be
    rewritten, `edits` are not empty, and `grade` says how certain it is that they are right (see
    `sites.GRADES`)."""

    verdict: Verdict
    why: str
    code: str = ""  # "" for the code of the idiom
    grade: Grade | None = None
    edits: Edits = ()
    since: str = ""  # the oldest release of PyTorch that has the new words
    # nodes inside this use that are not sites of their own
    consumed: tuple[ast.AST, ...] = field(default=(), repr=False)


def left_open(why: str, code: str = "") -> Judgement:
    """Returns the judgement that a use stays as it is, and that a person has to check it. `code` is
    the code of the reason; if it is "", reports show the idiom's code."""
    return Judgement("open", why, code)


def proven(why: str, edits: Edits, *consumed: ast.AST, since: str = "") -> Judgement:
    """Returns the judgement that a use is rewritten, because the project's own text proves that the edits are right.
    `consumed` are nodes inside the use that are rewritten together with the use, and are therefore not separate sites.
    `since` is the oldest release of PyTorch that has the new words; "" means every release.
    """
    return Judgement(
        "rewritten", why, grade="proven", edits=edits, since=since, consumed=consumed
    )


def safe(why: str, edits: Edits, code: str = "XD161", since: str = "") -> Judgement:
    """Returns the judgement that a use is rewritten, and that the edits depend on an assumption. If
    the assumption is wrong, the new text raises an error. `code` identifies the assumption; the
    default, XD161, means that the argument of the call is assumed to be a device."""
    return Judgement("rewritten", why, code, grade="safe", edits=edits, since=since)


# reasons (strings) and judgements that several rules use
IDENTIFIED: Final = "its full name identifies it"
NAMES_NO_VENDOR: Final = Judgement("neutral", "names no vendor's device")
HIDDEN_ARGUMENTS: Final = left_open(
    "its arguments are hidden behind * or **; write them out", "XD166"
)
OTHER_ARGUMENTS: Final = left_open(
    "it has arguments that its neutral replacement does not accept", "XD166"
)
MAY_BE_STORAGE: Final = left_open(
    "it may be a storage, not a tensor; pass the device itself as map_location=", "XD162"
)
MAY_BE_OTHER_GPU: Final = left_open(
    "set_device may have chosen another GPU, but the replacement means the first one", "XD151"
)


CUDA_HANDLE_NAMES: Final = {"cuda_stream", "cuda_event", "default_stream", "ExternalStream"}
"""The names of attributes whose values are CUDA's own handles, and of functions and classes that return CUDA's own
streams. An object of `torch.cuda` and an object of PyTorch's vendor-neutral class are not equal, even if they stand for
the same stream."""


class JudgedModule:
    """A module whose uses of devices are being judged, with the facts that the rules need.

    An origin is a node that chooses a device, or a string that names a device. `text_origins` are the origins of
    devices that some module of the project also uses as text: for example, the "cuda" in `d = "cuda"` if the program
    prints `d`. `device_origins` are the origins of devices that are passed to a function as its device; for the target
    "xdevice", this includes only keyword arguments of PyTorch's functions. `sets_current_device` says whether the
    program may set the current device; if it does, "cuda" may mean a GPU other than the first. `goal` says whether the
    new text uses names of xdevice or of PyTorch.
    """

    def __init__(
        self,
        module: PythonModule,
        inference: Inference,
        text_origins: set[ast.AST],
        sets_current_device: bool,
        goal: Goal,
        device_origins: set[ast.AST],
    ) -> None:
        self.goal = goal
        self.device_origins = device_origins
        self.source = module.source
        self.source_text = module.source_text
        self.span = module.span
        self.nodes, self.parents = module.nodes, module.parents
        self.inference = inference
        self.full_name = inference.full_name
        self.text_origins = text_origins
        self.sets_current_device = sets_current_device
        self.frameworks = frameworks_of(module)
        # packages whose arrays have methods with the same names as methods of MXNet's arrays: if the module uses such a
        # package, the name of a method proves nothing. All names are searched, not only imports, because a helper may
        # import the package: GluonCV loads decord with `try_import_decord`
        names: set[str] = set()
        for node in self.nodes:
            names.update(name.split(".")[0] for name in imported_names(node, module))
            if isinstance(node, ast.Name):
                names.add(node.id)
        self.other_arrays = names & OTHER_ARRAYS

    @cached_property
    def torch_name(self) -> str:
        """The name under which the module imports PyTorch: "th" for `import torch as th`. If
        the module has no such import, the name is "torch"."""
        for node in self.nodes:
            for alias in node.names if isinstance(node, ast.Import) else ():
                if alias.name == "torch" and alias.asname:
                    return alias.asname
        return "torch"

    def uses_attribute(self, names: set[str]) -> bool:
        """Whether the code of the module contains an attribute with one of these names, such as `x.cuda_stream` for
        "cuda_stream"."""
        return any(
            isinstance(node, ast.Attribute) and node.attr in names for node in self.nodes
        )

    @property
    def may_call_xdevice(self) -> bool:
        """Whether new text may call functions of xdevice whose results depend on the selected framework. It may if the
        target is "xdevice" and the file imports exactly one framework."""
        return self.goal.target == "xdevice" and len(self.frameworks) == 1

    @property
    def gpu_test_text(self) -> str:
        """The source text of an expression that tests whether there is a GPU."""
        return (
            "xdevice.num_gpus() > 0"
            if self.may_call_xdevice
            else self.with_torch_name(AVAILABLE)
        )

    @property
    def accelerator_text(self) -> str:
        """The source text of an expression for the GPU without an index. On a machine without a
        GPU, the expression returns None, or a device on which no tensor can be created."""
        return (
            "xdevice.native.gpu()"
            if self.may_call_xdevice
            else self.with_torch_name(ACCELERATOR)
        )

    @property
    def current_gpu_text(self) -> str:
        """The source text of an expression for the GPU that `set_device` has chosen: a device
        without an index, which means the current GPU in PyTorch. It is "" for a module that
        uses another framework, or several."""
        return (
            f"{self.torch_name}.device(xdevice.native.gpu().type)"
            if self.frameworks == {"torch"}
            else ""
        )

    @property
    def accelerator_type_text(self) -> str:
        """The source text of an expression for the type of the current accelerator ("cuda" on
        CUDA). The value of the expression is a string that can be compared with the type of a
        device."""
        return (
            "xdevice.native.gpu().type"
            if self.may_call_xdevice
            else f"str({self.accelerator_text})"
        )

    def with_torch_name(self, text: str) -> str:
        """Returns `text` with each `torch.` changed to the name under which the module imports
        PyTorch."""
        return re.sub(r"\btorch\.", f"{self.torch_name}.", text)

    def has_uses(self, node: ast.AST) -> bool:
        """Whether an expression is a use of a device, or contains one. `JudgedSites` implements
        this method."""
        raise NotImplementedError

    def outer_nodes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around a node, from its parent outwards to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def has_exact_position(self, node: ast.AST) -> bool:
        """Whether the position that Python reports for a node is correct. Before Python 3.12, the positions of nodes
        inside f-strings may be wrong."""
        try:
            # parsing the text at this position must result in the same node
            again = ast.parse(self.source_text(node), mode="eval").body
        except (SyntaxError, ValueError, IndexError):
            return False
        return ast.dump(again) == ast.dump(node)


@dataclass
class Use:
    """One use of an idiom, and the edits that can rewrite it. For most idioms, `node` is a
    call. For the others, it is a name, an attribute, a string, a comparison, a conditional
    expression or a keyword argument.

    `start` and `end` are the offsets of the use in `Source.text`. For a call, `args` are the positional arguments,
    `keywords` maps names to keyword arguments (None to `**x`), and `arguments` are the values of the positional
    arguments and the keyword arguments. If a call has one positional argument and no others, `only_argument` is this
    argument; otherwise, it is None.
    """

    module: JudgedModule
    node: Any
    idiom: Idiom

    def __post_init__(self) -> None:
        self.span = self.module.span
        self.full_name = self.module.full_name
        self.sets_current_device = self.module.sets_current_device
        self.start, self.end = self.span(self.node)
        self.args: list[ast.expr] = getattr(self.node, "args", [])
        self.keywords: dict[str | None, ast.keyword] = {
            keyword.arg: keyword for keyword in getattr(self.node, "keywords", ())
        }
        values = [keyword.value for keyword in self.keywords.values()]
        self.arguments = [*self.args, *values]
        self.has_stars = None in self.keywords or any(
            isinstance(arg, ast.Starred) for arg in self.args
        )
        # many rules accept only calls with a single positional argument and no keyword
        # arguments
        is_alone = len(self.args) == 1 and not self.keywords and not self.has_stars
        self.only_argument = self.args[0] if is_alone else None

    @property
    def parent(self) -> ast.AST | None:
        """The parent of the node. It is never None for a use, because only the module itself
        has no parent."""
        return self.module.parents.get(self.node)

    @property
    def is_statement(self) -> bool:
        """Whether the use is a statement, which means that its result is not used."""
        return isinstance(self.parent, ast.Expr)

    @property
    def is_behind_gpu_test(self) -> bool:
        """Whether a test around the use has shown that there is a GPU. The interpreter stores this
        on the nodes of calls and strings."""
        return getattr(self.node, "has_gpu", False)

    @property
    def called_name(self) -> str:
        """The full name of the called function; "" for a use that is not a call."""
        return self.full_name(self.node.func) if isinstance(self.node, ast.Call) else ""

    @property
    def indent(self) -> str | None:
        """The white space before a use if there is no other code on its lines; a comment may follow the use. None if
        there is other code on these lines.
        """
        text = self.module.source.text
        before = text[text.rfind(b"\n", 0, self.start) + 1 : self.start]
        blank_end = re.compile(rb"[ \t]*(#[^\r\n]*)?(\r?\n|$)").match(text, self.end)
        # a rule may insert `if ...:` before the use, and other code on these lines would then
        # depend on the test
        return before.decode() if not before.strip(b" \t") and blank_end is not None else None

    @property
    def receiver(self) -> ast.expr:
        """The expression for the object whose method is called. Only calls of methods have this
        property."""
        return self.node.func.value  # type: ignore[no-any-return]

    @property
    def method(self) -> str:
        """The name of the called method. Only calls of methods have this property."""
        return self.node.func.attr  # type: ignore[no-any-return]

    # edits

    def edit(self, start: int, end: int, text: str) -> Edit:
        """Returns the edit that replaces the bytes from `start` to `end` with `text`. If an edit of an inner use begins
        at the same byte, the edit of this use comes first (see `Edit.rank`)."""
        return Edit(start, rank=-self.end, end=end, text=text)

    def replace(self, text: str, node: ast.AST | None = None) -> Edits:
        """Returns the edits that replace the whole use, or `node` if it is not None, with
        `text`."""
        start, end = self.span(node or self.node)
        return (Edit(start, rank=-end, end=end, text=text),)

    def replace_around(
        self, part: ast.AST, before: str, after: str, node: ast.AST | None = None
    ) -> Edits:
        """Returns the edits that replace the text around `part` inside the use: `before` replaces the text in front of
        `part`, and `after` replaces the text behind it. If `node` is not None, it takes the place of the use. `part`
        itself stays, and may have its own edits.
        """
        start, end = self.span(node or self.node)
        part_start, part_end = self.span(part)
        # both edits belong to the same site, so both have its rank, although the first edit ends earlier
        return (
            Edit(start, rank=-end, end=part_start, text=before),
            Edit(part_end, rank=-end, end=end, text=after),
        )

    def rename(self, text: str) -> Edits:
        """Returns the edits that replace the name of the called function with `text`. The
        arguments stay as they are."""
        return (self.edit(*self.span(self.node.func), text),)

    @property
    def renaming(self) -> Edits:
        """The edits that replace the name of the called function with the idiom's text."""
        return self.rename(self.idiom.text)

    def rename_with_bracket(self, text: str) -> Edit:
        """Returns the edit that replaces both the name of the called function and the opening
        bracket with `text`."""
        start, end = self.span(self.node.func)
        return self.edit(start, self.find(b"(", end) + 1, text)

    def drop(self, keyword: ast.keyword) -> Edit:
        """Returns the edit that removes a keyword argument and the comma before it."""
        start, end = self.span(keyword)
        return self.edit(self.module.source.text.rindex(b",", 0, start), end, "")

    def call_with_receiver(
        self, word: str, upto: int, text: str = "", comma: str = ","
    ) -> Edits:
        """Returns the edits that turn `x.method(...)` into `word(x, ...)`. They insert `word(` before x, and replace
        the bytes from the dot up to the offset `upto` with `comma` and `text`. Comments and line breaks in the replaced
        bytes are kept, between `comma` and `text`."""
        start, dot = self.start, self.dot
        between = self.module.source.text[dot:upto].decode()
        # the comments and line breaks in the replaced bytes; other spaces are dropped
        layout = "".join(re.findall(r"#[^\r\n]*|\\?\r?\n[ \t]*|[ \t]+(?=#)", between))
        # if there are none, a space follows the comma
        if not layout.strip(" \t"):
            layout = " " if comma else ""
        # two spaces before a comment, as is usual
        elif layout.startswith("#"):
            layout = f"  {layout}"
        return self.edit(start, start, f"{word}("), self.edit(
            dot, upto, f"{comma}{layout}{text}"
        )

    def move_to(
        self, device: ast.expr, word: str = "xdevice.to_device", maker: str = ""
    ) -> Edits:
        """Returns the edits that turn `x.method(device)` into `word(x, device)`. If `maker` is not "", it is the name
        of a function that returns a device for an index, and the new text is `word(x, maker(device))`."""
        text = f"{maker}(" if maker else ""
        edits = self.call_with_receiver(word, self.span(device)[0], text)
        return (*edits, self.close_bracket(device)) if maker else edits

    def close_bracket(self, argument: ast.expr) -> Edit:
        """Returns the edit that adds a closing bracket after an argument. If a comma follows
        the argument, the bracket is inserted before the comma."""
        # the last byte of a call is its closing bracket
        text, last_bracket = self.module.source.text, self.end - 1
        _, end = self.span(argument)
        at = end
        # the position of a node excludes brackets around it. Skip these brackets, but not the
        # last one, which belongs to the call
        while text[at : at + 1] in b") \t" and at < last_bracket:
            at += 1
        # only the closing bracket of the call follows
        if at == last_bracket:
            return self.edit(at, at + 1, "))")
        comma = self.find(b",", end)
        return self.edit(comma, comma + 1, "),")

    @property
    def dot(self) -> int:
        """The offset of the dot before the name of the called method. Brackets and comments may precede the dot."""
        return self.find(b".", self.span(self.receiver)[1])

    def find(self, mark: bytes, at: int) -> int:
        """Returns the offset of the first `mark` outside comments, searching from the offset `at`. The text must
        contain such a `mark`.
        """
        # before the mark, as little as possible: whole comments, and single bytes outside comments
        match = re.compile(rb"(?:#[^\r\n]*|[^#])*?" + re.escape(mark)).match(
            self.module.source.text, at
        )
        assert match is not None
        return match.end() - 1


def string_value(node: ast.AST | None) -> str | None:
    """Returns the value of a string literal; None for any other expression, or if `node` is
    None."""
    return (
        node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
    )
