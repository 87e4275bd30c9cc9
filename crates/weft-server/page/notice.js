// Failures in words, where they happened: what went wrong, what the server said, what to do next.

import { h } from './dom.js';

const WORDS = {
  gone: ['The server does not answer', 'It may have been stopped. Start it with `weft serve`, then try again.'],
  key: ['The server wants its API key', 'Give the key that it was started with.'],
  busy: ['The server is busy', 'All its lanes and its queue are full. Try again in a moment.'],
  long: ['The prompt is too long', 'Take a document out of the prompt, start a new conversation, or serve with a larger `--ctx-size`.'],
  loading: ['The server is not ready', 'The model is being loaded, or the server is shutting down. Try again in a moment.'],
  fault: ['The server failed', 'Try again; if it fails again, its log says why.'],
  broken: ['The answer broke off', 'What came is kept. Try again for the whole of it.'],
  refused: ['The server refused this', ''],
};

/** A failure as a box. `actions` are buttons: {words: what they do}. */
export function explain(error, what = null, actions = {}) {
  const [title, cure] = WORDS[error.kind] ?? [what ?? 'That did not work', ''];
  const said = error.message && !title.startsWith(error.message.replace(/\.$/, '')) ? error.message : '';
  return h('div', { class: 'notice', role: 'alert' },
    h('p', { class: 'notice-title', text: what && error.kind ? `${what}: ${lower(title)}` : title }),
    said && h('p', { class: 'notice-said', text: sentence(said) }),
    cure && h('p', { class: 'notice-cure' }, code(cure)),
    Object.keys(actions).length > 0 && h('p', { class: 'notice-actions' }, Object.entries(actions).map(([words, does]) =>
      h('button', { type: 'button', class: 'outline', text: words, on: { click: does } }))));
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}`;

const lower = (text) => text.charAt(0).toLowerCase() + text.slice(1);

const code = (text) => text.split('`').map((part, index) => (index % 2 ? h('code', { text: part }) : part));

/** Asks for the key; `done` gets it. */
export function askKey(done, wrong) {
  const input = h('input', { type: 'password', id: 'api-key', autocomplete: 'off', required: true, 'aria-describedby': 'api-key-hint' });
  return h('form', {
    class: 'notice key', on: { submit: (event) => { event.preventDefault(); done(input.value.trim()); } },
  },
    h('p', { class: 'notice-title', text: wrong ? 'That is not the server’s key' : 'This server wants its API key' }),
    h('p', { class: 'notice-cure', id: 'api-key-hint' }, 'It was started with ', h('code', { text: '--api-key' }), '. The key is kept until this tab is closed.'),
    h('div', { class: 'key-row' }, h('label', { class: 'sr', for: 'api-key', text: 'API key' }), input, h('button', { type: 'submit', class: 'solid', text: 'Use it' })));
}
