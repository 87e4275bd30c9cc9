// Code in an answer: its language, a button that copies it, and colours. Prism finds the tokens; they
// become elements here, so that no text is ever markup.

import { copyButton } from './copy.js';
import { h } from './dom.js';
import Prism from './vendor/prism.js';

/** Names that people give languages and Prism does not know. */
const OTHER_NAMES = {
  'c++': 'cpp', 'c#': 'csharp', rs: 'rust', golang: 'go', zsh: 'bash', console: 'shell-session',
  terminal: 'shell-session', jsonc: 'json', json5: 'json', node: 'javascript', mjs: 'javascript',
  h: 'c', hpp: 'cpp', vue: 'markup', make: 'makefile', patch: 'diff', conf: 'ini', ps1: 'powershell',
};

/** Longer code is shown without colours: it would be coloured anew with each token that comes. */
const MAX_COLOURED = 40_000;

/** A block of code. `info` is what stands after the fence: the language is its first word. */
export function codeBlock(text, info) {
  const language = info.trim().split(/[\s,{]/)[0];
  const name = language.toLowerCase();
  const grammar = Prism.languages[OTHER_NAMES[name] ?? name];
  const coloured = typeof grammar === 'object' && text.length <= MAX_COLOURED;
  return h('div', { class: 'code' },
    h('div', { class: 'code-head' }, h('span', { class: 'code-language', text: language || 'text' }), copyButton(() => text, 'Copy the code')),
    h('pre', { tabindex: '0', dir: 'ltr', 'aria-label': language ? `Code, ${language}` : 'Code' },
      h('code', {}, coloured ? Prism.tokenize(text, grammar).map(element) : text)));
}

function element(token) {
  if (typeof token === 'string') return token;
  const content = Array.isArray(token.content) ? token.content.map(element) : [element(token.content)];
  return h('span', { class: `tok-${token.type}` }, content);
}
