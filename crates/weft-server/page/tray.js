// The tray: what stands in the prompt before the question, in its order: the system prompt and the
// documents. It owns that order. Where chunks are stored is the shelf's, what is sent is prompt.js's.

import { count, fill, h, head, tokens } from './dom.js';
import { icon } from './icons.js';
import { DRAGGED, nameOf } from './shelf.js';

/** The first words of a chunk: the shelf's, or those that were kept. */
function textOf(chunk) {
  if (chunk.head === undefined) return chunk.text ?? '';
  return chunk.bytes > chunk.head.length + 3 ? `${chunk.head.trimEnd()}…` : chunk.head;
}

export class Tray {
  constructor({ node, store, shelf, editSystem, speak }) {
    Object.assign(this, { node, store, shelf, editSystem, speak });
    this.draw();
    this.#takeDrops();
  }

  get contexts() {
    return this.store.data.contexts;
  }

  has(id) {
    return this.contexts.some((context) => context.id === id);
  }

  /** Puts a chunk in, at a place or at the end. */
  put(chunk, at = this.contexts.length) {
    const entry = { id: chunk.id, name: nameOf(chunk), tokens: chunk.tokens, text: textOf(chunk) };
    this.store.update((data) => {
      const from = data.contexts.findIndex((context) => context.id === chunk.id);
      if (from >= 0) data.contexts.splice(from, 1);
      data.contexts.splice(from >= 0 && from < at ? at - 1 : at, 0, entry);
    });
    this.speak(`${entry.name} is in the prompt, document ${this.contexts.findIndex(({ id }) => id === chunk.id) + 1} of ${this.contexts.length}.`);
  }

  take(id) {
    const gone = this.contexts.find((context) => context.id === id);
    if (!gone) return;
    this.store.update((data) => { data.contexts = data.contexts.filter((context) => context.id !== id); });
    this.speak(`${gone.name} is out of the prompt.`);
  }

  draw() {
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const { system } = this.store.data.settings;
    const label = this.contexts.length ? `In the prompt: ${count(this.contexts.length)}` : 'In the prompt';
    const items = this.contexts.map((context, index) => this.#chip(context, index));
    fill(this.node,
      h('ol', { class: 'chips', 'aria-label': label },
        h('li', {}, h('button', { type: 'button', class: `chip system${system.trim() ? '' : ' none'}`, title: system.trim() || 'Give the model a system prompt', data: { focus: 'system' }, on: { click: this.editSystem } },
          h('span', { class: 'chip-level', text: 'system' }), system.trim() ? head(system, 28) : 'none')),
        items));
    if (focused) this.node.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  #chip(context, index) {
    const last = this.contexts.length - 1;
    const { id, name } = context;
    const move = (to, side) => {
      this.put(context, to > index ? to + 1 : to);
      // The chip took its buttons along; at an end the other one is left.
      const buttons = this.node.querySelectorAll(`[data-id="${CSS.escape(id)}"] .chip-move`);
      (buttons[side]?.disabled ? buttons[1 - side] : buttons[side])?.focus();
    };
    const chip = h('li', { class: 'chip document', draggable: 'true', data: { id }, title: context.text || name },
      h('span', { class: 'chip-name', text: name }),
      h('span', { class: 'chip-tokens', text: count(context.tokens ?? 0), title: tokens(context.tokens ?? 0) }),
      last > 0 && h('button', { type: 'button', class: 'chip-move', 'aria-label': `Move ${name} forward`, disabled: index === 0, on: { click: () => move(index - 1, 0) } }, icon('left')),
      last > 0 && h('button', { type: 'button', class: 'chip-move', 'aria-label': `Move ${name} back`, disabled: index === last, on: { click: () => move(index + 1, 1) } }, icon('right')),
      h('button', { type: 'button', class: 'chip-remove', 'aria-label': `Take ${name} out of the prompt`, on: { click: () => this.#remove(id, index) } }, icon('close')));
    chip.addEventListener('dragstart', (event) => {
      event.dataTransfer.setData(DRAGGED, id);
      event.dataTransfer.effectAllowed = 'move';
    });
    return chip;
  }

  #remove(id, index) {
    this.take(id);
    const left = this.node.querySelectorAll('.chip-remove');
    (left[Math.min(index, left.length - 1)] ?? document.getElementById('question')).focus();
  }

  /** Chunks that are dragged here stand where they are dropped. */
  #takeDrops() {
    const area = this.node.closest('form');
    const isChunk = (event) => event.dataTransfer?.types.includes(DRAGGED);
    const placeAt = (event) => {
      const chips = [...this.node.querySelectorAll('.document')];
      const after = chips.findIndex((chip) => {
        const box = chip.getBoundingClientRect();
        return event.clientY < box.bottom && event.clientX < box.left + box.width / 2;
      });
      return after < 0 ? chips.length : after;
    };
    area.addEventListener('dragover', (event) => {
      if (!isChunk(event)) return;
      event.preventDefault();
      area.classList.add('receives');
      const at = placeAt(event);
      this.node.querySelectorAll('.document').forEach((chip, index) => chip.classList.toggle('before', index === at));
    });
    const end = () => {
      area.classList.remove('receives');
      this.node.querySelectorAll('.before').forEach((chip) => chip.classList.remove('before'));
    };
    area.addEventListener('dragleave', (event) => { if (!area.contains(event.relatedTarget)) end(); });
    area.addEventListener('drop', (event) => {
      if (!isChunk(event)) return;
      event.preventDefault();
      const id = event.dataTransfer.getData(DRAGGED);
      const at = placeAt(event);
      end();
      const chunk = this.shelf.byId(id) ?? this.contexts.find((context) => context.id === id);
      if (chunk) this.put(chunk, at);
    });
  }
}
