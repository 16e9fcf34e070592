"""What all tests share: how Hypothesis looks for examples.

No time limit is put on an example, for a machine that is busy elsewhere makes any example slow; and the examples are
the same in every run, so that a test fails because of what was changed and not because of what was drawn. To look for
new ones: ``pytest --hypothesis-profile=explore``.
"""

from hypothesis import HealthCheck, settings

UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("explore", **UNHURRIED)
settings.register_profile("moldau", **UNHURRIED, derandomize=True)
settings.load_profile("moldau")
