"""Files of weights that a framework itself has written."""

from __future__ import annotations

from typing import Any, ClassVar

from xdevice.contract.primitives import Primitives


class Files(Primitives):
    """The capability of reading the framework's own files of weights."""

    needs: ClassVar[tuple[str, ...]] = ("own_file",)

    def own_file(self, path: str) -> Any:
        """Returns the contents of a file that the framework itself has written, as Python containers of tensors on
        cpu:0. The method must not run code from the file: it raises `FileFormatError` if the file cannot be read
        without running code from it."""
        raise self.unsupported(
            "reading its own file format without running code from the file",
            "load the file yourself",
        )
