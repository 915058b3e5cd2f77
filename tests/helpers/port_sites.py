"""Something examined, made by hand, so that a test knows what is in it."""

from __future__ import annotations

from pathlib import Path

from xdevice.port import sources
from xdevice.port.engine import Examined
from xdevice.port.sites import Edit, Site


def site(source, before, idiom, code, verdict, after=None, **more):
    """The site of the first place where `before` stands in the text of a source."""
    start = source.text.index(before.encode())
    line, col = source.position(start)
    end = source.position(start + len(before.encode()))
    edits = (Edit(start, 0, start + len(before.encode()), after),) if after is not None else ()
    more = {"framework": "torch", "why": "", "grade": "proven" if after else None} | more
    return Site(source.path, line, col, idiom, code, verdict=verdict, end=end, before=before, after=after,
                edits=edits, **more)  # fmt: skip


TRAIN = """import torch
# 训练 <b>
设备 = torch.device("cuda"); model.to(设备)
print(loss.item(), "<b>")
model = nn.DataParallel(
    model,
)
x = x.half()
"""


def examined():
    train = sources.parse(TRAIN.encode(), "b/train.py")
    plain = sources.parse(b"print(1)\n", "a/plain.py")
    found = [
        site(
            train,
            "nn.DataParallel(\n    model,\n)",
            "nn.DataParallel",
            "XD153",
            "open",
            link="https://x.y/?a&b",
        ),
        site(
            train,
            'torch.device("cuda")',
            "torch.device",
            "XD101",
            "rewritten",
            "xdevice.gpu().native",
        ),
        site(
            train,
            "model.to(设备)",
            ".to",
            "XD103",
            "rewritten",
            "xdevice.to_device(model, 设备)",
            grade="safe",
        ),
        site(train, "loss.item()", ".item", "XD107", "neutral", why="the same on <all>"),
        site(train, "x.half()", ".half", "XD165", "not a device"),
    ]
    unreadable = [("z.py", "line 3: invalid syntax")]
    return Examined(Path("/somewhere/project"), "safe", None, [train, plain], unreadable, found)
