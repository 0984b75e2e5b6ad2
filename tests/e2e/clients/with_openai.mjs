// OpenAI's client for Node: `node with_openai.mjs URL`; prints what came, as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const shared = { model: "toy", temperature: 0, max_tokens: 8 };
const messages = [
  { role: "system", content: "be brief" },
  { role: "user", content: "hello" },
];

const models = [];
for await (const model of client.models.list()) models.push(model.id);

const whole = await client.chat.completions.create({ ...shared, messages });
let streamed = "";
let usage = 0;
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...shared, messages, ...options })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage?.completion_tokens ?? usage;
}

const text = await client.completions.create({ ...shared, prompt: "hello", logprobs: 1 });
let textStreamed = "";
for await (const chunk of await client.completions.create({ ...shared, prompt: "hello", stream: true })) {
  textStreamed += chunk.choices[0].text;
}

// A client that has enough leaves: nothing waits for the rest.
const left = await client.completions.create({ ...shared, max_tokens: 200, prompt: "hello", stream: true });
for await (const _ of left) break;

let refusal = "";
try {
  await client.chat.completions.create({ ...shared, messages, temperature: 9 });
} catch (error) {
  refusal = error instanceof OpenAI.BadRequestError && error.requestID ? error.param : String(error);
}

console.log(
  JSON.stringify({
    models,
    chat: whole.choices[0].message.content,
    streamed,
    usage: [whole.usage.completion_tokens, usage],
    finish_reason: whole.choices[0].finish_reason,
    text: text.choices[0].text,
    tokens: text.choices[0].logprobs.tokens.length,
    text_streamed: textStreamed,
    refusal,
  }),
);
