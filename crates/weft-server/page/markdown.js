// Markdown as elements. What a model writes is never markup here: every character of it ends up in a
// text node, and the only attribute made from it is a link's address, which must be http or https.
// It knows no chat. A text that grows is redrawn from its first changed block on.

import { h } from './dom.js';

/** Draws a text into a node; blocks that are as they were stay. */
export function draw(node, text) {
  const blocks = split(text);
  const had = node.drawnBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < had.length && blocks[same].source === had[same]) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  for (const block of blocks.slice(same)) node.append(element(block));
  node.drawnBlocks = blocks.map((block) => block.source);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_LINE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Cuts a text into blocks: {type, source, …}. */
function split(text) {
  const lines = text.replace(/\r\n?/g, '\n').split('\n');
  const blocks = [];
  let at = 0;
  const take = (type, end, more = {}) => {
    blocks.push({ type, source: `${type}\n${lines.slice(at, end).join('\n')}`, lines: lines.slice(at, end), ...more });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (line.trim() === '') {
      at += 1;
    } else if (fence) {
      let end = at + 1;
      while (end < lines.length && !(lines[end].trim().startsWith(fence[1]) && /^[`~]+$/.test(lines[end].trim()))) end += 1;
      take('code', Math.min(end + 1, lines.length), { language: fence[2], closed: end < lines.length });
    } else if (HEADING.test(line)) {
      take('heading', at + 1);
    } else if (RULE.test(line)) {
      take('rule', at + 1);
    } else if (QUOTE.test(line)) {
      take('quote', endOf(lines, at, (next) => QUOTE.test(next)));
    } else if (ITEM.test(line)) {
      take('list', endOf(lines, at, (next, index) => goesOn(line, next) || isGap(line, lines, index)));
    } else if (line.includes('|') && TABLE_LINE.test(lines[at + 1] ?? '') && lines[at + 1].includes('-')) {
      take('table', endOf(lines, at, (next) => next.includes('|')));
    } else {
      take('paragraph', endOf(lines, at, (next) => next.trim() !== '' && !starts(next)));
    }
  }
  return blocks;
}

function endOf(lines, at, goesOn) {
  let end = at + 1;
  while (end < lines.length && goesOn(lines[end], end)) end += 1;
  while (end > at + 1 && lines[end - 1].trim() === '') end -= 1;
  return end;
}

/** Whether a line is part of the list that begins with `first`: indented, or an item of the same sort. */
function goesOn(first, line) {
  const item = ITEM.exec(line);
  if (!item) return /^\s{2,}\S/.test(line);
  return item[1].length > 1 || /\d/.test(item[2]) === /\d/.test(ITEM.exec(first)[2]);
}

/** Whether a list goes on after this empty line. */
const isGap = (first, lines, index) => lines[index].trim() === '' && goesOn(first, lines[index + 1] ?? '');

const starts = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

function element(block) {
  const { type, lines } = block;
  if (type === 'rule') return h('hr');
  if (type === 'code') return code(block);
  if (type === 'heading') {
    const [, marks, text] = HEADING.exec(lines[0]);
    // The page's own headings are 1 and 2.
    return h(`h${Math.min(marks.length + 2, 6)}`, {}, inline(text));
  }
  if (type === 'quote') {
    const node = h('blockquote');
    draw(node, lines.map((line) => line.replace(QUOTE, '')).join('\n'));
    return node;
  }
  if (type === 'list') return list(lines);
  if (type === 'table') return table(lines);
  return h('p', {}, paragraph(lines));
}

function paragraph(lines) {
  return lines.flatMap((line, index) => {
    const last = index === lines.length - 1;
    return [...inline(line.trim()), last ? '' : /( {2,}|\\)$/.test(line) ? h('br') : '\n'];
  });
}

function code({ lines, language, closed }) {
  const text = lines.slice(1, closed ? -1 : undefined).join('\n');
  return h('pre', { data: { language }, tabindex: '0', 'aria-label': language ? `Code, ${language}` : 'Code' }, h('code', { text }));
}

function list(lines) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[3]]);
    else items.at(-1).push(line.replace(/^\s{1,4}/, ''));
  }
  const number = Number.parseInt(mark, 10);
  return h(ordered ? 'ol' : 'ul', { start: ordered && number !== 1 ? number : undefined }, items.map((item) => {
    const node = h('li');
    // A single line is words; more of it is blocks.
    if (item.filter((line) => line.trim()).length === 1) node.append(...inline(item[0]));
    else draw(node, item.join('\n'));
    return node;
  }));
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
  const row = (line, tag) => h('tr', {}, cells(line).map((cell) => h(tag, {}, inline(cell))));
  return h('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': 'Table' },
    h('table', {}, h('thead', {}, row(lines[0], 'th')), h('tbody', {}, lines.slice(2).map((line) => row(line, 'td')))));
}

const INLINE = [
  { pattern: /^\\([\\`*_{}[\]()#+\-.!|>~])/, make: ([, character]) => character },
  { pattern: /^(`+)([^]*?[^`])\1(?!`)/, make: ([, , text]) => h('code', { text: text.replace(/^ (.*) $/, '$1') }) },
  { pattern: /^\*\*(?=\S)([^]*?\S)\*\*/, make: ([, text]) => h('strong', {}, inline(text)) },
  { pattern: /^__(?=\S)([^]*?\S)__(?!\w)/, make: ([, text]) => h('strong', {}, inline(text)), atWord: true },
  { pattern: /^\*(?=[^\s*])([^]*?[^\s*])\*(?!\*)/, make: ([, text]) => h('em', {}, inline(text)) },
  { pattern: /^_(?=[^\s_])([^]*?[^\s_])_(?!\w)/, make: ([, text]) => h('em', {}, inline(text)), atWord: true },
  { pattern: /^~~(?=\S)([^]*?\S)~~/, make: ([, text]) => h('del', {}, inline(text)) },
  { pattern: /^\[([^\]]+)\]\(\s*(\S+?)(?:\s+"[^"]*")?\s*\)/, make: ([whole, text, address]) => link(text, address) ?? whole },
  { pattern: /^<(https?:\/\/[^\s<>]+)>/, make: ([whole, address]) => link(address, address) ?? whole },
  { pattern: /^https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"*_`\]]/, make: ([address]) => link(address, address) ?? address, atWord: true },
];

/** The words of a line as nodes. */
function inline(text) {
  const nodes = [];
  let plain = '';
  let at = 0;
  while (at < text.length) {
    const rest = text.slice(at);
    const after = at > 0 && /\w/.test(text[at - 1]);
    let found = null;
    if (/[\\`*_~[<h]/.test(rest[0])) {
      for (const { pattern, make, atWord } of INLINE) {
        if (atWord && after) continue;
        const match = pattern.exec(rest);
        if (match) {
          found = { node: make(match), length: match[0].length };
          break;
        }
      }
    }
    if (!found) {
      plain += rest[0];
      at += 1;
      continue;
    }
    if (typeof found.node === 'string') {
      plain += found.node;
    } else {
      if (plain) nodes.push(plain);
      plain = '';
      nodes.push(found.node);
    }
    at += found.length;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** A link, where the address is one that a person may follow. */
function link(text, address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return null;
  const words = text === address ? [text] : inline(text);
  return h('a', { href: url.href, target: '_blank', rel: 'noopener noreferrer nofollow' }, words);
}
