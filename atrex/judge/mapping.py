"""Map an arena with huge pages where the kernel gives them, and every page present.

With small pages a cold, memory-bound call waits for page walks more than for memory: an 8 MiB copy
took 1.5 to 1.7 times as long. Huge pages of shared memory are off by default, but since Linux 6.1 a
populated mapping may be collapsed into them on request, if it starts at a multiple of their size.
Heaps get them too (`sandbox.clean_environment`), so that a library that allocates its outputs is
not put behind.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache

HUGE_BYTES = 2 << 20  # x86-64 and aarch64 with 4 KiB pages
MADV_POPULATE_READ = 22  # asm-generic/mman-common.h, since 5.14; Python does not name them
MADV_POPULATE_WRITE = 23
MADV_COLLAPSE = 25  # since 6.1
PROT_NONE = 0
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_arena(fd: int, size: int, *, writable: bool) -> memoryview:
    """Map a memory file at a multiple of the huge page; unmapped with its last view.

    Args:
        fd: Of the file.
        size: In bytes.
        writable: Else the view is read-only and a store through a pointer raises SIGSEGV.

    Raises:
        OSError: The kernel refuses the mapping.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    reserved = _map(0, size + HUGE_BYTES, PROT_NONE, private, -1)
    start = -(-reserved // HUGE_BYTES) * HUGE_BYTES
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    _map(start, size, protection, mmap.MAP_SHARED | MAP_FIXED, fd)
    advice = MADV_POPULATE_WRITE if writable else MADV_POPULATE_READ
    if _libc.madvise(start, size, advice) != 0:  # Linux before 5.14
        for offset in range(0, size, mmap.PAGESIZE):
            ctypes.string_at(start + offset, 1)
    # refused before 6.1, or where memory is too fragmented: small pages stay
    _libc.madvise(start, size, MADV_COLLAPSE)
    region = (ctypes.c_char * size).from_address(start)
    weakref.finalize(region, _libc.munmap, reserved, size + HUGE_BYTES)
    view = memoryview(region).cast("B")
    return view if writable else view.toreadonly()


@cache
def huge_pages() -> bool:
    """Whether shared memory can be collapsed into huge pages on this host."""
    fd = os.memfd_create("atrex", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, HUGE_BYTES)
        view = map_arena(fd, HUGE_BYTES, writable=True)
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        return bool(_libc.madvise(address, HUGE_BYTES, MADV_COLLAPSE) == 0)
    finally:
        os.close(fd)


def _map(address: int, size: int, protection: int, flags: int, fd: int) -> int:
    found = _libc.mmap(address or None, size, protection, flags, fd, 0)
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)
