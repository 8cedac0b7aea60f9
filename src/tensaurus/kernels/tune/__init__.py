"""Enumerates the schedules of a kernel, and finds the fastest on this machine (ETO sections 4 and 5)."""
