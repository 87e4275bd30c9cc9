// The shelf: the chunks that the server has stored, where their rows are, and how full the tiers are.
// It owns that list and what can be done to its entries. What goes into a prompt is the tray's: the
// shelf only says that a chunk was picked.

import { bytes, count, fill, h, percent, tokens } from './dom.js';
import { icon } from './icons.js';
import { explain } from './notice.js';
import { SOURCES, sourceOf } from './ribbon.js';

/** The type by which a chunk is dragged. */
export const DRAGGED = 'application/x-weft-chunk';

/** Bytes of a file that the server would take, with room for what JSON makes of them. */
const MAX_FILE_BYTES = 12_000_000;

export class Shelf extends EventTarget {
  constructor({ api, list, tiers, notice, counter }) {
    super();
    Object.assign(this, { api, list, tiers, notice, counter });
    this.unread = h('div');
    notice.before(this.unread);
    this.chunks = [];
    this.inPrompt = new Set();
    this.loaded = false;
    this.draw();
  }

  byId(id) {
    return this.chunks.find((chunk) => chunk.id === id);
  }

  /** Reads the shelf anew. */
  async load() {
    try {
      const { chunks, tiers } = await this.api.chunks();
      this.chunks = chunks.filter((chunk) => chunk.kind !== 'query').reverse();
      this.tierStats = tiers;
      this.loaded = true;
      fill(this.unread);
    } catch (error) {
      fill(this.unread, explain(error, 'The shelf could not be read', { 'Try again': () => this.load() }));
    }
    this.draw();
    this.dispatchEvent(new Event('load'));
  }

  /** Marks which chunks are in the prompt. */
  mark(ids) {
    this.inPrompt = new Set(ids);
    this.draw();
  }

  /** Stores files, and tells of each that was. */
  async addFiles(files) {
    this.tell(null);
    for (const file of files) {
      try {
        const text = await readText(file);
        this.dispatchEvent(new CustomEvent('added', { detail: await this.add('context', text, file.name) }));
      } catch (error) {
        this.tell(error, `${file.name} was not added`);
      }
    }
    await this.load();
  }

  /** Stores a text and answers with its entry. */
  async add(kind, text, name) {
    const chunk = await this.api.addChunk(kind, text, name);
    if (!this.byId(chunk.id)) this.chunks.unshift(chunk);
    this.draw();
    return chunk;
  }

  pick(chunk) {
    this.dispatchEvent(new CustomEvent('pick', { detail: chunk }));
  }

  async #change(chunk, what, does) {
    try {
      await does();
    } catch (error) {
      this.tell(error, `${nameOf(chunk)} was not ${what}`);
    }
    await this.load();
  }

  /** Says what failed, until it is dismissed or files are added again; null says nothing. */
  tell(error, what) {
    if (!error) return void fill(this.notice);
    const notice = explain(error, what, { Dismiss: () => notice.remove() });
    return void this.notice.append(notice);
  }

  draw() {
    this.counter.textContent = this.chunks.length ? count(this.chunks.length) : '';
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    fill(this.list, this.chunks.length ? this.chunks.map((chunk) => this.#entry(chunk)) : this.#empty());
    if (focused) this.list.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
    this.#drawTiers();
  }

  #empty() {
    return h('li', { class: 'chunks-empty' }, this.loaded
      ? 'Empty. Files that you add are computed once and kept, and can be part of any prompt.'
      : 'Reading the shelf…');
  }

  #entry(chunk) {
    const name = nameOf(chunk);
    const used = this.inPrompt.has(chunk.id);
    const entry = h('li', { class: `chunk${used ? ' used' : ''}`, draggable: 'true', data: { id: chunk.id } },
      h('button', {
        type: 'button', class: 'chunk-pick', 'aria-pressed': String(used), data: { focus: `pick ${chunk.id}` },
        title: used ? 'In the prompt; click to take it out' : 'Click to put it into the prompt, or drag it there',
        on: { click: () => this.pick(chunk) },
      },
        h('span', { class: 'chunk-name', text: name }),
        h('span', { class: 'chunk-facts' }, facts(chunk))),
      h('div', { class: 'chunk-actions' },
        h('button', {
          type: 'button', class: `ghost small${chunk.pinned ? ' on' : ''}`, 'aria-pressed': String(Boolean(chunk.pinned)),
          'aria-label': `Pin ${name}`, title: chunk.pinned ? 'Pinned: its rows are never evicted' : 'Pin: its rows are never evicted',
          data: { focus: `pin ${chunk.id}` },
          on: { click: () => this.#change(chunk, 'pinned', () => this.api.pinChunk(chunk.id, !chunk.pinned)) },
        }, icon('pin')),
        h('button', {
          type: 'button', class: 'ghost small', 'aria-label': `Delete ${name}`, title: 'Delete it and its rows',
          on: { click: () => this.#delete(chunk) },
        }, icon('trash'))));
    entry.addEventListener('dragstart', (event) => {
      event.dataTransfer.setData(DRAGGED, chunk.id);
      event.dataTransfer.effectAllowed = 'copy';
    });
    return entry;
  }

  async #delete(chunk) {
    this.dispatchEvent(new CustomEvent('gone', { detail: chunk }));
    await this.#change(chunk, 'deleted', () => this.api.deleteChunk(chunk.id));
    (this.list.querySelector('button') ?? document.getElementById('add-file')).focus();
  }

  #drawTiers() {
    const names = { device: 'Device', ram: 'Memory', disk: 'Disk' };
    const tiers = Object.entries(names).filter(([tier]) => this.tierStats?.[tier]?.budget_bytes > 0);
    fill(this.tiers, tiers.map(([tier, name]) => {
      const { used_bytes: used, budget_bytes: budget } = this.tierStats[tier];
      const bar = h('i', { class: `from-${tier}` });
      bar.style.width = `${Math.min(100, Math.max((used / budget) * 100, used > 0 ? 1 : 0))}%`;
      return h('div', { class: 'tier' },
        h('span', { class: 'tier-name', text: name }),
        h('span', { class: 'meter', role: 'meter', 'aria-label': `${name}: rows kept`, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': Math.round((used / budget) * 100), 'aria-valuetext': `${bytes(used)} of ${bytes(budget)}` }, bar),
        h('span', { class: 'tier-bytes', text: `${bytes(used)} of ${bytes(budget)}`, title: percent(used / budget) }));
    }));
  }
}

export const nameOf = (chunk) => chunk.name || `${chunk.kind} ${chunk.id.slice(0, 8)}`;

function facts(chunk) {
  const place = chunk.source ? sourceOf(chunk.source) : null;
  return [
    chunk.kind === 'context' ? '' : h('span', { class: 'kind', text: chunk.kind }),
    h('span', { text: tokens(chunk.tokens) }),
    h('span', { class: 'place' }, h('i', { class: `swatch ${place ? `from-${place}` : 'from-nowhere'}` }), place ? SOURCES[place].place : 'not computed'),
    chunk.uses ? h('span', { text: chunk.uses === 1 ? '1 use' : `${count(chunk.uses)} uses` }) : '',
  ].filter(Boolean);
}

async function readText(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`It has ${bytes(file.size)}, and at most ${bytes(MAX_FILE_BYTES)} can be sent. Cut it into parts.`);
  const data = new Uint8Array(await file.arrayBuffer());
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(data);
  } catch {
    throw new Error('It is not text in UTF-8. Only text can be read: convert it first.');
  }
  if (text.includes('\0')) throw new Error('It is not text. Only text can be read: convert it first.');
  if (!text.trim()) throw new Error('It is empty.');
  return text;
}
