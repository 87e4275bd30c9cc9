// Long lines of code, addresses, wide tables and text from right to left: nothing makes the page wider
// than the screen, on a phone and on a desktop, in light and dark.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { ask, checkAccess, lastAnswer, overflow, shot, withScript } from './harness.mjs';
import { END, delta } from './script.mjs';

const LONG = 'a_very_long_name_that_never_ends_'.repeat(12);
const ANSWER = `Here is \`${LONG}\` and a paragraph that is long enough to wrap as one would expect it to be.

\`\`\`python
print('${'a very long line that goes on and on '.repeat(10)}')
\`\`\`

And a long url https://example.org/${'a/very/long/path/that/never/ends/'.repeat(8)}

| name | ${Array.from({ length: 14 }, (_, n) => `column number ${n}`).join(' | ')} |
|:--|${'--:|'.repeat(14)}
| first | ${Array.from({ length: 14 }, (_, n) => `${n * 1234567}`).join(' | ')} |

$$ ${Array.from({ length: 40 }, (_, n) => `x_{${n}}`).join(' + ')} = 0 $$

> ${'quoted'.repeat(60)}

- ${LONG}
  1. ${LONG}

مرحبا بالعالم، هذا نص طويل باللغة العربية يبدأ من اليمين ويستمر حتى نهاية السطر ثم يعود إلى السطر التالي.

- شيء أول
- שלום עולם
`;

/** Everything in the conversation that is not inside something that scrolls by itself. */
const tooWide = (page) => page.evaluate(() => {
  const scrolls = (node) => node.closest('pre, .table, .formula.display, .card, .chips');
  return [...document.querySelectorAll('main *, header *')]
    .filter((node) => node.getClientRects().length && (!scrolls(node) || node.matches('pre, .table, .formula.display')) && !node.closest('.sr, svg'))
    .map((node) => ({ node: `${node.localName}.${node.className}`, ...node.getBoundingClientRect().toJSON() }))
    .filter(({ left, right, width }) => width > 1 && (right > innerWidth + 0.5 || left < -0.5))
    .map(({ node, left, right }) => `${node} from ${left} to ${right}`);
});

describe('nothing is wider than the screen', () => {
  for (const [name, size] of [['phone', { width: 390, height: 844, hasTouch: true, isMobile: true }], ['desktop', { width: 1280, height: 860 }]]) {
    for (const colorScheme of ['light', 'dark']) {
      test(`${name}, ${colorScheme}`, async () => {
        function* script() {
          yield delta({ content: ANSWER });
          yield END;
        }
        await withScript(script, async (page) => {
          await ask(page, `Write code: ${LONG}\n${'سؤال طويل '.repeat(20)}`);
          await page.waitForFunction(() => document.querySelectorAll('.prose math').length > 0);
          assert.ok((await overflow(page)) <= 0, `too wide by ${await overflow(page)} px`);
          assert.deepEqual(await tooWide(page), []);
          // Right to left begins at the right, in answers and questions.
          const arabic = lastAnswer(page).locator('.prose > p', { hasText: 'مرحبا' });
          assert.equal(await arabic.evaluate((node) => getComputedStyle(node).direction), 'rtl');
          // What is wide scrolls by itself.
          for (const wide of ['pre', '.table', '.formula.display']) {
            const node = lastAnswer(page).locator(wide).first();
            assert.ok(await node.evaluate((one) => one.scrollWidth > one.clientWidth), `${wide} scrolls`);
          }
          await lastAnswer(page).locator('.code').scrollIntoViewIfNeeded();
          await checkAccess(page, 'the answer');
          await shot(page, `long-${name}-${colorScheme}`);
        }, { ...size, colorScheme });
      });
    }
  }
});
