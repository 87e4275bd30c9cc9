// The conversation: asks, streams, stops, asks anew. It owns the turns in the store and their views, and
// which answer is being written. It knows neither the shelf nor how a ribbon is drawn.

import { count, tokens } from './dom.js';
import { compose } from './prompt.js';
import { sums } from './ribbon.js';
import { AnswerView, questionView } from './turn.js';

/** How often what has come is kept while an answer is written. */
const SAVE_MS = 1500;

export class Chat extends EventTarget {
  constructor({ api, store, log, scroll, speak, modelId, usesOf, keep }) {
    super();
    Object.assign(this, { api, store, log, scroll, speak, modelId, usesOf, keep });
    this.writing = null;
    this.views = [];
    this.follows = true;
    scroll.addEventListener('scroll', () => {
      this.follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
    });
    this.draw();
  }

  get turns() {
    return this.store.data.turns;
  }

  /** Asks a question after all that was said. */
  ask(text) {
    this.#cutTo(this.turns.length);
    this.turns.push({ role: 'user', text });
    return this.#answer();
  }

  /** Ends the answer that is being written. */
  stop() {
    this.writing?.abort();
  }

  /** Forgets the conversation; answers with what undoes that. */
  clear() {
    this.stop();
    const turns = this.turns;
    const replace = (with_) => {
      this.store.update((data) => { data.turns = with_; });
      this.draw();
    };
    replace([]);
    return () => replace(turns);
  }

  /** Draws the whole conversation. */
  draw() {
    this.views = this.turns.map((turn, index) => this.#view(turn, index));
    this.log.replaceChildren(...this.views.map((view) => view.node ?? view));
    this.#foldEarlier();
    this.#keepUp(true);
  }

  /** Draws the reports anew: names or counts of chunks have changed. */
  refresh() {
    for (const [index, view] of this.views.entries()) {
      if (view instanceof AnswerView && this.turns[index]?.state === 'done' && !view.node.contains(document.activeElement)) view.update(this.turns[index]);
    }
  }

  #view(turn, index) {
    if (turn.role === 'user') return questionView(turn, { edit: (text) => this.#edit(index, text) });
    return new AnswerView(turn, {
      regenerate: () => this.#regenerate(index),
      verify: () => this.#verify(index),
      keep: () => this.keep(turn),
      key: (key) => { this.store.key = key; this.#regenerate(index); },
      usesOf: this.usesOf,
    });
  }

  #edit(index, text) {
    this.stop();
    this.#cutTo(index);
    this.turns.push({ role: 'user', text });
    this.#answer();
  }

  #regenerate(index) {
    this.stop();
    this.#cutTo(index);
    this.#answer();
  }

  /** Forgets turns from an index on. */
  #cutTo(index) {
    this.turns.length = index;
    for (const view of this.views.splice(index)) (view.node ?? view).remove();
    // Views that were drawn for turns stay; a question without its view gets one when it is answered.
  }

  /** Has the last question answered. */
  async #answer() {
    const { body, sent } = compose(this.store.data, this.turns, this.modelId());
    const turn = { role: 'assistant', text: '', thinking: '', state: 'writing', sent, reuse: body.reuse, repair: body.repair };
    this.turns.push(turn);
    for (let index = this.views.length; index < this.turns.length; index += 1) {
      const view = this.#view(this.turns[index], index);
      this.views.push(view);
      this.log.append(view.node ?? view);
    }
    this.#foldEarlier();
    const view = this.views.at(-1);
    const abort = new AbortController();
    this.writing = abort;
    this.dispatchEvent(new Event('begin'));
    this.store.update(() => {});
    this.speak('Answering.');
    this.#keepUp(true);
    await this.#stream(turn, view, body, abort);
    if (this.writing === abort) this.writing = null;
    delete turn.live;
    if (this.turns.includes(turn)) view.update(turn);
    this.store.update(() => {});
    this.#keepUp();
    this.dispatchEvent(new Event('end'));
    this.speak(spoken(turn));
  }

  /** The last ribbon is whole; earlier ones show their segments. */
  #foldEarlier() {
    for (const view of this.views.slice(0, -1)) view.fold?.();
  }

  async #stream(turn, view, body, abort) {
    const started = performance.now();
    let first = 0;
    let n = 0;
    let drawn = 0;
    let saved = started;
    const show = () => {
      drawn = 0;
      if (turn.state !== 'writing') return;
      view.write(turn);
      this.#keepUp();
    };
    const hear = ({ text = '', thinking = '' }) => {
      const now = performance.now();
      if (!first) first = now;
      n += 1;
      turn.text += text;
      turn.thinking += thinking;
      turn.firstMs = first - started;
      turn.live = { tokens: n, ms: now - first };
      drawn ||= requestAnimationFrame(show);
      if (now - saved > SAVE_MS) {
        saved = now;
        this.store.save();
      }
    };
    try {
      const { id, finish, usage, timings, report } = await this.api.chat(body, abort.signal, hear);
      Object.assign(turn, { id, finish, usage, timings, report, state: 'done' });
    } catch (error) {
      if (abort.signal.aborted) {
        turn.state = 'stopped';
      } else {
        turn.state = 'failed';
        const { kind, message, code } = error;
        turn.error = { kind: kind ?? 'fault', message, code, wrongKey: kind === 'key' && this.store.key !== '' };
        if (!kind) console.error(error);
      }
    }
    cancelAnimationFrame(drawn);
  }

  async #verify(index) {
    const turn = this.turns[index];
    const show = () => { if (this.turns[index] === turn) this.views[index].update(turn); };
    turn.verifying = true;
    delete turn.verifyError;
    show();
    try {
      turn.verified = await this.api.verify(turn.id);
      this.speak(turn.verified.exact ? 'Verified: exact.' : `Verified: approximate, KL ${turn.verified.kl}.`);
    } catch (error) {
      turn.verifyError = error.status === 404
        ? 'The server no longer has this answer. Regenerate it, then verify.'
        : `Not verified. ${error.message}`;
    }
    delete turn.verifying;
    show();
    this.store.save();
  }

  /** Keeps the end in sight, unless the reader went elsewhere. */
  #keepUp(always = false) {
    if (always) this.follows = true;
    if (this.follows) this.scroll.scrollTop = this.scroll.scrollHeight;
  }
}

function spoken(turn) {
  if (turn.state === 'stopped') return 'Stopped.';
  if (turn.state === 'failed') return '';
  if (!turn.report) return 'The answer is complete.';
  const { prompt, kept } = sums(turn.report);
  return `The answer is complete. ${count(kept)} of ${tokens(prompt)} of its prompt were kept.`;
}
