"""The page that the tour writes: lines of Python as at its prompt, which are run, with what they give."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from xdevice.errors import UnsupportedError

if TYPE_CHECKING:
    from xdevice.contract import Backend


class Page:
    """Where the tour writes, and the names its lines have made so far."""

    def __init__(self, backend: Backend) -> None:
        from rich.console import Console

        self.backend = backend
        self.console = Console(highlight=False, soft_wrap=True)
        self.names: dict[str, Any] = {}
        self.figures: dict[str, Any] = {}

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def show(self, code: str) -> None:
        """Shows one statement, as Python's prompt would."""
        first, *others = code.splitlines()
        self.say("\n".join([f"  >>> {first}", *(f"  ... {line}" for line in others), *["  ..."][: len(others)]]))

    def do(self, code: str) -> None:
        """Shows lines and runs them."""
        lines = code.splitlines()
        for statement in ast.parse(code).body:
            text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            self.show(text)
            exec(text, self.names)

    def look(self, line: str) -> Any:
        """Shows an expression and its value."""
        self.show(line)
        value = eval(line, self.names)
        for row in repr(value).splitlines():
            self.say(f"  {row}")
        return value

    def expect(self, line: str, wanted: object) -> None:
        """Shows an expression and its value, and fails unless it is what the chapter says."""
        value = self.look(line)
        if value != wanted:
            raise AssertionError(f"{line} gave {value!r}, and the chapter says {wanted!r}")

    def refuse(self, line: str, error: str, name: str) -> None:
        """Shows a line that xdevice refuses, and the error's text, to which the shown code gives the name `name`."""
        self.do(f"try:\n    {line}\nexcept xdevice.{error} as error:\n    {name} = str(error)")
        self.look(name)

    def differentiates(self, line: str) -> bool:
        """Whether the backend has gradients; where it has none, shows how it refuses a line that asks for one."""
        try:
            eval(line, self.names)
        except UnsupportedError:
            self.refuse(line, "UnsupportedError", "refusal")
            return False
        return True
