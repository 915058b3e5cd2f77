"""The facts about a project while it is interpreted: which values names, attributes and items may have. They are kept
in cells, each of which holds a set of possible values (see `cells`)."""

from __future__ import annotations

import ast

from . import knowledge
from .cells import Cells
from .guards import Env
from .project import Class, Function, Project
from .sources import PythonModule
from .values import (
    ANYTHING,
    INT,
    NONE,
    NOTHING,
    TENSOR,
    UNKNOWN,
    Atom,
    Value,
    inferred,
    make_value,
    tuple_of,
    union,
    value_of,
)


class Inference(Cells):
    """The facts about a project: the values of its names, attributes and items. The interpreter
    inherits from this class.

    `functions` and `classes` map the nodes of the project's definitions to their `Function` or
    `Class`. `loop_ends` maps each loop to the environment at its end when the loop was last
    read. An `Atom` in the arguments is one thing that an expression may be, and a `Value` a set
    of them (see `values`).
    """

    def __init__(self, project: Project) -> None:
        super().__init__()
        self.project = project
        self.functions: dict[ast.AST, Function] = {}
        self.classes: dict[ast.AST, Class] = {}
        self.methods: dict[str, list[Function]] = {}  # of all classes, by name
        # for each module, the modules that it imports and those that import it
        self.imports: dict[PythonModule, set[PythonModule]] = {}
        self.loop_ends: dict[ast.AST, Env] = {}
        # the values that `foreign` has returned, by name
        self._foreign: dict[str, Value] = {}

    def mark_as_passed_out(self, value: Value) -> None:
        """Marks the functions in a value as passed to code outside the project, which may call them with any
        arguments. Their parameters get these possible values later, when `infer` calls `assume_unknown_callers`."""
        for atom in value:
            if atom.kind in ("function", "bound"):
                atom.subject.has_unknown_callers = atom.subject.has_callers = True

    def stop_following(self, value: Value) -> None:
        """Treats everything that can be reached from a value as "anything", because the value itself is about to be
        replaced by "anything" (`UNKNOWN`): its functions may be called with any arguments, and its lists and dicts may
        hold anything."""
        for atom in value:
            match atom.kind:
                case "function" | "bound":
                    self.assume_unknown_callers(atom.subject)
                case "class":
                    init = atom.subject.method("__init__")
                    if init is not None:
                        self.assume_unknown_callers(init)
                case "list" | "dict":
                    self.add_to_cell(("items", atom.subject), UNKNOWN)
                case "tuple":
                    self.stop_following(union(*atom.subject))

    def assume_unknown_callers(self, function: Function) -> None:
        """Assumes that code outside the project calls a function: adds to the possible values of each parameter those
        that its annotation allows, or "anything" (`UNKNOWN`) if it has no annotation that is understood. The receiver
        (`self` or `cls`) is left out."""
        function.has_unknown_callers = function.has_callers = True
        for arg in function.args:
            if arg.arg != function.receiver:
                self.add_to_cell(
                    (function, arg.arg),
                    self.value_of_annotation(arg.annotation, function.module) or UNKNOWN,
                )

    def foreign(self, name: str) -> Value:
        """The value of a name outside the project, given in full, such as "torch.nn.Linear".
        All uses of a name share one `Value` object."""
        value = self._foreign.get(name)
        if value is None:
            value = self._foreign[name] = make_value("foreign", name)
        return value

    # names

    def full_name(self, node: ast.AST) -> str:
        """The full name that an expression refers to ("torch.cuda.is_available"); "" if it
        refers to none, or may refer to several."""
        # for an attribute of a module of the project, the module's name is put in front, so
        # that d2l's helpers are found even if d2l is part of the project
        if isinstance(node, ast.Attribute):
            owner = _only_atom(node.value)
            if owner.kind == "module":
                return f"{owner.subject.name}.{node.attr}"
        atom = _only_atom(node)
        if atom.kind == "foreign":
            return str(atom.subject)
        if atom.kind == "function" and atom.subject.is_global and isinstance(node, ast.Name):
            return f"{atom.subject.module.name}.{atom.subject.name}"
        return ""

    def value_of_annotation(self, node: ast.expr | None, module: PythonModule) -> Value | None:
        """The values that an annotation allows. None if there is no annotation, or if it names
        a type that is in no table of `knowledge`."""
        match node:
            # `None`, or a type in quotes
            case ast.Constant(value=value):
                return knowledge.PLAIN_TYPES.get(str(value))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                first, second = (
                    self.value_of_annotation(left, module),
                    self.value_of_annotation(right, module),
                )
                return union(first, second) if first and second else None
            case ast.Subscript(value=owner, slice=inner) if ast.unparse(owner).endswith(
                "Optional"
            ):
                item = self.value_of_annotation(inner, module)
                return union(item, NONE) if item else None
        name = self._annotated_name(node, module)
        return knowledge.PLAIN_TYPES.get(name) or knowledge.TYPES.get(name)

    def _annotated_name(self, node: ast.expr | None, module: PythonModule) -> str:
        """The full name of the type that an annotation names, resolved through its module's
        imports; "" if the annotation is neither a name nor a dotted name."""
        match node:
            case ast.Attribute(value=owner, attr=name):
                return f"{self._annotated_name(owner, module)}.{name}"
            case ast.Name(id=name):
                atoms = self.values.get((module, name), NOTHING)
                # `min` chooses the same one of several names in each run, because a set has no
                # order
                return min(
                    (atom.subject for atom in atoms if atom.kind == "foreign"), default=name
                )
        return ""

    def imported(self, name: str, importer: PythonModule) -> Value:
        """The value of `import name` in the module `importer`: a module of the project, or a
        name outside the project."""
        module = self._imported_module(name, importer)
        return self.foreign(name) if module is None else make_value("module", module)

    def imported_from(self, origin: str, name: str, importer: PythonModule) -> Value:
        """The value of `from origin import name` in the module `importer`: that of a name or
        module of the project, or a name outside the project. Empty if the name is in the
        project, but its value is not known yet."""
        module = self._imported_module(origin, importer)
        inner = self._imported_module(f"{origin}.{name}" if origin else name, importer)
        if module is not None:
            value = self.read_cell((module, name))
            # a name that the package itself binds hides its module of that name
            if value or inner is None:
                return value
        return (
            self.foreign(f"{origin}.{name}") if inner is None else make_value("module", inner)
        )

    def _imported_module(self, name: str, importer: PythonModule) -> PythonModule | None:
        """The module of the project that `importer` imports under this name; None if the module is outside the
        project, or is `importer` itself. Records the import in `imports`, for both modules."""
        module = self.project.find(name, importer) if name else None
        if module is None or module is importer:
            return None
        # in both directions: a `set_device` in one changes what "cuda" means in the other
        self.imports.setdefault(importer, set()).add(module)
        self.imports.setdefault(module, set()).add(importer)
        return module

    def global_value(self, module: PythonModule, name: str) -> Value:
        """The value of a global name of a module: its own value, together with those in the
        modules from which it imports everything (`from m import *`); empty if the name has
        none."""
        value = self.read_cell((module, name))
        for star in self.read_cell((module, "*")):
            if star.kind == "module":
                value = union(value, self.read_cell((star.subject, name)))
        return value

    # the attributes and items of values

    def attribute(self, atom: Atom, name: str, node: ast.expr) -> Value:
        """The possible values of `x.name`, where `x` is the object that `atom` stands for;
        "anything" for kinds of atoms without a rule. `node` is the expression that reads the
        attribute."""
        match atom.kind:
            case "foreign":
                return self.foreign(f"{atom.subject}.{name}")
            case "module":
                return self._attribute_of_module(atom.subject, name)
            case "instance" | "class" | "super":
                return self._attribute_of_class(atom, name)
            # what `parse_args` returns; a name that no `add_argument` has added may be anything
            case "namespace":
                return self.read_cell(("arg", atom.subject, name)) or UNKNOWN
            case "tensor" if name == "shape":
                return self.list_of(node, INT)
            case "tensor":
                return knowledge.TENSOR_ATTRIBUTES.get(name, UNKNOWN)
            # a device of xdevice has the framework's own device as an attribute: the value is
            # the same, a device
            case "device" if name == "native":
                return value_of(atom)
            case "device":
                return knowledge.DEVICE_ATTRIBUTES.get(name, UNKNOWN)
            case "result":
                return knowledge.RESULT_ATTRIBUTES.get((atom.subject, name), UNKNOWN)
        return UNKNOWN

    def _attribute_of_module(self, module: PythonModule, name: str) -> Value:
        """The possible values of an attribute of a module of the project: those of a global
        name, or the module of this name inside the package. Empty if there is neither."""
        value = self.read_cell((module, name))
        # in `a.b.c` after `import a`, b may be a module inside the package a: it is an attribute
        # of a once any module has imported it
        inner = None if value else self.project.find(f"{module.name}.{name}", module)
        if inner is not None and inner is not module:
            return make_value("module", inner)
        return value or self.global_value(module, name)

    def _attribute_of_class(self, atom: Atom, name: str) -> Value:
        """The possible values of an attribute of a class of the project (kind "class"), of its
        objects ("instance"), or of `super()` in it ("super"). For a property, they are the
        values that it returns."""
        cls: Class = atom.subject
        values = self.read_cell(self.attribute_key(cls, name))
        method = cls.method(name, is_super=atom.kind == "super")
        if method is None:
            if name == "__class__":
                return make_value("class", cls)
            # the values that this attribute got on objects of unknown classes: these objects
            # may be of this class
            on_unknown = self.read_cell(("attr", None, name))
            inner = cls.inner_class(name, is_super=atom.kind == "super")
            if inner is not None:
                # inner classes of this name in the cell may belong to other classes of the
                # family; this class has only the one found above
                others = frozenset(
                    value for value in values if not _is_inner_class(value, name)
                )
                return union(make_value("class", inner), others, on_unknown)
            if values:
                return union(values, on_unknown)
            # nothing known sets the attribute. A base outside the project may define it;
            # without such a base, only objects of unknown classes may have got it
            return UNKNOWN if cls.foreign_bases else on_unknown
        if atom.kind == "class":
            return make_value("function", method)
        # the method of a base gets objects of this class as its `self`, too
        if method.receiver:
            self.add_to_cell((method, method.receiver), make_value("instance", cls))
        if method.is_property:
            method.has_callers = True
            return self.read_cell((method, "return"))
        # the method, or whatever the program has assigned to the attribute; functions are left
        # out, because the class's body has put the method itself into the cell
        return union(
            make_value("bound", method),
            frozenset(value for value in values if value.kind != "function"),
        )

    def iterate(self, value: Value) -> Value:
        """The possible values of the variable in a loop over this value."""
        return union(*map(self._iterate_atom, value))

    def _iterate_atom(self, atom: Atom) -> Value:
        """The possible values of the variable in a loop over the object that `atom` stands
        for."""
        match atom.kind:
            case "tensor" | "array" | "str":
                return value_of(atom)
            case "list":
                return self.items(atom)
            case "tuple":
                return union(*atom.subject)
            case "instance":
                method = atom.subject.method("__iter__")
                # without __iter__, Python loops over indices; an __iter__ that loops over its own
                # object is treated in the same way, because its result depends on itself
                if method is None or method is self.current_task:
                    return self.item_of(atom)
                method.has_callers = True
                iterator = self.read_cell((method, "return"))
                return UNKNOWN if atom in iterator else self.iterate(iterator)
        return UNKNOWN

    def item_of(self, atom: Atom) -> Value:
        """The possible values of `x[i]`, where `x` is the object that `atom` stands for: a
        list, a data set, or an object with `__getitem__`. "Anything" for other objects."""
        # a data set of images from a framework, whose items are an image and a label
        if atom == Atom("result", "dataset"):
            return tuple_of([TENSOR, TENSOR])
        if atom.kind == "list":
            return self.items(atom)
        method = atom.subject.method("__getitem__") if atom.kind == "instance" else None
        if method is None:
            return UNKNOWN
        # `x[i]` calls the method with the object itself and an index
        method.has_callers = True
        for name, value in zip(method.positional, (value_of(atom), INT), strict=False):
            self.add_to_cell((method, name), value)
        return self.read_cell((method, "return"))


def _is_inner_class(atom: Atom, name: str) -> bool:
    """Whether an atom is a class with this name that is defined inside another class."""
    return atom.kind == "class" and atom.subject.outer is not None and atom.subject.name == name


def _only_atom(node: ast.AST) -> Atom:
    """The one atom that an expression can be; `ANYTHING` if the expression can be several, or
    if nothing is known about it yet."""
    means = inferred(node)
    return next(iter(means)) if len(means) == 1 else ANYTHING
