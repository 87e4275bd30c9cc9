// The shelf: the chunks that the server has stored, where their rows are, and how full the tiers are.
// It owns that list and what can be done to its entries. What goes into a prompt is the tray's: the
// shelf only says that a chunk was picked.

import { bytes, count, fill, h, percent, tokens } from './dom.js';
import { readText } from './files.js';
import { icon } from './icons.js';
import { explain } from './notice.js';
import { SOURCES, sourceOf } from './ribbon.js';

/** The type by which a chunk is dragged. */
export const DRAGGED = 'application/x-weft-chunk';

export class Shelf extends EventTarget {
  constructor({ api, list, tiers, notice, elsewhere, counter }) {
    super();
    Object.assign(this, { api, list, tiers, notice, elsewhere, counter });
    this.unread = h('div');
    notice.before(this.unread);
    this.chunks = [];
    this.inPrompt = new Set();
    // Chunks that were deleted here and can still be brought back: the server has them yet.
    this.deleted = new Set();
    this.loaded = false;
    this.draw();
  }

  byId(id) {
    return this.shown.find((chunk) => chunk.id === id);
  }

  get shown() {
    return this.chunks.filter(({ id }) => !this.deleted.has(id));
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

  /** Stores files, and reports each that was stored. */
  async addFiles(files) {
    this.showError(null);
    for (const file of files) {
      try {
        const { text, encoding } = await readText(file);
        const chunk = await this.add('context', text, file.name);
        this.dispatchEvent(new CustomEvent('added', { detail: { chunk, encoding } }));
      } catch (error) {
        this.showError(error, `${file.name} was not added`);
      }
    }
    await this.load();
  }

  /** Stores a text and returns its entry. If it is there under another name, that name stays, and the shelf asks. */
  async add(kind, text, called) {
    // Commands take names as words.
    const name = called.trim().split(/\s+/).join('-');
    // Only the server knows which texts are the same: without a name it changes nothing of what it has.
    const known = await this.api.addChunk(kind, text);
    const chunk = known.name ? known : await this.api.addChunk(kind, text, this.#free(name));
    this.deleted.delete(chunk.id);
    if (!this.byId(chunk.id)) this.chunks.unshift(chunk);
    if (known.name && known.name !== name) this.#askName(chunk, kind, text, name);
    this.draw();
    return chunk;
  }

  /** A name that no text on the shelf has, with a number if need be. */
  #free(name) {
    const isTaken = (free) => this.chunks.some((chunk) => chunk.name === free);
    let free = name;
    for (let n = 2; isTaken(free); n++) free = `${name}-${n}`;
    return free;
  }

  #askName(chunk, kind, text, name) {
    const rename = async () => {
      box.remove();
      await this.#change(chunk, 'renamed', async () => {
        this.dispatchEvent(new CustomEvent('renamed', { detail: await this.api.addChunk(kind, text, name) }));
      });
    };
    const box = h('div', { class: 'notice asks', role: 'alert' },
      h('p', { class: 'notice-title', text: `${name} is on the shelf as ${nameOf(chunk)}` }),
      h('p', { class: 'notice-cure', text: 'The text is the same, so it is stored once. Which name shall it have?' }),
      h('p', { class: 'notice-actions' },
        h('button', { type: 'button', class: 'outline', text: `Keep ${nameOf(chunk)}`, on: { click: () => box.remove() } }),
        h('button', { type: 'button', class: 'outline', text: `Rename to ${name}`, on: { click: rename } })));
    this.#show(box);
  }

  pick(chunk) {
    this.dispatchEvent(new CustomEvent('pick', { detail: chunk }));
  }

  async #change(chunk, what, does) {
    try {
      await does();
    } catch (error) {
      this.showError(error, `${nameOf(chunk)} was not ${what}`);
    }
    await this.load();
  }

  /** Shows what failed, until the user dismisses it or adds files again; null clears it. */
  showError(error, what) {
    if (!error) return [this.notice, this.elsewhere].forEach((place) => fill(place));
    const notice = explain(error, what, { Dismiss: () => notice.remove() });
    return this.#show(notice);
  }

  /** Puts a message where it is seen: on the shelf, or `elsewhere` if the shelf is a closed drawer. */
  #show(message) {
    const isSeen = getComputedStyle(this.notice).visibility === 'visible';
    (isSeen ? this.notice : this.elsewhere).append(message);
  }

  draw() {
    const { shown } = this;
    this.counter.textContent = shown.length ? count(shown.length) : '';
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    fill(this.list, shown.length ? shown.map((chunk) => this.#entry(chunk)) : this.#empty());
    if (focused) this.list.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
    this.#drawTiers();
  }

  #empty() {
    return h('li', { class: 'chunks-empty' }, this.loaded
      ? 'Empty. Files that you add are read once and kept, and can be part of any prompt.'
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
          type: 'button', class: 'ghost small', 'aria-label': `Delete ${name}`, title: 'Delete it and what was computed of it',
          on: { click: () => this.#delete(chunk) },
        }, icon('trash'))));
    entry.addEventListener('dragstart', (event) => {
      event.dataTransfer.setData(DRAGGED, chunk.id);
      event.dataTransfer.effectAllowed = 'copy';
    });
    return entry;
  }

  /** Takes a chunk off the shelf. The server forgets it when that is final; see `commit`. */
  #delete(chunk) {
    this.deleted.add(chunk.id);
    this.draw();
    this.dispatchEvent(new CustomEvent('gone', { detail: chunk }));
    (this.list.querySelector('button') ?? document.getElementById('add-file')).focus();
  }

  /** Brings back what was deleted and is not yet forgotten. */
  restore() {
    this.deleted.clear();
    this.draw();
  }

  /** Has the server forget what was deleted. `isLeaving`: the page is being closed. */
  async commit(isLeaving = false) {
    const ids = [...this.deleted];
    for (const id of ids) {
      const chunk = this.chunks.find((one) => one.id === id) ?? { id, name: id };
      try {
        await (isLeaving ? void this.api.deleteChunk(id, true).catch(() => {}) : this.api.deleteChunk(id));
      } catch (error) {
        this.showError(error, `${nameOf(chunk)} was not deleted`);
      }
      this.chunks = this.chunks.filter((one) => one.id !== id);
      this.deleted.delete(id);
    }
    if (ids.length && !isLeaving) await this.load();
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
