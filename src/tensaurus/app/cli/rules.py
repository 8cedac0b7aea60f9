"""The command group `rules`: verifies, generates, lists and compares rewrite rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.options import Seed
from tensaurus.system.errors import NotEqualError, TensaurusError
from tensaurus.system.files import replace_file, require_writable

if TYPE_CHECKING:
    from tensaurus.rules.language.rule import Rule

rules = typer.Typer(help="The library of rewrite rules.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(rules, name="rules")

RuleFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="A file of rules; default: the library.", show_default=False),
]


@rules.command("verify", cls=Command)
def rules_verify(
    file: RuleFile = None,
    instances: Annotated[
        int, typer.Option(metavar="N", min=1, help="Typed instances of each rule to test.")
    ] = 40,
    seed: Seed = 0,
    write: Annotated[bool, typer.Option("--write", help="Write the evidence into FILE.")] = False,
) -> None:
    """Prove or test every rule, and print its evidence.

    Exit status 1 if a rule is refuted (its sides and the element that differs are printed), is neither shown
    nor refuted, or is not proved although its file says so.
    """
    from tensaurus.optimizer.result.summary import classify_evidence, format_counts
    from tensaurus.rules.test.annotate_files import annotate_rules
    from tensaurus.rules.test.verify_rule import Refuted, Undecided
    from tensaurus.rules.test.verify_rule import verify as check

    checked = _read_rules(file)
    refuted = undecided = overclaimed = 0
    evidence_counts: Counter[str] = Counter()
    for rule in checked:
        if "off" in rule.tags:
            continue
        evidence = check(rule, instances, seed)
        if isinstance(evidence, Refuted):
            refuted += 1
            typer.echo(f"{rule.name}: REFUTED\n{evidence.counterexample.text}")
        elif isinstance(evidence, Undecided):
            undecided += 1
            typer.echo(f"{rule.name}: UNKNOWN, {evidence.reason}")
        else:
            # with --write the file's claim is about to be replaced, so it is not compared
            claimed = not write and rule.evidence is not None and rule.evidence.kind == "proved"
            is_overclaimed = claimed and evidence.kind != "proved"
            overclaimed += is_overclaimed
            typer.echo(f"{rule.name}: {evidence}{', although its file says proved' * is_overclaimed}")
            evidence_counts[classify_evidence(str(evidence))] += 1
    typer.echo(f"{sum(evidence_counts.values())} rules: {format_counts(evidence_counts) or 'none'}")
    if refuted or undecided or overclaimed:
        counts = f"{refuted} of {len(checked)} rules refuted, {undecided} unknown"
        raise NotEqualError(f"{counts}, {overclaimed} not proved although their file says so")
    if write and file is not None:
        text, _ = annotate_rules(file.read_text("utf-8"))
        with replace_file(file) as beside:
            beside.write_text(text, encoding="utf-8")


@rules.command("generate", cls=Command)
def rules_generate(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the rules.")
    ] = Path("generated.rules"),
    worlds: Annotated[
        list[str] | None,
        typer.Option(
            "--world", metavar="NAME",
            help="A world: types and operators of the terms, such as matrices. Repeatable; default: all.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most operators in a term; default: each world's own."),
    ] = None,
    seed: Seed = 0,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Store verdicts in this folder and reuse those that are there, to go on after an interrupt.",
            show_default=False,
        ),
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Do only the Ith of N parts of the terms of the last size.")
    ] = "1/1",
) -> None:
    """Generate rewrite rules from the operators' declarations, prove each, and prune derivable ones.

    Terms of each world are enumerated and compared. Each law is generalized as far as it can be proved, and
    written with its evidence. All worlds take a quarter of an hour on two cores; progress goes to stderr.
    Shards may run on several machines: a run without --shard reuses the verdicts in their --resume folder.
    """
    from tensaurus.finders.synthesis.generated_rules import format_rules, generate_rules
    from tensaurus.finders.synthesis.world import WORLDS

    names = worlds or list(WORLDS)
    if strange := [name for name in names if name not in WORLDS]:
        raise TensaurusError(f"unknown --world {strange[0]}", remedy=f"Choose from {', '.join(WORLDS)}.")
    require_writable(output)
    number, shards = _parse_shard(shard)
    generated_rules = generate_rules(
        [WORLDS[name] for name in names], size, seed, lambda text: typer.echo(text, err=True),
        shard=(number - 1, shards), journal=resume,
    )
    with replace_file(output) as beside:
        beside.write_text(format_rules(generated_rules, size, seed, (number, shards)), encoding="utf-8")
    typer.echo(f"{output}: {len(generated_rules)} rules")


def _parse_shard(text: str) -> tuple[int, int]:
    """Parse "2/3" into (2, 3)."""
    number, _, shards = text.partition("/")
    if not (number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise TensaurusError(f"--shard {text} is not of the form I/N", remedy="The second of three is 2/3.")
    return int(number), int(shards)


@rules.command("list", cls=Command)
def rules_list(
    file: RuleFile = None,
) -> None:
    """Print the name, tags and law of every rule, one on each line."""
    for rule in _read_rules(file):
        tags = f" [{', '.join(sorted(rule.tags))}]" if rule.tags else ""
        typer.echo(f"{rule.name}{tags}: {rule.law}")


@rules.command("show", cls=Command)
def rules_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule's name, as `rules list` prints it.")],
    file: RuleFile = None,
) -> None:
    """Print a rule, its conditions and its evidence."""
    from difflib import get_close_matches

    known = {rule.name: rule for rule in _read_rules(file)}
    if name not in known:
        near = get_close_matches(name, known, 1)
        listing = "tensaurus rules list" if file is None else f"tensaurus rules list {file}"
        remedy = f"Did you mean {near[0]}?" if near else f"`{listing}` prints all names."
        raise TensaurusError(f"there is no rule named {name}", file=file, remedy=remedy)
    rule = known[name]
    law, _, conditions = rule.law.partition(" where ")
    typer.echo(f"{rule.name}\n  {law}")
    for condition in filter(None, conditions.split(", ")):
        typer.echo(f"  where {condition}")
    typer.echo(f"  {rule.evidence or 'no evidence yet: run `tensaurus rules verify`'}")


@rules.command("diff", cls=Command)
def rules_diff(
    first: Annotated[Path, typer.Argument(metavar="FILE", help="A file of rules.")],
    second: Annotated[Path, typer.Argument(metavar="FILE", help="Another file of rules.")],
) -> None:
    """Print the rules whose law is in only one of two files (- the first, + the second).

    Exit status 1 if there are any.
    """
    laws = [{rule.law: rule.name for rule in _read_rules(file)} for file in (first, second)]
    lines = [
        f"{sign} {name}: {law}"
        for sign, these, other in zip("-+", laws, laws[::-1], strict=True)
        for law, name in these.items()
        if law not in other
    ]
    for line in lines:
        typer.echo(line)
    if lines:
        raise NotEqualError(f"{len(lines)} rules are in only one of the files")


def _read_rules(file: Path | None) -> list[Rule]:
    from tensaurus.rules.language.rule import library
    from tensaurus.rules.test.user_rules import read_rule_file

    return library() if file is None else read_rule_file(file)
