// The conversation: asks, streams, stops, asks anew. It owns the turns in the store and their views, and
// which answer is being written. It knows neither the shelf nor how a ribbon is drawn.

import { addRun } from './accepted.js';
import { count, tokens } from './dom.js';
import { compose } from './prompt.js';
import { sums } from './ribbon.js';
import { AnswerView, questionView } from './turn.js';

/** How often what has come is kept while an answer is written. */
const SAVE_MS = 1500;

/** How long an answer waits for its turn before the page asks what its prompt is made of. */
const TURN_MS = 600;

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
    this.dispatchEvent(new Event('ask'));
    this.turns.push({ role: 'user', text });
    return this.#answer();
  }

  /** Ends the answer that is being written. */
  stop() {
    this.writing?.abort();
  }

  /** Goes to another conversation: `change` changes which one the store has. */
  open(change) {
    this.stop();
    change();
    this.draw();
    this.dispatchEvent(new Event('open'));
  }

  /** Draws the whole conversation. */
  draw() {
    this.views = this.turns.map((turn, index) => this.#view(turn, index));
    this.log.replaceChildren(...this.views.map((view) => view.node ?? view));
    this.#keepUp(true);
  }

  /** Draws the reports anew: names or counts of chunks have changed. */
  refresh() {
    for (const [index, view] of this.views.entries()) {
      if (view instanceof AnswerView && this.turns[index]?.state === 'done' && !view.node.contains(document.activeElement)) view.update(this.turns[index]);
    }
  }

  #view(turn, index) {
    if (turn.role === 'user') return questionView(turn, { edit: (text) => this.#edit(index, text), removes: () => this.#removes(index) });
    return new AnswerView(turn, {
      regenerate: () => this.#regenerate(index),
      verify: () => this.#verify(index),
      keep: () => this.keep(turn),
      key: (key) => { this.store.key = key; this.#regenerate(index); },
      usesOf: this.usesOf,
    });
  }

  #edit(index, text) {
    this.#cutTo(index, 'Edited');
    this.turns.push({ role: 'user', text });
    this.#answer();
  }

  #regenerate(index) {
    this.#cutTo(index, 'Asked again');
    this.#answer();
  }

  /** What an edit of a question removes, in words. */
  #removes(index) {
    const words = removed(this.turns.slice(index + 1));
    return words ? `This removes ${words}. You can undo it.` : '';
  }

  /** Forgets turns from an index on, and offers to bring them back. */
  #cutTo(index, word) {
    this.stop();
    const { id } = this.store.conversation;
    const gone = this.turns.splice(index);
    for (const view of this.views.splice(index)) (view.node ?? view).remove();
    const words = removed(gone.filter((turn) => turn !== gone[0] || turn.role !== 'user'));
    if (!words) return;
    const undo = () => this.open(() => {
      this.store.open(id);
      this.store.update(() => { this.turns.splice(index, Infinity, ...gone); });
    });
    this.dispatchEvent(new CustomEvent('removed', { detail: { words: `${word}: removed ${words}.`, undo } }));
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
    // All lanes are busy: the prompt is known before the server takes it up.
    const waiting = new AbortController();
    const timer = setTimeout(async () => {
      const found = await this.api.preview(body, waiting.signal).catch(() => null);
      if (!found || waiting.signal.aborted || turn.state !== 'writing') return;
      Object.assign(turn, { waits: true, report: foreseen(found), progress: { processed: 0, total: found.tokens } });
      view.read(turn);
    }, TURN_MS);
    const endWait = () => {
      clearTimeout(timer);
      waiting.abort();
      if (!turn.waits) return;
      for (const key of ['waits', 'report', 'progress']) delete turn[key];
    };
    const hear = ({ text = '', thinking = '', accepted = false, progress = null, report = null, loading = '' }) => {
      const now = performance.now();
      endWait();
      turn.loading = loading;
      if (loading) {
        view.read(turn);
        return;
      }
      if (progress) {
        turn.progress = { ...progress, begun: turn.progress?.begun ?? progress.processed };
        turn.report = report;
        view.read(turn);
        this.#keepUp();
        return;
      }
      if (!first) first = now;
      n += 1;
      if (accepted) addRun(turn.accepted ??= [], turn.text.length, turn.text.length + text.length);
      turn.text += text;
      turn.thinking += thinking;
      turn.live = { tokens: n, ms: now - first };
      drawn ||= requestAnimationFrame(show);
      if (now - saved > SAVE_MS) {
        saved = now;
        this.store.save();
      }
    };
    try {
      const { id, finish, usage, timings, report } = await this.api.chat(body, abort.signal, hear);
      endWait();
      Object.assign(turn, { id, finish, usage, timings, report, state: 'done' });
      delete turn.progress;
    } catch (error) {
      if (abort.signal.aborted) {
        clearTimeout(timer);
        waiting.abort();
        turn.state = 'stopped';
        delete turn.waits;
      } else {
        endWait();
        turn.state = 'failed';
        const { kind, message, code } = error;
        turn.error = { kind: kind ?? 'fault', message, code, wrongKey: kind === 'key' && this.store.key !== '' };
        if (!kind) console.error(error);
      }
    }
    delete turn.loading;
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

/** A report of a prompt that waits for its turn, from what the server foresees. */
function foreseen({ chunks }) {
  const later = { shift: 0, repaired_tokens: 0, attention: 0, ms: 0 };
  return {
    chunks: chunks.map((chunk) => ({ ...chunk, ...later, source: chunk.source ?? 'computed', reuse: chunk.reuse ?? 'exact' })),
    answer_attention: 0, saved_ms: 0,
  };
}

function spoken(turn) {
  if (turn.state === 'stopped') return 'Stopped.';
  if (turn.state === 'failed') return '';
  if (!turn.report) return 'The answer is complete.';
  const { prompt, kept } = sums(turn.report);
  return `The answer is complete. ${count(kept)} of ${tokens(prompt)} of its prompt were kept.`;
}

/** Turns in words, with how many questions and answers they are; empty if nothing is lost. */
function removed(turns) {
  const answers = turns.filter(({ role, text }) => role === 'assistant' && text).length;
  const questions = turns.filter(({ role }) => role === 'user').length;
  if (!answers && !questions) return '';
  const later = questions === 1 ? '1 later question' : `${count(questions)} later questions`;
  if (!questions) return 'its answer';
  return answers ? `${later} and ${answers === 1 ? '1 answer' : `${count(answers)} answers`}` : later;
}
