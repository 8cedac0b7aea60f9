"""Measures the times of whole models and of single operators, and keeps them in a database."""
