"""Derivations that are kept: followed in other runs and at other sizes, searched again where they fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensaurus.check.program.replay import refute_equation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.finders.derive import DerivationCache, Derive
from tensaurus.finders.derive.derivation_cache import WORKLOAD_PREFIX, cache_version
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search, initial_expressions
from tensaurus.finders.derive.derivation_state import format_scopes
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, registry
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.system.deadline import Overdue


def _proposed(finder: Derive, node: Node) -> list[str]:
    graph = EGraph()
    graph.insert_term(node)
    graph.rebuild()
    graph.programs = [Program(tuple(arg for arg in node.args if arg), (("y", node),))]
    return [proposal.equation.law for proposal in finder(graph, 1000)]


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The states that each search explores."""
    searched: list[int] = []
    run = Search.run

    def counted(self: Search, *arguments: Any) -> list[DerivedProgram]:
        found = run(self, *arguments)
        searched.append(self.explored)
        return found

    monkeypatch.setattr(Search, "run", counted)
    return searched


def _transposed(channels: int, size: int) -> Node:
    shapes = (1, channels, size, size), (channels, channels, 4, 4)
    leaves = [source(f"x{k}", TensorType("float32", shape)) for k, shape in enumerate(shapes)]
    return apply(registry["ConvTranspose"], leaves, {"strides": (2, 2), "pads": (1, 1, 1, 1)})


@pytest.mark.nightly
def test_a_derivation_is_followed_instead_of_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another run, by the database; and at other sizes; each step is made again, and found right."""
    searched = _counted(monkeypatch)
    path = tmp_path / "db.sqlite"
    node, larger = _transposed(32, 14), _transposed(48, 10)
    with Database(path) as records:
        first = _proposed(Derive(lambda n: 1e-2, max_states=30, cache=DerivationCache(records)), node)
        assert first and searched == [30]
    with Database(path) as records:
        finder = Derive(lambda n: 1e-2, max_states=30, cache=DerivationCache(records))
        assert _proposed(finder, node) == first and searched == [30]
        finder = Derive(lambda n: 1e-2, max_states=30, cache=DerivationCache(records))
        others = _proposed(finder, larger)
        assert others and searched == [30] and not set(others) & set(first)
        graph = EGraph()
        graph.insert_term(larger)
        graph.rebuild()
        graph.programs = [Program(tuple(arg for arg in larger.args if arg), (("y", larger),))]
        for proposal in finder(graph, 1000):
            assert refute_equation(proposal.equation) is None


def test_a_trail_that_leads_nowhere_is_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: the run after that follows the new one; and what has no derivation is not searched twice."""
    node, searched = _transposed(32, 14), _counted(monkeypatch)
    roots, _ = initial_expressions((node,), tuple(arg for arg in node.args if arg))
    with Database(tmp_path / "db.sqlite") as records:
        workload, trails = f"{WORKLOAD_PREFIX}{format_scopes(roots)}", json.dumps([0, [["0" * 16]]])
        records.put(Measurement(workload, cache_version(True), "", trails, 1e-6))
        assert DerivationCache(records).trails_at(roots) == [("0" * 16,)]
        first = _proposed(Derive(lambda n: 1e-2, max_states=30, cache=DerivationCache(records)), node)
        assert first and searched == [30]
        assert ("0" * 16,) not in (DerivationCache(records).trails_at(roots) or ())
        assert _proposed(Derive(lambda n: 1e-2, max_states=30, cache=DerivationCache(records)), node) == first
        assert searched == [30]
        DerivationCache(records).store(roots, [])
        assert DerivationCache(records).trails_at(roots) == []
        assert _proposed(Derive(lambda n: 1e-2, max_states=30, cache=DerivationCache(records)), node) == []
        assert searched == [30]


def test_what_time_cuts_on_a_trail_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor kept for what all would have been."""
    node, larger = _transposed(32, 14), _transposed(48, 10)
    cache = DerivationCache()
    assert _proposed(Derive(lambda n: 1e-2, max_states=30, cache=cache), node)
    followed, ends = Search.follow_trail, list[int]()

    def once(self: Search, *arguments: Any) -> list[DerivedProgram]:
        found = followed(self, *arguments)
        self.deadline = 0.0  # time is over after the first
        ends.append(len(found))
        return found

    monkeypatch.setattr(Search, "follow_trail", once)
    assert _proposed(Derive(lambda n: 1e-2, max_states=30, cache=cache), larger) and ends[0] > 0
    roots, _ = initial_expressions((larger,), tuple(arg for arg in larger.args if arg))
    assert cache.trails_at(roots) is None


def test_what_time_cut_is_not_kept(tmp_path: Path) -> None:
    node = _transposed(32, 14)
    roots, _ = initial_expressions((node,), tuple(arg for arg in node.args if arg))
    with Database(tmp_path / "db.sqlite") as records:
        cache = DerivationCache(records)
        _proposed(Derive(lambda n: 1e-2, max_states=10_000, budget=0.05, cache=cache), node)
        assert cache.trails_at(roots) is None


def test_a_table_whose_reading_was_ended_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, beginning = _transposed(8, 6), Database.beginning
    roots, _ = initial_expressions((node,), tuple(arg for arg in node.args if arg))
    with Database(tmp_path / "db.sqlite") as records:
        DerivationCache(records).store(roots, [])
        cache = DerivationCache(records)

        def late(self: Database, *arguments: str) -> list[Measurement]:
            raise Overdue

        monkeypatch.setattr(Database, "beginning", late)
        with pytest.raises(Overdue):
            cache.trails_at(roots)
        monkeypatch.setattr(Database, "beginning", beginning)
        assert cache.trails_at(roots) == []
