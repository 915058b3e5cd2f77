"""Every error of xdevice goes whole through pickle, copies and pools of processes."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import os
import pickle
import pkgutil
import re
import sys

import pytest
from helpers.environment import any_framework, python, sampled

import xdevice

# those that a later module may define count too
for module in pkgutil.iter_modules(xdevice.__path__):
    if module.name not in ("__main__", "pytest_plugin", "pytest_recording"):
        importlib.import_module(f"xdevice.{module.name}")


def subclasses(cls):
    return {cls}.union(*(subclasses(one) for one in cls.__subclasses__()))


ERRORS = sorted(subclasses(xdevice.errors.XDeviceError), key=lambda cls: cls.__qualname__)


def caught(act):
    try:
        act()
    except xdevice.errors.XDeviceError as error:
        return error
    raise AssertionError("nothing was raised")


def parity_error():
    with xdevice.use_backend("numpy"):
        return caught(
            lambda: xdevice.assert_parity({"x": xdevice.ones(3)}, {"x": xdevice.zeros(3)})
        )


def transfer_error():
    return caught(read_where_it_is_forbidden)


def read_where_it_is_forbidden(_=None):
    with xdevice.use_backend(any_framework()), xdevice.transfers("disallow_explicit"):
        xdevice.item(xdevice.ones(1))


def made(cls):
    """One as it is raised; the classes that hold more than a message are raised for real."""
    if cls is xdevice.errors.ParityError:
        return parity_error()
    if cls is xdevice.errors.TransferError:
        return transfer_error()
    if cls is xdevice.errors.PeerError:
        return cls("rank 1 has died", 1, "died")
    if cls is xdevice.errors.CollectiveMismatchError:
        return cls("the calls differ", ("barrier", "first"))
    return cls("what came, what was expected, how to mend it")


def looks(error):
    attributes = {
        name: getattr(error, name, None)
        for name in ("name", "path", "errno", "strerror", "filename")
    }
    return type(error), str(error), error.args, vars(error), attributes


ROUTES = {
    f"pickle {n}": lambda e, n=n: pickle.loads(pickle.dumps(e, n))
    for n in range(pickle.HIGHEST_PROTOCOL + 1)
}
ROUTES |= {"copy": copy.copy, "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__qualname__)
def test_each_error_goes_whole(cls):
    error = made(cls)
    error.__notes__ = ["raised by task 1"]
    error.other_errors = [ValueError("another")]
    wanted = looks(error)
    for route, go in ROUTES.items():
        got = go(error)
        assert got is not error
        others = vars(got)["other_errors"]
        assert [repr(one) for one in others] == ["ValueError('another')"], route
        vars(got)["other_errors"] = error.other_errors
        assert looks(got) == wanted, route


def test_what_pythons_own_errors_hold_goes_too():
    failed = xdevice.errors.BackendImportError(
        "it does not import", name="torch", path="/somewhere"
    )
    gone = xdevice.errors.MissingFileError(2, "there is no file", "x.safetensors")
    for route, go in ROUTES.items():
        assert looks(go(failed)) == looks(failed), route
        assert looks(go(gone)) == looks(gone), route


def test_what_was_caught_by_the_built_in_errors_is_caught_still():
    for cls in (
        xdevice.errors.ArgumentError,
        xdevice.errors.DeviceError,
        xdevice.errors.ShapeError,
        xdevice.errors.SettingError,
    ):
        assert issubclass(cls, ValueError)
        assert issubclass(cls, TypeError)
    assert issubclass(xdevice.errors.ContractError, TypeError)


def test_the_tree_in_the_docstring_is_the_one_there_is():
    drawn = re.findall(r"── (\w+) +((?:[A-Z]\w+, )*[A-Z]\w+)? ", xdevice.errors.__doc__)
    names = {name for name, cls in vars(xdevice.errors).items() if isinstance(cls, type)}
    assert sorted(name for name, _ in drawn) == sorted(
        names - {"XDeviceError", "TransferWarning"}
    )
    for name, builtins in drawn:
        bases = [
            base.__name__
            for base in getattr(xdevice.errors, name).__bases__
            if base.__module__ == "builtins"
        ]
        assert bases == builtins.split(", ") * bool(builtins), name


def test_an_error_that_takes_more_than_its_message_goes_too():
    class Third(xdevice.errors.UnsupportedError):
        def __init__(self, backend, *, what):
            super().__init__(f"{backend} cannot {what}")
            self.what = what

    got = copy.deepcopy(Third("toy", what="fly"))
    assert (type(got), str(got), got.what) == (Third, "toy cannot fly", "fly")


@pytest.mark.parametrize("name", xdevice.backends())
def test_a_backend_goes_by_its_name(name):
    backend = xdevice.backend(name)
    xdevice.sync(backend)
    for route, go in ROUTES.items():
        assert go(backend) is backend, route


def raise_parity(_=None):
    raise parity_error()


POOLS = """
import concurrent.futures, multiprocessing, sys
import xdevice
from test_errors import raise_parity, read_where_it_is_forbidden

if __name__ == "__main__":
    how = sys.argv[1]
    context = multiprocessing.get_context(how)
    for task, cls, attribute in (
        (raise_parity, xdevice.errors.ParityError, "comparison"),
        (read_where_it_is_forbidden, xdevice.errors.TransferError, "record"),
    ):
        with context.Pool(1) as pool:
            try:
                pool.map_async(task, [0]).get(400)
            except cls as error:
                assert getattr(error, attribute) is not None and str(error), error
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            try:
                pool.submit(task).result(400)
            except cls as error:
                assert getattr(error, attribute) is not None and str(error), error
    print("both came through both")
"""


@pytest.mark.parametrize(
    "how", sampled(["spawn", "fork"], each_time=(), slow=["spawn"], others="long")
)
def test_through_pools_of_processes(how, tmp_path):
    if how not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork")
    # a pool that waits for ever for an error which it cannot read must not hold up this process
    script = tmp_path / "pools.py"
    script.write_text(POOLS)
    done = python(
        script, how, PYTHONPATH=os.pathsep.join([os.path.dirname(__file__), *sys.path])
    )
    assert done.stdout.strip() == "both came through both", done.stderr[-3000:]
