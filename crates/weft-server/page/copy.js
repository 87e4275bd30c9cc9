// Copies text, also where the browser gives no clipboard to pages.

import { h } from './dom.js';
import { icon } from './icons.js';

/** A button that copies what `textOf` returns, and says whether it did. */
export function copyButton(textOf, title = 'Copy') {
  const word = h('span', { class: 'action-word', text: 'Copy' });
  const button = h('button', { type: 'button', class: 'ghost small copy', title, 'aria-label': title }, icon('copy'), word);
  button.addEventListener('click', async () => {
    word.textContent = (await copy(textOf())) ? 'Copied' : 'Not allowed';
    button.setAttribute('aria-label', word.textContent);
    setTimeout(() => { word.textContent = 'Copy'; button.setAttribute('aria-label', title); }, 1500);
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
