// Markdown as elements. marked cuts the text into tokens; this file makes elements of them. What a
// model writes is never markup here: every character of it ends up in a text node, and the only
// attribute made from it is a link's address, which must be http or https. Pictures become links:
// the page loads nothing from other servers. A text that grows is redrawn from its first changed
// block on.

import { codeBlock } from './code.js';
import { h } from './dom.js';
import { formula, mathTokens } from './maths.js';
import { Marked } from './vendor/marked.js';

const marked = new Marked({ gfm: true, extensions: mathTokens });

/** Draws a text into a node; blocks that are as they were stay. */
export function draw(node, text) {
  const blocks = marked.lexer(text).filter(({ type }) => type !== 'space' && type !== 'def');
  const had = node.drawnBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < had.length && blocks[same].raw === had[same]) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  for (const token of blocks.slice(same)) node.append(block(token));
  node.drawnBlocks = blocks.map(({ raw }) => raw);
}

/** A block. Each finds its own direction, so that Arabic and Hebrew begin at the right. */
function block(token) {
  switch (token.type) {
    case 'hr': return h('hr');
    case 'code': return codeBlock(token.text, token.lang ?? '');
    case 'formula': return formula(token);
    // The page's own headings are 1 and 2.
    case 'heading': return h(`h${Math.min(token.depth + 2, 6)}`, { dir: 'auto' }, inline(token.tokens));
    case 'blockquote': return h('blockquote', { dir: 'auto' }, token.tokens.filter(({ type }) => type !== 'space').map(block));
    case 'list': return list(token);
    case 'table': return table(token);
    case 'paragraph': return h('p', { dir: 'auto' }, inline(token.tokens));
    default: return h('p', { dir: 'auto' }, token.tokens ? inline(token.tokens) : token.raw.trim());
  }
}

function list({ ordered, start, items }) {
  return h(ordered ? 'ol' : 'ul', { start: ordered && start !== 1 ? start : undefined, dir: 'auto' },
    items.map(({ tokens, task, checked }) => h('li', { dir: 'auto', class: task ? 'task' : undefined },
      task && h('input', { type: 'checkbox', disabled: true, checked, 'aria-label': checked ? 'done' : 'to do' }),
      tokens.filter(({ type }) => type !== 'space' && type !== 'checkbox').flatMap((token) => (token.type === 'text' ? inline(token.tokens ?? [token]) : [block(token)])))));
}

function table({ header, rows }) {
  const row = (cells, tag) => h('tr', {}, cells.map(({ tokens, align }) => h(tag, { class: align ? `align-${align}` : undefined, dir: 'auto' }, inline(tokens))));
  return h('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': 'Table' },
    h('table', {}, h('thead', {}, row(header, 'th')), h('tbody', {}, rows.map((cells) => row(cells, 'td')))));
}

/** The words of a line as nodes. */
function inline(tokens) {
  return tokens.flatMap((token) => {
    switch (token.type) {
      case 'strong': case 'em': case 'del': return [h(token.type, {}, inline(token.tokens))];
      case 'codespan': return [h('code', { text: token.text })];
      case 'br': return [h('br')];
      case 'formula': return [formula(token)];
      case 'link': case 'image': return [link(token) ?? token.raw];
      case 'checkbox': return [];
      case 'text': return token.tokens ? inline(token.tokens) : [decoded(token.text)];
      case 'escape': return [token.text];
      default: return [token.raw];
    }
  });
}

const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: '\'', nbsp: '\u00a0', hellip: '…', mdash: '—', ndash: '–', times: '×' };

const decoded = (text) => text.replace(/&(#x[\da-f]{1,6}|#\d{1,7}|\w{2,8});/gi, (whole, name) => {
  if (name[0] !== '#') return ENTITIES[name] ?? whole;
  const point = name[1].toLowerCase() === 'x' ? Number.parseInt(name.slice(2), 16) : Number.parseInt(name.slice(1), 10);
  return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : whole;
});

/** A link, where the address is one that a person may follow. */
function link({ type, href, text, tokens }) {
  let url;
  try {
    url = new URL(href);
  } catch {
    return null;
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return null;
  const words = type === 'image' || !tokens?.length ? [text || href] : inline(tokens);
  return h('a', { href: url.href, target: '_blank', rel: 'noopener noreferrer nofollow' }, words);
}
