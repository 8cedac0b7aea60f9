"""python -m tensaurus"""

from tensaurus.cli import main

if __name__ == "__main__":
    main()
