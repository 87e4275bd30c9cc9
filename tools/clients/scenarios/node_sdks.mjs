// The SDKs of OpenAI and Anthropic for Node: answers, streams, tool loops by their runners, objects.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ANSWER, MODEL, PLAIN, PLAIN_ANSWER, QUESTION, URL, run, same } from "./scenario.mjs";

const openai = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });
const ship = z.object({ name: z.string().max(12), is_large: z.boolean() });
const user = (content) => [{ role: "user", content }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

await run("openai: streamed chat", async () => {
  const stream = openai.chat.completions.stream({ model: MODEL, messages: user(PLAIN) });
  const text = await stream.finalContent();
  same(text.trim(), PLAIN_ANSWER);
  return text;
});
await run("openai: tool loop by its runner, streamed", async () => {
  const called = [];
  const runner = openai.chat.completions.runTools({
    model: MODEL, stream: true, messages: user(QUESTION),
    tools: [{ type: "function", function: {
      name: "get_weather", description: "The weather in a town.", parameters, parse: JSON.parse,
      function: ({ city }) => (called.push(city), "rainy") } }],
  });
  const text = await runner.finalContent();
  same(called, ["Lokel"]);
  same(text.trim(), ANSWER);
  return text;
});
await run("openai: parsed chat", async () => {
  const answer = await openai.chat.completions.parse({
    model: MODEL, messages: user("Describe a ship."), response_format: zodResponseFormat(ship, "ship") });
  return JSON.stringify(ship.parse(answer.choices[0].message.parsed));
});
await run("openai: streamed response", async () => {
  const stream = openai.responses.stream({ model: MODEL, input: PLAIN });
  const kinds = new Set();
  for await (const event of stream) kinds.add(event.type);
  const final = await stream.finalResponse();
  same(final.output_text.trim(), PLAIN_ANSWER);
  return `${kinds.size} kinds of events, ${final.output_text}`;
});
await run("openai: parsed response", async () => {
  const answer = await openai.responses.parse({
    model: MODEL, input: "Describe a ship.", text: { format: zodTextFormat(ship, "ship") } });
  return JSON.stringify(ship.parse(answer.output_parsed));
});
await run("openai: embeddings", async () => {
  const found = await openai.embeddings.create({ model: MODEL, input: ["A ship.", "A town."] });
  same(found.data.map((each) => each.embedding.length), [128, 128]);
  return `2 vectors of 128, first value ${found.data[0].embedding[0].toFixed(4)}`;
});
await run("anthropic: streamed message", async () => {
  const stream = anthropic.messages.stream({ model: MODEL, max_tokens: 300, messages: user(PLAIN) });
  const text = await stream.finalText();
  same(text.trim(), PLAIN_ANSWER);
  return text;
});
await run("anthropic: thinking, streamed", async () => {
  const stream = anthropic.messages.stream({
    model: MODEL, max_tokens: 2000, messages: user(PLAIN), thinking: { type: "enabled", budget_tokens: 1024 } });
  const { content } = await stream.finalMessage();
  same(content.map((block) => block.type), ["thinking", "text"]);
  return `thought ${JSON.stringify(content[0].thinking)}, said ${content[1].text}`;
});
await run("anthropic: tool loop by its runner, streamed", async () => {
  const called = [];
  const get_weather = betaZodTool({
    name: "get_weather", description: "The weather in a town.", inputSchema: z.object({ city: z.string() }),
    run: ({ city }) => (called.push(city), "rainy") });
  const runner = anthropic.beta.messages.toolRunner({
    model: MODEL, max_tokens: 300, messages: user(QUESTION), tools: [get_weather], stream: true });
  let last;
  for await (const stream of runner) last = await stream.finalMessage();
  same(called, ["Lokel"]);
  same(last.content.at(-1).text.trim(), ANSWER);
  return last.content.at(-1).text;
});
