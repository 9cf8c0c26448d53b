"""The longest time, in milliseconds, in which this process did not run."""

import time

longest = 0.0
last = time.monotonic()
while True:
    time.sleep(0.001)
    now = time.monotonic()
    if now - last > longest:
        longest = now - last
        open("longest", "w").write(f"{longest * 1000:.1f}")
    last = now
