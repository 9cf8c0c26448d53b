"""Makes tiny packages of a few kinds for the world outside to serve.

usage: packages.py DIRECTORY URL

DIRECTORY/files gets a simple index with a wheel, an npm registry with a tarball
and an apt repository with a package; each is called "tiny". URL is where the
directory will be found: npm wants to know.
"""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile

directory, url = os.path.join(sys.argv[1], "files"), sys.argv[2]


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


def npm():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (
            ("package.json", '{"name": "tiny", "version": "1.0.0", "main": "index.js"}'),
            ("index.js", "console.log('tiny from npm')\n"),
        ):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    packed = packed.getvalue()
    write("npm/-/tiny-1.0.0.tgz", packed)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    dist = {"tarball": f"{url}/files/npm/-/tiny-1.0.0.tgz", "integrity": integrity}
    version = {"name": "tiny", "version": "1.0.0", "dist": dist}
    about = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    write("npm/tiny/index.html", json.dumps(about))


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
npm()
apt()
