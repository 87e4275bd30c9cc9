// One turn as elements: a question, or an answer with the line about its context above it. It draws
// what it is given and reports what was clicked; it sends nothing and remembers nothing but which
// details are open.

import { Tint, canTint } from './accepted.js';
import { copyButton } from './copy.js';
import { count, fill, h, time, tokens } from './dom.js';
import { icon } from './icons.js';
import { draw as drawMarkdown } from './markdown.js';
import { askKey, explain } from './notice.js';
import { Ribbon, isApproximate, keptShare, sums } from './ribbon.js';

/** A question. `on`: edit(text), removes() in words. */
export function questionView(turn, on) {
  const text = h('p', { class: 'question-text', dir: 'auto', text: turn.text });
  const view = h('article', { class: 'turn question', 'aria-label': 'Question' });
  const show = () => fill(view, text, h('div', { class: 'actions' },
    action('edit', 'Edit', () => fill(view, editor())), copyButton(() => turn.text)));
  const editor = () => {
    const area = h('textarea', { 'aria-label': 'Edit the question', dir: 'auto', rows: Math.min(turn.text.split('\n').length + 1, 12) });
    area.value = turn.text;
    const back = () => { show(); view.querySelector('button').focus(); };
    const form = h('form', {
      class: 'editor', on: {
        submit: (event) => {
          event.preventDefault();
          if (area.value.trim()) on.edit(area.value.trim());
        },
        keydown: (event) => {
          if (event.key === 'Escape') {
            event.stopPropagation();
            back();
          }
          if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            form.requestSubmit();
          }
        },
      },
    }, area, h('div', { class: 'editor-foot' },
      h('span', { class: 'hint', text: on.removes() }),
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
    this.ribbon = new Ribbon(on.usesOf);
    this.isOpen = false;
    this.words = h('span', { class: 'summary-words' });
    this.summary = h('button', { type: 'button', class: 'summary', 'aria-expanded': 'false', on: { click: () => this.#toggle() } }, this.words, icon('right'));
    this.verdict = h('div', { class: 'verdict' });
    this.drafts = h('div', { class: 'drafts' });
    this.tint = new Tint();
    this.isTinted = false;
    this.details = h('div', { class: 'details', hidden: true }, this.ribbon.details, this.verdict, this.drafts);
    this.ribbon.strip.addEventListener('click', () => this.#toggle());
    // The log is read aloud as it grows; how far the prompt is would be too much of it.
    this.context = h('div', { class: 'context', 'aria-live': 'off' }, this.summary, this.ribbon.strip, this.details);
    this.thinkingText = h('div', { class: 'thinking-text', dir: 'auto' });
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
    this.#drawDrafts(turn);
    this.#drawTrouble(turn);
    this.#drawFoot(turn);
  }

  /** Draws what has come of the text. */
  write(turn) {
    drawMarkdown(this.body, turn.text);
    this.tint.draw(this.body, turn.text, this.isTinted ? turn.accepted ?? [] : []);
    this.thinking.hidden = !turn.thinking;
    if (turn.thinking) {
      this.thinkingText.textContent = turn.thinking;
      this.thinkingWord.textContent = turn.state === 'writing' && !turn.text ? 'Thinking…' : 'Thought before answering';
    }
    if (turn.state === 'writing') {
      fill(this.words, summary(turn, this.ribbon));
      this.#drawLive(turn);
    }
  }

  /** Draws how far the prompt was read. */
  read(turn) {
    // What was foreseen while it waited may not be what the server finds.
    const isForeseen = Boolean(turn.waits);
    if (this.isForeseen === isForeseen && this.ribbon.pieces?.length === turn.report.chunks.length) {
      this.ribbon.advance(turn);
      fill(this.words, summary(turn, this.ribbon));
    } else {
      this.#drawContext(turn);
    }
    this.isForeseen = isForeseen;
  }

  #drawLive({ live }) {
    if (!live?.tokens) return fill(this.foot, '');
    const speed = live.ms > 250 ? ` · ${count((live.tokens / live.ms) * 1000)} tok/s` : '';
    return fill(this.foot, h('p', { class: 'stats', text: `${tokens(live.tokens)}${speed}` }));
  }

  /** The line, the strip and the details. They are as high while the prompt is read as they are at the end. */
  #drawContext(turn) {
    const hasReport = Boolean(turn.report?.chunks?.length);
    this.context.hidden = !hasReport && turn.state !== 'writing';
    this.summary.disabled = !hasReport;
    this.context.classList.toggle('waits', !hasReport);
    if (hasReport) {
      this.ribbon.draw(turn);
      fill(this.verdict, verdict(turn, this.on.verify));
    }
    fill(this.words, summary(turn, this.ribbon));
    this.#open(this.isOpen && hasReport);
  }

  #open(isOpen) {
    if (isOpen && this.summary.disabled) return;
    this.isOpen = isOpen;
    this.details.hidden = !isOpen;
    this.context.classList.toggle('open', isOpen);
    this.summary.setAttribute('aria-expanded', String(isOpen));
  }

  /** Opens the details if they are closed, and the other way round. */
  #toggle() {
    this.#open(!this.isOpen);
    if (this.isOpen) this.context.scrollIntoView({ block: 'nearest' });
  }

  /** How much of the answer was drafted, and the switch of the tint under it. */
  #drawDrafts(turn) {
    const { draft_n: drafted = 0, draft_n_accepted: accepted = 0 } = turn.timings ?? {};
    this.drafts.hidden = drafted === 0;
    const press = () => {
      this.isTinted = !this.isTinted;
      this.write(turn);
      button.setAttribute('aria-pressed', String(this.isTinted));
    };
    const button = h('button', { type: 'button', class: 'verify', 'aria-pressed': String(this.isTinted), title: 'Tint what was drafted and then confirmed; drafts change the speed of an answer and nothing else', text: 'show', on: { click: press } });
    fill(this.drafts, h('p', { text: `${count(accepted)} of ${tokens(drafted)} drafted ahead were accepted` }), turn.accepted?.length > 0 && canTint() && button);
  }

  #drawTrouble(turn) {
    if (turn.state === 'stopped') fill(this.trouble, h('p', { class: 'hint', text: turn.text ? 'Stopped. What came is kept in the conversation.' : 'Stopped before the first token.' }));
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
      timings?.prompt_ms > 0 && `first token after ${time(timings.prompt_ms)}`,
      turn.finish === 'length' && 'cut off at its longest',
      turn.finish === 'length' ? null : turn.state === 'stopped' && 'stopped',
    ].filter(Boolean);
    fill(this.foot,
      h('div', { class: 'actions' },
        turn.text && copyButton(() => turn.text),
        action('redo', 'Regenerate', () => this.on.regenerate()),
        turn.text && turn.state === 'done' && action('keep', 'Keep on the shelf', () => this.on.keep())),
      stats.length > 0 && h('p', { class: 'stats', text: stats.join(' · ') }));
  }
}

/** The line above an answer. */
function summary(turn, ribbon) {
  const { report, progress, state } = turn;
  if (turn.loading && state === 'writing') return `${turn.loading[0].toUpperCase()}${turn.loading.slice(1)}`;
  if (!report?.chunks?.length) return state === 'writing' ? 'Waiting for the server' : '';
  const { prompt, kept, saved } = sums(report);
  if (turn.waits && state === 'writing') return ['Waiting for its turn · ', h('strong', { text: tokens(prompt) }), kept > 0 ? ` · ${keptShare({ kept, prompt })} kept` : ''];
  const isRead = !progress || progress.processed >= prompt || turn.text || turn.thinking;
  if (!isRead && ribbon.pieces) {
    const share = `${Math.floor((progress.processed / prompt) * 100)} %`;
    if (state !== 'writing') return [h('strong', { text: tokens(prompt) }), ` · stopped at ${share}`];
    const left = timeLeft(progress);
    return ['Reading ', h('strong', { text: ribbon.at(turn).name }), ` · ${share}${left ? ` · ${left}` : ''}`];
  }
  return [
    h('strong', { text: tokens(prompt) }),
    kept > 0 ? ` · ${keptShare({ kept, prompt })} kept` : ' · none kept yet',
    saved >= 1 && [' · ', h('strong', { class: 'saved-time', text: `${time(saved)} saved` })],
    isApproximate(report) && ' · approximate',
  ].flat();
}

/** How long the rest of the prompt will take, once it can be estimated. */
function timeLeft({ total, processed, begun, time_ms: ms }) {
  const done = processed - begun;
  if (done <= 0 || ms < 400) return '';
  const left = (ms / done) * (total - processed);
  return left >= 1000 ? `about ${time(left)} left` : '';
}

/** Whether the answer is what a plain prompt would give, and what verifying found. */
function verdict(turn, verify) {
  const { verified, verifying, verifyError, report } = turn;
  const approximate = isApproximate(report);
  const word = verified ? (verified.exact ? 'exact' : `approximate (KL ${number(verified.kl)})`) : approximate ? 'approximate' : 'exact';
  const title = word === 'exact' ? 'The same as with a plain prompt, computed cold' : 'Documents did not see all that stood before them, so the answer may differ from a plain prompt’s';
  return [
    h('span', { class: `badge ${word === 'exact' ? 'is-exact' : 'is-approximate'}`, title }, verified && icon('check'), word),
    !verified && turn.id && turn.state === 'done' && h('button', { type: 'button', class: 'verify', disabled: verifying, title: 'Rerun this answer cold and compare', text: verifying ? 'verifying…' : 'verify', on: { click: verify } }),
    verifyError && h('p', { class: 'verdict-details wrong', role: 'alert', text: verifyError }),
    verified && h('p', { class: 'verdict-details', text: `Rerun cold: ${found(verified)}.` }),
  ];
}

function found(verified) {
  return verified.exact
    ? `no bit of any logit differs over ${tokens(verified.tokens)}`
    : `${count(verified.differing_tokens)} of ${tokens(verified.tokens)} would differ; |Δ log-probability| ${number(verified.mean_abs_logprob_difference)} on average, ${number(verified.max_abs_logprob_difference)} at most`;
}

function action(name, words, does) {
  return h('button', { type: 'button', class: 'ghost small', title: words, on: { click: does } }, icon(name), h('span', { class: 'action-word', text: words }));
}

/** A small number in few digits. */
function number(value) {
  if (value === 0) return '0';
  return value >= 0.001 ? value.toFixed(4).replace(/0+$/, '') : value.toExponential(1);
}
