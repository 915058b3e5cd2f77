"""A site: one use of a device idiom, with one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

Verdict = Literal["rewritten", "neutral", "open", "not a device"]
Grade = Literal["proven", "safe", "likely"]

GRADES: Final[tuple[Grade, ...]] = ("proven", "safe", "likely")
"""The levels of `port --only`. Each level includes the levels before it.

"proven" means that the project's own text shows that the new text is correct. "safe" means that it
depends on an assumption; if the assumption is wrong, the new text raises an error immediately.
"likely" means that only a name suggests what an object is.
"""

CODES: Final[dict[str, str]] = {
    # uses that have a vendor-neutral replacement
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
    # uses that have no vendor-neutral replacement
    "XD151": "sets or asks for the default device",
    "XD152": "pins memory",
    "XD153": "wraps a model for several devices",
    "XD154": "computes in mixed precision",
    "XD155": "lists or configures devices",
    "XD156": "asks what a device can do",
    "XD157": "empties a cache, or lets memory grow",
    "XD158": "seeds a device",
    # reasons why a use stays open
    "XD160": "a cell that is not Python",
    "XD161": "the argument is not proven to be a device",
    "XD162": "the receiver is not proven",
    "XD163": "the result is thrown away, and the receiver is not proven to be a model",
    "XD164": "the tabs of the text disagree, or TensorFlow has a context manager where others have a device",
    "XD165": "a Python string or number",
    "XD166": "arguments that the neutral replacement does not accept",
    "XD167": "graph mode",
    "XD168": "several frameworks in one script",
    "XD169": "a device that is turned into text",
    "XD170": "current_accelerator() may be None here",
    "XD171": "the replacement needs a newer PyTorch",
}
"""Maps each code to its meaning. A code stands for a kind of use, or for a reason why a use
stays open. The codes XD2xx and XD4xx are in `lint_rules.RULES`."""


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces the bytes from `start` to `end` of `Source.text` with `text`. If `start == end`,
    the edit is an insertion.

    `rank` orders the edits that begin at the same position. It is the negated end of the site's expression, so the
    outer of two nested sites comes first.
    """

    # edits are sorted by their fields in this order: by `start`, and then by `rank`
    start: int
    rank: int
    end: int
    text: str

    def shifted(self, distance: int) -> Edit:
        """Returns the same edit, moved by `distance` bytes. A negative distance adapts the edit to a part that was cut
        out of the text.
        """
        return Edit(self.start + distance, self.rank, self.end + distance, self.text)


def splice(text: bytes, edits: Iterable[Edit]) -> bytes:
    """Returns `text` after the edits, which may come in any order but must not overlap.
    Everything outside the edits stays the same byte for byte.

    Raises:
        ValueError: if two edits overlap. This is a bug in xdevice, because sites should nest.
    """
    parts, at = [], 0
    # without duplicates, because two sites may need the same edit, such as an import
    for edit in sorted(set(edits)):
        # edits may touch: several insertions at the same place are made in the order of their
        # ranks
        if edit.start < at:
            raise ValueError(f"{edit} overlaps the previous edit, which ends at {at}")
        parts += [text[at : edit.start], edit.text.encode()]
        at = edit.end
    return b"".join([*parts, text[at:]])


# eq=False: sites are equal only if they are the same object, so that they can be keys
@dataclass(eq=False)
class Site:
    """One use of a device idiom. Sites are sorted by file and position. No two sites have the same file, line, column
    and idiom. If several tabs of a page of d2l share a use, it is therefore counted once.

    `line` and `col` (in bytes, from 0, as in `ast`) are positions in `Source.text`; `Source.line_and_cell(line)`
    returns the line of the file and, for a notebook, the cell. `idiom` is the name of the use in reports, such as
    ".cuda()", `code` is a key of `CODES`, and `why` is the reason for the verdict. `end` is the line and column after
    the expression, and `before` is the text of the expression. `after` is its new text; it is None unless the use can
    be rewritten.

    `grade` says how certain it is that the new text is right; it is None if there is no new text. A
    site that is open only because `--only` excludes its grade keeps the grade. `since` is the
    oldest release of PyTorch that has the new words; "" means every release. `vendor` is the vendor
    that the old text names, or "". `link` is the page of the documentation to read, or None. `tabs`
    are the tabs of a page of d2l that share the site.
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
        """The file, the line, the column and the idiom. No two sites of a project have the same key."""
        return self.file, self.line, self.col, self.idiom

    def __lt__(self, other: Site) -> bool:
        # for `sorted`: compares only the keys, because tabs, edits and texts have no order
        return self.key < other.key


def grouped(sites: Iterable[Site], key: Callable[[Site], str]) -> dict[str, list[Site]]:
    """Groups sites by the result of `key`. Returns a dict that maps each result to the list of its sites."""
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(key(site), []).append(site)
    return groups
