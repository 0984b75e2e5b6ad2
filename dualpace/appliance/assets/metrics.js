"use strict";
// What /metrics says, and what follows from two looks at it.

// Prometheus text as a map from "name" or "name|label=value" to a number; of histograms the buckets as [bound, count] too.
function parseMetrics(text) {
  const values = new Map(), buckets = new Map();
  for (const line of text.split("\n")) {
    const found = /^(dualpace_\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const [, name, pairs = "", number] = found;
    const labels = [...pairs.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].filter(([, label]) => label !== "model_name");
    if (name.endsWith("_bucket")) {
      const family = name.slice(0, -"_bucket".length);
      const bound = labels.find(([, label]) => label === "le")[2];
      if (!buckets.has(family)) buckets.set(family, []);
      buckets.get(family).push([bound === "+Inf" ? Infinity : Number(bound), Number(number)]);
    } else {
      values.set([name, ...labels.map(([, label, value]) => `${label}=${value}`)].join("|"), Number(number));
    }
  }
  return { values, buckets };
}

// Looks at /metrics, the last last, for as long as charts and quantiles reach back.
class Looks {
  constructor(seconds) {
    this.seconds = seconds;
    this.all = [];
  }

  add(time, metrics) {
    this.all.push({ time, ...metrics });
    while (this.all[0].time < time - this.seconds * 1000) this.all.shift();
  }

  get last() {
    return this.all.at(-1);
  }

  value(key) {
    return this.last.values.get(key);
  }

  // The last look, and the oldest of those of the last so many seconds. A counter that fell has begun again.
  _span(seconds, key) {
    const recent = this.all.filter((look) => look.time >= this.last.time - seconds * 1000 - 100);
    const begun = recent.findLastIndex((look, i) => i > 0 && look.values.get(key) < recent[i - 1].values.get(key));
    return [recent[Math.max(begun, 0)], this.last];
  }

  growth(key, seconds) {
    const [from, to] = this._span(seconds, key);
    return to.values.get(key) - from.values.get(key);
  }

  // Per second; null before there are two looks.
  rate(key, seconds) {
    const [from, to] = this._span(seconds, key);
    return to.time > from.time ? ((to.values.get(key) - from.values.get(key)) * 1000) / (to.time - from.time) : null;
  }

  // The mean of a histogram's observations of the last seconds; null if there were none.
  mean(family, seconds) {
    const count = this.growth(`${family}_count`, seconds);
    return count > 0 ? this.growth(`${family}_sum`, seconds) / count : null;
  }

  // A quantile of them, between the bounds of its bucket; null if there were none.
  quantile(family, share, seconds) {
    const [from, to] = this._span(seconds, `${family}_count`);
    const before = from.buckets.get(family);
    const counts = to.buckets.get(family).map(([bound, count], i) => [bound, count - before[i][1]]);
    const rank = share * counts.at(-1)[1];
    if (rank <= 0) return null;
    const at = counts.findIndex(([, count]) => count >= rank);
    const [low, below] = at > 0 ? counts[at - 1] : [0, 0];
    const [high, upTo] = counts[at];
    return high === Infinity ? low : low + ((high - low) * (rank - below)) / (upTo - below);
  }
}

const whole = (number) => Math.round(number).toLocaleString("en-US");

// Three figures, or all of a whole number.
function figures(number) {
  const rounded = Number(number.toPrecision(3));
  return rounded >= 100 || Number.isInteger(number) ? whole(number) : rounded.toFixed(rounded >= 10 ? 1 : 2);
}

// Seconds, as [number, unit].
function duration(seconds) {
  const [scale, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return [figures(seconds * scale), unit];
}
