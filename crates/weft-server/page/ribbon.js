// The ribbon: an answer's context as one segment per chunk. A segment is as wide as the chunk has
// tokens, and shows by colour and pattern where its rows came from; segments that are being computed
// fill as the prompt is read. It is drawn twice: as a strip of one row, and woven in rows with names,
// attention and times for those who want the details. It draws reports, also those that are not
// complete yet; it knows neither the server nor the conversation.

import { count, h, head, percent, time, tokens } from './dom.js';

/** Where rows can come from, in the order of the legend. */
export const SOURCES = {
  computed: { word: 'computed now', place: '' },
  device: { word: 'on the device', place: 'device' },
  ram: { word: 'in memory', place: 'memory' },
  disk: { word: 'on disk', place: 'disk' },
  remote: { word: 'in the shared store', place: 'store' },
};

/** The rows, by what stands in them. */
const ROWS = { system: 'system', document: 'documents', turn: 'earlier turns', question: 'question' };

/** Servers on a GPU may call the device by that name. */
export const sourceOf = (name) => (name === 'gpu' ? 'device' : name in SOURCES ? name : 'computed');

/** Whether any of the context was used in a way that is not what a plain prompt gives. */
export const isApproximate = (report) => report.chunks.some((chunk) => chunk.reuse !== 'exact');

/**
 * What each piece of a report is, from what was sent: [{name, text, id, row}], in order. A template may
 * write something before the first of them, which is a piece by itself.
 */
export function nameChunks(report, sent) {
  const { chunks } = report;
  const names = [...sent];
  if (chunks.length === names.length + 1) names.unshift({ name: 'template', text: 'what the model’s template writes before the first text', row: 'system' });
  const same = chunks.length === names.length;
  return chunks.map((chunk, index) => {
    const found = (chunk.id ? names.find((name) => name.id === chunk.id) : same ? names[index] : undefined) ?? { name: chunk.kind, text: '' };
    return { ...found, row: found.row ?? rowOf(chunk, found) };
  });
}

/** The row of a piece that was stored without it. */
function rowOf({ id, level }, { name }) {
  if (level === 0) return 'system';
  if (id) return 'document';
  return level === 2 || name === 'this question' ? 'question' : 'turn';
}

/**
 * Facts of a report that are shown in words. There is one time, the time to the first token, which the
 * server measures from the moment it takes up the prompt. Without kept rows it would have been `saved`
 * longer, which is an estimate.
 */
export function sums(report, timings = null) {
  const prompt = report.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
  const kept = report.chunks.reduce((sum, chunk) => sum + chunk.cached_tokens, 0);
  const saved = report.saved_ms;
  const first = timings?.prompt_ms ?? null;
  return { prompt, kept, saved, first, cold: first === null ? null : first + saved };
}

/** A share of tokens; not all of them are never 100 %. */
export const keptShare = ({ kept, prompt }) => (kept === prompt ? '100 %' : kept < prompt / 100 ? '< 1 %' : percent(Math.floor((kept / prompt) * 100) / 100));

/** An answer's ribbon: the strip, and the details. Both are drawn from `turn`, and fill as it goes on. */
export class Ribbon {
  constructor(usesOf) {
    this.usesOf = usesOf;
    this.strip = h('div', { class: 'strip' });
    this.details = h('figure', { class: 'ribbon' });
    this.segments = [];
  }

  draw(turn) {
    const { report } = turn;
    this.pieces = place(report, nameChunks(report, turn.sent ?? []), this.usesOf);
    const { row, card, segments } = strip(this.pieces);
    this.strip.replaceChildren(row, card);
    const woven = weave(this.pieces, turn.state === 'writing');
    const caption = h('figcaption', {}, legend(this.pieces));
    this.details.replaceChildren(woven.node, caption, bars(turn), attentionWords(this.pieces, report, turn.state));
    this.segments = [segments, woven.segments];
    this.advance(turn);
  }

  /** Fills the segments as far as the prompt was read. */
  advance({ progress }) {
    const processed = progress?.processed ?? Infinity;
    this.pieces.forEach((piece, index) => {
      const done = piece.source === 'computed' ? Math.max(piece.cached_tokens, Math.min(processed - piece.position, piece.tokens)) / piece.tokens : 1;
      for (const segments of this.segments) segments[index].style.setProperty('--done', Math.max(0, done));
    });
  }

  /** The piece that is being read. */
  at({ progress }) {
    return this.pieces.find((piece) => piece.position + piece.tokens > progress.processed) ?? this.pieces.at(-1);
  }
}

let ids = 0;
const nextId = () => (ids += 1);

function place(report, names, usesOf) {
  let position = 0;
  return report.chunks.map((chunk, index) => {
    const piece = { ...chunk, ...names[index], source: sourceOf(chunk.source), approximate: chunk.reuse !== 'exact', position, uses: chunk.id ? usesOf(chunk.id) : null };
    position += chunk.tokens;
    return piece;
  });
}

const classOf = ({ source, row, approximate }) => `segment from-${source} is-${row}${approximate ? ' approximate' : ''}`;

const columns = (pieces) => {
  const least = pieces.length > 60 ? '1px' : pieces.length > 24 ? '3px' : '8px';
  return pieces.map((piece) => `minmax(${least}, ${piece.tokens}fr)`).join(' ');
};

const newCard = () => h('div', { class: 'card', role: 'tooltip', id: `card-${nextId()}`, hidden: true });

/** One row of segments for the eye; the details have the same for everyone. */
function strip(pieces) {
  const card = newCard();
  const row = h('div', { class: 'strip-row', 'aria-hidden': 'true' });
  row.style.gridTemplateColumns = columns(pieces);
  const nodes = pieces.map((piece) => {
    const segment = h('span', { class: classOf(piece), data: { name: piece.name } });
    segment.addEventListener('pointerenter', (event) => { if (event.pointerType === 'mouse') showCard(card, piece, segment); });
    segment.addEventListener('pointerleave', () => { card.hidden = true; });
    return segment;
  });
  row.append(...nodes);
  return { row, segments: nodes, card };
}

/** The segments in rows, in a grid whose columns are as wide as their tokens. */
function weave(pieces, isWriting) {
  const card = newCard();
  const grid = h('div', { class: 'weave', role: 'group', 'aria-label': 'Chunks of the prompt, in order. Arrow keys move along them.' });
  grid.style.gridTemplateColumns = `auto ${columns(pieces)} auto`;
  const rows = Object.keys(ROWS).filter((row) => pieces.some((piece) => piece.row === row));
  rows.forEach((row, index) => {
    const label = h('span', { class: 'level', text: ROWS[row], 'aria-hidden': 'true' });
    const rail = h('span', { class: 'rail', 'aria-hidden': 'true' });
    for (const node of [label, rail]) node.style.gridRow = `${index + 1}`;
    grid.append(label, rail);
  });
  const shares = attention(pieces, rows.length + 1, isWriting);
  const segments = pieces.map((piece, index) => {
    const segment = h('button', { type: 'button', class: classOf(piece), tabindex: index === 0 ? '0' : '-1', 'aria-label': speak(piece), 'aria-describedby': card.id },
      piece.row === 'document' && h('span', { class: 'segment-name', text: piece.name, 'aria-hidden': 'true' }));
    segment.style.gridColumn = `${index + 2}`;
    segment.style.gridRow = `${rows.indexOf(piece.row) + 1}`;
    const show = () => showCard(card, piece, segment);
    const hide = () => { card.hidden = true; };
    segment.addEventListener('pointerenter', show);
    segment.addEventListener('pointerleave', () => { if (document.activeElement !== segment) hide(); });
    segment.addEventListener('focus', show);
    segment.addEventListener('click', show);
    segment.addEventListener('blur', hide);
    return segment;
  });
  // In the order of the prompt, for those who hear them.
  grid.append(...segments, ...shares);
  grid.addEventListener('keydown', (event) => move(event, segments, card));
  return { node: h('div', { class: 'cloth' }, grid, card), segments };
}

/** The scale of the attention: the first of these shares that is not below the largest one. */
const SCALES = [0.05, 0.1, 0.25, 0.5, 1];

/** How the answer's attention was shared, as bars on a scale in per cent. */
function attention(pieces, row, isWriting) {
  const most = Math.max(...pieces.map((piece) => piece.attention));
  const scale = SCALES.find((top) => most <= top) ?? 1;
  const best = lookedAt(pieces)?.best;
  const label = h('span', { class: 'level looked', text: 'attention', 'aria-hidden': 'true' });
  const axis = h('span', { class: 'axis', 'aria-hidden': 'true' }, h('span', { text: isWriting ? '' : percent(scale) }), h('span', { text: isWriting ? '' : '0 %' }));
  const lines = h('span', { class: 'axis-lines', 'aria-hidden': 'true' });
  const bars = pieces.map((piece, index) => {
    const bar = h('i');
    bar.style.height = `${(piece.attention / scale) * 100}%`;
    const share = h('span', { class: piece === best ? 'share most' : 'share', 'aria-hidden': 'true' }, bar,
      !isWriting && h('span', { class: 'share-figure', text: percent(piece.attention) }));
    share.style.gridColumn = `${index + 2}`;
    return share;
  });
  for (const node of [label, axis, lines, ...bars]) node.style.gridRow = `${row}`;
  return [label, lines, axis, ...bars];
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
    ['rows', piece.source === 'computed' ? `computed${piece.ms > 0 ? ` in ${time(piece.ms)}` : ' now'}` : `kept ${SOURCES[piece.source].word}${piece.ms >= 0.05 ? `, there in ${time(piece.ms)}` : ''}`],
    ['position', `${count(piece.position)} to ${count(piece.position + piece.tokens - 1)}`],
    ['shift', piece.shift === 0 ? 'none' : `${piece.shift > 0 ? '+' : '−'}${count(Math.abs(piece.shift))} from where it was computed`],
    piece.uses !== null && piece.uses !== undefined && ['uses', count(piece.uses)],
    piece.approximate && ['reuse', piece.reuse],
    piece.repaired_tokens > 0 && ['repaired', tokens(piece.repaired_tokens)],
    piece.attention > 0 && ['attention', percent(piece.attention)],
  ].filter(Boolean);
  card.replaceChildren(
    h('p', { class: 'card-name', text: piece.name }),
    piece.text ? h('p', { class: 'card-text', dir: 'auto', text: head(piece.text, 140) }) : '',
    h('dl', {}, facts.flatMap(([term, value]) => [h('dt', { text: term }), h('dd', { text: value })])),
  );
  card.hidden = false;
  // Below its segment, within the cloth.
  const cloth = card.parentElement;
  const room = cloth.clientWidth - card.offsetWidth;
  const middle = segment.offsetLeft + segment.offsetWidth / 2 - card.offsetWidth / 2;
  card.style.left = `${Math.max(0, Math.min(middle, room))}px`;
}

/** What the colours and patterns mean: those that are there. */
function legend(pieces) {
  const items = Object.entries(SOURCES)
    .filter(([source]) => pieces.some((piece) => piece.source === source))
    .map(([source, { word }]) => h('li', {}, h('i', { class: `swatch from-${source}` }), word));
  if (pieces.some((piece) => piece.row === 'turn')) items.push(h('li', {}, h('i', { class: 'swatch from-device is-turn' }), 'earlier turns'));
  if (pieces.some((piece) => piece.approximate)) items.push(h('li', {}, h('i', { class: 'swatch approximate from-device' }), 'approximate'));
  return h('ul', { class: 'legend' }, items);
}

/** The time to the first token: with nothing kept, and in this run. As high before it is known as after. */
function bars({ report, timings, state }) {
  const { cold, first, saved } = sums(report, timings);
  const longest = Math.max(cold ?? 0, 1e-9);
  const bar = (word, kind, ms) => {
    const fillBar = h('i', { class: `time-${kind}` });
    fillBar.style.width = ms === null ? '0' : `${Math.max((ms / longest) * 100, 0.5)}%`;
    const figure = ms === null ? '–' : kind === 'cold' && ms >= 0.05 ? `≈ ${time(ms)}` : time(ms);
    return [h('dt', { text: word }), h('dd', {}, h('span', { class: 'time-bar', 'aria-hidden': 'true' }, fillBar), h('span', { class: 'figure', text: figure }))];
  };
  const words = cold === null ? h('p', { class: 'saved none', text: state === 'writing' ? 'The times come with the end of the answer.' : 'Stopped: the times were not measured.' })
    : saved > 0 ? h('p', { class: 'saved' }, h('strong', { text: `${time(saved)} saved` }), ` · ${percent(saved / cold)} of the time to the first token`)
    : h('p', { class: 'saved none', text: 'Nothing was kept: this run computed it all, and keeps it for the next question.' });
  return h('div', { class: 'times' },
    h('p', { class: 'times-title', text: 'Time to the first token' }),
    h('dl', {}, bar('nothing kept, estimated', 'cold', cold), bar('this run', 'run', first)), words);
}

/** The document that the answer looked at most, and its share of what all documents got. */
function lookedAt(pieces) {
  const documents = pieces.filter((piece) => piece.row === 'document');
  const all = documents.reduce((sum, piece) => sum + piece.attention, 0);
  if (documents.length < 2 || all <= 0) return null;
  const best = documents.reduce((a, b) => (b.attention > a.attention ? b : a));
  return { best, share: best.attention / all };
}

function attentionWords(pieces, { answer_attention: own }, state) {
  // As high while it is not known as when it is.
  const name = pieces.filter((piece) => piece.row === 'document').length > 1 ? 'looked-at of-many' : 'looked-at';
  if (state === 'writing') return h('p', { class: name, text: 'What the answer looks at is known at its end.' });
  const found = lookedAt(pieces);
  return h('p', { class: name },
    found && ['Of the documents, the answer looked most at ', h('strong', { text: found.best.name }), `: ${percent(found.share)} of what they got. `],
    own > 0 && `${percent(own)} of the attention was on the answer itself.`);
}
