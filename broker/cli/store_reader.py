"""Program that reads the data of a stopped broker for `leveret store` (see `storage.store.check`).

Its standard input is a pipe without a writer. It ends when the pipe does, which is when the command has ended.
"""

import os
import sys
import threading

from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import decode_whole_table
from leveret.storage.store.check import main


def fault_of_arguments(octets: bytes) -> str:
    """Return the fault of the arguments of a definition; empty if they are a valid table."""
    try:
        decode_whole_table(octets)
    except MalformedTable as error:
        return str(error)
    return ""


def end_with_the_command() -> None:
    """Wait for the end of the command that has started this program, and end."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_command, daemon=True).start()
    main(sys.argv[1], fault_of_arguments)
