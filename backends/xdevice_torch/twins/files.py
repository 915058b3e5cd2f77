"""PyTorch's own files of weights, which `torch.save` writes."""

from __future__ import annotations

import pickle
import zipfile
from typing import Any

import torch

from xdevice.errors import FileFormatError
from xdevice.twins.contract.files import Files


class TorchFiles(Files):
    """The hook that reads PyTorch's own files. `Files` describes it."""

    def own_file(self, path: str) -> Any:
        """Returns the contents of a file of `torch.save`, read with PyTorch's restricted unpickler, which runs no code
        from the file. Raises `FileFormatError` if the file needs code to be run, or is damaged."""
        # PyTorch before 1.6 did not write zip files, and torch.load refuses mmap=True for any other file
        is_zip = zipfile.is_zipfile(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
            # PyTorch's message has several lines of advice; only these lines say which object was refused
            lines = [
                line
                for line in str(error).splitlines()
                if "WeightsUnpickler" in line or "GLOBAL" in line
            ]
            # an EOFError has no text
            why = " ".join(lines).strip() or str(error) or "it ends too early"
            raise FileFormatError(
                f"PyTorch cannot read {path} without running code from it, or the file is damaged: {why:.300}; if you "
                f"trust it, read it with torch.load(path, weights_only=False), and pass the dict to convert_state"
            ) from error
