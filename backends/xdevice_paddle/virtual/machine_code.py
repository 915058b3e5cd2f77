"""Makes C functions without a compiler, for the plugin that gives Paddle virtual GPUs. Each passes its arguments on to
a function of the C library.

Paddle calls the functions of a device while it holds locks of its own, also in threads that do not hold Python's lock.
A callback written in Python would wait for Python's lock, whose owner may wait for Paddle's locks: with callbacks by
ctypes, four threads that copied hung in two runs of three, and so did forked workers. Functions of the C library never
wait for Python's lock, and still work after a fork and while Python ends.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from typing import Final, NamedTuple

# the registers of the first six arguments in the System V calling convention: rdi, rsi, rdx,
# rcx, r8, r9
_REGISTERS: Final = (7, 6, 2, 1, 8, 9)
_CALL_RAX: Final = b"\xff\xd0"
_RETURN_0: Final = b"\x31\xc0"  # xor eax, eax
# a called function expects a stack that is aligned to 16 bytes, and the return address has
# taken 8
_ALIGN_STACK: Final = b"\x48\x83\xec\x08"  # sub rsp, 8
_RETURN: Final = b"\xc3"
_RESTORE_STACK: Final = b"\x48\x83\xc4\x08" + _RETURN  # add rsp, 8; ret
_PUSH_RDI: Final = b"\x57"  # aligns the stack, too
_POP_RDI: Final = b"\x5f"
_READ_INT: Final = b"\x8b\x37"  # mov esi, [rdi]
_WRITE_INT: Final = b"\x89\x07"  # mov [rdi], eax
_RAX: Final = 0


class Argument(NamedTuple):
    """In `Page.call`, the argument of the new function that has this number, counted from 0."""

    number: int


def why_not() -> str | None:
    """Returns why no code can be made on this machine; None if code can be made."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return None
    return f"they exist only on Linux on x86-64, but this is {platform.system()} on {platform.machine()}"


class Page:
    """One page of memory with new functions. It is never freed, because Paddle calls the
    functions until the process ends. Raises `OSError` if the system has no memory for the
    page."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            *[ctypes.c_int] * 3,
            ctypes.c_long,
        ]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.malloc.restype = ctypes.c_void_p
        self._libc.malloc.argtypes = [ctypes.c_size_t]
        self._code = self._page()
        self._used = 0

    def keep(self, value: bytes) -> int:
        """Copies `value` into memory that is never freed, and returns the address."""
        address: int = self._libc.malloc(len(value))
        ctypes.memmove(address, value, len(value))
        return address

    def success(self) -> int:
        """Makes a function that does nothing and returns 0, and returns the function's address."""
        return self._add(_RETURN_0 + _RETURN)

    def call(self, name: str, *passed: Argument | int, is_status: bool = False) -> int:
        """Makes a function that calls the function `name` of the C library, and returns the new function's address.

        `passed` has the arguments for the function of the C library, at most six: constants, and arguments of the new
        function, in ascending order and each at its own position or at an earlier one. If `is_status`, the new
        function returns the result of the C library's function; otherwise it returns 0.
        """
        places = list(zip(_REGISTERS, passed, strict=False))
        # before the constants, which would overwrite registers with arguments that are still
        # needed. In ascending order: each argument stays or moves to an earlier register, whose own
        # argument has moved before
        moved = [
            _move(register, _REGISTERS[x.number])
            for register, x in places
            if isinstance(x, Argument)
        ]
        constants = [
            _load(register, x) for register, x in places if not isinstance(x, Argument)
        ]
        code = [_ALIGN_STACK, *moved, *constants, self._call(name)]
        return self._add(b"".join([*code, b"" if is_status else _RETURN_0, _RESTORE_STACK]))

    def per_thread(self) -> tuple[int, int]:
        """Makes two functions, and returns their addresses. Each is called with the address of
        a C int. The first stores that int for the calling thread. The second writes the
        thread's int to the address, or 0 if the thread has stored none. Both return 0.

        Raises:
            OSError: the process has used up its keys for values of threads
                (pthread_key_create).
        """
        key = ctypes.c_uint()
        status = self._libc.pthread_key_create(ctypes.byref(key), None)
        if status != 0:
            raise OSError(status, "no key for thread-local values is left (pthread_key_create)")
        load_key = _load(_REGISTERS[0], key.value)
        keep = [
            _ALIGN_STACK,
            # before the key overwrites rdi, which has the address of the int
            _READ_INT,
            load_key,
            self._call("pthread_setspecific"),
            _RETURN_0,
            _RESTORE_STACK,
        ]
        write = [
            # keeps the address of the int during the call
            _PUSH_RDI,
            load_key,
            self._call("pthread_getspecific"),
            _POP_RDI,
            _WRITE_INT,
            _RETURN_0,
            _RETURN,
        ]
        return self._add(b"".join(keep)), self._add(b"".join(write))

    def finish(self) -> None:
        """Makes the functions on this page callable. No function can be added after that.

        Raises:
            OSError: the system does not let programs make code.
        """
        # not writable any more: hardened systems refuse memory that is writable and executable
        # at the same time
        if self._libc.mprotect(self._code, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            raise OSError(
                ctypes.get_errno(),
                "this system does not let programs make code at run time (mprotect)",
            )

    def _call(self, name: str) -> bytes:
        """Returns the machine code that calls a function of the C library."""
        # by its absolute address: it may be too far away for a relative call
        target = ctypes.cast(getattr(self._libc, name), ctypes.c_void_p).value
        assert target is not None
        return _load(_RAX, target) + _CALL_RAX

    def _page(self) -> int:
        """Returns the address of a new page of memory. Raises `OSError` if the system has none
        left."""
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address: int = self._libc.mmap(
            None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0
        )
        # MAP_FAILED of mmap
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "there is no memory for a page of code (mmap)")
        return address

    def _add(self, code: bytes) -> int:
        """Appends a function to the page, and returns its address."""
        address = self._code + self._used
        # rounded up to 16 bytes, the usual alignment of functions on x86-64
        self._used += -(-len(code) // 16) * 16
        assert self._used <= mmap.PAGESIZE
        ctypes.memmove(address, code, len(code))
        return address


def _move(to: int, source: int) -> bytes:
    """Returns the machine code of the instruction `mov to, source`, for the numbers of two
    registers."""
    # REX.W with bit 3 of both numbers, the opcode, and ModR/M with their lower three bits
    return bytes([0x48 | (source >> 3) << 2 | to >> 3, 0x89, 0xC0 | (source & 7) << 3 | to & 7])


def _load(to: int, value: int) -> bytes:
    """Returns the machine code of the instruction `movabs to, value`, for the number of a
    register and a constant."""
    # REX.W with bit 3 of the number, and the opcode with the lower three bits
    return bytes([0x48 | to >> 3, 0xB8 | to & 7]) + value.to_bytes(8, "little")
