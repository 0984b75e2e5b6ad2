"""Stands in for a frontend: healthy after the second probe, notes how it ended."""

import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

bundle, rings = Path(sys.argv[1]), Path(sys.argv[3])
host, port, port_file = sys.argv[5], int(sys.argv[7]), Path(sys.argv[9])
assert rings.read_bytes() == b"rings"
(bundle / "frontend.pid").write_text(str(os.getpid()))
probes = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global probes
        probes += 1
        self.send_response(200 if probes > 1 else 503)
        self.end_headers()

    def log_message(self, *_):
        pass


def end(number, frame):
    (bundle / "order").open("a").write("frontend ")
    threading.Thread(target=server.shutdown).start()


signal.signal(signal.SIGTERM, end)
server = HTTPServer((host, port), Handler)
port_file.write_text(f"{server.server_port}\n")
server.serve_forever()
