"""Reads and writes the schedules that ship with Tensaurus: what tuning found on machines like this one.

`tensaurus db schedules` makes a file from the database of one machine, and `schedules/` has those of the
classes of processors that were at hand.  A class is a vendor with a vector width: 512-amd, made on a Zen 5,
is for Zen 4, too.  The first line of a file says what made it; every other line has a reduction form
(`kernels/tune/schedule_reuse`), the seconds that its tuning took, and its fastest schedules with roles for
names, the fastest first:

    {"machine": "AMD EPYC, ..., 2 cores, 2 threads", "compiler": "halide 21.0.0 r13 avx ..."}
    ["float32 sum[16,288 over 40] of ...", 5.2, ["block(v=1*16x3, u=0:4, t=1:48, k=0., p=1)"]]

The tuner takes schedules of this processor's class as its own: they need a compilation but no trials.  For
forms that its class lacks it begins with those of another vendor's processors of the same vector width.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from tensaurus.system.files import replace_file

__all__ = ["TunedForm", "processor_class", "read_shipped_schedules", "write_schedules"]

VENDORS = ("AMD", "Intel")  # words in the names of their processors


@dataclass(frozen=True)
class TunedForm:
    """A reduction form by its text, with its fastest schedules as texts.

    seconds        that its tuning took
    peak_multiple  seconds of the fastest schedule, divided by those at the machine's peaks; 0 if not known
    """

    text: str
    seconds: float
    peak_multiple: float
    fastest: tuple[str, ...]


def processor_class(processor: str, vector_bits: int) -> str:
    """Return the class of a processor, by its name and the width of its vectors: 512-amd."""
    vendor = next((word for word in VENDORS if word.lower() in processor.lower()), "other")
    return f"{vector_bits}-{vendor.lower()}"


@cache
def read_shipped_schedules(wanted: str, revision: str) -> Mapping[str, TunedForm]:
    """Return the tuned forms for the `wanted` class of processors, by text; {} without a file of its width.

    What another `revision` of the tuner found, or tuning for another vendor's processors, is only where to
    begin: it counts as 0 seconds of tuning, and its speed as unknown.  A file that cannot be read is left
    out, with a warning.
    """
    width = wanted.partition("-")[0]
    found: dict[str, TunedForm] = {}
    folder, own_name = files(__package__).joinpath("schedules"), f"{wanted}.jsonl"
    of_width = [file for file in folder.iterdir() if file.name.startswith(f"{width}-")]
    # where several files have a form, that of the wanted class counts
    for file in sorted(of_width, key=lambda file: (file.name != own_name, file.name)):
        try:
            compiler, forms = _parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, KeyError) as error:
            warnings.warn(f"the shipped schedules in {file} cannot be read: {error!r}", stacklevel=2)
            continue
        is_known = file.name == own_name and revision in compiler.split()
        for text, form in forms.items():
            found.setdefault(text, form if is_known else replace(form, seconds=0.0, peak_multiple=0.0))
    return found


def _parse(text: str) -> tuple[str, dict[str, TunedForm]]:
    """Return the compiler in a file's first line, and the forms in the others by their texts."""
    head, *rows = map(json.loads, text.splitlines())
    forms = (
        TunedForm(form, float(seconds), float(multiple), tuple(fastest))
        for form, seconds, multiple, fastest in rows
    )
    return head["compiler"], {form.text: form for form in forms}


def write_schedules(path: Path, machine: str, compiler: str, forms: Iterable[TunedForm]) -> None:
    """Write tuned forms as a file that ships; it appears when it is complete.  Raises TensaurusError."""
    lines = [json.dumps({"machine": machine, "compiler": compiler})]
    lines += [
        json.dumps([form.text, round(form.seconds, 1), round(form.peak_multiple, 2), form.fastest])
        for form in sorted(forms, key=lambda form: form.text)
    ]
    with replace_file(path) as beside:
        beside.write_text("\n".join([*lines, ""]), encoding="utf-8")
