"""Let waiting OpenMP threads go to sleep soon. Otherwise, training stalls on a busy machine.

torch splits each operation over threads, which wait for each other at its end. libgomp, the OpenMP runtime of torch's
Linux builds, spins 300,000 times (milliseconds) before a waiting thread sleeps. If another process occupies the CPU
of the slowest thread, that time is wasted. 30,000 spins bridge nearly all gaps between the operations of a step.
`cotrain.training.spinning` goes further while the machine is busy. Neither changes any result.

OpenMP reads its settings when torch is loaded, so `cotrain/__init__.py` imports this file first.
Other OpenMP runtimes (macOS, Windows) ignore the variable.
"""

import os
import sys
from collections.abc import Container, Mapping, MutableMapping

SPINS = "30000"


def bound_spinning(environment: MutableMapping[str, str], modules: Container[str]) -> None:
    """Set the spin count, unless the user has set how threads wait or torch is already loaded."""
    if "torch" not in modules and left_to_cotrain(environment):
        environment["GOMP_SPINCOUNT"] = SPINS


def left_to_cotrain(environment: Mapping[str, str]) -> bool:
    """Whether the user has left the waiting of threads alone. Child processes inherit cotrain's own setting."""
    return environment.get("GOMP_SPINCOUNT", SPINS) == SPINS and "OMP_WAIT_POLICY" not in environment


bound_spinning(os.environ, sys.modules)
