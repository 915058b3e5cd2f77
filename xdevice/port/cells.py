"""The cells, in which modules and functions pass values to each other, and the queue of the
modules and functions that have to be interpreted again.

A cell holds a value that only grows. Its key says whose value it is:

- `(module, name)`, `(module, "*")`: a global name; the modules that it imports everything from
- `(function, name)`, `(function, "local", name)`: a parameter; a local name, for functions inside it
- `(function, "return")`: what it returns
- `("attr", family, name)`: an attribute of objects of classes that inherit from each other; if the family is None, of
  unknown objects
- `("items", key)`: the items of a list or dict, whose atom has the same key; the key of a function's `*args` is
  `(function, "*")`, that of its `**kwargs` is `(function, "**")`
- `("arg", parser, name)`: an argument of the command line
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, Final

from .progress import Progress
from .project import Class, Function
from .sources import PythonModule
from .values import NOTHING, UNKNOWN, Atom, Value, make_value, union

Task = PythonModule | Function
"""A piece of code that is interpreted as a unit: a module without the bodies of its functions, or one function."""

MOST_READINGS: Final = 100
"""How often a module or function may be interpreted. From then on, every value that it puts
into a cell counts as "anything". In PyTorch's torchtitan and in Keras, none needed more than
10."""


class Cells:
    """The cells of a project, and for each cell the modules and functions that have read it.

    `current_task` is the module or function that is being interpreted, None after the analysis.
    `unsettled` are the tasks that were interpreted more than `MOST_READINGS` times: their
    values might grow for ever. Every value that such a task puts into a cell counts as
    "anything", so that the analysis ends.
    """

    def __init__(self) -> None:
        self.unsettled: dict[Task, None] = {}
        # how often each task was interpreted
        self._readings: Counter[Task] = Counter()
        self.values: dict[Any, Value] = {}
        self.current_task: Task | None = None
        # which tasks have read each cell. Dicts are used as ordered sets here and below: the
        # tasks are scheduled in this order, which has to be the same in each run
        self._readers: defaultdict[Any, dict[Task | None, None]] = defaultdict(dict)
        # the queue, as an ordered set: the values of the dict mean nothing
        self._waiting: OrderedDict[Task, None] = OrderedDict()
        # for each family of classes, the names of the attributes that have a cell
        self._attributes: defaultdict[Class, dict[str, None]] = defaultdict(dict)

    def stop_following(self, value: Value) -> None:
        """Is called before `value` is replaced by "anything". From then on, whatever can be reached from `value`, such
        as the parameters of a function, may be anything, too. `Inference` implements this method."""
        raise NotImplementedError

    def read_cell(self, key: Any) -> Value:
        """The value of a cell; empty if nothing has been put into it. Remembers that the
        current task has read the cell."""
        # an empty cell counts as read, too: when it gets its first value, the reader has to be
        # interpreted again
        self._readers[key].setdefault(self.current_task)
        return self.values.get(key, NOTHING)

    def add_to_cell(self, key: Any, value: Value) -> None:
        """Adds a value to a cell. If the cell grows, the modules and functions that have read
        it are interpreted again."""
        old = self.values.setdefault(key, NOTHING)
        # nothing new: the usual case
        if value <= old:
            return
        # this task has been interpreted too often: from now on it puts only `UNKNOWN`
        # ("anything") into cells, which makes each of them grow at most once more, so that the
        # analysis ends
        if self.current_task in self.unsettled:
            self.stop_following(value)
            value = UNKNOWN
        new = union(old, value)
        # if the cell holds "anything", `union` may have dropped all new atoms, and the readers
        # learn nothing new
        if new != old:
            self.values[key] = new
            self._wake(key)

    def _wake(self, key: Any) -> None:
        """Schedules all modules and functions that have read a cell."""
        for reader in self._readers.get(key, ()):
            # None stands for the rules, which read cells after the analysis
            if reader is not None:
                self.schedule(reader)

    def schedule(self, task: Task) -> None:
        """Puts a module or function at the end of the queue, unless it is waiting already."""
        self._waiting.setdefault(task)

    def run_queue(self, interpret: Callable[[Task], None], progress: Progress) -> None:
        """Calls `interpret` with each scheduled task, the oldest first, until the queue is empty. Tasks may schedule
        others, and themselves."""
        done = 0
        while self._waiting:
            done += 1
            # not for each task, because drawing the bar takes time, too
            if done % 64 == 0:
                progress("following values", done, done + len(self._waiting))
            # the oldest first: a module before the functions that it has scheduled
            self.current_task, _ = self._waiting.popitem(last=False)
            self._readings[self.current_task] += 1
            # from now on, `add_to_cell` adds only "anything" for this task
            if self._readings[self.current_task] > MOST_READINGS:
                self.unsettled[self.current_task] = None
            interpret(self.current_task)
        self.current_task = None

    # containers

    def list_of(self, key: Any, items: Value) -> Value:
        """Adds `items` to the possible items of the lists with this key, and returns the value
        of such a list. `key` is the node that makes the list, or stands for the place where it
        is made: all lists made there share their items."""
        self.add_to_cell(("items", key), items)
        return make_value("list", key)

    def dict_of(self, key: Any, items: Value) -> Value:
        """The same as `list_of`, for a dict: `items` are its possible values. Keys are not
        followed."""
        self.add_to_cell(("items", key), items)
        return make_value("dict", key)

    def items(self, container: Atom) -> Value:
        """The possible values of the items of `container`, if that is a list or dict; otherwise
        "anything"."""
        return (
            self.read_cell(("items", container.subject))
            if container.kind in ("list", "dict")
            else UNKNOWN
        )

    # attributes

    def attribute_key(self, cls: Class, name: str) -> tuple[str, Class, str]:
        """The key of the cell for the attribute `name` of a class and its objects. Classes that are related by
        inheritance (a family) share the cell."""
        family = cls.family()
        # `unite` moves these cells when two families become one
        self._attributes[family].setdefault(name)
        return "attr", family, name

    def unite(self, cls: Class, base: Class) -> None:
        """Merges the families of a class and its base: a family consists of classes that are related by inheritance,
        and they share the cells of their attributes. The cells of the class's old family are moved."""
        old, new = cls.family(), base.family()
        if old is new:
            return
        old.united_with = new
        # a task that has read an attribute of one class may now get the values of the other, too
        for name in self._attributes.pop(old, ()):
            key = "attr", old, name
            self.add_to_cell(self.attribute_key(new, name), self.values.get(key, NOTHING))
            self._wake(key)
