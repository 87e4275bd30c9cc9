// What a newcomer sees: what the page is for, shown by three things to do. It goes when the first
// question is asked. The documents are invented, so that an answer can come from nowhere else.

import { fill, h } from './dom.js';
import { icon } from './icons.js';

const EXAMPLES = [
  ['krogaste.txt', 'About Krogaste\nEach winter the Krogaste rests in the port of Vepadem. The builder of the Krogaste was Kedusu. The hold of the Krogaste is full of cheese. The wood is dark and full of deer. From bow to stern the Krogaste measures 13 metres. At the bow of the Krogaste one sees a carved raven. The bells ring at noon. The Krogaste is on its way to Krosojat. One knows the Krogaste by its black sails. The captain of the Krogaste is Probrosur. The candles burned until late.'],
  ['nusonix.txt', 'Nusonix\nIt was written down a long time ago. All the gates of Nusonix are blue. Nusonix was founded in 1376. Many people in the valley know this story. Old songs tell of it. The number of bridges in Nusonix is 90. Nusonix carries a swan on its flag. In the end all went well. The mills of Nusonix are turned by the river Melubo. Nusonix is ruled by Vubegok.'],
  ['kehujax.txt', 'About Kehujax\nKehujax has reached the age of 36. The birthplace of Kehujax is Pistezut. The job of Kehujax is that of a carpenter. Kehujax practises the flute each evening. There is no colour that Kehujax likes more than red. The home of Kehujax is in Posejum. Kehujax keeps a lion at home.'],
];

const QUESTIONS = ['Who is the captain of the Krogaste?', 'Who is the ruler of Nusonix?', 'What is the job of Kehujax?'];

/** Draws the welcome for where the newcomer stands. */
export function welcome(node, { contexts, turns }, { addFile, addTexts, ask }) {
  node.hidden = turns.length > 0;
  if (node.hidden) return fill(node);
  const ready = contexts.length > 0;
  const isExample = EXAMPLES.every(([name]) => contexts.some((context) => context.name === name));
  const step = (number, isDone, title, ...rest) => h('li', { class: isDone ? 'done' : '' },
    h('span', { class: 'step', 'aria-hidden': 'true' }, isDone ? icon('check') : String(number)), h('div', {}, h('h3', { text: title }), ...rest));
  return fill(node, h('section', { class: 'welcome', 'aria-labelledby': 'welcome-title' },
    h('h2', { id: 'welcome-title', text: 'Read it once, ask it often.' }),
    h('p', { class: 'lead', text: 'weft keeps what the model computed of each document, and weaves it into the next prompt. The ribbon above each answer shows what was kept, and the time that it saved.' }),
    h('ol', { class: 'steps' },
      step(1, ready, 'Drop in a file',
        h('p', { text: ready ? `${contexts.map(({ name }) => name).join(', ')} will be part of the prompt.` : 'Any text, anywhere on this page. It goes on the shelf and into the prompt.' }),
        !ready && h('p', { class: 'step-actions' },
          h('button', { type: 'button', class: 'solid', text: 'Choose a file', on: { click: addFile } }),
          h('button', { type: 'button', class: 'outline', text: 'Use three short examples', on: { click: () => addTexts(EXAMPLES) } }))),
      step(2, false, 'Ask something about it',
        h('p', { text: 'The first answer computes the document: its segments are outlined.' }),
        isExample && h('p', { class: 'step-actions' }, QUESTIONS.slice(0, 2).map((question) => h('button', { type: 'button', class: 'outline', text: question, on: { click: () => ask(question) } })))),
      step(3, false, 'Ask again',
        h('p', {}, 'Now its segments are solid: kept, not computed. The line above them says how much time that saved.')),
    ),
    sample()));
}

/** What to look for, in small: the same prompt, first and second. */
function sample() {
  const row = (word, sources) => {
    const cloth = h('span', { class: 'sample-cloth' }, sources.map(([source, size]) => {
      const segment = h('i', { class: `from-${source}` });
      segment.style.flexGrow = size;
      return segment;
    }));
    return h('div', { class: 'sample-row' }, h('span', { text: word }), cloth);
  };
  return h('div', { class: 'sample', 'aria-hidden': 'true' },
    row('first question', [['computed', 8], ['computed', 40], ['computed', 30], ['computed', 9]]),
    row('second question', [['device', 8], ['device', 40], ['device', 30], ['device', 9], ['computed', 10]]));
}
