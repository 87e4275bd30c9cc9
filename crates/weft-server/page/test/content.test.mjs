// What is put in and what comes out: code, formulas, tables and tasks in answers; files in other
// encodings; recalled questions; the server's state, its models and its settings in words.

import assert from 'node:assert/strict';
import { cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { CAPTAIN, GROHOSU, addExamples, addFile, ask, checkAccess, lastAnswer, shot, visit, withScript, withServer } from './harness.mjs';
import { END, delta } from './script.mjs';

const ANSWER = `A function in \`Rust\`:

\`\`\`rust
// Adds.
fn add(a: u32, b: u32) -> u32 { a + b + 1 }
\`\`\`

Euler: $e^{i\\pi} + 1 = 0$, that costs $5 or $6, and

\\[ \\int_0^1 x^2 \\, dx = \\frac{1}{3} \\]

| name | amount | note |
|:-----|-------:|:----:|
| one  | 1.50   | a    |
| two  | 22.75  | b    |

- [x] written
- [ ] read
- a plain one &amp; more
`;

describe('an answer', () => {
  for (const [name, size] of [['phone', { width: 390, height: 844, hasTouch: true, isMobile: true }], ['desktop', { width: 1280, height: 1000 }]]) {
    for (const colorScheme of ['light', 'dark']) {
      test(`has code, formulas, tables and tasks: ${name}, ${colorScheme}`, async () => {
        function* script() {
          for (let at = 0; at < ANSWER.length; at += 23) yield delta({ content: ANSWER.slice(at, at + 23) });
          yield END;
        }
        await withScript(script, async (page) => {
          await ask(page, 'Show me.');
          const prose = lastAnswer(page).locator('.prose');
          assert.equal(await prose.locator('.code-language').innerText(), 'rust');
          const colours = await prose.locator('pre span').evaluateAll((nodes) => new Set(nodes.map((node) => getComputedStyle(node).color)).size);
          assert.ok(colours >= 4, `the code has ${colours} colours`);
          assert.equal(await prose.locator('math').count(), 2);
          assert.match(await prose.innerText(), /that costs \$5 or \$6/);
          const aligned = await prose.locator('td').evaluateAll((cells) => cells.slice(0, 3).map((cell) => getComputedStyle(cell).textAlign));
          assert.deepEqual(aligned, ['left', 'right', 'center']);
          assert.deepEqual(await prose.getByRole('checkbox').evaluateAll((boxes) => boxes.map(({ checked }) => checked)), [true, false]);
          assert.match(await prose.innerText(), /a plain one & more/);
          await prose.getByRole('button', { name: 'Copy the code' }).click();
          assert.equal(await page.evaluate(() => navigator.clipboard.readText()), '// Adds.\nfn add(a: u32, b: u32) -> u32 { a + b + 1 }');
          await checkAccess(page, 'the answer');
          await shot(page, `content-${name}-${colorScheme}`);
        }, { ...size, colorScheme, permissions: ['clipboard-read', 'clipboard-write'] });
      });
    }
  }

  test('shows TeX that it cannot read, and never follows what it names', async () => {
    const page = await visit();
    const drawn = await page.evaluate(async () => {
      const { draw } = await import('/markdown.js');
      const node = document.createElement('div');
      draw(node, '$\\frac{1$ and $\\href{javascript:alert(1)}{x}$ and ![a picture](https://example.org/a.png) and $\\includegraphics{https://example.org/b.png}$');
      return { text: node.textContent, tags: [...node.querySelectorAll('img, [href^="javascript"]')].length, links: [...node.querySelectorAll('a')].map(({ href }) => href) };
    });
    assert.match(drawn.text, /\$\\frac\{1\$/);
    assert.equal(drawn.tags, 0);
    assert.deepEqual(drawn.links, ['https://example.org/a.png']);
  });
});

describe('a file', () => {
  test('in another encoding is read, and the page says in which', async () => {
    const page = await visit();
    await addFile(page, 'wide.txt', Buffer.from('\ufeffDer Fluß heißt Melubo.', 'utf16le'));
    await page.getByText('wide.txt was read as UTF-16.').waitFor();
    await addFile(page, 'latin.txt', Buffer.from('Die Brücke über den Fluß ist schön.', 'latin1'));
    await page.getByText('latin.txt was read as Windows-1252.').waitFor();
    await page.locator('#tray .document', { hasText: 'latin.txt' }).hover();
    assert.match(await page.locator('#tray .document', { hasText: 'latin.txt' }).getAttribute('title'), /Brücke über den Fluß/);
  });

  test('that is no text is refused, with what to do', async () => {
    const page = await visit();
    for (const [name, bytes, words] of [
      ['paper.pdf', Buffer.from('%PDF-1.7\n'), /It is a PDF, not text\. Save its text first: pdftotext/],
      ['letter.docx', Buffer.from('PK\x03\x04', 'latin1'), /Office document, not text\. Save it as plain text/],
      ['noise.bin', Buffer.from(Array.from({ length: 400 }, (_, n) => (n * 89) % 256)), /Save it as UTF-8 text/],
    ]) {
      await addFile(page, name, bytes);
      await page.locator('#shelf .notice', { hasText: `${name} was not added` }).getByText(words).waitFor();
    }
  });

  test('is refused where a phone shows it, and a known text is asked about there', async () => {
    const page = await visit({ width: 390, height: 844, expects: ['400'] });
    const seen = async (words) => {
      const box = page.getByRole('alert').filter({ hasText: words });
      await box.waitFor();
      await box.scrollIntoViewIfNeeded();
      const { x, y, width, height } = await box.boundingBox();
      assert.ok(x >= 0 && y >= 0 && x + width <= 390 && y + height <= 844, words);
      return box;
    };
    for (const [name, bytes] of [
      ['paper.pdf', Buffer.from('%PDF-1.7\n')], ['letter.docx', Buffer.from('PK\x03\x04', 'latin1')],
      ['picture.png', Buffer.from('\x89PNG\0\0', 'latin1')], ['empty.txt', Buffer.from('')],
      ['huge.txt', Buffer.from('The bells ring at noon. '.repeat(2000))],
    ]) {
      await addFile(page, name, bytes);
      await seen(`${name} was not added`);
      await checkAccess(page, name);
    }
    await shot(page, 'refused-phone');
    await addFile(page, 'one.txt', GROHOSU);
    await page.locator('#tray .document', { hasText: 'one.txt' }).waitFor();
    await addFile(page, 'two.txt', GROHOSU);
    const question = await seen('two.txt is on the shelf as one.txt');
    await question.getByRole('button', { name: 'Keep one.txt' }).click();
    // With the drawer open, it is the drawer that shows them.
    await page.getByRole('button', { name: /^Shelf/ }).click();
    await page.locator('#shelf.open').waitFor();
    await addFile(page, 'paper.pdf', Buffer.from('%PDF-1.7\n'));
    await page.locator('#shelf .notice', { hasText: 'paper.pdf was not added' }).waitFor();
  });
});

test('ArrowUp recalls questions, ArrowDown goes on', async () => {
  const page = await visit();
  await addExamples(page);
  await ask(page, ...CAPTAIN);
  await ask(page, 'Who is the ruler of Nusonix?');
  const field = page.getByLabel('Your question');
  await field.focus();
  await page.keyboard.press('ArrowUp');
  assert.equal(await field.inputValue(), 'Who is the ruler of Nusonix?');
  await page.keyboard.press('ArrowUp');
  assert.equal(await field.inputValue(), CAPTAIN[0]);
  await page.keyboard.press('ArrowDown');
  assert.equal(await field.inputValue(), 'Who is the ruler of Nusonix?');
  await page.keyboard.press('ArrowDown');
  assert.equal(await field.inputValue(), '');
  await field.fill('my own words');
  await page.keyboard.press('ArrowUp');
  assert.equal(await field.inputValue(), 'my own words', 'what was written stays');
});

test('the dot follows the server while nothing is asked', async () => {
  await withServer([], async (own) => {
    const page = await visit({ address: own.address, expects: ['ERR_CONNECTION_REFUSED', 'ERR_CONNECTION_RESET', 'ERR_EMPTY_RESPONSE', '503'] });
    await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
    const dot = () => page.evaluate(() => getComputedStyle(document.getElementById('served'), '::before').backgroundColor);
    const ready = await dot();
    await own.stop('SIGKILL');
    await page.locator('#served', { hasText: 'no server' }).waitFor();
    assert.notEqual(await dot(), ready);
    await own.start();
    await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
    assert.equal(await dot(), ready);
  });
});

test('several models can be chosen from, and one needs no choice', async () => {
  const page = await visit();
  await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
  assert.ok(!(await page.locator('#model').isVisible()));
  await page.route('**/v1/models', async (route) => {
    const response = await route.fetch();
    const { data } = await response.json();
    await route.fulfill({ response, json: { data: [data[0], { ...data[0], id: 'another', root: 'another' }, { ...data[0], id: 'its nickname', root: 'another' }] } });
  });
  await page.reload();
  await page.locator('#model').selectOption('another');
  assert.equal(await page.locator('#model option').count(), 2, 'another name is not another model');
  const asked = page.waitForRequest('**/v1/chat/completions');
  await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', body: `${delta({ content: 'I am another.' })}${END}` }));
  await ask(page, 'Who are you?', 'I am another');
  assert.equal((await asked).postDataJSON().model, 'another');
  await page.reload();
  // The list is there once the server has been asked.
  await page.locator('#model option').nth(1).waitFor({ state: 'attached' });
  assert.equal(await page.locator('#model').inputValue(), 'another');
});

test('one of several models is loaded when it is chosen', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'weft-model-'));
  const second = join(folder, 'second');
  await cp(new URL('../../../../assets/weft-tiny', import.meta.url).pathname, second, { recursive: true });
  await withServer(['weft-tiny', second], async (own) => {
    const page = await visit({ address: own.address });
    const options = page.locator('#model option');
    await page.locator('body[data-server="ready"]').waitFor();
    assert.deepEqual(await options.allTextContents(), ['weft-tiny', 'second (not loaded)']);
    await page.locator('#model').selectOption('second');
    await options.filter({ hasText: /^second$/ }).waitFor({ state: 'attached' });
    await addExamples(page);
    const asked = page.waitForRequest('**/v1/chat/completions');
    await ask(page, ...CAPTAIN);
    assert.equal((await asked).postDataJSON().model, 'second');
    // The documents are those of the model.
    const chunks = async (model) => (await page.evaluate(async (path) => (await fetch(path)).json(), `/v1/chunks?model=${model}`)).data.length;
    assert.equal(await chunks('weft-tiny'), 0);
    assert.ok(await chunks('second') > 0);
  });
  await rm(folder, { recursive: true, force: true });
});

test('an answer whose model is being loaded says how far that is', async () => {
  let isLoaded = false;
  const script = function* loads() {
    yield ': loading the model, 43 %\n\n';
    yield () => isLoaded;
    yield delta({ content: 'Here I am.' });
    yield END;
  };
  await withScript(script, async (page) => {
    const asked = ask(page, 'Who?', 'Here I am');
    await lastAnswer(page).getByText('Loading the model · 43 %').waitFor();
    isLoaded = true;
    await asked;
    assert.equal(await lastAnswer(page).getByText('Loading the model').count(), 0);
  });
});

test('words for experts stand under Advanced, and placeholders show values', async () => {
  const page = await visit();
  await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
  const { data: [{ meta: { sampling }, max_model_len: context }] } = await page.evaluate(async () => (await fetch('/v1/models')).json());
  assert.doesNotMatch(await page.locator('body').innerText(), /plain prompt|level 0|exact/i);
  await page.getByRole('button', { name: 'Settings' }).click();
  assert.doesNotMatch(await page.locator('#settings').innerText(), /plain prompt|level 0/i);
  assert.equal(await page.getByLabel('Temperature').getAttribute('placeholder'), String(sampling.temperature));
  assert.equal(await page.getByLabel('Top-p').getAttribute('placeholder'), String(sampling.top_p));
  assert.equal(await page.getByLabel('Longest answer').getAttribute('placeholder'), `up to ${context.toLocaleString('en')}`);
  await page.getByText('Advanced').click();
  assert.match(await page.locator('#settings').innerText(), /equal to those of a plain prompt[^]*level 0/i);
  await checkAccess(page, 'the settings');
  await shot(page, 'settings');
});
