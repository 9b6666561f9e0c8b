"""Builds the sandbox and becomes its runner; executed as a script by `sandbox.py`, standard library only.

Order: control groups; new user namespace (when not root), mount, network, PID, IPC and UTS namespaces; a tmpfs root
with the Python installation and system libraries read-only, three devices and a small writable `/work`; pivot
into it; become the runner's keeper, which forks an unprivileged process for each program. Any step that fails
ends with exit status 97 and one line on standard error, before any generated code is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import platform
import sys
from typing import Any, NoReturn

REFUSED = 97
NOBODY = 65534

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
SYS_MOUNT_SETATTR, AT_RECURSIVE, AT_FDCWD = 442, 0x8000, -100
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 0x1, 0x2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
LIBRARIES = ("/usr", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    """`struct mount_attr` of mount_setattr(2)."""

    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def refuse(step: str, error: int | None = None) -> NoReturn:
    """Ends with one line that says which step of the isolation this machine does not allow."""
    reason = os.strerror(ctypes.get_errno() if error is None else error)
    sys.stderr.write(f"{step}: {reason}\n")
    sys.stderr.flush()
    os._exit(REFUSED)


def check(result: int, step: str) -> None:
    """Refuses when a C call returned an error."""
    if result != 0:
        refuse(step)


def join_groups(files: list[str]) -> None:
    """Joins control groups, as far as the system allows it; their limits come on top of those of each process."""
    for file in files:
        with contextlib.suppress(OSError), open(file, "w") as members:
            members.write("0")


def enter_namespaces() -> None:
    """Leaves the host's mounts, network, processes and IPC; as an ordinary user through a user namespace."""
    kinds = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    if user == 0 and libc.unshare(kinds) == 0:
        return
    check(libc.unshare(CLONE_NEWUSER | kinds), "unshare (user namespaces are off or not allowed)")
    try:
        with open("/proc/self/setgroups", "w") as file:
            file.write("deny")
        with open("/proc/self/uid_map", "w") as file:
            file.write(f"{NOBODY} {user} 1")
        with open("/proc/self/gid_map", "w") as file:
            file.write(f"{NOBODY} {group} 1")
    except OSError as error:
        refuse("map user ids", error.errno)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Calls mount(2), refusing on failure."""
    result = libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    check(result, f"mount {target}")


def make_read_only(target: str) -> None:
    """Makes a mount and all below it read-only and free of set-user-id programs."""
    attributes = MountAttributes(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    done = libc.syscall(
        SYS_MOUNT_SETATTR,
        AT_FDCWD,
        target.encode(),
        AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.sizeof(attributes),
    )
    if done != 0:  # before Linux 5.12: this mount only
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)


def bind(root: str, source: str, target: str | None = None) -> None:
    """Shows a host file or folder inside the new root, read-only."""
    place = root + (target or source)
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_RDONLY, 0o644))
    mount(source, place, None, MS_BIND | MS_REC)
    make_read_only(place)


def build_root(config: dict[str, Any]) -> None:
    """Mounts the new root and moves into it; nothing else of the host stays reachable."""
    root = str(config["root"])
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in LIBRARIES:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        elif os.path.exists(path):
            bind(root, path)
    prefix = str(config["prefix"])
    if not prefix.startswith("/usr/") and prefix != "/usr":
        bind(root, prefix)
    for device in DEVICES:
        bind(root, device)  # it takes what is written, and keeps its times: they would outlive a program
    for package in config["packages"]:
        bind(root, str(package), f"/packages/{os.path.basename(package)}")
    os.makedirs(root + "/work")
    pivot = SYS_PIVOT_ROOT.get(platform.machine())
    if pivot is None:
        refuse(f"pivot_root on {platform.machine()}", 38)
    os.chdir(root)
    check(libc.syscall(pivot, b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "leave the old root")
    os.chdir("/")
    mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def main() -> None:
    """Builds the sandbox described by the JSON in the first argument and runs its runner as process 1."""
    config = json.loads(sys.argv[1])
    join_groups(config["groups"])
    enter_namespaces()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    sys.path.insert(0, str(config["library"]))
    runner = importlib.import_module("rlhf_core.evaluation.sandbox_runner")
    del sys.path[0]
    try:
        check(libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "die with the parent")
        build_root(config)
        os.closerange(3, 4096)
        os.environ.clear()
        os.environ.update({"PATH": "/nonexistent", "HOME": "/work", "LANG": "C.UTF-8"})
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, which may start no thread
        runner.main(bool(config["packages"]))
        os._exit(0)
    except OSError as error:
        refuse(f"build the sandbox ({error.filename or error.strerror})", error.errno or 0)


if __name__ == "__main__":
    main()
