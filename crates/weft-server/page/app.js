// Puts the page together: who hears of what. It owns the header, the composer and the drop of files;
// everything else has a module of its own.

import { Api } from './api.js';
import { Chat } from './chat.js';
import { Conversations } from './conversations.js';
import { $, count, fill, h, head, time, tokens } from './dom.js';
import { asJson, asMarkdown, download } from './export.js';
import { placeIcons } from './icons.js';
import { loadModel, whileLoading } from './loading.js';
import { askKey, explain } from './notice.js';
import { compose } from './prompt.js';
import { Settings } from './settings.js';
import { DRAGGED, Shelf, nameOf } from './shelf.js';
import { Store } from './store.js';
import { Toast } from './toast.js';
import { Tray } from './tray.js';
import { welcome } from './welcome.js';

const RETRY_MS = 1500;
const WATCH_MS = 4000;
const PREVIEW_MS = 350;

placeIcons(document);
const store = new Store();
const api = new Api(() => store.key);
const speak = (words) => { $('spoken').textContent = words; };
const toast = new Toast($('toast'));
let model = '';

const shelf = new Shelf({
  api, list: $('chunks'), tiers: $('tiers'), notice: $('shelf-notice'), elsewhere: $('file-notice'), counter: $('shelf-count'),
});
const settings = new Settings({ dialog: $('settings'), form: $('settings-form'), reset: $('reset-settings'), store });
const tray = new Tray({ node: $('tray'), store, shelf, speak, editSystem: () => settings.open('system') });
const chat = new Chat({
  api, store, speak, log: $('log'), scroll: $('scroll'),
  modelId: () => model,
  usesOf: (id) => shelf.byId(id)?.uses ?? null,
  keep: keepAnswer,
});
const conversations = new Conversations({
  store, list: $('conversations'), search: $('search'),
  on: {
    open: (id) => { chat.open(() => store.open(id)); closeShelf(); question.focus(); },
    removed: (id, title) => {
      let undo;
      chat.open(() => { undo = store.remove(id); });
      toast.show(`“${title}” was deleted.`, { undo: () => chat.open(undo) });
    },
  },
});

// The server

let connecting = 0;
let attempt = 0;

/** Asks what is served, and keeps trying; `quiet` if the failure is shown elsewhere. */
async function connect({ wrongKey = false, quiet = false } = {}) {
  clearTimeout(connecting);
  attempt += 1;
  const mine = attempt;
  const isWanted = () => mine === attempt;
  try {
    let models = await api.models();
    const find = () => models.find(({ id }) => id === store.data.model) ?? models[0];
    model = find().id;
    api.model = models.length > 1 ? model : '';
    drawModels(models);
    if ((find().status?.value ?? 'loaded') !== 'loaded') {
      await loadModel($('served'), api, model, isWanted);
      if (!isWanted()) return;
      models = await api.models();
      drawModels(models);
    }
    const served = find();
    settings.describe(served);
    $('served').textContent = [models.length > 1 ? '' : served.id, served.meta?.device].filter(Boolean).join(' · ');
    $('served').title = served.max_model_len ? `${$('served').textContent} · a context of ${tokens(served.max_model_len)}` : '';
    document.body.dataset.server = 'ready';
    fill($('composer-notice'));
    await shelf.load();
    preview();
  } catch (error) {
    if (!isWanted()) return;
    document.body.dataset.server = error.kind ?? 'fault';
    fill($('served'), { loading: 'loading the model…', gone: 'no server', key: 'locked' }[error.kind] ?? 'not ready');
    if (error.kind === 'key') {
      fill($('composer-notice'), askKey((key) => { store.key = key; connect({ wrongKey: true }); }, wrongKey && store.key !== ''));
      $('api-key').focus();
      return;
    }
    if (error.kind === 'loading' && await whileLoading($('served'))) return connect({ quiet });
    if (error.kind !== 'loading' && !quiet) fill($('composer-notice'), explain(error, null, { 'Try again': () => connect() }));
    if (error.kind === 'loading' || error.kind === 'gone') connecting = setTimeout(() => connect({ quiet }), RETRY_MS);
  }
}

/** The models to choose from, if there are several. */
function drawModels(models) {
  $('models').hidden = models.length < 2;
  const words = { unloaded: ' (not loaded)', loading: ' (loading)', downloading: ' (downloading)' };
  fill($('model'), models.map(({ id, status }) => h('option', { value: id, selected: id === model, text: `${id}${words[status?.value] ?? ''}` })));
}
$('model').addEventListener('change', ({ target }) => {
  store.update((data) => { data.model = target.value; });
  connect();
});

// The dot follows the server, also while nothing is asked of it.
async function watch() {
  if (!document.hidden && ['ready', 'gone', 'loading'].includes(document.body.dataset.server)) {
    const state = await api.health();
    if (state !== document.body.dataset.server) await connect({ quiet: true });
  }
  setTimeout(watch, WATCH_MS);
}
setTimeout(watch, WATCH_MS);

// The shelf and the tray

let before = null;

shelf.addEventListener('pick', ({ detail: chunk }) => {
  if (tray.has(chunk.id)) tray.take(chunk.id);
  else tray.put(chunk);
});
shelf.addEventListener('added', ({ detail: { chunk, encoding } }) => {
  tray.put(chunk);
  if (encoding) toast.show(`${nameOf(chunk)} was read as ${encoding}.`);
});
shelf.addEventListener('renamed', ({ detail: chunk }) => {
  const at = store.data.contexts.findIndex(({ id }) => id === chunk.id);
  if (at >= 0) tray.put(chunk, at);
});
shelf.addEventListener('gone', ({ detail: chunk }) => {
  // The documents of the prompt as they were before the first of several deletions.
  before ??= store.data.contexts;
  tray.take(chunk.id);
  const n = shelf.deleted.size;
  toast.show(n === 1 ? `${nameOf(chunk)} was deleted.` : `${count(n)} chunks were deleted.`, {
    kind: 'deleted',
    undo: () => {
      shelf.restore();
      store.update((data) => { data.contexts = before; });
      before = null;
    },
    end: () => { before = null; shelf.commit(); },
  });
});
addEventListener('pagehide', () => shelf.commit(true));
shelf.addEventListener('load', () => {
  // What another deleted cannot be sent.
  if (shelf.loaded) {
    const gone = store.data.contexts.filter(({ id }) => !shelf.byId(id));
    for (const { id } of gone) tray.take(id);
  }
  chat.refresh();
});

async function addTexts(texts) {
  try {
    for (const [name, text] of texts) tray.put(await shelf.add('context', text, name));
  } catch (error) {
    shelf.showError(error, 'The examples were not added');
  }
  await shelf.load();
  $('question').focus();
}

async function addFiles(files) {
  if (files.length) await shelf.addFiles(files);
  $('question').focus();
}

async function keepAnswer(turn) {
  try {
    const chunk = await shelf.add('output', turn.text, `answer: ${head(turn.text, 40)}`);
    toast.show(`Kept on the shelf as “${nameOf(chunk)}”.`);
  } catch (error) {
    shelf.showError(error, 'The answer was not kept');
    toast.show(`The answer was not kept. ${error.message}`);
  }
  await shelf.load();
}

$('add-file').addEventListener('click', () => $('file').click());
$('file').addEventListener('change', async ({ target }) => {
  const files = [...target.files];
  target.value = '';
  await addFiles(files);
});

// Files can be dropped anywhere.
let inside = 0;
const hasFiles = (event) => event.dataTransfer?.types.includes('Files') && !event.dataTransfer.types.includes(DRAGGED);
const endDrop = () => { inside = 0; $('drop').hidden = true; };
addEventListener('dragenter', (event) => { if (hasFiles(event)) { inside += 1; $('drop').hidden = false; } });
addEventListener('dragleave', (event) => { if (hasFiles(event) && (inside -= 1) <= 0) endDrop(); });
addEventListener('dragover', (event) => { if (hasFiles(event)) event.preventDefault(); });
addEventListener('drop', (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  endDrop();
  addFiles([...event.dataTransfer.files]);
});

// On a narrow page the shelf is a drawer.
function openShelf(isOpen) {
  $('shelf').classList.toggle('open', isOpen);
  $('scrim').hidden = !isOpen;
  $('open-shelf').setAttribute('aria-expanded', String(isOpen));
  (isOpen ? $('close-shelf') : $('open-shelf')).focus();
}
const closeShelf = () => { if ($('shelf').classList.contains('open')) openShelf(false); };
$('open-shelf').addEventListener('click', () => openShelf(true));
$('close-shelf').addEventListener('click', () => openShelf(false));
$('scrim').addEventListener('click', () => openShelf(false));

// The composer

const question = $('question');

function fit() {
  question.style.height = 'auto';
  question.style.height = `${Math.min(question.scrollHeight, innerHeight * 0.4)}px`;
}

function submit() {
  const text = question.value.trim();
  if (!text || chat.writing) return;
  question.value = '';
  recalled = null;
  fit();
  chat.ask(text);
}

// ArrowUp in an empty field brings earlier questions back, ArrowDown later ones.
let recalled = null;

function recall(step) {
  const asked = store.data.turns.filter(({ role }) => role === 'user').map(({ text }) => text);
  if (question.value && (recalled === null || question.value !== asked[recalled])) return false;
  if (recalled === null && step > 0) return false;
  const to = (recalled ?? asked.length) + step;
  if (to < 0 || !asked.length) return false;
  recalled = to < asked.length ? to : null;
  question.value = recalled === null ? '' : asked[recalled];
  fit();
  drawSend();
  preview();
  return true;
}

$('composer').addEventListener('submit', (event) => { event.preventDefault(); submit(); });
question.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (step && !event.isComposing && recall(step)) event.preventDefault();
});
question.addEventListener('input', () => { fit(); drawSend(); preview(); });
$('stop').addEventListener('click', () => { chat.stop(); question.focus(); });
addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  if (!$('export-menu').hidden) openExport(false);
  else if ($('shelf').classList.contains('open')) openShelf(false);
  else if (chat.writing) chat.stop();
});

$('reuse-chip').addEventListener('click', () => settings.open('reuse'));

function drawSend() {
  const writing = Boolean(chat.writing);
  $('send').hidden = writing;
  $('stop').hidden = !writing;
  $('send').disabled = !question.value.trim();
}

function drawComposer() {
  const { reuse, repair, contexts } = store.data;
  $('reuse-chip').hidden = reuse === 'exact';
  $('reuse-chip').textContent = `Reuse: ${reuse}${repair === 'none' ? '' : `, repair ${repair.replace(':', ' ')}`} · approximate`;
  question.placeholder = contexts.length ? `Ask about ${contexts.length === 1 ? contexts[0].name : `these ${count(contexts.length)} documents`}` : 'Ask something';
  drawSend();
}

// What the prompt would find, shown before it is sent.
let previewTimer = 0;
let previewing = null;

function preview() {
  clearTimeout(previewTimer);
  previewing?.abort();
  previewTimer = setTimeout(async () => {
    const text = question.value.trim();
    if (chat.writing || (!text && !store.data.contexts.length) || document.body.dataset.server !== 'ready') return fill($('preview'));
    previewing = new AbortController();
    const { body } = compose(store.data, [...store.data.turns, { role: 'user', text: text || '…' }], model);
    try {
      const found = await api.preview(body, previewing.signal);
      fill($('preview'), previewWords(found));
    } catch (error) {
      if (error.name === 'AbortError') return undefined;
      $('preview').textContent = error.kind === 'long' ? error.message : '';
    }
    return undefined;
  }, PREVIEW_MS);
}

function previewWords({ tokens: n, cached_tokens: kept, estimate_ms: ms }) {
  const rest = Number.isFinite(ms) && ms !== null ? h('span', { class: 'preview-more', text: ` · about ${time(ms)} to read` }) : '';
  return [`${tokens(n)}, ${kept > 0 ? `${count(kept)} kept` : 'none kept yet'}`, rest];
}

// The header

$('new-chat').addEventListener('click', () => {
  chat.open(() => store.begin());
  closeShelf();
  question.focus();
});
$('open-settings').addEventListener('click', () => settings.open());

function openExport(isOpen) {
  $('export-menu').hidden = !isOpen;
  $('export').setAttribute('aria-expanded', String(isOpen));
  if (isOpen) $('export-menu').querySelector('button').focus();
  else if ($('export-menu').contains(document.activeElement)) $('export').focus();
}
$('export').addEventListener('click', () => openExport($('export-menu').hidden));
addEventListener('click', (event) => { if (!event.target.closest('.menu')) openExport(false); });
$('export-menu').addEventListener('click', ({ target }) => {
  const kind = target.dataset.export;
  if (!kind) return;
  const day = new Date().toISOString().slice(0, 10);
  if (kind === 'json') download(`weft-${day}.json`, 'application/json', asJson(store.data, model));
  else download(`weft-${day}.md`, 'text/markdown', asMarkdown(store.data, model));
  $('export').focus();
  openExport(false);
});

const THEMES = { auto: 'as the system', light: 'light', dark: 'dark' };

function drawTheme() {
  const { theme } = store.data;
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $('theme-label').textContent = `Theme: ${THEMES[theme]}`;
  $('theme').title = `Theme: ${THEMES[theme]}`;
}
$('theme').addEventListener('click', () => {
  const isDark = store.data.theme === 'auto' ? matchMedia('(prefers-color-scheme: dark)').matches : store.data.theme === 'dark';
  store.update((data) => { data.theme = isDark ? 'light' : 'dark'; });
});

// Drawing

function draw() {
  drawTheme();
  drawComposer();
  tray.draw();
  conversations.draw();
  shelf.mark(store.data.contexts.map(({ id }) => id));
  welcome($('welcome'), store.data, { addFile: () => $('file').click(), addTexts, ask: (text) => chat.ask(text) });
  document.body.classList.toggle('is-empty', store.data.turns.length === 0);
}

store.addEventListener('change', () => { draw(); preview(); });
store.addEventListener('full', () => toast.show('This browser has no room to keep more. Delete old conversations.'));
chat.addEventListener('begin', () => { store.touch(); draw(); });
// What was removed cannot come back into a conversation that has gone on.
chat.addEventListener('ask', () => { if (toast.kind === 'removed') toast.close(); });
chat.addEventListener('removed', ({ detail: { words, undo } }) => toast.show(words, { undo, kind: 'removed' }));
chat.addEventListener('open', () => { recalled = null; });
chat.addEventListener('end', () => {
  draw();
  const { error } = store.data.turns.at(-1) ?? {};
  // The answer shows what failed; here the page only waits for the server.
  if (['gone', 'loading'].includes(error?.kind)) connect({ quiet: true });
  else shelf.load().then(preview);
});

draw();
fit();
connect();
