"""Entry point of `python -m tensaurus` and of the console script; errors of imports are one line, too."""

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
        from tensaurus.app.report.failure import describe_failure

        failure = describe_failure(error)
        print(f"error: {failure.line}", file=sys.stderr)
        sys.exit(failure.status)
    finally:
        signals.ignore_signals()


if __name__ == "__main__":
    main()
