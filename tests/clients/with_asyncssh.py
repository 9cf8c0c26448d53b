"""What a program does with asyncssh: HOST PORT LOGIN KEY DIRECTORY."""

import asyncio
import os
import sys
import warnings

warnings.filterwarnings("ignore")
import asyncssh  # noqa: E402

host, port, login, key, directory = sys.argv[1:6]


async def answer(reader, writer):
    writer.write((await reader.read()).upper())
    writer.close()


async def ask(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello")
    writer.write_eof()
    said = await reader.read()
    writer.close()
    return said


async def main():
    connection = await asyncssh.connect(
        host, int(port), username=login, client_keys=[key], known_hosts=None, agent_path=None, config=None
    )
    async with connection:
        # Streams and status.
        done = await connection.run("cat; echo err >&2; exit 7", input="x" * 100000)
        assert (done.stdout, done.stderr, done.exit_status) == ("x" * 100000, "err\n", 7)

        # A terminal and its size.
        process = await connection.create_process("stty size; read line; stty size", term_type="xterm", term_size=(100, 40))
        assert (await process.stdout.readline()).strip() == "40 100"
        process.change_terminal_size(90, 30)
        process.stdin.write("\n")
        assert "30 90" in await process.stdout.read()

        # Files.
        data = os.urandom(3 << 20)
        local = os.path.join(directory, "asyncssh.bin")
        with open(local, "wb") as file:
            file.write(data)
        async with connection.start_sftp_client() as sftp:
            await sftp.mkdir("asyncssh")
            await sftp.put(local, "asyncssh/data")
            await sftp.symlink("data", "asyncssh/link")
            assert await sftp.readlink("asyncssh/link") == "data"
            await sftp.get("asyncssh/link", local + ".back", follow_symlinks=True)
            assert sorted(await sftp.listdir("asyncssh")) == [".", "..", "data", "link"]
            assert await sftp.isfile("asyncssh/data")
            await sftp.rmtree("asyncssh")
            assert not await sftp.exists("asyncssh")
        with open(local + ".back", "rb") as file:
            assert file.read() == data

        # Forwards: out of the machine, and through it back to us.
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ours = server.sockets[0].getsockname()[1]
        remote = await connection.forward_remote_port("127.0.0.1", 0, "127.0.0.1", ours)
        local = await connection.forward_local_port("127.0.0.1", 0, "127.0.0.1", remote.get_port())
        assert await ask(local.get_port()) == b"HELLO"
        remote.close()
        await remote.wait_closed()

        # Many channels on one connection.
        done = await asyncio.gather(*(connection.run(f"exit {number}") for number in range(10)))
        assert [one.exit_status for one in done] == list(range(10))
    print("ok")


asyncio.run(asyncio.wait_for(main(), 110))
