// The conversation as a file: Markdown for people, JSON with the reports for programs.

import { count, h, percent, time } from './dom.js';
import { isApproximate, nameChunks, sums } from './ribbon.js';

export function asMarkdown({ turns, contexts, settings }, model) {
  const lines = [`# weft${model ? `: ${model}` : ''}`, ''];
  if (settings.system.trim()) lines.push(`System: ${settings.system}`, '');
  if (contexts.length) lines.push(`Documents: ${contexts.map(({ name }) => name).join(', ')}`, '');
  for (const turn of turns) {
    lines.push(turn.role === 'user' ? '## Question' : '## Answer', '', turn.text, '');
    if (turn.report) lines.push(...context(turn), '');
  }
  return `${lines.join('\n').trim()}\n`;
}

function context(turn) {
  const { prompt, kept, saved } = sums(turn.report);
  const names = nameChunks(turn.report, turn.sent ?? []);
  const verdict = turn.verified ? (turn.verified.exact ? 'exact, verified' : `approximate, KL ${turn.verified.kl}`) : isApproximate(turn.report) ? 'approximate' : 'exact';
  return [
    `${count(kept)} of ${count(prompt)} prompt tokens kept, ${time(saved)} saved, ${verdict}.`,
    '',
    '| chunk | tokens | kept | rows | shift | attention |',
    '|---|---:|---:|---|---:|---:|',
    ...turn.report.chunks.map((chunk, index) => `| ${names[index].name.replaceAll('|', '\\|')} | ${chunk.tokens} | ${chunk.cached_tokens} | ${chunk.source} | ${chunk.shift} | ${percent(chunk.attention)} |`),
  ];
}

export function asJson({ turns, contexts, settings, reuse, repair }, model) {
  return `${JSON.stringify({ model, settings, reuse, repair, contexts, turns }, null, 2)}\n`;
}

/** Hands a file to the reader. */
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = h('a', { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
