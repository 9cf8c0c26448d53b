"""A life in a machine: it counts in memory, serves a port of its own, and
keeps a file open that has no name any more. Whoever connects gets one line:
its process id, the count, and how many lines the file has."""

import os
import socket
import threading
import time

count = 0
kept = open("nameless", "w+")
os.unlink("nameless")


def tick():
    global count
    while True:
        count += 1
        time.sleep(0.2)


threading.Thread(target=tick, daemon=True).start()
with socket.create_server(("127.0.0.1", 7000)) as server:
    while True:
        peer, _ = server.accept()
        with peer:
            kept.write("seen\n")
            kept.seek(0)
            peer.sendall(f"{os.getpid()} {count} {len(kept.readlines())}\n".encode())
