"""Takes the private names of a framework away, one in each process, and reports what a program notices:

    python tests/contract/absent_names.py torch                          # every name
    python tests/contract/absent_names.py torch torch._C._is_tracing     # this one

Prints one line of JSON for each name: the steps that noticed, and those at fault. The framework is imported once, and
each name is tried in a fork, because most names cannot be deleted from a framework, which needs them itself:
`taken_away` hides them from the adapter only.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SECONDS = 120
NEEDS_VIRTUAL_GPUS = {
    "paddle": ("virtual GPUs", "tensors", "models", "optimizers"),
    "tensorflow": ("virtual GPUs", "tensors", "models", "waiting"),
}
"""What is tried with virtual GPUs too: on the CPU, these two move nothing."""

REFUSALS = ("AbsentNameError", "UnsupportedError", "ContainerError")
"""The last one says what a container was refused with."""

Steps = dict[str, tuple[str, Callable[[Any], Any]]]


# the steps of a program, each with the capability that it may be refused for


def verbs(xd: Any) -> Any:
    device = xd.try_gpu()
    x = xd.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    y, z = xd.to_device(x, device), xd.copy_to(x, "cpu")
    xd.sync()
    return (
        str(xd.device_of(z)),
        y is x,
        z is x,
        xd.same_device([x, y]),
        xd.to_numpy(x).tolist(),
        xd.item(x[0, 1]),
    )


def containers(xd: Any) -> Any:
    target = xd.try_all_gpus()[-1]
    batch = xd.to_device({"x": xd.ones(2, 3), "y": [xd.zeros(2), 3]}, target)
    copied = xd.copy_to(batch, "cpu")
    return [str(xd.device_of(one)) for one in (batch["x"], copied["y"][0])], xd.to_numpy(
        copied["x"]
    ).tolist()


def models(xd: Any) -> Any:
    net = network(xd)
    copied = xd.copy_to(net, "cpu")
    moved = xd.to_device(net, elsewhere(xd))
    return (
        xd.same_device(moved),
        str(xd.device_of(moved)),
        [numbers(xd, forward(xd, one)) for one in (copied, moved)],
    )


def conversion(xd: Any) -> Any:
    array = xd.convert(xd.tensor([1.0, 2.0]), "numpy")
    return array.tolist(), numbers(xd, xd.convert(array, xd.backend().name))


def random_numbers(xd: Any) -> Any:
    with xd.random.seed(0):
        drawn = xd.random.normal(4), xd.random.permutation(5), xd.random.uniform(2)
    return [numbers(xd, x) for x in drawn]


def readme(xd: Any) -> Any:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text.partition("\n## Example\n")[2].partition("```python\n")[2].partition("```")[0]
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    return printed.getvalue()


def gradients(xd: Any) -> Any:
    loss, gradient = xd.math.value_and_grad(lambda p: xd.array_namespace(p).sum(p * p))(
        xd.tensor([1.0, 2.0])
    )
    return numbers(xd, loss), numbers(xd, gradient)


def functions(xd: Any) -> Any:
    x = xd.tensor([[-1.0, 2.0], [0.5, 3.0]])
    return [
        numbers(xd, y)
        for y in (xd.nn.relu(x), xd.nn.softmax(x), xd.nn.cross_entropy(x, xd.tensor([0, 1])))
    ]


def arithmetic(xd: Any) -> Any:
    x = xd.tensor([[2.0, 1.0], [1.0, 3.0]])
    xp = xd.array_namespace(x)
    return [
        numbers(xd, y)
        for y in (xp.matmul(x, x), xp.sort(x), xp.cumulative_sum(x, axis=0), xp.linalg.inv(x))
    ]


def compiled(xd: Any) -> Any:
    def loss(x: Any) -> Any:
        return xd.array_namespace(x).sum(xd.nn.relu(x) * 2)

    step = xd.compile(loss)
    return [numbers(xd, step(xd.tensor([-1.0, 2.0]))) for _ in range(2)]


def transfers(xd: Any) -> Any:
    x = xd.tensor([1.0, 2.0], device=xd.try_all_gpus()[-1])
    with xd.transfers() as seen:
        float(x[0])
        xd.copy_to(x, "cpu")
    return len(list(seen)) > 0


def blocking(xd: Any) -> Any:
    with xd.accelerator.blocking():
        return numbers(xd, xd.ones(2) + 1)


def streams(xd: Any) -> Any:
    with xd.accelerator.Stream(xd.try_gpu()):
        x = xd.ones(2) + 1
    xd.sync()
    return numbers(xd, x)


def graphs(xd: Any) -> Any:
    x = xd.ones(2)
    return type(xd.accelerator.make_graphed_callable(lambda: x + 1)).__name__


def side_by_side(xd: Any) -> Any:
    return [
        numbers(xd, x) for x in xd.parallel.run(lambda: xd.ones(2) + 1, lambda: xd.zeros(2) + 1)
    ]


def prefetched(xd: Any) -> Any:
    source = [{"x": xd.ones(2)}, {"x": xd.zeros(2)}]
    return [numbers(xd, batch["x"]) for batch in xd.prefetch(source, xd.try_all_gpus()[-1])]


def saved(xd: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        xd.save(path, network(xd))
        return sorted((name, numbers(xd, x)) for name, x in xd.load(path).items())


def layers(xd: Any) -> Any:
    net = network(xd)
    if isinstance(net, dict):
        return None
    xd.assert_parity(net, net, inputs=xd.ones(2, 3))
    state = xd.models.convert_state(net, xd.backend().name, like=net)
    return state.unmapped, [str(line) for line in state.differences]


def calls_of_layers(xd: Any) -> Any:
    net = network(xd)
    if isinstance(net, dict):
        return None
    with xd.parity.capture_intermediates(net) as traced:
        forward(xd, net)
    return len(list(traced.calls))


def operations(xd: Any) -> Any:
    names: list[str] = []

    def run(name: str, arguments: Any, go: Any, *_: Any) -> Any:
        names.append(name)
        return go()

    if xd.backend().name in ("numpy", "mxnet"):  # which show none
        return None
    net = network(xd)
    with xd.backend().operation_calls(run, lambda *_: None):
        forward(xd, net)
    return bool(names)


def optimizers(xd: Any) -> Any:
    net, optimizer, step = trained(xd)
    step()
    xd.to_device((net, optimizer), elsewhere(xd))
    step()
    return xd.same_device((net, optimizer)), numbers(xd, forward(xd, net))


def state_of_optimizers(xd: Any) -> Any:
    (net, optimizer, step), (twin, fresh, _) = trained(xd), trained(xd)
    if isinstance(net, dict):
        return None
    step()
    state = xd.models.convert_state(net, xd.backend().name, like=twin)
    xd.models.convert_optimizer(optimizer, fresh, state, models=(net, twin))
    return [str(line) for line in xd.models.compare_optimizers(optimizer, fresh)]


def deterministic(xd: Any) -> Any:
    with xd.math.deterministic() as lacking:
        return lacking, numbers(xd, xd.ones(2) * 2)


def replicas(xd: Any) -> Any:
    devices = xd.try_all_gpus()
    parts = xd.split_batch(xd.tensor([[1.0], [2.0], [3.0], [4.0]]), devices)
    total = xd.parallel.all_reduce([xd.ones(2, device=device) for device in devices])
    return numbers(xd, xd.parallel.gather(parts, "cpu")), [numbers(xd, x) for x in total]


STEPS: Steps = {
    "verbs": ("tensors", verbs), "containers": ("containers", containers), "models": ("models", models),
    "conversion": ("conversion", conversion), "random numbers": ("random numbers", random_numbers),
    "README": ("tensors", readme),
    "gradients": ("gradients", gradients), "nn": ("nn", functions), "arithmetic": ("arithmetic", arithmetic),
    "compile": ("compile", compiled), "transfers": ("transfers", transfers), "blocking": ("blocking", blocking),
    "streams": ("streams", streams), "graphs": ("graphs", graphs), "parallel": ("parallel", side_by_side),
    "prefetch": ("prefetch", prefetched), "saving": ("saving", saved), "layers": ("layers", layers),
    "calls of layers": ("layers' calls", calls_of_layers), "operations": ("operations", operations),
    "optimizers": ("optimizers", optimizers),
    "state of optimizers": ("optimizers", state_of_optimizers), "replicas": ("replicas", replicas),
    "deterministic": ("deterministic", deterministic),
}  # fmt: skip


# what the frameworks' own programs say


def network(xd: Any) -> Any:
    """A model of the framework with the weight 0.5 and the bias 0.25, from 3 to 2 features."""
    made = {"torch": _torch, "tensorflow": _keras, "paddle": _paddle, "mxnet": _gluon}.get(
        xd.backend().name
    )
    return made(xd) if made else {"weight": xd.ones(3, 2) * 0.5, "bias": xd.ones(2) * 0.25}


def _torch(xd: Any) -> Any:
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    torch.nn.init.constant_(net[0].weight, 0.5)
    torch.nn.init.constant_(net[0].bias, 0.25)
    return net


def _keras(xd: Any) -> Any:
    import keras

    net = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones", activation="relu")]
    )
    net.layers[0].kernel.assign(net.layers[0].kernel * 0.5)
    net.layers[0].bias.assign(net.layers[0].bias + 0.25)
    return net


def _paddle(xd: Any) -> Any:
    import paddle

    constant = paddle.nn.initializer.Constant
    linear = paddle.nn.Linear(3, 2, weight_attr=constant(0.5), bias_attr=constant(0.25))
    return paddle.nn.Sequential(linear, paddle.nn.ReLU())


def _gluon(xd: Any) -> Any:
    import mxnet as mx

    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, in_units=3, activation="relu", weight_initializer="ones"))
    net.initialize()
    net[0].weight.set_data(net[0].weight.data() * 0.5)
    net[0].bias.set_data(net[0].bias.data() + 0.25)
    return net


def forward(xd: Any, net: Any) -> Any:
    x = xd.ones(2, 3, device=xd.device_of(net))
    if not isinstance(net, dict):
        return net(x)
    xp = xd.array_namespace(x)
    return xp.matmul(x, net["weight"]) + net["bias"]


def elsewhere(xd: Any) -> Any:
    """The last device; without GPUs the CPU, of which MXNet has several."""
    last = xd.try_all_gpus()[-1]
    return xd.cpu(1) if last.kind == "cpu" and xd.backend().name == "mxnet" else last


def trained(xd: Any) -> Any:
    """A model, an optimizer of the framework, and a function that makes one step."""
    net, name = network(xd), xd.backend().name
    if name == "torch":
        import torch

        optimizer = torch.optim.Adam(net.parameters())
        return net, optimizer, lambda: (forward(xd, net).sum().backward(), optimizer.step())
    if name == "tensorflow":
        import keras

        optimizer = keras.optimizers.Adam()
        optimizer.build(net.trainable_variables)
        return net, optimizer, lambda: None
    if name == "paddle":
        import paddle

        optimizer = paddle.optimizer.Adam(parameters=net.parameters())
        return net, optimizer, lambda: (forward(xd, net).sum().backward(), optimizer.step())
    if name == "mxnet":
        import mxnet as mx

        trainer = mx.gluon.Trainer(net.collect_params(), "adam")

        def step() -> None:
            with mx.autograd.record():
                loss = forward(xd, net).sum()
            loss.backward()
            trainer.step(1)

        return net, trainer, step
    return net, {"mean": xd.zeros(2)}, lambda: None  # JAX's optimizers are containers


def numbers(xd: Any, x: Any) -> Any:
    return [round(float(value), 4) for value in xd.to_numpy(x).ravel()]


# one name in one process


def outcomes(backend: str, dotted: str | None) -> dict[str, Any]:
    """Each step and what came of it without this name: ["gives", numbers] or ["raises", error, text]. Also what
    `xdevice info` would list as lacking, and the errors of loading."""
    from xdevice.contract import private as contract

    if dotted:
        contract.taken_away.add(dotted)
    import xdevice

    results: dict[str, Any] = {}
    for name, (_, step) in STEPS.items():
        results[name] = outcome(step, xdevice)
    for name, (_, step) in own_steps(backend).items():
        results[name] = outcome(step, xdevice)
    names = import_module(f"xdevice_{backend}.private").private
    promised = {
        name
        for row in names.rows
        for name in contract.dotted_names(row)
        if row.only in ("", "newer")
    }
    lacking = names.lacking()
    results["listed"] = [
        "gives",
        dotted not in promised or any(dotted in text for text in lacking),
    ]
    return results


def own_steps(backend: str) -> Steps:
    """The steps of `absent_<backend>.py`, which only this framework has. Read last: it imports the framework."""
    own = Path(__file__).with_name(f"absent_{backend}.py")
    steps: Steps = runpy.run_path(str(own))["STEPS"] if own.exists() else {}
    return steps


def outcome(step: Callable[[Any], Any], xd: Any) -> Any:
    try:
        return ["gives", json.loads(json.dumps(step(xd)))]
    except Exception as error:
        return ["raises", type(error).__name__, str(error)]


def in_child(backend: str, dotted: str | None, virtual: bool) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.environ["XDEVICE_BACKEND"] = backend
        if virtual:
            os.environ["XDEVICE_VIRTUAL_GPUS"] = "2"
        try:
            answer = json.dumps(outcomes(backend, dotted))
        except BaseException as error:
            answer = json.dumps({"loading": ["raises", type(error).__name__, str(error)]})
        with os.fdopen(write, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(write)
    answer = b""
    while select.select([read], [], [], SECONDS)[0] and (part := os.read(read, 1 << 16)):
        answer += part
    os.close(read)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return (
        json.loads(answer)
        if answer
        else {"process": ["raises", f"ended with status {status}", ""]}
    )


def words_of(capability: str) -> set[str]:
    return set(capability.replace(" and ", ", ").split(", "))


def faults(
    capability: str,
    dotted: str,
    without: dict[str, Any],
    reference: dict[str, Any],
    virtual: bool,
) -> list[str]:
    """The steps that gave another number, or an error that does not name what is lacking; and, where the name is of
    none of the six verbs' capabilities, those of the six verbs that were refused. Who asks for virtual GPUs that cannot
    be had is refused everything."""
    from xdevice.contract.private import CORE

    words = words_of(capability)
    may_be_core = not words.isdisjoint(CORE) or (virtual and "virtual GPUs" in words)
    lines = []
    for step, outcome in without.items():
        if outcome == reference.get(step):
            continue
        is_named = outcome[0] == "raises" and outcome[1] in REFUSALS and dotted in outcome[2]
        is_core = step in STEPS and STEPS[step][0] in CORE
        if not is_named or (
            is_core and not may_be_core and not (virtual and "virtual GPUs" in capability)
        ):
            lines.append(f"{step}: {outcome} instead of {reference.get(step)}")
    return lines


def main(backend: str, wanted: list[str]) -> None:
    rows = json.loads(listed(backend))
    rows = [row for row in rows if not wanted or row[1] in wanted]
    with_virtual_gpus = NEEDS_VIRTUAL_GPUS.get(backend, ("virtual GPUs", "--xd-cuda"))
    if backend != "paddle":  # which cannot have virtual GPUs once it is imported
        import_without_adapter(backend)
    report(
        backend,
        [row for row in rows if not words_of(row[0]).isdisjoint(with_virtual_gpus)],
        virtual=True,
    )
    import_without_adapter(backend)
    report(backend, rows, virtual=False)


def report(backend: str, rows: list[Any], virtual: bool) -> None:
    reference = in_child(backend, None, virtual) if rows else {}
    for capability, dotted in rows:
        without = in_child(backend, dotted, virtual)
        found = faults(capability, dotted, without, reference, virtual)
        noticed = [step for step, outcome in without.items() if outcome != reference.get(step)]
        line = {
            "name": dotted,
            "of": capability,
            "virtual": virtual,
            "faults": found,
            "noticed": noticed,
        }
        print(json.dumps(line), flush=True)


def import_without_adapter(backend: str) -> None:
    """Imports a framework. MXNet needs names that NumPy lacks, which a file of the adapter adds."""
    if backend != "mxnet":
        import_module(backend)
        return
    names = runpy.run_path(str(ROOT / "backends/xdevice_mxnet/numpy_names.py"))
    with names["restored"](backend):
        import_module(backend)


def listed(backend: str) -> str:
    """The capability and the dotted name of each row, read in a process of its own: that loads the adapter."""
    import subprocess

    code = (
        f"import json, xdevice; xdevice.backend({backend!r}); from xdevice_{backend}.private import private\n"
        "from xdevice.contract.private import dotted_names\n"
        "print(json.dumps([(row.capability, name) for row in private.rows for name in dotted_names(row)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
