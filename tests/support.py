"""What tests of several rooms share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
"""The folder of the whole project."""
