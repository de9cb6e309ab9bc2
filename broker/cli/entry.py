"""The program `leveret` (driver: the arguments of the process).

`leveret ctl` is a client, and scripts call it often: it is run without loading the broker.
"""

import sys


def main() -> None:
    """Run the command of the arguments."""
    if sys.argv[1:2] == ["ctl"]:
        from leveret.broker.cli.ctl.main import ctl  # noqa: PLC0415

        ctl(sys.argv[2:], prog_name="leveret ctl")
    else:
        from leveret.broker.cli.main import main as command  # noqa: PLC0415

        command()
