"""`dualpace serve` as a process."""

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str


@contextmanager
def serving(bundle: Path) -> Iterator[Served]:
    """Serve `bundle` on a free port until the block ends."""
    command = [sys.executable, "-m", "dualpace.cli", "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        lines = process.stderr
        # What is logged later is read too: a pipe that fills up would stop whoever writes into it.
        rest = threading.Thread(target=deque, args=(lines, 0))
        try:
            seen = []
            for line in lines:
                seen.append(line)
                if match := re.search(r"ready at (http://\S+),", line):
                    rest.start()
                    yield Served(process, match[1])
                    break
            else:
                raise AssertionError("serve ended early:\n" + "".join(seen))
        finally:
            process.terminate()
            if rest.ident:
                rest.join()
