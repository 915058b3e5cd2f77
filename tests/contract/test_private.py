"""What the adapters replace in their frameworks, and the private names they use, is what their `private.py` says."""

from __future__ import annotations

import ast
import ctypes
import sys
import types
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import pytest
from helpers.environment import ROOT, WITH_MODELS, printed, sampled

import xdevice
from xdevice.contract.private import dotted_names, has_name
from xdevice.contract.private import look_up as found

BACKENDS = [
    name
    for name in xdevice.backends()
    if (ROOT / f"backends/xdevice_{name}/private.py").exists()
]
PAGE = ROOT / "docs/reference/private.md"
PRIVATE_MODULES = ("tensorflow.python", "keras.src", "paddle.base")
"""Modules without an underscore that their frameworks do not document."""
ASKING = {f"private.{method}" for method in ("get", "has", "field", "place")}
WITH_OPERATIONS = ("torch", "tensorflow", "paddle", "jax")
WITH_GRADIENTS = ("torch", "paddle")
"""Their gradients are ready one by one in a backward pass."""
REPLACED_BY_ITS_OWN = {
    "torch.cuda.device",
    "torch.cuda.memory_allocated",
    "torch.cuda.max_memory_allocated",
}
"""Replaced by a class or function of PyTorch in another module, and not by one of xdevice."""
KEPT_BY_DYNAMO = {
    ("torch._dynamo.device_interface", "current_device"),
    ("torch._dynamo.variables.ctx_manager", "_exchange_fn"),
    ("torch._dynamo.variables.ctx_manager", "_maybe_exchange_fn"),
}
"""Attributes of classes of torch._dynamo, which is imported meanwhile and keeps the functions that it finds."""
OF_PYTHON = {"_replace", "_asdict", "_make", "_fields", "_obj", "_getframe", "_fields_"}
OF_CTYPES = {"_name"}


ONLY = {
    "": "",
    "CUDA": " (in a build with CUDA)",
    "virtual GPUs": " (with virtual GPUs)",
    "older": " (in older versions)",
    "newer": " (in newer versions)",
}


@pytest.fixture(params=BACKENDS)
def inventory(request):
    return inventory_of(request.param)


def inventory_of(name):
    xdevice.backend(name)  # imports the framework as it must be
    return import_module(f"xdevice_{name}.private")


def patches(inventory):
    return (*inventory.IN_BLOCKS, *inventory.FOR_GOOD)


def is_promised(row):
    """Whether the framework that is installed must have the names of a row."""
    if row.only == "CUDA":
        framework = import_module(row.owner.partition(".")[0])
        is_built = (
            framework.backends.cuda.is_built
            if framework.__name__ == "torch"
            else framework.is_compiled_with_cuda
        )
        return is_built()
    return row.only in ("", "newer")


def test_the_framework_has_each_name(inventory):
    rows = filter(is_promised, (*patches(inventory), *inventory.PRIVATE))
    assert not [name for row in rows for name in dotted_names(row) if not has_name(name)]


def test_private_names_are_read_by_the_list_and_nowhere_else(inventory):
    folder = Path(inventory.__file__).parent
    assert stray_names(folder) == set(), (
        'list them in private.py, and read them as private["owner.name"]'
    )
    asked = {name for tree in trees(folder) for name in asked_for(tree)}
    listed = {name for row in inventory.PRIVATE for name in dotted_names(row)}
    patched = {name for row in patches(inventory) for name in dotted_names(row)}
    assert asked - listed - patched == set(), "list them in private.py"
    assert listed - asked == set(), "private.py lists names that nothing reads"


def trees(folder):
    files = (path for path in folder.rglob("*.py") if path.name != "private.py")
    return [ast.parse(path.read_text(encoding="utf-8")) for path in files]


def asked_for(tree):
    """The names in `private["owner.name"]`, and in calls of the methods of `private`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "private":
            yield node.slice.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ASKING:
            yield node.args[0].value


def own_names(folder):
    nodes = [node for tree in trees(folder) for node in ast.walk(tree)]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return names | {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def stray_names(folder):
    """The names of others in an adapter's source that begin with an underscore, or come from a private module."""
    names = set()
    for node in (node for tree in trees(folder) for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "getattr",
            "hasattr",
            "setattr",
            "attrgetter",
        ):
            names.update(
                x.value
                for x in node.args
                if isinstance(x, ast.Constant) and isinstance(x.value, str)
            )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(alias.name for alias in node.names)
    imported = {
        alias.name
        for tree in trees(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and is_private(node.module)
        for alias in node.names
    }
    own = own_names(folder) | OF_PYTHON | OF_CTYPES
    return imported | {
        x for x in names if x[:1] == "_" and x[:2] not in ("__", "_Z", "_") and x not in own
    }


def is_private(module):
    parts = module.split(".")
    return any(part[0] == "_" and part != "__future__" for part in parts) or module.startswith(
        PRIVATE_MODULES
    )


@pytest.mark.parametrize(
    "name",
    sampled(
        BACKENDS, each_time=["numpy"], slow=["torch", "paddle", "mxnet", "jax"], others="long"
    ),
)
def test_what_is_replaced_at_run_time_is_listed_and_put_back(name):
    folders = [str(Path(__file__).parent), str(ROOT / "tests")]
    code = f"import sys; sys.path[:0] = {folders!r}; import test_private; test_private.compare({name!r})"
    printed("-W", "ignore", "-c", code, XDEVICE_VIRTUAL_GPUS="2:no_float64,memory=1GB")


def compare(name):
    """In a process of its own, where GPUs are virtual and have limits, for which more is replaced."""
    inventory = inventory_of(name)
    rows = patches(inventory)
    backend = xdevice.backend(name)
    if name == "torch":
        backend.framework.vgpu.set_device(1)
    before = {path: found(path) for path in REPLACED_BY_ITS_OWN if path.startswith(f"{name}.")}
    backend.take_for_cuda(xdevice.gpu(1))
    assert [path for path, value in before.items() if found(path) is value] == []
    with ExitStack() as stack:
        stack.enter_context(backend.watch(lambda transfer: None))
        stack.enter_context(backend.blocking())
        stack.enter_context(backend.thread_state()())
        if name == "tensorflow":
            stack.enter_context(backend.calls(backend.samples().network(3, 1)))
        if name in WITH_GRADIENTS:
            stack.callback(backend.watch_gradients([], lambda *_: None))
        if name in WITH_OPERATIONS:
            stack.enter_context(
                backend.operation_calls(lambda name, arguments, go, *_: go(), lambda *_: None)
            )
        if (
            name in WITH_MODELS and name != "tensorflow"
        ):  # a network of PyTorch's imports torch._dynamo, which keeps what is replaced
            stack.enter_context(backend.outermost(lambda *_: None))
        inside = replaced(backend)
    require_listed(inside, rows)
    require_replaced(inside, rows)
    require_listed(replaced(backend), inventory.FOR_GOOD)


def require_listed(things, rows):
    unlisted = {
        f"{getattr(owner, '__module__', '')} {owner!r}.{name}"
        for owner, name in things
        if not any(is_row(row, owner, name) for row in rows)
    }
    assert not unlisted, sorted(unlisted)[:9]


def require_replaced(things, rows):
    left = [
        f"{row.owner}.{name}"
        for row in rows
        for name in row.names
        if name != "*" and callable(getattr(found(row.owner), name, None))
        if not any(
            is_row(row, owner, replaced) and replaced == name for owner, replaced in things
        )
    ]
    listed = {f"{row.owner}.{name}" for row in rows for name in row.names}
    assert set(left) == REPLACED_BY_ITS_OWN & listed, left


def is_row(row, owner, name):
    if name not in row.names and "*" not in row.names:
        return False
    listed = found(row.owner)
    if isinstance(listed, type):
        return isinstance(owner, type) and issubclass(owner, listed)
    return owner is listed


def replaced(backend):
    """The attributes of a framework's modules, classes and libraries that are functions of xdevice's."""
    owners = {}
    roots = {*backend.modules, "numpy"}
    waiting = [
        m
        for key, m in list(sys.modules.items())
        if key.partition(".")[0] in roots and m is not None
    ]
    while waiting:
        owner = waiting.pop()
        if id(owner) in owners:
            continue
        owners[id(owner)] = owner
        inside = list(vars(owner).values())
        waiting += [
            value for value in inside if isinstance(value, ctypes.CDLL) or home(value) in roots
        ]
    return [
        (owner, name)
        for owner in owners.values()
        for name, value in list(vars(owner).items())
        if is_ours(value) and (getattr(owner, "__module__", ""), name) not in KEPT_BY_DYNAMO
    ]


def home(value):
    """The package of a module or a class; none of what only stands for a module."""
    if issubclass(type(value), types.ModuleType):
        return str(vars(value).get("__name__", "")).partition(".")[0]
    return (
        str(getattr(value, "__module__", "")).partition(".")[0]
        if issubclass(type(value), type)
        else ""
    )


def is_ours(value):
    if isinstance(value, property):
        return any(map(is_ours, (value.fget, value.fset, value.fdel)))
    if isinstance(value, partial):
        return is_ours(value.func)
    inner = (
        value.__func__
        if isinstance(value, staticmethod | classmethod | types.MethodType)
        else value
    )
    if isinstance(inner, types.FunctionType):
        # wraps() gives it another __module__
        return str(inner.__globals__.get("__name__")).startswith("xdevice")
    cls = type(value)
    return str(cls.__module__).startswith("xdevice") and callable(value)


def test_each_name_has_its_reason(inventory):
    assert not [line for line, reason in reasons(inventory) if not reason], (
        "say why in a comment above the row"
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_the_page_says_what_the_inventory_says(name):
    assert section(name) in PAGE.read_text(encoding="utf-8"), (
        "python -c 'import test_private; test_private.write()'"
    )


def reasons(inventory):
    """The comment above each row of an inventory, by the line on which the row begins."""
    text = Path(inventory.__file__).read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Private":
            above = takewhile(
                lambda line: line.startswith("    # "), reversed(lines[: node.lineno - 1])
            )
            yield node.lineno, " ".join(line[6:] for line in reversed([*above]))


def section(name):
    rows = inventory_of(name)
    why = (reason for _, reason in sorted(reasons(rows)))  # patches first, as in the file
    lines = [f"<!-- {name} -->", "| replaced | by | until | why |", "|---|---|---|---|"]
    for end, table in (
        ("the last block ends", rows.IN_BLOCKS),
        ("the process ends", rows.FOR_GOOD),
    ):
        lines += [
            f"| {listed(row)} | {row.capability} | {end} | {next(why)} |" for row in table
        ]
    lines += ["", "| private | needed by | why |", "|---|---|---|"]
    for row in rows.PRIVATE:
        lines.append(f"| {listed(row)} | {row.capability} | {next(why)} |")
    return "\n".join(lines) + f"\n<!-- /{name} -->"


def listed(row):
    names = "all functions" if row.names == ("*",) else f"`{' '.join(row.names)}`"
    return f"`{row.owner}`: {names}{ONLY[row.only]}"


def write():
    text = PAGE.read_text(encoding="utf-8")
    for name in BACKENDS:
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        text = text.partition(begin)[0] + section(name) + text.partition(end)[2]
    PAGE.write_text(text, encoding="utf-8")
