"""Run the command line: python -m fedlga.cli."""

from fedlga.cli.main import main

if __name__ == "__main__":
    main()
