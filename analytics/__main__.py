"""Entry point of `python -m leveret.analytics`, which `leveret analyze` runs, and the file for `spark-submit`."""

import os
import sys

try:
    from leveret.analytics.command import PROGRAM, main
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"pyspark", "py4j", "matplotlib"}:
        raise
    sys.stderr.write(
        f"leveret analyze: missing package {error.name}; install it with: pip install 'leveret[analytics]'\n"
    )
    sys.exit(os.EX_UNAVAILABLE)

main(prog_name=PROGRAM)
