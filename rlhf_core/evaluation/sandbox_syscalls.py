"""A seccomp filter that lets a process only compute, use its own files and talk over what it already holds.

What is not listed fails with EPERM: sockets of every family, shared memory and message queues, namespaces, mounts, new
processes and threads, `execve`, tracing, `io_uring`, `memfd_create`, `prctl`. Five calls are allowed with some
arguments only. The filter is a small one of ctypes, since libseccomp's bindings need a library of the system.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050000 | 1
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_AF_UNIX = 1

#: Name, number on x86_64 and on aarch64, which lacks some.
_TABLE = """
read 0 63, write 1 64, open 2 -, openat 257 56, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx
332 291, poll 7 -, ppoll 271 73, lseek 8 62, ftruncate 77 46, mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214,
mremap 25 216, madvise 28 233, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, pread64 17 67, readv 19 65, writev 20 66, access
21 -, faccessat 269 48, faccessat2 439 439, pipe 22 -, pipe2 293 59, select 23 -, pselect6 270 72, sched_yield 24 124,
sched_getaffinity 204 123, dup 32 23, dup2 33 -, dup3 292 24, pause 34 -, nanosleep 35 101, clock_nanosleep 230 115,
getitimer 36 102, setitimer 38 103, alarm 37 -, getpid 39 172, gettid 186 178, getppid 110 173, getpgrp 111 -, getpgid
121 155, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148,
getresgid 120 150, getgroups 115 158, sendto 44 206, recvfrom 45 207, recvmsg 47 212, shutdown 48 210, getsockname 51
204, getpeername 52 205, getsockopt 55 209, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, uname 63 160,
getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, readlink 89 -, readlinkat 267 78, umask 95 166, statfs 137
43, fstatfs 138 44, gettimeofday 96 169, time 201 -, times 100 153, getrlimit 97 163, getrusage 98 165, sysinfo 99
179, arch_prctl 158 -, futex 202 98, set_tid_address 218 96, set_robust_list 273 99, restart_syscall 219 128,
clock_gettime 228 113, clock_getres 229 114, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281
22, eventfd2 290 19, getrandom 318 278, rseq 334 293, membarrier 324 283, sendfile 40 71, fadvise64 221 223
"""
#: Numbers by name on x86_64 and aarch64.
ALLOWED: dict[str, tuple[int, int | None]] = {
    name: (int(x86_64), None if aarch64 == "-" else int(aarch64))
    for name, x86_64, aarch64 in (entry.split() for entry in _TABLE.split(","))
}
#: Calls that are allowed with some arguments.
_LIMITED = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "socketpair": (53, 199),
}
#: Duplicates and flags of a file; not its owner, who would be sent signals, not the size of a pipe, and not its locks,
#: which would hold for the machine's programs, since they read the same files.
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)
#: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


class Filter(ctypes.Structure):
    """`struct sock_fprog` of prctl(2)."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


@functools.cache
def _same_for_all(machine: str) -> bytes:
    """Returns the first steps of the filter, which are the same for every process."""
    if machine not in _MACHINES:
        raise OSError(38, f"no list of system calls for {machine}")
    column, architecture = _MACHINES[machine]
    made = [_step(_LOAD, _ARCHITECTURE_AT), _step(_EQUAL, architecture, 1, 0), _step(_RETURN, _KILL)]
    made.append(_step(_LOAD, _NUMBER_AT))
    for numbers in ALLOWED.values():
        number = numbers[column]
        if number is not None:
            made += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW)]
    for name, argument, values in (
        ("fcntl", 1, _FCNTL_COMMANDS),
        ("ioctl", 1, _IOCTL_COMMANDS),
        ("socketpair", 0, (_AF_UNIX,)),
    ):
        made += _with_argument(_LIMITED[name][column], argument, values)
    return b"".join(made)


def instructions(machine: str, pid: int) -> bytes:
    """Returns the filter's program for a process.

    Raises:
        OSError: the machine's system calls are not listed here.
    """
    made = [_same_for_all(machine)]
    column, _ = _MACHINES[machine]
    for name, values in (("kill", (pid,)), ("tgkill", (pid,)), ("prlimit64", (0, pid))):
        made += _with_argument(_LIMITED[name][column], 0, values)
    return b"".join([*made, _step(_RETURN, _EPERM)])


def _with_argument(number: int, argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Returns the steps that allow a call when the low word of an argument is one of some values."""
    checks: list[bytes] = [_step(_LOAD, _ARGUMENTS_AT + 8 * argument)]
    for value in values:
        checks += [_step(_EQUAL, value, 0, 1), _step(_RETURN, _ALLOW)]
    checks.append(_step(_RETURN, _EPERM))
    return [_step(_EQUAL, number, 0, len(checks)), *checks]


def forbid_other_calls(libc: ctypes.CDLL) -> None:
    """Puts the filter on this process for good.

    Raises:
        OSError: this kernel or machine has no such filter.
    """
    program = instructions(platform.machine(), os.getpid())
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no new privileges")
    filter_ = Filter(len(program) // 8, program)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "filter of system calls")
