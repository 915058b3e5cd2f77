"""The rules for methods of tensors and models. A method is recognized by its name, and by the
possible values of the receiver, which is the object before the dot. Each rule returns the
judgement on one use.

`idioms.METHODS` maps the name of each method to an idiom, which contains the name of the rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from .guards import value_after_tests
from .idioms import METHODS, ONLY_MXNET
from .judging import (
    HIDDEN_ARGUMENTS,
    MAY_BE_OTHER_GPU,
    OTHER_ARGUMENTS,
    Judgement,
    Use,
    left_open,
    proven,
    safe,
)
from .knowledge import DECORDS_ARRAY, GLUONS_OUTPUT, MOVED_IN_PLACE, is_model
from .rules_of_calls import names_gpu_without_index
from .shared_memory import Sharing
from .values import (
    DEVICES,
    NUMBERS,
    TENSOR,
    Atom,
    inferred,
    is_device,
    is_known,
    is_only,
    may_be,
)

_A_DEVICE: Final = "the argument is a device, and the result is used"
_NO_DEVICE: Final = "the argument is not proven to be a device; for anything else, the replacement raises an error"
_A_MODEL: Final = "the receiver is a model, which moves in place"
_A_TENSOR: Final = "the receiver is a tensor"
# the kinds of atoms for objects that are always on the host
_HOST_KINDS: Final = ("array", "int", "float", "bool", "str")
_ON_HOST: Final = Judgement("neutral", "the value is on the host already")
_OWN_METHOD: Final = Judgement(
    "neutral", "it is a method of the project, whose body is rewritten"
)
_SHARED: Final = left_open(
    "the program writes into the memory of the tensor, but to_numpy may return a copy", "XD163"
)
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
"""Methods that may be called between `.cpu()` and `.numpy()`, because they return the same result
on every device."""
# the full name of a dtype, such as "torch.float32"
_DTYPE: Final = re.compile(r"\.(b?float|u?int|complex|half|double|long|bool|short)\d*$")
# names that suggest that the receiver is a model: "net", "my_model", "encoder2"
_MODEL_NAME: Final = re.compile(
    r"(\w*_)?(net|model|module|encoder|decoder|generator|discriminator)\w*"
)


def to(use: Use) -> Judgement:
    """Judges `x.to(device)` of PyTorch and `x.as_in_ctx(device)` of MXNet. `.to` also accepts
    dtypes and tensors."""
    if use.has_stars:
        return HIDDEN_ARGUMENTS
    # a call without arguments does not get here (see `JudgedSites._judge_method`)
    device = use.arguments[0]
    means = inferred(device)
    # the first argument of PyTorch's `.to` may be a dtype, a device or a tensor
    if _is_dtype(device, use.full_name) and "device" not in use.keywords:
        return Judgement("not a device", "the argument is a dtype")
    # the names of all arguments, with the positional arguments first; None stands for an
    # argument without a name
    named = [*([None] * len(use.args)), *use.keywords]
    if named[0] not in (None, "device", "ctx") or any(
        name != "non_blocking" for name in named[1:]
    ):
        return left_open(
            "to_device accepts only a device, which may be followed by non_blocking=", "XD166"
        )
    if means == TENSOR:
        return left_open("it adopts the device and the dtype of another tensor", "XD161")
    # after set_device, "cuda" means the GPU that was set
    if use.sets_current_device and names_gpu_without_index(device):
        if (
            not use.module.current_gpu_text
            or use.method != "to"
            or use.keywords.keys() - {"device"}
        ):
            return MAY_BE_OTHER_GPU
        edits = (*use.move_to(device), *use.replace(use.module.current_gpu_text, device))
        return _judge_move(use, proven(_A_DEVICE, edits))
    # in PyTorch, a number is the index of a GPU
    if is_only(means, NUMBERS):
        return _judge_move(use, proven(_A_DEVICE, use.move_to(device, maker="xdevice.gpu")))
    edits = use.move_to(device)
    if is_only(means, DEVICES):
        return _judge_move(use, proven(_A_DEVICE, edits))
    # the argument of a method that only MXNet's arrays have is a device, even if its value is
    # unknown
    if use.method in ONLY_MXNET and not is_known(means) and _is_mxnet_method(use):
        return _judge_move(
            use,
            proven("only MXNet arrays have this method, and its argument is a device", edits),
        )
    if is_only(means, ("dtype", "float", "tensor", "model", "array")):
        return Judgement("not a device", "the argument is not a device")
    return _judge_move(use, safe(_NO_DEVICE, edits))


def _is_dtype(node: ast.expr, full_name: Callable[[ast.AST], str]) -> bool:
    """Whether the value or the name of the first argument of `.to` shows that it is a dtype.
    `full_name` returns the full name of an expression."""
    # `y.dtype`, or PyTorch's old names of dtypes, such as `torch.float`
    if isinstance(node, ast.Attribute) and node.attr in (
        "dtype",
        "float",
        "long",
        "half",
        "int",
        "double",
    ):
        return True
    return is_only(inferred(node), ("dtype",)) or _DTYPE.search(full_name(node)) is not None


def _judge_move(use: Use, judgement: Judgement) -> Judgement:
    """Completes the judgement on a move. `judgement` considers only the argument.

    The move can be rewritten if its result is used, or if the receiver is a tensor or a model
    that moves in place. (If the result of moving a tensor is discarded, neither the old text nor
    the new text moves the tensor.)
    """
    moved = inferred(use.receiver)
    # to_device calls the method `to` of an object, but no other method
    if use.method != "to":
        if any(_has_own_method(atom, use.method) for atom in moved):
            return _OWN_METHOD
        if not is_known(moved) and use.method in use.module.inference.methods:
            judgement = _with_own_classes(judgement)
    # below, only the usual reason is replaced by a more precise one
    has_usual_reason = judgement.why == _A_DEVICE
    if not _is_thrown_away(use.node, use.module.parents):
        if has_usual_reason and moved and all(map(_is_tensor_or_model, moved)):
            return replace(judgement, why="the receiver and the argument are known")
        return judgement
    if moved and all(map(_moves_in_place, moved)):
        return replace(judgement, why=_A_MODEL) if has_usual_reason else judgement
    # the name of the receiver is only a hint
    name = ast.unparse(use.receiver).rpartition(".")[2].lower()
    if _MODEL_NAME.fullmatch(name) and not is_known(moved):
        why = "only its name suggests that the receiver is a model; the result is thrown away"
        return replace(judgement, why=why, code="XD163", grade="likely")
    return left_open(
        "the result is thrown away, and the receiver is not proven to be a model", "XD163"
    )


def _has_own_method(atom: Atom, name: str) -> bool:
    """Whether an atom is an object of a class of the project, but no model, and the class defines this method."""
    return (
        atom.kind == "instance" and not is_model(atom) and atom.subject.method(name) is not None
    )


def _with_own_classes(judgement: Judgement) -> Judgement:
    """Returns the judgement on the move of an unknown object in a project with a class that defines the method."""
    if judgement.grade != "proven":
        return judgement
    why = "the receiver may be an object of a class of the project that moves itself in another way"
    return replace(judgement, why=why, code="XD162", grade="safe")


def _is_tensor_or_model(atom: Atom) -> bool:
    """Whether an atom is a tensor or a model."""
    return atom.kind == "tensor" or is_model(atom)


def _moves_in_place(atom: Atom) -> bool:
    """Whether the old and the new text have the same effect on an atom if the result of the move is
    discarded."""
    if atom.kind == "model":
        return str(atom.subject).startswith(MOVED_IN_PLACE)
    # if the result is thrown away, neither the old nor the new text moves a tensor
    return _is_tensor_or_model(atom)


def _is_thrown_away(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the result of a call is not used. This includes a result in a list that is not used,
    such as `[m.cuda() for m in ms]`. `parents` maps each node to its parent."""
    # nodes whose value is, or contains, the value of a node inside
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
    """Judges `.cuda()` and `.cpu()`, with or without an argument. The idiom's text is the name of the function that
    returns the device: "xdevice.gpu" or "xdevice.cpu"."""
    is_known_form = use.keywords.keys() <= {"non_blocking", "device"} and len(use.args) <= 1
    if not is_known_form or use.has_stars:
        return OTHER_ARGUMENTS
    maker = use.idiom.text
    # the device is passed by position or by keyword, and may be left out
    device = use.args[0] if use.args else getattr(use.keywords.get("device"), "value", None)
    if device is None:
        return _to_default_device(use, maker)
    means = value_after_tests(device, use.module.parents)
    if is_only(means, DEVICES):
        return _judge_move(use, proven(_A_DEVICE, use.move_to(device)))
    if is_only(means, NUMBERS):
        return _judge_move(use, proven(_A_DEVICE, use.move_to(device, maker=maker)))
    # if the argument is an index or None, it is passed to the maker; if it is a device, it must
    # not be
    edits = use.move_to(device, maker=maker if is_only(means, (*NUMBERS, "none")) else "")
    return _judge_move(use, safe(_NO_DEVICE, edits))


def _to_default_device(use: Use, maker: str) -> Judgement:
    """Judges `.cuda()` and `.cpu()` that name no device. `maker` is the name of the function of
    xdevice that returns the device."""
    new = f"{maker}()"
    if maker == "xdevice.gpu" and use.sets_current_device:
        if not use.module.current_gpu_text:
            return MAY_BE_OTHER_GPU
        new = use.module.current_gpu_text
    # `x.cpu().numpy()` becomes a single read, for which the tensor does not have to be moved
    merged_with_read = _judge_before_read(use, use.node) if maker == "xdevice.cpu" else None
    if merged_with_read is not None:
        return merged_with_read
    # the device replaces everything from the dot up to `end`
    end, text = use.end - 1, new
    if use.keywords:
        [non_blocking] = use.keywords.values()  # stays, after the device
        end, text = use.span(non_blocking)[0], f"{new}, "
    return _judge_move(
        use, proven(_A_DEVICE, use.call_with_receiver("xdevice.to_device", end, text))
    )


def _judge_before_read(use: Use, node: ast.AST) -> Judgement | None:
    """Judges the `.cpu()` in `x.cpu().numpy()`. It is removed, because the new text for `.numpy()` reads from any
    device. Returns None if the result of `node` is not read in this way. Methods in `_SAME_ANYWHERE` may be called
    before the read."""
    attribute = use.module.parents.get(node)
    if not isinstance(attribute, ast.Attribute):
        return None
    name = attribute.attr
    # as in `x.cpu().data.numpy()`
    if name == "data":
        return _judge_before_read(use, attribute)
    call = use.module.parents.get(attribute)
    if not isinstance(call, ast.Call) or call.func is not attribute:
        return None
    if name in _SAME_ANYWHERE:
        return _judge_before_read(use, call)
    if name not in ("numpy", "item", "asnumpy") or call.args:
        return None
    # `.cpu()` may be removed only if the read is rewritten, so it gets the same judgement as
    # the read. A judgement without a grade rewrites nothing
    judgement_on_read = read(replace(use, node=call, idiom=METHODS[name]))
    if judgement_on_read.grade is None:
        return None
    edits = (use.edit(use.dot, use.end, ""),)
    return replace(
        judgement_on_read, why="the read around it works from any device", edits=edits
    )


def reset(use: Use) -> Judgement:
    """Judges `net.collect_params().reset_ctx(device)`, which moves MXNet's parameters in
    place."""
    if len(use.arguments) != 1:
        return left_open("only the form reset_ctx(device) is rewritten", "XD166")
    (device,) = use.arguments
    if not is_device(device):
        return left_open(
            "the argument is not proven to be one device; for several, use replicate", "XD151"
        )
    return proven(_A_MODEL, use.move_to(device))


def copy_to(use: Use) -> Judgement:
    """Judges `x.copyto(other)`. Depending on the argument, this method copies to a device, or
    into another array."""
    argument = use.only_argument
    if argument is None:
        return left_open("only the form copyto(device) is rewritten", "XD166")
    means = inferred(argument)
    if is_only(means, ("tensor", "array")):
        return Judgement("not a device", "copies into another array")
    if not is_only(means, DEVICES):
        return left_open("the argument may be an array to write into", "XD161")
    return proven("the argument is a device", use.move_to(argument, "xdevice.copy_to"))


def sync(use: Use) -> Judgement:
    """Judges `x.wait_to_read()` and `x.block_until_ready()`. `x.block_until_ready()` returns the
    array, but `sync` returns None."""
    if use.arguments:
        return OTHER_ARGUMENTS
    if not use.is_statement:
        return left_open("its result is used, but sync returns None", "XD163")
    return read(use)


def read(use: Use) -> Judgement:
    """Judges methods such as `x.numpy()` and `x.item()`, which return an array or a number on
    the host."""
    if use.args or use.keywords.keys() not in (set(), {"force"}):
        return OTHER_ARGUMENTS
    means, parent = inferred(use.receiver), use.parent
    if is_only(means, _HOST_KINDS):
        return _ON_HOST
    # `x.numpy()[0] = 1` changes the tensor if it is on the CPU, but would not change it if
    # `x.numpy()` became a copy
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        return _SHARED
    # only PyTorch's arrays share memory with their tensors
    is_shared = use.method == "numpy" and "torch" in use.module.frameworks
    if is_shared and Sharing(use.module.parents, use.full_name).is_noticed(use.node):
        return _SHARED
    if _is_scalar_in_tensorflow(use):
        return left_open(
            "TensorFlow returns a number or string here, but to_numpy returns a 0-d array",
            "XD165",
        )
    # `force=True` detaches the tensor, which `to_numpy` always does, so the argument is removed
    edits = use.call_with_receiver(use.idiom.text, use.end - 1, comma="")
    if means == TENSOR:
        return proven(_A_TENSOR, edits)
    if means == DECORDS_ARRAY:
        return Judgement("not a device", "a decord array, which is on the host")
    if use.method in ONLY_MXNET:
        others = use.module.other_arrays
        if others and "mxnet" not in use.module.frameworks:
            return Judgement(
                "not a device",
                f"a method of {min(others)} arrays; no framework in this file has it",
            )
        if means == GLUONS_OUTPUT or _is_mxnet_method(use):
            return proven("only MXNet arrays have this method", edits)
    # the receiver is known to be another object with a method of the same name
    if is_known(means) and not may_be(means, ("tensor", "result", "array")):
        return Judgement("not a device", "the receiver is not a tensor")
    return safe(
        "the receiver is not proven to be a tensor; for anything else, the replacement raises an error",
        edits,
        "XD162",
    )


def _is_scalar_in_tensorflow(use: Use) -> bool:
    """Whether the program uses the result of `x.numpy()` as bytes or as a key. In TensorFlow, this
    shows that the result is the number or the bytes of a scalar."""
    if "tensorflow" not in use.module.frameworks or use.method != "numpy":
        return False
    match use.parent:
        case ast.Subscript(value=indexed, slice=index):
            # `d[x.numpy()]`, unless an array is a valid index for d
            takes_arrays = is_only(
                inferred(indexed), ("tensor", "array", "list", "tuple", "str")
            )
            return index is use.node and not takes_arrays
        case ast.Attribute(attr=name):
            return name in ("decode", "startswith", "endswith", "split")
    return False


def _is_mxnet_method(use: Use) -> bool:
    """Whether the called method can only belong to an MXNet array. This is so if the module uses no
    other framework and no package in `OTHER_ARRAYS`, and no class of the project has a method of
    this name."""
    has_namesakes = use.method in use.module.inference.methods
    return (
        use.module.frameworks == {"mxnet"} and not has_namesakes and not use.module.other_arrays
    )


def read_as_list(use: Use) -> Judgement:
    """Judges `x.tolist()`, which becomes `to_numpy(x).tolist()`, because xdevice has no function that returns a
    list."""
    means = inferred(use.receiver)
    if is_only(means, _HOST_KINDS):
        return _ON_HOST
    if means != TENSOR or use.arguments:
        return left_open("the receiver is not proven to be a tensor", "XD162")
    start, dot = use.start, use.dot
    return proven(
        _A_TENSOR, (use.edit(start, start, "xdevice.to_numpy("), use.edit(dot, dot + 1, ")."))
    )
