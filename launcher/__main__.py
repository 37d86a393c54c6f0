"""`python -m launcher` is `rlrun`."""

import sys

from launcher.cli.at_once import checks_shown


def main() -> None:
    with checks_shown(sys.argv[1:]):
        from launcher.cli.main import app  # noqa: PLC0415  # late: the first line comes before

        app()


if __name__ == "__main__":
    main()
