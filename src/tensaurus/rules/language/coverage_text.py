"""Reads and merges the texts that say what the evidence of rules covers, see `evidence_limits`.

    40 instances of ranks 1-3, element types float32 int8, never varied: k=0 a.axes=None
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensaurus.rules.language.evidence import Evidence, Proved, Tested

__all__ = ["NEVER_VARIED", "common_coverage", "coverage_text"]

# The words of evidence texts.  Rule files contain them: a change here must change those files, too.
NEVER_VARIED = "never varied: "
ELEMENT_TYPES = "element types "
RANKS = re.compile(r"ranks (\d+)-(\d+)")
ATTRIBUTE_VALUES = re.compile(r"[\w.]+=(?:\([^()]*\)|[^\s,()]+)")
# The patterns of those parts of which only the numbers or names differ, by what each part is about.
COVERAGE_KINDS = {
    "ranks": r"\branks\b|\d instances",
    "ones": r"^sizes of one in",
    "types": f"^{ELEMENT_TYPES}",
    "never": f"^{NEVER_VARIED}",
    "triples": r"% of triples",
    "reals": r"^all reals at",
}


def coverage_text(evidence: Evidence | None) -> str:
    """Return the text that says what the evidence covers, "" for evidence without limits."""
    match evidence:
        case Proved(_, covers):
            return covers
        case Tested(_, coverage):
            return coverage
    return ""


def common_coverage(texts: Sequence[str]) -> str:
    """Return a text that covers only what all of the texts cover, in the words of the first.

    A line of a rule file may stand for several rules, each with evidence of its own; this is the coverage of
    the line.  A limit of any of the texts is a limit of the result.  For example, these two texts

        ranks 0-5, sizes of one in broadcasting to rank 2
        ranks 1-4, axes of up to the rank

    have in common

        ranks 0-4, sizes of one in broadcasting to rank 2, axes of up to the rank
    """
    parts: dict[str, list[str]] = {}  # by the key of COVERAGE_KINDS, or the part itself where none fits
    for text in texts:
        for part in re.split(r", (?![^(]*\))", text):  # at commas that are not within a tuple
            kind = next((kind for kind, pattern in COVERAGE_KINDS.items() if re.search(pattern, part)), part)
            parts.setdefault(kind, []).append(part)
    if any(RANKS.search(text) for text in texts):  # then "all ranks" of another text limits nothing
        parts["ranks"] = [part for part in parts["ranks"] if RANKS.search(part)]
    if " instances" in texts[0]:  # tests of instances do not cover what proofs of the others cover
        parts = {kind: each for kind, each in parts.items() if kind not in ("all sizes", "all reals")}
    return ", ".join(filter(None, (_merge_parts(kind, each) for kind, each in parts.items())))


def _merge_parts(kind: str, parts: Sequence[str]) -> str:
    """Return one part for parts of coverage texts that are about one thing (a key of COVERAGE_KINDS)."""
    first = parts[0]
    if kind == "ranks":
        ends = [(int(low), int(high)) for part in parts for low, high in RANKS.findall(part)]
        high = min((high for _, high in ends), default=0)
        # the least rank is a limit of tests only (`Limits.min_rank`): for proofs the first text's will do
        low = min(high, max(low for low, _ in ends) if " instances" in first else ends[0][0]) if ends else 0
        counts = [int(found[1]) for part in parts if (found := re.match(r"(\d+) instances", part))]
        counted = re.sub(r"^\d+(?= instances)", str(min(counts, default=0)), first)
        return RANKS.sub(f"ranks {low}-{high}", counted)
    if kind == "types":
        named = [part.removeprefix(ELEMENT_TYPES).split() for part in parts]
        return ELEMENT_TYPES + " ".join(t for t in named[0] if all(t in others for others in named))
    if kind == "never":
        # an attribute that never varied for one of the rules limits all of them
        constant = [n for part in parts for n in ATTRIBUTE_VALUES.findall(part.removeprefix(NEVER_VARIED))]
        return NEVER_VARIED + " ".join(dict.fromkeys(constant))
    # of sizes of one, triples and reals the part with the smallest numbers covers least; others are equal
    return min(parts, key=lambda part: [int(number) for number in re.findall(r"\d+", part)])
