// Looks at /metrics once a second, while anyone looks at the page.
const SECONDS = 180;
// What rates and times are taken over: short enough to be live, long enough to have something in it.
const RATE_S = 2, TIMES_S = 20;
const about = JSON.parse(document.getElementById("about").textContent);
const looks = new Looks(SECONDS);

// What each chart shows of the looks: the values of its lines, and the height drawn across, if any.
const SHOWN = {
  throughput: () => [[looks.rate("dualpace_generated_tokens_total", RATE_S), looks.rate("dualpace_prompt_tokens_total", RATE_S)]],
  ttft: () => [[0.5, 0.95].map((share) => looks.quantile("dualpace_time_to_first_token_seconds", share, TIMES_S))],
  tpot: () => [
    [looks.mean("dualpace_inter_token_latency_seconds", RATE_S), looks.quantile("dualpace_inter_token_latency_seconds", 0.95, TIMES_S)],
    about.floor,
  ],
  batch: () => [[looks.value("dualpace_requests_running")], looks.value("dualpace_batch_rows_limit")],
  queue: () => [[looks.value("dualpace_requests_waiting")]],
  kv: () => {
    const [held, cached, free] = ["held", "cached", "free"].map((state) => looks.value(`dualpace_kv_pages|state=${state}`));
    const all = held + cached + free;
    return [[held / all, (held + cached) / all], 1];
  },
};
// How a value is written, as [number, unit]; the unit is the card's own where there is none.
const WRITTEN = { ttft: duration, tpot: duration, kv: (share) => [figures(100 * share), "%"] };

const charts = about.charts.map(({ id, lines }) => {
  const card = document.getElementById(id);
  const written = WRITTEN[id] ?? ((value) => [figures(value), ""]);
  return { id, card, written, chart: new Chart(card, lines, (value) => written(value).join(" ").trim(), SECONDS) };
});

function show({ id, card, written, chart }) {
  const [values, bound] = SHOWN[id]();
  chart.add(looks.last.time, values, bound);
  const [number, unit] = values[0] === null ? ["–", ""] : written(values[0]);
  card.querySelector("output").textContent = number;
  if (unit) card.querySelector("small").textContent = unit;
  // The first line's value is the large one.
  card.querySelectorAll(".legend b").forEach((told, i) => {
    const value = i < values.length ? values[i] : bound;
    told.textContent = i === 0 ? "" : value === null ? "–" : written(value).join(" ");
  });
}

function showTotals() {
  for (const cell of document.querySelectorAll("[data-metric]")) {
    const keys = cell.dataset.metric.split("+");
    cell.textContent = whole(keys.reduce((sum, key) => sum + looks.value(key), 0));
  }
}

function showState(state, text) {
  const shown = document.getElementById("state");
  shown.dataset.state = state;
  shown.lastElementChild.textContent = text;
}

async function look() {
  try {
    const response = await fetch("/metrics", { signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(response.status === 401 ? "needs an API key" : `answers ${response.status}`);
    looks.add(Date.now(), parseMetrics(await response.text()));
    charts.forEach(show);
    showTotals();
    if (looks.value("dualpace_ready") === 1) return showState("ready", `serving for ${age(looks.value("dualpace_start_time_seconds"))}`);
    const health = await (await fetch("/health")).json();
    showState("down", health.reason ?? "serving");
  } catch (error) {
    showState("down", error instanceof TypeError || error.name === "TimeoutError" ? "not reachable" : error.message);
  }
}

// Since a time in seconds.
function age(since) {
  const seconds = Math.max(0, Date.now() / 1000 - since), minutes = Math.floor(seconds / 60);
  if (minutes === 0) return `${Math.floor(seconds)} s`;
  if (minutes < 60) return minutes === 1 ? "1 minute" : `${minutes} minutes`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

async function follow() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

for (const part of document.querySelectorAll(".memory i")) part.style.flexGrow = part.dataset.share;
new PromptBox(about);
follow();
