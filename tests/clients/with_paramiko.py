"""What a program does with paramiko: HOST PORT LOGIN KEY DIRECTORY."""

import os
import sys

import paramiko

host, port, login, key, directory = sys.argv[1:6]
client = paramiko.SSHClient()
client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
client.connect(
    host, int(port), login, key_filename=key, allow_agent=False, look_for_keys=False,
    timeout=60, banner_timeout=60, auth_timeout=60,
)

# Streams and status.
stdin, stdout, stderr = client.exec_command("cat; echo err >&2; exit 7", timeout=60)
stdin.write(b"hello\n" * 10000)
stdin.channel.shutdown_write()
assert stdout.read() == b"hello\n" * 10000
assert stderr.read() == b"err\n"
assert stdout.channel.recv_exit_status() == 7

# A terminal and its size.
channel = client.get_transport().open_session(timeout=60)
channel.get_pty("xterm", 100, 40)
channel.exec_command("stty size; read line; stty size")
channel.settimeout(60)
seen = b""
while b"40 100" not in seen:
    seen += channel.recv(1000)
channel.resize_pty(90, 30)
channel.sendall(b"\n")
while b"30 90" not in seen:
    seen += channel.recv(1000)

# Files.
sftp = client.open_sftp()
sftp.mkdir("paramiko")
data = os.urandom(3 << 20)
local = os.path.join(directory, "paramiko.bin")
with open(local, "wb") as file:
    file.write(data)
sftp.put(local, "paramiko/data")
assert sftp.stat("paramiko/data").st_size == len(data)
sftp.posix_rename("paramiko/data", "paramiko/moved")
assert sftp.listdir("paramiko") == ["moved"]
sftp.get("paramiko/moved", local + ".back")
with open(local + ".back", "rb") as file:
    assert file.read() == data
with sftp.open("paramiko/moved", "r+") as file:
    file.seek(1000)
    file.write(b"changed")
    file.seek(1000)
    assert file.read(7) == b"changed"
    file.truncate(2000)
assert sftp.stat("paramiko/moved").st_size == 2000
try:
    sftp.stat("paramiko/none")
    sys.exit("a file that does not exist was found")
except FileNotFoundError:
    pass

# Many channels on one connection.
channels = []
for number in range(10):
    channel = client.get_transport().open_session(timeout=60)
    channel.exec_command(f"exit {number}")
    channels.append(channel)
assert [channel.recv_exit_status() for channel in channels] == list(range(10))
client.close()
print("ok")
