// The parts of an answer that a draft had before they were written, and a quiet tint under them. It
// owns the tint, a highlight of the browser's, which changes no element; a browser without highlights
// shows none. It knows neither the server nor when the tint is wanted.

const NAME = 'accepted';

/** How far the marks of Markdown may keep two texts apart that follow one another. */
const MAX_MARKS = 500;

export const canTint = () => Boolean(globalThis.CSS?.highlights && globalThis.Highlight);

/** Adds a run of a text to those before it, each [from, to]. */
export function addRun(runs, from, to) {
  const last = runs.at(-1);
  if (last?.[1] === from) last[1] = to;
  else runs.push([from, to]);
}

/** The tint of one answer. */
export class Tint {
  ranges = [];

  /** Tints runs of a text that was drawn into a node. Without runs, nothing is tinted. */
  draw(node, text, runs) {
    if (!canTint()) return;
    if (!CSS.highlights.has(NAME)) CSS.highlights.set(NAME, new Highlight());
    const highlight = CSS.highlights.get(NAME);
    for (const range of this.ranges) highlight.delete(range);
    this.ranges = runs.length ? rangesOf(node, text, runs) : [];
    for (const range of this.ranges) highlight.add(range);
  }
}

/** Runs of a text as ranges of the nodes that show it. What is shown in other words has none. */
function rangesOf(node, text, runs) {
  const ranges = [];
  const shown = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  let at = 0;
  while (shown.nextNode()) {
    const { data, parentElement } = shown.currentNode;
    if (parentElement.closest('.code-head, math')) continue;
    const start = text.indexOf(data, at);
    if (start < 0 || start > at + MAX_MARKS) continue;
    at = start + data.length;
    for (const [from, to] of runs) {
      if (to <= start || from >= at) continue;
      const range = document.createRange();
      range.setStart(shown.currentNode, Math.max(from, start) - start);
      range.setEnd(shown.currentNode, Math.min(to, at) - start);
      ranges.push(range);
    }
  }
  return ranges;
}
