"""Runs models on runtimes, measures them, and prices programs that were not measured."""
