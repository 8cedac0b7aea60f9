"""How many rules are proved for all sizes, how long that takes, and what stops the others.

    python bench/proofs.py [--steps N] [name ...]

Rules whose names contain one of these; all without.
"""

from __future__ import annotations

import argparse
import time
from math import inf

from tensaurus.rules.language.rule import library
from tensaurus.rules.prove.proof import Unproved, prove


def main() -> None:
    parser = argparse.ArgumentParser(description="prove rules for all sizes")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=float, default=inf, help="of the proof of each rule")
    options = parser.parse_args()
    names = options.names
    rules = [rule for rule in library() if "off" not in rule.tags]
    chosen = [rule for rule in rules if not names or any(name in rule.name for name in names)]
    unproved: list[Unproved] = []
    begin = time.perf_counter()
    for rule in chosen:
        start = time.perf_counter()
        found = prove(rule, options.steps)
        said = found.reason if isinstance(found, Unproved) else str(found)
        print(f"{time.perf_counter() - start:7.2f} s  {rule.name}: {said[:300]}", flush=True)
        unproved.extend([found] if isinstance(found, Unproved) else [])
    count = len(chosen) - len(unproved)
    print(f"\n{count} of {len(chosen)} proved in {time.perf_counter() - begin:.0f} s; the others:")
    for each in unproved:
        print(f"  {each.rule}: {each.reason[:200]}")


if __name__ == "__main__":
    main()
