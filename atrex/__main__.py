"""`python -m atrex` is `atrex`."""

from atrex.cli import main

if __name__ == "__main__":
    main()
