"""Derivation over tensor-algebra expressions (EINNET, OSDI'23): equal expressions, and operators in them."""
