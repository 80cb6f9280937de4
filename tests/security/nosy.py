"""A job that reads whatever it can: run by `python3 -I nosy.py WORD FOLDER...`, it prints where it has met the word.

It imports nothing of gpuyard: it runs as the job of a user who knows the machine well and wants what others have. The
word is given backwards, so that it does not find itself.
"""

# ruff: noqa: PTH110, PTH115, PTH119, PTH123, PTH208
# It works on names that the kernel makes, byte by byte.

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

MAX_BYTES = 1 << 20
MAX_PIDS = 100_000
IN_PROC = ("cmdline", "environ", "comm", "status", "stat", "maps", "mountinfo", "cgroup", "stack", "auxv")
LINKS = ("cwd", "exe", "root")
WORD = sys.argv[1][::-1].encode()


def met(where: str, data: bytes) -> None:
    if WORD in data:
        at = data.index(WORD)
        print(f"MET {where}: {data[max(at - 20, 0) : at + 40]!r}", flush=True)


def read(path: str) -> bytes:
    """What is in it; nothing where we may not, or would have to wait."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.read(handle, MAX_BYTES)
        finally:
            os.close(handle)
    return b""


def look_at_process(folder: str) -> None:
    if str(os.getpid()) == os.path.basename(folder):
        return
    for name in IN_PROC:
        met(f"{folder}/{name}", read(f"{folder}/{name}"))
    for name in LINKS:
        with suppress(OSError):
            met(f"{folder}/{name}", os.readlink(f"{folder}/{name}").encode())
            walk(f"{folder}/{name}/", 1)
    for inside in ("fd", "task", "map_files", "ns"):
        with suppress(OSError):
            for name in os.listdir(f"{folder}/{inside}"):
                met(f"{folder}/{inside}/{name}", read(f"{folder}/{inside}/{name}"))
                for file in IN_PROC:
                    met(f"{folder}/{inside}/{name}/{file}", read(f"{folder}/{inside}/{name}/{file}"))


def processes(proc: str) -> Iterator[str]:
    """Those it lists, and those it may hide from a list."""
    listed = {name for name in os.listdir(proc) if name.isdigit()}
    print(f"SEES {len(listed)} processes in {proc}", flush=True)
    unlisted = (str(pid) for pid in range(1, MAX_PIDS) if os.path.exists(f"{proc}/{pid}"))
    for name in sorted({*listed, *unlisted}):
        yield f"{proc}/{name}"


def walk(top: str, depth: int = 12) -> None:
    for at, folders, files in os.walk(top):
        if at.count("/") - top.count("/") >= depth:
            folders.clear()
        for name in (*folders, *files):
            path = f"{at}/{name}"
            met(f"name {path}", name.encode())
            if "/task-" in path and "cgroup" in path:
                print(f"CGROUP {path}", flush=True)
            with suppress(OSError):
                facts = os.lstat(path)
                if stat.S_ISREG(facts.st_mode):
                    met(path, read(path))
                elif stat.S_ISLNK(facts.st_mode):
                    met(path, os.readlink(path).encode())


def sockets() -> None:
    """Ask every local socket that is listed, abstract ones too."""
    table = read("/proc/net/unix")
    met("/proc/net/unix", table)
    for line in table.decode("utf-8", "replace").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        name = fields[7]
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(0.2)
            asked.connect(f"\0{name[1:]}" if name.startswith("@") else name)
            asked.sendall(b'{"type":"Status","limit":1000}\n')
            met(f"socket {name}", asked.recv(MAX_BYTES))


def tools() -> None:
    """What programs of the machine tell about others."""
    asked = (
        "nvidia-smi",
        "nvidia-smi -q",
        "nvidia-smi --query-compute-apps=pid,name --format=csv",
        "nvidia-smi pmon -c 1",
    )
    for command in (*asked, "ps auxeww", "ipcs -a", "ls -la /proc/1/", "systemctl status", "loginctl"):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command.split(), capture_output=True, timeout=10, check=False)
            met(command, done.stdout + done.stderr)


def main() -> None:
    with open("/proc/self/mountinfo", "rb") as mounts:
        kinds = [(line.split(b" ")[4].decode(), b" - proc " in line) for line in mounts]
    for point in sorted({point for point, is_proc in kinds if is_proc}):
        with suppress(OSError):
            for folder in processes(point):
                look_at_process(folder)
    for name in ("keys", "locks", "timer_list", "sched_debug", "sysvipc/shm", "net/tcp", "net/unix", "kmsg"):
        met(f"/proc/{name}", read(f"/proc/{name}"))
    for top in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/var/lib/gpuyard-open", "/sys/fs/cgroup", *sys.argv[2:]):
        walk(top)
    sockets()
    tools()
    print("DONE", flush=True)


main()
