"""What an appliance's `/metrics` says, and what follows from two looks at it."""

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from dualpace.address import unreached

TIMEOUT_S = 5.0
KEPT_S = 60.0
_SAMPLE = re.compile(r"(?P<name>dualpace_\w+)\{(?P<labels>.*)\} (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_BUCKET = "_bucket"


class ScrapeError(Exception):
    """Metrics that cannot be had; the message says why and, where there is one, the remedy."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look, at `time` in seconds. `values` are by "name" or "name|label=value".

    `buckets` of a histogram are upper bounds and how many observations are not above each; `info` has the labels of
    `dualpace_info`, the model's name among them.
    """

    time: float
    values: Mapping[str, float]
    buckets: Mapping[str, list[tuple[float, float]]]
    info: Mapping[str, str]


def scrape(url: str, key: str) -> Look:
    """Look at the appliance at `url`; `key` is an API key, or "". Raises ScrapeError."""
    return parse(_get(f"{url}/metrics", key), time.monotonic(), url)


def unavailable(url: str) -> str:
    """Why the appliance at `url` takes no request, as a clause. Raises ScrapeError."""
    try:
        reason = json.loads(_get(f"{url}/health", "", refused=503))["reason"]
        return str(reason or "it has begun to serve")
    except (ValueError, LookupError, TypeError) as error:
        raise ScrapeError(f"what answers at {url} is no appliance of DualPace") from error


def parse(text: str, now: float, url: str) -> Look:
    """Read Prometheus text, which `url` has sent. Raises ScrapeError if it is not an appliance's."""
    values: dict[str, float] = {}
    buckets: dict[str, list[tuple[float, float]]] = {}
    info: dict[str, str] = {}
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        name, value = found["name"], float(found["value"])
        labels = {label: _plain(of) for label, of in _LABEL.findall(found["labels"])}
        if name == "dualpace_info":
            info = dict(labels)
        labels.pop("model_name", None)
        if name.endswith(_BUCKET):
            buckets.setdefault(name.removesuffix(_BUCKET), []).append((float(labels["le"]), value))
        else:
            values["|".join((name, *(f"{label}={of}" for label, of in labels.items())))] = value
    if not info:
        raise ScrapeError(f"what answers at {url} is no appliance of DualPace")
    return Look(now, values, buckets, info)


def _plain(label: str) -> str:
    return re.sub(r"\\(.)", lambda escaped: {"n": "\n"}.get(escaped[1], escaped[1]), label)


def _get(url: str, key: str, refused: int = 0) -> str:
    """The body at `url`, also if its status is `refused`."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == refused:
            return str(error.read().decode())
        remedy = "; name a file of keys with --api-key-file" if error.code == http.HTTPStatus.UNAUTHORIZED else ""
        raise ScrapeError(f"{url} answers {error.code} {error.reason}{remedy}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ScrapeError(f"{url} cannot be read: {unreached(getattr(error, 'reason', error))}") from error


class Looks:
    """The looks of the last KEPT_S. A counter that fell has begun again: growth counts from there."""

    def __init__(self) -> None:
        self._all: deque[Look] = deque()

    def add(self, look: Look) -> None:
        """Add the newest look."""
        self._all.append(look)
        while self._all[0].time < look.time - KEPT_S:
            self._all.popleft()

    @property
    def last(self) -> Look:
        """The newest look."""
        return self._all[-1]

    def value(self, key: str) -> float:
        """What was said last."""
        return self.last.values[key]

    def rate(self, key: str, seconds: float) -> float | None:
        """Growth a second in the last `seconds`; None before there are two looks."""
        begin, end = self._span(key, seconds)
        passed = end.time - begin.time
        return (end.values[key] - begin.values[key]) / passed if passed > 0 else None

    def mean(self, family: str, seconds: float) -> float | None:
        """Of a histogram's observations in the last `seconds`; None if there were none."""
        begin, end = self._span(f"{family}_count", seconds)
        count, total = (end.values[family + part] - begin.values[family + part] for part in ("_count", "_sum"))
        return total / count if count > 0 else None

    def quantile(self, family: str, share: float, seconds: float) -> float | None:
        """Below it lies `share` of them, as far as buckets tell; None if there were none."""
        begin, end = self._span(f"{family}_count", seconds)
        bounds = [0.0, *(bound for bound, _ in end.buckets[family])]
        pairs = zip(begin.buckets[family], end.buckets[family], strict=True)
        counts = [0.0, *(after - before for (_, before), (_, after) in pairs)]
        rank = share * counts[-1]
        if rank <= 0:
            return None
        at = bisect_left(counts, rank)
        if bounds[at] == float("inf"):
            return bounds[at - 1]
        return bounds[at - 1] + (bounds[at] - bounds[at - 1]) * (rank - counts[at - 1]) / (counts[at] - counts[at - 1])

    def _span(self, key: str, seconds: float) -> tuple[Look, Look]:
        recent = [look for look in self._all if look.time >= self.last.time - seconds - 0.1]
        begun = [after for before, after in pairwise(recent) if after.values[key] < before.values[key]]
        return (begun or recent)[-1 if begun else 0], self.last
