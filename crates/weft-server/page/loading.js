// The time while the model loads: shows how far it is, and says when the server can answer.

import { fill, h } from './dom.js';

const POLL_MS = 250;
const WORDS = { loading: 'loading the model', downloading: 'downloading the model' };

/** Shows the progress in `node` until the model is loaded; false if it cannot be said how far it is. */
export async function whileLoading(node) {
  for (;;) {
    const state = await health();
    if (state?.status === 'ok') return true;
    const words = WORDS[state?.status];
    if (!words) return false;
    draw(node, words, state.progress ?? 0);
    await new Promise((resume) => { setTimeout(resume, POLL_MS); });
  }
}

/**
 * Loads one of several models and shows the progress in `node`, as long as it is wanted. Throws why
 * it could not be loaded.
 */
export async function loadModel(node, api, id, isWanted) {
  let isOver = false;
  const load = api.load(id).finally(() => { isOver = true; });
  // Whoever stops listening does not want to hear of it.
  load.catch(() => {});
  while (!isOver && isWanted()) {
    const { status = {} } = (await api.models()).find((model) => model.id === id) ?? {};
    if (isOver || !isWanted()) break;
    draw(node, WORDS[status.value] ?? WORDS.loading, status.progress ?? 0);
    await new Promise((resume) => { setTimeout(resume, POLL_MS); });
  }
  if (isWanted()) await load;
}

async function health() {
  try {
    return await (await fetch('health', { cache: 'no-store' })).json();
  } catch {
    return null;
  }
}

function draw(node, words, done) {
  let bar = node.querySelector('progress');
  if (!bar) {
    bar = h('progress', { max: 1, 'aria-label': 'How much of the model is loaded' });
    fill(node, h('span'), ' ', bar);
  }
  bar.value = done;
  const text = `${words} · ${Math.floor(done * 100)} %`;
  if (node.firstChild.textContent !== text) node.firstChild.textContent = text;
}
