"""The program `leveret` (driver: the arguments of the process).

`leveret ctl`, `leveret top` and the commands on messages are clients, and the first of them is called often by scripts;
`leveret analyze` becomes another program at once. They are run without loading the broker.
"""

import gc
import sys

from leveret.broker.cli import commands


def main() -> None:
    """Run the command of the arguments."""
    name = "".join(sys.argv[1:2])
    if name in commands.LIGHT:
        commands.load(name)(sys.argv[2:], prog_name=f"leveret {name}", help_option_names=["-h", "--help"])
    else:
        gc.disable()  # a tenth of the time to load the broker was spent on looking for garbage, of which there is none
        try:
            from leveret.broker.cli.main import main as command  # noqa: PLC0415
        finally:
            gc.enable()
        command()
