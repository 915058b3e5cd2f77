"""What `xdevice port` does with checkouts of real projects: `python benchmarks/port.py CHECKOUT...`

For each checkout, with its commit: how many sites there are by verdict and grade, which share of those that are not
neutral is rewritten at each level, whether what comes out parses, keeps its comments and is left alone by a second run,
and how many lines a second are read. A path inside a checkout (`gluon-cv/scripts`) limits it to that folder. Nothing
is written into the checkouts.

What it is meant for:

    d2l-ai/d2l-en d2l-ai/d2l-zh pytorch/examples PaddlePaddle/PaddleClas (ppcls) dmlc/gluon-cv (scripts)
    karpathy/nanoGPT huggingface/accelerate (examples, benchmarks)

Left out are the files named *_origin.md (English originals beside the Chinese texts) and the folder contrib of d2l-zh.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path
from time import process_time

from xdevice.port import engine, sources
from xdevice.port.sites import GRADES

SKIPPED = ("_origin.md", "contrib")


def commit(path: Path) -> str:
    asked = [
        "git",
        "-C",
        str(path if path.is_dir() else path.parent),
        "rev-parse",
        "--short=8",
        "HEAD",
    ]
    done = subprocess.run(asked, capture_output=True, text=True)
    named = path / "COMMIT"  # of a checkout that was brought without its history
    if done.returncode == 0:
        return done.stdout.strip()
    return named.read_text().strip()[:8] if named.is_file() else "of no commit"


def files(path: Path) -> list[Path]:
    return [
        p for p in sources.files_in([path]) if not any(mark in p.as_posix() for mark in SKIPPED)
    ]


def comments(module: sources.Source) -> list[str]:
    """The comments of a script; texts and notebooks are compared by their cells."""
    if not module.path.endswith(".py"):
        return []
    tokens = tokenize.generate_tokens(io.StringIO(module.text.decode()).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def measure(path: Path) -> None:
    begin = process_time()
    made = engine.examine(files(path), "likely")
    seconds = process_time() - begin
    verdicts = Counter(site.verdict for site in made.sites)
    grades = Counter(site.grade for site in made.sites if site.verdict == "rewritten")
    asked = verdicts["rewritten"] + verdicts["open"]
    shares, sum_so_far = [], 0
    for grade in GRADES:
        sum_so_far += grades[grade]
        shares.append(f"{grade} {100 * sum_so_far / asked:.1f} %" if asked else grade)
    lines = sum(len(cell) for module in made.modules for cell in [_lines(module)])
    print(
        f"{path} @ {commit(path)}: {len(made.modules)} modules, {lines} lines, {len(made.unreadable)} not read"
    )
    print(
        f"  {len(made.sites)} sites: "
        + ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items()))
    )
    print(f"  of {asked} that are not neutral: " + ", ".join(shares))
    print(f"  {seconds:.1f} s, {lines / seconds:.0f} lines a second")
    check(made)


def _lines(module: sources.PythonModule) -> set[int]:
    import ast

    return {node.lineno for node in ast.walk(module.tree) if hasattr(node, "lineno")}


def check(made: engine.Examined) -> None:
    """Whether what comes out is right as a text."""
    wrong: Counter[str] = Counter()
    again = engine.Examined(made.root, made.only)
    rewritten = 0
    for source in made.sources:
        new = made.ported(source)
        rewritten += new != source.raw
        try:
            read = sources.parse(new, source.path)
        except sources.UnreadableError as error:
            wrong["does not parse"] += 1
            print(f"  {source.path}: {error}", file=sys.stderr)
            continue
        wrong["a cell does not parse"] += len(read.broken) > len(source.broken)
        wrong["comments differ"] += comments(read) != comments(source)
        again.sources.append(read)
    engine.judge(again)
    for source in again.sources:
        if again.ported(source) != source.raw:
            wrong["a second run changes it"] += 1
            print(again.diff(source), file=sys.stderr)
    told = (
        ", ".join(f"{count} {what}" for what, count in wrong.items() if count)
        or "all parse, comments equal, stable"
    )
    print(f"  {rewritten} of {len(made.sources)} files rewritten: {told}")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        measure(Path(argument))
