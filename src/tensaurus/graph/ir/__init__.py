"""The graph of operators: nodes, programs, constants, and their text form."""
