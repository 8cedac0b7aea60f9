"""Compares two model files: their interfaces, their outputs and the errors of these."""
