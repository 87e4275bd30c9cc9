// Vercel's AI SDK: generateText, streamText, tools and objects over OpenAI's chats and Responses and over
// Anthropic's Messages, and embeddings. Prints one line of JSON for each scenario, as `scenario.py` does.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { ANSWER, MODEL, PLAIN, PLAIN_ANSWER, QUESTION, URL, run, same } from "./scenario.mjs";

const openai = createOpenAI({ baseURL: `${URL}/v1`, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: `${URL}/v1`, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "weft", baseURL: `${URL}/v1`, supportsStructuredOutputs: true });
const models = {
  Responses: openai(MODEL),
  chats: openai.chat(MODEL),
  "chats, OpenAI-compatible": compatible(MODEL),
  Messages: anthropic(MODEL),
};
const schema = z.object({ name: z.string().max(12), is_large: z.boolean() });

for (const [dialect, model] of Object.entries(models)) {
  await run(`plain, ${dialect}`, async () => {
    const { text, usage } = await generateText({ model, prompt: PLAIN, maxRetries: 0 });
    same(text.trim(), PLAIN_ANSWER);
    if (!(usage.outputTokens > 1)) throw new Error(JSON.stringify(usage));
    return text;
  });
  await run(`tool loop, streamed, ${dialect}`, async () => {
    const called = [];
    const get_weather = tool({
      description: "The weather in a town.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => (called.push(city), "rainy"),
    });
    const result = streamText({ model, prompt: QUESTION, tools: { get_weather }, stopWhen: stepCountIs(4), maxRetries: 0 });
    const parts = [];
    for await (const part of result.fullStream) parts.push(part.type);
    same(called, ["Lokel"]);
    same((await result.text).trim(), ANSWER);
    return `${parts.length} parts; get_weather(city='Lokel') -> rainy -> ${await result.text}`;
  });
  await run(`structured output, ${dialect}`, async () => {
    const { output } = await generateText({
      model, prompt: "Describe a ship.", output: Output.object({ schema }), maxRetries: 0 });
    return JSON.stringify(schema.parse(output));
  });
}
await run("embeddings", async () => {
  const { embeddings } = await embedMany({ model: openai.embedding(MODEL), values: ["A ship.", "A town."] });
  same(embeddings.map((vector) => vector.length), [128, 128]);
  return `2 vectors of 128, first value ${embeddings[0][0].toFixed(4)}`;
});
