"""Inputs on which models are compared and timed."""
