"""The reasons why some ONNX operators have no declaration: no expression of their inputs' elements exists."""

from __future__ import annotations

from collections.abc import Mapping

_OPERATORS: Mapping[str, str] = {  # by reason
    "a recurrence: each step reads the one before": (
        "GRU LSTM Loop RNN Scan com.microsoft.DynamicQuantizeLSTM"
    ),
    "its condition is known only at run time": "If",
    "the size of its output depends on values": "Compress NonMaxSuppression NonZero Unique",
    "its values are random": (
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
    "its values are no tensors": (
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct "
        "SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence "
        "ai.onnx.ml.ZipMap"
    ),
    "it reads text": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
}
_REASONS = {operator: reason for reason, operators in _OPERATORS.items() for operator in operators.split()}


def why_undeclared(operator: str) -> str:
    """Return why an operator, named as in reports (domain.Operator), has no declaration."""
    return _REASONS.get(operator, "no declaration")
