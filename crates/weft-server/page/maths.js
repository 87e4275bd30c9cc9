// Formulas in answers. Temml makes MathML of TeX, which the browser draws itself; what it cannot read
// is shown as it was written. TeX from a model is data: `trust` is off, so that it can name no address.

import { h } from './dom.js';
import temml from './vendor/temml.js';

/** Characters of a formula that are read as one. */
const MAX_TEX = 4000;

const token = (match, display) => (match ? { type: 'formula', raw: match[0], text: match[1].trim(), display } : undefined);

/** What marked must know to find formulas: `$$…$$` and `\[…\]` for blocks, `$…$` and `\(…\)` in lines. */
export const mathTokens = [
  {
    name: 'formula',
    level: 'block',
    start: (text) => /^ {0,3}(\$\$|\\\[)/m.exec(text)?.index,
    tokenizer: (text) => token(/^ {0,3}\$\$([^$]{1,4000}?)\$\$ *(?:\n+|$)/.exec(text) ?? /^ {0,3}\\\[([^]{1,4000}?)\\\] *(?:\n+|$)/.exec(text), true),
  },
  {
    name: 'formula',
    level: 'inline',
    start: (text) => /\$|\\\(|\\\[/.exec(text)?.index,
    tokenizer(text) {
      const display = /^\$\$([^$]{1,4000}?)\$\$/.exec(text) ?? /^\\\[([^]{1,4000}?)\\\]/.exec(text);
      if (display) return token(display, true);
      // Money is no formula: no space inside the dollars, no digit after them.
      return token(/^\$(?!\s)([^$\n]{1,4000}?)(?<![\s\\])\$(?!\d)/.exec(text) ?? /^\\\(([^]{1,4000}?)\\\)/.exec(text), false);
    },
  },
];

/** A formula as an element. */
export function formula({ text, raw, display }) {
  const node = h(display ? 'div' : 'span', { class: display ? 'formula display' : 'formula', dir: 'ltr', tabindex: display ? '0' : undefined, role: display ? 'group' : undefined, 'aria-label': display ? 'Formula' : undefined });
  try {
    if (text.length > MAX_TEX) throw new Error('too long');
    temml.render(text, node, { displayMode: display, throwOnError: true, trust: false, maxExpand: 100 });
  } catch {
    node.replaceChildren(h('code', { text: raw.trim() }));
  }
  return node;
}
