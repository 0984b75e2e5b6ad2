"""Stands in for a frontend: healthy after the second probe, notes how it ended."""

import argparse
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("bundle", type=Path)
for name, kind in (("rings", Path), ("ring", int), ("host", str), ("port", int), ("port-file", Path)):
    parser.add_argument(f"--{name}", type=kind, required=True)
parser.add_argument("--share-port", action="store_true")
arguments = parser.parse_args()
bundle = arguments.bundle
assert arguments.rings.read_bytes() == b"rings"
(bundle / f"frontend{arguments.ring or ''}.pid").write_text(str(os.getpid()))
if (bundle / "frontend.refuses").exists():
    sys.exit(2)
probes = 0


class Server(HTTPServer):
    allow_reuse_port = arguments.share_port


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
server = Server((arguments.host, arguments.port), Handler)
arguments.port_file.write_text(f"{server.server_port}\n")
server.serve_forever()
