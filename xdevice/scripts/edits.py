"""Text with edits spliced in by position: everything outside of them stays byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sites import Edit


def splice(text: bytes, edits: Iterable[Edit]) -> bytes:
    """`text` with the edits made, which may not overlap.

    Raises:
        ValueError: two edits overlap, which is an error of ours: the sites of a file are made to nest.
    """
    parts, at = [], 0
    for edit in sorted(set(edits)):
        if edit.start < at:
            raise ValueError(f"{edit} overlaps the edit before it, which ends at {at}")
        parts += [text[at : edit.start], edit.text.encode()]
        at = edit.end
    return b"".join([*parts, text[at:]])
