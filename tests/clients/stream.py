"""Both ends of a stream that goes through a forward.

serve ADDRESS   sends back what it gets; prints its port; ends with its input
ask ADDRESS N   sends N bytes, wants them back; prints how many there were

ADDRESS is HOST:PORT, or the path of a unix socket.
"""

import os
import socket
import sys
import threading


def parse(text):
    if text.startswith("/"):
        return socket.AF_UNIX, text
    host, port = text.rsplit(":", 1)
    return socket.AF_INET, (host, int(port))


def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
        # Only now, so that a client which is done sending still gets the rest.
        connection.shutdown(socket.SHUT_WR)


def serve(text):
    family, address = parse(text)
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen(100)
    print(text if family == socket.AF_UNIX else listener.getsockname()[1], flush=True)

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


def ask(text, count):
    family, address = parse(text)
    connection = socket.socket(family)
    connection.settimeout(90)
    connection.connect(address)
    sent = os.urandom(count)

    def send():
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    got = bytearray()
    while data := connection.recv(65536):
        got += data
    sender.join()
    if bytes(got) != sent:
        sys.exit(f"sent {len(sent)} bytes, got {len(got)} back")
    print(len(got))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ask(sys.argv[2], int(sys.argv[3]))
