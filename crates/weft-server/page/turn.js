// One turn as elements: a question, or an answer with the ribbon of its context above it. It draws what
// it is given and reports what was clicked; it sends nothing and remembers nothing.

import { count, fill, h, time, tokens } from './dom.js';
import { icon } from './icons.js';
import { draw as drawMarkdown } from './markdown.js';
import { askKey, explain } from './notice.js';
import { isApproximate, nameChunks, ribbon, sums } from './ribbon.js';

/** A question. `on`: edit(text). */
export function questionView(turn, on) {
  const text = h('p', { class: 'question-text', text: turn.text });
  const view = h('article', { class: 'turn question', 'aria-label': 'Question' });
  const show = () => fill(view, text, h('div', { class: 'actions' },
    action('edit', 'Edit', () => fill(view, editor())), copyAction(() => turn.text)));
  const editor = () => {
    const area = h('textarea', { 'aria-label': 'Edit the question', rows: Math.min(turn.text.split('\n').length + 1, 12) });
    area.value = turn.text;
    const back = () => { show(); view.querySelector('button').focus(); };
    const form = h('form', {
      class: 'editor', on: {
        submit: (event) => {
          event.preventDefault();
          if (area.value.trim()) on.edit(area.value.trim());
        },
        keydown: (event) => {
          if (event.key === 'Escape') back();
          if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            form.requestSubmit();
          }
        },
      },
    }, area, h('div', { class: 'editor-foot' },
      h('span', { class: 'hint', text: 'What follows is asked anew.' }),
      h('button', { type: 'button', class: 'ghost', text: 'Cancel', on: { click: back } }),
      h('button', { type: 'submit', class: 'solid', text: 'Ask again' })));
    queueMicrotask(() => { area.focus(); area.setSelectionRange(area.value.length, area.value.length); });
    return form;
  };
  show();
  return view;
}

/** An answer. `on`: regenerate(), keep(), verify(), key(value), usesOf(id). */
export class AnswerView {
  constructor(turn, on) {
    this.on = on;
    this.context = h('div', { class: 'context' });
    this.thinkingText = h('div', { class: 'thinking-text' });
    this.thinkingWord = h('summary', { text: 'Thinking' });
    this.thinking = h('details', { class: 'thinking', hidden: true }, this.thinkingWord, this.thinkingText);
    this.body = h('div', { class: 'prose' });
    this.foot = h('div', { class: 'foot' });
    this.trouble = h('div');
    this.node = h('article', { class: 'turn answer', 'aria-label': 'Answer' }, this.context, this.thinking, this.body, this.trouble, this.foot);
    this.update(turn);
  }

  /** Draws all of it. */
  update(turn) {
    this.turn = turn;
    this.node.dataset.state = turn.state;
    this.node.setAttribute('aria-busy', String(turn.state === 'writing'));
    this.write(turn);
    this.#drawContext(turn);
    this.#drawTrouble(turn);
    this.#drawFoot(turn);
  }

  /** Draws what has come of the text. */
  write(turn) {
    drawMarkdown(this.body, turn.text);
    this.thinking.hidden = !turn.thinking;
    if (turn.thinking) {
      this.thinkingText.textContent = turn.thinking;
      this.thinkingWord.textContent = turn.state === 'writing' && !turn.text ? 'Thinking…' : 'Thought before answering';
    }
    this.node.classList.toggle('waiting', turn.state === 'writing' && !turn.text && !turn.thinking);
    if (turn.state === 'writing') this.#drawLive(turn);
  }

  #drawLive({ live }) {
    if (!live?.tokens) return fill(this.foot, '');
    const speed = live.ms > 250 ? ` · ${count((live.tokens / live.ms) * 1000)} tok/s` : '';
    return fill(this.foot, h('p', { class: 'stats', text: `${tokens(live.tokens)}${speed}` }));
  }

  #drawContext(turn) {
    if (turn.report?.chunks?.length) {
      const names = nameChunks(turn.report, turn.sent ?? []);
      fill(this.context, this.#summary(turn), verdict(turn), ribbon(turn.report, names, this.on.usesOf));
      this.#fold(this.folded ?? false);
    } else if (turn.state === 'writing') {
      fill(this.context, h('div', { class: 'loom', 'aria-hidden': 'true' }, h('i'), h('i'), h('i')));
    } else {
      fill(this.context, '');
    }
  }

  /** Folds the ribbon to its segments, or shows the rest of it too. */
  #fold(isFolded) {
    this.folded = isFolded;
    this.context.classList.toggle('folded', isFolded);
    const button = this.context.querySelector('.fold');
    button?.setAttribute('aria-expanded', String(!isFolded));
  }

  /** Folds the ribbon of an answer that is no longer the last one. */
  fold() {
    this.#fold(true);
  }

  /** What came of the context in one line, and the badge. */
  #summary(turn) {
    const { prompt, kept, saved } = sums(turn.report);
    return h('header', { class: 'summary' },
      h('p', {}, [
        h('strong', { text: kept > 0 ? `${count(kept)} of ${count(prompt)}` : tokens(prompt) }),
        kept > 0 ? ' prompt tokens kept' : ' computed for this prompt',
        saved > 0 && h('span', { class: 'saved-short' }, ' · ', h('strong', { text: `${time(saved)} saved` }))]),
      this.#badge(turn),
      h('button', { type: 'button', class: 'ghost small fold', title: 'Legend and times', 'aria-label': 'Legend and times', 'aria-expanded': 'true', on: { click: () => this.#fold(!this.folded) } }, icon('down')));
  }

  #badge(turn) {
    const approximate = isApproximate(turn.report);
    const { verified, verifying } = turn;
    const word = verified ? (verified.exact ? 'exact' : `approximate (KL ${number(verified.kl)})`) : approximate ? 'approximate' : 'exact';
    const title = word === 'exact' ? 'The same as with a plain prompt, computed cold' : 'Documents did not see all that stood before them, so the answer may differ from a plain prompt’s';
    return h('div', { class: 'verdict' },
      h('span', { class: `badge ${word === 'exact' ? 'is-exact' : 'is-approximate'}`, title }, verified && icon('check'), word),
      !verified && turn.id && turn.state === 'done' && h('button', { type: 'button', class: 'verify', disabled: verifying, title: 'Rerun this answer cold and compare', text: verifying ? 'verifying…' : 'verify', on: { click: () => this.on.verify() } }));
  }

  #drawTrouble(turn) {
    if (turn.state === 'stopped') fill(this.trouble, h('p', { class: 'hint', text: 'Stopped. What came is kept in the conversation; a report comes only with a whole answer.' }));
    else if (turn.state !== 'failed') fill(this.trouble, '');
    else if (turn.error.kind === 'key') fill(this.trouble, askKey((key) => this.on.key(key), turn.error.wrongKey));
    else {
      const actions = { 'Try again': () => this.on.regenerate() };
      fill(this.trouble, explain(turn.error, null, actions));
    }
  }

  #drawFoot(turn) {
    if (turn.state === 'writing') return;
    if (turn.state === 'failed' && !turn.text) return void fill(this.foot);
    const { timings, usage } = turn;
    const stats = [
      usage && tokens(usage.completion_tokens),
      timings?.predicted_per_second > 0 && `${count(timings.predicted_per_second)} tok/s`,
      turn.firstMs && `first token after ${time(turn.firstMs)}`,
      turn.finish === 'length' && 'cut off at its longest',
      turn.finish === 'length' ? null : turn.state === 'stopped' && 'stopped',
    ].filter(Boolean);
    fill(this.foot,
      h('div', { class: 'actions' },
        turn.text && copyAction(() => turn.text),
        action('redo', 'Regenerate', () => this.on.regenerate()),
        turn.text && turn.state === 'done' && action('keep', 'Keep on the shelf', () => this.on.keep())),
      stats.length > 0 && h('p', { class: 'stats', text: stats.join(' · ') }));
  }
}

/** What verifying found. */
function verdict({ verified, verifyError }) {
  if (verifyError) return h('p', { class: 'verdict-details wrong', role: 'alert', text: verifyError });
  if (!verified) return null;
  const found = verified.exact
    ? `no bit of any logit differs over ${tokens(verified.tokens)}`
    : `${count(verified.differing_tokens)} of ${tokens(verified.tokens)} would differ; |Δ log-probability| ${number(verified.mean_abs_logprob_difference)} on average, ${number(verified.max_abs_logprob_difference)} at most`;
  return h('p', { class: 'verdict-details', text: `Rerun cold: ${found}.` });
}

function action(name, words, does) {
  return h('button', { type: 'button', class: 'ghost small', title: words, on: { click: does } }, icon(name), h('span', { class: 'action-word', text: words }));
}

function copyAction(textOf) {
  const word = h('span', { class: 'action-word', text: 'Copy' });
  const button = h('button', { type: 'button', class: 'ghost small', title: 'Copy' }, icon('copy'), word);
  button.addEventListener('click', async () => {
    word.textContent = (await copy(textOf())) ? 'Copied' : 'Not allowed';
    setTimeout(() => { word.textContent = 'Copy'; }, 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without a secure origin there is no clipboard but the old one.
    const area = h('textarea', { class: 'sr' });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    return copied;
  }
}

/** A small number in few digits. */
function number(value) {
  if (value === 0) return '0';
  return value >= 0.001 ? value.toFixed(4).replace(/0+$/, '') : value.toExponential(1);
}
