"""The cells through which modules and functions pass values to each other, and the queue of modules
and functions to interpret again.

Each cell contains a value, which can only grow. The key of a cell shows what the value belongs to:

- `(module, name)`, `(module, "*")`: a global name; the modules from which this module imports
  everything
- `(function, name)`, `(function, "local", name)`: a parameter; a local name, which functions inside this function read
- `(function, "return")`: the returned value
- `("attr", family, name)`: an attribute of the objects of a family, which is a set of classes that are related by
  inheritance; if the family is None, an attribute of unknown objects
- `("items", key)`: the items of a list or dict whose atom has this key as its subject; the key is `(function, "*")` for
  a function's `*args`, and `(function, "**")` for its `**kwargs`
- `("arg", parser, name)`: a command-line argument
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
"""A unit of code to interpret: a module without the bodies of its functions, or one function."""

MAX_INTERPRETATIONS: Final = 100
"""The maximum number of times that a module or function is interpreted. After that, every value
that it adds to a cell is replaced by "anything". In PyTorch's torchtitan and in Keras, no module or
function had to be interpreted more than 10 times."""


class Cells:
    """The cells of a project, and for each cell the modules and functions that have read it.

    `current_task` is the module or function that is being interpreted; after the analysis, it is None. `unsettled`
    contains the tasks that were interpreted more than `MAX_INTERPRETATIONS` times. Their values might grow for ever, so
    every value that they add to a cell is replaced by "anything".
    """

    def __init__(self) -> None:
        self.unsettled: dict[Task, None] = {}
        # how often each task was interpreted
        self._interpretations: Counter[Task] = Counter()
        self.values: dict[Any, Value] = {}
        self.current_task: Task | None = None
        # the tasks that have read each cell. Here and below, dicts are used as ordered sets,
        # because tasks are scheduled in this order, which has to be the same in each run
        self._readers: defaultdict[Any, dict[Task | None, None]] = defaultdict(dict)
        # the queue, also a dict that is used as an ordered set
        self._waiting: OrderedDict[Task, None] = OrderedDict()
        # for each family of classes, the names of the attributes that have a cell
        self._attributes: defaultdict[Class, dict[str, None]] = defaultdict(dict)

    def stop_following(self, value: Value) -> None:
        """This method is called before `value` is replaced by "anything". From then on, everything that can be reached
        from `value`, such as the parameters of a function, can have any value, too. `Inference` implements this method.
        """
        raise NotImplementedError

    def read_cell(self, key: Any) -> Value:
        """Returns the value of a cell, which is empty if nothing has been added yet. Records
        that the current task has read the cell."""
        # also for an empty cell: when it gets its first value, the reader has to be interpreted
        # again. The dict is used as an ordered set, so only its keys matter
        self._readers[key].setdefault(self.current_task)
        return self.values.get(key, NOTHING)

    def add_to_cell(self, key: Any, value: Value) -> None:
        """Adds a value to a cell. If the cell grows, the modules and functions that have read
        it are interpreted again."""
        # stored even if the value is empty, because a name with a cell counts as bound (see `Interpreter._name`)
        old = self.values.setdefault(key, NOTHING)
        # nothing new: the usual case
        if value <= old:
            return
        # this task has been interpreted too often. From now on, it adds only `UNKNOWN`
        # ("anything") to cells. Each cell can then grow at most once more, so that the analysis
        # ends
        if self.current_task in self.unsettled:
            self.stop_following(value)
            value = UNKNOWN
        new = union(old, value)
        # if the cell contains "anything", `union` may have dropped all new atoms, so that
        # nothing changes for the readers
        if new != old:
            self.values[key] = new
            self._schedule_readers(key)

    def _schedule_readers(self, key: Any) -> None:
        """Schedules all modules and functions that have read the cell with this key."""
        for reader in self._readers.get(key, ()):
            # None stands for the rules, which read cells after the analysis
            if reader is not None:
                self.schedule(reader)

    def schedule(self, task: Task) -> None:
        """Adds a module or function to the end of the queue, unless it is in the queue
        already."""
        self._waiting.setdefault(task)

    def run_queue(self, interpret: Callable[[Task], None], progress: Progress) -> None:
        """Calls `interpret` for each scheduled task until the queue is empty. The task that has waited longest comes
        first. A task may schedule other tasks, and itself."""
        done = 0
        while self._waiting:
            done += 1
            # not after each task, because drawing the bar takes time
            if done % 64 == 0:
                progress("following values", done, done + len(self._waiting))
            # the task that has waited longest: a module is interpreted before the functions
            # that it has scheduled
            self.current_task, _ = self._waiting.popitem(last=False)
            self._interpretations[self.current_task] += 1
            # from now on, `add_to_cell` adds only "anything" for this task
            if self._interpretations[self.current_task] > MAX_INTERPRETATIONS:
                self.unsettled[self.current_task] = None
            interpret(self.current_task)
        self.current_task = None

    # containers

    def list_of(self, key: Any, items: Value) -> Value:
        """Adds `items` to the possible items of the lists with this key, and returns the value that stands for these
        lists. `key` identifies the place where the list is created, for example by the node that creates the list. All
        lists created at the same place share their items.
        """
        self.add_to_cell(("items", key), items)
        return make_value("list", key)

    def dict_of(self, key: Any, items: Value) -> Value:
        """Adds `items` to the possible values in the dicts with this key, and returns the value that stands for these
        dicts (see `list_of`). The keys in these dicts are ignored.
        """
        self.add_to_cell(("items", key), items)
        return make_value("dict", key)

    def items(self, container: Atom) -> Value:
        """Returns the possible values of the items of `container`. If `container` is neither a
        list nor a dict, returns "anything"."""
        return (
            self.read_cell(("items", container.subject))
            if container.kind in ("list", "dict")
            else UNKNOWN
        )

    # attributes

    def attribute_key(self, cls: Class, name: str) -> tuple[str, Class, str]:
        """Returns the key of the cell for the attribute `name` of a class and its objects. Classes that are related by
        inheritance (a family) share the cell."""
        family = cls.family()
        # `unite_families` moves these cells when two families become one. The dict is used as an ordered set of names
        self._attributes[family].setdefault(name)
        return "attr", family, name

    def unite_families(self, cls: Class, base: Class) -> None:
        """Merges the family of a class into the family of its base. A family consists of classes that are related by
        inheritance; they share the cells of their attributes. The values in the cells of the class's family are moved
        to the cells of the base's family.
        """
        old, new = cls.family(), base.family()
        if old is new:
            return
        old.united_with = new
        # a task that has read an attribute of one class may now get the values of the other, too
        for name in self._attributes.pop(old, ()):
            key = "attr", old, name
            self.add_to_cell(self.attribute_key(new, name), self.values.get(key, NOTHING))
            self._schedule_readers(key)
