"""Servers of the world outside, for the egress cases: HTTPS with an API, git,
server-sent events and a WebSocket; HTTPS that wants a client certificate; plain
HTTP; gRPC; a PostgreSQL that speaks first. Run in a network namespace of its own.

usage: upstream.py DIRECTORY

DIRECTORY has server.pem (certificate and key, also apart as .crt and .key), other.pem (for another name),
ca.pem (which client certificates come from), expected.json (what requests must
carry, by name) and git/ (bare repositories). Says "ready" when it listens.
"""

import base64
import concurrent.futures
import hashlib
import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time

import grpc

directory = sys.argv[1]
# Events that a client says it has seen.
seen = threading.Semaphore(0)


def expected(name):
    with open(os.path.join(directory, "expected.json")) as file:
        return json.load(file).get(name)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, text, headers=()):
        body = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/git/"):
            return self.git()
        if path.startswith("/files/"):
            return self.file(path)
        if path == "/ws":
            return self.websocket()
        if path == "/sse":
            return self.events()
        if path == "/seen":
            seen.release()
            return self.answer(200, "go on\n")
        if path == "/redirect":
            return self.answer(302, "", [("Location", self.headers["X-Where"])])
        if path == "/echo":
            return self.answer(200, self.headers.get("Authorization", "nothing"))
        if path == "/whole":
            return self.answer(200, os.urandom(8 << 20))
        if path == "/late":
            open(os.path.join(directory, "asked"), "w").close()
            while not os.path.exists(os.path.join(directory, "go")):
                time.sleep(0.05)
            return self.answer(200, "late\n")
        if path == "/certificate":
            subject = self.connection.getpeercert()["subject"]
            return self.answer(200, dict(pair[0] for pair in subject)["commonName"])
        carried = self.headers.get(self.headers.get("X-Look-At", "Authorization"))
        good = carried is not None and carried == expected(path.strip("/"))
        self.answer(200 if good else 401, "welcome\n" if good else "who are you?\n")

    def do_POST(self):
        if self.path.startswith("/git/"):
            return self.git()
        good = self.body().decode() == expected(self.path.strip("/"))
        self.answer(200 if good else 401, "welcome\n" if good else "who are you?\n")

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        good = self.headers.get("Authorization") == expected("api")
        for number in range(5):
            event = f"data: {number} {good} {time.time()}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            # The next one only when this one was seen.
            if not seen.acquire(timeout=60):
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def websocket(self):
        if self.headers.get("Authorization") != expected("api"):
            return self.answer(401, "who are you?\n")
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        head = self.rfile.read(2)
        mask = self.rfile.read(4)
        text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(head[1] & 127)))
        self.wfile.write(bytes([0x81, len(text)]) + text[::-1])

    def file(self, path):
        """Of the registry only with a credential, of others without."""
        wanted = expected("registry") if self.headers["Host"].startswith("registry.") else None
        if wanted and self.headers.get("Authorization") != wanted:
            return self.answer(401, "who are you?\n", [("WWW-Authenticate", "Basic realm=files")])
        path = os.path.join(directory, os.path.normpath(path).lstrip("/"))
        if os.path.isdir(path):
            path = os.path.join(path, "index.html")
        if not os.path.isfile(path):
            return self.answer(404, "not here\n")
        kind = "text/html" if path.endswith(".html") else "application/octet-stream"
        with open(path, "rb") as file:
            self.answer(200, file.read(), [("Content-Type", kind)])

    def git(self):
        if self.headers.get("Authorization") != expected("git"):
            return self.answer(401, "who are you?\n", [("WWW-Authenticate", "Basic realm=git")])
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": directory,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "REMOTE_USER": "test",
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.body()
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
        self.answer(status, content, [pair for pair in headers if pair[0] != "Status"])


def https(port, certificate, client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(directory, certificate))
    context.set_alpn_protocols(["http/1.1"])
    if client_ca:
        context.load_verify_locations(os.path.join(directory, client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
    server = http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler)
    # The handshake belongs to the connection's own thread.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def speaks_first(port):
    listener = socket.create_server(("0.0.0.0", port))

    def serve():
        while True:
            connection, _ = listener.accept()
            connection.sendall(b"hello, I speak first\n")
            connection.close()

    return serve


class Calls(grpc.GenericRpcHandler):
    """Messages are bytes as they are, so that no schema is needed."""

    def service(self, call):
        return {
            "/berth.Test/Greet": grpc.unary_unary_rpc_method_handler(self.greet),
            "/berth.Test/Reverse": grpc.stream_stream_rpc_method_handler(self.reverse),
            "/berth.Test/Refuse": grpc.unary_unary_rpc_method_handler(self.refuse),
        }.get(call.method)

    def check(self, context):
        carried = dict(context.invocation_metadata()).get("authorization")
        if carried != expected("grpc"):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

    def greet(self, message, context):
        self.check(context)
        context.set_trailing_metadata((("x-last", "after the message"),))
        return b"hello " + message

    def reverse(self, messages, context):
        self.check(context)
        count = 0
        for message in messages:
            count += 1
            yield message[::-1]
        context.set_trailing_metadata((("x-count", str(count)),))

    def refuse(self, message, context):
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not like this")


def calls(port):
    with open(os.path.join(directory, "server.key"), "rb") as key:
        with open(os.path.join(directory, "server.crt"), "rb") as certificate:
            credentials = grpc.ssl_server_credentials([(key.read(), certificate.read())])
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=[Calls()])
    server.add_secure_port(f"0.0.0.0:{port}", credentials)
    server.start()
    return server


remote_calls = calls(50051)
servers = [
    https(443, "server.pem"),
    https(8443, "server.pem", "ca.pem"),
    https(9443, "other.pem"),
    http.server.ThreadingHTTPServer(("0.0.0.0", 80), Handler),
]
for serve in [server.serve_forever for server in servers] + [speaks_first(5432)]:
    threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
