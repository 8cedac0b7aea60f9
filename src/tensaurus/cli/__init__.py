"""The command line: `tensaurus COMMAND`, or `python -m tensaurus COMMAND`."""

import tensaurus.cli.bench
import tensaurus.cli.derive
import tensaurus.cli.extract
import tensaurus.cli.library
import tensaurus.cli.models
import tensaurus.cli.profile  # noqa: F401 (each module's commands are registered as it is imported)
from tensaurus.cli.app import app, main

__all__ = ["app", "main"]
