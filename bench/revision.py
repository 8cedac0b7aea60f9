"""Which state of the code a table was made by."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

TABLES = ":(exclude)bench/tables"


@cache
def name_commit() -> str:
    """Return the commit that is checked out, as `commit 3ca007a`; what differs from it is said.

    Tables are left out of the comparison: a run writes them.  It is asked once, when a run begins.
    """
    try:
        commit = _git("rev-parse", "--short", "HEAD").strip()
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", TABLES)
    except (OSError, subprocess.CalledProcessError):
        return "no commit: this is no checkout"
    return f"commit {commit}" + (" with changes of its own" if changed else "")


def _git(*words: str) -> str:
    root = Path(__file__).parent.parent
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout
