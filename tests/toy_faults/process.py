"""Faults of the process: its forks, and why it has no GPU."""

from __future__ import annotations

from .planting import (
    HOMES,
    child,
    in_child,
    swap,
    wrong,
)

swap(
    "why_no_gpu",
    "returns no reason",
    "why_there_is_no_gpu_is_said_in_a_few_words",
    lambda _, adapter: lambda: "",
    HOMES[:1],
)
swap(
    "why_no_gpu",
    "returns a very long text",
    "why_there_is_no_gpu_is_said_in_a_few_words",
    lambda _, adapter: lambda: "no\n" * 50,
    HOMES[:1],
)

child(
    "after_fork",
    "reports no problem, although a forked child cannot work",
    "forking_after_loading_and_counting",
    """
import os
def breaks(*given):
    raise RuntimeError("the framework's threads are gone")
os.register_at_fork(after_in_child=lambda: setattr(toyframe, "_launch", breaks))
""",
)


@wrong("after_fork", "ends the forked child", "forking_after_loading_and_counting", HOMES[:1])
def after_fork_lets_a_forked_child_end(adapter, patch, suite):
    suite.child_setup = in_child("cls.after_fork = lambda self: __import__('os')._exit(3)")
