"""How hard Hypothesis tries: `HYPOTHESIS_PROFILE=long` for nights, `ci` (the default) for every change."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILES = {"ci": (100, 30), "long": (2000, 80)}
"""Examples a test, and steps an example of a state machine."""

for name, (examples, steps) in PROFILES.items():
    settings.register_profile(
        name,
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
