"""A signal sent over the channel, by asyncssh: HOST PORT LOGIN KEY DIRECTORY."""

import asyncio
import sys
import warnings

warnings.filterwarnings("ignore")
import asyncssh  # noqa: E402

host, port, login, key = sys.argv[1:5]
# The signal is for the whole group: what bash says of the sleep that it ended is no answer.
SCRIPT = "exec 2> /dev/null; trap 'echo got it; exit 9' USR1; echo ready; while :; do sleep 0.1; done"


async def main():
    connection = await asyncssh.connect(
        host, int(port), username=login, client_keys=[key], known_hosts=None, agent_path=None, config=None
    )
    async with connection:
        for options in ({}, {"term_type": "xterm"}):
            process = await connection.create_process(SCRIPT, **options)
            assert (await process.stdout.readline()).strip() == "ready"
            process.send_signal("USR1")
            assert (await process.stdout.readline()).strip() == "got it"
            await process.wait()
            assert process.exit_status == 9
        process = await connection.create_process("echo ready; exec sleep 1000")
        assert await process.stdout.readline() == "ready\n"
        process.send_signal("TERM")
        await process.wait()
        assert process.exit_status in (143, -1), process.exit_status
    print("ok")


asyncio.run(asyncio.wait_for(main(), 110))
