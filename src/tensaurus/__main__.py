"""python -m tensaurus, and the console script: what goes wrong during the imports is one line, too."""

import sys

from tensaurus.system import signals


def main() -> None:
    signals.install_handlers()
    try:
        from tensaurus.app.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        from tensaurus.app.report.failure import failure

        found = failure(error)
        print(f"error: {found.line}", file=sys.stderr)
        sys.exit(found.status)
    finally:
        signals.ignore_signals()


if __name__ == "__main__":
    main()
