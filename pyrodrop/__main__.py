"""``python -m pyrodrop``, and the command ``pyrodrop``."""

import sys


def main() -> int:
    """Run the command line. Returns the exit status, see `pyrodrop.cli`."""
    try:
        from pyrodrop import cli
    except ModuleNotFoundError as error:  # it needs an extra, and the message names it
        print(f"pyrodrop: {error}", file=sys.stderr)
        return 1
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
