"""Are the conditions of the rules needed, and would a missing one be noticed?

Each condition of each rule is negated in turn, so that the instances are exactly those which it keeps out.
The weakened rule must be refuted there.  Where it is not, either no instance types (the condition repeats
what types refuse already), or every instance is right (the condition is wider than the law needs), or the
generator of instances is too weak.

    python bench/rule_mutations.py [--wanted 40] [name ...]
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tensaurus.rules.rule import Rule, library
from tensaurus.rules.verify import Refuted, Unknown, verify


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Every rule with one condition turned around, and the text of that condition."""
    for place, condition in enumerate(rule.where):
        if guides(condition):
            continue
        others = rule.where[:place] + rule.where[place + 1 :]
        turned = ast.UnaryOp(ast.Not(), condition)
        yield ast.unparse(condition), replace(rule, where=(*others, turned))


def guides(condition: ast.expr) -> bool:
    """True for (not) const(x): it keeps the search from useless rewrites, no wrong instance out."""
    if isinstance(condition, ast.UnaryOp):
        condition = condition.operand
    return (
        isinstance(condition, ast.Call)
        and isinstance(condition.func, ast.Name)
        and condition.func.id == "const"
    )


def fate(mutant: Rule, wanted: int) -> str:
    """"refuted", "no instance", "unknown" or "right"."""
    found = verify(mutant, wanted)
    if isinstance(found, Unknown):
        return "no instance" if found.reason.endswith("of it types") else "unknown"
    return "refuted" if isinstance(found, Refuted) else "right"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="rules; all where none is named")
    parser.add_argument("--wanted", type=int, default=40, help="instances of each mutant")
    options = parser.parse_args()
    fates: Counter[str] = Counter()
    for rule in library():
        if "off" in rule.tags or (options.names and rule.name not in options.names):
            continue
        for condition, mutant in mutants(rule):
            found = fate(mutant, options.wanted)
            fates[found] += 1
            if found != "refuted":
                print(f"{found:12} {rule.name}: {condition}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in sorted(fates.items())))


if __name__ == "__main__":
    main()
