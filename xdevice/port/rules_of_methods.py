"""The judgements on methods of tensors and models, which are known by their names and by what the receiver may be.

`idioms.METHODS` names the function that judges each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from .guards import known_at
from .idioms import METHODS, ONLY_MXNET
from .judging import OTHER_ARGUMENTS, OTHER_GPU, STARS, Judgement, Use, left_open, proven, safe
from .knowledge import DECORDS_ARRAY, GLUONS_OUTPUT, IN_PLACE, is_model
from .rules_of_calls import names_no_index
from .values import DEVICES, NUMBERS, TENSOR, Atom, is_device, is_known, may_be, means_of, only

_A_DEVICE: Final = "the argument is a device, and the result is used"
_NO_DEVICE: Final = "the argument is not proven to be a device; another one raises"
_A_MODEL: Final = "a model, which moves in place"
_A_TENSOR: Final = "the receiver is a tensor"
_HOST: Final = ("array", "int", "float", "bool", "str")
_ON_HOST: Final = Judgement("neutral", "it is on the host already")
_SAME_ANYWHERE: Final = {
    "detach",
    "clone",
    "contiguous",
    "float",
    "squeeze",
    "double",
    "long",
    "flatten",
}
"""Methods that give the same on the CPU as on a device."""
_DTYPE: Final = re.compile(r"\.(b?float|u?int|complex|half|double|long|bool|short)\d*$")
_MODEL_NAME: Final = re.compile(
    r"(\w*_)?(net|model|module|encoder|decoder|generator|discriminator)\w*"
)


def to(use: Use) -> Judgement:
    """`x.to(device)` of PyTorch and `x.as_in_ctx(device)` of MXNet, whose arguments may be other things."""
    if use.has_stars:
        return STARS
    device = use.arguments[0]
    means = means_of(device)
    # PyTorch's `.to` takes a dtype, a device or a tensor in the same place
    if _is_dtype(device, use.full_name) and "device" not in use.keywords:
        return Judgement("not a device", "a dtype")
    named = [*([None] * len(use.args)), *use.keywords]
    if named[0] not in (None, "device", "ctx") or any(
        name != "non_blocking" for name in named[1:]
    ):
        return left_open(
            "to_device takes the device first, and of the rest only non_blocking=", "XD166"
        )
    if means == TENSOR:
        return left_open("moves to where another tensor is, and to its dtype", "XD161")
    if use.sets_current and names_no_index(device):
        if not use.module.current_gpu or use.method != "to" or use.keywords.keys() - {"device"}:
            return OTHER_GPU
        edits = (*use.move_to(device), *use.replace(use.module.current_gpu, device))
        return _moved(use, proven(_A_DEVICE, edits))
    if only(means, NUMBERS):
        return _moved(use, proven(_A_DEVICE, use.move_to(device, maker="xdevice.gpu")))
    edits = use.move_to(device)
    if only(means, DEVICES):
        return _moved(use, proven(_A_DEVICE, edits))
    # what nobody knows can be trusted where the name of the method belongs to one framework
    if use.method in ONLY_MXNET and not is_known(means) and _is_mxnets(use):
        return _moved(
            use, proven("only arrays of MXNet have this method, and it takes a device", edits)
        )
    if only(means, ("dtype", "float", "tensor", "model", "array")):
        return Judgement("not a device", "the argument is something else")
    return _moved(use, safe(_NO_DEVICE, edits))


def _is_dtype(node: ast.expr, full_name: Callable[[ast.AST], str]) -> bool:
    """Whether the first argument of `.to` is a dtype, by its value or by its name."""
    if isinstance(node, ast.Attribute) and node.attr in (
        "dtype",
        "float",
        "long",
        "half",
        "int",
        "double",
    ):
        return True
    return only(means_of(node), ("dtype",)) or _DTYPE.search(full_name(node)) is not None


def _moved(use: Use, judgement: Judgement) -> Judgement:
    """The judgement on a move, of which `judgement` has only seen the argument. The move can be rewritten if its result
    is used, or if what it moves is a model."""
    moved = means_of(use.receiver)
    # any other reason says more about the argument, and is kept
    is_plain = judgement.why == _A_DEVICE
    if not _is_thrown_away(use.node, use.module.parents):
        if is_plain and moved and all(map(_can_move, moved)):
            return replace(judgement, why="receiver and argument are proven")
        return judgement
    if moved and all(map(_moves_in_place, moved)):
        return replace(judgement, why=_A_MODEL) if is_plain else judgement
    # nothing shows what the receiver is: its name is only a hint, which proves nothing
    name = ast.unparse(use.receiver).rpartition(".")[2].lower()
    if _MODEL_NAME.fullmatch(name) and not is_known(moved):
        why = "the name says that it is a model; its result is thrown away"
        return replace(judgement, why=why, code="XD163", grade="likely")
    return left_open(
        "the result is thrown away, and the receiver is not proven to be a model", "XD163"
    )


def _can_move(atom: Atom) -> bool:
    return atom.kind == "tensor" or is_model(atom)


def _moves_in_place(atom: Atom) -> bool:
    """Whether a move whose result is thrown away does the same before and after."""
    if atom.kind == "model":
        return str(atom.subject).startswith(IN_PLACE)
    # a tensor whose result is thrown away moves nowhere, with the old text and with the new
    return _can_move(atom)


def _is_thrown_away(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether nothing is done with the result of a call, not even through a list or a conditional expression."""
    # the nodes that hand a result on to what is around them
    passing = (
        ast.ListComp
        | ast.List
        | ast.Tuple
        | ast.Await
        | ast.IfExp
        | ast.BoolOp
        | ast.GeneratorExp
    )
    parent = parents.get(node)
    while parent is not None and isinstance(parent, passing):
        parent = parents.get(parent)
    return isinstance(parent, ast.Expr)


def to_vendor(use: Use) -> Judgement:
    """The judgement on `.cuda()` and `.cpu()`."""
    is_known_form = use.keywords.keys() <= {"non_blocking", "device"} and len(use.args) <= 1
    if not is_known_form or use.has_stars:
        return OTHER_ARGUMENTS
    maker = use.idiom.text
    # the device is the first argument or a keyword, and may be left out
    device = use.args[0] if use.args else getattr(use.keywords.get("device"), "value", None)
    if device is None:
        return _to_default_device(use, maker)
    means = known_at(device, use.module.parents)
    if only(means, DEVICES):
        return _moved(use, proven(_A_DEVICE, use.move_to(device)))
    if only(means, NUMBERS):
        return _moved(use, proven(_A_DEVICE, use.move_to(device, maker=maker)))
    edits = use.move_to(device, maker=maker if only(means, (*NUMBERS, "none")) else "")
    return _moved(use, safe(_NO_DEVICE, edits))


def _to_default_device(use: Use, maker: str) -> Judgement:
    """The judgement on `.cuda()` and `.cpu()` that name no device."""
    new = f"{maker}()"
    if maker == "xdevice.gpu" and use.sets_current:
        if not use.module.current_gpu:
            return OTHER_GPU
        new = use.module.current_gpu
    # `x.cpu().numpy()` is one read, which needs no move before it
    merged = _read_around(use, use.node) if maker == "xdevice.cpu" else None
    if merged is not None:
        return merged
    end, text = use.end - 1, new
    if use.keywords:
        [non_blocking] = use.keywords.values()  # it stays, behind the device
        end, text = use.span(non_blocking)[0], f"{new}, "
    return _moved(
        use, proven(_A_DEVICE, use.call_with_receiver("xdevice.to_device", end, text))
    )


def _read_around(use: Use, node: ast.AST) -> Judgement | None:
    """The judgement on `.cpu()` in `x.cpu().numpy()`, which is removed, since the new text reads from any device."""
    attribute = use.module.parents.get(node)
    if not isinstance(attribute, ast.Attribute):
        return None
    name = attribute.attr
    if name == "data":
        return _read_around(use, attribute)
    call = use.module.parents.get(attribute)
    if not isinstance(call, ast.Call) or call.func is not attribute:
        return None
    if name in _SAME_ANYWHERE:
        return _read_around(use, call)
    if name not in ("numpy", "item", "asnumpy") or call.args:
        return None
    around = read(replace(use, node=call, idiom=METHODS[name]))
    if around.grade is None:
        return None
    edits = (use.edit(use.dot, use.end, ""),)
    return replace(around, why="the read around it takes it from any device", edits=edits)


def reset(use: Use) -> Judgement:
    """`net.collect_params().reset_ctx(device)` moves parameters of MXNet in place."""
    if len(use.arguments) != 1:
        return left_open("not the form reset_ctx(device)", "XD166")
    (device,) = use.arguments
    if not is_device(device):
        return left_open(
            "a list of devices, or not proven to be one: replicate makes copies on several",
            "XD151",
        )
    return proven(_A_MODEL, use.move_to(device))


def copy_to(use: Use) -> Judgement:
    """`x.copyto(other)` copies to a device or into another array, which depends on the value of the argument."""
    argument = use.only_argument
    if argument is None:
        return left_open("not the form copyto(device)", "XD166")
    means = means_of(argument)
    if only(means, ("tensor", "array")):
        return Judgement("not a device", "copies into another array")
    if not only(means, DEVICES):
        return left_open("the argument may be an array to write into", "XD161")
    return proven("the argument is a device", use.move_to(argument, "xdevice.copy_to"))


def sync(use: Use) -> Judgement:
    """`x.wait_to_read()` and `x.block_until_ready()`. The latter returns the array, which sync does not."""
    if use.arguments:
        return OTHER_ARGUMENTS
    if not use.is_statement:
        return left_open("its result is used, and sync gives none", "XD163")
    return read(use)


def read(use: Use) -> Judgement:
    """`x.numpy()`, `x.item()` and the like: an array or a number on the host."""
    if use.args or use.keywords.keys() not in (set(), {"force"}):
        return OTHER_ARGUMENTS
    means, parent = means_of(use.receiver), use.parent
    if only(means, _HOST):
        return _ON_HOST
    # `x.numpy()[0] = 1` changes the tensor on the CPU, and a copy would not
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        return left_open("writes into the memory of the tensor", "XD163")
    if _is_scalar_in_tensorflow(use):
        return left_open(
            "TensorFlow gives a number or a text here, and to_numpy an array of no axes",
            "XD165",
        )
    # `x.numpy(force=True)` detaches, as xdevice.to_numpy always does; so the keyword goes
    edits = use.call_with_receiver(use.idiom.text, use.end - 1, comma="")
    if means == TENSOR:
        return proven(_A_TENSOR, edits)
    if means == DECORDS_ARRAY:
        return Judgement("not a device", "an array of decord, which is on the host")
    if use.method in ONLY_MXNET:
        others = use.module.other_arrays
        if others and "mxnet" not in use.module.frameworks:
            return Judgement(
                "not a device",
                f"a method of {min(others)}'s arrays, and of none of the framework's",
            )
        if means == GLUONS_OUTPUT or _is_mxnets(use):
            return proven("only arrays of MXNet have this method", edits)
    if is_known(means) and not may_be(means, ("tensor", "result", "array")):
        return Judgement("not a device", "the receiver is something else")
    return safe(
        "the receiver is not proven to be a tensor; anything else raises", edits, "XD162"
    )


def _is_scalar_in_tensorflow(use: Use) -> bool:
    """Whether `x.numpy()` is used as what only a scalar can be: a text, or a key."""
    if "tensorflow" not in use.module.frameworks or use.method != "numpy":
        return False
    match use.parent:
        case ast.Subscript(value=indexed, slice=index):
            takes_arrays = only(means_of(indexed), ("tensor", "array", "list", "tuple", "str"))
            return index is use.node and not takes_arrays
        case ast.Attribute(attr=name):
            return name in ("decode", "startswith", "endswith", "split")
    return False


def _is_mxnets(use: Use) -> bool:
    """Whether no other framework that this module imports has a method of this name."""
    has_namesakes = use.method in use.module.inference.methods
    return (
        use.module.frameworks == {"mxnet"} and not has_namesakes and not use.module.other_arrays
    )


def read_as_list(use: Use) -> Judgement:
    """`x.tolist()` becomes `to_numpy(x).tolist()`: xdevice has no word that makes a list."""
    means = means_of(use.receiver)
    if only(means, _HOST):
        return _ON_HOST
    if means != TENSOR or use.arguments:
        return left_open("the receiver is not proven to be a tensor", "XD162")
    start, dot = use.start, use.dot
    return proven(
        _A_TENSOR, (use.edit(start, start, "xdevice.to_numpy("), use.edit(dot, dot + 1, ")."))
    )
