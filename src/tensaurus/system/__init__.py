"""Wraps the operating system for all other rooms: errors, signals, files, child processes, deadlines."""
