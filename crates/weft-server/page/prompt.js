// From what is on the page to what is sent: system prompt, the documents above the composer in their
// order, the turns so far, the question. Documents stand in the first question that is sent, so that
// turns can follow without moving them. It owns the request's shape; it sends nothing and draws nothing.

import { head } from './dom.js';

const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];

/** The turns that are sent again; a question without an answer is left out. */
function pairs(turns) {
  const whole = [];
  for (let at = 0; at + 1 < turns.length; at += 2) {
    if (turns[at + 1].text) whole.push(turns[at], turns[at + 1]);
  }
  return whole;
}

/**
 * The request for an answer to the last of `turns`, and what each piece of its prompt is, in order, for
 * those who draw it.
 */
export function compose(data, turns, model) {
  const { settings, contexts, reuse, repair } = data;
  const question = turns.at(-1);
  const said = [...pairs(turns.slice(0, -1)), question];
  const messages = [];
  const sent = [];
  if (settings.system.trim()) {
    messages.push({ role: 'system', content: settings.system });
    sent.push({ name: 'system prompt', text: head(settings.system, 160), row: 'system' });
  }
  said.forEach((turn, index) => {
    const chunks = index === 0 ? contexts : [];
    for (const { id, name, text } of chunks) sent.push({ name, text: text ?? '', id, row: 'document' });
    const number = Math.floor(index / 2) + 1;
    const name = turn === question ? 'this question' : `${turn.role === 'user' ? 'question' : 'answer'} ${number}`;
    sent.push({ name, text: head(turn.text, 160), row: turn === question ? 'question' : 'turn' });
    const parts = chunks.map(({ id }) => ({ type: 'chunk', id }));
    messages.push({ role: turn.role, content: parts.length ? [...parts, { type: 'text', text: turn.text }] : turn.text });
  });
  const body = { messages, reuse, repair: reuse === 'exact' ? 'none' : repair };
  if (model) body.model = model;
  for (const name of NUMBERS) {
    if (settings[name] !== '' && Number.isFinite(Number(settings[name]))) body[name] = Number(settings[name]);
  }
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  return { body, sent };
}
