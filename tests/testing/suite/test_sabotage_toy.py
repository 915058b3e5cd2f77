"""The suite bites: a third party's adapter with one fault at a time must fail it, at each home, by the check named.

`tests/toy_faults` has the faults: `pytest -k move` plants those of `move`. Their list is the table of
docs/reference/adapters.md: what a wrong method would do, and which check notices.
"""

from __future__ import annotations

import inspect
import re

import pytest
from helpers.environment import ROOT
from helpers.suite_runs import failures
from toy_faults import FAULTS, HOMES

import xdevice
from xdevice.contract.primitives import Primitives
from xdevice.testing import Conformance
from xdevice.testing.suite.capabilities import CAPABILITIES, HOOKS

DOCS = ROOT / "docs" / "reference" / "adapters.md"


@pytest.fixture(scope="module", autouse=True)
def forget(toy_installed):
    """Without an installation there is no such backend."""
    return toy_installed


def _params():
    """Of four faults one is planted in each run, two in CI, one with `-m long`: each at one home, at others if long."""
    for number, fault in enumerate(FAULTS):
        words = re.sub(r"\W+", "-", fault.does).strip("-")
        for place, home in enumerate(fault.homes):
            sample = {0: (), 2: pytest.mark.long}.get(number % 4, pytest.mark.slow)
            marks = sample if place == number % len(fault.homes) else pytest.mark.long
            yield pytest.param(fault, home, id=f"{fault.method}-{words}-{home}", marks=marks)


_honest = {}
_NOT_OF_THE_TOY = {"namespace", "nn"}
"""What it lacks, so that only the fault is checked: the suite skips an honest toy by the capability's name."""


@pytest.mark.parametrize(("fault", "home"), list(_params()))
def test_a_fault_is_noticed(fault, home, monkeypatch, forget):
    suite = type("Suite", (Conformance,), {"backend": "toyframe", "home": home, "patience": 2})
    if (fault.check, home) not in _honest:
        _honest[fault.check, home] = failures(suite, fault.check)
    if fault.method not in _NOT_OF_THE_TOY:
        assert _honest[fault.check, home] == [], "the honest toy fails, or skips"
    with suite().select():
        fault.plant(xdevice.backend("toyframe"), monkeypatch, suite)
    forget()
    caught = failures(suite, fault.check)
    monkeypatch.undo()
    forget()
    suite().adapter.samples().settle()
    assert caught, f"{fault.check} does not notice"
    error = caught[0].error
    assert not isinstance(error, pytest.skip.Exception)
    is_checked = isinstance(error, (AssertionError, pytest.fail.Exception, *fault.raises))
    assert is_checked or "returns the same object" in str(error), (
        f"not by a check, nor by the core, but {error!r}"
    )


# the table of docs/reference/adapters.md

_BEGIN, _END = "<!-- faults -->\n", "<!-- end of faults -->\n"
_OUR_OWN = {
    "devices", "has", "check", "require", "answers_to", "unsupported", "no_graphs", "no_copy_of_optimizer",
    "is_host_only", "refuse_if_frozen",
}  # fmt: skip
"""What the core decides for all adapters."""
_OF_THE_FRAMEWORK = {
    "on_choice", "hardware", "empty_cache", "operand_device", "own_file", "take_for_cuda", "register_tree_node",
    "times_written", "hyperparameters",
    "has_layers", "write_layers", "has_optimizer", "attributes_of", "move_held", "is_parameter",
    "parameters_of", "take_characters", "is_float32_default", "operation_calls", "evaluating", "is_training",
}  # fmt: skip
"""What a framework does for itself alone: tests/math/arithmetic/test_mxnet_semantics.py has what MXNet does on its
choice, tests/accelerators the hardware of each, tests/hardware/test_gpu_timing.py its cache,
tests/hardware/test_gpu.py the operands of TensorFlow,
tests/twins/weights/test_checkpoints.py PyTorch's files, tests/testing/pytest_plugin/test_cuda_option.py what PyTorch
and JAX take for CUDA, tests/containers/test_registering.py the frameworks' trees, tests/distributed/test_averaging.py
what is written too early and optimizers' settings, tests/tensors/test_unlisted.py what models hold besides what they
list, tests/peers the modules and optimizers of JAX's libraries,
tests/virtual/test_characters.py what a virtual GPU lacks, tests/twins/tracing/test_operations.py each framework's
operations, and tests/twins/parity/test_parity_models.py the modes of models."""
_OF_PROCESSES = {"engines", "start_engine", "start_native_group", "why_no_engine"}
"""What one process cannot check: tests/distributed/test_sabotage_processes.py has the faults of these."""
_NEED_THREE = (
    "from_numpy", "from_buffer", "to_numpy", "peek", "full", "move", "copy", "join", "split", "leaf", "write",
    "total", "all_reduce", "stage", "compact", "export", "adopt", "move_model", "copy_model", "variables",
    "gives_away", "is_all_on", "state_to_come", "take_state", "model_parts", "rebind", "container_way",
    "memory_of", "value_and_grad", "update",
)  # fmt: skip


def table():
    """One row for each method, in the order of the contract."""
    rows = ["| method | faults | the checks that notice them, `test_...` |", "|---|---|---|"]
    for method in sorted({fault.method for fault in FAULTS}, key=_place_in_the_contract):
        faults = [fault for fault in FAULTS if fault.method == method]
        does = dict.fromkeys(fault.does for fault in faults)
        checks = dict.fromkeys(f"`{fault.check.removeprefix('test_')}`" for fault in faults)
        rows.append(f"| `{method}` | {'; '.join(does)} | {', '.join(checks)} |")
    return "\n".join(rows) + "\n"


_CONTRACT = "".join(map(inspect.getsource, (Primitives, *CAPABILITIES)))


def _place_in_the_contract(name):
    # a line of a docstring may begin with the same word, so a bracket or a colon has to follow
    return re.search(rf"^    (?:def )?{name}[(:]", _CONTRACT, re.MULTILINE).start()


def test_the_docs_have_the_list():
    """Where it differs, put `table()` between the two comments."""
    _, _, after_begin = DOCS.read_text().partition(_BEGIN)
    assert after_begin.partition(_END)[0] == table()


def test_every_method_has_a_fault():
    """A method that is added to the contract gets its checks and its faults."""
    left = (
        HOOKS.keys()
        - _OUR_OWN
        - _OF_THE_FRAMEWORK
        - _OF_PROCESSES
        - {fault.method for fault in FAULTS}
    )
    assert left == {"samples"}  # what the checks stand on
    for method in _NEED_THREE:
        found = [fault for fault in FAULTS if fault.method == method]
        assert len(found) >= 3, method
        assert {home for fault in found for home in fault.homes} == set(HOMES), method
    assert len(FAULTS) >= 60
