"""Rewrite nodes to operators of a given opset."""
