"""Let OpenMP threads that wait for each other fall asleep soon. A busy machine would stall training otherwise.

torch splits each operation over threads that wait for each other at its end. libgomp, the OpenMP runtime of torch's
Linux builds, spins 300,000 times before a waiting thread sleeps, which takes milliseconds. As long as another process
occupies the core of the thread that is waited for, that spinning uses up the time that it needs to catch up.
A few thousand spins bridge the gaps between operations as well. They change no result.

OpenMP reads its settings when torch is loaded, so `cotrain/__init__.py` imports this file before anything else.
Other OpenMP runtimes (macOS, Windows) ignore the variable.
"""

import os
import sys
from collections.abc import Container, MutableMapping

SPINS = 1000
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # what a user may have set


def bound_spinning(environment: MutableMapping[str, str], modules: Container[str]) -> bool:
    """Whether it was set here: not if the user has set it, and not if it is too late because torch is loaded."""
    if "torch" in modules or any(name in environment for name in WAITING):
        return False
    environment["GOMP_SPINCOUNT"] = str(SPINS)
    return True


bound_spinning(os.environ, sys.modules)
