"""The command `leveret analyze`: it becomes the process of the package `analytics` (driver: the process).

The broker never imports that package: it needs PySpark, which has no place in a broker's process.
"""

import os
import sys
from collections.abc import Sequence

import click


@click.command(
    "analyze",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    short_help="Analyse what a broker exported, with Spark.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def analyze(arguments: Sequence[str]) -> None:
    """Run an analysis; `leveret analyze --help` says more."""
    # -P: a directory that happens to be the current one must not provide the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "leveret.analytics", *arguments])  # noqa: S606 - ourselves
