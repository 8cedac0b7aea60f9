"""A rule applies within the limits of its evidence, and beyond them if both sides are proved equal there."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from explored import equal

from tensaurus.graph.ir.node import Node, apply, item, source
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.equation import equation_of_rewrite
from tensaurus.rules.language.evidence import Proved, parse_evidence
from tensaurus.rules.language.evidence_limits import Limits
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.rule import Rule, library, parse_rule
from tensaurus.rules.prove.proof import prove
from tensaurus.rules.test.annotate_files import common_evidence
from tensaurus.rules.test.coverage import Coverage


def tensor(*shape: int, dtype: str = "float32") -> Node:
    return source("x", TensorType(dtype, shape))


def call(op: str, *args: Node, **attrs: Any) -> Node:
    """Return the operator on these arguments."""
    return apply(registry[op], list(args), attrs)


def relu_of_part(*parts: int) -> Node:
    split = apply(registry["Split"], [tensor(sum(parts), 2)], {"axis": 0, "split": parts}, 0)
    return call("Relu", item(split, 0))


def slices(*axes: int) -> Node:
    ones, twos = (1,) * len(axes), (2,) * len(axes)
    return call("Neg", call("Slice", tensor(*[3] * 4), starts=ones, ends=twos, axes=axes, steps=ones))


def deep(size: int) -> Node:
    return call("DepthToSpace", call("Neg", tensor(1, 2 * size * size, 2, 2)), blocksize=size, mode="CRD")


def padded(value: Any) -> Node:
    return call("Neg", call("Pad", tensor(3), pads=(1, 1), value=value))


# laws that are right wherever a proof looks, and wrong elsewhere (at {other}); a place within, one beyond
BEYOND: dict[str, tuple[str, str, Node, Node]] = {
    "a rank": (
        "Neg(Softmax(x, axis=0)) => Sub(0, Softmax(x, axis=0 if rank(x) <= 5 else {other}))",
        "1",
        call("Neg", call("Softmax", tensor(2, 3), axis=0)),
        call("Neg", call("Softmax", tensor(2, 3, 1, 2, 1, 2), axis=0)),
    ),
    "a rank of what is computed of elements": (
        "Relu(x) => LeakyRelu(x, alpha=0 if rank(x) <= 5 else {other})",
        "1",
        call("Relu", tensor(2, 3, 1, 1, 1)),
        call("Relu", tensor(2, 3, 1, 1, 1, 1)),
    ),
    "a tuple": (
        "Relu(Split(x, axis=0, split=s)[0]) "
        "=> LeakyRelu(Split(x, axis=0, split=s)[0], alpha=0 if len(s) <= 5 else {other})",
        "1",
        relu_of_part(1, 2, 3),
        relu_of_part(1, 2, 3, 1, 1, 1),
    ),
    "a number as in examples": (
        "DepthToSpace(Neg(x), blocksize=b, mode=m) "
        "=> Neg(DepthToSpace(x, blocksize=b, mode=m if b <= 5 else {other}))",
        "'DCR'",
        deep(3),
        deep(6),
    ),
    "a number that is whole": (
        "Neg(Pad(x, pads=p, mode='constant', value=v)) "
        "=> Pad(Neg(x), pads=p, mode='constant', value=-v if v * 2 % 2 == 0 else {other})",
        "v",
        padded(2),
        padded(0.5),
    ),
    "no size": (
        "Relu(Pad(x, pads=p, mode='constant', value=v)) "
        "=> LeakyRelu(Pad(x, pads=p, mode='constant', value=v), alpha=0 if all(n >= 1 for n in shape(x)) "
        "else {other})",
        "1",
        call("Relu", call("Pad", tensor(3), pads=(1, 1), value=-2)),
        call("Relu", call("Pad", tensor(0), pads=(1, 1), value=-2)),
    ),
}
RIGHT = {
    "a rank": "0",
    "a rank of what is computed of elements": "0",
    "a tuple": "0",
    "a number as in examples": "m",
    "a number that is whole": "-v",
    "no size": "0",
}


def proved(law: str) -> Rule:
    (rule,) = parse_rule(f"planted: {law}")
    found = prove(rule)
    assert isinstance(found, Proved), found
    return replace(rule, evidence=found)


@pytest.mark.parametrize("kind", BEYOND)
def test_a_match_beyond_the_proof_is_refused(kind: str) -> None:
    law, wrong, within, beyond = BEYOND[kind]
    rule = proved(law.format(other=wrong))
    made = Matcher(rule).rewrite(within)
    assert made is not None and equal(within, made, [rule]) is not None
    assert equation_of_rewrite(rule, [within], [made]).evidence == rule.evidence
    free = Matcher(replace(rule, evidence=None)).rewrite(beyond)
    assert free is not None
    assert Matcher(rule).rewrite(beyond) is None
    assert equal(beyond, free, [rule]) is None


@pytest.mark.parametrize("kind", BEYOND)
def test_a_right_match_beyond_the_proof_is_proved_at_its_types(kind: str) -> None:
    law, _, _, beyond = BEYOND[kind]
    rule = proved(law.format(other=RIGHT[kind]))
    made = Matcher(rule).rewrite(beyond)
    assert made is not None and equal(beyond, made, [rule]) is not None
    assert str(equation_of_rewrite(rule, [beyond], [made]).evidence) == "proved(algebra, at these types)"


@pytest.mark.parametrize(
    ("evidence", "node", "covered"),
    [
        ("tested(gf, 40 instances of ranks 0-2, 2 trials, error < 2^-90)", tensor(1, 2), True),
        ("tested(gf, 40 instances of ranks 0-2, 2 trials, error < 2^-90)", tensor(1, 2, 3), False),
        ("tested(gf, 40 instances of ranks 2-3, 2 trials, error < 2^-90)", tensor(3), False),
        ("tested(gf, 9 instances, element types float32 int8, 2 trials, no error bound)", tensor(1), True),
        ("tested(gf, 9 instances, element types float64 int8, 2 trials, no error bound)", tensor(1), False),
        ("tested(gf, 9 instances, never varied: a=(0, 1) b.c=x, 2 trials, no error bound)", tensor(1), True),
        ("proved(z3, all sizes, ranks 1-3, sizes of one in broadcasting to rank 2)", tensor(1, 2, 3), True),
        ("axiom(the order is kept)", tensor(1, 2, 3), True),
        ("unproved(allowed)", tensor(1, 2, 3), True),
    ],
)
def test_evidence_states_its_limits(evidence: str, node: Node, covered: bool) -> None:
    (rule,) = parse_rule(f"r [any]: Relu(x) => Max(x, 0) | {evidence}")
    assert rule.evidence == parse_evidence(evidence)
    binding = next(Matcher(replace(rule, evidence=None)).match_roots([call("Relu", node)]))
    assert Limits(rule).covers(binding.facts(), binding.values) is covered


def test_an_attribute_that_never_varied_must_have_its_value() -> None:
    (rule,) = parse_rule(
        "r: Softmax(x, axis=k, **a) => Softmax(x, axis=k, **a) "
        "| tested(gf, 9 instances, never varied: a.flatten=0 k=1, 2 trials, error < 2^-90)"
    )
    assert Limits(rule).constant_attributes == {"a.flatten": "0", "k": "1"}
    for axis in (0, 1):
        (binding,) = Matcher(rule).match_roots([call("Softmax", tensor(2, 3), axis=axis)])
        assert Limits(rule).covers(binding.facts(), binding.values) is (axis == 1)


def test_broadcasting_a_size_of_one_is_limited() -> None:
    (rule,) = parse_rule(
        "r: Add(x, y) => Add(y, x) "
        "| proved(algebra, all sizes, ranks 0-5, sizes of one in broadcasting to rank 1)"
    )
    facts = Matcher(rule)
    for first, second, covered in (((1, 3), (1, 3), True), ((1, 3), (2, 3), False), ((1,), (3,), True)):
        nodes = [source(name, TensorType("float32", shape)) for name, shape in (("x", first), ("y", second))]
        binding = next(iter(facts.match_roots([call("Add", *nodes)])))
        assert Limits(rule).covers(binding.facts(), binding.values) is covered


@pytest.mark.nightly
def test_every_limit_of_the_library_is_parsed() -> None:
    said = [(rule, Limits(rule)) for rule in library() if "off" not in rule.tags]
    assert all((limits.max_rank < 9) == bool(re.search(r"ranks \d", limits.text)) for _, limits in said)
    assert all((limits.max_broadcast_rank < 9) == ("sizes of one" in limits.text) for _, limits in said)
    for rule, limits in said:
        if isinstance(rule.evidence, Proved) and limits.max_rank == float("inf") and "as in" in limits.text:
            assert limits._limited_attributes, rule.name


SEVERAL = [
    (
        "proved(algebra, all sizes, ranks 0-5, sizes of one in broadcasting to rank 2)",
        "proved(algebra, all sizes, ranks 1-4, axes of up to the rank)",
        "proved(algebra, all sizes, ranks 0-4, sizes of one in broadcasting to rank 2, "
        "axes of up to the rank)",
    ),
    (
        "proved(algebra, all sizes, all ranks)",
        "proved(z3, all reals, all sizes, ranks 0-3)",
        "proved(z3, all reals, all sizes, ranks 0-3)",
    ),
    (
        "tested(gf, 42 instances of ranks 1-4, element types bool float32 int8, never varied: k=(0, 1), "
        "2 trials, error < 2^-90)",
        "tested(gf, 40 instances of ranks 2-3, element types float32 int8 uint8, never varied: a.b=1, "
        "2 trials, error < 2^-95 for the integers drawn)",
        "tested(gf, 40 instances of ranks 2-3, element types float32 int8, never varied: k=(0, 1) a.b=1, "
        "2 trials, error < 2^-90 for the integers drawn)",
    ),
    (
        "proved(algebra, all sizes, ranks 0-2, keepdims as in examples)",
        "tested(gf, 40 instances of ranks 1-3, 2 trials, no error bound)",
        "tested(gf, 40 instances of ranks 1-2, keepdims as in examples, 2 trials, no error bound)",
    ),
    ("proved(algebra, all sizes)", "axiom(what a root is)", "axiom(what a root is)"),
]


@pytest.mark.parametrize(("first", "second", "both"), SEVERAL)
def test_evidence_of_a_line_covers_what_all_its_rules_cover(first: str, second: str, both: str) -> None:
    said = [parse_evidence(text) for text in (first, second)]
    found = {str(common_evidence(said)), str(common_evidence(said[::-1]))}
    assert both in found and all(len(each) == len(both) for each in found)  # but for the order of limits
    assert parse_evidence(both) == common_evidence([parse_evidence(both)] * 2)


def test_coverage_names_the_limits_of_a_rule() -> None:
    (rule,) = parse_rule("r [any]: Concat(Transpose(x, perm=(1, 0)), y, axis=1) => x where rank(y) == 2")
    coverage = Coverage()
    for size, dtype in ((2, "float32"), (3, "int8")):
        shapes = {"x": (size, 2), "y": (2, size)}
        nodes = {name: source(name, TensorType(dtype, shape)) for name, shape in shapes.items()}
        coverage.add(nodes, {"k": 1, "a.mode": (size,), "a.axes": (0, 1)})
    said = f"tested(gf, {coverage}, 2 trials, no error bound)"
    limits = Limits(replace(rule, evidence=parse_evidence(said)))
    assert (limits.min_rank, limits.max_rank, limits.element_types) == (2, 2, {"float32", "int8"})
    assert limits.constant_attributes == {"k": "1", "a.axes": "(0, 1)"}
