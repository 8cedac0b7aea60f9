"""Tensor expressions: their sizes, records, normal form, evaluation in any field, and analyses."""
