"""Of a process that asks for one to be forked in its place (ranks.py): where it is, what its parent is, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import NoReturn


def take_the_place_of_who_asks(connection: socket.socket) -> bool:
    """Be on its machine, with its parent, and say to it how this ends. Whether the machine is another than the tests'
    own.
    """
    asking, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    number_there = number_on_its_machine(asking)
    is_elsewhere = enter_the_machine_of(asking)
    have_the_parent_of(number_there)
    have_the_end_heard(connection)
    return is_elsewhere


def have_the_end_heard(connection: socket.socket) -> None:
    """Let this process, and none that it forks, say its exit code before it ends: a program may end itself."""
    itself, end = os.getpid(), os._exit

    def say_and_end(code: int) -> NoReturn:
        if os.getpid() == itself:
            with contextlib.suppress(BrokenPipeError):  # whoever asked has been killed
                connection.sendall(f"{code}\n".encode())
        end(code)

    os._exit = say_and_end


def number_on_its_machine(process: int) -> int:
    """What a process's number is to itself."""
    [numbers] = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("NSpid:")]
    return int(numbers.split()[-1])


def have_the_parent_of(other: int) -> None:
    """Let this process, and none that it forks, ask for the parent of another one in the place of its own: a program
    may end when its parent does.
    """
    itself, own_parent = os.getpid(), os.getppid

    def parent() -> int:
        if os.getpid() != itself:
            return own_parent()
        try:
            return int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # that one has ended, and `end_with` will end this one
            return own_parent()

    os.getppid = parent


def enter_the_machine_of(asking: int) -> bool:
    """Go on in the network, with the host name and among the processes of a process: on a machine of the tests' own
    (slurm/machine.py) they are others than here. Whether they are.
    """
    if os.readlink(f"/proc/{asking}/ns/pid") == os.readlink("/proc/self/ns/pid"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in [os.open(f"/proc/{asking}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "pid", "mnt")]:
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)
    if os.fork():  # a process keeps its own number: the first with one of that machine is its child
        os._exit(0)
    return True
