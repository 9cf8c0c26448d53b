"""A client that ignores its windows: 1000 channels, 2 MiB into each.

It ends when all of it is sent, or the server ends the connection.
"""
import asyncio
import sys

import asyncssh

CHANNELS, EACH, ROUND = 1000, 2 << 20, 64 << 10


class Silent(asyncssh.SSHClientSession):
    pass


async def main(host, port, user, key):
    connection = await asyncssh.connect(
        host, int(port), username=user, client_keys=[key], known_hosts=None, config=[], compression_algs=None)
    channels = []
    while len(channels) < CHANNELS:
        opened = await asyncio.gather(
            *(connection.create_session(Silent, "sleep 9999", encoding=None) for _ in range(50)))
        channels += [channel for channel, _ in opened]
    for channel in channels:
        channel._send_window = 1 << 60
    transport, piece = connection._transport, b"x" * ROUND
    for _ in range(EACH // ROUND):
        for channel in channels:
            channel.write(piece)
            while transport.get_write_buffer_size() > 1 << 20:
                await asyncio.sleep(0.01)
    while transport.get_write_buffer_size():
        await asyncio.sleep(0.01)


asyncio.run(main(*sys.argv[1:]))
