"""Let OpenMP threads that wait for each other fall asleep soon. A busy machine would stall training otherwise.

torch splits each operation over threads, which wait for each other at its end. libgomp, the OpenMP runtime of torch's
Linux builds, spins 300,000 times (milliseconds) before a waiting thread sleeps. If another process has the CPU of the
thread that is waited for, all of that is lost. 10,000 spins outlast nearly all gaps between the operations of a step.
`cotrain.training.spinning` goes further while the machine is busy. Neither changes a result.

OpenMP reads its settings when torch is loaded, so `cotrain/__init__.py` imports this file before anything else.
Other OpenMP runtimes (macOS, Windows) ignore the variable.
"""

import os
import sys
from collections.abc import Container, Mapping, MutableMapping

SPINS = "10000"


def bound_spinning(environment: MutableMapping[str, str], modules: Container[str]) -> None:
    """Unless the user has set how threads wait, or it is too late because torch is loaded."""
    if "torch" not in modules and left_to_cotrain(environment):
        environment["GOMP_SPINCOUNT"] = SPINS


def left_to_cotrain(environment: Mapping[str, str]) -> bool:
    """Whether the user has set nothing about it. A process started by cotrain's inherits cotrain's setting."""
    return environment.get("GOMP_SPINCOUNT", SPINS) == SPINS and "OMP_WAIT_POLICY" not in environment


bound_spinning(os.environ, sys.modules)
