"""Whether `xdevice parity --calibrate` finds faults in the port of a training script, and where.

    python benchmarks/faults.py                  # every fault, as a table
    python benchmarks/faults.py clip "other eps" # those with one of these texts in their name

Each fault is planted in the port to Paddle in a copy of tagger.py, by one replaced text. The table has the record at
which it was expected to show first, written down before it was ever run, and where it was found, with the multiple of
what is allowed there. PyTorch runs once and is calibrated; all ports run in one process. The exit status is 1 if a
fault was not found at its place, or if the port without a fault differs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from xdevice.twins.parity.recording import recording_to
from xdevice.twins.parity.run_folders import report_of_two
from xdevice.twins.parity.tolerances import Strictness

if TYPE_CHECKING:
    from types import CodeType

    from xdevice.twins.parity.parity_report import Divergence

FILE, SCRIPT, PORT = Path(__file__), Path(__file__).with_name("tagger.py"), "paddle"
"""This file, the script, and the backend to which it is ported; `function_faults.py` has others."""
HONEST = "no fault"
Place = tuple[str, int]

LOADED = "] = 0\n"
"""The end of the line after which the first weights are complete."""
FAULTS: dict[str, tuple[str, str, Place]] = {
    # the first weights
    "one weight off by 1e-5": (LOADED, f"{LOADED}    held['head.weight'][2, 3] += 1e-5\n", ("weights", 0)),
    "gates in another order": (
        LOADED, f"{LOADED}    held['rnn.bias_hh_l0'] = held['rnn.bias_hh_l0'].reshape(4, -1)[[0, 1, 3, 2]].ravel()\n",
        ("weights", 0),
    ),
    "a forget gate's bias of one more": (
        LOADED, f"{LOADED}    held['rnn.bias_ih_l0'][STATE : 2 * STATE] += 1\n", ("weights", 0),
    ),
    # embeddings
    "positions from 1": ("paddle.arange(LENGTH)", "paddle.arange(LENGTH).roll(1)", ("embedded", 0)),
    "words not scaled": ("* WIDTH ** 0.5 ", "", ("embedded", 0)),
    # attention
    "scores not scaled": (" * (WIDTH // HEADS) ** (-0.5)", "", ("attended", 0)),
    "scores scaled by the whole width": ("(WIDTH // HEADS) **", "WIDTH **", ("attended", 0)),
    "padding is attended to": (
        "paddle.logical_and(earlier, (words != PADDING)[:, None, None])", "earlier", ("attended", 0),
    ),
    "mask a position off": ("paddle.ones([LENGTH, LENGTH])", "paddle.ones([LENGTH, LENGTH]), 1", ("attended", 0)),
    "a mask of -10": ("paddle.full_like(scores, -np.inf)", "scores - 10.0", ("attended", 0)),
    "softmax over queries": (
        "functional.softmax(scores, axis=-1)", "functional.softmax(paddle.clip(scores, -50.0), axis=-2)",
        ("attended", 0),
    ),
    "keys and queries exchanged": ("query, key, value = (", "key, query, value = (", ("attended", 0)),
    "heads not put together": ("mixed.transpose([0, 2, 1, 3])", "mixed", ("attended", 0)),
    # norms, residual, dropout
    "a norm's eps of 1e-6": ("LayerNorm(WIDTH, epsilon=EPS)", "LayerNorm(WIDTH, epsilon=1e-6)", ("normed", 0)),
    "no residual": ("self.norm1(x + y)", "self.norm1(y)", ("normed", 0)),
    "no gradient through the residual": ("self.norm1(x + y)", "self.norm1(x.detach() + y)", ("gradients", 0)),
    "norm before the attention": ("self.attend(x, paddle", "self.attend(self.norm1(x), paddle", ("attended", 0)),
    "dropout not scaled": ("paddle.where(kept, x / (1 - DROPPED)", "paddle.where(kept, x", ("dropped", 0)),
    # the LSTM
    "texts taken as steps": ("nn.LSTM(WIDTH, STATE)", "nn.LSTM(WIDTH, STATE, time_major=True)", ("states", 0)),
    "state not carried": ("state = tuple((x.detach() for x in state))", "state = None", ("states", 1)),
    # the loss
    "padding counts in the loss": (
        "tags.reshape([-1]), ignore_index=PADDING", "tags.reshape([-1])", ("loss", 0),
    ),
    "sum for mean": ("ignore_index=PADDING", "ignore_index=PADDING, reduction='sum'", ("loss", 0)),
    "softmax before the loss": (
        "functional.cross_entropy(scores.reshape", "functional.cross_entropy(nn.functional.softmax(scores).reshape",
        ("loss", 0),
    ),
    # gradients and clipping
    "gradients are kept": ("optimizer.clear_grad()", "pass", ("gradients", 1)),
    "clipped by value": (
        "nn.utils.clip_grad_norm_(net.parameters(), CLIP)", "nn.utils.clip_grad_value_(net.parameters(), CLIP)",
        ("clipped", 0),
    ),
    "clipped at 0.505": ("net.parameters(), CLIP)", "net.parameters(), 0.505)", ("clipped", 0)),
    "each tensor clipped by itself": (
        "nn.utils.clip_grad_norm_(net.parameters(), CLIP)",
        "[nn.utils.clip_grad_norm_([x], CLIP) for x in net.parameters()]", ("clipped", 0),
    ),
    # AdamW
    "decay in the gradients": (
        "paddle.optimizer.AdamW(schedule, parameters=net.parameters(), weight_decay=DECAY, "
        "apply_decay_param_fun=lambda name: name in decayed)",
        "paddle.optimizer.Adam(schedule, parameters=net.parameters(), weight_decay=DECAY)", ("weights", 1),
    ),
    "biases decay": (", apply_decay_param_fun=lambda name: name in decayed", "", ("weights", 1)),
    "an eps of 1e-6": ("weight_decay=DECAY, apply", "weight_decay=DECAY, epsilon=1e-6, apply", ("weights", 1)),
    "a second beta of 0.99": ("weight_decay=DECAY, apply", "weight_decay=DECAY, beta2=0.99, apply", ("weights", 2)),
    "a decay of 0.11": ("weight_decay=DECAY, apply", "weight_decay=0.11, apply", ("weights", 1)),
    "a schedule one step early": (
        "optimizer.step()\n        schedule", "schedule.step()\n        optimizer", ("weights", 1),
    ),
}  # fmt: skip


def planted(name: str) -> CodeType:
    """The script with a fault."""
    # a statement on each line, so that no fault depends on how the script is laid out
    text = ast.unparse(ast.parse(SCRIPT.read_text()))
    if name != HONEST:
        old, new, _ = FAULTS[name]
        assert old in text, f"{name}: {SCRIPT} has no {old!r}"
        text = text.replace(old, new)
    return compile(text, str(SCRIPT), "exec")


def run_copies(folder: Path, names: list[str]) -> None:
    """Trains the port once for each fault, and records each in a folder of its own."""
    for number, name in enumerate(names):
        with recording_to(folder / str(number)):
            exec(planted(name), {"__name__": "__main__"})


def compared(names: list[str]) -> list[Divergence | None]:
    """Where each port differs first from the original in PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference"
        options = ["--backends", "torch", "--calibrate", "--save", str(reference)]
        command = [sys.executable, "-m", "xdevice", "parity", str(SCRIPT), *options]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode > 1:
            raise click.ClickException("PyTorch did not run")
        ports = [sys.executable, str(FILE), "--into", folder, *names]
        subprocess.run(ports, check=True, env={**os.environ, "XDEVICE_BACKEND": PORT})
        reports = [
            report_of_two(reference, Path(folder) / str(n), Strictness())
            for n in range(len(names))
        ]
    return [report.first for report in reports]


def shown(place: Place | None) -> str:
    return "-" if place is None else f"{place[0]}, step {place[1]}"


@click.command()
@click.argument("texts", nargs=-1)
@click.option(
    "--into",
    hidden=True,
    help="Train the ports with these faults, and record them in this folder.",
)
def main(texts: tuple[str, ...], into: str | None) -> None:
    """Prints the place that each fault was expected at, and the place where it was found."""
    if into is not None:
        run_copies(Path(into), list(texts))
        return
    names = [
        HONEST,
        *(name for name in FAULTS if not texts or any(text in name for text in texts)),
    ]
    for name in names:
        planted(name)  # before the first of them runs for minutes
    right = 0
    table = Table("fault", "expected at", "found at", "times the allowed")
    for name, first in zip(names, compared(names), strict=True):
        expected = FAULTS[name][2] if name in FAULTS else None
        place = None if first is None else (first.value.name, first.value.step)
        right += place == expected
        excess = "" if first is None else f"{first.value.comparison.excess:.3g}"
        table.add_row(name, shown(expected), shown(place), excess)
    Console().print(table, f"{right} of {len(names)} at their place")
    sys.exit(right < len(names))


if __name__ == "__main__":
    main()
