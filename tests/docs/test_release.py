"""What `.ci/release` refuses before it builds anything. The rest of it runs at each release."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = "# Changelog\n\n## 1.2.0 (2026-12-01)\n\n- A sentence.\n\n## 1.1.0 (2026-11-01)\n"

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("bash") or not shutil.which("git"),
    reason="needs bash and git",
)


@pytest.mark.parametrize(
    ("tag", "changelog", "said"),
    [
        (
            "v1.1.0",
            GOOD,
            "the tag is v1.1.0, xdevice/base/version.py says 1.2.0; expected v1.2.0",
        ),
        ("1.2.0", GOOD, "the tag is 1.2.0"),
        ("v1.2.0", GOOD.replace("1.2.0", "1.2.01"), "no heading '## 1.2.0 (date)'"),
        (
            "v1.2.0",
            GOOD.replace("2026-12-01", "Unreleased"),
            "still says '## 1.2.0 (Unreleased)'",
        ),
        (
            "v1.2.0",
            GOOD.replace("## 1.2.0", "## Unreleased\n\n- More.\n\n## 1.2.0"),
            "entries under Unreleased",
        ),
        ("v1.2.0", GOOD, "changes that are not committed"),
    ],
)
def test_what_does_not_fit_together_is_not_released(tmp_path, tag, changelog, said):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    (tmp_path / "xdevice" / "base").mkdir(parents=True)
    (tmp_path / "xdevice" / "base" / "version.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    command = ["bash", str(tmp_path / ".ci" / "release"), tag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("no release: ")
    assert said in done.stderr
    assert not (tmp_path / "dist").exists()


def test_the_version_is_where_the_script_reads_it():
    assert '\n__version__ = "' in (ROOT / "xdevice" / "base" / "version.py").read_text(
        encoding="utf-8"
    )


def test_the_tag_is_made_only_where_that_is_asked_for(tmp_path):
    shutil.copy(ROOT / ".ci" / "release", tmp_path)
    command = ["bash", str(tmp_path / "release"), "v1.2.0", "--now"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "after the tag stands --now; expected --tag or nothing" in done.stderr
