"""Models in float64, in a process of its own: what they hold may be more than there is memory for, and nodes
that have no expression are run one by one, with whatever they do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

from tensaurus.backends.reference import Session
from tensaurus.child import Child, ChildError
from tensaurus.equivalence.answers import Answers
from tensaurus.equivalence.indices import Indices, indices_of
from tensaurus.graph.build import Build
from tensaurus.graph.node import OPAQUE, Node
from tensaurus.graph.program import Program

__all__ = ["Facts", "NoReference", "Reference"]

SLOWER = 4.0  # times as long as on a runtime a run may take


class NoReference(ChildError):
    """There is no reference; one line that says why."""


class _Evaluator(Child):
    error = NoReference
    resting = True


@dataclass(frozen=True)
class Facts:
    """What a model's operators say of its inputs, and the branches that it has, with those around them."""

    indices: Indices
    branches: dict[str, str]


Branches: TypeAlias = dict[tuple[Node, bool], tuple[str, str]]


class Desk:
    """What the child does."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._branches: Branches = {}

    def load(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> None:
        """Replace the model."""
        from tensaurus.graph.inlining import inlined
        from tensaurus.graph.onnx_import import import_model

        self._session = None
        program = import_model(inlined(build.proto()), shapes)
        self._session, self._branches = Session(program), branches_of(program)

    def run(self, arrays: Mapping[str, Any], rounded: bool) -> list[Any]:
        """All outputs."""
        assert self._session is not None
        return self._session.run(None, arrays, rounded=rounded)

    def facts(self) -> Facts:
        """Of the model."""
        assert self._session is not None
        return Facts(indices_of(self._session.program), dict(self._branches.values()))

    def taken(self, arrays: Mapping[str, Any]) -> list[str]:
        """The branches that these inputs reach."""
        assert self._session is not None
        found: set[tuple[Node, bool]] = set()
        self._session.run(None, arrays, taken=found)
        return [text for place, (text, _) in self._branches.items() if place in found]

    def drop(self) -> None:
        """Forget the model."""
        self._session, self._branches = None, {}


def branches_of(program: Program) -> Branches:
    """Every branch of a condition, those within others too, in words, and the branch around it."""
    found: Branches = {}
    programs = [(program, "")]
    while programs:
        inner, around = programs.pop(0)
        for node in inner.nodes:
            if node.op is not OPAQUE or not (form := node.attribute("form")).bodies:
                continue
            if form.operator != "If":
                programs += [(body, around) for _, body in form.bodies]
                continue
            name = inner.names.get(node) or f"number {len(found) // 2 + 1}"
            bodies = dict(form.bodies)
            for holds, word in ((True, "then"), (False, "else")):
                text = f"the {word} branch of {name}"
                found.setdefault((node, holds), (text, around))
                programs.append((bodies[f"{word}_branch"], text))
    return found


class Reference:
    """The reference for one comparison; use it in a `with`.

    The process stays for the next one.
    """

    def __init__(self, threads: int, limit: float, answers: Answers | None = None) -> None:
        """A run on a runtime may take `limit` seconds; what is among the answers is not computed again."""
        self._threads, self._limit, self.answers = threads, SLOWER * limit, answers
        self._loaded: object = None

    def run(
        self,
        build: Build,
        arrays: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        *,
        rounded: bool = False,
    ) -> list[Any]:
        """All outputs of a model whose inputs have these shapes.  Raises NoReference.

        Where `rounded`, every operator's result is rounded to its own type, as a runtime does.
        """


        def compute() -> list[Any]:
            outputs: list[Any] = self._holding(build, shapes).ask("run", dict(arrays), rounded)
            return outputs

        if self.answers is None or build != self.answers.build:
            return compute()
        return self.answers.get(arrays, shapes, rounded, compute)

    def facts(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> Facts:
        """What is known of a model without running it.  Raises NoReference."""
        found: Facts = self._holding(build, shapes).ask("facts")
        return found

    def taken(
        self, build: Build, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """The branches, as `facts` names them, that these inputs reach.  Raises NoReference."""
        found: list[str] = self._holding(build, shapes).ask("taken", dict(arrays))
        return found

    def _holding(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> _Evaluator:
        child = _evaluator(os.getpid(), self._threads)
        if not child.alive:
            _evaluator.cache_clear()
            child, self._loaded = _evaluator(os.getpid(), self._threads), None
        child.timeout = self._limit
        key = (build, tuple(shapes.items()))
        if self._loaded != key:
            child.ask("load", build, dict(shapes))
            self._loaded = key
        return child

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        child = _evaluator(os.getpid(), self._threads)
        if child.alive:
            child.ask("drop")


@cache
def _evaluator(pid: int, threads: int) -> _Evaluator:
    """One for each process that asks."""
    environment = {"OPENBLAS_NUM_THREADS": str(threads)}
    return _Evaluator("reference", f"{__name__}:Desk", timeout=60.0, environment=environment)
