"""The rules for names that have a row in the table of `words`. A use of such a name is rewritten
with a *word*: a vendor-neutral name of PyTorch.

A program that ran before `port` rewrote it still runs afterwards, even on a machine without a GPU.
On such a machine, some words raise an error, although the old name returned a value. A test for a
GPU is written before such a word, unless the program already contains one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from .guards import block_of, value_after_tests
from .judging import (
    CUDA_HANDLE_NAMES,
    HIDDEN_ARGUMENTS,
    NAMES_NO_VENDOR,
    OTHER_ARGUMENTS,
    Edits,
    Judgement,
    Use,
    left_open,
    proven,
    safe,
    string_value,
)
from .rules_of_calls import needs_no_brackets
from .values import DEVICES, NUMBERS, Value, inferred, is_known, is_only, may_be
from .words import ROWS, Row

_USES_CUDA_HANDLES: Final = left_open(
    "this file uses a handle or stream that only CUDA has: default_stream, ExternalStream, cuda_stream or cuda_event",
    "XD162",
)
IN_TABLE: Final = "its replacement is in the table of vendor-specific names"
TOO_NEW: Final = "XD171"
"""The code of a use that stays open because its word needs a newer release than
`--torch-minimum`."""
_STREAMS: Final = {
    "torch.cuda.Stream",
    "torch.cuda.current_stream",
    "torch.cuda.default_stream",
    "torch.Stream",
    "torch.accelerator.current_stream",
}
"""The full names of functions and classes whose calls return a stream."""
_WITH_HANDLES: Final = ("torch.cuda.Stream", "torch.cuda.current_stream", "torch.cuda.Event")
"""Names of classes whose objects have CUDA's handles, and of a function that returns such an
object. Objects of PyTorch's neutral classes lack these handles."""
_CUDA_PROPERTIES: Final = {
    "major",
    "minor",
    "multi_processor_count",
    "gcnArchName",
    "warp_size",
    "L2_cache_size",
}
"""Attributes of the result of `torch.cuda.get_device_properties`. The results of other vendors'
functions lack these attributes."""
# the parameters of `torch.autocast` and of the gradient scalers
_AUTOCAST_PARAMETERS: Final = ("device_type", "dtype", "enabled", "cache_enabled")
_SCALER_PARAMETERS: Final = (
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "enabled",
)
_PARAMETERS: Final = {
    "torch.cuda.Event": ("enable_timing", "blocking", "interprocess"),
    "torch.cuda.amp.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.autocast": _AUTOCAST_PARAMETERS,
    "torch.amp.autocast": _AUTOCAST_PARAMETERS,
    "torch.cuda.amp.GradScaler": _SCALER_PARAMETERS,
    "torch.amp.GradScaler": ("device", *_SCALER_PARAMETERS),
}
"""The names of the parameters of old and new functions, in the order of the signature. They are needed if the order of
the new function's parameters differs, or if all of them are keyword-only."""
_ROW_NAMES: Final = {
    "torch.autocast": 'torch.autocast("cuda")',
    "torch.amp.autocast": 'torch.autocast("cuda")',
    "torch.amp.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.distributed.init_process_group": 'torch.distributed.init_process_group("nccl")',
}
"""Maps full names of functions to the names of their rows in the table. These functions are
vendor-specific only if an argument has a certain value."""
_LOOSER_THAN_AND: Final = (ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Lambda)
"""Expressions that need brackets after an `and`."""
_REPEATABLE: Final = (
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.operator,
    ast.unaryop,
)
"""An expression that contains only nodes of these classes has the same value each time it is
evaluated. Calls are not among these classes."""
JUDGED_BY_ARGUMENT: Final = frozenset(_ROW_NAMES)
"""Functions whose calls are judged together with the argument that names a device."""


def row_of(full_name: str) -> Row | None:
    """Returns the row of a full name in the table of words; None if there is no such row."""
    return ROWS.get(_ROW_NAMES.get(full_name, full_name))


def judge_word(use: Use, row: Row | None) -> Judgement:
    """Judges a use of a name that has the row `row`. The use is either a call, or the name
    alone, which is passed on or appears in an annotation. If `row` is None, the use stays
    open."""
    if row is None:
        return left_open("it has no neutral replacement")
    # if there is no word, `differs` says why
    if not row.accelerator:
        return left_open(row.differs)
    if row.is_too_new(use.module.goal):
        return left_open(
            f"its neutral replacement {row.accelerator} needs PyTorch {row.since}", TOO_NEW
        )
    # PyTorch's neutral streams lack these handles, so all streams of the file stay CUDA's
    # streams
    if row.name in _WITH_HANDLES and use.module.uses_attribute(CUDA_HANDLE_NAMES):
        return _USES_CUDA_HANDLES
    rule = WORD_RULES[row.rule] if isinstance(use.node, ast.Call) else _not_called
    judgement = rule(use, row)
    return replace(judgement, since=row.since) if judgement.edits else judgement


def _not_called(use: Use, row: Row) -> Judgement:
    """Judges a name that is passed on instead of being called. The word replaces the name if later
    calls accept the same arguments, and return the same result on a machine without a GPU."""
    is_class = row.name in ("torch.cuda.Stream", "torch.cuda.Event")
    if is_class or (row.rule == "renamed" and row.without_gpu is None):
        return proven(IN_TABLE, use.replace(_word_without_arguments(use, row)))
    return left_open(
        "it is passed on instead of being called, and its replacement has other parameters or needs a GPU",
        "XD166",
    )


def _word_without_arguments(use: Use, row: Row) -> str:
    """Returns the word of a row without its arguments, as the name of a function. The name under which the module
    imports PyTorch replaces `torch`.
    """
    return use.module.with_torch_name(re.sub(r"\([^()]*\)$", "", row.accelerator))


def device_type_text(use: Use) -> str:
    """Returns the source text of an expression for the type of the accelerator. The value of
    the expression is a string: "cuda" on CUDA, and "cpu" on a machine without an
    accelerator."""
    if use.module.may_call_xdevice:
        return "xdevice.native.try_gpu().type"
    accelerator = use.module.accelerator_text
    return f"{accelerator}.type" if use.is_behind_gpu_test else f'str({accelerator} or "cpu")'


def with_gpu_test(use: Use, edits: Edits, without_gpu: str | None) -> Edits:
    """Returns the edits of a use. If the new text would raise an error on a machine without a GPU, the edits also add a
    test for a GPU, unless the program already contains one. `without_gpu` is the source text of the value that the old
    name has on such a machine; it is None if no test is needed.
    """
    if without_gpu is None or use.is_behind_gpu_test:
        return edits
    test = use.module.gpu_test_text
    indent = use.indent
    if use.is_statement and indent is not None:
        # the statement becomes the body of an `if`; the body is indented in the same style as
        # the statement
        inner = indent + ("\t" if "\t" in indent else "    ")
        return (
            use.edit(use.start, use.start, f"if {test}:{use.module.source.newline}{inner}"),
            *edits,
        )
    # the expression becomes `word if test else without_gpu`
    opening, closing = ("", "") if _is_choice_without_brackets(use) else ("(", ")")
    before = (use.edit(use.start, use.start, opening),) if opening else ()
    after = use.edit(use.end, use.end, f" if {test} else {without_gpu}{closing}")
    return (*before, *edits, after)


def _is_choice_without_brackets(use: Use) -> bool:
    """Whether a conditional expression (`x if test else y`) that replaces this use needs no
    brackets."""
    match use.parent:
        case ast.Call(func=func):
            return use.node is not func
    return isinstance(
        use.parent, ast.If | ast.While | ast.Assign | ast.Return | ast.keyword | ast.Expr
    )


def _renamed(use: Use, row: Row) -> Judgement:
    """Judges a name if the word that replaces it accepts the same arguments."""
    if use.has_stars:
        return HIDDEN_ARGUMENTS
    if row.name.endswith("get_device_properties") and use.module.uses_attribute(
        _CUDA_PROPERTIES
    ):
        return left_open("this file reads properties that only CUDA devices have")
    edits = use.rename(_word_without_arguments(use, row))
    device = use.keywords.get("device")
    # the functions of torch.accelerator accept the device only as a positional argument, so
    # `device=` is removed
    if device is not None and row.accelerator.startswith("torch.accelerator."):
        if len(use.arguments) > 1:
            return OTHER_ARGUMENTS
        edits = (*edits, use.edit(use.span(device)[0], use.span(device.value)[0], ""))
    return proven(IN_TABLE, with_gpu_test(use, edits, row.without_gpu))


def _replaced(use: Use, row: Row) -> Judgement:
    """Judges a call if the word that replaces the name is a whole expression. No arguments can be passed to such a
    word.
    """
    if use.arguments:
        return OTHER_ARGUMENTS
    return proven(
        IN_TABLE,
        with_gpu_test(
            use, use.replace(use.module.with_torch_name(row.accelerator)), row.without_gpu
        ),
    )


def _event(use: Use, row: Row) -> Judgement:
    """Judges `torch.cuda.Event`. Its word, `torch.Event`, accepts only keyword arguments, so
    names are inserted before positional arguments."""
    names = _PARAMETERS[row.name]
    if not _can_name_arguments(use) or not use.keywords.keys() <= set(names):
        return OTHER_ARGUMENTS
    inserted = {
        use.span(argument)[0]: f"{name}="
        for argument, name in zip(use.args, names, strict=False)
    }
    return proven(
        IN_TABLE, (*use.rename(_word_without_arguments(use, row)), *_insertions(use, inserted))
    )


def _can_name_arguments(use: Use) -> bool:
    """Whether names can be inserted before the positional arguments. This is possible if no
    argument has a star, and no positional argument is in brackets."""
    if use.has_stars:
        return False
    end = use.find(b"(", use.span(use.node.func)[1]) + 1
    for argument in use.args:
        start, next_end = use.span(argument)
        # there is more than a comma before the argument: `f((x))` would become `f((name=x))`
        if use.module.source.text[end:start].strip(b" \t\r\n,"):
            return False
        end = next_end
    return True


def _insertions(use: Use, texts: dict[int, str]) -> Edits:
    """Returns the edits that insert strings. `texts` maps each position to the string that is
    inserted there."""
    return tuple(use.edit(at, at, text) for at, text in texts.items())


def _device_scope(use: Use, row: Row) -> Judgement:
    """Judges `torch.cuda.device(x)`. Its argument is an index, a device or the name of a
    device, but its word, `torch.accelerator.device_index`, accepts only an index."""
    argument = use.only_argument
    if argument is None:
        return OTHER_ARGUMENTS
    means = inferred(argument)
    edits = use.rename(_word_without_arguments(use, row))
    # both functions also accept None, and then change nothing
    if is_only(means, (*NUMBERS, "none")):
        return proven("the index is a number", edits)
    match re.fullmatch(r"cuda:(\d+)", string_value(argument) or ""):
        case re.Match() as text:
            return proven(
                "the string names the index", (*edits, *use.replace(text[1], argument))
            )
    # `.index` can be appended to these expressions without brackets
    if is_only(means, ("device",)) and isinstance(
        argument, ast.Name | ast.Attribute | ast.Call
    ):
        _, end = use.span(argument)
        return proven("the argument is a device", (*edits, use.edit(end, end, ".index")))
    return safe(
        "the argument is not proven to be an index; for anything else, the replacement raises an error",
        edits,
    )


def _stream_scope(use: Use, row: Row) -> Judgement:
    """Judges `with torch.cuda.stream(s):`, which becomes `with s:`, because PyTorch's neutral
    streams are context managers themselves."""
    argument = use.only_argument
    if argument is None:
        return OTHER_ARGUMENTS
    means = inferred(argument)
    # removes the call, and keeps only its argument
    edits = use.replace_around(argument, "", "")
    if _is_stream(means):
        return proven("the argument is a stream, which works in a with statement", edits)
    # `torch.cuda.stream(None)` does nothing
    if may_be(means, ("none",)):
        return left_open(
            "the argument may be None, which raises an error in a with statement", "XD161"
        )
    return safe(
        "the argument is not proven to be a stream; for anything else, the replacement raises an error",
        edits,
    )


def _is_stream(means: Value) -> bool:
    """Whether a value is known to be a stream."""
    return bool(means) and all(
        atom.kind == "result" and atom.subject in _STREAMS for atom in means
    )


def _seed(use: Use, row: Row) -> Judgement:
    """Judges the functions that seed CUDA's generators. If `torch.manual_seed` has just set the
    same seed on all devices, the new text calls `torch.manual_seed` again. Otherwise, it calls
    the function of the same name in the module of the current accelerator."""
    seed = use.only_argument
    if seed is None:
        return OTHER_ARGUMENTS
    if use.is_statement and _is_seeded_before(use, seed):
        return proven(
            "the line before has set this seed on all devices",
            use.rename(use.module.with_torch_name("torch.manual_seed")),
        )
    name = row.name.rpartition(".")[2]
    edits = use.rename(use.module.with_torch_name(f"torch.get_device_module().{name}"))
    return proven("the generator of the current accelerator", with_gpu_test(use, edits, "None"))


def _is_seeded_before(use: Use, seed: ast.expr) -> bool:
    """Whether `torch.manual_seed` is called with the same seed before this statement. Only
    docstrings and calls that seed other generators may be between the two."""
    # a call in the seed, for example, may return a different value the second time
    if not all(isinstance(part, (*_REPEATABLE, ast.expr_context)) for part in ast.walk(seed)):
        return False
    statement = use.parent
    while statement is not None:
        block = block_of(statement, use.module.parents)
        # upwards from the statement
        for earlier in reversed(block[: block.index(statement)]):
            match earlier:
                # after another seed, the search continues with the statement above
                case ast.Expr(value=ast.Call(func=func, args=[argument])) if ast.unparse(
                    func
                ).endswith("seed"):
                    seeds_all = use.full_name(func) == "torch.manual_seed"
                    if seeds_all and ast.dump(argument) == ast.dump(seed):
                        return True
                # the seeds of Python and NumPy do not change PyTorch's seed
                case ast.Expr(value=ast.Call(func=func)) if "seed" in ast.unparse(func):
                    continue
                # a docstring
                case ast.Expr(value=ast.Constant()):
                    continue
                case _:
                    return False
        outer = use.module.parents.get(statement)
        # the statements before `if torch.cuda.is_available():` run before its body
        statement = outer if isinstance(outer, ast.If) else None
    return False


def _with_device(use: Use, row: Row) -> Judgement:
    """Judges functions of mixed precision. In the new text, the type of the current accelerator
    is an argument. On a machine without an accelerator, the new text disables mixed precision,
    as the old functions do without CUDA."""
    # the word is a whole call, such as `torch.autocast(...)`; only the name of its function is needed
    callee, _, _ = row.accelerator.partition("(")
    device_parameter = _PARAMETERS[callee][0]  # of the new function
    parameters = _PARAMETERS[use.called_name]  # of the old function
    if (
        not _can_name_arguments(use)
        or not use.keywords.keys() <= set(parameters)
        or len(use.args) > len(parameters)
    ):
        return OTHER_ARGUMENTS
    # maps the names of the parameters to the arguments; not strict, because arguments may be left
    # out
    settings = dict(zip(parameters, use.args, strict=False))
    settings.update((str(key), keyword.value) for key, keyword in use.keywords.items())
    # None if the old function has no such parameter
    device = settings.pop(device_parameter, None)
    # `torch.autocast` without its required argument is a mistake, which its author has to correct
    if device is None and device_parameter == "device_type" and device_parameter in parameters:
        return OTHER_ARGUMENTS
    # only the literal "cuda" is rewritten: a computed device is chosen elsewhere, "cpu" is
    # right everywhere, and the name of another vendor is the author's choice
    if device is not None and string_value(device) != "cuda":
        return NAMES_NO_VENDOR
    # the text of the device, and the test for a GPU on which `enabled` then depends. If the call
    # has no `enabled`, it is added behind the device
    text, test = device_type_text(use), use.module.gpu_test_text
    if not use.is_behind_gpu_test and "enabled" not in settings:
        text = f"{text}, enabled={test}"
    edits = use.rename(use.module.with_torch_name(callee))
    # maps positions to inserted texts. The first parameter of the word is the device, so names
    # are inserted before the positional arguments
    inserted: dict[int, str] = {}
    if device is None:
        inserted[use.find(b"(", use.span(use.node.func)[1]) + 1] = text + (
            ", " if use.arguments else ""
        )
    else:
        edits = (*edits, *use.replace(text, device))
    # in front of each argument: the name of its parameter, and then the test. Texts for the same
    # position are joined, because the first argument may begin where the device was inserted
    for setting, argument in settings.items():
        start, end = use.span(argument)
        if argument in use.args:
            inserted[start] = f"{inserted.get(start, '')}{setting}="
        # `enabled=x` becomes `enabled=test and x`; False stays
        if (
            setting == "enabled"
            and not use.is_behind_gpu_test
            and getattr(argument, "value", None) is not False
        ):
            opening, closing = (
                ("(", ")") if isinstance(argument, _LOOSER_THAN_AND) else ("", "")
            )
            inserted[start] = f"{inserted.get(start, '')}{test} and {opening}"
            if closing:
                inserted[end] = closing
    return proven("names the current accelerator", (*edits, *_insertions(use, inserted)))


def _nccl(use: Use, row: Row) -> Judgement:
    """Judges `init_process_group("nccl")`. The string becomes a call that returns the name of
    the backend for the current accelerator."""
    keyword = use.keywords.get("backend")
    backend = keyword.value if keyword is not None else use.args[0] if use.args else None
    if backend is None or string_value(backend) != "nccl":
        return NAMES_NO_VENDOR
    text = f"{use.module.torch_name}.distributed.get_default_backend_for_device({use.module.accelerator_text})"
    return proven(
        "the collectives of the current accelerator", use.replace(text, backend), backend
    )


def judge_cuda_method(use: Use) -> Judgement:
    """Judges `.cuda()` for the target "accelerator". It becomes `.to()`: every object with `.cuda()` also has `.to()`,
    and both methods move the object in the same way.
    """
    if (
        use.has_stars
        or not use.keywords.keys() <= {"non_blocking", "device"}
        or len(use.args) > 1
    ):
        return OTHER_ARGUMENTS
    receiver = inferred(use.receiver)
    if any(
        atom.kind == "instance" and atom.subject.method("cuda") is not None for atom in receiver
    ):
        return Judgement("neutral", "it is a method of the project, whose body is rewritten")
    device = use.args[0] if use.args else getattr(use.keywords.get("device"), "value", None)
    _, end = use.span(use.node.func)
    # since="2.6" below is the first release that has torch.accelerator. Only the name of the
    # method is replaced here, so that layout and comments around the dot stay
    edits: Edits = (use.edit(end - len("cuda"), end, "to"),)
    if device is None:
        at = use.find(b"(", end) + 1
        text = use.module.accelerator_text
        edits = (*edits, use.edit(at, at, text + (", " if use.keywords else "")))
    elif not is_only(value_after_tests(device, use.module.parents), (*DEVICES, *NUMBERS)):
        return left_open("the argument may be None, and .to(None) moves nothing", "XD161")
    # the receiver may be an object of a class of the project that has a method `cuda`
    if not is_known(receiver) and "cuda" in use.module.inference.methods:
        return safe(
            "the receiver may be an object of a class of the project that has no .to()",
            edits,
            "XD162",
            since="2.6",
        )
    return proven(
        "every object with .cuda() also has .to(), which moves it in the same way",
        edits,
        since="2.6",
    )


def judge_is_cuda(use: Use) -> Judgement:
    """Judges `x.is_cuda`. The attribute is replaced by a comparison of `x.device.type` with the type of the current
    accelerator, in brackets if necessary. `torch.accelerator` needs PyTorch 2.6.
    """
    means = inferred(use.node.value)
    if any(atom.kind == "instance" for atom in means):
        return Judgement("not a device", "it is an attribute of a class of the project")
    _, end = use.span(use.node.value)
    text = f"device.type == {use.module.accelerator_type_text}"
    dot = use.find(b".", end)
    edits: Edits = (use.edit(dot + 1, use.end, text),)
    # `not x.is_cuda` needs no brackets, but `x.is_cuda == y` does
    if not needs_no_brackets(use):
        edits = (use.edit(use.start, use.start, "("), use.edit(dot + 1, use.end, f"{text})"))
    if is_only(means, ("tensor",)):
        return proven("compares with the type of the current accelerator", edits, since="2.6")
    return safe("the receiver is not proven to be a tensor", edits, "XD162", since="2.6")


WORD_RULES: Final[dict[str, Callable[[Use, Row], Judgement]]] = {
    "device_scope": _device_scope,
    "event": _event,
    "nccl": _nccl,
    "renamed": _renamed,
    "replaced": _replaced,
    "seed": _seed,
    "stream_scope": _stream_scope,
    "with_device": _with_device,
}
"""Maps the names of rules in the table (`Row.rule`) to the rules for calls."""
