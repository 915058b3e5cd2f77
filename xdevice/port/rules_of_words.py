"""The judgements on names that have a row in the table of `words`: a use of the name becomes a use of PyTorch's word.

A program that ran before still runs afterwards, also without a GPU: a word that raises there, where the old name
returned a value, is put behind a test, unless the program has already made that test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from .guards import block_of, known_at
from .judging import (
    GIVEN,
    OF_CUDA_STREAMS,
    OTHER_ARGUMENTS,
    STARS,
    Edits,
    Judgement,
    Use,
    left_open,
    proven,
    safe,
    text_of,
)
from .rules_of_calls import stands_loose
from .values import DEVICES, NUMBERS, Value, is_known, may_be, means_of, only
from .words import ROWS, Row

_HANDLES: Final = left_open(
    "this file needs CUDA's own streams: default_stream, ExternalStream, cuda_stream or cuda_event",
    "XD162",
)
NAMED: Final = "the table of words has it"
TOO_NEW: Final = "XD171"
_STREAMS: Final = {
    "torch.cuda.Stream",
    "torch.cuda.current_stream",
    "torch.cuda.default_stream",
    "torch.Stream",
    "torch.accelerator.current_stream",
}
"""Calls that give a stream."""
_WITH_HANDLES: Final = ("torch.cuda.Stream", "torch.cuda.current_stream", "torch.cuda.Event")
"""Names whose objects have CUDA's handles, which those of PyTorch's own classes lack."""
_OF_CUDAS_PROPERTIES: Final = {
    "major",
    "minor",
    "multi_processor_count",
    "gcnArchName",
    "warp_size",
    "L2_cache_size",
}
"""Attributes that the properties of other vendors' devices lack."""
_OF_AUTOCAST: Final = ("device_type", "dtype", "enabled", "cache_enabled")
_OF_SCALER: Final = (
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "enabled",
)
_SETTINGS: Final = {
    "torch.cuda.Event": ("enable_timing", "blocking", "interprocess"),
    "torch.cuda.amp.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.autocast": _OF_AUTOCAST,
    "torch.amp.autocast": _OF_AUTOCAST,
    "torch.cuda.amp.GradScaler": _OF_SCALER,
    "torch.amp.GradScaler": ("device", *_OF_SCALER),
}
"""The names of the parameters, in their order."""
_ALIKE: Final = {
    "torch.autocast": 'torch.autocast("cuda")',
    "torch.amp.autocast": 'torch.autocast("cuda")',
    "torch.amp.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.distributed.init_process_group": 'torch.distributed.init_process_group("nccl")',
}
"""Functions whose row is about one value of an argument."""
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
"""The parts of an expression that has the same value when it is evaluated again. A call may have another one."""
WITH_DEVICES: Final = frozenset(_ALIKE)
"""Functions whose calls are judged together with the text in them that names a device."""


def row_of(full_name: str) -> Row | None:
    """The row of a full name, if it has one."""
    return ROWS.get(_ALIKE.get(full_name, full_name))


def word(use: Use, row: Row | None) -> Judgement:
    """The judgement on a call of a name with this row, or on the name alone, which is passed on or is an annotation."""
    if row is None:
        return left_open("no neutral word is known for it")
    if not row.accelerator:
        return left_open(row.differs)
    if row.is_too_new(use.module.goal):
        return left_open(f"its word {row.accelerator} needs PyTorch {row.since}", TOO_NEW)
    if row.name in _WITH_HANDLES and use.module.reads(OF_CUDA_STREAMS):
        return _HANDLES
    rule = WORD_RULES[row.rule] if isinstance(use.node, ast.Call) else _not_called
    judgement = rule(use, row)
    return replace(judgement, since=row.since) if judgement.edits else judgement


def _not_called(use: Use, row: Row) -> Judgement:
    """The judgement on a name that is passed on, not called: the neutral word replaces it if whoever calls it later can
    call the word with the same arguments, also where there is no GPU (`Row.idle`)."""
    is_class = row.name in ("torch.cuda.Stream", "torch.cuda.Event")
    if is_class or (row.rule == "renamed" and row.idle is None):
        return proven(NAMED, use.replace(_callee(use, row)))
    return left_open(
        "it is handed on, and the word takes other arguments or needs a GPU", "XD166"
    )


def has_gpu(use: Use) -> bool:
    """Whether a test around the use has shown that there is a GPU."""
    return getattr(use.node, "has_gpu", False)


def _callee(use: Use, row: Row) -> str:
    """The word without the arguments that the table shows."""
    return use.module.named(re.sub(r"\([^()]*\)$", "", row.accelerator))


def device_type(use: Use) -> str:
    """The text that names the kind of accelerator there is: "cuda" on CUDA."""
    if use.module.asks_xdevice:
        return "xdevice.native.try_gpu().type"
    accelerator = use.module.accelerator
    return f"{accelerator}.type" if has_gpu(use) else f'str({accelerator} or "cpu")'


def guarded(use: Use, edits: Edits, idle: str | None) -> Edits:
    """The edits, with a test where the word raises without a GPU and the old name does not."""
    if idle is None or has_gpu(use):
        return edits
    test = use.module.available
    indent = use.indent
    if use.is_statement and indent is not None:
        # the statement becomes the body of an `if`
        inner = indent + ("\t" if "\t" in indent else "    ")
        return (
            use.edit(use.start, use.start, f"if {test}:{use.module.source.newline}{inner}"),
            *edits,
        )
    # the expression becomes a choice between the word and what the old name gave
    start, end = ("", "") if _stands_free(use) else ("(", ")")
    before = (use.edit(use.start, use.start, start),) if start else ()
    return (*before, *edits, use.edit(use.end, use.end, f" if {test} else {idle}{end}"))


def _stands_free(use: Use) -> bool:
    """Whether a choice (`x if test else y`) needs no brackets in place of this use."""
    match use.parent:
        case ast.Call(func=func):
            return use.node is not func
    return isinstance(
        use.parent, ast.If | ast.While | ast.Assign | ast.Return | ast.keyword | ast.Expr
    )


def _renamed(use: Use, row: Row) -> Judgement:
    """The word takes the same arguments as the name."""
    if use.has_stars:
        return STARS
    if row.name.endswith("get_device_properties") and use.module.reads(_OF_CUDAS_PROPERTIES):
        return left_open("this file reads what only the properties of CUDA's devices have")
    edits = use.rename(_callee(use, row))
    device = use.keywords.get("device")
    # the functions of torch.accelerator take the device by position only
    if device is not None and row.accelerator.startswith("torch.accelerator."):
        if len(use.arguments) > 1:
            return OTHER_ARGUMENTS
        edits = (*edits, use.edit(use.span(device)[0], use.span(device.value)[0], ""))
    return proven(NAMED, guarded(use, edits, row.idle))


def _replaced(use: Use, row: Row) -> Judgement:
    """The word is an expression without arguments."""
    if use.arguments:
        return OTHER_ARGUMENTS
    return proven(NAMED, guarded(use, use.replace(use.module.named(row.accelerator)), row.idle))


def _event(use: Use, row: Row) -> Judgement:
    """`torch.Event` takes its settings by name only, so they get their names."""
    names = _SETTINGS[row.name]
    if not _is_plain(use) or not use.keywords.keys() <= set(names):
        return OTHER_ARGUMENTS
    inserted = {
        use.span(argument)[0]: f"{name}="
        for argument, name in zip(use.args, names, strict=False)
    }
    return proven(NAMED, (*use.rename(_callee(use, row)), *_insertions(use, inserted)))


def _is_plain(use: Use) -> bool:
    """Whether no argument has a star, and no positional argument has brackets around it."""
    if use.has_stars:
        return False
    end = use.find(b"(", use.span(use.node.func)[1]) + 1
    for argument in use.args:
        start, next_end = use.span(argument)
        # `f((x))` would become `f((name=x))`
        if use.module.source.text[end:start].strip(b" \t\r\n,"):
            return False
        end = next_end
    return True


def _insertions(use: Use, texts: dict[int, str]) -> Edits:
    """The edits that insert texts, by their positions."""
    return tuple(use.edit(at, at, text) for at, text in texts.items())


def _device_scope(use: Use, row: Row) -> Judgement:
    """`torch.accelerator.device_index` takes an index, and `torch.cuda.device` a device or its name, too."""
    argument = use.only_argument
    if argument is None:
        return OTHER_ARGUMENTS
    means = means_of(argument)
    edits = use.rename(_callee(use, row))
    if only(means, (*NUMBERS, "none")):
        return proven("the index is a number", edits)
    match re.fullmatch(r"cuda:(\d+)", text_of(argument) or ""):
        case re.Match() as text:
            return proven(
                "a text that names the index", (*edits, *use.replace(text[1], argument))
            )
    if only(means, ("device",)) and isinstance(argument, ast.Name | ast.Attribute | ast.Call):
        _, end = use.span(argument)
        return proven("the argument is a device", (*edits, use.edit(end, end, ".index")))
    return safe("the argument is not proven to be an index; another one raises", edits)


def _stream_scope(use: Use, row: Row) -> Judgement:
    """A stream of PyTorch's own is a scope itself, so that `torch.cuda.stream(s)` becomes `s`."""
    argument = use.only_argument
    if argument is None:
        return OTHER_ARGUMENTS
    means = means_of(argument)
    edits = use.replace_around(argument, "", "")
    if _is_stream(means):
        return proven("the argument is a stream, which is a scope itself", edits)
    if may_be(means, ("none",)):
        return left_open("it may be None, which is no scope", "XD161")
    return safe("the argument is not proven to be a stream; another one raises", edits)


def _is_stream(means: Value) -> bool:
    return bool(means) and all(
        atom.kind == "result" and atom.subject in _STREAMS for atom in means
    )


def _seed(use: Use, row: Row) -> Judgement:
    """A seed that `torch.manual_seed` has just set on all devices is set by it again, any other by the module of the
    present device."""
    seed = use.only_argument
    if seed is None:
        return OTHER_ARGUMENTS
    if use.is_statement and _is_seeded_before(use, seed):
        return proven(
            "the line before has set this seed on all devices",
            use.rename(use.module.named("torch.manual_seed")),
        )
    name = row.name.rpartition(".")[2]
    edits = use.rename(use.module.named(f"torch.get_device_module().{name}"))
    return proven("the generator of the present accelerator", guarded(use, edits, "None"))


def _is_seeded_before(use: Use, seed: ast.expr) -> bool:
    """Whether `torch.manual_seed` of the same seed runs before this statement, with nothing but seeds in between."""
    if not all(isinstance(part, (*_REPEATABLE, ast.expr_context)) for part in ast.walk(seed)):
        return False
    statement = use.parent
    while statement is not None:
        block = block_of(statement, use.module.parents)
        for other in reversed(block[: block.index(statement)]):
            match other:
                case ast.Expr(value=ast.Call(func=func, args=[argument])) if ast.unparse(
                    func
                ).endswith("seed"):
                    is_all = use.full_name(func) == "torch.manual_seed"
                    if is_all and ast.dump(argument) == ast.dump(seed):
                        return True
                # the seeds of Python and NumPy leave this one alone
                case ast.Expr(value=ast.Call(func=func)) if "seed" in ast.unparse(func):
                    continue
                case ast.Expr(value=ast.Constant()):
                    continue
                case _:
                    return False
        outer = use.module.parents.get(statement)
        # what stands before `if torch.cuda.is_available():` runs before its body
        statement = outer if isinstance(outer, ast.If) else None
    return False


def _with_device(use: Use, row: Row) -> Judgement:
    """Gives a function of mixed precision the device that is present, and switches it off if there is none, as the old
    name does for CUDA."""
    callee, _, _ = row.accelerator.partition("(")
    name = _SETTINGS[callee][0]  # of the parameter for the device
    names = _SETTINGS[use.called]
    if (
        not _is_plain(use)
        or not use.keywords.keys() <= set(names)
        or len(use.args) > len(names)
    ):
        return OTHER_ARGUMENTS
    settings = dict(zip(names, use.args, strict=False))
    settings.update((str(key), keyword.value) for key, keyword in use.keywords.items())
    device = settings.pop(name, None)
    if device is None and name == "device_type" and name in names:
        return OTHER_ARGUMENTS
    if device is not None and text_of(device) != "cuda":
        return GIVEN
    text, test = device_type(use), use.module.available
    if not has_gpu(use) and "enabled" not in settings:
        text = f"{text}, enabled={test}"
    edits = use.rename(use.module.named(callee))
    # the word takes the device first, so positional arguments get the names of their parameters
    inserted: dict[int, str] = {}
    if device is None:
        inserted[use.find(b"(", use.span(use.node.func)[1]) + 1] = text + (
            ", " if use.arguments else ""
        )
    else:
        edits = (*edits, *use.replace(text, device))
    for setting, argument in settings.items():
        start, end = use.span(argument)
        if argument in use.args:
            inserted[start] = f"{inserted.get(start, '')}{setting}="
        if (
            setting == "enabled"
            and not has_gpu(use)
            and getattr(argument, "value", None) is not False
        ):
            opening, closing = (
                ("(", ")") if isinstance(argument, _LOOSER_THAN_AND) else ("", "")
            )
            inserted[start] = f"{inserted.get(start, '')}{test} and {opening}"
            if closing:
                inserted[end] = closing
    return proven("the present accelerator", (*edits, *_insertions(use, inserted)))


def _nccl(use: Use, row: Row) -> Judgement:
    """`init_process_group("nccl")` gets the collectives of the device that is present."""
    keyword = use.keywords.get("backend")
    backend = keyword.value if keyword is not None else use.args[0] if use.args else None
    if backend is None or text_of(backend) != "nccl":
        return GIVEN
    text = f"{use.module.torch_name}.distributed.get_default_backend_for_device({use.module.accelerator})"
    return proven(
        "the collectives of the present accelerator", use.replace(text, backend), backend
    )


def move(use: Use) -> Judgement:
    """The judgement on `.cuda()`, which becomes `.to()`: an object with one has the other, too, and both move it in the
    same way."""
    if (
        use.has_stars
        or not use.keywords.keys() <= {"non_blocking", "device"}
        or len(use.args) > 1
    ):
        return OTHER_ARGUMENTS
    receiver = means_of(use.receiver)
    if any(
        atom.kind == "instance" and atom.subject.method("cuda") is not None for atom in receiver
    ):
        return Judgement("neutral", "a method of the project: its body is rewritten")
    device = use.args[0] if use.args else getattr(use.keywords.get("device"), "value", None)
    _, end = use.span(use.node.func)
    edits: Edits = (use.edit(end - len("cuda"), end, "to"),)
    if device is None:
        at = use.find(b"(", end) + 1
        text = use.module.accelerator
        edits = (*edits, use.edit(at, at, text + (", " if use.keywords else "")))
    elif not only(known_at(device, use.module.parents), (*DEVICES, *NUMBERS)):
        return left_open("it may be None, which .to() takes for no move", "XD161")
    if not is_known(receiver) and "cuda" in use.module.inference.methods:
        return safe(
            "it may be an object of the project that has .cuda() alone", edits, "XD162", "2.6"
        )
    return proven("what has .cuda() has .to(), and moves in the same way", edits, since="2.6")


def is_cuda(use: Use) -> Judgement:
    """The judgement on `x.is_cuda`."""
    means = means_of(use.node.value)
    if any(atom.kind == "instance" for atom in means):
        return Judgement("not a device", "an attribute of the project")
    _, end = use.span(use.node.value)
    text = f"device.type == {use.module.accelerator_name}"
    dot = use.find(b".", end)
    edits: Edits = (use.edit(dot + 1, use.end, text),)
    if not stands_loose(use):
        edits = (use.edit(use.start, use.start, "("), use.edit(dot + 1, use.end, f"{text})"))
    if only(means, ("tensor",)):
        return proven("the kind of the present accelerator", edits, since="2.6")
    return safe("the receiver is not proven to be a tensor", edits, "XD162", "2.6")


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
"""The rules that the table names for calls."""
