// Makes elements and writes numbers for people. It knows nothing of chats or chunks.
// There is no way in here to turn a string into markup: children are nodes or text.

/** An element. Properties: class, text, on (listeners), data, and any attribute by its name. */
export function h(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'class') node.className = value;
    else if (name === 'text') node.textContent = value;
    else if (name === 'on') for (const [event, does] of Object.entries(value)) node.addEventListener(event, does);
    else if (name === 'data') Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Replaces everything in a node. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const $ = (id) => document.getElementById(id);

/** Text in few words: the first of it, on one line. */
export function head(text, length = 80) {
  const line = text.replace(/\s+/g, ' ').trim();
  return line.length > length ? `${line.slice(0, length - 1).trimEnd()}…` : line;
}

export const count = (n) => Math.round(n).toLocaleString('en');

export const tokens = (n) => `${count(n)} ${n === 1 ? 'token' : 'tokens'}`;

/** Milliseconds, in the unit that reads best. */
export function time(ms) {
  if (ms >= 60_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10_000 ? 0 : 1)} s`;
  if (ms >= 10) return `${Math.round(ms)} ms`;
  return ms < 0.05 ? '< 0.1 ms' : `${ms.toFixed(1)} ms`;
}

export function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1000;
    unit += 1;
  }
  return `${n < 10 && unit > 0 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

export const percent = (share) => (share > 0 && share < 0.01 ? '< 1 %' : `${Math.round(share * 100)} %`);
