"""Program that reads the data of a stopped broker for `leveret store` (see `storage.store.check`)."""

import sys

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


if __name__ == "__main__":
    main(sys.argv[1], fault_of_arguments)
