"""What every test shares."""

import os

from hypothesis import settings

# A shared machine stalls now and then: how long one example takes says nothing about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
