"""The shape of the code: imports go one way, files stay small, an operator is named in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

import tensaurus

PACKAGE = Path(tensaurus.__file__).parent
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"
GLOSSARY = ARCHITECTURE.with_name("glossary.md")
FILES = sorted(PACKAGE.rglob("*.py"))

# A room imports only from rooms on lower floors, and from itself.
FLOORS = (
    ("system", "_version"),
    ("expr",),
    ("ops",),
    ("graph",),
    ("rules", "runtimes"),
    ("egraph", "kernels"),
    ("finders",),
    ("check",),
    ("optimizer",),
    ("app",),
    ("__init__", "__main__"),  # the package's public face
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# Within a room, a part imports only from parts that stand before it; the finders know nothing of each other.
PARTS = {
    "expr": ("sizes", "ir", "normal", "evaluate", "analysis"),
    "graph": ("ir", "analysis", "lower", "onnx"),
    "runtimes": ("backends", "measure", "price"),
    "egraph": ("core", "match", "extract"),
    "kernels": ("math", "stages", "halide", "library", "tune"),
    "check": ("inputs", "program", "files"),
    "optimizer": ("search", "run", "result"),
    "app": ("zoo", "report", "cli"),
}
FINDERS = ("bilinear", "derive", "fuse", "mutate", "synthesis")

LONGEST = 400  # lines of a file

PAPERS = ("taso", "tensat", "pet", "einnet", "eto")


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_of(path: Path) -> str:
    """Its dotted name; a room's __init__.py is the room."""
    return ".".join(("tensaurus", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imports(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import from this package, also in a function or for types alone.

    `from tensaurus.room import name` is an import of that module if there is one, else of the room's face.
    """
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{where(path)}:{node.lineno}: imports are absolute"
            deeper = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module or "" for name in deeper]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "tensaurus")


def imported_rooms(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of every import from this package; '__init__' for the package itself."""
    for line, name in imports(tree, path):
        room = name.removeprefix("tensaurus").removeprefix(".").split(".")[0]
        yield line, room if room in FLOOR else "__init__"


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one (Tarjan), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            place = stack.index(name)
            if len(stack) > place + 1:
                circles.append(sorted(stack[place:]))
            del stack[place:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(circles)


def upward_imports(tree: ast.Module, path: Path) -> list[str]:
    here = room_of(path)
    return [
        f"{where(path)}:{line}: {here} imports {room}"
        for line, room in imported_rooms(tree, path)
        if room != here and FLOOR[room] >= FLOOR[here]
    ]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}, [["b", "c", "d"]]),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_circles_are_seen(graph: dict[str, set[str]], expected: list[list[str]]) -> None:
    assert circles(graph) == expected


def test_files_import_one_way() -> None:
    graph = {
        name: {other for _, other in imports(tree_of(path), path) if other in MODULES and other != name}
        for name, path in MODULES.items()
    }
    assert circles(graph) == []


def test_the_architecture_shows_the_floors() -> None:
    table = re.findall(r"^\| (\d+) \| (.*) \|$", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    rooms = {int(number): tuple(re.findall(r"`(\w+)`", names)) for number, names in table}
    assert rooms == dict(enumerate(FLOORS[:-1]))


def test_the_glossary_names_modules_that_there_are() -> None:
    rows = [line.split(" | ") for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if " | " in line]
    named = {name for row in rows for name in re.findall(r"`(\w+(?:/\w+)+)`", row[-1])}
    assert len(named) > 40
    assert [name for name in sorted(named) if not (PACKAGE / f"{name}.py").exists()] == []


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in FILES} <= set(FLOOR)


def test_imports_go_down_only() -> None:
    assert [message for path in FILES for message in upward_imports(tree_of(path), path)] == []


@pytest.mark.parametrize(
    ("file", "line", "refused"),
    [
        ("expr/sizes/size.py", "from tensaurus.ops import registry", True),
        ("graph/ir/node.py", "import tensaurus.runtimes.measure.measure", True),
        ("finders/derive/derivation_search.py", "from tensaurus import optimizer", True),
        ("rules/language/rule.py", "from tensaurus import runtimes", True),
        ("graph/ir/node.py", "from tensaurus import load", True),
        ("ops/pooling.py", "def f():\n    from tensaurus.app.cli import main", True),
        ("ops/pooling.py", "from tensaurus.ops.declare import op", False),
        ("ops/pooling.py", "from tensaurus import ops", False),
        ("optimizer/search/backtrack.py", "from tensaurus.runtimes.measure.database import Database", False),
        ("expr/sizes/size.py", "from tensaurus.system.errors import TensaurusError", False),
    ],
)
def test_the_direction_is_enforced(file: str, line: str, refused: bool) -> None:
    assert bool(upward_imports(ast.parse(line), PACKAGE / file)) == refused


def part_of(name: str) -> tuple[str, str]:
    """Room and part of a module's dotted name; the part is "" for what stands beside the parts."""
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else "", parts[2] if len(parts) > 3 or name in ROOM_PARTS else "")


ROOM_PARTS = {f"tensaurus.{room}.{part}" for room, parts in PARTS.items() for part in parts}


def test_parts_of_a_room_are_in_order() -> None:
    wrong = []
    for name, path in MODULES.items():
        room, part = part_of(name)
        for line, other in imports(tree_of(path), path):
            there, theirs = part_of(other)
            if there != room or not part or not theirs or part == theirs:
                continue
            order = PARTS.get(room, ())
            if room == "finders" or order and order.index(theirs) > order.index(part):
                wrong.append(f"{where(path)}:{line}: {part} imports {theirs}")
    assert wrong == []


def test_files_are_small() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_nothing_is_named_after_a_paper() -> None:
    names = {where(path): set(path.stem.strip("_").lower().split("_")) for path in FILES}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                words = "".join(f" {c.lower()}" if c.isupper() else c for c in node.name).split()
                names[f"{where(path)}: {node.name}"] = set(words)
    papers = {place: words & {*PAPERS} for place, words in names.items()}
    assert {place: words for place, words in papers.items() if words} == {}


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Every string constant that is neither a docstring nor an export in __all__."""
    exports = {
        id(item)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for item in ast.walk(node.value)
    }
    documentation = exports | {
        id(node.value)
        for parent in ast.walk(tree)
        if isinstance(parent, ast.Module | ast.ClassDef | ast.FunctionDef)
        for node in parent.body
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node


def test_operators_are_named_in_one_place() -> None:
    """Only ops/ and the backends' own renderings name operators; zoo/ writes models in ONNX's own words."""
    from tensaurus.ops import registry

    found = [
        f"{where(path)}:{node.lineno}: {node.value}"
        for path in FILES
        if not where(path).startswith(("ops/", "runtimes/backends/", "app/zoo/"))
        for node in strings(tree_of(path))
        if node.value in registry
    ]
    assert found == []


def test_docstrings_are_not_names() -> None:
    tree = ast.parse('def f():\n    "Add"\n    x = "Mul"\n    return "Sub"\n')
    assert [node.value for node in strings(tree)] == ["Mul", "Sub"]
