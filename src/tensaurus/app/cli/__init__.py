"""The command line: `tensaurus COMMAND`, or `python -m tensaurus COMMAND`."""

import tensaurus.app.cli.bench
import tensaurus.app.cli.database
import tensaurus.app.cli.derive
import tensaurus.app.cli.extract
import tensaurus.app.cli.models
import tensaurus.app.cli.mutate
import tensaurus.app.cli.profile
import tensaurus.app.cli.rules
import tensaurus.app.cli.zoo  # noqa: F401 (importing a module registers its commands)
from tensaurus.app.cli.app import app, main

__all__ = ["app", "main"]
