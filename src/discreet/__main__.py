"""`python -m discreet`: the command line."""

from discreet.interfaces.cli import main

if __name__ == "__main__":
    main()
