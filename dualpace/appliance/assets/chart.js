// Lines over the last minutes, drawn as SVG; pointer and arrow keys read a moment off them.
class Chart {
  // `lines` have a look, a name, and whether the area below is filled; `text` writes a value with its unit.
  constructor(card, lines, text, seconds) {
    this.card = card;
    this.lines = lines;
    this.text = text;
    this.seconds = seconds;
    this.points = [];
    this.plot = card.querySelector(".plot");
    this.plot.innerHTML = `<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true"></svg>
      <span class="top"></span><div class="cursor"></div><div class="tip"></div>`;
    this.plot.addEventListener("pointermove", (event) => this._read(event.offsetX / this.plot.clientWidth));
    this.plot.addEventListener("pointerleave", () => this._read(null));
    this.plot.addEventListener("blur", () => this._read(null));
    this.plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this._read(null);
      if (!step) return;
      event.preventDefault();
      this._read(Math.min(1, Math.max(0, (this.reading ?? 1) + step / 60)));
    });
  }

  // Add a value for each line, null where there is none; `bound` is a height that is drawn across.
  add(time, values, bound) {
    this.points.push({ time, values });
    while (this.points[0].time < time - this.seconds * 1000) this.points.shift();
    this.bound = bound;
    this._draw();
  }

  _draw() {
    const known = this.points.flatMap((point) => point.values).filter((value) => value !== null);
    const most = Math.max(...known, 0);
    // A bound far above the lines would press them flat.
    const top = nice(this.bound && this.bound < 4 * most ? Math.max(most, this.bound) : most || this.bound || 1);
    const end = this.points.at(-1).time;
    const x = (time) => 100 - (end - time) / this.seconds / 10;
    const y = (value) => 100 - (100 * value) / top;
    const paths = [`<path class="grid" d="M0 0H100M0 50H100M0 100H100"/>`];
    if (this.bound && this.bound <= top) paths.push(`<path class="bound" d="M0 ${y(this.bound)}H100"/>`);
    this.lines.forEach((line, i) => {
      for (const run of runs(this.points, i)) {
        const corners = run.map((point) => `${x(point.time).toFixed(2)} ${y(point.values[i]).toFixed(2)}`);
        if (line.filled) {
          const [from, to] = [x(run[0].time), x(run.at(-1).time)].map((at) => at.toFixed(2));
          paths.push(`<path class="area ${line.look}" d="M${from} 100L${corners.join("L")}L${to} 100Z"/>`);
        }
        paths.push(`<path class="${line.look}" d="M${corners.join("L")}${run.length === 1 ? "h.01" : ""}"/>`);
      }
    });
    this.plot.querySelector("svg").innerHTML = paths.join("");
    this.plot.querySelector(".top").textContent = this.text(top);
    const told = this.lines.map((line, i) => [line.name, this.points.at(-1).values[i]]).filter(([, value]) => value !== null);
    const now = told.length ? told.map(([name, value]) => `${name} ${this.text(value)}`).join(", ") : "no values now";
    this.plot.setAttribute("aria-label", `${this.card.querySelector("h2").textContent}: ${now}`);
    this._read(this.reading);
  }

  // Show the values at `share` of the width; null: none.
  _read(share) {
    this.reading = share;
    const end = this.points.at(-1)?.time;
    const time = end - (1 - share) * this.seconds * 1000;
    const nearest = this.points.reduce((best, point) => (Math.abs(point.time - time) < Math.abs(best.time - time) ? point : best), this.points[0]);
    this.plot.classList.toggle("read", share !== null && share !== undefined && nearest !== undefined);
    if (!this.plot.classList.contains("read")) return;
    const at = 100 - (end - nearest.time) / this.seconds / 10;
    const tip = this.plot.querySelector(".tip");
    const values = this.lines.map((line, i) => (nearest.values[i] === null ? null : `${line.name} ${this.text(nearest.values[i])}`));
    tip.textContent = `${Math.round((end - nearest.time) / 1000)} s ago: ${values.filter(Boolean).join(", ") || "nothing"}`;
    this.plot.querySelector(".cursor").style.left = `${at}%`;
    tip.style.left = `${at}%`;
    tip.style.transform = `translateX(${-at}%)`;
  }
}

// The stretches of points in which line i has values.
function runs(points, i) {
  const found = [[]];
  for (const point of points) {
    if (point.values[i] === null) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((run) => run.length);
}

// The least of 1, 2, 2.5 and 5 times a power of ten that is not below `value`.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
