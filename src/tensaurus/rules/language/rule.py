"""A rewrite rule: one line of text with its evidence.

    name [tags]: lhs => rhs where condition, condition | evidence

Tags:
    any      variables may have any element type; without the tag, float32 or float64
    expand   the right side replaces an operator on export to an opset that lacks the operator
    explore  enlarges a program, or leads back to an earlier one: left out of the default search, which takes
             the cheapest program first; a search that keeps every program (saturation) uses the rule
    off      an unsound rule, kept with its counterexample
    long     has helped no model so far: only a search with a long time limit uses the rule, unless it makes
             programs smaller (`Rule.shrinks`): models that nobody has seen may need it
    once     symmetric in its roots: matching one order of the roots is enough

`a <=> b` is two rules, the second named after the first and `-back`; with the tag `back` only the second is
`explore`.  `x?` is an optional input: where it is absent, 0 replaces it in arithmetic.  `f(x) => ... for f in
Relu Exp` is one rule for each operator, whose name ends with the operator's.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.resources import files

from tensaurus.rules.language.evidence import Evidence, parse_evidence
from tensaurus.rules.language.occurrences import attribute_expressions, bound_names, outer_first, variables
from tensaurus.rules.language.term import (
    Apply,
    Item,
    Literal,
    RuleError,
    Term,
    Variable,
    check_names,
    parse_expression,
    parse_terms,
)


@dataclass(frozen=True)
class Rule:
    """A rewrite rule; `lhs` and `rhs` hold the roots, `where` all conditions, `text` the line."""

    name: str
    lhs: tuple[Term, ...]
    rhs: tuple[Term, ...]
    where: tuple[ast.expr, ...]
    tags: frozenset[str]
    text: str
    evidence: Evidence | None = None

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self.name == other.name and self.text == other.text

    @property
    def law(self) -> str:
        """The rule's line without its name, tags and evidence."""
        line = self.text.split("|")[0] if self.evidence is not None else self.text
        return " ".join(line.split(":", 1)[1].split())

    @property
    def expressions(self) -> list[ast.expr]:
        """The conditions, and the expressions of attributes on both sides."""
        return [*self.where, *(tree for root in self.lhs + self.rhs for tree in attribute_expressions(root))]

    @property
    def variables(self) -> dict[str, Variable]:
        """The tensor variables of the left side, by name."""
        return {k: v for root in self.lhs for k, v in variables(root).items()}

    @property
    def simplifies(self) -> bool:
        """Whether a search should apply the rule first: it reaches other operators, not only another order.

        Add(Conv(x, v, b), Conv(x, w, c)) => Conv(x, Add(v, w), Add(b, c)) where const(v), ...   True
        Add(Add(x, y), z) => Add(x, Add(y, z))    False: the same operators, and as many ways as there are
                                                  orders of a sum
        What is computed from constants does not count.  Rules tagged `explore`, and those of several roots,
        are left out.
        """
        if len(self.lhs) > 1 or "explore" in self.tags:
            return False
        left, right = self._operators
        return left != right

    @property
    def shrinks(self) -> bool:
        """Whether the right side has fewer operators, those left out that compute from constants alone."""
        left, right = self._operators
        return left.total() > right.total()

    @property
    def _operators(self) -> tuple[Counter[str], Counter[str]]:
        """How often each operator occurs on both sides, those left out that compute from constants alone."""
        constants = set[str]()
        for tree in self.where:
            match tree:
                case ast.Call(ast.Name("const"), [ast.Name(name)]):
                    constants.add(name)
        return _count_operators(self.lhs, constants), _count_operators(self.rhs, constants)


def _count_operators(roots: Iterable[Term], constants: Container[str]) -> Counter[str]:
    """Return how often each operator occurs in the roots, those left out that read only constants."""
    calls = {call: call.op.name for root in roots for call in outer_first(root)}
    return Counter(op for call, op in calls.items() if any(name not in constants for name in variables(call)))


UNUSED_RULES_FILE = "idle.txt"  # names of generated rules that no model of `bench/rule_uses.py` uses
TAGS = frozenset({"any", "expand", "explore", "off", "back", "once", "long"})

_LINE = re.compile(
    r"^(?P<name>[\w-]+)\s*(?:\[(?P<tags>[\w ,]*)\])?\s*:\s*(?P<lhs>.+?)\s*(?P<arrow><=>|=>)\s*(?P<rhs>.+?)"
    r"(?:\s+where\s+(?P<where>.+?))?(?:\s+for\s+f\s+in(?P<each>(?:\s+[A-Z]\w*)+))?(?:\s*\|\s*(?P<evidence>\w+\(.*\)))?\s*$"
)


def parse_rule(line: str, ops: Container[str] | None = None) -> list[Rule]:
    """Return the rules of one line.

    These are two for `<=>`, one more where an optional input is absent, and one for each operator of a `for`
    clause, limited to the operators in `ops` where `ops` is given.
    """
    joined = " ".join(line.split())
    parts = _LINE.match(joined)
    if parts is None:
        raise RuleError(f"not of the form NAME: LEFT => RIGHT: {line!r}")
    if parts["each"] is not None:
        name, start, end = parts["name"], parts.end("name"), parts.start("each")
        law, rest = joined[start:end].removesuffix(" for f in"), joined[parts.end("each") :]
        wanted = (op for op in parts["each"].split() if ops is None or op in ops)
        laws = [(op, re.sub(r"\bf\(", f"{op}(", law)) for op in wanted]
        return [rule for op, each in laws for rule in parse_rule(f"{name}-{op.lower()}{each}{rest}")]
    tags = frozenset((parts["tags"] or "").replace(",", " ").split())
    if tags - TAGS:
        raise RuleError(f"unknown tag {min(tags - TAGS)}")
    conditions = parse_expression(f"({parts['where']},)").elts if parts["where"] else []  # type: ignore[attr-defined]
    evidence = parse_evidence(parts["evidence"]) if parts["evidence"] else None
    sides = parse_terms(parts["lhs"]), parse_terms(parts["rhs"])
    base = Rule(parts["name"], *sides, tuple(conditions), tags - {"back"}, line.strip(), evidence)
    rules = [base]
    if parts["arrow"] == "<=>":
        back = base.tags | ({"explore"} if "back" in tags else set())
        rules.append(replace(base, name=f"{base.name}-back", lhs=base.rhs, rhs=base.lhs, tags=back))
    for rule in rules:
        given = set[str]().union(*map(bound_names, rule.lhs))
        if strange := [name for root in rule.rhs for name in variables(root) if name not in given]:
            raise RuleError(f"the right side of {rule.name} reads {strange[0]}, which its left side lacks")
        for tree in (*rule.where, *(tree for root in rule.rhs for tree in attribute_expressions(root))):
            check_names(tree, given)
    return [variant for rule in rules for variant in _optional_variants(rule)]


def _optional_variants(rule: Rule) -> Iterator[Rule]:
    """Yield the rule with its optional inputs present, and with all of them absent."""
    optional = [v.name for v in rule.variables.values() if v.optional]
    if not optional:
        yield rule
        return
    for name, gone in ((rule.name, set[str]()), (f"{rule.name}-without-{'-'.join(optional)}", set(optional))):
        lhs, rhs = (tuple(_without_optionals(t, gone) for t in side) for side in (rule.lhs, rule.rhs))
        yield replace(rule, name=name, lhs=lhs, rhs=rhs)


def _without_optionals(term: Term, gone: set[str]) -> Term:
    """Return the term with optional variables present, or those in `gone` absent (0 in arithmetic)."""
    match term:
        case Variable(name, _):
            return Literal(Fraction(0)) if name in gone else Variable(name)
        case Apply(op, args, attrs, rest):
            settled: list[Term | None] = []
            for place, arg in enumerate(args):
                formal = op.inputs[min(place, len(op.inputs) - 1)]
                if isinstance(arg, Variable) and arg.name in gone and formal.is_optional:
                    settled.append(None)
                else:
                    settled.append(None if arg is None else _without_optionals(arg, gone))
            while settled and settled[-1] is None:
                settled.pop()
            return Apply(op, tuple(settled), attrs, rest)
        case Item(inner, index):
            call = _without_optionals(inner, gone)
            assert isinstance(call, Apply)
            return Item(call, index)
    return term


def read_rules(lines: Iterable[str], origin: str = "", ops: Container[str] | None = None) -> list[Rule]:
    """Return the rules of a text; `#` starts a comment, an indented line continues the line before.

    Where `ops` is given, a `for` clause is limited to these operators.
    """
    joined: list[str] = []
    for line in lines:
        plain = line.split("#", 1)[0].rstrip()
        if not plain.strip():
            continue
        if plain[0].isspace() and joined:
            joined[-1] += " " + plain.strip()
        else:
            joined.append(plain)
    rules: list[Rule] = []
    seen: set[str] = set()
    for line in joined:
        try:
            parsed = parse_rule(line, ops)
        except RuleError as error:
            raise RuleError(f"{origin}: {line.split(':')[0]}: {error}") from error
        for rule in parsed:
            if rule.name in seen:
                raise RuleError(f"{origin}: two rules are named {rule.name}")
            seen.add(rule.name)
        rules.extend(parsed)
    return rules


def library(long: bool = True, ops: Container[str] | None = None) -> list[Rule]:
    """Return every rule that ships with the package, by file and line, generated rules last.

    Includes rules tagged `off`; those tagged `long` that do not shrink programs, and those of `for` clauses,
    only if `long`.  Where `ops` is given (the operators of a model), a `for` clause is limited to these.
    """
    rules: list[Rule] = []
    own = files("tensaurus.rules") / "library"
    made = own / "generated"
    idle = {line for line in (made / UNUSED_RULES_FILE).read_text().splitlines() if not line.startswith("#")}
    for folder in (own, made):
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.name.endswith(".rules"):
                rules.extend(read_rules(entry.read_text().splitlines(), entry.name, ops if long else ()))
    tagged = (replace(rule, tags=rule.tags | {"long"}) if rule.name in idle else rule for rule in rules)
    tagged = (replace(rule, tags=rule.tags - {"long"}) if rule.shrinks else rule for rule in tagged)
    return [rule for rule in tagged if long or "long" not in rule.tags]
