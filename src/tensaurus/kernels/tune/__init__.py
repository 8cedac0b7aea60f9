"""Which schedules a kernel may have, and which is fastest here (ETO sections 4 and 5, on processors)."""
