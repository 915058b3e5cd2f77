"""The rules for calls of functions and classes that have full names. Each rule returns the
judgement on one use.

`idioms.CALLS` maps each full name to an idiom, which contains the name of the rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Final

from .judging import (
    IDENTIFIED,
    MAY_BE_OTHER_GPU,
    OTHER_ARGUMENTS,
    Edits,
    Judgement,
    Use,
    left_open,
    proven,
    safe,
    string_value,
)
from .knowledge import SPELLING
from .values import DEVICES, NUMBERS, Value, inferred, is_device, is_number, is_only, may_be

_NO_DEVICE: Final = "the argument is not proven to be a device"
_A_DEVICE: Final = "the argument is a device"
_A_TEXT: Final = "the string names a device"
_NO_BRACKETS_IN: Final = (
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
"""A comparison needs no brackets if its parent is one of these nodes. `needs_no_brackets` also
handles other parents, such as calls."""


def no_word(use: Use) -> Judgement:
    """Judges a use of a name that has no vendor-neutral replacement. The use stays open, and the reason is the idiom's
    `why`.
    """
    return left_open(use.idiom.why)


def neutral(use: Use) -> Judgement:
    """Judges a use of a name that works on every device. The use is neutral, and the reason is the idiom's `why`."""
    return Judgement("neutral", use.idiom.why)


def renamed(use: Use) -> Judgement:
    """Judges a use of a name that has a replacement with the same arguments. Only the name is rewritten."""
    # d2l.numpy(x, y) is a mistake in the program, which its author has to correct
    if use.idiom.text == "xdevice.to_numpy" and use.only_argument is None:
        return left_open("to_numpy accepts exactly one argument", "XD166")
    return proven(IDENTIFIED, use.renaming)


def replaced(use: Use) -> Judgement:
    """Judges calls that are replaced by the idiom's text, which is an expression such as
    `xdevice.num_gpus() > 0`. Calls with arguments stay open."""
    if use.arguments:
        return left_open("its neutral replacement accepts no arguments", "XD166")
    # a text with spaces, such as `xdevice.num_gpus() > 0`, may need brackets
    text = use.idiom.text
    return proven(
        IDENTIFIED,
        use.replace(f"({text})" if " " in text and not needs_no_brackets(use) else text),
    )


def asks_build(use: Use) -> Judgement:
    """Judges `paddle.is_compiled_with_cuda()` and similar calls. They test how the framework was
    built, but the new text tests the machine, so the grade is never "proven"."""
    judgement = replaced(use)
    if not judgement.edits:
        return judgement
    return safe(
        "the replacement tests the machine, not the build of the framework", judgement.edits
    )


def needs_no_brackets(use: Use) -> bool:
    """Whether a comparison needs no brackets around it if it replaces this use."""
    match use.parent:
        # no brackets if the use is an argument; brackets if it is the called function itself
        case ast.Call(func=func):
            return use.node is not func
        case ast.UnaryOp(op=ast.Not()) | ast.IfExp(test=use.node):
            return True
    return isinstance(use.parent, _NO_BRACKETS_IN)


# devices


def torch_device(use: Use) -> Judgement:
    """Judges `torch.device(text)`, `torch.device(text, index)` and `torch.device(index)`."""
    match use.args:
        case [ast.Constant(value="cuda" | "cpu" as name), index] if not use.keywords:
            return _judge_by_index(
                index, use.replace_around(index, f"{_native_function(name)}(", ")")
            )
    # `torch.device("cuda", i)` is judged above; other forms must have exactly one argument
    argument = use.only_argument
    if argument is None:
        return left_open(
            'only the forms torch.device(x) and torch.device("cuda", index) are rewritten',
            "XD166",
        )
    if (
        isinstance(argument, ast.Attribute)
        and argument.attr == "type"
        and is_only(inferred(argument.value), ("device",))
    ):
        return Judgement("neutral", "made from the type of another device")
    judgement = _judge_single_argument(use, argument)
    # "cuda" without an index becomes a device with the index 0, which shows if the device is printed, and may be wrong
    # after `set_device`. If there are no edits, or if the old device has an index or is the CPU, both stay the same
    if (
        not judgement.edits
        or _names_device_as_printed(argument)
        or (string_value(argument) or "").lower().startswith("cpu")
    ):
        return judgement
    return _judge_without_index(use, judgement, is_gpu=names_gpu_without_index(argument))


def _judge_single_argument(use: Use, argument: ast.expr) -> Judgement:
    """Judges `torch.device(argument)`, but does not yet consider that the printed text of the
    device may change."""
    text = string_value(argument)
    # on any machine, tensors on "meta" have no memory
    if text == "meta":
        return Judgement("neutral", '"meta" is the same on every machine')
    # such as "hpu", which xdevice does not support
    if text is not None and not SPELLING.fullmatch(text):
        return left_open("the string names no device that xdevice supports", "XD165")
    if text is not None:
        name, _, index = text.partition(":")
        return proven(_A_TEXT, use.replace(f"{_native_function(name)}({index})"))
    before, filled = _fstring_parts(use, argument)
    if filled is not None and before == "cuda:":
        return _judge_by_index(
            filled, use.replace(f"xdevice.native.gpu({use.module.source_text(filled)})")
        )
    if isinstance(argument, ast.IfExp) and is_cuda_or_cpu_choice(argument, use.full_name):
        return proven(
            "a GPU if there is one", use.replace("xdevice.native.try_gpu()"), argument
        )
    means = inferred(argument)
    edits = use.rename("xdevice.native.device")
    # torch.device and xdevice.native.device both return a device unchanged, parse a string, and
    # raise an error for anything else
    if is_only(means, DEVICES):
        return proven("the argument is a device or names one", edits)
    if is_only(means, NUMBERS):
        return proven("the argument is a number", use.rename("xdevice.native.gpu"))
    if is_only(means, ("str", *DEVICES)):
        return proven(
            "the argument is a string; if it names no device, an error is raised", edits
        )
    return safe("the argument is not proven to name a device", edits)


def _native_function(name: str) -> str:
    """Returns the name of xdevice's function that returns the framework's own device: the
    function for the CPU if `name` is "cpu", else the function for a GPU."""
    return "xdevice.native.cpu" if name.lower() == "cpu" else "xdevice.native.gpu"


def is_cuda_or_cpu_choice(node: ast.IfExp, full_name: Callable[[ast.AST], str]) -> bool:
    """Whether an expression is `"cuda" if torch.cuda.is_available() else "cpu"`, or the same
    with "cuda:0". `full_name` returns the full name of an expression."""
    tests_for_gpu = isinstance(node.test, ast.Call) and full_name(node.test.func) in (
        "torch.cuda.is_available",
        "torch.accelerator.is_available",
    )
    return (
        tests_for_gpu
        and string_value(node.body) in ("cuda", "cuda:0")
        and string_value(node.orelse) == "cpu"
    )


def names_gpu_without_index(node: ast.AST) -> bool:
    """Whether an expression is a string that names a GPU without an index."""
    return string_value(node) in ("cuda", "gpu", "mps", "xpu")


def _names_device_as_printed(node: ast.AST) -> bool:
    """Whether an expression names a device exactly as the framework prints it: with an index, or as "cpu". This is
    tested for strings, and for both branches of a conditional expression. F-strings are assumed to have an index. For
    any other expression, the result is False.
    """
    if isinstance(node, ast.IfExp):
        return _names_device_as_printed(node.body) and _names_device_as_printed(node.orelse)
    text = string_value(node)
    return isinstance(node, ast.JoinedStr) or (
        text is not None and (":" in text or text.lower() == "cpu")
    )


def _judge_without_index(use: Use, judgement: Judgement, is_gpu: bool) -> Judgement:
    """Completes the judgement on a device that has no index in the old text. `judgement` does
    not yet consider that xdevice's device has the index 0.

    If the device is printed, its index is visible; after `set_device`, the index 0 may mean the wrong GPU. In these
    cases, the new text creates a device without an index, or the use stays open. In all other cases, returns
    `judgement`. `is_gpu` says whether the use certainly means a GPU.
    """
    in_text = use.node in use.module.text_origins
    # the index 0 is not printed, and it does not mean the wrong GPU
    if not in_text and not use.sets_current_device:
        return judgement
    # the text that is written below always means a GPU, but the old text may mean the CPU
    if not is_gpu:
        return (
            left_open("the device is turned into text, which would change", "XD169")
            if in_text
            else MAY_BE_OTHER_GPU
        )
    root = use.node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    # the new text needs a name for torch, but `from torch import device` binds none
    if not isinstance(root, ast.Name) or use.full_name(root) != "torch":
        return left_open(
            "the replacement has the index 0, which would be printed or be wrong after set_device; without `import "
            "torch`, the index cannot be left out",
            "XD169",
        )
    why = "is turned into text" if in_text else "follows set_device"
    edits = use.replace(f"{root.id}.device(xdevice.native.gpu().type)")
    return proven(f"{judgement.why}; without an index, because it {why}", edits)


def accelerator(use: Use) -> Judgement:
    """Judges `torch.accelerator.current_accelerator()`. On a machine without a GPU, this function returns None, but the
    new text raises an error.
    """
    if use.arguments:
        return OTHER_ARGUMENTS
    # the program may rely on getting None on a machine without a GPU, unless a test around the
    # call excludes this case. The interpreter stores as `has_gpu` whether there is such a test
    if not use.is_behind_gpu_test:
        return left_open(
            "without an accelerator, the result is None, and no test excludes this case",
            "XD170",
        )
    return _judge_without_index(
        use,
        proven("a test around it has shown that there is a GPU", use.replace(use.idiom.text)),
        is_gpu=True,
    )


def device_with_index(use: Use) -> Judgement:
    """Judges `mx.gpu(i)` and similar calls, which return the framework's device with an index.
    The index may be left out."""
    if len(use.arguments) > 1 or not use.keywords.keys() <= {"device_id"}:
        return OTHER_ARGUMENTS
    edits = use.renaming
    if not use.arguments:
        return proven(IDENTIFIED, edits)
    # `device_id=` is removed, because the parameter of the new function has another name
    for keyword in use.keywords.values():
        edits = (*edits, use.edit(use.span(keyword)[0], use.span(keyword.value)[0], ""))
    return _judge_by_index(use.arguments[0], edits)


def _judge_by_index(argument: ast.expr, edits: Edits) -> Judgement:
    """Judges a use by its argument: `edits` are right if `argument` is a number. The use is proven if the argument is
    known to be a number, else safe.
    """
    if is_number(argument):
        return proven("the index is a number", edits)
    return safe("the index is not proven to be a number", edits)


def helper_scope(use: Use) -> Judgement:
    """Judges `try_gpu()`, `gpu()` and `cpu()` of `d2l.tensorflow`, the package of a book, which return
    a context manager instead of a device."""
    # xdevice's function returns a device. Outside a `with` statement, the program may use the
    # context manager in ways that are impossible with a device
    if not isinstance(use.parent, ast.withitem):
        return left_open(
            "d2l's TensorFlow helper returns a context manager, but the replacement returns a device",
            "XD164",
        )
    return proven("used in a with statement, where a neutral device also works", use.renaming)


def scope(use: Use) -> Judgement:
    """Judges `tf.device("/GPU:1")`. For a GPU, only the argument of `tf.device` is rewritten,
    because TensorFlow chooses another device if the GPU is missing. A `with` block of xdevice would
    raise an error instead. For a CPU in a `with` statement, the whole call is replaced by xdevice's
    device."""
    argument = use.only_argument
    before, filled = _fstring_parts(use, argument)
    # an f-string such as f"/GPU:{i}" is matched with 0 in place of the value
    text = f"{before}0" if before.endswith(":") else string_value(argument)
    match = re.fullmatch(r"/?(?:device:)?([CG]PU)(?::(\d+))?", text or "", re.IGNORECASE)
    # such as a name with the job and task of a cluster, or a name that is built at run time
    if match is None or argument is None:
        return left_open("the argument is not a string that names one device", "XD165")
    native = _native_function(match[1])
    if filled is not None:
        return _judge_by_index(
            filled, use.replace(f"{native}({use.module.source_text(filled)})", argument)
        )
    index = match[2] or ""
    if isinstance(use.parent, ast.withitem) and native == "xdevice.native.cpu":
        return proven(_A_TEXT, use.replace(f"xdevice.cpu({index})"))
    return proven(_A_TEXT, use.replace(f"{native}({index})", argument))


def _fstring_parts(use: Use, node: ast.expr | None) -> tuple[str, ast.expr | None]:
    """For an f-string such as f"cuda:{i}", returns the text before the braces, and the expression
    in the braces. The expression can be copied elsewhere unchanged. Returns ("", None) for any
    other expression, for an f-string that formats the value, and if the braces contain a use of a
    device."""
    match node:
        case ast.JoinedStr(
            values=[
                ast.Constant(value=str(before)),
                ast.FormattedValue(value=value, conversion=-1, format_spec=None),
            ]
        ) if use.module.has_exact_position(value) and not use.module.has_uses(value):
            return before, value
    return "", None


# counting devices


def device_list(use: Use) -> Judgement:
    """Judges calls that return a list of devices. They are rewritten if the program uses only the length or the truth
    value of the list or, for `jax.devices`, only one item."""
    name = string_value(use.only_argument)
    if name is None or name.lower() != "gpu":
        return left_open("lists devices in the framework's own way", "XD155")
    match use.parent:
        # `len(list)` becomes the number of GPUs
        case ast.Call(func=ast.Name(id="len")):
            return proven(
                "only the length of the list is used",
                use.replace("xdevice.num_gpus()", use.parent),
            )
        # `if list`, `not list`, or the test of a conditional expression
        case ast.If() | ast.UnaryOp() | ast.IfExp(test=use.node):
            return proven(
                "only used to test whether there is a GPU",
                use.replace("xdevice.num_gpus() > 0"),
            )
        case ast.Subscript(slice=index) if is_number(index) and use.idiom.name == "jax.devices":
            return proven(
                "only one item of the list is used",
                use.replace_around(index, "xdevice.native.gpu(", ")", node=use.parent),
            )
    return left_open("the list contains the framework's own device objects", "XD155")


def device_count(use: Use) -> Judgement:
    """Judges `jax.device_count("gpu")`, which raises an error on a machine without GPUs."""
    # without "gpu", the call counts CPUs on a machine without GPUs, so that the result is 1
    if string_value(use.only_argument) not in ("gpu", "cuda"):
        return left_open("counts the devices of the default kind, which may be CPUs", "XD155")
    # the new text never raises an error
    if use.is_statement:
        return left_open(
            "the call only tests whether JAX raises an error, but the replacement raises none",
            "XD163",
        )
    return proven("only the number of GPUs is used", use.replace(use.idiom.text))


# work on devices


def put_on_device(use: Use) -> Judgement:
    """Judges `jax.device_put(x, device)`. Unlike its replacement, `to_device`, this function also accepts a Python
    number, and converts it to an array."""
    # `device_put` also accepts shardings, `donate` and more, which `to_device` does not accept
    if len(use.args) != 2 or use.keywords:
        return left_open("only the form device_put(x, device) is rewritten", "XD166")
    if is_only(inferred(use.args[0]), ("int", "float", "bool")):
        return left_open(
            "the first argument is a Python number, which to_device refuses", "XD162"
        )
    edits = use.renaming
    return proven(_A_DEVICE, edits) if is_device(use.args[1]) else safe(_NO_DEVICE, edits)


def current_device(use: Use) -> Judgement:
    """Judges `paddle.set_device(device)`. It is rewritten only as a statement, because its
    result is a Paddle object."""
    means = inferred(use.only_argument)
    if not use.is_statement or not is_only(means, DEVICES):
        return left_open("its result is used, or the argument is not proven to be a device")
    # the strings that the argument may be
    texts = (atom.subject.lower() for atom in means if atom.kind == "spelling")
    # in Paddle, "gpu" means the GPU that paddle.distributed.launch has assigned to the process,
    # which may not be "gpu:0"
    if any(":" not in text and text != "cpu" for text in texts):
        return left_open("without an index, Paddle uses the GPU assigned to the process")
    return proven(_A_DEVICE, use.renaming)


def wait(use: Use) -> Judgement:
    """Judges functions that wait for one or all devices, and return nothing."""
    if not use.is_statement:
        return left_open("its result is used, but sync returns None", "XD163")
    if use.keywords or len(use.args) > 1:
        return OTHER_ARGUMENTS
    edits = use.renaming
    # no argument, or a device, which `sync` also accepts
    if not use.args or is_device(use.args[0]):
        return proven(IDENTIFIED, edits)
    if is_number(use.args[0]):
        (index,) = use.args
        # `sync` accepts a device, but no index
        start, _ = use.span(index)
        as_device = use.edit(start, start, "xdevice.gpu("), use.close_bracket(index)
        return proven("the index is a number", edits + as_device)
    return safe(_NO_DEVICE, edits)


def split_and_load(use: Use) -> Judgement:
    """Judges MXNet's `split_and_load(data, ctx_list)`. The replacement, `split_batch`, has other names for these
    parameters, and always splits the first axis."""
    keywords = use.keywords
    has_devices = len(use.args) == 2 or (len(use.args) == 1 and "ctx_list" in keywords)
    if not has_devices or not keywords.keys() <= {"ctx_list", "batch_axis", "even_split"}:
        return left_open("only the form split_and_load(data, ctx_list) is rewritten", "XD166")
    edits = use.renaming
    # rename the keywords in place, which keeps their order and the comments between them
    for old, new in (("ctx_list", "devices"), ("even_split", "even")):
        if old in keywords:
            start, _ = use.span(keywords[old])
            edits = (*edits, use.edit(start, start + len(old), new))
    axis = keywords.get("batch_axis")
    if axis is not None:
        if getattr(axis.value, "value", None) != 0:
            return left_open(
                "split_batch always splits the first axis, but batch_axis may name another one",
                "XD166",
            )
        edits = (*edits, use.drop(axis))
    # `split_and_load` also accepts NumPy arrays, which `split_batch` cannot copy to a GPU, and
    # lists of numbers, which `split_batch` refuses
    if may_be(inferred(use.args[0]), ("array", "list", "tuple")):
        return safe("the batch is not proven to be a tensor", edits, "XD162")
    return proven("the arguments are a batch and a list of devices", edits)


def scatter(use: Use) -> Judgement:
    """Judges PyTorch's `scatter(tensor, devices)`. It allows parts of different lengths, so the
    new text has `even=False`."""
    if (
        len(use.args) != 2
        or use.keywords
        or not _is_list_of_devices(use, inferred(use.args[1]))
    ):
        return left_open("only the form scatter(tensor, devices) is rewritten", "XD166")
    if not is_only(inferred(use.args[0]), ("tensor",)):
        return left_open("the first argument is not proven to be a tensor", "XD162")
    end = use.end - 1
    # `, even=False` is inserted before the last bracket. If there were a comma already, there
    # would then be two
    if use.span(use.args[1])[1] != end:
        return left_open(
            "brackets or a comma follow the last argument, where even=False has to be inserted",
            "XD166",
        )
    return proven(
        "a tensor and a list of devices", (*use.renaming, use.edit(end, end, ", even=False"))
    )


def _is_list_of_devices(use: Use, means: Value) -> bool:
    """Whether a value is known to be a list that contains only devices or their names."""
    items = use.module.inference.items
    return is_only(means, ("list",)) and all(is_only(items(atom), DEVICES) for atom in means)


def split_batch(use: Use) -> Judgement:
    """Judges d2l's `a, b = split_batch(x, y, devices)`, which returns a list of the parts of x, and
    a list of the parts of y. xdevice's function accepts a pair, and returns a pair for each device.
    In the new text, `zip(*...)` turns these pairs into two sequences."""
    is_unpacked = isinstance(use.parent, ast.Assign) and all(
        isinstance(target, ast.Tuple) and len(target.elts) == 2 for target in use.parent.targets
    )
    if len(use.args) != 3 or use.keywords or not is_unpacked:
        return left_open(
            "split_batch returns a pair for each device, but d2l's function returns two lists",
            "XD166",
        )
    # split_batch(x, y, devices) becomes zip(*xdevice.split_batch((x, y), devices))
    end_of_y, end = use.span(use.args[1])[1], use.end
    opening = use.rename_with_bracket(f"zip(*{use.idiom.text}((")
    return proven(
        IDENTIFIED,
        (opening, use.edit(end_of_y, end_of_y, ")"), use.edit(end - 1, end, "))")),
    )


def memory(use: Use) -> Judgement:
    """Judges Paddle's functions that return a number of allocated bytes. They become attributes
    of the result of `xdevice.memory(device)`."""
    # without an argument, Paddle uses the current GPU
    if not use.arguments:
        if use.sets_current_device:
            return MAY_BE_OTHER_GPU
        return proven(
            IDENTIFIED, use.replace(f"xdevice.memory(xdevice.gpu()).{use.idiom.text}")
        )
    if is_device(use.only_argument):
        end = use.end
        return proven(
            _A_DEVICE,
            (*use.rename("xdevice.memory"), use.edit(end - 1, end, f").{use.idiom.text}")),
        )
    return left_open(_NO_DEVICE, "XD161")
