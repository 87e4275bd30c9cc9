// The list of conversations: open, rename, delete, search. It owns the list's elements and what is
// searched for; the conversations are the store's.

import { count, fill, h } from './dom.js';
import { icon } from './icons.js';
import { titleOf } from './store.js';

/** With fewer conversations there is nothing to search. */
const SEARCH_FROM = 2;

export class Conversations {
  /** `on`: open(id), removed(title, undo). */
  constructor({ store, list, search, on }) {
    Object.assign(this, { store, list, search, on });
    this.renaming = null;
    search.addEventListener('input', () => this.draw());
  }

  draw() {
    const all = this.store.list();
    const wanted = this.search.value.trim().toLowerCase();
    this.search.hidden = all.length < SEARCH_FROM && !wanted;
    const found = wanted ? all.filter((conversation) => says(conversation, wanted)) : all;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const none = wanted ? `Nothing found for “${this.search.value.trim()}”.` : 'None yet. What you ask is kept in this browser.';
    fill(this.list, found.length ? found.map((conversation) => this.#entry(conversation)) : h('li', { class: 'chunks-empty', text: none }));
    if (focused) this.list.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  #entry(conversation) {
    const { id, turns, updated } = conversation;
    const title = titleOf(conversation);
    const isOpen = id === this.store.data.current;
    if (this.renaming === id) return h('li', { class: 'chunk' }, this.#form(conversation));
    const n = turns.filter(({ role }) => role === 'user').length;
    return h('li', { class: `chunk${isOpen ? ' used' : ''}` },
      h('button', { type: 'button', class: 'chunk-pick', 'aria-current': isOpen ? 'true' : undefined, data: { focus: `open ${id}` }, title, on: { click: () => this.on.open(id) } },
        h('span', { class: 'chunk-name', dir: 'auto', text: title }),
        h('span', { class: 'chunk-facts' }, h('span', { text: n === 1 ? '1 question' : `${count(n)} questions` }), h('span', { text: day(updated) }))),
      h('div', { class: 'chunk-actions' },
        h('button', { type: 'button', class: 'ghost small', 'aria-label': `Rename ${title}`, title: 'Rename', data: { focus: `rename ${id}` }, on: { click: () => this.#rename(id) } }, icon('edit')),
        h('button', { type: 'button', class: 'ghost small', 'aria-label': `Delete ${title}`, title: 'Delete', on: { click: () => this.#remove(id, title) } }, icon('trash'))));
  }

  #form(conversation) {
    const field = h('input', { type: 'text', 'aria-label': 'Name of the conversation', maxlength: 120, dir: 'auto' });
    field.value = titleOf(conversation);
    const end = (title) => {
      if (this.renaming !== conversation.id) return;
      this.renaming = null;
      if (title !== null) this.store.rename(conversation.id, title);
      this.draw();
      this.list.querySelector(`[data-focus="rename ${CSS.escape(conversation.id)}"]`)?.focus();
    };
    field.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return;
      event.stopPropagation();
      end(null);
    });
    field.addEventListener('blur', () => end(field.value));
    return h('form', { class: 'rename', on: { submit: (event) => { event.preventDefault(); end(field.value); } } }, field);
  }

  #rename(id) {
    this.renaming = id;
    this.draw();
    const field = this.list.querySelector('.rename input');
    field.focus();
    field.select();
  }

  #remove(id, title) {
    this.on.removed(id, title);
    (this.list.querySelector('button') ?? document.getElementById('question')).focus();
  }
}

const says = (conversation, wanted) =>
  titleOf(conversation).toLowerCase().includes(wanted) || conversation.turns.some(({ text }) => text.toLowerCase().includes(wanted));

/** A day in few words. */
function day(ms) {
  const date = new Date(ms);
  const today = new Date();
  if (date.toDateString() === today.toDateString()) return date.toLocaleTimeString('en', { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
  return date.toLocaleDateString('en', { day: 'numeric', month: 'short', year: date.getFullYear() === today.getFullYear() ? undefined : 'numeric' });
}
