"""Write evidence into rule files: each rule's line ends with the result of its verification."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from tensaurus.rules.language.coverage_text import common_coverage, coverage_text
from tensaurus.rules.language.evidence import Disproved, Evidence, Proved, Tested
from tensaurus.rules.language.rule import Rule, read_rules
from tensaurus.rules.test.verify_rule import Refuted, Undecided, verify

_EVIDENCE = re.compile(r"\s*\|\s*\w+\([^|]*\)\s*$")
# how evidence texts begin, weakest first: an axiom is not checked at all; others (disproved) are weaker still
KINDS_BY_STRENGTH = ("axiom", "tested(gf", "tested(z3", "proved(")


def annotate_rules(
    text: str, check: Callable[[Rule], Evidence | Refuted | Undecided] = verify
) -> tuple[str, list[Refuted | Undecided]]:
    """Return the text of a rule file with new evidence for every rule, and the rules that have no evidence.

    A line that stands for several rules (`<=>`, optional inputs) gets what all of them have in common.
    """
    without_evidence: list[Refuted | Undecided] = []
    lines: list[str] = []
    for block in _blocks(text.splitlines()):
        if not block[0].strip() or block[0].lstrip().startswith("#"):
            lines.extend(block)
            continue
        rules = read_rules(block)
        block[-1] = _EVIDENCE.sub("", block[-1])
        evidences: list[Evidence] = []
        for rule in rules:
            result = check(rule)
            if isinstance(result, Evidence):
                evidences.append(result)
            elif isinstance(result, Refuted) and "off" in rule.tags:  # switched off, so it may be false
                evidences.append(Disproved(result.reason))
            else:
                without_evidence.append(result)
        if evidences:
            block[-1] = f"{block[-1].rstrip()} | {common_evidence(evidences)}"
        lines.extend(block)
    return "\n".join(lines) + "\n", without_evidence


def common_evidence(evidences: Sequence[Evidence]) -> Evidence:
    """Return evidence for all rules of a line: the weakest kind, within the limits of each."""
    weakest = min(evidences, key=_strength)
    with_limits = [each for each in evidences if isinstance(each, Proved | Tested)]  # others state none
    if not isinstance(weakest, Proved | Tested) or len({str(each) for each in with_limits}) == 1:
        return weakest
    if isinstance(weakest, Proved):
        by = "z3" if any(each.by == "z3" for each in with_limits) else weakest.by
        with_limits.sort(key=lambda each: each.by != by)  # the coverage takes its wording from the first
        return Proved(by, common_coverage([coverage_text(each) for each in with_limits]))
    tested = [each for each in with_limits if isinstance(each, Tested)]
    return Tested(
        weakest.field,
        common_coverage([coverage_text(each) for each in sorted(with_limits, key=_strength)]),
        min(each.trials for each in tested),
        min(each.bits for each in tested),
        any(each.sampled for each in tested),
    )


def _strength(evidence: Evidence) -> int:
    return next((k for k, start in enumerate(KINDS_BY_STRENGTH) if str(evidence).startswith(start)), -1)


def _blocks(lines: Iterable[str]) -> Iterable[list[str]]:
    """Yield each rule with its indented continuation lines, and every other line by itself."""
    block: list[str] = []
    for line in lines:
        if line[:1].isspace() and line.strip() and block:
            block.append(line)
            continue
        if block:
            yield block
        block = [line]
    if block:
        yield block
