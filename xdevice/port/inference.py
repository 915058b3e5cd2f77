"""The facts about a project that is being interpreted: the values that names, attributes and items may have. The values
are stored in cells; each cell contains a set of possible values (see `cells`).
"""

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

    `functions` and `classes` map the nodes of the project's definitions to their `Function` or `Class`. `loop_ends`
    maps each loop to the environment at its end when the loop was last interpreted. In the arguments, an `Atom` is one
    thing that an expression may be, and a `Value` is a set of atoms (see `values`).
    """

    def __init__(self, project: Project) -> None:
        super().__init__()
        self.project = project
        self.functions: dict[ast.AST, Function] = {}
        self.classes: dict[ast.AST, Class] = {}
        self.methods: dict[str, list[Function]] = {}  # the methods of all classes, by name
        # for each module, both the modules that it imports and the modules that import it
        self.imports: dict[PythonModule, set[PythonModule]] = {}
        self.loop_ends: dict[ast.AST, Env] = {}
        # the values that `foreign_value` has returned, by their names
        self._foreign: dict[str, Value] = {}

    def mark_as_passed_out(self, value: Value) -> None:
        """Marks the functions in a value as passed to code outside the project, which may call these functions with any
        arguments. The values of such arguments are added to the parameters later, when `infer` calls
        `assume_unknown_callers`.
        """
        for atom in value:
            if atom.kind in ("function", "bound"):
                atom.subject.has_unknown_callers = atom.subject.has_callers = True

    def stop_following(self, value: Value) -> None:
        """Prepares a value for its replacement by "anything" (`UNKNOWN`). From now on, functions in the value may be
        called with any arguments. Lists and dicts in the value may contain anything.
        """
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
        """Assumes that code outside the project calls a function. Each parameter gets the additional values that its
        annotation allows, or "anything" (`UNKNOWN`) if the annotation is missing or not understood. The receiver
        (`self` or `cls`) is left out."""
        function.has_unknown_callers = function.has_callers = True
        for arg in function.args:
            if arg.arg != function.receiver:
                self.add_to_cell(
                    (function, arg.arg),
                    self.value_of_annotation(arg.annotation, function.module) or UNKNOWN,
                )

    def foreign_value(self, name: str) -> Value:
        """Returns the value of a name that is defined outside the project. `name` is the full
        name, such as "torch.nn.Linear". The same `Value` object is returned for all uses of a
        name."""
        value = self._foreign.get(name)
        if value is None:
            value = self._foreign[name] = make_value("foreign", name)
        return value

    # names

    def full_name(self, node: ast.AST) -> str:
        """Returns the full name to which an expression refers, such as "torch.cuda.is_available"; "" if the expression
        does not refer to a name, or may refer to several names.
        """
        # the full name of an attribute of a module of the project begins with the name of the
        # module, so that d2l's helpers are found even if d2l is part of the project
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
        """Returns the values that an annotation allows; None if there is no annotation, or if the annotated type is in
        no table of `knowledge`.
        """
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
        """Returns the full name of the type that an annotation names, resolved through its
        module's imports; "" if the annotation is neither a name nor a dotted name."""
        match node:
            case ast.Attribute(value=owner, attr=name):
                return f"{self._annotated_name(owner, module)}.{name}"
            case ast.Name(id=name):
                atoms = self.values.get((module, name), NOTHING)
                # `min`, because a set has no order, but each run must choose the same name
                return min(
                    (atom.subject for atom in atoms if atom.kind == "foreign"), default=name
                )
        return ""

    def value_of_import(self, name: str, importer: PythonModule) -> Value:
        """Returns the value that `import name` binds in the module `importer`: a module of the
        project, or a name outside the project."""
        module = self._imported_module(name, importer)
        return self.foreign_value(name) if module is None else make_value("module", module)

    def value_of_from_import(self, origin: str, name: str, importer: PythonModule) -> Value:
        """Returns the value that `from origin import name` binds in the module `importer`. This may
        be the value of a name of the project, a module of the project, or a name outside the
        project. The result is empty if the name is in the project, but its value is not known
        yet."""
        module = self._imported_module(origin, importer)
        inner = self._imported_module(f"{origin}.{name}" if origin else name, importer)
        if module is not None:
            value = self.read_cell((module, name))
            # a name that the package itself binds hides the module of that name in the package
            if value or inner is None:
                return value
        return (
            self.foreign_value(f"{origin}.{name}")
            if inner is None
            else make_value("module", inner)
        )

    def _imported_module(self, name: str, importer: PythonModule) -> PythonModule | None:
        """Returns the module of the project that `importer` imports under this name; None if the module is outside the
        project, or is `importer` itself. Records the import in `imports`, for both modules."""
        module = self.project.find_module(name, importer) if name else None
        if module is None or module is importer:
            return None
        # in both directions: a `set_device` in one module changes the meaning of "cuda" in the
        # other
        self.imports.setdefault(importer, set()).add(module)
        self.imports.setdefault(module, set()).add(importer)
        return module

    def global_value(self, module: PythonModule, name: str) -> Value:
        """Returns the possible values of a global name of a module. If the module contains `from m import *`, the
        values of the same name in the module `m` are included. The result is empty if the name has no values.
        """
        value = self.read_cell((module, name))
        for star in self.read_cell((module, "*")):
            if star.kind == "module":
                value = union(value, self.read_cell((star.subject, name)))
        return value

    # the attributes and items of values

    def attribute(self, atom: Atom, name: str, node: ast.expr) -> Value:
        """Returns the possible values of `x.name`, where `x` is the object that `atom` stands for. The result is
        "anything" for kinds of atoms that this method does not handle. `node` is the expression that reads the
        attribute.
        """
        match atom.kind:
            case "foreign":
                return self.foreign_value(f"{atom.subject}.{name}")
            case "module":
                return self._attribute_of_module(atom.subject, name)
            case "instance" | "class" | "super":
                return self._attribute_of_class(atom, name)
            # the result of `parse_args`; an attribute that no `add_argument` has added may be
            # anything
            case "namespace":
                return self.read_cell(("arg", atom.subject, name)) or UNKNOWN
            case "tensor" if name == "shape":
                return self.list_of(node, INT)
            case "tensor":
                return knowledge.TENSOR_ATTRIBUTES.get(name, UNKNOWN)
            # this attribute of an xdevice device is the framework's own device, which has the
            # same value here
            case "device" if name == "native":
                return value_of(atom)
            case "device":
                return knowledge.DEVICE_ATTRIBUTES.get(name, UNKNOWN)
            case "result":
                return knowledge.RESULT_ATTRIBUTES.get((atom.subject, name), UNKNOWN)
        return UNKNOWN

    def _attribute_of_module(self, module: PythonModule, name: str) -> Value:
        """Returns the possible values of the attribute `name` of a module of the project. The attribute is a global
        name of the module or, if the module is a package, a module in this package. The result is empty if there is no
        such attribute.
        """
        value = self.read_cell((module, name))
        # in `a.b.c` after `import a`, b may be a module in the package a. It is an attribute of a as soon as any module
        # has imported it
        inner = None if value else self.project.find_module(f"{module.name}.{name}", module)
        if inner is not None and inner is not module:
            return make_value("module", inner)
        return value or self.global_value(module, name)

    def _attribute_of_class(self, atom: Atom, name: str) -> Value:
        """Returns the possible values of an attribute. The kind of the atom is "class" for an
        attribute of a class of the project, "instance" for an attribute of its objects, and "super"
        for an attribute of `super()` in its methods. For a property, returns the values that the
        property may return."""
        cls: Class = atom.subject
        values = self.read_cell(self.attribute_key(cls, name))
        method = cls.method(name, is_super=atom.kind == "super")
        if method is None:
            if name == "__class__":
                return make_value("class", cls)
            # the values assigned to this attribute of objects whose classes are unknown: they
            # may be objects of this class
            on_unknown = self.read_cell(("attr", None, name))
            inner = cls.inner_class(name, is_super=atom.kind == "super")
            if inner is not None:
                # the cell may contain inner classes of this name that belong to other classes
                # of the family; this class has only `inner`
                others = frozenset(
                    value for value in values if not _is_inner_class(value, name)
                )
                return union(make_value("class", inner), others, on_unknown)
            if values:
                return union(values, on_unknown)
            # no known code sets the attribute. A base outside the project may define it.
            # Without such a base, it can only have been set on an object whose class is unknown
            return UNKNOWN if cls.foreign_bases else on_unknown
        if atom.kind == "class":
            return make_value("function", method)
        # the `self` of a base's method may also be an object of this class
        if method.receiver:
            self.add_to_cell((method, method.receiver), make_value("instance", cls))
        if method.is_property:
            method.has_callers = True
            return self.read_cell((method, "return"))
        # the method, or whatever the program has assigned to the attribute. Functions are left
        # out, because the class's body has added the method itself to the cell
        return union(
            make_value("bound", method),
            frozenset(value for value in values if value.kind != "function"),
        )

    def value_of_items(self, value: Value) -> Value:
        """Returns the possible values of `x` in `for x in y`, where `value` is the value of `y`."""
        return union(*map(self._value_of_atom_items, value))

    def _value_of_atom_items(self, atom: Atom) -> Value:
        """Returns the possible values of `x` in `for x in y`, where `y` is the object that `atom` stands for."""
        match atom.kind:
            case "tensor" | "array" | "str":
                return value_of(atom)
            case "list":
                return self.items(atom)
            case "tuple":
                return union(*atom.subject)
            case "instance":
                method = atom.subject.method("__iter__")
                # without `__iter__`, Python loops over indices. An `__iter__` that loops over its own object is treated
                # in the same way, because its result depends on itself
                if method is None or method is self.current_task:
                    return self.value_of_subscript(atom)
                method.has_callers = True
                iterator = self.read_cell((method, "return"))
                return UNKNOWN if atom in iterator else self.value_of_items(iterator)
        return UNKNOWN

    def value_of_subscript(self, atom: Atom) -> Value:
        """Returns the possible values of `x[i]`, where `x` is the object that `atom` stands
        for: a list, a data set, or an object with `__getitem__`. For all other objects, returns
        "anything"."""
        # a framework's data set of images, whose items consist of an image and a label
        if atom == Atom("result", "dataset"):
            return tuple_of([TENSOR, TENSOR])
        if atom.kind == "list":
            return self.items(atom)
        method = atom.subject.method("__getitem__") if atom.kind == "instance" else None
        if method is None:
            return UNKNOWN
        # `x[i]` calls the method with x itself and an index
        method.has_callers = True
        for name, value in zip(method.positional, (value_of(atom), INT), strict=False):
            self.add_to_cell((method, name), value)
        return self.read_cell((method, "return"))


def _is_inner_class(atom: Atom, name: str) -> bool:
    """Whether an atom is a class with this name that is defined inside another class."""
    return atom.kind == "class" and atom.subject.outer is not None and atom.subject.name == name


def _only_atom(node: ast.AST) -> Atom:
    """Returns the only atom in the value of an expression; `ANYTHING` if the value has several
    atoms, or is still empty."""
    means = inferred(node)
    return next(iter(means)) if len(means) == 1 else ANYTHING
