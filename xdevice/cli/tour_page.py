"""`Page`, on which the tour prints lines of Python as at its prompt, runs them, and prints their values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from xdevice.errors import UnsupportedError

if TYPE_CHECKING:
    from xdevice.contract import Backend


class Page:
    """The tour's output on the terminal, and the variables that the lines shown so far have made."""

    def __init__(self, backend: Backend) -> None:
        from rich.console import Console

        self.backend = backend
        self.console = Console(highlight=False, soft_wrap=True)
        self.names: dict[str, Any] = {}
        self.figures: dict[str, Any] = {}

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def show(self, code: str) -> None:
        """Prints one statement as it would look at Python's prompt, without running it."""
        first, *others = code.splitlines()
        self.say("\n".join([f"  >>> {first}", *(f"  ... {line}" for line in others), *["  ..."][: len(others)]]))

    def do(self, code: str) -> None:
        """Prints statements and runs each of them."""
        lines = code.splitlines()
        for statement in ast.parse(code).body:
            text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            self.show(text)
            exec(text, self.names)

    def look(self, line: str) -> Any:
        """Prints an expression and its value, and returns the value."""
        self.show(line)
        value = eval(line, self.names)
        for row in repr(value).splitlines():
            self.say(f"  {row}")
        return value

    def expect(self, line: str, wanted: object) -> None:
        """Prints an expression and its value, and raises `AssertionError` unless the value is `wanted`."""
        value = self.look(line)
        if value != wanted:
            raise AssertionError(f"{line} gave {value!r}, and the chapter says {wanted!r}")

    def refuse(self, line: str, error: str, name: str) -> None:
        """Shows a line that raises `xdevice.<error>`, and the text of that error, which the shown code stores in the
        variable `name`."""
        self.do(f"try:\n    {line}\nexcept xdevice.{error} as error:\n    {name} = str(error)")
        self.look(name)

    def differentiates(self, line: str) -> bool:
        """Whether the backend computes gradients, which `line` asks for. If it does not, shows the error that `line`
        raises."""
        try:
            eval(line, self.names)
        except UnsupportedError:
            self.refuse(line, "UnsupportedError", "refusal")
            return False
        return True
