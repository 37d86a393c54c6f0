"""`python -m launcher` is `rlrun`."""

import os
import sys

from launcher.cli.at_once import checks_shown


def main() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait starve others on busy cores
    with checks_shown(sys.argv[1:]):
        from launcher.cli.main import app  # noqa: PLC0415  # late: the first line is printed before

        app()


if __name__ == "__main__":
    main()
