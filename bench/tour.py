"""The outputs in docs/tour.md: each is what the code above it prints.

    python bench/tour.py      # runs the code, and writes what it prints
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tensaurus.system.files import replace_file

PAGE = Path(__file__).parent.parent / "docs" / "tour.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)


def with_outputs(text: str) -> str:
    """Return the page with the output that its code prints now, one namespace for all of it."""
    namespace: dict[str, Any] = {}

    def run(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(block["code"], "docs/tour.md", "exec"), namespace)  # this repository's own page
        output = printed.getvalue().rstrip()
        return f"```python\n{block['code']}```\n" + (f"\n```text\n{output}\n```\n" if output else "")

    return BLOCK.sub(run, text)


def write() -> None:
    """Make the page show what its code prints."""
    made = with_outputs(PAGE.read_text(encoding="utf-8"))
    with replace_file(PAGE) as beside:
        beside.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    write()
