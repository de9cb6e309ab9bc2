"""What every test shares."""

import os
import sys
from pathlib import Path

from hypothesis import settings

# There are no packages under tests/ (docs/adr/0001): this makes `fakes` importable.
sys.path.append(str(Path(__file__).resolve().parent))

# A shared machine stalls now and then: how long one example takes says nothing about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
