"""Rules that a user brings: each is verified before it is used, whatever its line says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from tensaurus.rules.language.evidence import Allowed, Evidence
from tensaurus.rules.language.rule import Rule, read_rules
from tensaurus.rules.language.term import RuleError
from tensaurus.rules.test.verify_rule import Refuted, Undecided, verify
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError

__all__ = ["own_rules", "rules_of"]


def rules_of(file: Path) -> list[Rule]:
    """The rules of a file.  Raises TensaurusError, with the line that means nothing."""
    try:
        return read_rules(file.read_text("utf-8").splitlines(), "")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TensaurusError(f"cannot be read: {reason}", file=file) from error
    except RuleError as error:
        raise TensaurusError(str(error).removeprefix(": "), file=file) from error


def own_rules(
    files: Iterable[Path],
    library: Sequence[Rule],
    allow_unproved: bool = False,
    note: Callable[[str], None] = lambda text: None,
    deadline: float = inf,
) -> list[Rule]:
    """The rules of the files, with fresh evidence; one whose verification outlives the deadline (of
    `time.monotonic`) is left out, with a note.

    Raises TensaurusError for one that is refuted, for one of which neither is known (unless they are
    allowed: then there is a note), and for one that has the name of another.
    """
    own: list[Rule] = []
    names = {rule.name for rule in library}
    for file in files:
        for rule in rules_of(file):
            if rule.name in names:
                raise TensaurusError(f"a rule named {rule.name} already exists", file=file)
            names.add(rule.name)
            if "off" in rule.tags:
                continue
            with DeadlineBlock(deadline) as verifying:
                own.append(replace(rule, evidence=_evidence(rule, file, allow_unproved, note)))
            if verifying.ended:
                note(f"rule {rule.name} is not used: verifying it takes longer than the time limit allows")
    return own


def _evidence(rule: Rule, file: Path, allow_unproved: bool, note: Callable[[str], None]) -> Evidence:
    shown = verify(replace(rule, evidence=None))  # what a file says of itself is not taken for it
    if isinstance(shown, Refuted):
        remedy = f"`tensaurus rules verify {file}` shows both sides."
        raise TensaurusError(f"rule {rule.name} is wrong: {shown.reason}", file=file, remedy=remedy)
    if isinstance(shown, Undecided):
        if not allow_unproved:
            remedy = "Use it anyway with --allow-unproved."
            reason = f"rule {rule.name} could be neither proved nor refuted: {shown.reason}"
            raise TensaurusError(reason, file=file, remedy=remedy)
        note(f"rule {rule.name} is used although it could be neither proved nor refuted: {shown.reason}")
        return Allowed("allowed by --allow-unproved")
    return shown
