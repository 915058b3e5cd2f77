"""The report as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from examined import examined

from xdevice.port import html
from xdevice.port.engine import Examined

VOID = {"meta", "br", "hr", "img"}


class _Tree(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    tree = _Tree()
    tree.feed(page)
    assert tree.open == []
    return tree


def test_it_is_one_page_that_needs_nothing_else():
    page = html.page(examined())
    tree = parsed(page)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tree.seen}
    assert not re.search(r"url\(|@import|javascript:", page)
    assert {a["href"] for tag, a in tree.seen if tag == "a"} == {"https://x.y/?a&b"}
    assert "prefers-color-scheme: dark" in page
    assert page == html.page(examined())


def test_it_has_totals_codes_and_each_site_with_its_diff():
    text = "".join(parsed(html.page(examined())).text)
    assert "Device code of project" in text
    assert "66.7%" in text
    assert '- 设备 = torch.device("cuda"); model.to(设备)+ 设备 = xdevice.gpu().native; model.to(设备)' in text
    assert '+ 设备 = torch.device("cuda"); xdevice.to_device(model, 设备)' in text
    assert '  print(loss.item(), "<b>")' in text
    assert "  model = nn.DataParallel(      model,  )" in text
    for shown in ("XD153", "wraps a model for several devices", "the same on <all>", "rewritten (safe)", "line 5",
                  "z.py: line 3: invalid syntax", "2 files read, 1 of them"):  # fmt: skip
        assert shown in text, shown


def test_files_with_open_sites_are_unfolded():
    one = examined()
    tree = parsed(html.page(one))
    assert [a for tag, a in tree.seen if tag == "details"] == [{"open": None}]
    one.sites = [site for site in one.sites if site.verdict != "open"]
    tree = parsed(html.page(one))
    assert [a for tag, a in tree.seen if tag == "details"] == [{}]


def test_nothing_found_is_a_page_too():
    text = "".join(parsed(html.page(Examined(Path("/p/<empty>"), "proven"))).text)
    assert "Device code of <empty>" in text
    assert "No device code." in text
