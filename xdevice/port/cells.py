"""The cells, in which modules and functions pass values to each other, and the queue of those
that have to be interpreted again.

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
"""The unit that is interpreted at one time: the code of a module outside its functions, or one
function."""

MOST_READINGS: Final = 100
"""How often a module or a function is interpreted before the values that it hands on are taken
for "anything". In PyTorch's torchtitan and in Keras, none needed more than 10."""


class Cells:
    """The cells of a project, and for each cell the modules and functions that have read it.

    `unsettled` are the tasks that were interpreted more than `MOST_READINGS` times. Every value
    that such a task puts into a cell from then on counts as "anything", so that the analysis
    ends.
    """

    def __init__(self) -> None:
        self.unsettled: dict[Task, None] = {}
        self._readings: Counter[Task] = Counter()
        self.values: dict[Any, Value] = {}
        self.current_task: Task | None = None  # the task that is being interpreted
        # dicts, whose order is the same in each run: it is that in which the readers run again
        self._readers: defaultdict[Any, dict[Task | None, None]] = defaultdict(dict)
        self._waiting: OrderedDict[Task, None] = OrderedDict()
        # the attributes of each family of classes that have a cell, by name
        self._attributes: defaultdict[Class, dict[str, None]] = defaultdict(dict)

    def stop_following(self, value: Value) -> None:
        """Treats everything that can be reached from a value as "anything". `Inference`
        implements this method."""
        raise NotImplementedError

    def get(self, key: Any) -> Value:
        """The value of a cell, empty if nothing has been put into it. Notes that the current
        task has read the cell."""
        # an empty cell counts as read too: its first value has to make the reader run again
        self._readers[key].setdefault(self.current_task)
        return self.values.get(key, NOTHING)

    def put(self, key: Any, value: Value) -> None:
        """Adds a value to a cell. If the cell grows, the modules and functions that have read
        it are interpreted again."""
        old = self.values.setdefault(key, NOTHING)
        # nothing new: the usual case
        if value <= old:
            return
        if self.current_task in self.unsettled:
            self.stop_following(value)
            value = UNKNOWN
        new = union(old, value)
        # `union` may have dropped what "anything" covers
        if new != old:
            self.values[key] = new
            self._wake(key)

    def _wake(self, key: Any) -> None:
        """Schedules all tasks that have read a cell."""
        for reader in self._readers.get(key, ()):
            # None: a rule has read the cell, after the analysis
            if reader is not None:
                self.schedule(reader)

    def schedule(self, task: Task) -> None:
        """Puts a module or function at the end of the queue, unless it is waiting already."""
        self._waiting.setdefault(task)

    def drain(self, interpret: Callable[[Task], None], progress: Progress) -> None:
        """Calls `interpret` with one scheduled task after the other, until none is left. Tasks
        may schedule others, and themselves."""
        done = 0
        while self._waiting:
            done += 1
            # not at each task: drawing the bar takes time, too
            if done % 64 == 0:
                progress("following values", done, done + len(self._waiting))
            # the oldest first: a module before the functions that it has scheduled
            self.current_task, _ = self._waiting.popitem(last=False)
            self._readings[self.current_task] += 1
            if self._readings[self.current_task] > MOST_READINGS:
                self.unsettled[self.current_task] = None
            interpret(self.current_task)
        self.current_task = None

    # containers

    def list_of(self, key: Any, items: Value) -> Value:
        """Adds `items` to the possible items of the lists with this key, and returns the value
        of such a list. `key` is the node that makes the list, or another key for the place
        where it is made: all lists made there share their items."""
        self.put(("items", key), items)
        return of("list", key)

    def dict_of(self, key: Any, items: Value) -> Value:
        """The same as `list_of`, for a dict: `items` are its possible values. Keys are not
        followed."""
        self.put(("items", key), items)
        return of("dict", key)

    def items(self, container: Atom) -> Value:
        """The possible values of the items of a list or dict; anything for an atom of another
        kind."""
        return (
            self.get(("items", container.subject))
            if container.kind in ("list", "dict")
            else UNKNOWN
        )

    # attributes

    def attribute_of(self, cls: Class, name: str) -> tuple[str, Class, str]:
        """The key of the cell for an attribute of the objects of a class. Classes related by
        inheritance share the cell."""
        family = cls.family()
        # for `unite`, which has to move the cell when two families become one
        self._attributes[family].setdefault(name)
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
