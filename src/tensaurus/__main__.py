"""python -m tensaurus, and the console script: an interrupt during the imports is one line, too."""

import sys


def main() -> None:
    try:
        from tensaurus.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
