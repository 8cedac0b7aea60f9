"""Load rules that a user brings: each is verified before it is used, whatever evidence its file claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from tensaurus.rules.language.evidence import Evidence, Unproved
from tensaurus.rules.language.rule import Rule, read_rules
from tensaurus.rules.language.term import RuleError
from tensaurus.rules.test.verify_rule import Refuted, Undecided, verify
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError

__all__ = ["load_user_rules", "read_rule_file"]


def read_rule_file(file: Path) -> list[Rule]:
    """Return the rules of a file.  Raises TensaurusError with the line that cannot be parsed."""
    try:
        return read_rules(file.read_text("utf-8").splitlines(), "")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TensaurusError(f"cannot be read: {reason}", file=file) from error
    except RuleError as error:
        raise TensaurusError(str(error).removeprefix(": "), file=file) from error


def load_user_rules(
    files: Iterable[Path],
    library: Sequence[Rule],
    allow_unproved: bool = False,
    note: Callable[[str], None] = lambda text: None,
    deadline: float = inf,
) -> list[Rule]:
    """Return the rules of the files, with new evidence.

    A rule that is not verified by the deadline (of `time.monotonic`) is left out, with a note.  Raises
    TensaurusError for a rule that is refuted, that has the name of another rule, or that is neither proved
    nor refuted (with `allow_unproved` it is used, with a note).
    """
    accepted: list[Rule] = []
    names = {rule.name for rule in library}
    for file in files:
        for rule in read_rule_file(file):
            if rule.name in names:
                reason = f"a rule named {rule.name} already exists"
                raise TensaurusError(reason, file=file, remedy="Give the rule another name.")
            names.add(rule.name)
            if "off" in rule.tags:
                continue
            with DeadlineBlock(deadline) as verifying:
                accepted.append(replace(rule, evidence=_evidence(rule, file, allow_unproved, note)))
            if verifying.ended:
                note(f"rule {rule.name} is not used: verifying it takes longer than the time limit allows")
    return accepted


def _evidence(rule: Rule, file: Path, allow_unproved: bool, note: Callable[[str], None]) -> Evidence:
    result = verify(replace(rule, evidence=None))  # evidence in the file would be believed if it is an axiom
    if isinstance(result, Refuted):
        remedy = f"`tensaurus rules verify {file}` shows both sides."
        raise TensaurusError(f"rule {rule.name} is wrong: {result.reason}", file=file, remedy=remedy)
    if isinstance(result, Undecided):
        if not allow_unproved:
            remedy = "Use it anyway with --allow-unproved."
            reason = f"rule {rule.name} could be neither proved nor refuted: {result.reason}"
            raise TensaurusError(reason, file=file, remedy=remedy)
        note(f"rule {rule.name} is used although it could be neither proved nor refuted: {result.reason}")
        return Unproved("allowed by --allow-unproved")
    return result
