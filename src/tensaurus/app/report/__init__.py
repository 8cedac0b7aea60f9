"""What the user reads: progress while it runs, the summary after it, the explanation later."""
