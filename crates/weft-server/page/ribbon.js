// The ribbon: an answer's context as one segment per chunk. A segment is as wide as the chunk has
// tokens, stands in the row of its level, and tells by colour and pattern where its rows came from;
// below it a thin bar is the share of attention that the answer gave it. Two bars compare the time with
// that of a cold start. It draws reports; it knows neither the server nor the conversation.

import { count, h, head, percent, time, tokens } from './dom.js';

/** Where rows can come from, in the order of the legend. */
export const SOURCES = {
  computed: { word: 'computed now', place: '' },
  device: { word: 'on the device', place: 'device' },
  ram: { word: 'in memory', place: 'memory' },
  disk: { word: 'on disk', place: 'disk' },
};

const LEVELS = ['system', 'context', 'question'];

/** Servers on a GPU may call the device by that name. */
export const sourceOf = (name) => (name === 'gpu' ? 'device' : name in SOURCES ? name : 'computed');

/** Whether any of the context was used in a way that is not what a plain prompt gives. */
export const isApproximate = (report) => report.chunks.some((chunk) => chunk.reuse !== 'exact');

/**
 * What each piece of a report is, from what was sent: [{name, text, id}], in order. A template may
 * write something before the first of them, which is a piece by itself.
 */
export function nameChunks(report, sent) {
  const { chunks } = report;
  const names = [...sent];
  if (chunks.length === names.length + 1) names.unshift({ name: 'template', text: 'what the model’s template writes before the first text' });
  const same = chunks.length === names.length;
  return chunks.map((chunk, index) => {
    const found = chunk.id ? names.find((name) => name.id === chunk.id) : same ? names[index] : undefined;
    return found ?? { name: chunk.kind, text: '' };
  });
}

/** Facts of a report that are told in words. */
export function sums(report) {
  const prompt = report.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
  const kept = report.chunks.reduce((sum, chunk) => sum + chunk.cached_tokens, 0);
  const cold = report.cold_ms_estimate;
  const saved = report.saved_ms;
  return { prompt, kept, cold, saved, run: Math.max(cold - saved, 0) };
}

/** Draws a report. `names` are nameChunks'; `usesOf` tells how often a chunk was used. */
export function ribbon(report, names, usesOf = () => null) {
  const pieces = place(report, names, usesOf);
  const figure = h('figure', { class: 'ribbon' });
  const card = h('div', { class: 'card', role: 'tooltip', id: `card-${nextId()}`, hidden: true });
  const cloth = h('div', { class: 'cloth' }, weave(pieces, card), card);
  const caption = h('figcaption', {}, legend(pieces));
  const look = attentionWords(pieces);
  figure.append(cloth, caption, bars(report));
  if (look) figure.append(look);
  return figure;
}

let ids = 0;
const nextId = () => (ids += 1);

function place(report, names, usesOf) {
  let position = 0;
  const most = Math.max(...report.chunks.map((chunk) => chunk.attention), 1e-9);
  return report.chunks.map((chunk, index) => {
    const source = sourceOf(chunk.source);
    const piece = {
      ...chunk,
      ...names[index],
      source,
      approximate: chunk.reuse !== 'exact',
      position,
      height: chunk.attention / most,
      uses: chunk.id ? usesOf(chunk.id) : null,
    };
    position += chunk.tokens;
    return piece;
  });
}

/** The segments, in a grid whose columns are as wide as their tokens. */
function weave(pieces, card) {
  const least = pieces.length > 60 ? '1px' : pieces.length > 24 ? '3px' : '8px';
  const grid = h('div', { class: 'weave', role: 'group', 'aria-label': 'Chunks of the prompt, in order. Arrow keys move along them.' });
  grid.style.gridTemplateColumns = `auto ${pieces.map((piece) => `minmax(${least}, ${piece.tokens}fr)`).join(' ')}`;
  LEVELS.forEach((name, level) => {
    if (!pieces.some((piece) => piece.level === level)) return;
    const label = h('span', { class: 'level', text: name, 'aria-hidden': 'true' });
    label.style.gridRow = `${level + 1}`;
    const rail = h('span', { class: 'rail', 'aria-hidden': 'true' });
    rail.style.gridRow = `${level + 1}`;
    grid.append(label, rail);
  });
  const label = h('span', { class: 'level looked', text: 'attention', 'aria-hidden': 'true' });
  label.style.gridRow = '4';
  grid.append(label);
  const most = lookedAt(pieces)?.best;
  const segments = pieces.map((piece, index) => {
    const segment = h('button', {
      type: 'button',
      class: `segment from-${piece.source}${piece.approximate ? ' approximate' : ''}`,
      tabindex: index === 0 ? '0' : '-1',
      'aria-label': speak(piece),
      'aria-describedby': card.id,
    });
    segment.style.gridColumn = `${index + 2}`;
    segment.style.gridRow = `${piece.level + 1}`;
    const share = h('span', { class: piece === most ? 'share most' : 'share', 'aria-hidden': 'true' }, h('i'));
    share.style.gridColumn = `${index + 2}`;
    share.firstChild.style.height = `${Math.max(piece.height * 100, 3)}%`;
    const show = () => showCard(card, piece, segment);
    const hide = () => { card.hidden = true; };
    segment.addEventListener('pointerenter', show);
    segment.addEventListener('pointerleave', () => { if (document.activeElement !== segment) hide(); });
    segment.addEventListener('focus', show);
    segment.addEventListener('click', show);
    segment.addEventListener('blur', hide);
    grid.append(segment, share);
    return segment;
  });
  grid.addEventListener('keydown', (event) => move(event, segments, card));
  return grid;
}

function move(event, segments, card) {
  const at = segments.indexOf(event.target);
  if (at < 0) return;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: segments.length - 1 }[event.key];
  if (event.key === 'Escape' && !card.hidden) {
    card.hidden = true;
    event.stopPropagation();
  }
  if (to === undefined || !segments[to]) return;
  event.preventDefault();
  segments[at].tabIndex = -1;
  segments[to].tabIndex = 0;
  segments[to].focus();
}

function speak(piece) {
  const kept = piece.cached_tokens === piece.tokens ? SOURCES[piece.source].word : `${count(piece.cached_tokens)} kept, ${SOURCES[piece.source].word}`;
  return `${piece.name}: ${tokens(piece.tokens)}, ${kept}${piece.approximate ? `, approximate (${piece.reuse})` : ''}, ${percent(piece.attention)} of the attention`;
}

function showCard(card, piece, segment) {
  const facts = [
    ['tokens', piece.cached_tokens > 0 && piece.cached_tokens < piece.tokens ? `${count(piece.tokens)}, ${count(piece.cached_tokens)} of them kept` : count(piece.tokens)],
    ['rows', piece.source === 'computed' ? `computed in ${time(piece.ms)}` : `kept ${SOURCES[piece.source].word}${piece.ms >= 0.05 ? `, there in ${time(piece.ms)}` : ''}`],
    ['position', `${count(piece.position)} to ${count(piece.position + piece.tokens - 1)}`],
    ['shift', piece.shift === 0 ? 'none' : `${piece.shift > 0 ? '+' : '−'}${count(Math.abs(piece.shift))} from where it was computed`],
    piece.uses !== null && piece.uses !== undefined && ['uses', count(piece.uses)],
    piece.approximate && ['reuse', piece.reuse],
    piece.repaired_tokens > 0 && ['repaired', tokens(piece.repaired_tokens)],
    ['attention', percent(piece.attention)],
  ].filter(Boolean);
  card.replaceChildren(
    h('p', { class: 'card-name', text: piece.name }),
    piece.text ? h('p', { class: 'card-text', text: head(piece.text, 140) }) : '',
    h('dl', {}, facts.flatMap(([term, value]) => [h('dt', { text: term }), h('dd', { text: value })])),
  );
  card.hidden = false;
  // Below its segment, within the cloth.
  const cloth = card.parentElement;
  const room = cloth.clientWidth - card.offsetWidth;
  const middle = segment.offsetLeft + segment.offsetWidth / 2 - card.offsetWidth / 2;
  card.style.left = `${Math.max(0, Math.min(middle, room))}px`;
}

/** What the patterns mean: those that are there. */
function legend(pieces) {
  const items = Object.entries(SOURCES)
    .filter(([source]) => pieces.some((piece) => piece.source === source))
    .map(([source, { word }]) => h('li', {}, h('i', { class: `swatch from-${source}` }), word));
  if (pieces.some((piece) => piece.approximate)) items.push(h('li', {}, h('i', { class: 'swatch approximate from-device' }), 'approximate'));
  return h('ul', { class: 'legend' }, items);
}

/** Cold against this run. */
function bars(report) {
  const { cold, run, saved } = sums(report);
  const longest = Math.max(cold, run, 1e-9);
  const bar = (word, kind, ms) => {
    const fillBar = h('i', { class: `time-${kind}` });
    fillBar.style.width = `${Math.max((ms / longest) * 100, 0.5)}%`;
    return [h('dt', { text: word }), h('dd', {}, h('span', { class: 'time-bar', 'aria-hidden': 'true' }, fillBar), h('span', { class: 'figure', text: kind === 'cold' && ms >= 0.05 ? `≈ ${time(ms)}` : time(ms) }))];
  };
  const words = saved > 0
    ? h('p', { class: 'saved' }, h('strong', { text: `${time(saved)} saved` }), ` · ${percent(saved / cold)} of the prompt’s time`)
    : h('p', { class: 'saved none', text: 'Nothing kept yet: this run computed it all, and keeps it for the next question.' });
  return h('div', { class: 'times' }, h('dl', {}, bar('cold, estimated', 'cold', cold), bar('this run', 'run', run)), words);
}

/** The document that the answer looked at most, and its share of what all documents got. */
function lookedAt(pieces) {
  const documents = pieces.filter((piece) => piece.id && piece.level === 1);
  const all = documents.reduce((sum, piece) => sum + piece.attention, 0);
  if (documents.length < 2 || all <= 0) return null;
  const best = documents.reduce((a, b) => (b.attention > a.attention ? b : a));
  return { best, share: best.attention / all };
}

function attentionWords(pieces) {
  const found = lookedAt(pieces);
  if (!found) return null;
  return h('p', { class: 'looked-at' }, 'Of the documents, the answer looked most at ', h('strong', { text: found.best.name }), `: ${percent(found.share)} of the attention they got.`);
}
