"""Stands in for an engine: makes the ring file, notes how it ended, and fails when its bundle says so."""

import os
import signal
import sys
import time
from pathlib import Path

bundle, rings = Path(sys.argv[1]), Path(sys.argv[3])


def end(number, frame):
    (bundle / "order").open("a").write("engine ")
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
(bundle / "engine.pid").write_text(str(os.getpid()))
if (bundle / "engine.fails").exists():
    sys.exit("no such weights")
rings.write_bytes(b"rings")
while not (bundle / "engine.crash").exists():
    time.sleep(0.02)
(bundle / "engine.crash").unlink()
sys.exit(7)
