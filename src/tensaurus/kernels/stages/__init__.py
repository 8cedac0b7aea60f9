"""Turns an expression into loop nests, and rewrites the nests before they are scheduled."""
