"""The longest time, in milliseconds, in which this process did not run.

By the clock on the wall, which is set right after a capture: the one that counts the
time since the boot stands still with the machine."""

import time

longest = 0.0
last = time.time()
while True:
    time.sleep(0.001)
    now = time.time()
    if now - last > longest:
        longest = now - last
        open("longest", "w").write(f"{longest * 1000:.1f}")
    last = now
