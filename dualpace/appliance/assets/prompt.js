// The box to try a prompt: one request at a time, streamed.
class PromptBox {
  constructor(about) {
    this.about = about;
    this.form = document.getElementById("prompt");
    this.text = document.getElementById("text");
    this.answer = document.getElementById("answer");
    this.timing = document.getElementById("timing");
    this.stop = document.getElementById("stop");
    this.run = document.getElementById("run");
    this.stop.addEventListener("click", () => this.abort?.abort());
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.abort) this._generate();
    });
  }

  _body() {
    const prompt = this.text.value;
    const shared = {
      model: this.about.model,
      max_tokens: Number(document.getElementById("tokens").value),
      temperature: Number(document.getElementById("temperature").value),
      stream: true,
      stream_options: { include_usage: true },
    };
    if (this.about.chat) return { ...shared, messages: [{ role: "user", content: prompt }] };
    return { ...shared, prompt: this.about.text ? prompt : prompt.trim().split(/\s+/).map(Number) };
  }

  async _generate() {
    this._busy(true);
    this.answer.replaceChildren();
    this.timing.textContent = "";
    if (!this.about.chat) this._write(this.text.value, "em");
    const begin = performance.now();
    let first = 0, last = 0, tokens = 0;
    try {
      for await (const event of this._events()) {
        const choice = event.choices[0];
        const piece = this.about.chat ? choice?.delta.content : choice?.text;
        if (piece) {
          last = performance.now();
          first ||= last;
          this._write(piece);
        }
        tokens = event.usage?.completion_tokens ?? tokens;
      }
    } catch (error) {
      if (error.name !== "AbortError") this._write(`${this.answer.textContent ? "\n" : ""}${error.message}`, "strong");
    }
    if (first) {
      const ttft = duration((first - begin) / 1000).join(" ");
      const tpot = tokens > 1 ? `, TPOT ${duration((last - first) / 1000 / (tokens - 1)).join(" ")}` : "";
      this.timing.textContent = `${tokens ? `${whole(tokens)} tokens, ` : ""}TTFT ${ttft}${tpot}, as this browser saw it`;
    }
    this._busy(false);
  }

  // Raises Error with the server's sentence.
  async *_events() {
    const response = await fetch(this.about.chat ? "/v1/chat/completions" : "/v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(this._body()),
      signal: this.abort.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let held = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) throw new Error("The server broke off the answer.");
      held += value;
      const events = held.split("\n\n");
      held = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const parsed = JSON.parse(data);
        if (parsed.error) throw new Error(parsed.error.message);
        yield parsed;
      }
    }
  }

  _write(text, element = "span") {
    const below = this.answer.scrollHeight - this.answer.scrollTop - this.answer.clientHeight;
    if (element === "span" && this.answer.lastChild?.nodeType === Node.TEXT_NODE) this.answer.lastChild.appendData(text);
    else if (element === "span") this.answer.append(text);
    else this.answer.append(Object.assign(document.createElement(element), { textContent: text }));
    if (below < 40) this.answer.scrollTop = this.answer.scrollHeight;
  }

  _busy(busy) {
    this.abort = busy ? new AbortController() : null;
    this.answer.setAttribute("aria-busy", busy);
    this.stop.disabled = !busy;
    this.run.disabled = busy;
  }
}
