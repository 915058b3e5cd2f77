"""Creates C functions without a compiler, for the plugin that provides Paddle's virtual GPUs. Each of these functions
passes its arguments on to a function of the C library.

Paddle calls the functions of a device while it holds its own locks, even in threads that do not hold Python's lock. A
callback written in Python would wait for Python's lock, whose owner may be waiting for one of Paddle's locks. With
callbacks created by ctypes, four threads that copied tensors hung in two of three runs, and forked workers hung too.
Functions of the C library never wait for Python's lock, and still work after a fork and while Python shuts down.
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
# a called function expects a stack that is aligned to 16 bytes, and the return address takes 8
# bytes
_ALIGN_STACK: Final = b"\x48\x83\xec\x08"  # sub rsp, 8
_RETURN: Final = b"\xc3"
_RESTORE_STACK: Final = b"\x48\x83\xc4\x08" + _RETURN  # add rsp, 8; ret
_PUSH_RDI: Final = b"\x57"  # also aligns the stack
_POP_RDI: Final = b"\x5f"
_READ_INT: Final = b"\x8b\x37"  # mov esi, [rdi]
_WRITE_INT: Final = b"\x89\x07"  # mov [rdi], eax
_RAX: Final = 0


class Argument(NamedTuple):
    """In a call of `Page.add_call`, represents an argument of the new function. `number` is its
    position, counted from 0."""

    number: int


def why_not() -> str | None:
    """Returns the reason why no code can be created on this machine, or None if code can be created."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return None
    return f"they require Linux on x86-64, but this machine runs {platform.system()} on {platform.machine()}"


class Page:
    """A page of memory to which new functions are added. The page is never freed, because Paddle
    calls the functions until the process ends. Raises `OSError` if the system has no memory for
    the page."""

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

    def store_forever(self, value: bytes) -> int:
        """Copies `value` into memory that is never freed, and returns the address."""
        address: int = self._libc.malloc(len(value))
        ctypes.memmove(address, value, len(value))
        return address

    def add_success(self) -> int:
        """Creates a function that does nothing and returns 0. Returns the function's address."""
        return self._add(_RETURN_0 + _RETURN)

    def add_call(self, name: str, *passed: Argument | int, is_status: bool = False) -> int:
        """Creates a function that calls the function `name` of the C library. Returns the new function's address.

        `passed` contains the arguments for the function of the C library, at most six. Each is a constant or an
        argument of the new function. The new function's arguments must be passed in ascending order, each at its own
        position or at an earlier position. If `is_status` is True, the new function returns the result of the C
        library's function; otherwise it returns 0.
        """
        places = list(zip(_REGISTERS, passed, strict=False))
        # arguments are moved before constants are loaded, because a constant would overwrite a
        # register whose argument is still needed. They are moved in ascending order: each argument
        # stays or moves to an earlier register, whose own argument has already been moved
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

    def add_thread_local(self) -> tuple[int, int]:
        """Creates two functions, and returns their addresses. Each function is called with the
        address of a C int. The first function stores this int for the calling thread. The second
        writes the thread's stored int to the address, or 0 if the thread has not stored an int.
        Both return 0.

        Raises:
            OSError: if the process has used up its keys for thread-local values
                (pthread_key_create).
        """
        key = ctypes.c_uint()
        status = self._libc.pthread_key_create(ctypes.byref(key), None)
        if status != 0:
            raise OSError(status, "no key for thread-local values is left (pthread_key_create)")
        load_key = _load(_REGISTERS[0], key.value)
        keep = [
            _ALIGN_STACK,
            # read before the key overwrites rdi, which contains the address of the int
            _READ_INT,
            load_key,
            self._call("pthread_setspecific"),
            _RETURN_0,
            _RESTORE_STACK,
        ]
        write = [
            # saves the address of the int during the call
            _PUSH_RDI,
            load_key,
            self._call("pthread_getspecific"),
            _POP_RDI,
            _WRITE_INT,
            _RETURN_0,
            _RETURN,
        ]
        return self._add(b"".join(keep)), self._add(b"".join(write))

    def make_executable(self) -> None:
        """Makes the functions on this page callable. Afterwards no more functions can be added.

        Raises:
            OSError: if the system does not allow programs to create code.
        """
        # the page is no longer writable, because hardened systems do not allow memory that is both
        # writable and executable
        if self._libc.mprotect(self._code, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            raise OSError(
                ctypes.get_errno(),
                "this system does not allow programs to create code at run time (mprotect)",
            )

    def _call(self, name: str) -> bytes:
        """Returns the machine code that calls a function of the C library."""
        # called by its absolute address, because it may be too far away for a relative call
        target = ctypes.cast(getattr(self._libc, name), ctypes.c_void_p).value
        assert target is not None
        return _load(_RAX, target) + _CALL_RAX

    def _page(self) -> int:
        """Returns the address of a new page of memory. Raises `OSError` if the system has no memory
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
    """Returns the machine code of the instruction `mov to, source`. `to` and `source` are the
    numbers of two registers."""
    # REX.W with bit 3 of both numbers, the opcode, and ModR/M with the lower three bits of both
    return bytes([0x48 | (source >> 3) << 2 | to >> 3, 0x89, 0xC0 | (source & 7) << 3 | to & 7])


def _load(to: int, value: int) -> bytes:
    """Returns the machine code of the instruction `movabs to, value`. `to` is the number of a
    register, and `value` is a constant."""
    # REX.W with bit 3 of the number, and the opcode with the lower three bits
    return bytes([0x48 | to >> 3, 0xB8 | to & 7]) + value.to_bytes(8, "little")
