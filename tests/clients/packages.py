"""Makes tiny packages of two kinds for the world outside to serve.

usage: packages.py DIRECTORY

DIRECTORY/files gets a simple index with a wheel and an apt repository with a
package; each is called "tiny".
"""

import hashlib
import io
import os
import subprocess
import sys
import zipfile

directory = os.path.join(sys.argv[1], "files")


def write(path, content):
    path = os.path.join(directory, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def wheel():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("tiny.py", "print('tiny from pip')\n")
        info = "tiny-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    name = "tiny-1.0-py3-none-any.whl"
    write(f"simple/tiny/{name}", packed.getvalue())
    write("simple/tiny/index.html", f"<!DOCTYPE html><html><body><a href='{name}'>{name}</a></body></html>")


def apt():
    control = "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: test <t@example>\nDescription: tiny\n"
    write("apt/tree/DEBIAN/control", control)
    write("apt/tree/usr/share/tiny", "tiny from apt\n")
    tree, package = os.path.join(directory, "apt/tree"), os.path.join(directory, "apt/tiny.deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, package], check=True, stdout=2)
    with open(package, "rb") as file:
        content = file.read()
    entry = f"Filename: ./tiny.deb\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    write("apt/Packages", control + entry)
    listed = f" {hashlib.sha256((control + entry).encode()).hexdigest()} {len(control + entry)} Packages\n"
    write("apt/Release", f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{listed}")


wheel()
apt()
