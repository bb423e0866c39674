"""Keeping freed memory: only where glibc is, and harmless elsewhere."""

import ctypes
import platform

import pytest

from cotrain.training.allocator import keep_freed_memory


@pytest.mark.parametrize("libc", ["", "musl"])
def test_without_glibc_nothing_is_called(libc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows `ctypes.CDLL(None)` is a TypeError; musl has no mallopt."""
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("no library may be opened"))
    assert keep_freed_memory() is False
