"""`python -m discreet`: the command line."""

from discreet.cli import main

if __name__ == "__main__":
    main()
