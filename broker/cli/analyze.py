"""The command `leveret analyze`: executes the package `analytics` in place of this process (driver: the process).

The broker never imports that package, because it needs PySpark, which a broker's process must not load.
"""

import os
import sys
from collections.abc import Sequence

import click


@click.command(
    "analyze",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    short_help="Create reports from the telemetry export of a broker, with Spark.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def analyze(arguments: Sequence[str]) -> None:
    """Run an analysis; `leveret analyze --help` says more."""
    # -P: do not import the package from the current directory.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "leveret.analytics", *arguments])  # noqa: S606 - ourselves
