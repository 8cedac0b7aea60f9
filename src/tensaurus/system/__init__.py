"""Errors, signals, files, processes and time: what every room needs of the operating system."""
