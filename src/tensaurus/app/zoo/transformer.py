"""BERT's encoder (Devlin et al., 2019) on embeddings, without an attention mask."""

from __future__ import annotations

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["encoder"]

_EPSILON = 1e-12

# Mean square of a layer's branch over that of its input; small, so that positions stay different.
_BRANCH_GAIN = 0.15


def encoder(b: Builder, batch: int, length: int, *, layers: int, hidden: int, heads: int) -> Value:
    """Build the stack of layers on embeddings [batch, length, hidden]."""
    x = b.input("embeddings", batch, length, hidden)
    for index in range(layers):
        x = _layer(b, x, f"encoder.layer.{index}", heads)
    return x


def _layer(b: Builder, x: Value, name: str, heads: int) -> Value:
    """Add attention and two linear layers, each with a residual sum and a normalization."""
    hidden = x.shape[-1]
    mixed = _attention(b, x, f"{name}.attention.self", heads)
    mixed = b.linear(mixed, f"{name}.attention.output.dense", hidden, gain=_BRANCH_GAIN)
    x = b.layer_norm(b.add(mixed, x), f"{name}.attention.output.LayerNorm", epsilon=_EPSILON)
    wide = _gelu(b, b.linear(x, f"{name}.intermediate.dense", 4 * hidden))
    narrow = b.linear(wide, f"{name}.output.dense", hidden, gain=_BRANCH_GAIN)
    return b.layer_norm(b.add(narrow, x), f"{name}.output.LayerNorm", epsilon=_EPSILON)


def _attention(b: Builder, x: Value, name: str, heads: int) -> Value:
    """Add softmax(query key^T / sqrt(size)) value for each head."""
    batch, length, hidden = x.shape
    size = hidden // heads

    def split(part: str, *order: int) -> Value:
        parts = b.reshape(b.linear(x, f"{name}.{part}", hidden, gain=2.0), batch, length, heads, size)
        return b.transpose(parts, *order)

    scores = b.node("MatMul", split("query", 0, 2, 1, 3), split("key", 0, 2, 3, 1))
    shares = b.node("Softmax", b.mul(scores, b.constant(size**-0.5)), axis=-1)
    mixed = b.node("MatMul", shares, split("value", 0, 2, 1, 3))
    return b.reshape(b.transpose(mixed, 0, 2, 1, 3), batch, length, hidden)


def _gelu(b: Builder, x: Value) -> Value:
    """Add GELU: x times the cumulative normal distribution at x, by the error function."""
    error = b.node("Erf", b.node("Div", x, b.constant(2**0.5)))
    return b.mul(b.mul(x, b.add(error, b.constant(1.0))), b.constant(0.5))


@workload("bert_base", parameters=85.1, multiply_adds=5.511, papers=("tensat", "pet", "eto"), batches=(1, 16))
def bert_base(b: Builder, batch: int) -> Value:
    """BERT-base's encoder, sequence length 64."""
    return encoder(b, batch, 64, layers=12, hidden=768, heads=12)


@workload("bert_base_128", parameters=85.1, multiply_adds=11.17, papers=("eto",), batches=(1, 16))
def bert_base_128(b: Builder, batch: int) -> Value:
    """BERT-base's encoder, sequence length 128."""
    return encoder(b, batch, 128, layers=12, hidden=768, heads=12)


@workload(
    "bert_large", parameters=100.8, multiply_adds=6.510, papers=("taso", "tensat", "eto"), batches=(1, 16)
)
def bert_large(b: Builder, batch: int) -> Value:
    """Eight layers of BERT-large's encoder, sequence length 64."""
    return encoder(b, batch, 64, layers=8, hidden=1024, heads=16)
