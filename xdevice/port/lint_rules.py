"""The rules of lint. A rule reads only the syntax tree and the imports of one module.

`RULES` contains the meaning of each code, and whether its rule is enabled by default. A rule is
enabled by default if it cannot be wrong, or if it was right in at least 90 % of the places that
people checked (docs/reference/lint.md has the figures).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from .guards import guarded_by, is_chosen_by_release, last_name, tells_vendors_apart
from .project import imported_names
from .sources import PythonModule
from .values import TENSOR, inferred
from .words import ROWS

Found = Iterator[tuple[str, str] | tuple[str, str, ast.AST]]
"""The results of a rule for one node. Each result is a tuple of a code and a message. If `port`
would rewrite only an inner node, this node is the third item."""
_Check = Callable[["_View", Any], Found]


class Rule(NamedTuple):
    """The meaning of a code (`text`), and whether its rule runs by default (`is_default`)."""

    text: str
    is_default: bool


RULES: Final[dict[str, Rule]] = {
    "XD201": Rule("a clock is read without waiting for the work", False),
    "XD202": Rule("a vendor-specific or GPU-only device is named in a string", True),
    "XD203": Rule(
        "`.cuda()` without an index goes to the current GPU in a program with several GPUs",
        False,
    ),
    "XD204": Rule("a copy to the host can be read before it has arrived", False),
    "XD205": Rule(
        "torch.load without map_location needs the devices from which the file was saved", True
    ),
    "XD207": Rule(
        "waiting covers only the current GPU, although several GPUs are working", False
    ),
    "XD208": Rule("the host reads a value in every step and waits for the GPU", True),
    "XD209": Rule("in TensorFlow, assigning in a `with` block copies nothing", False),
    "XD211": Rule(
        "a device is recognized by part of its name, which other frameworks and vendors spell differently",
        False,
    ),
    "XD212": Rule("the result of a copy is thrown away", False),
    "XD214": Rule("CUDA_VISIBLE_DEVICES is set after the framework was imported", False),
    "XD217": Rule("a CUDA-only name that has a neutral replacement", True),
    "XD218": Rule("`.cuda()` moves to CUDA-only devices", True),
    "XD219": Rule("a CUDA-only name without a neutral replacement", True),
    "XD222": Rule("a function's default names a device", True),
    "XD224": Rule("`pin_memory()` raises an error without an accelerator", False),
    "XD401": Rule("a comment ignores nothing", True),
    "XD402": Rule("the host reads a value in some steps", False),
    "XD403": Rule("a test names vendor-specific devices", False),
}

_CUDA_NAME: Final = re.compile(
    r"(torch|paddle|paddle\.device)\.(cuda\.|CUDA|is_compiled_with_cuda)|tensorflow\.test\.is_built_with_cuda"
    r"|torch\.cuda$|torch\.profiler\.ProfilerActivity\.CUDA"
)
"""Matches the full names of CUDA-only functions, classes and modules."""

FIXED_BY_PORT: Final = {"XD202", "XD217", "XD218", "XD219"}
"""The codes of findings that disappear if `port` rewrites the expression. The edits of `port`
do not fix findings with other codes."""

# strings that name a GPU in any framework: "cuda:0", "/GPU:1", "device:gpu"
_GPU_TEXT: Final = re.compile(
    r"/?(?:device:)?(?:cuda|gpu|mps|xpu|npu|hip|rocm)(?::\d+)?", re.IGNORECASE
)
_VENDOR_TEXT: Final = re.compile(r"(?:cuda|mps|xpu|npu|hip)(?::\d+)?")
"""Matches strings that name a device in the arguments of any function. "gpu" is not included,
because it has a different meaning in other libraries, such as DALI."""
# functions whose first argument is a device
_TAKE_A_DEVICE: Final = {
    "torch.device",
    "torch.set_default_device",
    "torch.autocast",
    "torch.amp.autocast",
    "torch.amp.GradScaler",
    "paddle.set_device",
    "paddle.device.set_device",
    "tensorflow.device",
    "jax.devices",
    "jax.local_devices",
}
# keyword arguments whose value is a device
_DEVICE_KEYWORDS: Final = {"device", "device_type", "map_location", "place", "ctx"}
# names of variables and attributes that are assumed to be devices, so that their `.type` is the type of a device
_DEVICE_NAMES: Final = {"device", "context", "ctx", "place"}
# methods that read a tensor on the host
_READS: Final = {"item", "numpy", "asnumpy", "asscalar", "tolist"}
_WAITS: Final = _READS | {
    "synchronize",
    "waitall",
    "wait_to_read",
    "block_until_ready",
    "cpu",
    "sync",
    "print",
    "float",
    "hard_block",
}
"""The last names of functions and methods that wait for the device, or read its results."""
_SYNCHRONIZE: Final = {"torch.cuda.synchronize", "paddle.device.cuda.synchronize"}
# functions that return the time
_CLOCKS: Final = {
    "time.time",
    "time.perf_counter",
    "time.monotonic",
    "timeit.default_timer",
    "time.process_time",
}
_FOR_SEVERAL_GPUS: Final = {
    "DataParallel",
    "DistributedDataParallel",
    "device_ids",
    "local_rank",
    "try_all_gpus",
}
"""Names that suggest a program for several GPUs."""
_DEVICE_WORD: Final = re.compile(r"cuda|gpu|device|accelerator|mps|xpu|npu", re.IGNORECASE)
"""Matches names that suggest that a test is about devices."""
# the last names of functions and methods that start work on the device. The work may still be
# running when a clock is read afterwards
_WORK: Final = {"backward", "matmul", "mm", "dot", "step", "forward", "model", "net"}
# methods that return a moved tensor
_MOVES: Final = {"to", "cpu", "cuda", "as_in_ctx", "as_in_context"}
_DEVICE_TYPE: Final = ROWS['device.type == "cuda"']
_LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)
_BY_PART_OF_NAME: Final = (
    'this test recognizes a device by part of its name; use xdevice.device(...).kind == "gpu"'
)
_FRAMEWORKS: Final = {"torch", "tensorflow", "mxnet", "paddle", "jax"}
# TensorRT runs only on NVIDIA's GPUs
_TENSORRT: Final = re.compile("tensorrt|trt", re.IGNORECASE)
# the paths of test files
_TEST_FILE: Final = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*$|conftest\.py$)|_test\.py$")
_GUARDED: Final = {"XD202", "XD217", "XD218", "XD219", "XD403"}
"""The codes of findings that are merged into the finding for the test that guards them."""
# codes that are reported as XD403 in test files
_IN_TESTS: Final = {"XD202", "XD217", "XD218", "XD219", "XD222"}
_CONVENTIONS: Final = {"tf": "tensorflow", "jnp": "jax.numpy", "npx": "mxnet.npx"}
"""Usual short names of modules. They are recognized without an import, because the import may
be in another file, as in chapters of books."""


@dataclass(frozen=True)
class Hit:
    """A finding of a rule. `node` is the code that it is about, and `text` is the message. `part` is the node that
    `port` would rewrite: `node` itself, or a node inside it. If a test for one vendor's devices guards the node,
    `guard` is this test; otherwise, it is None. If the node is itself such a test, `guarded` are the nodes that are
    reached only if the test is true."""

    code: str
    node: ast.AST
    text: str
    part: ast.AST
    guard: ast.AST | None = None
    guarded: tuple[ast.AST, ...] = ()


def hits(module: PythonModule) -> Iterator[Hit]:
    """Yields the findings of all rules in a module, in no particular order."""
    view = _View(module)
    is_test = _TEST_FILE.search(module.source.path) is not None
    all_hits: list[Hit] = []
    for node in view.nodes:
        for rule in _BY_TYPE.get(type(node), ()):
            # some rules also yield the inner node that `port` would rewrite, so `parts` has at most one item
            for code, text, *parts in rule(view, node):
                # test files may name a device on purpose, so these findings have a separate
                # code, whose rule is disabled by default
                if is_test and code in _IN_TESTS:
                    code, text = "XD403", f"{text} (in a test)"
                all_hits.append(Hit(code, node, text, part=parts[0] if parts else node))
    # after all rules have run, because the tests that guard findings are findings themselves
    guards = _guards(view, all_hits)
    for hit in all_hits:
        if hit.code in _GUARDED:
            hit = replace(
                hit,
                guard=guards.get(hit.node),
                guarded=tuple(guarded_by(hit.node, view.parents)),
            )
        yield hit


def _guards(view: _View, all_hits: list[Hit]) -> dict[ast.AST, ast.AST]:
    """Returns a dict that maps each guarded node to its test. A node is guarded if it is
    reached only after a test that is itself a finding. If there are several such tests, the
    dict contains the outermost test."""
    guards: dict[ast.AST, ast.AST] = {}
    # outer nodes come first, and `setdefault` keeps the first test of a node, which is the outermost
    for hit in all_hits:
        if hit.code in _GUARDED:
            # if the test itself is guarded, the outer test that guards it is used
            outermost = guards.get(hit.node, hit.node)
            for guarded in guarded_by(hit.node, view.parents):
                for node in ast.walk(guarded):
                    guards.setdefault(node, outermost)
    return guards


class _View:
    """A module, prepared for the rules: its nodes and their parents, the full name of each imported name (`imports`),
    and all names that occur in the module (`words`)."""

    def __init__(self, module: PythonModule) -> None:
        self.module = module
        self.nodes, self.parents = module.nodes, module.parents
        self.imports: dict[str, str] = {}
        self.words: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Name | ast.Attribute | ast.keyword):
                self.words.add(last_name(node))
            elif isinstance(node, ast.Import):
                # `import a.b` binds `a`, and `import a.b as c` binds `c` to a.b
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imports[alias.asname or name] = name
            # relative imports are left out, because they never name a framework
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def full_name(self, node: ast.AST) -> str:
        """Returns the full name of an expression that begins with an imported name, such as
        "torch.cuda.is_available"; "" for any other expression."""
        match node:
            case ast.Name(id=name):
                return self.imports.get(name) or _CONVENTIONS.get(name, "")
            case ast.Attribute(value=owner, attr=name):
                base = self.full_name(owner)
                return f"{base}.{name}" if base else ""
        return ""

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yields the nodes around a node, from the innermost outwards, up to the function or class that contains the
        node. Each result is a pair of an outer node and its direct child. The child is `node` itself, or contains
        `node`.
        """
        while node in self.parents:
            child, node = node, self.parents[node]
            yield node, child
            if isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
            ):
                return

    def is_guarded(self, node: ast.AST) -> bool:
        """Whether a node is in a branch of an `if` or of a conditional expression whose test
        mentions devices."""
        for outer, child in self.above(node):
            match outer:
                case ast.If(test=test) | ast.IfExp(test=test) if (
                    child is not test and _speaks_of_devices(test)
                ):
                    return True
        return False

    def framework(self) -> str:
        """Returns the framework that the module imports; "" if it imports no framework, or
        several."""
        names = {name.partition(".")[0] for name in self.imports.values()} & _FRAMEWORKS
        return names.pop() if len(names) == 1 else ""


def _speaks_of_devices(test: ast.expr) -> bool:
    """Whether a name or a string in a test suggests that the test is about devices."""
    return any(_DEVICE_WORD.search(last_name(node)) for node in ast.walk(test))


def _device_text(node: ast.AST | None, pattern: re.Pattern[str] = _GPU_TEXT) -> str:
    """Returns the value of a node that is a string literal and matches `pattern`, by default
    the pattern for names of GPUs; "" for any other node."""
    match node:
        case ast.Constant(value=str(text)) if pattern.fullmatch(text):
            return text
    return ""


def _method(call: ast.Call) -> str:
    """Returns the last name of the called function if it is an attribute, such as a method or a
    function in a module. Returns "" for any other call."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _hard_coded(view: _View, call: ast.Call) -> Found:
    """Yields XD202 for an argument that is a string literal and names a device, unless the call
    is in a branch whose test mentions devices."""
    name = view.full_name(call.func)
    devices = [keyword.value for keyword in call.keywords if keyword.arg in _DEVICE_KEYWORDS]
    # `x.to("cuda")`, but not a module's function `to`
    if not name and _method(call) == "to":
        devices += call.args[:1]
    nodes = [device for device in devices if _device_text(device, _VENDOR_TEXT)]
    if name in _TAKE_A_DEVICE:
        nodes += [device for device in call.args[:1] if _device_text(device)]
    if not view.is_guarded(call):
        for node in nodes:
            text = _device_text(node)
            yield (
                "XD202",
                f'"{text}" is not available on every machine; use xdevice.try_gpu(), or make the device a parameter',
                node,
            )


def _collectives(view: _View, call: ast.Call) -> Found:
    """Yields XD217 for `init_process_group("nccl")`, which chooses collectives that work only
    on NVIDIA's GPUs."""
    # the name of the row in the table of words, which includes the argument
    name = 'torch.distributed.init_process_group("nccl")'
    if view.full_name(call.func) == name.partition("(")[0]:
        for node in [
            *call.args[:1],
            *(keyword.value for keyword in call.keywords if keyword.arg == "backend"),
        ]:
            if getattr(node, "value", None) == "nccl":
                yield "XD217", f'"nccl" is CUDA-only; use {ROWS[name].advice}', node


def _cuda_method(view: _View, call: ast.Call) -> Found:
    """Yields XD218 for `x.cuda()`, unless tests around the call distinguish between vendors.
    Also yields XD203 if the call has no arguments, and the module seems to use several GPUs,
    but does not contain the name `set_device`."""
    match call.func:
        # a receiver with a full name is a module, as in `tvm.cuda()`
        case ast.Attribute(attr="cuda", value=receiver) if not view.full_name(receiver):
            # code that has a branch for each vendor names CUDA on purpose
            if not tells_vendors_apart(call, view.parents):
                yield "XD218", f"`.cuda()` is CUDA-only; use {ROWS['x.cuda()'].advice}"
            if (
                _has_no_arguments(call)
                and view.words & _FOR_SEVERAL_GPUS
                and "set_device" not in view.words
            ):
                yield (
                    "XD203",
                    "`.cuda()` moves to the current GPU, which is the first GPU unless another was set; name the "
                    "device",
                )


def _has_no_arguments(call: ast.Call) -> bool:
    """Whether a call has no arguments."""
    return not call.args and not call.keywords


def _load(view: _View, call: ast.Call) -> Found:
    """Yields XD205 for `torch.load(file)` without `map_location`."""
    # None is the name of `**options`, which may contain map_location
    has_map_location = len(call.args) > 1 or any(
        keyword.arg in ("map_location", None) for keyword in call.keywords
    )
    if view.full_name(call.func) == "torch.load" and not has_map_location:
        yield (
            "XD205",
            'torch.load fails on a machine without the devices that the file names; use map_location="cpu"',
        )


def _early_copy(view: _View, call: ast.Call) -> Found:
    """Yields XD204 for `x.to("cpu", non_blocking=True)` and `x.cpu(non_blocking=True)`."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    target = call.args[0] if call.args else keywords.get("device")
    method = _method(call)
    if method != "cpu" and (method != "to" or getattr(target, "value", None) != "cpu"):
        return
    # `non_blocking=x` is taken to be true, unless x is the literal False
    if "non_blocking" in keywords and getattr(keywords["non_blocking"], "value", True):
        yield (
            "XD204",
            "the host may read this tensor before the copy is done; call xdevice.sync(x), or copy without non_blocking",
        )


def _waits_for_one_gpu(view: _View, call: ast.Call) -> Found:
    """Yields XD207 for `torch.cuda.synchronize()` in a module that seems to use several
    GPUs."""
    if (
        _has_no_arguments(call)
        and view.full_name(call.func) in _SYNCHRONIZE
        and view.words & _FOR_SEVERAL_GPUS
    ):
        yield (
            "XD207",
            "synchronize() waits only for the current GPU; use xdevice.sync(), which waits for all GPUs",
        )


def _host_read(view: _View, call: ast.Call) -> Found:
    """Yields XD208 for a call such as `x.item()` in a loop that trains a model. If the call is in an `if` inside the
    loop, yields XD402 instead."""
    # if the module imports no framework, `.item()` is a method of NumPy, which waits for
    # nothing
    if _method(call) not in _READS or call.args or not view.framework():
        return
    if isinstance(call.func, ast.Attribute) and _is_on_host(call.func.value):
        return
    code = "XD208"
    for outer, _ in view.above(call):
        if isinstance(outer, ast.If | ast.IfExp):
            code = "XD402"
        # only the innermost loop around the read is considered
        if isinstance(outer, _LOOPS):
            if _trains(outer):
                yield (
                    code,
                    f"`.{_method(call)}()` waits for the GPU; add up values on the device, and read the sum less often",
                )
            return


def _is_on_host(node: ast.expr) -> bool:
    """Whether the value of an expression is already on the host, because a call inside the expression has read it, as
    in `x.numpy().tolist()`."""
    return any(
        isinstance(inner, ast.Call) and _method(inner) in _READS for inner in ast.walk(node)
    )


def _trains(loop: Any) -> bool:
    """Whether the body of a loop contains a backward pass. Inner loops and functions are ignored."""
    waiting: list[ast.AST] = list(loop.body)
    for node in waiting:  # the list grows during the loop
        # skip inner loops and functions, with everything in them
        if isinstance(node, (*_LOOPS, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.Call) and _method(node) in (
            "backward",
            "gradient",
            "apply_gradients",
        ):
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def _thrown_away(view: _View, statement: ast.Expr) -> Found:
    """Yields XD212 for `x.to(d)` as a statement, which has no effect if x is a tensor. This is
    the only rule that needs the values of expressions, which the engine infers."""
    match statement.value:
        case ast.Call(func=ast.Attribute(attr=method, value=receiver)) if method in _MOVES:
            # if the inference has not run, nothing is known about the receiver, and nothing is
            # reported
            if inferred(receiver) == TENSOR:
                yield (
                    "XD212",
                    f"`.{method}()` returns a new tensor, and does not move the original tensor; use the result",
                )


def _name_of_vendor(view: _View, node: ast.Attribute | ast.Name) -> Found:
    """Yields XD217 for a CUDA-only name that has a vendor-neutral replacement, and XD219 for a CUDA-only name that has
    no replacement."""
    name = view.full_name(node)
    is_property = last_name(node) == "is_cuda" and isinstance(node, ast.Attribute)
    # a name that is assigned to, or is in an annotation, needs no GPU, and code that has a
    # branch for each vendor names CUDA on purpose
    if (
        not isinstance(node.ctx, ast.Load)
        or _is_annotation(view, node)
        or tells_vendors_apart(node, view.parents)
    ):
        return
    if is_property and not _is_on_purpose(view, node):
        yield (
            "XD217",
            f"is_cuda is false for tensors on other vendors' GPUs; use {ROWS['x.is_cuda'].advice}",
        )
    # in `torch.cuda.amp.autocast`, only the whole name is reported, and not `torch.cuda.amp`
    elif _CUDA_NAME.match(name) and not isinstance(view.parents.get(node), ast.Attribute):
        if (
            isinstance(parent := view.parents.get(node), ast.Call)
            and last_name(parent.func) == "hasattr"
        ):
            return  # `hasattr(torch.cuda, "x")` tests which names this release of PyTorch has
        row = ROWS.get(name)
        if row is None:
            yield "XD219", f"{name} is CUDA-only, and xdevice has no neutral replacement for it"
        else:
            # `advice` is either the word to use, which follows "use", or the reason why there
            # is no word
            has_word = bool(row.xdevice or row.accelerator)
            if not has_word:
                yield "XD219", f"{name} is CUDA-only; {row.advice}"
            elif not _is_on_purpose(view, node):
                yield "XD217", f"{name} is CUDA-only; use {row.advice}"


def _is_on_purpose(view: _View, node: ast.AST) -> bool:
    """Whether code names CUDA on purpose. This is assumed if the path of the file, or the name of a class around the
    code, contains "cuda". It is also assumed in setup.py, which decides what to build, and in code inside tests that
    check a release or name other vendors.
    """
    path = view.module.source.path
    names, inner = [path], node
    while inner in view.parents:
        inner = view.parents[inner]
        if isinstance(inner, ast.ClassDef):
            names.append(inner.name)
    is_named = any("cuda" in name.lower() for name in names) or path.endswith("setup.py")
    parents = view.parents
    return is_named or is_chosen_by_release(node, parents) or tells_vendors_apart(node, parents)


def _is_annotation(view: _View, node: ast.AST) -> bool:
    """Whether a name is in an annotation, which needs no GPU."""
    # go up through `Optional[x]`, `x | None` and the like
    parent = view.parents[node]
    while isinstance(parent, ast.Subscript | ast.BinOp | ast.Tuple):
        node, parent = parent, view.parents[parent]
    # the type of a parameter or variable, or the type that a function returns
    return node in (getattr(parent, "annotation", None), getattr(parent, "returns", None))


def _compare(view: _View, node: ast.Compare) -> Found:
    """Yields XD217 for `device.type == "cuda"`, and XD211 for `"cuda" in device`, which
    recognizes a device by part of its name."""
    match node:
        case (
            ast.Compare(
                left=ast.Attribute(attr="type", value=owner),
                ops=[ast.Eq() | ast.NotEq()],
                comparators=[ast.Constant(value="cuda")],
            )
            | ast.Compare(
                left=ast.Constant(value="cuda"),
                ops=[ast.Eq() | ast.NotEq()],
                comparators=[ast.Attribute(attr="type", value=owner)],
            )
        ):
            if last_name(owner) in _DEVICE_NAMES and not _is_on_purpose(view, node):
                yield "XD217", f'"cuda" is a CUDA-only type; use {_DEVICE_TYPE.advice}'
        case ast.Compare(left=left, ops=[ast.In()], comparators=[right]):
            if _device_text(left) and "device" in last_name(right):
                yield "XD211", _BY_PART_OF_NAME


def _ends_with(view: _View, call: ast.Call) -> Found:
    """Yields XD211 for `device.startswith("cuda")` and `device.endswith("cuda")`."""
    match call:
        case ast.Call(
            func=ast.Attribute(attr="startswith" | "endswith", value=owner), args=[prefix, *_]
        ):
            if _device_text(prefix) and "device" in last_name(owner):
                yield "XD211", _BY_PART_OF_NAME


def _copies_nothing(view: _View, node: ast.With) -> Found:
    """Yields XD209 for `with tf.device(...): y = x`, which does not copy, although the author
    probably expects a copy."""
    match node.body:
        case [ast.Assign(value=ast.Name())] if view.framework() == "tensorflow":
            scope = node.items[0].context_expr
            name = last_name(scope.func if isinstance(scope, ast.Call) else scope)
            if re.search("device|gpu|cpu", name):
                yield (
                    "XD209",
                    "this only gives the tensor a second name, and copies nothing; use xdevice.to_device(x, device)",
                )


def _too_late(view: _View, node: ast.Assign) -> Found:
    """Yields XD214 for `os.environ["CUDA_VISIBLE_DEVICES"] = ...` below the import of a
    framework, which may already have read the variable."""
    match node.targets[0]:
        case ast.Subscript(value=owner, slice=ast.Constant(value="CUDA_VISIBLE_DEVICES")):
            if view.full_name(owner) != "os.environ":
                return
            # nodes without a line are ignored
            nodes_above = (
                above
                for above in view.nodes
                if getattr(above, "lineno", node.lineno) < node.lineno
            )
            names = {
                name.partition(".")[0]
                for above in nodes_above
                for name in imported_names(above, view.module)
            }
            # [:1]: report only one finding, even if several frameworks were imported
            for name in sorted(names & _FRAMEWORKS)[:1]:
                yield (
                    "XD214",
                    f"{name} was imported earlier, and may have read the variable; set the variable before the import",
                )


def _time(view: _View, node: ast.BinOp) -> Found:
    """Yields XD201 for `clock() - start` after work on the device, if no call in between waits
    for the device. Modules that import TensorFlow, several frameworks or none are left out."""
    match node:
        case ast.BinOp(left=ast.Call(func=clock), op=ast.Sub(), right=ast.Name(id=start)):
            if view.full_name(clock) not in _CLOCKS or view.framework() in ("", "tensorflow"):
                return
            measured = [
                inner
                for statement in _statements_since(view, node, start)
                for inner in ast.walk(statement)
            ]
            called = {
                last_name(inner.func) for inner in measured if isinstance(inner, ast.Call)
            }
            if called & _WORK and not called & _WAITS:
                yield (
                    "XD201",
                    "the device may still be busy when the clock is read; use xdevice.Timer, or xdevice.sync() first",
                )


def _statements_since(view: _View, node: ast.AST, name: str) -> list[ast.stmt]:
    """Returns the statements between the last assignment to `name`, which starts the measurement,
    and the statement that contains `node`. Both statements must be in the same block of the same
    function. Returns an empty list if there is no such assignment."""
    for outer, child in view.above(node):
        body = getattr(outer, "body", None)
        if not isinstance(body, list) or child not in body:
            continue
        end = body.index(child)
        for start in reversed(range(end)):
            if (
                isinstance(body[start], ast.Assign)
                and last_name(body[start].targets[0]) == name
            ):
                return body[start + 1 : end]
    return []


def _default_device(view: _View, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Found:
    """Yields XD222 for `def f(device="cuda")`, except in code for TensorRT, which runs only on
    NVIDIA's GPUs."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        # defaults belong to the last positional parameters
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        text = _device_text(default)
        # the value of a parameter such as `device_type` is not a device, but the type of a
        # device, which autocast needs
        is_device = "device" in argument.arg and "type" not in argument.arg
        if (
            text
            and default is not None
            and is_device
            and not _TENSORRT.search(f"{view.module.source.path} {function.name}")
        ):
            yield (
                "XD222",
                f'the default "{text}" fails on other machines; default to None, and choose the device inside the '
                f"function",
                default,
            )


def _pinned(view: _View, call: ast.Call) -> Found:
    """Yields XD224 for `x.pin_memory()`, unless the call is in a branch whose test mentions
    devices."""
    if _method(call) == "pin_memory" and _has_no_arguments(call) and not view.is_guarded(call):
        yield (
            "XD224",
            f"`.pin_memory()` fails without an accelerator; first check {ROWS['torch.cuda.is_available'].advice}",
        )


# maps each class of nodes to its rules
_BY_TYPE: Final[dict[type, tuple[_Check, ...]]] = {
    ast.Call: (
        _hard_coded,
        _collectives,
        _cuda_method,
        _load,
        _early_copy,
        _waits_for_one_gpu,
        _host_read,
        _ends_with,
        _pinned,
    ),
    ast.Attribute: (_name_of_vendor,),
    ast.Name: (_name_of_vendor,),
    ast.Compare: (_compare,),
    ast.With: (_copies_nothing,),
    ast.Assign: (_too_late,),
    ast.BinOp: (_time,),
    ast.Expr: (_thrown_away,),
    ast.FunctionDef: (_default_device,),
    ast.AsyncFunctionDef: (_default_device,),
}
