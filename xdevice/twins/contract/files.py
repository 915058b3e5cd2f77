"""Files that a framework itself has written, with weights in them."""

from __future__ import annotations

from typing import Any, ClassVar

from xdevice.contract.primitives import Primitives


class Files(Primitives):
    """The capability of reading the framework's own files of weights."""

    needs: ClassVar[tuple[str, ...]] = ("own_file",)

    def own_file(self, path: str) -> Any:
        """Returns the contents of a file that the framework itself has written: tensors on cpu:0, in Python containers.
        No code from the file may run: raises `FileFormatError` if the file cannot be read without running any."""
        raise self.unsupported(
            "reading its own file format without running code from it", "load the file yourself"
        )
