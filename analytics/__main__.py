"""Entry point of `python -m leveret.analytics`, which `leveret analyze` runs, and the file for `spark-submit`."""

from leveret.analytics.asked import PROGRAM
from leveret.analytics.command import main

main(prog_name=PROGRAM)
