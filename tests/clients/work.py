"""Writes to memory and to disk at once, and notices when either is torn.

Every other page of a block has the number of the round, and so has every line of the
round's file. `round` is the last one that is on the disk for good. Every other, so that
each is a piece of its own where the memory was captured before."""

import os
import time

PAGES = 1024
block = bytearray(PAGES * 4096)
number = 0
os.makedirs("work", exist_ok=True)
while True:
    for page in range(0, PAGES, 2):
        at = page * 4096
        if block[at : at + 8] != number.to_bytes(8, "little"):
            open("torn", "w").write(f"page {page} in round {number}")
        block[at : at + 8] = (number + 1).to_bytes(8, "little")
    number += 1
    with open("work/new", "w") as file:
        file.write(f"{number}\n" * 500)
        file.flush()
        os.fsync(file.fileno())
    os.rename("work/new", f"work/{number % 10}")
    with open("round.new", "w") as file:
        file.write(str(number))
    os.rename("round.new", "round")
    # Several copies share two cores with everything else.
    time.sleep(0.1)
