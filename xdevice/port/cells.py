"""The cells: what modules and functions hand to each other, and which of them have to be interpreted again.

A cell holds a value that only grows. Its key says what it is about:

- `(module, name)`, `(module, "*")`: a global name; the modules that it imports everything from
- `(function, name)`, `(function, "local", name)`: a parameter; a local name, for functions inside it
- `(function, "return")`: what it returns
- `("attr", family, name)`: an attribute of objects of classes that inherit from each other; family None: of anything
- `("items", key)`: the items of a list or dict, which has the same key; `(function, "*")` and `"**"` are two of them
- `("arg", parser, name)`: an argument of the command line
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, Final

from .progress import Progress
from .project import Class, Function
from .sources import PythonModule
from .values import NOTHING, UNKNOWN, Atom, Value, of, union

Task = PythonModule | Function
"""The unit that is interpreted at one time."""

MOST_READINGS: Final = 100
"""How often a module or a function is interpreted before the values that it hands on are taken for anything. In
PyTorch's torchtitan and in Keras, none needed more than 10."""


class Cells:
    """The cells of a project, and the modules and functions that have read each of them.

    `unsettled` are the tasks that `MOST_READINGS` stopped; the values that they would have handed on are given up.
    """

    def __init__(self) -> None:
        self.unsettled: dict[Task, None] = {}
        self._readings: Counter[Task] = Counter()
        self.values: dict[Any, Value] = {}
        self.reader: Task | None = None  # the task that is being interpreted
        self._readers: defaultdict[Any, set[Task | None]] = defaultdict(set)
        self._waiting: OrderedDict[Task, None] = OrderedDict()
        # the names of each family
        self._attributes: defaultdict[Class, set[str]] = defaultdict(set)

    def give_up(self, value: Value) -> None:
        """Treats a value that is no longer followed as anything."""
        raise NotImplementedError

    def get(self, key: Any) -> Value:
        # an empty cell counts as read too: its first value has to make the reader run again
        self._readers[key].add(self.reader)
        return self.values.get(key, NOTHING)

    def put(self, key: Any, value: Value) -> None:
        """Adds a value to a cell. If the cell grows, the modules and functions that have read it are interpreted
        again."""
        old = self.values.setdefault(key, NOTHING)
        if value <= old:
            return
        if self.reader in self.unsettled:
            self.give_up(value)
            value = UNKNOWN
        new = union(old, value)
        # `union` may have dropped what "anything" covers
        if new != old:
            self.values[key] = new
            self._wake(key)

    def _wake(self, key: Any) -> None:
        for reader in self._readers.get(key, ()):
            if reader is not None:
                self.schedule(reader)

    def schedule(self, task: Task) -> None:
        self._waiting.setdefault(task)

    def drain(self, interpret: Callable[[Task], None], progress: Progress) -> None:
        """Interprets the scheduled tasks until none is left."""
        done = 0
        while self._waiting:
            done += 1
            if done % 64 == 0:
                progress("following values", done, done + len(self._waiting))
            # the oldest first: a module before the functions that it has scheduled
            self.reader, _ = self._waiting.popitem(last=False)
            self._readings[self.reader] += 1
            if self._readings[self.reader] > MOST_READINGS:
                self.unsettled[self.reader] = None
            interpret(self.reader)
        self.reader = None

    # containers

    def list_of(self, key: Any, items: Value) -> Value:
        """A list that is made at one place, with these items among others."""
        self.put(("items", key), items)
        return of("list", key)

    def dict_of(self, key: Any, items: Value) -> Value:
        self.put(("items", key), items)
        return of("dict", key)

    def items(self, container: Atom) -> Value:
        return (
            self.get(("items", container.subject))
            if container.kind in ("list", "dict")
            else UNKNOWN
        )

    # attributes

    def attribute_of(self, cls: Class, name: str) -> tuple[str, Class, str]:
        """The key of an attribute of the objects of a class."""
        family = cls.family()
        self._attributes[family].add(name)
        return "attr", family, name

    def unite(self, one: Class, other: Class) -> None:
        """Makes one family out of two, because a class inherits from the other."""
        old, new = one.family(), other.family()
        if old is new:
            return
        old.united_with = new
        # whoever has read the attribute of one class may now be given that of the other
        for name in self._attributes.pop(old, ()):
            key = "attr", old, name
            self.put(self.attribute_of(new, name), self.values.get(key, NOTHING))
            self._wake(key)
