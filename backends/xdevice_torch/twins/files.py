"""Reads PyTorch's own files of weights, which `torch.save` writes."""

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
        """Returns the contents of a file that `torch.save` has written. Reads the file with PyTorch's restricted
        unpickler, which runs no code from the file. Raises `FileFormatError` if the file cannot be read without running
        code, or is damaged."""
        # before 1.6, PyTorch did not write zip files, and torch.load accepts mmap=True only for zip files
        is_zip = zipfile.is_zipfile(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
            # PyTorch's message contains several lines of advice; only these lines name the object that was refused
            lines = [
                line
                for line in str(error).splitlines()
                if "WeightsUnpickler" in line or "GLOBAL" in line
            ]
            # an EOFError has no message
            why = " ".join(lines).strip() or str(error) or "the file ends too early"
            raise FileFormatError(
                f"PyTorch cannot read {path} without running code from it, or the file is damaged: {why:.300}; if you "
                f"trust the file, read it with torch.load(path, weights_only=False), and pass the dict to convert_state"
            ) from error
