"""Run the command line: python -m fedlga."""

from fedlga.cli.main import main

if __name__ == "__main__":
    main()
