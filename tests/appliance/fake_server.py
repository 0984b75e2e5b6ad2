"""The frontend's process with a scripted ring: its arguments are STEP_S and then the frontend's own."""

import sys

from dualpace.appliance import server

from .fake_ring import FakeRing

if __name__ == "__main__":
    step_s = float(sys.argv.pop(1))
    server.FrontendRing = lambda library, memory, ring: FakeRing(step_s=step_s)
    server.Spouts = lambda library, tally: None
    sys.exit(server.main())
