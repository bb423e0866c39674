"""Keep freed memory in the process. By default, glibc returns large buffers and has to request them again."""

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h


def keep_freed_memory() -> bool:
    """Returns whether it worked; needs glibc. Results do not change; the memory of a step is kept for the next one."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26}
    return all(mallopt(name, value) for name, value in settings.items())
