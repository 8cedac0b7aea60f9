"""A conversion to narrower numbers is a function of its own: in proofs, fields, float64 and verdicts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tensaurus.check import check_field, verify
from tensaurus.expr.evaluate.fields import Polynomials, PrimeField, Rationals, Reals
from tensaurus.expr.evaluate.two_point_field import Laws, PrimeFieldPairs
from tensaurus.expr.ir.float_conversions import is_exact_conversion, round_to_dtype
from tensaurus.expr.ir.scope import Tensor, call, compute
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.analysis.conversion_chains import args_before_casts
from tensaurus.graph.analysis.program_degree import bound_degree
from tensaurus.graph.ir.node import CONSTANT, apply, source
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType, registry
from tensaurus.ops.eop import eop
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.rule import parse_rule
from tensaurus.rules.test.verify_rule import Refuted, Undecided
from tensaurus.rules.test.verify_rule import verify as verify_rule

HALF, BRAIN, SINGLE, DOUBLE = 10, 16, 1, 11  # ONNX's numbers of the types


def model(body: str, kind: str = "float", size: int = 64, out: str = "") -> onnx.ModelProto:
    text = f"net ({kind}[{size}] x) => ({out or kind}[{size}] y) {{ {body} }}"
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')


def chain(*types: int) -> str:
    names = ["x", *(f"t{k}" for k in range(len(types) - 1)), "y"]
    steps = zip(types, names, names[1:], strict=False)
    return " ".join(f"{after} = Cast<to = {kind}>({before})" for kind, before, after in steps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_are_rounded_once_to_the_nearest(dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    limits = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    largest, least, step = float(limits.max), float(limits.smallest_subnormal), float(limits.eps)
    given = [0.0, 1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 2.0**-50, -1 - step / 2 - 2.0**-50]
    found = [0.0, 1.0, 1 + 2 * step, 1 + step, -1 - step]
    beyond = largest + step / 2 * largest / (2 - step)  # halfway to what would be the next
    given += [least / 2, least * 0.75, -largest, beyond * (1 - 2.0**-50), beyond, -beyond * 2, np.inf]
    found += [0.0, least, -largest, largest, np.inf, -np.inf, np.inf]
    assert round_to_dtype(np.array(given), dtype).tolist() == found
    assert np.isnan(round_to_dtype(np.array([np.nan]), dtype)).all()


@pytest.mark.parametrize(
    "source, target, kept",
    [
        ("float16", "float32", True), ("bfloat16", "float32", True), ("float32", "float64", True),
        ("float16", "bfloat16", False), ("bfloat16", "float16", False), ("float64", "float32", False),
        ("int8", "float16", True), ("int16", "float16", False), ("uint16", "float32", True),
        ("int32", "float32", False), ("int32", "float64", True), ("int64", "float64", False),
        ("uint8", "bfloat16", True), ("bool", "float16", True),
    ],
)  # fmt: skip
def test_which_conversions_keep_every_number(source: str, target: str, kept: bool) -> None:
    assert is_exact_conversion(source, target) == kept


@pytest.mark.parametrize(
    "field",
    [PrimeField(3), PrimeFieldPairs(3), PrimeFieldPairs(3, Laws(True, True)), Rationals(3), Polynomials()],
)
def test_where_nothing_can_be_rounded_it_is_unknown(field: Any) -> None:
    x = field.random((5,), np.random.default_rng(0))
    narrow = field.call("to_float16", [x], "float32")
    assert not field.equal(narrow, x) and field.equal(narrow, field.call("to_float16", [x], "float32"))
    assert not field.equal(narrow, field.call("to_bfloat16", [x], "float32"))
    assert field.equal(field.call("to_float32", [x], "float16"), x)
    zero = field.lift(np.zeros(2))
    assert field.equal(field.call("to_float16", [zero], "float32"), zero)
    whole = np.array([2**24 + 1, 5])  # integers are numbers in every field
    assert field.equal(field.call("to_float32", [whole], "int64"), field.lift(np.array([2.0**24, 5])))


LAWS = {
    "Cast(Cast(x, to='float64'), to='float32') => x where dtype(x) == 'float32'": Proved,
    "Cast(Cast(x, to='float64'), to='float16') => Cast(x, to='float16') where dtype(x) == 'float32'": Proved,
    "Cast(Cast(x, to='float16'), to='float32') => x where dtype(x) == 'float32'": Refuted,
    "Cast(Cast(x, to='bfloat16'), to='float32') => Cast(Cast(x, to='float16'), to='float32')"
    " where dtype(x) == 'float32'": Refuted,
    "Cast(Cast(x, to='float32'), to='float64') => x where dtype(x) == 'float64'": Refuted,
    "Cast(Cast(x, to='float32'), to='float16') => Cast(x, to='float16') where dtype(x) == 'float64'": (
        Refuted, Undecided,
    ),
    "Cast(Add(x, y), to='float16') => Add(Cast(x, to='float16'), Cast(y, to='float16'))"
    " where dtype(x) == 'float32'": Refuted,
    "Cast(Relu(x), to='float16') => Relu(Cast(x, to='float16')) where dtype(x) == 'float32'": Undecided,
    "Cast(Cast(x, to='float32'), to='int64') => x where dtype(x) == 'int64'": Refuted,
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_laws_about_conversions(law: str) -> None:
    rule, *_ = parse_rule(f"law [any]: {law}")
    assert isinstance(verify_rule(rule, 12), LAWS[law])


@pytest.mark.parametrize(
    "first, second, equal",
    [
        (chain(HALF, SINGLE), "y = Identity(x)", False),
        (chain(HALF, SINGLE), chain(BRAIN, SINGLE), False),
        (chain(DOUBLE, HALF, SINGLE), chain(HALF, SINGLE), True),
        (chain(HALF, SINGLE, HALF, SINGLE), chain(HALF, SINGLE), True),
        (chain(DOUBLE, SINGLE), "y = Identity(x)", True),
    ],
)
def test_programs_over_a_finite_field(first: str, second: str, equal: bool) -> None:
    programs = [import_model(model(text)) for text in (first, second)]
    found = check_field(*programs)
    assert found.trials and found.passed == equal
    assert not equal or found.error_bound < 1e-15


def test_a_conversion_that_keeps_numbers_keeps_their_degree() -> None:
    text = "a = Mul(x, x) b = Mul(a, x) c = Cast<to = 11>(b) y = Cast<to = 1>(c)"
    assert bound_degree(import_model(model(text)).roots, Laws()) == 3
    text = "a = Mul(x, x) b = Mul(a, x) c = Cast<to = 10>(b) d = Cast<to = 1>(c) y = Mul(d, d)"
    assert bound_degree(import_model(model(text)).roots, Laws()) == 3


def test_constants_are_folded_as_they_are_rounded() -> None:
    text = "c = Constant<value = float {0.1}>() h = Cast<to = 10>(c) s = Cast<to = 1>(h) y = Mul(x, s)"
    folded = fold_constants(import_model(model(text)))
    (found,) = [n.attribute("data").array for n in folded.nodes if n.op is CONSTANT]
    assert found == np.float32(np.float16(0.1))


@pytest.mark.parametrize("kind", [HALF, BRAIN])
def test_a_model_without_its_rounding_is_another(kind: int) -> None:
    narrow, plain = model(chain(kind, SINGLE)), model("y = Identity(x)")
    assert verify(narrow, narrow, threads=1, kinds=("random", "large")).passed
    assert not verify(narrow, plain, threads=1, kinds=("random",)).passed
    assert not verify(plain, narrow, threads=1, kinds=("random",)).passed


def test_what_is_beyond_the_range_is_infinite() -> None:
    """Whatever is within it: 64 * x is rounded as x is."""
    text = "{} h = Cast<to = 10>({}) s = Cast<to = 1>(h) y = {}(s)"
    half = model(text.format("", "x", "Identity"))
    bound = "l = Constant<value = float {-65504}>() u = Constant<value = float {65504}>() c = Clip(x, l, u)"
    clipped = model(text.format(bound, "c", "Identity"))
    assert not verify(half, clipped, threads=1, kinds=("magnitudes",)).passed


def test_reals_round() -> None:
    found = Reals().call("to_float16", [np.array([0.1, 65520.0])], "float32")
    assert found.tolist() == [float(np.float16(0.1)), np.inf]


@pytest.mark.parametrize("place", [0, 2])
def test_a_conversion_of_one_element_of_several_is_one_of_that_element(place: int) -> None:
    x = source("x", TensorType("float16", (4,)))
    of = Tensor("x0", (4,), "float16")
    wide = apply(eop, [x], {"scope": compute((1,), lambda k: call("to_float32", of[(place,)]))})
    back = apply(registry["Cast"], [wide], {"to": "float16"})
    assert args_before_casts(back) == (wide,)


def test_a_conversion_of_the_only_element_keeps_it() -> None:
    x = source("x", TensorType("float16", (1,)))
    wide = apply(registry["Cast"], [x], {"to": "float32"})
    assert args_before_casts(apply(registry["Cast"], [wide], {"to": "float16"})) == (x,)
