// A short message at the lower edge, with what undoes it. There is one at a time. It goes by itself,
// but not while somebody points at it or has the focus in it.

import { fill, h } from './dom.js';

const SHOWN_MS = 10_000;

export class Toast {
  constructor(node) {
    this.node = node;
    this.timer = 0;
    this.end = null;
    for (const event of ['pointerenter', 'focusin']) node.addEventListener(event, () => clearTimeout(this.timer));
    for (const event of ['pointerleave', 'focusout']) node.addEventListener(event, () => this.#wait());
  }

  /**
   * Says something. `undo` is what its button does. `end` is called when it goes and was not undone;
   * a message of the same `kind` takes its place without that.
   */
  show(words, { undo = null, end = null, kind = words } = {}) {
    if (this.kind !== kind) this.close();
    Object.assign(this, { end, kind });
    const act = () => { this.end = null; this.close(); undo(); };
    fill(this.node, h('span', { text: words }), undo && h('button', { type: 'button', text: 'Undo', on: { click: act } }));
    this.node.hidden = false;
    this.#wait();
  }

  close() {
    clearTimeout(this.timer);
    const { end } = this;
    Object.assign(this, { end: null, kind: null });
    this.node.hidden = true;
    end?.();
  }

  #wait() {
    clearTimeout(this.timer);
    if (!this.node.hidden) this.timer = setTimeout(() => this.close(), SHOWN_MS);
  }
}
