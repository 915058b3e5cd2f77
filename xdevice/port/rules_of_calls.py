"""The judgements on calls of functions and classes, which are known by their full names.

`idioms.CALLS` names the function that judges each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Final

from .judging import (
    NAMED,
    OTHER_ARGUMENTS,
    OTHER_GPU,
    Edits,
    Judgement,
    Use,
    left_open,
    proven,
    safe,
    text_of,
)
from .knowledge import SPELLING
from .values import DEVICES, NUMBERS, Value, is_device, is_number, may_be, means_of, only

_NO_DEVICE: Final = "the argument is not proven to be a device"
_A_DEVICE: Final = "the argument is a device"
_A_TEXT: Final = "a text that names it"
_LOOSE: Final = (
    ast.If,
    ast.While,
    ast.BoolOp,
    ast.Assign,
    ast.Return,
    ast.keyword,
    ast.Expr,
    ast.NamedExpr,
    ast.Assert,
)
"""The nodes around an expression in which a comparison needs no brackets; it needs none as an argument of a call,
either."""


def no_word(use: Use) -> Judgement:
    return left_open(use.idiom.why)


def neutral(use: Use) -> Judgement:
    return Judgement("neutral", use.idiom.why)


def renamed(use: Use) -> Judgement:
    # d2l.numpy(x, y) is a mistake that is left to its author
    if use.idiom.text == "xdevice.to_numpy" and use.only_argument is None:
        return left_open("to_numpy takes one argument", "XD166")
    return proven(NAMED, use.renamed)


def replaced(use: Use) -> Judgement:
    """The call becomes the text of the idiom, which is an expression."""
    if use.arguments:
        return left_open("the neutral word takes no argument", "XD166")
    text = use.idiom.text
    return proven(
        NAMED, use.replace(f"({text})" if " " in text and not stands_loose(use) else text)
    )


def asks_build(use: Use) -> Judgement:
    """`paddle.is_compiled_with_cuda()` asks how the framework was built, and the new text asks the machine: never
    proven."""
    judgement = replaced(use)
    if not judgement.edits:
        return judgement
    return safe(
        "asks the machine, where the old name asks how the framework was built", judgement.edits
    )


def stands_loose(use: Use) -> bool:
    """Whether a comparison needs no brackets in place of this use."""
    match use.parent:
        case ast.Call(func=func):
            return use.node is not func
        case ast.UnaryOp(op=ast.Not()) | ast.IfExp(test=use.node):
            return True
    return isinstance(use.parent, _LOOSE)


# devices


def torch_device(use: Use) -> Judgement:
    """The judgement on `torch.device(text)`, `torch.device(text, index)` or `torch.device(index)`."""
    match use.args:
        case [ast.Constant(value="cuda" | "cpu" as name), index] if not use.keywords:
            return _by_index(index, use.replace_around(index, f"{_native(name)}(", ")"))
    # `torch.device("cuda", i)` is judged above; what is left has one argument
    argument = use.only_argument
    if argument is None:
        return left_open("not the form torch.device(text)", "XD166")
    if (
        isinstance(argument, ast.Attribute)
        and argument.attr == "type"
        and only(means_of(argument.value), ("device",))
    ):
        return Judgement("neutral", "the kind of a device")
    judgement = _device_of_text(use, argument)
    # with an index both print the same
    if (
        not judgement.edits
        or _has_index(argument)
        or (text_of(argument) or "").lower().startswith("cpu")
    ):
        return judgement
    return _without_index(use, judgement, is_gpu=names_no_index(argument))


def _device_of_text(use: Use, argument: ast.expr) -> Judgement:
    """The judgement on `torch.device(argument)`, ignoring how the device prints."""
    text = text_of(argument)
    # tensors on "meta" have no memory, on any machine
    if text == "meta":
        return Judgement("neutral", "no device of the machine")
    # such as "hpu", which xdevice does not know
    if text is not None and not SPELLING.fullmatch(text):
        return left_open("an unknown device", "XD165")
    if text is not None:
        name, _, index = text.partition(":")
        return proven(_A_TEXT, use.replace(f"{_native(name)}({index})"))
    before, filled = _filled_in(use, argument)
    if filled is not None and before == "cuda:":
        return _by_index(
            filled, use.replace(f"xdevice.native.gpu({use.module.segment(filled)})")
        )
    if isinstance(argument, ast.IfExp) and is_usual_choice(argument, use.full_name):
        return proven("the usual choice", use.replace("xdevice.native.try_gpu()"), argument)
    means = means_of(argument)
    edits = use.rename("xdevice.native.device")
    # a device is passed through, a text is read; both raise for what is neither
    if only(means, DEVICES):
        return proven("the argument is a device or names one", edits)
    if only(means, NUMBERS):
        return proven("the argument is a number", use.rename("xdevice.native.gpu"))
    if only(means, ("str", *DEVICES)):
        return proven("the argument is a text, and one that names no device raises", edits)
    return safe("the argument is not proven to name a device", edits)


def _native(name: str) -> str:
    """The function of xdevice that makes the framework's device with this name."""
    return "xdevice.native.cpu" if name.lower() == "cpu" else "xdevice.native.gpu"


def is_usual_choice(node: ast.IfExp, full_name: Callable[[ast.AST], str]) -> bool:
    """Whether an expression is just `"cuda" if torch.cuda.is_available() else "cpu"`."""
    asks = isinstance(node.test, ast.Call) and full_name(node.test.func) in (
        "torch.cuda.is_available",
        "torch.accelerator.is_available",
    )
    return asks and text_of(node.body) in ("cuda", "cuda:0") and text_of(node.orelse) == "cpu"


def names_no_index(node: ast.AST) -> bool:
    return text_of(node) in ("cuda", "gpu", "mps", "xpu")


def _has_index(node: ast.AST) -> bool:
    """Whether a string names a device with its index, as the framework prints it."""
    if isinstance(node, ast.IfExp):
        return _has_index(node.body) and _has_index(node.orelse)
    text = text_of(node)
    return isinstance(node, ast.JoinedStr) or (
        text is not None and (":" in text or text.lower() == "cpu")
    )


def _without_index(use: Use, judgement: Judgement, is_gpu: bool) -> Judgement:
    """The judgement on a device without an index. The native device of xdevice has an index, which shows in texts and
    ignores `set_default_device`. If either matters, the new text is made of the kind alone, or the site stays open."""
    in_text = use.node in use.module.text_origins
    # `torch.device("cuda")` prints without an index, and follows set_device; xdevice's own has index 0
    if not in_text and not use.sets_current:
        return judgement
    # a CPU has no other index, so what differs is only how it prints
    if not is_gpu:
        return left_open("flows into text", "XD169") if in_text else OTHER_GPU
    root = use.node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or use.full_name(root) != "torch":
        return left_open(
            "flows into text, or follows set_device, and torch has another name here", "XD169"
        )
    why = "flows into text" if in_text else "follows set_device"
    edits = use.replace(f"{root.id}.device(xdevice.native.gpu().type)")
    return proven(f"{judgement.why}; without an index, because it {why}", edits)


def accelerator(use: Use) -> Judgement:
    """`torch.accelerator.current_accelerator()` is None without a GPU, where the new text would raise."""
    if use.arguments:
        return OTHER_ARGUMENTS
    # PyTorch returns None there, and the program may rely on it
    if not getattr(use.node, "has_gpu", False):
        return left_open("no test shows that there is one, and without one it is None", "XD170")
    return _without_index(
        use,
        proven("a test has shown that there is one", use.replace(use.idiom.text)),
        is_gpu=True,
    )


def device_with_index(use: Use) -> Judgement:
    """`mx.gpu(i)` and the like: the framework's device of an index, which may be left out."""
    if len(use.arguments) > 1 or not use.keywords.keys() <= {"device_id"}:
        return OTHER_ARGUMENTS
    edits = use.renamed
    if not use.arguments:
        return proven(NAMED, edits)
    # the new function has another name for the index
    for keyword in use.keywords.values():
        edits = (*edits, use.edit(use.span(keyword)[0], use.span(keyword.value)[0], ""))
    return _by_index(use.arguments[0], edits)


def _by_index(argument: ast.expr, edits: Edits) -> Judgement:
    """The judgement on edits that are right if an argument is a number."""
    if is_number(argument):
        return proven("the index is a number", edits)
    return safe("the index is not proven to be a number", edits)


def helper_scope(use: Use) -> Judgement:
    # elsewhere it is stored or passed on, as a device would be
    if not isinstance(use.parent, ast.withitem):
        return left_open(
            "TensorFlow's helper gives a scope, where a neutral device is needed", "XD164"
        )
    return proven("a scope, as a neutral device is", use.renamed)


def scope(use: Use) -> Judgement:
    """The judgement on `tf.device("/GPU:1")`. Where there is no such GPU, TensorFlow takes another device: so a GPU
    stays in `tf.device` as a description, which no block of xdevice takes."""
    argument = use.only_argument
    before, filled = _filled_in(use, argument)
    text = f"{before}0" if before.endswith(":") else text_of(argument)
    match = re.fullmatch(r"/?(?:device:)?([CG]PU)(?::(\d+))?", text or "", re.IGNORECASE)
    # job and task of a cluster, or a name that is put together at run time
    if match is None or argument is None:
        return left_open("not a text that names one device", "XD165")
    native = _native(match[1])
    if filled is not None:
        return _by_index(
            filled, use.replace(f"{native}({use.module.segment(filled)})", argument)
        )
    index = match[2] or ""
    if isinstance(use.parent, ast.withitem) and native == "xdevice.native.cpu":
        return proven(_A_TEXT, use.replace(f"xdevice.cpu({index})"))
    return proven(_A_TEXT, use.replace(f"{native}({index})", argument))


def _filled_in(use: Use, node: ast.expr | None) -> tuple[str, ast.expr | None]:
    """The beginning of an f-string, and the one value behind it; nothing if the value cannot be written elsewhere
    unchanged."""
    match node:
        case ast.JoinedStr(
            values=[
                ast.Constant(value=str(before)),
                ast.FormattedValue(value=value, conversion=-1, format_spec=None),
            ]
        ) if use.module.is_exact(value) and not use.module.has_uses(value):
            return before, value
    return "", None


# how many


def device_list(use: Use) -> Judgement:
    """A list of devices is rewritten if only its length, its truth value or one item is used."""
    name = text_of(use.only_argument)
    if name is None or name.lower() != "gpu":
        return left_open("lists devices in the framework's own way", "XD155")
    match use.parent:
        # the number is the same, whatever objects the list holds
        case ast.Call(func=ast.Name(id="len")):
            return proven(
                "only its length is used", use.replace("xdevice.num_gpus()", use.parent)
            )
        case ast.If() | ast.UnaryOp() | ast.IfExp(test=use.node):
            return proven(
                "only asked whether there is one", use.replace("xdevice.num_gpus() > 0")
            )
        case ast.Subscript(slice=index) if is_number(index) and use.idiom.name == "jax.devices":
            return proven(
                "one of the list",
                use.replace_around(index, "xdevice.native.gpu(", ")", use.parent),
            )
    return left_open("a list of the framework's own objects", "XD155")


def device_count(use: Use) -> Judgement:
    # jax.device_count() is 1 on a machine without GPUs
    if text_of(use.only_argument) not in ("gpu", "cuda"):
        return left_open("counts the devices of the default kind, CPUs too", "XD155")
    if use.is_statement:
        return left_open("only asks whether JAX raises an error", "XD163")
    return proven("only their number is asked", use.replace(use.idiom.text))


# what is done on devices


def put_on_device(use: Use) -> Judgement:
    """`jax.device_put(x, device)`, which also makes an array from a Python number; `to_device` refuses numbers."""
    # `device_put` also takes shardings, donate and more, which `to_device` does not
    if len(use.args) != 2 or use.keywords:
        return left_open("not the form device_put(x, device)", "XD166")
    if only(means_of(use.args[0]), ("int", "float", "bool")):
        return left_open("a number of Python, which is on no device before", "XD162")
    edits = use.renamed
    return proven(_A_DEVICE, edits) if is_device(use.args[1]) else safe(_NO_DEVICE, edits)


def current_device(use: Use) -> Judgement:
    """`paddle.set_device(device)`, as a statement: it returns an object of Paddle's."""
    means = means_of(use.only_argument)
    if not use.is_statement or not only(means, DEVICES):
        return left_open("its result is used, or the argument is not proven to be a device")
    texts = (atom.subject.lower() for atom in means if atom.kind == "spelling")
    # paddle.distributed.launch gives each process its GPU, which "gpu" means and "gpu:0" does not
    if any(":" not in text and text != "cpu" for text in texts):
        return left_open("without an index, Paddle takes the GPU that was given to the process")
    return proven(_A_DEVICE, use.renamed)


def wait(use: Use) -> Judgement:
    """A function that waits for all devices or one, and returns nothing."""
    if not use.is_statement:
        return left_open("its result is used", "XD163")
    if use.keywords or len(use.args) > 1:
        return OTHER_ARGUMENTS
    edits = use.renamed
    # nothing, or a device that `sync` takes as well
    if not use.args or is_device(use.args[0]):
        return proven(NAMED, edits)
    if is_number(use.args[0]):
        (index,) = use.args
        # sync takes a device, and no bare index
        start, _ = use.span(index)
        bracket = use.edit(start, start, "xdevice.gpu("), use.close_bracket(index)
        return proven("the index is a number", edits + bracket)
    return safe(_NO_DEVICE, edits)


def split_and_load(use: Use) -> Judgement:
    """The judgement on a call of MXNet's `split_and_load(data, ctx_list)`. It becomes a call of `split_batch`, which
    has other names for the keywords and always splits the first axis."""
    keywords = use.keywords
    has_devices = len(use.args) == 2 or (len(use.args) == 1 and "ctx_list" in keywords)
    if not has_devices or not keywords.keys() <= {"ctx_list", "batch_axis", "even_split"}:
        return left_open("not the form split_and_load(data, ctx_list)", "XD166")
    edits = use.renamed
    # the keywords are renamed where they stand, so that comments between them stay
    for old, new in (("ctx_list", "devices"), ("even_split", "even")):
        if old in keywords:
            start, _ = use.span(keywords[old])
            edits = (*edits, use.edit(start, start + len(old), new))
    axis = keywords.get("batch_axis")
    if axis is not None:
        if getattr(axis.value, "value", None) != 0:
            return left_open("split_batch splits the first axis", "XD166")
        edits = (*edits, use.drop(axis))
    if may_be(means_of(use.args[0]), ("array", "list", "tuple")):
        return safe("the batch is not proven to be a tensor", edits, "XD162")
    return proven("what MXNet splits, and a list of its devices", edits)


def scatter(use: Use) -> Judgement:
    """PyTorch's `scatter(tensor, devices)`, which allows parts of different lengths."""
    if (
        len(use.args) != 2
        or use.keywords
        or not _is_list_of_devices(use, means_of(use.args[1]))
    ):
        return left_open("not the form scatter(tensor, devices)", "XD166")
    if not only(means_of(use.args[0]), ("tensor",)):
        return left_open("what is scattered is not proven to be a tensor", "XD162")
    end = use.end - 1
    # the new argument is put before the last bracket, where a comma would end up double
    if use.span(use.args[1])[1] != end:
        return left_open("brackets or a comma behind the arguments", "XD166")
    return proven(
        "a tensor, and a list of devices", (*use.renamed, use.edit(end, end, ", even=False"))
    )


def _is_list_of_devices(use: Use, means: Value) -> bool:
    items = use.module.inference.items
    return only(means, ("list",)) and all(only(items(atom), DEVICES) for atom in means)


def split_batch(use: Use) -> Judgement:
    """d2l's `a, b = split_batch(x, y, devices)` returns lists, and xdevice's function returns pairs: `zip(*...)`
    converts them."""
    is_unpacked = isinstance(use.parent, ast.Assign) and all(
        isinstance(target, ast.Tuple) and len(target.elts) == 2 for target in use.parent.targets
    )
    if len(use.args) != 3 or use.keywords or not is_unpacked:
        return left_open(
            "split_batch gives one pair for each device, where d2l's gives two lists", "XD166"
        )
    middle, end = use.span(use.args[1])[1], use.end
    start = use.rename_with_bracket(f"zip(*{use.idiom.text}((")
    return proven(NAMED, (start, use.edit(middle, middle, ")"), use.edit(end - 1, end, "))")))


def memory(use: Use) -> Judgement:
    """Paddle's numbers of allocated bytes: an attribute of the result of `xdevice.memory(device)`."""
    if not use.arguments:
        if use.sets_current:
            return OTHER_GPU
        return proven(NAMED, use.replace(f"xdevice.memory(xdevice.gpu()).{use.idiom.text}"))
    if is_device(use.only_argument):
        end = use.end
        return proven(
            _A_DEVICE,
            (*use.rename("xdevice.memory"), use.edit(end - 1, end, f").{use.idiom.text}")),
        )
    return left_open(_NO_DEVICE, "XD161")
