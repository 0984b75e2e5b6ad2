"""The process of a frontend on another host or on a SmartNIC's cores, which needs no GPU.

    python -m dualpace.appliance.outpost --connect HOST:PORT --device DEVICE --key-file FILE [--ca FILE]

What it serves the gate tells it, and it brings its own copy of the rings.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from dualpace.address import parted
from dualpace.appliance.log import log_to
from dualpace.appliance.server import arguments_of, complaining, run
from dualpace.engine.link import Port
from dualpace.engine.ring import FrontendRing, ReplacedError, RingError
from dualpace.plan.nic_key import read_key
from dualpace.run_folder import RunFolder

_RETRY_S = 2.0
Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


def main() -> int:
    """Serve what the engine at `--connect` does until told to stop; 0 drained, 1 has to start again, 2 could not."""
    parser = argparse.ArgumentParser(prog="dualpace.appliance.outpost", description="A frontend of another host.")
    parser.add_argument("--connect", required=True, metavar="HOST:PORT", help="the gate of the engine's host")
    parser.add_argument("--device", required=True, help="RDMA device of this host")
    parser.add_argument("--device-port", type=int, default=1, help="port of the device")
    parser.add_argument("--gid-index", type=int, default=3, help="index of the port's GID")
    parser.add_argument("--key-file", required=True, help="file with the key that the gate asks for")
    parser.add_argument("--ca", help="PEM file to check the gate's certificate with; the system's by default")
    parser.add_argument("--ring", type=int, help="which ring to ask for; any by default")
    arguments = arguments_of(parser)
    log_to(sys.stderr, {"frontend": arguments.ring or 0})
    # While there is nothing to drain; afterwards the server has handlers of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with complaining() as status:
        try:
            status.code = _serve(arguments)
        except KeyboardInterrupt:
            pass
        except ImportError as error:
            raise OSError(str(error)) from error
    return status.code


def _serve(arguments: argparse.Namespace) -> int:
    try:
        gate = parted(arguments.connect)
    except ValueError as error:
        raise RingError(f"--connect {error}, as the engine's log has it") from error
    read_key(arguments.key_file)
    # Only now: verbs may not be there.
    from dualpace.engine.uplink import LaterError, Uplink

    def until_there(ask: Callable[[], Answer]) -> Answer:
        said = ""
        while True:
            try:
                return ask()
            except LaterError as error:
                if str(error) != said:
                    said = str(error)
                    sys.stderr.write(f"dualpace: {said}; trying on\n")
                    sys.stderr.flush()
                time.sleep(_RETRY_S)

    device = Port(arguments.device, arguments.device_port, arguments.gid_index)
    folder = RunFolder()
    try:
        uplink = Uplink(*gate, arguments.key_file, arguments.ca, device, folder.path, arguments.ring)
        until_there(uplink.fetch)
        claims = _Claims(uplink.claim, until_there(uplink.claim))
        run(arguments, uplink.bundle, claims, folder.path / "rings", 0, traffic=uplink.traffic)
        return 1 if claims.replaced else 0
    finally:
        folder.close()


class _Claims:
    """Makes rings of which the `first` is there; why another cannot be had is said once, not at each attempt."""

    def __init__(self, claim: Callable[[], FrontendRing], first: FrontendRing) -> None:
        self._claim = claim
        self._first: FrontendRing | None = first
        self._said = ""
        self.replaced = False

    @staticmethod
    def _none() -> FrontendRing:
        raise RingError("the frontend ends")

    def __call__(self) -> FrontendRing:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        try:
            found = self._claim()
        except ReplacedError as error:
            # Drained, and started again by whoever started it.
            logger.error("%s", error)
            self.replaced = True
            os.kill(os.getpid(), signal.SIGTERM)
            self._claim = self._none
            raise
        except RingError as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("no ring: %s", error)
            raise
        self._said = ""
        return found


if __name__ == "__main__":
    sys.exit(main())
