"""Programs whose compiled function reads something that then changes: it gives the new values, or is refused."""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers.environment import BACKENDS

import xdevice

COMPILING = [name for name in ("jax", "tensorflow", "torch") if name in BACKENDS]
OTHER = "settings_of_outside"

# each defines `f`, a function of a tensor that gives twice of it, and `change`, after which it gives three times of it
SEEN = {
    "global": """
rate=2.0
def f(x): return x*rate
def change():
    global rate; rate=3.0
""",
    "global list": """
rates=[2.0]
def f(x): return x*rates[0]
def change(): rates[0]=3.0
""",
    "nested dict": """
c={'a':{'b':[2.0]}}
def f(x): return x*c['a']['b'][0]
def change(): c['a']['b'][0]=3.0
""",
    "closure": """
def make():
    k=2.0
    def f(x): return x*k
    def change():
        nonlocal k; k=3.0
    return f,change
f,change=make()
""",
    "default": """
def f(x,k=2.0): return x*k
def change(): f.__defaults__=(3.0,)
""",
    "kwdefault": """
def f(x,*,k=2.0): return x*k
def change(): f.__kwdefaults__={'k':3.0}
""",
    "code": """
def f(x): return x*2.0
def g(x): return x*3.0
def change(): f.__code__=g.__code__
""",
    "helper": """
rate=2.0
def h(x): return x*rate
def f(x): return h(x)
def change():
    global rate; rate=3.0
""",
    "helper code": """
def h(x): return x*2.0
def f(x): return h(x)
def change():
    global h
    def h(x): return x*3.0
""",
    "helper attr": """
def h(x): return x*h.k
h.k=2.0
def f(x): return h(x)
def change(): h.k=3.0
""",
    "own attr": """
def f(x): return x*f.k
f.k=2.0
def change(): f.k=3.0
""",
    "late attr": """
def f(x): return x*getattr(f,'k',2.0)
def change(): f.k=3.0
""",
    "wraps global": """
import functools
k=2.0
def deco(fn):
    @functools.wraps(fn)
    def w(x): return fn(x)*k
    return w
@deco
def h(x): return x
def f(x): return h(x)
def change():
    global k; k=3.0
""",
    "wraps library": """
import functools,math
k=2.0
@functools.wraps(math.sin)
def h(x): return x*k
def f(x): return h(x)
def change():
    global k; k=3.0
""",
    "wraps xdevice": """
import functools,xdevice
k=2.0
@functools.wraps(xdevice.to_device)
def h(x): return x*k
def f(x): return h(x)
def change():
    global k; k=3.0
""",
    "wrapped other": """
import xdevice
k=2.0
def inner(x): return xdevice.array_namespace().sum(x*x*(k/2))
vg=xdevice.math.value_and_grad(inner)
def f(x): return vg(x)[1]
def change():
    global k; k=3.0
""",
    "class attr": """
class C: k=2.0
def f(x): return x*C.k
def change(): C.k=3.0
""",
    "base attr": """
class B: k=2.0
class C(B): pass
def f(x): return x*C.k
def change(): B.k=3.0
""",
    "class list": """
class C: k=[2.0]
def f(x): return x*C.k[0]
def change(): C.k[0]=3.0
""",
    "inherited method": """
k=2.0
class B:
    @staticmethod
    def m(x): return x*k
class C(B): pass
def f(x): return C.m(x)
def change():
    global k; k=3.0
""",
    "class method call": """
k=2.0
class C:
    def __call__(self,x): return x*k
def f(x): return C()(x)
def change():
    global k; k=3.0
""",
    "init global": """
k=2.0
class C:
    def __init__(self): self.k=k
def f(x): return x*C().k
def change():
    global k; k=3.0
""",
    "eq": """
k=2.0
class C:
    def __eq__(self,o): return k==2.0
    __hash__=None
def f(x): return x*(2.0 if C()==1 else 3.0)
def change():
    global k; k=3.0
""",
    "default factory": """
from dataclasses import dataclass,field
k=[2.0]
@dataclass
class C:
    r: list=field(default_factory=lambda: list(k))
def f(x): return x*C().r[0]
def change(): k[0]=3.0
""",
    "dataclass default": """
from dataclasses import dataclass
@dataclass
class C:
    r: float=2.0
def f(x): return x*C().r
def change(): C.__init__.__defaults__=(3.0,)
""",
    "enum value": """
from enum import Enum
class E(Enum):
    A=2.0
def f(x): return x*E.A.value
def change(): E.A._value_=3.0
""",
    "enum attr": """
from enum import Enum
class E(Enum):
    A=2.0
E.A.k=2.0
def f(x): return x*E.A.k
def change(): E.A.k=3.0
""",
    "enum method": """
from enum import Enum
k=2.0
class E(Enum):
    A=1
    def m(self): return k
def f(x): return x*E.A.m()
def change():
    global k; k=3.0
""",
    "partial kw": """
from functools import partial
def h(x,k): return x*k
p=partial(h,k=2.0)
def f(x): return p(x)
def change(): p.keywords['k']=3.0
""",
    "partial xp": """
from functools import partial
import xdevice
xp=xdevice.array_namespace()
p=partial(xp.full_like,fill_value=2.0)
def f(x): return x*p(x)
def change(): p.keywords['fill_value']=3.0
""",
    "itemgetter": """
import operator
l=[2.0]
def f(x): return x*operator.itemgetter(0)(l)
def change(): l[0]=3.0
""",
    "later name": """
def f(x):
    try: return x*later
    except NameError: return x*2.0
def change():
    global later; later=3.0
""",
    "later builtin": """
def f(x): return x*abs(-2.0)
def change():
    global abs
    abs=lambda v: 3.0
""",
    "vars": """
class C: k=2.0
def f(x): return x*vars(C)['k']
def change(): C.k=3.0
""",
    "getattr": """
class C: k=2.0
def f(x): return x*getattr(C,'k')
def change(): C.k=3.0
""",
    "classmethod": """
class C:
    k=2.0
    @classmethod
    def m(cls,x): return x*cls.k
def f(x): return C.m(x)
def change(): C.k=3.0
""",
    "property": """
k=2.0
class C:
    @property
    def p(self): return k
def f(x): return x*C().p
def change():
    global k; k=3.0
""",
    "inherited property": """
k=2.0
class B:
    @property
    def p(self): return k
class C(B): pass
def f(x): return x*C().p
def change():
    global k; k=3.0
""",
    "cached property": """
import functools
k=2.0
class C:
    @functools.cached_property
    def p(self): return k
def f(x): return x*C().p
def change():
    global k; k=3.0
""",
    "generator": """
k=2.0
def gen(): yield k
def f(x): return x*next(gen())
def change():
    global k; k=3.0
""",
    "lambda in list": """
fs=[lambda x: x*2.0]
def f(x): return fs[0](x)
def change(): fs[0]=lambda x: x*3.0
""",
    "class arg": """
class C: k=2.0
def f(x,c=C): return x*c.k
def change(): C.k=3.0
""",
    "numpy scalar": """
import numpy
a=numpy.float32(2.0)
def f(x): return x*a
def change():
    global a; a=numpy.float32(3.0)
""",
    "class in function": """
k=2.0
def f(x):
    class C:
        def m(self): return k
    return x*C().m()
def change():
    global k; k=3.0
""",
    "abc": """
from abc import ABC
class B(ABC):
    k=2.0
class C(B): pass
def f(x): return x*C.k
def change(): B.k=3.0
""",
    "class getattr": """
k=2.0
class C:
    def __getattr__(self,n): return k
def f(x): return x*C().zz
def change():
    global k; k=3.0
""",
    "new class attr": """
class C: pass
def f(x): return x*getattr(C,'k',2.0)
def change(): C.k=3.0
""",
    "bases": """
class A: k=2.0
class B: k=3.0
class C(A): pass
def f(x): return x*C.k
def change(): C.__bases__=(B,)
""",
}
REFUSED = {
    "meta attr": """
class M(type):
    k=2.0
class C(metaclass=M): pass
def f(x): return x*C.k
def change(): M.k=3.0
""",
    "meta property": """
k=2.0
class M(type):
    @property
    def k(cls): return k
class C(metaclass=M): pass
def f(x): return x*C.k
def change():
    global k; k=3.0
""",
    "slot of base": """
class B:
    __slots__=('k',)
class C(B):
    __slots__=()
c=C(); c.k=2.0
def f(x): return x*c.k
def change(): c.k=3.0
""",
    "instance": """
class C: pass
c=C(); c.k=2.0
def f(x): return x*c.k
def change(): c.k=3.0
""",
    "namespace": """
from types import SimpleNamespace
c=SimpleNamespace(k=2.0)
def f(x): return x*c.k
def change(): c.k=3.0
""",
    "list subclass": """
class L(list): pass
l=L(); l.k=2.0
def f(x): return x*l.k
def change(): l.k=3.0
""",
    "dict subclass": """
class L(dict): pass
l=L(); l.k=2.0
def f(x): return x*l.k
def change(): l.k=3.0
""",
    "tuple subclass": """
class L(tuple): pass
l=L(); l.k=2.0
def f(x): return x*l.k
def change(): l.k=3.0
""",
    "str subclass": """
class L(str): pass
l=L('a'); l.k=2.0
def f(x): return x*l.k
def change(): l.k=3.0
""",
    "int subclass": """
class L(int): pass
l=L(1); l.k=2.0
def f(x): return x*l.k
def change(): l.k=3.0
""",
    "float subclass": """
class L(float): pass
l=L(1); l.k=2.0
def f(x): return x*l.k
def change(): l.k=3.0
""",
    "bound": """
class C:
    k=2.0
    def m(self,x): return x*self.k
c=C(); m=c.m
def f(x): return m(x)
def change(): c.k=3.0
""",
    "bound list": """
l=[2.0]
g=l.__getitem__
def f(x): return x*g(0)
def change(): l[0]=3.0
""",
    "sys.modules": """
import sys
k=2.0
def f(x): return x*sys.modules[NAME].k
def change():
    global k; k=3.0
""",
    "sys attr": """
import sys
sys.k=2.0
def f(x): return x*sys.k
def change(): sys.k=3.0
""",
    "module import": """
def f(x):
    import settings_of_outside
    return x*settings_of_outside.k
def change():
    import settings_of_outside
    settings_of_outside.k=3.0
""",
    "module from import": """
def f(x):
    from settings_of_outside import k
    return x*k
def change():
    import settings_of_outside
    settings_of_outside.k=3.0
""",
    "importlib": """
import importlib
def f(x): return x*importlib.import_module('settings_of_outside').k
def change():
    import settings_of_outside
    settings_of_outside.k=3.0
""",
    "globals()": """
k=2.0
def f(x): return x*globals()['k']
def change():
    global k; k=3.0
""",
    "f.__globals__": """
k=2.0
def f(x): return x*f.__globals__['k']
def change():
    global k; k=3.0
""",
    "subclasses": """
class B: pass
class C(B): k=2.0
def f(x): return x*B.__subclasses__()[0].k
def change(): C.k=3.0
""",
    "descriptor": """
k=2.0
class D:
    def __get__(self,o,t): return k
class C: p=D()
def f(x): return x*C.p
def change():
    global k; k=3.0
""",
    "lru_cache": """
import functools
k=2.0
@functools.lru_cache(None)
def h(): return 1.0
def f(x): return x*h()*k
def change():
    global k; k=3.0
""",
    "singledispatch": """
import functools
@functools.singledispatch
def h(v): return 2.0
def f(x): return x*h(1)
def change(): h.register(int,lambda v: 3.0)
""",
    "deque": """
from collections import deque
d=deque([2.0])
def f(x): return x*d[0]
def change(): d[0]=3.0
""",
    "defaultdict": """
from collections import defaultdict
k=2.0
d=defaultdict(lambda: k)
def f(x): return x*(d.pop('a',None) or d.default_factory())
def change():
    global k; k=3.0
""",
    "numpy": """
import numpy
a=numpy.array(2.0,'float32')
def f(x): return x*a
def change(): a[...]=3.0
""",
    "environ": """
import os
os.environ['FBK']='2.0'
def f(x): return x*float(os.environ['FBK'])
def change(): os.environ['FBK']='3.0'
""",
    "contextvar": """
from contextvars import ContextVar
v=ContextVar('v',default=2.0)
def f(x): return x*v.get()
def change(): v.set(3.0)
""",
    "threading local": """
import threading
t=threading.local(); t.k=2.0
def f(x): return x*t.k
def change(): t.k=3.0
""",
    "iterator": """
import itertools
c=itertools.count(2)
def f(x): return x*float(next(c))
def change(): pass
""",
    "mappingproxy": """
from types import MappingProxyType
d={'k':2.0}
m=MappingProxyType(d)
def f(x): return x*m['k']
def change(): d['k']=3.0
""",
    "weakref": """
import weakref
class C: k=2.0
r=weakref.ref(C)
def f(x): return x*r().k
def change(): C.k=3.0
""",
    "namedtuple attr": """
from collections import namedtuple
class P(namedtuple('P','a')): pass
p=P(1.0); p.k=2.0
def f(x): return x*p.k
def change(): p.k=3.0
""",
}


@pytest.fixture(params=COMPILING)
def compiling(request):
    with xdevice.use_backend(request.param) as chosen:
        yield chosen


@pytest.fixture
def program(monkeypatch):
    """A module with the text of a program, and beside it one that it may import."""

    def of_text(text):
        other = ModuleType(OTHER)
        other.k = 2.0
        module = ModuleType("program_of_outside")
        module.NAME = module.__name__
        for one in (other, module):
            monkeypatch.setitem(sys.modules, one.__name__, one)
        exec(compile(text, "program_of_outside.py", "exec"), vars(module))
        return module

    return of_text


def values(x):
    return xdevice.to_numpy(x).tolist()


@pytest.mark.parametrize("case", SEEN)
def test_what_a_function_reads_is_seen_when_it_changes(compiling, program, case):
    module, x = program(SEEN[case]), xdevice.tensor([1.0, 2.0])
    compiled = xdevice.compile(module.f)
    assert values(compiled(x)) == values(compiled(x)) == [2.0, 4.0]
    module.change()
    assert values(compiled(x)) == values(module.f(x)) == [3.0, 6.0]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_seen_is_refused_at_the_first_call(compiling, program, case):
    module = program(REFUSED[case])
    with pytest.raises(
        xdevice.errors.UnsupportedError,
        match=r"a compiled function would not notice if this value changed"
        r"|which may lead to variables that a compiled function cannot check",
    ):
        xdevice.compile(module.f)(xdevice.tensor([1.0, 2.0]))


class Factors(list):
    pass


class Named(dict):
    pass


class Both(tuple):
    pass


class Slotted(list):
    __slots__ = ("k",)


class Inheriting(Slotted):
    __slots__ = ()


class Point(namedtuple("Point", "a")):
    pass


class Mode(Enum):
    TRAIN = 1


class Rated:
    k = 2.0


@dataclass
class Net(Rated):
    x: object

    def scaled(self):
        return self.x * self.k


def with_k(x, k=2.0):
    x.k = k
    return x


def scaled(x, k):
    return x * k


# the argument made with 2 and with 3, and the function
ARGUMENTS: dict[str, Any] = {
    "an attribute of a list": (lambda x, k: with_k(Factors([x]), k), lambda v: v[0] * v.k),
    "an attribute of a dict": (lambda x, k: with_k(Named(x=x), k), lambda v: v["x"] * v.k),
    "an attribute of a tuple": (lambda x, k: with_k(Both([x]), k), lambda v: v[0] * v.k),
    "an attribute of a named tuple": (lambda x, k: with_k(Point(x), k), lambda v: v.a * v.k),
    "an attribute of an inner list": (
        lambda x, k: {"a": [with_k(Factors([x]), k)]}, lambda v: v["a"][0][0] * v["a"][0].k
    ),
    "a list in an attribute": (lambda x, k: with_k(Factors([x]), [1.0, {"k": k}]), lambda v: v[0] * v.k[1]["k"]),
    "a slot": (lambda x, k: with_k(Slotted([x]), k), lambda v: v[0] * v.k),
    "a slot of a base": (lambda x, k: with_k(Inheriting([x]), k), lambda v: v[0] * v.k),
    "a factory": (lambda x, k: defaultdict(lambda: k, x=x), lambda v: v["x"] * v.default_factory()),
    "a field": (lambda x, k: with_k(Net(x), k), lambda v: v.scaled()),
    "a namespace": (lambda x, k: SimpleNamespace(x=x, k=k), lambda v: v.x * v.k),
    "items": (lambda x, k: OrderedDict(x=x, k=k), lambda v: v["x"] * v["k"]),
    "items of a mapping": (lambda x, k: UserDict(x=x, k=k), lambda v: v["x"] * v["k"]),
    "a partial": (lambda x, k: [x, partial(scaled, k=k)], lambda v: v[1](v[0])),
    "a range": (lambda x, k: [x, range(0, 1, int(k))], lambda v: v[0] * v[1].step),
    "a bool": (lambda x, k: [x, 1 if k == 2.0 else True], lambda v: v[0] * (2.0 if type(v[1]) is int else 3.0)),
    "a zero": (
        lambda x, k: [x, 0j if k == 2.0 else complex(-0.0, 0)], lambda v: v[0] * (2.0 if str(v[1]) == "0j" else 3.0)
    ),
    "a key": (lambda x, k: {1 if k == 2.0 else True: x}, lambda v: v[1] * (2.0 if type(next(iter(v))) is int else 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_what_is_beside_the_tensors_of_an_argument_counts(compiling, case):
    make, function = ARGUMENTS[case]
    x, compiled = xdevice.tensor([1.0, 2.0]), xdevice.compile(function)
    for k in (2.0, 3.0, 2.0):
        assert values(compiled(make(x, k))) == [k, 2 * k]


def test_a_variable_of_the_class_of_an_argument_counts(compiling, monkeypatch):
    compiled, x = (
        xdevice.compile(lambda net, mode: net.scaled() * getattr(mode, "k", 1.0)),
        xdevice.tensor([1.0]),
    )
    assert values(compiled(Net(x), Mode.TRAIN)) == [2.0]
    monkeypatch.setattr(Rated, "k", 3.0)
    assert values(compiled(Net(x), Mode.TRAIN)) == [3.0]
    monkeypatch.setattr(Mode.TRAIN, "k", 2.0, raising=False)
    assert values(compiled(Net(x), Mode.TRAIN)) == [6.0]
    with pytest.raises(
        xdevice.errors.ArgumentError,
        match=r"an argument has \['Factors.k'\], .* of type object",
    ):
        xdevice.compile(lambda v: v[0])(with_k(Factors([x]), object()))


@pytest.mark.parametrize("cls", [Both, Factors, Point, Named])
def test_tensors_beside_the_items_of_a_result_stay_in_their_places(compiling, cls):
    def function(x):
        beside = cls(x=x) if cls is Named else cls(x) if cls is Point else cls([x])
        return {"p": with_k(beside, x * 10), "b": x * 100, "n": 5, "last": [x * 1000]}

    x = xdevice.tensor([1.0])
    compiled = xdevice.compile(function)
    for _ in range(2):
        result = compiled(x)
        assert (type(result["p"]), result["n"]) == (cls, 5)
        assert [values(one) for one in (result["p"].k, result["b"], result["last"][0])] == [
            [10.0],
            [100.0],
            [1000.0],
        ]


def test_what_pip_has_installed_is_a_library_wherever_it_lies(compiling, tmp_path, monkeypatch):
    for name in ("installed_of_outside", "written_of_outside"):
        folder = tmp_path / name
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(
            "state = object()\ndef double(x): return x * 2.0 if state else x"
        )
        monkeypatch.syspath_prepend(folder)
    (tmp_path / "installed_of_outside" / "installed_of_outside-1.0.dist-info").mkdir()
    import installed_of_outside
    import written_of_outside

    x = xdevice.tensor([1.0])
    assert values(xdevice.compile(lambda x: installed_of_outside.double(x))(x)) == [2.0]
    with pytest.raises(
        xdevice.errors.UnsupportedError, match=r"written_of_outside is .* of type module"
    ):
        xdevice.compile(lambda x: written_of_outside.double(x))(x)


IMPORTING = """
def by_import(x):
    import settings_in_a_file
    return x * settings_in_a_file.k

def by_name(x):
    from settings_in_a_file import k
    return x * k

def of_the_package(x):
    from . import settings_in_a_file
    return x * settings_in_a_file.k

def without(x):
    return x * len(x.data if hasattr(x, "no_such_attribute") else [1.0, 2.0])
"""


def test_a_function_is_refused_for_what_it_imports_itself(compiling, tmp_path, monkeypatch):
    (tmp_path / "settings_in_a_file.py").write_text("k = 2.0")
    (tmp_path / "data.py").write_text("")  # a module of the program, named as an attribute is
    (tmp_path / "importing_of_outside.py").write_text(IMPORTING)
    monkeypatch.syspath_prepend(tmp_path)
    import data  # noqa: F401
    import importing_of_outside as module

    x = xdevice.tensor([1.0])
    for function in (module.by_import, module.by_name, module.of_the_package):
        with pytest.raises(
            xdevice.errors.UnsupportedError, match="would not notice if this value changed"
        ):
            xdevice.compile(function)(x)
    assert values(xdevice.compile(module.without)(x)) == [2.0]
    written = {}
    exec(IMPORTING, written)  # nobody keeps its source, and the module was not imported so far
    with pytest.raises(xdevice.errors.UnsupportedError, match="settings_in_a_file"):
        xdevice.compile(written["by_import"])(x)


UNRELATED = """
class Rows:
    pass

rows = Rows()

def step(batch):
    return batch.rows() if hasattr(batch, "no_such_attribute") else batch * 2.0

def refused(x):
    return x if rows is None else x * 2.0
"""


def test_a_global_with_the_name_of_an_attribute_is_not_read(compiling, tmp_path, monkeypatch):
    (tmp_path / "unrelated_rows.py").write_text(UNRELATED)
    monkeypatch.syspath_prepend(tmp_path)
    x, module = xdevice.tensor([1.0, 2.0]), importlib.import_module("unrelated_rows")
    monkeypatch.delitem(sys.modules, "unrelated_rows")
    assert values(xdevice.compile(module.step)(x)) == [2.0, 4.0]
    with pytest.raises(xdevice.errors.UnsupportedError, match="of type Rows"):
        xdevice.compile(module.refused)(x)
