"""The public face: what `dir` and tab completion show of the package."""

from __future__ import annotations

import rlcompleter

from support import printed

import xdevice


def test_dir_has_what_is_public_and_nothing_else():
    shown = {name for name in dir(xdevice) if not name.startswith("__")}
    assert shown == set(xdevice.__all__)
    assert set(xdevice._LAZY) == shown | {"errors"}, "where tracebacks say that an error is"
    assert all(hasattr(xdevice, name) for name in shown)


def test_importing_xdevice_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import xdevice; print(*sorted(set(sys.modules) - before))"
    assert printed("-c", code) == "__future__ xdevice xdevice.base xdevice.base.version"


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
    assert completer.attr_matches("xdevice.para") == ["xdevice.parallel("]
    assert [name.rstrip("(") for name in completer.attr_matches("xdevice.prefe")] == ["xdevice.prefetch"]
    assert completer.attr_matches("xdevice.cor") == []
    assert completer.attr_matches("xdevice.annot") == []
