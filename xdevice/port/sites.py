"""A site: one use of a device idiom, with one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

Verdict = Literal["rewritten", "neutral", "open", "not a device"]
Grade = Literal["proven", "safe", "likely"]

GRADES: Final[tuple[Grade, ...]] = ("proven", "safe", "likely")
"""The levels of `port --only`; each one includes those before it."""

CODES: Final[dict[str, str]] = {
    "XD101": "chooses a device",
    "XD102": "asks whether there are devices, or how many",
    "XD103": "moves to a device",
    "XD104": "copies to a device",
    "XD105": "waits for a device",
    "XD106": "reads an array on the host",
    "XD107": "reads one number on the host",
    "XD108": "times work",
    "XD109": "splits a batch over devices",
    "XD110": "asks for memory in use",
    "XD111": "places something when it is made or loaded",
    "XD112": "asks where something is, or what kind of device it is",
    "XD151": "sets or asks for the default device",
    "XD152": "pins memory",
    "XD153": "wraps a model for several devices",
    "XD154": "computes in mixed precision",
    "XD155": "lists or configures devices",
    "XD156": "asks what a device can do",
    "XD157": "empties a cache, or lets memory grow",
    "XD158": "seeds a device",
    "XD160": "a cell that is not Python",
    "XD161": "the argument is not proven to be a device",
    "XD162": "the receiver is not proven",
    "XD163": "the result is thrown away, and the receiver is not proven to be a model",
    "XD164": "the tabs of the text disagree, or TensorFlow takes a scope where others take a value",
    "XD165": "a string or a number of Python",
    "XD166": "keywords or stars that the neutral word does not have",
    "XD167": "graph mode",
    "XD168": "several frameworks in one script",
    "XD169": "a device that flows into text",
    "XD170": "current_accelerator() may be None here",
    "XD171": "the word needs a newer PyTorch",
}
"""The meaning of each code. 10x: there is a neutral word; 15x: there is none; 16x: not proven. Lint adds 2xx and
4xx."""


@dataclass(frozen=True, order=True)
class Edit:
    """Bytes `start` to `end` of `Source.text` become `text`. An insertion has `start == end`.

    `rank` orders the edits that begin at one place: minus the end of the site's expression, so that the outer of two
    nested sites comes first.
    """

    start: int
    rank: int
    end: int
    text: str

    def shifted(self, distance: int) -> Edit:
        return Edit(self.start + distance, self.rank, self.end + distance, self.text)


def splice(text: bytes, edits: Iterable[Edit]) -> bytes:
    """`text` with the edits made, which may not overlap; everything outside them stays byte for byte.

    Raises:
        ValueError: two edits overlap, which is a fault of xdevice: the sites of a file should nest.
    """
    parts, at = [], 0
    for edit in sorted(set(edits)):
        if edit.start < at:
            raise ValueError(f"{edit} overlaps the edit before it, which ends at {at}")
        parts += [text[at : edit.start], edit.text.encode()]
        at = edit.end
    return b"".join([*parts, text[at:]])


@dataclass(eq=False)
class Site:
    """One use of a device idiom. Sites are sorted by file and position; (file, line, col, idiom) is unique, so that one
    that several tabs of a text share is counted once.

    `line` and `col` (bytes, from 0, as `ast` has them) are those of `Source.text`; `Source.place(line)` gives the line
    of the file and, for a notebook, the cell. `before` is the text of the whole expression, `after` what it becomes
    (None unless there is a rewriting). `grade` says how sure the rewriting is. A site that is open only because its
    grade is above the level that was asked for has one, too; it is None if there is no rewriting at all. `since` is the
    release of PyTorch that the new text needs, "" for any; `vendor` the one whose devices the old text names.
    """

    file: str
    line: int
    col: int
    idiom: str
    code: str
    framework: str
    verdict: Verdict
    grade: Grade | None = None
    why: str = ""
    end: tuple[int, int] = (0, 0)
    before: str = ""
    after: str | None = None
    link: str | None = None
    since: str = ""
    vendor: str = ""
    edits: tuple[Edit, ...] = field(default=(), repr=False)
    tabs: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.file, self.line, self.col, self.idiom

    def __lt__(self, other: Site) -> bool:
        return self.key < other.key
