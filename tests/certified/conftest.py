"""Makes ``certified`` importable: there are no packages under tests/ (docs/adr/0001)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
