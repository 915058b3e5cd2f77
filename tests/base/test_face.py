"""The public face: what `dir` and tab completion show of the package."""

from __future__ import annotations

import pickle
import rlcompleter

import pytest
from helpers.environment import printed
from helpers.faces import faces, names_of

import xdevice


def test_dir_has_what_is_public_and_nothing_else():
    shown = {name for name in dir(xdevice) if not name.startswith("__")}
    assert shown == set(xdevice.__all__)
    assert all(hasattr(xdevice, name) for name in shown)


def test_the_top_has_fifty_names_and_each_face_says_what_it_is_about():
    assert len(xdevice.__all__) <= 50
    for face in faces():
        assert face.__doc__
        assert set(names_of(face)) <= set(dir(face))


def test_a_function_of_a_face_says_where_it_is():
    assert xdevice.parallel.run.__module__ == "xdevice.parallel"
    assert pickle.loads(pickle.dumps(xdevice.math.grad)) is xdevice.math.grad
    with pytest.raises(AttributeError, match=r"module 'xdevice\.math' has no attribute 'sine'"):
        _ = xdevice.math.sine


def test_a_function_says_that_it_is_of_xdevice():
    assert xdevice.to_device.__module__ == xdevice.assert_parity.__module__ == "xdevice"
    assert pickle.loads(pickle.dumps(xdevice.to_device)) is xdevice.to_device


def test_importing_xdevice_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import xdevice; print(*sorted(set(sys.modules) - before))"
    base = [f"xdevice.base.{name}" for name in ("faces", "forks", "requested", "version")]
    core = ["xdevice.core", "xdevice.core.frameworks", "xdevice.core.importing"]
    assert printed("-c", code).split() == [
        "__future__",
        "xdevice",
        "xdevice.base",
        *base,
        *core,
    ]


def test_a_device_is_whole_in_a_fresh_process():
    for made in ("xdevice.cpu()", "xdevice.Device('cpu')"):
        code = f"import xdevice\nwith {made} as device: print(device)"
        assert printed("-c", code, XDEVICE_BACKEND="numpy") == "cpu:0"


def test_completion_shows_names_that_nothing_has_used_yet():
    code = "import xdevice; print(sorted(set(dir(xdevice)) - set(vars(xdevice))), 'numpy' in __import__('sys').modules)"
    shown = printed("-c", code)
    assert "'parallel'" in shown
    assert shown.endswith("False"), "asking for the names imports nothing"
    completer = rlcompleter.Completer({"xdevice": xdevice})
    assert completer.attr_matches("xdevice.para") == ["xdevice.parallel"]
    assert [name.rstrip("(") for name in completer.attr_matches("xdevice.prefe")] == [
        "xdevice.prefetch"
    ]
    assert completer.attr_matches("xdevice.cor") == []
    assert completer.attr_matches("xdevice.annot") == []
