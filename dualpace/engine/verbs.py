"""A reliable connection over verbs, for one-sided operations alone: nobody posts a receive.

Operations are posted in chains, one doorbell each, and take effect in order. Only the last of a chain is ever
signalled, and only where somebody waits for it: its completion retires all before it.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from dualpace.engine.link import INLINE, LinkError, Peer, Port, Region, Span
from dualpace.engine.traffic import Traffic

try:
    from pyverbs.pyverbs_error import PyverbsError
except ImportError as error:
    raise ImportError("RDMA needs pyverbs: install python3-pyverbs or `pip install 'dualpace[rdma]'`") from error
try:
    from pyverbs import enums
except ImportError:  # so they are called from release 56 on
    from pyverbs import libibverbs_enums as enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, DmaBufMR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

_DEPTH = 1024
_READS = 16  # at once; most adapters take as many
# 4.096 us * 2^14 is 67 ms; with the retries an adapter gives a silent peer up after half a second to four.
_TIMEOUT, _RETRIES = 14, 7
logger = logging.getLogger(__name__)

# Whatever the adapter says: longer than that no operation is waited for.
_PATIENCE_S = 10.0
_SPINS = 50
_SHORTEST_S, _LONGEST_S = 20e-6, 1e-3


class Endpoint:
    """One end: a queue pair with a protection domain of its own, so that its keys are good for its peer alone.

    Any thread may post; one waits.
    """

    def __init__(self, port: Port, traffic: Traffic | None = None) -> None:
        """Open the device. Raises LinkError."""
        self._traffic = traffic or Traffic()
        self._port = port
        self._lock = threading.Lock()
        self._posted = self._retired = 0
        self._close = ExitStack()
        try:
            self._open()
        except PyverbsError as error:
            self._close.close()
            raise LinkError("device", f"{port.device}: {error}; name one that `ibv_devices` lists") from error

    def _open(self) -> None:
        port = self._port
        context = self._close.enter_context(Context(name=port.device))
        about, limits = context.query_port(port.port), context.query_device()
        if about.state != enums.IBV_PORT_ACTIVE:
            raise LinkError("device", f"{port.device}: port {port.port} has no link; check `rdma link`")
        self._gid = str(context.query_gid(port.port, port.gid_index))
        if not self._gid.strip("0:"):
            raise LinkError(
                "device",
                f"{port.device}: GID {port.gid_index} of port {port.port} is empty; choose another gid_index, as in "
                f"/sys/class/infiniband/{port.device}/ports/{port.port}/gids",
            )
        self._mtu, self._reads = int(about.active_mtu), min(_READS, limits.max_qp_rd_atom)
        self._depth = min(_DEPTH, limits.max_qp_wr)
        self._domain = self._close.enter_context(PD(context))
        self._completions = self._close.enter_context(CQ(context, self._depth))
        room = QPCap(max_send_wr=self._depth, max_recv_wr=1, max_inline_data=INLINE)
        kind = QPInitAttr(
            qp_type=enums.IBV_QPT_RC, scq=self._completions, rcq=self._completions, cap=room, sq_sig_all=0
        )
        self._pair = self._close.enter_context(QP(self._domain, kind))
        self._psn = random.SystemRandom().getrandbits(24)

    @property
    def peer(self) -> Peer:
        """What the other end has to know."""
        return Peer(gid=self._gid, qpn=self._pair.qp_num, psn=self._psn, mtu=self._mtu, reads=self._reads)

    def connect(self, peer: Peer) -> None:
        """Make the connection; `peer` does likewise. Raises LinkError."""
        route = GlobalRoute(dgid=GID(peer.gid), sgid_index=self._port.gid_index, hop_limit=64)
        attributes = QPAttr()
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=self._port.port)
        attributes.port_num = self._port.port
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = peer.qpn, peer.psn, self._psn
        attributes.path_mtu = min(self._mtu, peer.mtu)
        attributes.max_rd_atomic, attributes.max_dest_rd_atomic = min(self._reads, peer.reads), self._reads
        attributes.timeout, attributes.retry_cnt = _TIMEOUT, _RETRIES
        attributes.qp_access_flags = enums.IBV_ACCESS_REMOTE_READ | enums.IBV_ACCESS_REMOTE_WRITE
        try:
            self._pair.to_rts(attributes)
        except (PyverbsError, ValueError, OverflowError) as error:
            raise LinkError("device", f"{self._port.device}: cannot reach {peer.gid}: {error}") from error

    def lend(self, address: int, size: int, *, writable: bool = False, fd: int | None = None) -> Region:
        """Let the peer read memory, or write to it too, in the order of its operations. Raises LinkError.

        With `fd`, a dma-buf, `address` is an offset in it, there as here.
        """
        access = enums.IBV_ACCESS_REMOTE_READ
        if writable:  # without relaxed ordering: flags go last
            access |= enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_LOCAL_WRITE
        region = self._register(address, size, access, fd)
        return Region(address=address, size=size, rkey=region.rkey)

    def own(self, address: int, size: int) -> int:
        """Memory that operations write from here and read to; its lkey. Raises LinkError."""
        return int(self._register(address, size, enums.IBV_ACCESS_LOCAL_WRITE, None).lkey)

    def _register(self, address: int, size: int, access: int, fd: int | None) -> Any:
        try:
            if fd is not None:
                return self._close.enter_context(DmaBufMR(self._domain, size, access, dmabuf=fd, offset=address))
            return self._close.enter_context(MR(self._domain, size, access, address=address))
        except PyverbsError as error:
            why = "it takes no dma-buf of this kind" if fd is not None else "allow locked memory (`ulimit -l`)"
            raise LinkError("device", f"{self._port.device}: {error}; {why}") from error

    @property
    def room(self) -> int:
        """Operations that can be posted now."""
        return int(self._depth - (self._posted - self._retired))

    def post(self, spans: Sequence[Span], *, signalled: bool = False) -> int:
        """Post a chain; `done` says when it is, if it is `signalled`, by the number returned. Raises LinkError."""
        with self._lock:
            self._posted += len(spans)
            ticket = self._posted
            requests: list[SendWR] = []
            for span in reversed(spans):
                last = not requests
                flags = enums.IBV_SEND_SIGNALED if signalled and last else 0
                if not span.read and span.size <= INLINE:
                    flags |= enums.IBV_SEND_INLINE
                element = SGE(span.address, span.size, span.lkey)
                request = SendWR(
                    wr_id=ticket,
                    opcode=enums.IBV_WR_RDMA_READ if span.read else enums.IBV_WR_RDMA_WRITE,
                    num_sge=1,
                    sg=[element],
                    send_flags=flags,
                    next_wr=None if last else requests[-1],
                )
                element.close()  # it was copied, and pyverbs frees none by itself
                request.set_wr_rdma(span.rkey, span.remote)
                requests.append(request)
            try:
                self._pair.post_send(requests[-1])
            except PyverbsError as error:
                raise LinkError("queue", f"{self._port.device}: {error}") from error
            finally:
                for request in requests:
                    request.close()
            self._count(spans)
        return ticket

    def _count(self, spans: Sequence[Span]) -> None:
        self._traffic.doorbells += 1
        for span in spans:
            if span.read:
                self._traffic.reads += 1
                self._traffic.read_bytes += span.size
            else:
                self._traffic.writes += 1
                self._traffic.written_bytes += span.size

    def wait(self, ticket: int, given_up: Callable[[], bool]) -> None:
        """Wait for the signalled chain of that number. Raises LinkError if it fails, or once it is `given_up`."""
        end, pause, spins = time.monotonic() + _PATIENCE_S, _SHORTEST_S, 0
        while self._retired < ticket:
            count, completions = self._poll()
            for completion in completions:
                if completion.status != enums.IBV_WC_SUCCESS:
                    raise self._failure(completion.status)
                self._retired = completion.wr_id
            if count or (spins := spins + 1) < _SPINS:
                continue
            if given_up():
                raise LinkError("closed", "the peer has closed the connection")
            if time.monotonic() > end:
                raise LinkError("timeout", f"{self._port.device}: no completion for {_PATIENCE_S:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)

    def _poll(self) -> tuple[int, list[Any]]:
        try:
            count, completions = self._completions.poll(16)
        except PyverbsError as error:
            raise LinkError("queue", f"{self._port.device}: {error}") from error
        return int(count), completions

    def _failure(self, status: int) -> LinkError:
        kind, why = {
            enums.IBV_WC_RETRY_EXC_ERR: ("unreachable", "the peer does not answer"),
            enums.IBV_WC_RNR_RETRY_EXC_ERR: ("unreachable", "the peer does not answer"),
            enums.IBV_WC_REM_ACCESS_ERR: ("access", "the peer does not allow the access"),
            enums.IBV_WC_REM_INV_REQ_ERR: ("access", "the peer does not take the operation"),
            enums.IBV_WC_REM_OP_ERR: ("queue", "the peer could not do the operation"),
        }.get(status, ("queue", f"the queue pair has failed, with completion status {status}"))
        return LinkError(kind, f"{self._port.device}: {why}")

    def is_sound(self) -> bool:
        """Whether the queue pair has not failed: that of a peer that went beyond its regions has."""
        try:
            attributes, _ = self._pair.query(enums.IBV_QP_STATE)
        except PyverbsError:  # of a device that is gone
            return False
        return bool(attributes.qp_state == enums.IBV_QPS_RTS)

    def close(self) -> None:
        """End the connection: nothing is written here or there from now on."""
        with self._lock:
            try:
                self._close.close()
            except PyverbsError as error:  # of a device that is gone
                logger.warning("%s: %s", self._port.device, error)
