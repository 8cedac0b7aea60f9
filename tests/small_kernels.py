"""Expressions with kernels that Halide compiles from a schedule written here, not by our own lowering."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest

from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.ops import TensorType, registry
from tensaurus.ops.element_type import dtype_code
from tensaurus.ops.examples import parse_example

hl = pytest.importorskip("halide")

FEATURES = ("no_runtime", "user_context", "no_bounds_query", "no_asserts")
CPUS = {"": "", "x86-64-v3": "sse41-avx-avx2-f16c-fma-"}
KINDS = {
    "float32": lambda: hl.Float(32),
    "float64": lambda: hl.Float(64),
    "int64": lambda: hl.Int(64),
    "int32": lambda: hl.Int(32),
    "uint8": lambda: hl.UInt(8),
    "bool": lambda: hl.UInt(1),
}


@dataclass(frozen=True)
class Case:
    """inputs: as examples of operators are written; scope: over x0, x1, ...; func: the same, in Halide."""

    name: str
    inputs: str
    scope: str
    func: Callable[..., Any]
    cpu: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(kind for kind in parse_example(self.inputs).types if kind is not None)

    def node(self, args: Sequence[Node] | None = None) -> Node:
        given = args or [source(f"v{k}", kind) for k, kind in enumerate(self.types)]
        return apply(registry["eop"], given, {"scope": self.scope})

    def kernel(self) -> Kernel:
        return compiled(self)

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        random = np.random.default_rng(seed)
        return {f"v{k}": value_of(kind, random) for k, kind in enumerate(self.types)}


@cache
def compiled(case: Case) -> Kernel:
    params = [
        hl.ImageParam(KINDS[kind.dtype](), kind.rank, f"x{place}") for place, kind in enumerate(case.types)
    ]
    name = f"eop_{case.name}"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        target = hl.Target(f"x86-64-linux-{CPUS[case.cpu]}{'-'.join(FEATURES)}")
        case.func(*params).compile_to_object(str(path), params, name, target)
        code = path.read_bytes()
    return Kernel(name, case.types, case.node().tensor, code, case.cpu)


def instructions(library: Path) -> set[str]:
    """AVX2, AVX-512: what its kernels say that they need, and what its code has where that can be read."""
    words = library.read_bytes()
    found = {name for name, word in (("AVX2", b"avx2"), ("AVX-512", b"avx512")) if word in words}
    if shutil.which("objdump"):
        command = ["objdump", "-d", "--no-show-raw-insn", str(library)]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        beyond = r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])\b|\{%k\d\}"  # registers of AVX-512 alone
        found |= {name for name, form in (("AVX2", "%ymm"), ("AVX-512", beyond)) if re.search(form, code)}
    return found


def value_of(kind: TensorType, random: np.random.Generator) -> np.ndarray:
    if kind.dtype == "bool":
        return random.integers(0, 2, kind.shape).astype(bool)
    if kind.dtype.startswith("float"):
        return random.standard_normal(kind.shape).astype(kind.dtype)
    return random.integers(0, 100, kind.shape).astype(kind.dtype)


def program_of(*roots: Node, opset: int = 17) -> Program:
    """A program of these outputs, y0 and so on, over the sources below them."""
    stack, inputs = list(roots), dict[Node, None]()
    while stack:
        node = stack.pop()
        stack += [arg for arg in node.args if arg is not None]
        if not node.args and not node.static:
            inputs[node] = None
    shell = onnx.ModelProto(ir_version=8)
    shell.opset_import.add(domain="", version=opset)
    shell.graph.name = "kernels"
    ordered = sorted(inputs, key=lambda node: str(node.attribute("name")))
    outputs = tuple((f"y{k}", root) for k, root in enumerate(roots))
    shown = tuple(value_info(node.attribute("name"), node.tensor) for node in ordered)
    made = tuple(value_info(name, root.tensor) for name, root in outputs)
    return Program(tuple(ordered), outputs, frame=Frame(shell, shown, made))


def value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, dtype_code(kind.dtype), list(kind.shape))


def known(*cases: Case) -> Callable[[Node], Kernel | None]:
    """The kernels of these cases, for nodes of their expressions and types."""
    found = {(case.node().attrs, case.types): case for case in cases}

    def kernel_of(node: Node) -> Kernel | None:
        case = found.get((node.attrs, node.arg_types()))
        return case and case.kernel()

    return kernel_of


# ------------------------------------------------------------------------------------------------- cases


def _affine(x: Any, w: Any) -> Any:
    """One task for each row, each with scratch of its own."""
    i, j = hl.Var("i"), hl.Var("j")
    stage, out = hl.Func("stage"), hl.Func("out")
    stage[j, i] = hl.max(x[j, i], 0.0)
    out[j, i] = stage[j, i] * 2.0 + w[j] + stage[39 - j, i]
    stage.compute_at(out, i).store_in(hl.MemoryType.Heap)
    out.parallel(i).vectorize(j, 8)
    return out


def _nested(x: Any) -> Any:
    """A parallel loop in a parallel loop."""
    i, j, k = hl.Var("i"), hl.Var("j"), hl.Var("k")
    stage, out = hl.Func("stage"), hl.Func("out")
    stage[k, j, i] = x[k, j, i] + 1.0
    out[k, j, i] = stage[k, j, i] * stage[5 - k, j, i]
    stage.compute_at(out, j).store_in(hl.MemoryType.Heap)
    out.parallel(i).parallel(j)
    return out


def _deep(x: Any) -> Any:
    """Scratch of 16 MiB in the kernel, in its tasks, and in theirs."""
    i, j, k = hl.Var("i"), hl.Var("j"), hl.Var("k")
    size = 1 << 22
    whole, row, place, out = (hl.Func(name) for name in ("whole", "row", "place", "out"))
    whole[k] = x[0, 0] + 0 * hl.f32(k)
    row[k, i] = x[0, i] * whole[k]
    place[k, j, i] = row[k, i] + x[j, i]
    out[j, i] = place[0, j, i] + place[size - 1, j, i]
    whole.compute_root().vectorize(k, 16)
    row.compute_at(out, i).vectorize(k, 16)
    place.compute_at(out, j).vectorize(k, 16)
    out.parallel(i).parallel(j)
    return out


def _product(x: Any, w: Any) -> Any:
    i, j = hl.Var("i"), hl.Var("j")
    r, out = hl.RDom([(0, 17)]), hl.Func("out")
    out[j, i] = hl.f64(0)
    out[j, i] += x[r, i] * w[j, r]
    return out


def _pointwise(make: Callable[..., Any]) -> Callable[..., Any]:
    def func(*params: Any) -> Any:
        axes = [hl.Var(f"a{k}") for k in range(params[0].dimensions())]
        out = hl.Func("out")
        out[tuple(axes)] = make(*(param[tuple(axes)] for param in params))
        return out

    return func


def _row_sum(x: Any) -> Any:
    i = hl.Var("i")
    r, out = hl.RDom([(0, 1)]), hl.Func("out")
    out[i] = hl.f32(0)
    r.where(hl.Expr(False))
    out[i] += x[r, i]
    return out


def _greedy(x: Any) -> Any:
    """In each task, scratch for the cube of the input's elements."""
    i, k, stage, out = hl.Var("i"), hl.Var("k"), hl.Func("stage"), hl.Func("out")
    size = x.dim(0).extent()
    r = hl.RDom([(0, size * size * size)])
    stage[k] = hl.f64(k)
    out[i] = x[i]
    out[i] += stage[r]
    stage.compute_at(out, i).store_in(hl.MemoryType.Heap)
    out.update().parallel(i)
    return out


AFFINE = Case(
    "affine",
    "f32[13,40] f32[40]",
    "L[i:13, j:40](add(mul(max(x0[i, j], 0), 2), x1[j], max(x0[i, 39 - j], 0)))",
    _affine,
    cpu="x86-64-v3",
)
DOUBLED = Case("doubled", "f32[]", "L[()](mul(x0[()], 2))", _pointwise(lambda x: x * 2.0))
ADDED = Case("added", "i64[7] i64[7]", "L[i:7](add(x0[i], x1[i]))", _pointwise(lambda x, y: x + y))
GREEDY = Case("greedy", "f64[800]", "L[i:800](x0[i])", _greedy)  # never runs
TWIN = Case("twin", AFFINE.inputs, AFFINE.scope, _affine, "x86-64-v3")
DEEP = Case("deep", "f32[2,3]", "L[i:2, j:3](mul(add(mul(x0[i, 0], x0[0, 0]), x0[i, j]), 2))", _deep)
NESTED = Case(
    "nested",
    "f32[3,4,6]",
    "L[i:3, j:4, k:6](mul(add(x0[i, j, k], 1), add(x0[i, j, 5 - k], 1)))",
    _nested,
)
NONE = Case("none", "f32[0,3]", "L[i:0, j:3](mul(x0[i, j], 2))", _pointwise(lambda x: x * 2.0))
CASES = [
    AFFINE,
    DOUBLED,
    ADDED,
    TWIN,
    NESTED,
    Case("product", "f64[5,17] f64[17,3]", "L[i:5, j:3](sum[r:17](mul(x0[i, r], x1[r, j])))", _product),
    Case("both", "bool[31] bool[31]", "L[i:31](and_(x0[i], x1[i]))", _pointwise(lambda x, y: x & y)),
    Case("small", "u8[9]", "L[i:9](x0[i])", _pointwise(lambda x: x)),
    NONE,
    Case("of_nothing", "f32[3,0]", "L[i:3](sum[r:0](x0[i, r]))", _row_sum),
]
