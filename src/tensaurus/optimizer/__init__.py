"""The main loop: options, a run with its time limit, the search, and the result with its record."""
