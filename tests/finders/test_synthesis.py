"""Generated rules: every term is met, what is equal is told, what is kept is proved and needed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from importlib.resources import files
from itertools import permutations, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tensaurus.app.cli.app import app
from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.egraph.match.saturate import Limits
from tensaurus.expr.evaluate.prime_field import PrimeField
from tensaurus.finders.synthesis import law
from tensaurus.finders.synthesis.derivable import is_derivable
from tensaurus.finders.synthesis.generate import GeneratedRule, Generation
from tensaurus.finders.synthesis.generated_rules import format_rules, generate_rules
from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.law import state_law
from tensaurus.finders.synthesis.law_precision import allowed_directions
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.parallel_worlds import WorldJob, grow_worlds
from tensaurus.finders.synthesis.prune import prune_rules
from tensaurus.finders.synthesis.reservoir import Reservoir
from tensaurus.finders.synthesis.term_classes import TermClasses, possible_laws
from tensaurus.finders.synthesis.term_order import Laws, order_key, rank_key, term_size, variables_in
from tensaurus.finders.synthesis.terms import Application, Term, Variable
from tensaurus.finders.synthesis.world import WORLDS, World
from tensaurus.graph.analysis.evaluate_node import evaluate_node
from tensaurus.graph.ir.node import apply, source
from tensaurus.ops import TensorType, registry
from tensaurus.optimizer.run.options import Options
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.rule import UNUSED_RULES_FILE, library, parse_rule, read_rules
from tensaurus.rules.language.term import Literal, parse_terms
from tensaurus.rules.language.term import Variable as RuleVariable
from tensaurus.rules.test.verify_rule import Refuted, evaluate_roots, verify
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.errors import TensaurusError

SMALL = World("small", ("f32[3,3]",), (3,), ("Add", "MatMul", "Transpose perm=(1,0)", "Relu"))
PAIRS = World("pairs", ("f32[3,3]", "f32[3,6]"), (3, 0), ("MatMul", "Concat axis=1"))
SUMS = World("sums", ("f32[5,5]",), (3,), ("Add", "Mul", "Relu"))


@pytest.mark.parametrize("name", WORLDS)
def test_many_arguments_at_once_give_what_each_gives(name: str) -> None:
    field, rng = PrimeField(1), np.random.default_rng(0)
    for use in WORLDS[name].uses:
        leaves = [source(f"x{k}", kind) for k, kind in enumerate(use.types)]
        args = [field.random((4, *kind.shape), rng) for kind in use.types]  # type: ignore[arg-type]
        many = use.evaluate(args, field)
        node = use.node(leaves)
        for row in range(4 if args else 1):
            (one,) = evaluate_roots([node], {x: a[row] for x, a in zip(leaves, args, strict=True)}, field)
            assert np.array_equal(many[row], one), str(use)


def call(use: Use, *args: Term) -> Application:
    """Return the use on these arguments."""
    return Application(use, args)


def every_term(world: World, most: int, names: int) -> list[Term]:
    """All terms of so many operators, with all names of variables: by recursion over the sizes alone."""
    by_size: list[list[Term]] = [[Variable(0, n) for n in range(names)]]
    for whole in range(most):
        found: list[Term] = []
        for use in world.uses:
            for sizes in product(range(whole + 1), repeat=len(use.types)):
                if sum(sizes) == whole:
                    found += [call(use, *args) for args in product(*(by_size[n] for n in sizes))]
        by_size.append(found)
    return [term for terms in by_size for term in terms]


def values_of(term: Term, leaves: dict[int, Any], field: PrimeField) -> Any:
    if isinstance(term, Variable):
        return leaves[term.number]
    return term.use.evaluate([values_of(part, leaves, field) for part in term.args], field)


@pytest.mark.parametrize("world", [SMALL, SUMS], ids=lambda world: world.name)
def test_every_term_is_in_a_class_and_no_two_classes_are_equal(world: World) -> None:
    """Beside an enumeration with names: as many functions up to the names of their variables."""
    grown = TermClasses(world)
    for _ in range(2):
        list(grown.grow())
    field, rng = PrimeField(5), np.random.default_rng(3)
    shape = tuple(world.kinds[0].shape)
    leaves = [field.random((1, *shape), rng) for _ in range(3)]  # type: ignore[arg-type]
    functions: set[bytes] = set()
    for term in every_term(world, 2, 3):
        renamed = (
            values_of(term, dict(enumerate(leaves[n] for n in names)), field).tobytes()
            for names in permutations(range(3))
        )
        functions.add(min(renamed))
    assert sum(len(family.origins) for family in grown.families.values()) == len(functions)


def test_candidates_are_equal_to_what_they_are_said_to_be() -> None:
    """For other values than those they were told by; unordered functions aside."""
    field, rng = PrimeField(9), np.random.default_rng(1)
    leaves = {n: field.random((1, 3, 3), rng) for n in range(3)}
    grown, equal, told = TermClasses(SMALL), 0, 0
    for _ in range(2):
        for candidate in grown.grow():
            pairs = list(possible_laws(candidate))
            told += bool(pairs)
            equal += any(
                np.array_equal(values_of(a, leaves, field), values_of(b, leaves, field)) for a, b in pairs
            )
    assert told > 10 and equal >= 0.9 * told


def random_term(rng: Random, depth: int) -> Term:
    if depth == 0 or rng.random() < 0.3:
        return Variable(0, rng.randrange(3))
    use = rng.choice(SMALL.uses)
    return call(use, *(random_term(rng, depth - 1) for _ in use.types))


def test_the_order_is_total_and_a_smaller_part_makes_a_smaller_term() -> None:
    rng = Random(0)
    for _ in range(500):
        a, b = random_term(rng, 3), random_term(rng, 3)
        assert (order_key(a) < order_key(b)) + (order_key(b) < order_key(a)) + (a == b) == 1
        assert term_size(a) <= term_size(b) or order_key(b) < order_key(a)
        for use in SMALL.uses:
            others = [random_term(rng, 2) for _ in use.types[1:]]
            if order_key(a) < order_key(b):
                assert order_key(call(use, a, *others)) < order_key(call(use, b, *others))


def test_laws_make_terms_smaller() -> None:
    add, matmul, transpose, _ = SMALL.uses
    x, y, z = (Variable(0, n) for n in range(3))
    laws = Laws()
    laws.add(call(add, x, y), call(add, y, x))
    assert laws.reduces(call(add, y, x)) and not laws.reduces(call(add, x, y))
    both = call(matmul, x, y)
    assert laws.reduces(call(add, both, z)) and not laws.reduces(call(add, z, both))
    laws.add(call(transpose, call(transpose, x)), x)
    assert laws.reduces(call(transpose, call(transpose, call(matmul, x, y))))
    inside = call(matmul, x, call(transpose, call(transpose, y)))
    assert laws.reduces_inside(inside) and not laws.reduces(inside)
    laws.add(call(matmul, x, y), z)  # which says nothing of z: it reduces nothing
    assert not laws.reduces(call(matmul, x, y))


def test_what_is_said_of_a_law_is_the_most_general_that_is_true() -> None:
    world = WORLDS["matrices"]
    uses = {(str(u), u.types): u for u in world.uses}
    square, scalar = world.kinds[0], world.kinds[1]
    add, mul = uses["Add()", (square, square)], uses["Mul()", (square, scalar)]
    matmul = uses["MatMul()", (square, square)]
    x, y, z, s = Variable(0, 0), Variable(0, 1), Variable(0, 2), Variable(1, 0)
    sums = call(matmul, call(add, x, y), z), call(add, call(matmul, x, z), call(matmul, y, z))
    linear = state_law(world, *sums, set())
    # sizes of one that broadcast are no exception: rows that stand for many, and what does not type otherwise
    assert linear.rules and "shape(" not in linear.text and "rank(x) >= 2" in linear.text
    scaled = state_law(world, call(matmul, call(mul, x, s), y), call(mul, call(matmul, x, y), s), set())
    assert scaled.rules and "numel(y) == 1" in scaled.text and "shape" not in scaled.text
    plain = state_law(world, call(add, x, y), call(add, y, x), set())
    assert plain.text == "Add(x, y) <=> Add(y, x)"
    assert not state_law(world, call(add, x, y), call(add, y, x), {plain.text}).rules  # it is known
    wrong = state_law(world, call(matmul, x, y), call(matmul, y, x), set())
    assert not wrong.rules and wrong.reasons


@pytest.fixture(scope="module")
def every() -> list[GeneratedRule]:
    return Generation(SMALL, 2).run()


@pytest.fixture(scope="module")
def kept(every: list[GeneratedRule]) -> list[GeneratedRule]:
    return prune_rules(every)


@pytest.mark.nightly
def test_rules_of_a_small_world(kept: list[GeneratedRule]) -> None:
    found = kept
    assert all(isinstance(verify(rule, 10), Proved) for one in found for rule in one.rules)
    text = format_rules(found, 2)
    rules = read_rules(text.splitlines())
    assert len({rule.name for rule in rules}) == len(rules)
    expected = [
        "Add(Add(x, y), z) => Add(x, Add(y, z))",
        "MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))",
        "MatMul(x, MatMul(y, z)) => MatMul(MatMul(x, y), z)",
        "Transpose(Transpose(x, perm=(1, 0)), perm=(1, 0)) => x",
        "Relu(Relu(x)) => Relu(x)",
        "Relu(Transpose(x, perm=(1, 0))) => Transpose(Relu(x), perm=(1, 0))",
    ]
    for wanted in expected:
        assert follows(wanted, rules), wanted
    # what every matching knows is said, and off
    assert follows("Add(x, y) => Add(y, x)", [rule for one in found for rule in one.rules])
    assert not follows("Add(x, y) => Add(y, x)", rules)
    for wrong in ("MatMul(x, y) => MatMul(y, x)", "Relu(Add(x, y)) => Add(Relu(x), Relu(y))"):
        assert not follows(wrong, rules), wrong
    once, again = (format_rules(generate_rules([SUMS], 2), 2) for _ in range(2))
    assert once == again  # bit for bit


@pytest.mark.nightly
def test_worlds_grown_side_by_side_give_what_each_gives() -> None:
    worlds, notes = (SUMS, PAIRS), list[str]()
    grown = list(grow_worlds([WorldJob(world, 2, sample=5) for world in worlds], notes.append))
    for world, made in zip(worlds, grown, strict=True):
        own = Generation(world, 2)
        found = own.run()
        assert [one.line for one in made.found] == [one.line for one in found] != []
        assert [one.sides for one in made.found] == [one.sides for one in found]  # the same nodes
        assert made.world == world.name and made.counts == own.counts
        assert 0 < len(made.dropped) <= 5
        assert f"world {world.name}" in notes
        assert any(text.startswith(f"{world.name}: size 2") for text in notes)


@pytest.mark.skipif(Machine.here().threads < 2, reason="one world after the other, in this process")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_what_grows_worlds_ends_with_the_command(sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tensaurus", "rules", "generate", "-o", str(tmp_path / "made.rules")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr is not None
        begun = set[str]()
        for line in parent.stderr:
            begun |= {line} if line.startswith("world ") else set()
            if len(begun) == min(len(WORLDS), Machine.here().threads):  # one for each core at a time
                break
        threads = Path(f"/proc/{parent.pid}/task").iterdir()
        children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
        assert children
        parent.send_signal(sent)
    for _ in range(100):
        if not any(map(_alive, children)):
            break
        time.sleep(0.1)
    assert not any(map(_alive, children))
    assert not list(tmp_path.iterdir())


def _alive(pid: int) -> bool:
    """Whether it computes: what nobody waits for is a zombie in a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.nightly
def test_what_a_law_puts_together_is_a_multi_pattern() -> None:
    """Its sizes are said of the variables that have them, and no others do."""
    found = Generation(PAIRS, 3).run()
    several = [one for one in found if len(one.rules[0].lhs) > 1]
    assert len(several) == 1
    (one,) = several
    (rule,) = one.rules
    whole = "Split(MatMul(x, Concat(y, z, axis=-1)), axis=-1, split=(dim(y, -1), dim(z, -1)))"
    assert rule.law == f"MatMul(x, y), MatMul(x, z) => {whole}[0], {whole}[1]"
    assert one.tags == ("once",) and "[once]" in one.line
    (read,) = read_rules([one.line], "line")
    assert str(read.evidence) == one.evidence == "proved(algebra, all sizes, ranks 2-5)"
    assert isinstance(verify(rule, 10, seed=3), Proved)
    (swapped,) = parse_rule(f"law: MatMul(x, y), MatMul(x, z) => {whole}[1], {whole}[0]")
    assert isinstance(verify(swapped, 10), Refuted)
    left, right = one.sides
    assert len(left) == len(right) == 2 and [n.types for n in left] == [n.types for n in right]
    assert is_derivable(left, right, [rule], Limits(nodes=100, rounds=2, multi=1))
    assert not is_derivable(left, right, [r for each in found if each is not one for r in each.rules])


@pytest.mark.nightly
def test_a_multi_pattern_keeps_the_attributes_of_its_parts() -> None:
    """Convolutions of one input are merged whatever their strides and pads are, if these are the same."""
    types = ("f32[1,2,5,4]", "f32[2,2,3,3]", "f32[1,4,5,4]", "f32[4,2,3,3]")
    uses = ("Conv pads=(1,1,1,1)", "Concat axis=0", "Concat axis=1")
    found = Generation(World("convs", types, (1, 2, 0, 0), uses), 3).run()
    (one,) = [one for one in found if one.text.startswith("Conv(x, y, group=1, **b), Conv(x, z")]
    whole = "Split(Conv(x, Concat(y, z, axis=0), group=1, **b), axis=1, split=(dim(y, 0), dim(z, 0)))"
    assert one.text.endswith(f"=> {whole}[0], {whole}[1]") and one.tags == ("once",)
    left, right = one.sides
    assert all(node.attribute("pads") == (1, 1, 1, 1) for node in left)
    assert is_derivable(left, right, one.rules, Limits(nodes=100, rounds=2, multi=1))


def test_parts_are_terms_and_share_the_names_of_their_sizes() -> None:
    world = World(
        "parts",
        ("f32[2,4]", "f32[4,4]", "f32[4,2]", "f32[2,2]"),
        (0, 2, 0, 0),
        ("MatMul", "Split axis=0 split=(2,2)", "Split axis=1 split=(2,2)"),
    )
    uses = {(str(use), use.types): use for use in world.uses}
    part, whole, narrow, _ = world.kinds
    x, y = Variable(1, 0), Variable(1, 1)
    second = uses["Split(axis=0, split=(2, 2))[1]", (whole,)]
    product, lower = (uses["MatMul()", (kind, whole)] for kind in (whole, part))
    asked = list[str]()

    def note(question: str, find: Any) -> list[str]:
        asked.append(question.partition(": ")[2])
        # what is not proved of the world's own attributes is asked of no others
        return ["proved(algebra, all sizes, ranks 2-2)", ""] if len(asked) == 1 else ["", "not now"]

    journal = Journal()
    journal.answer = note  # type: ignore[method-assign, assignment]
    half = call(lower, call(second, x), y)
    assert not state_law(world, call(second, call(product, x, y)), half, set(), journal).rules
    own = "Split(MatMul(x, y), axis=0, split=(2, 2))[1] <=> MatMul(Split(x, axis=0, split=(2, 2))[1], y)"
    assert asked[0] == f"{own} where shape(x) == shape(y), rank(x) == 2, rank(y) == 2"
    assert asked[1:3] == [
        f"Split(MatMul(x, y), **a)[{output}] <=> MatMul(Split(x, **a)[{output}], y)" for output in "i1"
    ]
    assert "Split(MatMul(x, y), axis=-2, split=s0)[1] <=> MatMul(Split(x, axis=-2, split=s0)[1], y)" in asked
    rows, columns = "Split(axis=0, split=(2, 2))", "Split(axis=1, split=(2, 2))"
    turned = (  # of two uses of one operator
        call(uses[f"{rows}[1]", (narrow,)], call(uses[f"{columns}[1]", (whole,)], x)),
        call(uses[f"{columns}[1]", (part,)], call(uses[f"{rows}[1]", (whole,)], x)),
    )
    asked.clear()
    assert not state_law(world, *turned, set(), journal).rules
    assert "axis=-2, split=s0)[i]" in asked[1] and "axis=-1, split=s0)[i]" in asked[1]
    of_the_first = call(lower, call(uses[f"{rows}[0]", (whole,)], x), y)
    asked.clear()  # of different outputs nothing is said of every one
    assert not state_law(world, call(second, call(product, x, y)), of_the_first, set(), journal).rules
    assert asked and not any("[i]" in question for question in asked)


def test_what_a_value_does_not_depend_on_is_left_out() -> None:
    lattice = World("lattice", ("f32[2,3]",), (2,), ("Min", "Max", "Sub"))
    texts = {one.text for one in Generation(lattice, 2).run()}
    assert {"Min(x, Max(x, y)) => x", "Max(x, Min(x, y)) => x"} <= texts
    rules = [rule for one in Generation(lattice, 2).run() for rule in one.rules]
    x, y = (source(name, lattice.kinds[0]) for name in "xy")
    (sub,) = (use for use in lattice.uses if use.name == "Sub")
    assert is_derivable([sub.node([x, sub.node([x, y])])], [y], rules)


@pytest.mark.parametrize(
    ("rank", "axis", "matches"), [(2, 1, True), (2, 0, False), (3, 2, True), (3, 1, False)]
)
def test_an_axis_counted_from_the_end_is_matched(rank: int, axis: int, matches: bool) -> None:
    (rule,) = parse_rule("law: Relu(Concat(x, y, axis=-1)) => Concat(Relu(x), Relu(y), axis=-1)")
    kind = TensorType("float32", (3,) * rank)
    both = apply(registry["Concat"], [source("x", kind), source("y", kind)], {"axis": axis})
    matcher = Matcher(rule)
    assert bool(list(matcher.match_roots((apply(registry["Relu"], [both]),)))) is matches


@pytest.mark.parametrize(
    ("rank", "axes", "matches"), [(2, (0,), True), (2, (1,), False), (3, (1,), True), (3, (0,), False)]
)
def test_axes_counted_from_the_end_are_matched_in_tuples(rank: int, axes: Any, matches: bool) -> None:
    """By a matcher, and by an e-graph."""
    (rule, _) = parse_rule(
        "law: Slice(MatMul(x, y), starts=s, ends=e, axes=(-2,))"
        " <=> MatMul(Slice(x, starts=s, ends=e, axes=(-2,)), y)"
    )
    x, y = (source(name, TensorType("float32", (3,) * rank)) for name in "xy")
    product, slice_ = (registry[name] for name in ("MatMul", "Slice"))
    left = apply(slice_, [apply(product, [x, y])], {"starts": (1,), "ends": (3,), "axes": axes})
    assert bool(list(Matcher(rule).match_roots((left,)))) is matches
    other = apply(product, [apply(slice_, [x], {"starts": (1,), "ends": (3,), "axes": (-2,)}), y])
    assert is_derivable([left], [other], [rule]) is matches


def follows(text: str, rules: list[Any]) -> bool:
    """Whether the rules derive it for square matrices, from its left side alone."""
    (rule,) = parse_rule(f"law: {text}")
    world = WORLDS["matrices"]
    nodes = {name: source(name, world.kinds[0]) for name in rule.variables}
    from tensaurus.rules.language.match import Binding, build_term

    binding = Binding(dict(nodes), {})
    left, right = (build_term(side[0], binding, "float32") for side in (rule.lhs, rule.rhs))
    assert left is not None and right is not None
    return is_derivable([left], [right], Ruleset(rules))


def test_what_is_dropped_is_derived_by_what_is_kept(
    every: list[GeneratedRule], kept: list[GeneratedRule]
) -> None:
    rules = [rule for one in kept for rule in one.rules]
    assert len(kept) <= len(every)
    for one in every:
        assert all(is_derivable(left, right, rules) for left, right in one.directions), one.text
    for one in kept:
        others = [rule for other in kept if other is not one for rule in other.rules]
        assert not all(is_derivable(left, right, others) for left, right in one.directions), one.text


def value_of(node: Any, leaves: dict[Any, Any], field: PrimeField) -> Any:
    if node in leaves:
        return leaves[node]
    return evaluate_node(node, {arg: value_of(arg, leaves, field) for arg in node.args}, field)


@pytest.mark.nightly
def test_a_sample_of_what_is_dropped_is_true_and_derived(kept: list[GeneratedRule]) -> None:
    generation = Generation(SMALL, 2, sample=1000)
    assert generation.run() == Generation(SMALL, 2).run()  # sampling changes nothing
    counts = [generation.counts[n] for n in (1, 2)]
    most = sum(each["reduced"] + each["derived"] for each in counts)
    assert 20 < len(generation.dropped) <= most
    rules = [rule for one in kept for rule in one.rules]
    field, rng = PrimeField(7), np.random.default_rng(2)
    for (left,), (right,) in generation.dropped:
        leaves = {x: field.random((3, 3), rng) for x in {*variables_of(left), *variables_of(right)}}
        assert np.array_equal(*(value_of(node, leaves, field) for node in (left, right)))
        assert left is not right and is_derivable([left], [right], rules)


def _grown(folder: Path, name: str, shard: tuple[int, int] = (0, 1)) -> list[str]:
    return [one.line for one in Generation(SUMS, 2, journal=Journal(folder, name), shard=shard).run()]


@pytest.mark.nightly
def test_what_was_killed_goes_on_with_the_verdicts_that_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [one.line for one in Generation(SUMS, 2).run()]
    assert _grown(tmp_path, "first") == expected  # a journal changes nothing
    (file,) = tmp_path.iterdir()
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-2]) + lines[-2][:10])  # killed within the last line but one
    asked = list[str]()
    monkeypatch.setattr(law, "verify", lambda rule, *given, **named: asked.append(rule) or verify(rule, 10))
    assert _grown(tmp_path, "first") == expected
    assert len(asked) <= 4  # of two verdicts, of which each may be of two rules
    assert file.read_text().splitlines(keepends=True)[: len(lines) - 2] == lines[:-2]
    asked.clear()
    assert _grown(tmp_path, "second") == expected and not asked  # whoever left them
    early, late = Journal(tmp_path, "early"), Journal(tmp_path, "late")
    assert late.answer("new?", lambda: True) and early.answer("new?", lambda: False)  # what came meanwhile
    for strange in (b'"other code"\n', b"no verdict\n", b"\xff\n[]\n"):
        file.write_bytes(strange)
        with pytest.raises(TensaurusError, match="written by another version"):
            Journal(tmp_path)


@pytest.mark.nightly
def test_shards_are_all_of_it_and_what_they_leave_is_not_proved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Generation(SUMS, 2)
    expected = [one.line for one in whole.run()]
    journals = [Journal(tmp_path, str(place)) for place in range(3)]
    parts = [Generation(SUMS, 2, shard=(k, 3), journal=journal) for k, journal in enumerate(journals)]
    found = [{one.line for one in part.run()} for part in parts]
    assert any(len(each) < len(expected) for each in found)
    assert set(expected) <= set.union(*found)
    for name in ("candidates", "terms"):
        counts = [part.counts[2][name] for part in parts]
        assert whole.counts[2][name] == (sum(counts) if name == "candidates" else counts[0])
    asked = list[str]()
    monkeypatch.setattr(law, "verify", lambda rule, *given, **named: asked.append(rule) or verify(rule, 10))
    assert _grown(tmp_path, "all") == expected and not asked


def test_a_reservoir_keeps_each_item_as_often_as_any_other() -> None:
    kept = Counter[int]()
    for seed in range(2000):
        reservoir = Reservoir[int](5, seed)
        for item in range(20):
            reservoir.offer(item)
        assert len(set(reservoir.sample)) == 5
        kept.update(reservoir.sample)
    assert all(abs(kept[item] - 500) < 100 for item in range(20))  # a quarter of 2000, by five deviations
    none = Reservoir[int](0)
    none.offer(1)
    assert none.sample == []


def test_laws_of_ranks_make_terms_of_other_sizes_smaller_and_those_of_types_do_not() -> None:
    world = World("sizes", ("f32[3,3]", "f32[]", "f32[6,3]"), (2, 1, 0), ("Relu", "Add", "Concat axis=0"))
    uses = {(use.name, use.types): use for use in world.uses}
    one, scalar, two = world.kinds
    x, y, s = Variable(0, 0), Variable(0, 1), Variable(1, 0)
    typed, ranked = Laws(), Laws(rank_key)
    for laws in (typed, ranked):
        laws.add(call(uses["Relu", (one,)], call(uses["Add", (one, scalar)], x, s)), x)
    both = call(uses["Concat", (one, one)], x, y)
    larger = call(uses["Relu", (two,)], call(uses["Add", (two, scalar)], both, s))
    assert ranked.reduces(larger) and not typed.reduces(larger)
    # nothing was said of sums of matrices
    matrix = call(uses["Relu", (one,)], call(uses["Add", (one, one)], x, y))
    assert not ranked.reduces(matrix) and not typed.reduces(matrix)


def test_both_sides_have_the_same_variables_or_the_right_has_fewer() -> None:
    for one in Generation(SUMS, 2).run():
        first, second = (set(variables_of(node)) for (node,) in one.sides)
        assert second <= first
        assert "<=>" not in one.text or first == second


def variables_of(node: Any) -> list[Any]:
    if not node.args:
        return [node]
    return [leaf for arg in node.args for leaf in variables_of(arg)]


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORLDS, "small", SMALL)
    run, file = CliRunner(), tmp_path / "small.rules"
    made = run.invoke(app, ["rules", "generate", "--world", "small", "--size", "1", "-o", str(file)])
    assert made.exit_code == 0 and file.read_text().count("proved(") >= 1
    listed = run.invoke(app, ["rules", "list", str(file)])
    assert "Add(x, y) <=> Add(y, x)" in listed.stdout
    name = listed.stdout.split()[0].rstrip(":")
    shown = run.invoke(app, ["rules", "show", name, str(file)])
    assert shown.exit_code == 0 and "proved(" in shown.stdout
    assert run.invoke(app, ["rules", "diff", str(file), str(file)]).exit_code == 0
    other = tmp_path / "other.rules"
    other.write_text(file.read_text() + "again: Relu(Relu(x)) => Relu(x)\n")
    differing = run.invoke(app, ["rules", "diff", str(file), str(other)])
    assert differing.exit_code == 1 and "+ again" in differing.stdout


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["generate", "--world", "none", "-o", "x.rules"], "unknown --world none"),
        (["generate", "-o", "missing/x.rules"], "missing"),
        (["generate", "--shard", "3/2"], "--shard 3/2"),
        (["generate", "--shard", "0/2"], "--shard 0/2"),
        (["generate", "--shard", "one"], "The second of three is 2/3"),
        (["generate", "--resume", "/dev/null"], "Name another folder"),
        (["show", "matmul-by-identiti"], "matmul-by-identity"),
        (["diff", "missing.rules", "missing.rules"], "missing.rules"),
    ],
)
def test_bad_input(
    args: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["rules", *args])
    assert result.exit_code != 0
    error = result.exception
    said = f"{error} {getattr(error, 'remedy', '')} {result.output}"
    assert word in said
    assert not list(tmp_path.iterdir())


def test_variables_are_listed_in_order() -> None:
    add = SMALL.uses[0]
    x, y = Variable(0, 0), Variable(0, 1)
    assert list(variables_in(call(add, y, call(add, x, y)))) == [y, x, y]


def test_rules_that_no_model_uses_are_generated_and_left_to_long_searches() -> None:
    folder = files("tensaurus.rules") / "library" / "generated"
    lines = folder.joinpath(UNUSED_RULES_FILE).read_text("utf-8").splitlines()
    idle = {line for line in lines if not line.startswith("#")}
    every, short = library(ops=()), library(long=False)
    text = folder.joinpath("worlds.rules").read_text("utf-8")
    made = {rule.name for rule in read_rules(text.splitlines(), ops=())}
    assert idle <= made, "bench/rule_uses.py is to run again"
    long = {rule.name for rule in every if "long" in rule.tags}
    assert long & made == idle
    assert [rule.name for rule in short] == [rule.name for rule in every if rule.name not in long]
    assert not Options(time_limit=60).is_long_search and Options(time_limit=300).is_long_search


@pytest.mark.nightly
def test_the_rules_that_ship_are_proved_and_have_names_of_their_own() -> None:
    folder = files("tensaurus.rules") / "library" / "generated"
    rules = [
        rule
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".rules")
        for rule in read_rules(entry.read_text("utf-8").splitlines(), entry.name)
    ]
    assert len(rules) > 20 and all(isinstance(rule.evidence, Proved) for rule in rules)
    names = [rule.name for rule in rules]
    every = [rule.name for rule in library()]
    assert len(set(every)) == len(every) and set(names) < set(every)
    known = {f"{name}(x, y) <=> {name}(y, x)" for name in ("Add", "Mul", "Min", "Max")}
    laws = {rule.law for rule in rules if "off" in rule.tags}
    assert laws and laws <= known  # every matching knows those
    alone = {rule.name for rule in library(ops=())}
    one_by_one = [rule for rule in rules if rule.name in alone]
    many = [rule for rule in rules if rule.name not in alone]
    assert len(one_by_one) > 200 and len(many) > 3000
    for rule in one_by_one[::15] + many[::300]:  # bench/proofs.py proves all
        assert isinstance(verify(rule, 10), Proved), rule.name


NUMBERS = World("numbers", ("f32[2,3]", "f32[]"), (2, 0), ("Add", "Sub", "Mul", "Neg", "0", "1"))


def test_numbers_are_terms_and_constants_fold() -> None:
    generation = Generation(NUMBERS, 2)
    texts = {one.text for one in generation.run()}
    assert {"Add(x, 0) => x", "Mul(x, 1) => x", "Sub(x, 0) => x"} <= texts
    terms = TermClasses(NUMBERS)
    for _ in range(3):
        list(terms.grow())
    for family in terms.families.values():
        for number, hashes in enumerate(family.slots):
            term = family.term(number)
            assert len(set(hashes)) > 1 or (term.args == () and not family.signature), term
    rules = [rule for one in generation.found for rule in one.rules]
    x = source("x", NUMBERS.kinds[0])
    uses = {(use.name, use.types): use for use in NUMBERS.uses}
    zero, matrix = uses["0", ()].node([]), NUMBERS.kinds[0]
    minus = uses["Sub", (zero.tensor, matrix)].node([zero, x])
    assert is_derivable([minus], [uses["Neg", (matrix,)].node([x])], rules)


@pytest.mark.parametrize(
    ("left", "right", "ways"),
    [
        ("Add(x, Sub(y, x))", "y", (True, False)),
        ("Min(Max(x, y), y)", "Add(x, Sub(y, x))", (False, True)),
        ("Add(x, Add(y, z))", "Add(y, Add(x, z))", (True, True)),
        ("Mul(x, Add(y, z))", "Add(Mul(x, y), Mul(x, z))", (True, True)),
        ("Sub(Max(x, y), y)", "Sub(x, Min(x, y))", (True, True)),
        ("Div(Mul(x, y), z)", "Mul(x, Div(y, z))", (True, True)),
        ("Add(x, 0)", "Sub(x, 0)", (True, True)),
    ],
)
def test_a_direction_that_loses_digits_is_told(left: str, right: str, ways: tuple[bool, bool]) -> None:
    world = World("digits", ("f32[2,3]", "f32[]"), (3, 0), ("Add", "Sub", "Mul", "Div", "Min", "Max", "0"))
    uses = {(use.name, len(use.types)): use for use in reversed(world.uses)}

    def term(root: Any) -> Term:
        match root:
            case RuleVariable(name):
                return Variable(0, "xyz".index(name))
            case Literal():
                return call(uses["0", 0])
        args = [term(arg) for arg in root.args]
        zero = call(uses["0", 0])
        kinds = tuple(world.kinds[1 if arg == zero else 0] for arg in args)
        (use,) = (u for u in world.uses if u.name == root.op.name and u.types == kinds)
        return call(use, *args)

    (one,), (other,) = parse_terms(left), parse_terms(right)
    assert allowed_directions(world, term(one), term(other)) == ways
    assert allowed_directions(world, term(other), term(one)) == ways[::-1]


def test_rules_are_said_in_the_directions_that_keep_digits() -> None:
    world = World("choices", ("f32[3,2]",), (2,), ("Add", "Sub", "Min", "Max"))
    for one in Generation(world, 2).run():
        for left, right in one.directions:
            assert is_derivable(left, right, one.rules)
        assert "=> Add(x, Sub(y, x))" not in one.text
