"""A guest that speaks nonsense on ctl. Run as root inside a machine.

It takes copies of PID 1's sockets, as root can, and answers in its place.
"""

import ctypes
import os
import socket
import threading
import time

PIDFD_GETFD = 438
GARBAGE = b"\xff\xfe\xfd\xfc garbage " * 100

libc = ctypes.CDLL(None, use_errno=True)
init = os.pidfd_open(1)


def disturb(listener):
    while True:
        connection, _ = listener.accept()
        connection.sendall(GARBAGE)
        connection.close()


def main():
    seen = set()
    while True:
        for name in os.listdir("/proc/1/fd"):
            try:
                target = os.readlink(f"/proc/1/fd/{name}")
            except OSError:
                continue
            if not target.startswith("socket:") or target in seen:
                continue
            copy = libc.syscall(PIDFD_GETFD, init, int(name), 0)
            if copy < 0:
                continue
            seen.add(target)
            taken = socket.socket(fileno=copy)
            try:
                if taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    threading.Thread(target=disturb, args=(taken,), daemon=True).start()
                else:
                    taken.send(GARBAGE, socket.MSG_DONTWAIT)
            except OSError:
                pass
        time.sleep(0.2)


main()
