"""The generated rules: how many there are at each stage, what it costs, and what of TASO's table 2 they say.

Writes the rules to src/tensaurus/rules/library/generated/, and docs/rules.md.  With --sample it asks, too,
whether the rules derive what was dropped because of them: so many equations of each world, drawn at random.

    python bench/synthesis.py [--size N] [--seed 0] [--sample N] [--resume FOLDER] [WORLD ...]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import monotonic

import numpy as np

from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.finders.synthesis.derivable import DERIVATION_LIMITS, is_derivable
from tensaurus.finders.synthesis.generate import GeneratedRule, Sides
from tensaurus.finders.synthesis.generated_rules import format_rules, generate_rules
from tensaurus.finders.synthesis.movement_rules import movement_rule_lines
from tensaurus.finders.synthesis.parallel_worlds import WorldResult
from tensaurus.finders.synthesis.world import WORLDS
from tensaurus.graph.ir.node import INPUT, Node, source
from tensaurus.graph.ir.program import topological_order
from tensaurus.rules.language.match import Binding, build_term, scalar_value
from tensaurus.rules.language.occurrences import outer_first
from tensaurus.rules.language.rule import Rule, library, parse_rule
from tensaurus.rules.test.instances import instances
from tensaurus.rules.test.verify_rule import evaluate_roots
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.files import replace_file

ROOT = Path(__file__).parent.parent
STAGES = (
    *("terms", "classes", "candidates", "reduced", "refuted"),
    *("derived", "unproved", "rules", "multi-patterns"),
)
INSTANCES = 40  # of a rule that is written by hand
ZEROS = 32  # times that numbers are drawn of which many are 0
NOT_WRITTEN = (
    "NO: no rule writes two transposes, or a second activation, where nothing asks for them: it would match"
    " everything, and a search would write as many as there is room for."
)
CONV, POOL = "pads=(1,1,1,1)", "kernel_shape=(3,3), pads=(1,1,1,1)"
# TASO's table 2, as far as it is said by the worlds' operators: the two sides, and the types of x, y, z, w
TABLE_2 = {
    "addition is associative": ("Add(x, Add(y, z))", "Add(Add(x, y), z)", "mmmm"),
    "addition is commutative": ("Add(x, y)", "Add(y, x)", "mmmm"),
    "multiplication is associative": ("Mul(x, Mul(y, z))", "Mul(Mul(x, y), z)", "mmmm"),
    "multiplication is commutative": ("Mul(x, y)", "Mul(y, x)", "mmmm"),
    "distributivity": ("Mul(Add(x, y), z)", "Add(Mul(x, z), Mul(y, z))", "mmmm"),
    "scalar multiplication is associative": ("Mul(Mul(x, s), t)", "Mul(x, Mul(s, t))", "mmmm"),
    "scalars over addition": ("Mul(Add(x, y), s)", "Add(Mul(x, s), Mul(y, s))", "mmmm"),
    "scalars and multiplication": ("Mul(Mul(x, y), s)", "Mul(x, Mul(y, s))", "mmmm"),
    "transposition is its own inverse": ("Transpose(Transpose(x, T), T)", "x", "mmmm"),
    "transposition and addition": (
        "Transpose(Add(x, y), T)", "Add(Transpose(x, T), Transpose(y, T))", "mmmm"
    ),
    "transposition and multiplication": (
        "Transpose(Mul(x, y), T)", "Mul(Transpose(x, T), Transpose(y, T))", "mmmm"
    ),
    "scalars and transposition": ("Mul(Transpose(x, T), s)", "Transpose(Mul(x, s), T)", "mmmm"),
    "products are associative": ("MatMul(x, MatMul(y, z))", "MatMul(MatMul(x, y), z)", "mmmm"),
    "products are linear": ("MatMul(Mul(x, s), y)", "Mul(MatMul(x, y), s)", "mmmm"),
    "products are linear on the right": ("MatMul(x, Add(y, z))", "Add(MatMul(x, y), MatMul(x, z))", "mmmm"),
    "products of transposes": (
        "Transpose(MatMul(x, y), T)", "MatMul(Transpose(y, T), Transpose(x, T))", "mmmm"
    ),
    "convolutions are bilinear: scalars in the weights": (
        "Conv(x, Mul(y, s), C)", "Mul(Conv(x, y, C), s)", "ikkk"
    ),
    "convolutions are bilinear: scalars in the input": (
        "Conv(Mul(x, s), y, C)", "Mul(Conv(x, y, C), s)", "ikkk"
    ),
    "convolutions are bilinear: sums of inputs": (
        "Conv(Add(x, y), z, C)", "Add(Conv(x, z, C), Conv(y, z, C))", "iikk"
    ),
    "convolutions are bilinear: sums of weights": (
        "Conv(x, Add(y, z), C)", "Add(Conv(x, y, C), Conv(x, z, C))", "ikkk"
    ),
    "pooling and scalars": ("AveragePool(Mul(x, s), P)", "Mul(AveragePool(x, P), s)", "iiii"),
    "activation and transposition": ("Relu(Transpose(x, T))", "Transpose(Relu(x), T)", "mmmm"),
    "activation of what is active": ("Relu(Relu(x))", "Relu(x)", "mmmm"),
    "concatenation and addition, rows": (
        "Concat(Add(x, y), Add(z, w), axis=0)", "Add(Concat(x, z, axis=0), Concat(y, w, axis=0))", "mmmm"
    ),
    "concatenation and multiplication, columns": (
        "Concat(Mul(x, y), Mul(z, w), axis=1)", "Mul(Concat(x, z, axis=1), Concat(y, w, axis=1))", "mmmm"
    ),
    "concatenation and activation": (
        "Concat(Relu(x), Relu(y), axis=0)", "Relu(Concat(x, y, axis=0))", "mmmm"
    ),
    "concatenation and scalars": (
        "Concat(Mul(x, s), Mul(y, s), axis=0)", "Mul(Concat(x, y, axis=0), s)", "mmmm"
    ),
    "concatenation and transposition": (
        "Concat(Transpose(x, T), Transpose(y, T), axis=0)", "Transpose(Concat(x, y, axis=1), T)", "mmmm"
    ),
    "products of one operand": (
        "Concat(MatMul(x, y), MatMul(x, z), axis=1)", "MatMul(x, Concat(y, z, axis=1))", "mmmm"
    ),
    "products of parts": (
        "Add(MatMul(x, y), MatMul(z, w))", "MatMul(Concat(x, z, axis=1), Concat(y, w, axis=0))", "mmmm"
    ),
    "convolutions of one input": (
        "Concat(Conv(x, y, C), Conv(x, z, C), axis=1)", "Conv(x, Concat(y, z, axis=0), C)", "ikkk"
    ),
    "convolutions of parts": (
        "Add(Conv(x, y, C), Conv(z, w, C))", "Conv(Concat(x, z, axis=1), Concat(y, w, axis=1), C)", "ikik"
    ),
    "pooling and concatenation": (
        "Concat(AveragePool(x, P), AveragePool(y, P), axis=1)", "AveragePool(Concat(x, y, axis=1), P)", "iiii"
    ),
    "maxima and concatenation": (
        "Concat(MaxPool(x, P), MaxPool(y, P), axis=1)", "MaxPool(Concat(x, y, axis=1), P)", "iiii"
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--size", type=int, help="of all worlds; default: their own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="as of `tensaurus rules generate`")
    options = parser.parse_args()
    grown: list[WorldResult] = []
    began = monotonic()
    worlds = [WORLDS[name] for name in options.worlds]
    note = partial(print, flush=True)
    known = options.resume is not None and any(options.resume.glob("*.jsonl"))
    found = generate_rules(
        worlds, options.size, options.seed, note, grown.append, sample=options.sample, journal=options.resume
    )
    seconds = monotonic() - began
    target = ROOT / "src" / "tensaurus" / "rules" / "library" / "generated" / "worlds.rules"
    target.parent.mkdir(exist_ok=True)
    with replace_file(target) as beside:
        beside.write_text(format_rules(found, options.size, options.seed), encoding="utf-8")
    text = page(found, grown, seconds, known)  # of the library with these rules
    with replace_file(ROOT / "docs" / "rules.md") as beside:
        beside.write_text(text, encoding="utf-8")


def page(found: list[GeneratedRule], grown: list[WorldResult], seconds: float, known: bool) -> str:
    """docs/rules.md; whether verdicts of a run before were `known`."""
    memory = sum(getrusage(who).ru_maxrss for who in (RUSAGE_SELF, RUSAGE_CHILDREN)) / 2**20
    lines = [
        "# Generated rules",
        "",
        "Made by `python bench/synthesis.py`, not edited by hand.  Its stages: `finders/synthesis/generate`.",
        "Which rules models use, and what larger ones gain: [rule_uses.md](../bench/tables/rule_uses.md).",
        "What one operator more would add: [size_five.md](../bench/tables/size_five.md).",
        "",
        f"On {Machine.here().key}: {seconds / 60:.1f} minutes, each world on a core,"
        f"{' with verdicts of a evaluate_roots before,' if known else ''} {memory:.1f} GB,"
        f" {len(found)} rules of which none is derived by the others.",
        "",
        f"| world | size | {' | '.join(STAGES)} |",
        f"| --- | ---: |{' ---: |' * len(STAGES)}",
    ]
    for one_world in grown:
        for number, counts in one_world.counts.items():
            row = " | ".join(f"{counts[stage]:,}" for stage in STAGES)
            lines.append(f"| {one_world.world} | {number} | {row} |")
    minutes = ", ".join(f"{one.world} {one.seconds / 60:.1f}" for one in grown)
    lines += ["", f"Minutes of each world: {minutes}; then what all of them derive."]
    proofs: dict[str, int] = {}
    for one in found:
        by = one.evidence.split(",")[0].removeprefix("proved(")
        proofs[by] = proofs.get(by, 0) + 1
    several = movement_rule_lines(rule for one in found for rule in one.rules)
    ops = sum(len(line.split(" for f in ")[1].split(" | ")[0].split()) for line in several)
    lines += ["", f"Besides {len(several)} laws of what moves elements and what computes each, of {ops:,}"
              " operators in all and proved by one theorem (`rules/prove/data_movement`): not enumerated."]
    lines += ["", "Proved by: " + ", ".join(f"{by} {n}" for by, n in sorted(proofs.items())) + ".", ""]
    lines += ["## What of TASO's table 2 they derive", "", "From one side alone, at a world's types.", ""]
    ruleset = Ruleset([rule for one in found for rule in one.rules])
    lines += ["| property | from left to right | from right to left |", "| --- | --- | --- |"]
    for name, (left, right, kinds) in TABLE_2.items():
        both = (left, right), (right, left)
        ways = ["yes" if follows(*sides, kinds, ruleset) else "NO" for sides in both]
        lines.append(f"| {name} | {ways[0]} | {ways[1]} |")
    lines += ["", NOT_WRITTEN]
    lines += dropped(grown, ruleset)
    lines += by_hand(ruleset, {one.text for one in found})
    lines += ["", "## What nothing proves", "", "Right as far as it was tried, and no rules.", ""]
    lines += [f"- `{text}`: {reason}" for g in grown for text, reason in g.unproved] or ["None."]
    return "\n".join(lines) + "\n"


def dropped(grown: Sequence[WorldResult], ruleset: Ruleset) -> list[str]:
    """How many of the samples of dropped equations the rules derive, from their larger side alone."""
    sample = [(one.world, sides) for one in grown for sides in one.dropped]
    if not sample:
        return []
    counts, missing, untrue = Counter(world for world, _ in sample), Counter[str](), Counter[str]()
    lines = ["", "## What was dropped", ""]
    examples: list[str] = []
    with get_context("fork").Pool(Machine.here().threads, _given, (ruleset, sample)) as pool:
        for place, yes in enumerate(pool.imap(_follows, range(len(sample)), chunksize=50)):
            if not yes:
                world, ((left,), (right,)) = sample[place]
                if _differ_at_zeros(left, right):
                    untrue[world] += 1
                    continue
                missing[world] += 1
                examples.append(f"- {world}: `{written_out(left)} = {written_out(right)}`")
    lines += [
        "Drawn at random of the equations that are no rules for others derive them: how many the rules",
        "that are kept derive, from the larger side alone, within the limits of one search.  Untrue is what",
        "they do not derive and what float64 refutes where numbers are 0: x * (y / y) = x is so in fields,",
        "at the points where terms are enumerated, and rests on no rule.",
        "",
    ]
    lines += ["| world | drawn | derived | untrue | neither |", "| --- | ---: | ---: | ---: | ---: |"]
    for world, n in (*counts.items(), ("all", counts.total())):
        lost, wrong = (c.total() if world == "all" else c[world] for c in (missing, untrue))
        lines.append(f"| {world} | {n:,} | {n - lost - wrong:,} | {wrong:,} | {lost:,} |")
    return [*lines, "", "The first of those that are neither:", "", *examples[:20]] if examples else lines


def _differ_at_zeros(left: Node, right: Node) -> bool:
    """Whether two terms differ in float64 where numbers are -1, 0 or 1."""
    leaves = [node for node in topological_order((left, right)) if node.op is INPUT]
    rng = np.random.default_rng(0)
    for _ in range(ZEROS):
        values = {x: rng.integers(-1, 2, x.tensor.shape).astype(np.float64) for x in leaves}
        with np.errstate(all="ignore"):
            a, b = evaluate_roots((left, right), values, Reals())
        if not np.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True):
            return True
    return False


_asked: tuple[Ruleset, Sequence[tuple[str, Sides]]]  # of a process of the pool


def _given(ruleset: Ruleset, sample: Sequence[tuple[str, Sides]]) -> None:
    global _asked
    _asked = ruleset, sample


def _follows(place: int) -> bool:
    ruleset, sample = _asked
    left, right = sample[place][1]
    return is_derivable(left, right, ruleset)


def written_out(node: Node) -> str:
    """The term of a node, as rules are written."""
    if not node.args:
        number = scalar_value(node)
        return str(node.attribute("name") if number is None else number)
    attrs = [f"{name}={value!r}" for name, value in node.attrs]
    return f"{node.op}({', '.join([*(written_out(arg) for arg in node.args if arg is not None), *attrs])})"


def by_hand(ruleset: Ruleset, generated: Collection[str]) -> list[str]:
    """Which rules that are written by hand, of the same operators, they derive, at some instances."""
    names = {use.name for world in WORLDS.values() for use in world.uses}
    ends: dict[str, list[str]] = {"every instance": [], "some instances": [], "none": []}
    rules: list[Rule] = []
    for rule in library(ops=()):
        own = {call.op.name for root in (*rule.lhs, *rule.rhs) for call in outer_first(root)}
        if "off" not in rule.tags and rule.law not in generated and own <= names:
            rules.append(rule)
    with get_context("fork").Pool(Machine.here().threads, _asking, (ruleset, rules)) as pool:
        for rule, end in zip(rules, pool.imap(_end, range(len(rules))), strict=True):
            ends[end].append(rule.name)
    lines = ["", "## What of the rules written by hand they derive", ""]
    lines += [f"From the left side alone, at {INSTANCES} instances of each that has no other operators.", ""]
    lines += [f"- {end}, {len(own)} rules: {', '.join(own) or 'none'}." for end, own in ends.items()]
    return lines


_hand: tuple[Ruleset, Sequence[Rule]]  # of a process of the pool


def _asking(ruleset: Ruleset, rules: Sequence[Rule]) -> None:
    global _hand
    _hand = ruleset, rules


def _end(place: int) -> str:
    """At how many of its instances the rules derive a rule that is written by hand."""
    ruleset, rules = _hand
    found: set[bool] = set()
    limits = replace(DERIVATION_LIMITS, multi=int(len(rules[place].lhs) > 1))
    for each in instances(rules[place], INSTANCES):
        found.add(is_derivable(each.left, each.right, ruleset, limits))
        if len(found) > 1:
            return "some instances"
    return "every instance" if found == {True} else "none"


def follows(left: str, right: str, kinds: str, ruleset: Ruleset) -> bool:
    """Whether the right side comes out of the left side alone."""
    images, kernels = WORLDS["convolutions"].kinds[:2]
    types = {"m": WORLDS["matrices"].kinds[0], "i": images, "k": kernels}
    scalar = WORLDS["matrices"].kinds[1]
    leaves = [*zip("xyzw", (types[kind] for kind in kinds), strict=True), ("s", scalar), ("t", scalar)]
    nodes = {name: source(name, kind) for name, kind in leaves}

    def made(text: str) -> Node:
        for short, full in (("T", "perm=(1, 0)"), ("C", CONV), ("P", POOL)):
            text = text.replace(f", {short})", f", {full})")
        rule: Rule = parse_rule(f"law: {text} => {text}")[0]
        node = build_term(rule.lhs[0], Binding(dict(nodes), {}), "float32")
        assert node is not None
        return node

    return is_derivable([made(left)], [made(right)], ruleset)


if __name__ == "__main__":
    main()
