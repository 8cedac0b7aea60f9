"""Optimize every pretrained model and print a table: python bench/pretrained.py [NAME ...] [--limit SECONDS].

Times are those of the optimizer's own last step: original and result in turns, each alone in its process.
"""

from __future__ import annotations

import argparse

import onnx

from tensaurus.cost.machine import Machine
from tensaurus.errors import TensaurusError
from tensaurus.optimize import optimize
from tensaurus.zoo.pretrained import PRETRAINED, fetch, randomized

HEAD = "| model | typed / opaque | original ms | result ms | speedup | largest error |"


def row(name: str, limit: float) -> str:
    """One line of the table."""
    entry = PRETRAINED[name]
    model = onnx.load(fetch(name))
    if name.startswith("light_"):  # their weights are all one constant
        model = randomized(model, 0)
    try:
        found = optimize(model, shapes=entry.shapes, ranges=entry.ranges, time_limit=limit).summary
    except TensaurusError as error:
        return f"| {name} | {error} |"
    worst = "unchanged" if not found.rewrites else f"{found.equivalence.max_abs_error:.1e}"
    opaque = ", ".join(f"{k} {v}" for k, v in found.opaque_operators.items())
    nodes = f"{found.typed} / {found.opaque}{f' ({opaque})' if opaque else ''}"
    return (
        f"| {name} | {nodes} | {found.original_ms:.3g} "
        f"| {found.optimized_ms:.3g} | {found.speedup:.2f} | {worst} |"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", default=list(PRETRAINED))
    options.add_argument("--limit", type=float, default=60.0, help="seconds to search")
    given = options.parse_args()
    machine = Machine.here()
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions)
    print(f"{machine.key}; {versions}\n\n{HEAD}\n|---|---|---|---|---|---|")
    for name in given.names:
        print(row(name, given.limit), flush=True)


if __name__ == "__main__":
    main()
