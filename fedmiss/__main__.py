"""``python -m fedmiss``: the command line."""

from fedmiss.cli.app import main

if __name__ == "__main__":
    main()
