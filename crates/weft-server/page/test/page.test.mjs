// The page in a real browser, against the real server with the bundled model. What a person does and
// sees; nothing is mocked but failures that a healthy server does not have. `run.sh` starts it.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { CAPTAIN, GROHOSU, JOB, RULER, addExamples, addFile, answers, ask, checkAccess, dropFile, finished, lastAnswer, openDetails, overflow, segments, server, shot, visit, withScript, withServer } from './harness.mjs';
import { END, delta } from './script.mjs';

describe('a newcomer', () => {
  test('drops in a file, asks twice, and sees what was kept and what it saved', async () => {
    const page = await visit();
    await page.getByRole('heading', { name: 'Read it once, ask it often.' }).waitFor();
    await shot(page, 'empty');
    await dropFile(page, 'grohosu.txt', GROHOSU);
    await page.locator('#tray .document', { hasText: 'grohosu.txt' }).waitFor();
    await page.locator('#chunks .chunk', { hasText: 'grohosu.txt' }).waitFor();
    await ask(page, 'What is the pet of Grohosu?', 'fox');
    const first = await segments(lastAnswer(page));
    assert.ok(first.some(({ source, words }) => source === 'computed' && words.startsWith('grohosu.txt')));
    await ask(page, 'Where is the home of Grohosu?', 'Vetremu');
    const second = await segments(lastAnswer(page));
    const document = second.find(({ words }) => words.startsWith('grohosu.txt'));
    assert.equal(document.source, 'device');
    assert.equal(second.at(-1).source, 'computed');
    assert.match(await lastAnswer(page).locator('.summary').innerText(), /^\d+ tokens · \d+ % kept · [\d.]+ (ms|s) saved/);
    assert.ok(!(await lastAnswer(page).locator('.times').isVisible()), 'the details are closed');
    await openDetails(page);
    assert.match(await lastAnswer(page).locator('.saved').innerText(), /^[\d.]+ (ms|s) saved/);
    const [cold, run] = await lastAnswer(page).locator('.time-bar i').evaluateAll((bars) => bars.map((bar) => bar.offsetWidth));
    // On a busy machine the second answer may take as long as the first.
    assert.ok(cold > 0 && run > 0, `cold ${cold} px, this run ${run} px`);
    assert.match(await page.locator('#chunks .chunk').innerText(), /device[^]*2 uses/);
  });

  test('is shown examples that the model can answer, and which document was looked at', async () => {
    const page = await visit();
    await addExamples(page);
    await page.getByRole('button', { name: CAPTAIN[0] }).click();
    await finished(page);
    await ask(page, ...RULER);
    await openDetails(page);
    assert.match(await lastAnswer(page).locator('.looked-at').innerText(), /looked most at nusonix\.txt/);
    const nusonix = (await segments(lastAnswer(page))).find(({ words }) => words.startsWith('nusonix.txt'));
    assert.match(nusonix.words, /113 tokens, on the device, \d+ % of the attention/);
  });
});

describe('the conversation', () => {
  test('is answered anew, edited, kept over a reload, exported and forgotten', async () => {
    const page = await visit();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
    await ask(page, ...RULER);
    await lastAnswer(page).getByRole('button', { name: 'Regenerate' }).click();
    await finished(page);
    assert.match(await lastAnswer(page).innerText(), /Vubegok/);
    assert.equal(await answers(page).count(), 2);

    const question = page.getByRole('article', { name: 'Question' }).last();
    await question.hover();
    await question.getByRole('button', { name: 'Edit' }).click();
    await page.getByLabel('Edit the question').fill(JOB[0]);
    await page.getByRole('button', { name: 'Ask again' }).click();
    await page.locator('.question-text', { hasText: JOB[0] }).waitFor();
    await finished(page);
    assert.match(await lastAnswer(page).innerText(), /carpenter/);
    assert.equal(await answers(page).count(), 2);

    await page.reload();
    await page.locator('#chunks .chunk').first().waitFor();
    assert.equal(await answers(page).count(), 2);
    assert.match(await lastAnswer(page).innerText(), /carpenter/);
    assert.equal(await lastAnswer(page).locator('.strip .segment').count(), (await segments(lastAnswer(page))).length);
    assert.equal(await page.locator('#tray .document').count(), 3);

    for (const [name, expected] of [['Markdown', /\| nusonix\.txt \| 113 \|/], ['JSON', /"chunk_report"|"report"/]]) {
      await page.getByRole('button', { name: 'Export' }).click();
      const [download] = await Promise.all([page.waitForEvent('download'), page.locator('#export-menu').getByRole('button', { name }).click()]);
      const text = readFileSync(await download.path(), 'utf8');
      assert.match(text, expected);
      if (name === 'JSON') assert.equal(JSON.parse(text).turns.length, 4);
    }

    await page.getByRole('button', { name: 'New' }).click();
    assert.equal(await answers(page).count(), 0);
    await page.locator('#conversations .chunk-pick').click();
    assert.equal(await answers(page).count(), 2);
  });

  test('can be stopped, and the lane is free again', async () => {
    const page = await visit();
    const sentence = 'The bells ring at noon. The candles burned until late. Old songs tell of it. ';
    await addFile(page, 'long.txt', sentence.repeat(160));
    await page.locator('#tray .document').waitFor();
    await page.getByLabel('Your question').fill('Who rings the bells?');
    // A click from here might come after the answer.
    await page.evaluate(() => {
      const stop = document.querySelector('#stop');
      const watch = new MutationObserver(() => {
        if (!stop.checkVisibility()) return;
        watch.disconnect();
        setTimeout(() => stop.click(), 20);
      });
      watch.observe(document.body, { attributes: true, childList: true, subtree: true });
    });
    await page.keyboard.press('Enter');
    await page.getByText('Stopped.', { exact: false }).first().waitFor();
    assert.equal(await lastAnswer(page).getAttribute('data-state'), 'stopped');
    const deadline = Date.now() + 60_000;
    let lanes;
    do {
      const metrics = await (await fetch(`${server.address}/metrics`)).text();
      lanes = /^weft_lanes_running (\d+)$/m.exec(metrics)?.[1];
    } while (lanes !== '0' && Date.now() < deadline);
    assert.equal(lanes, '0');
    await page.getByRole('button', { name: 'New' }).click();
    await page.getByRole('button', { name: 'Take long.txt out of the prompt' }).click();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
  });

  test('copies an answer, and keeps one on the shelf', async () => {
    const page = await visit({ permissions: ['clipboard-read', 'clipboard-write'] });
    await addExamples(page);
    await ask(page, ...CAPTAIN);
    await lastAnswer(page).getByRole('button', { name: 'Copy' }).click();
    await lastAnswer(page).getByText('Copied').waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /Probrosur/);
    await lastAnswer(page).getByRole('button', { name: 'Keep on the shelf' }).click();
    await page.locator('#chunks .chunk', { hasText: 'output' }).waitFor();
  });
});

describe('a stream', () => {
  test('folds thoughts, passes over pings, and joins what was cut within a character', async () => {
    const smile = Buffer.from(delta({ content: 'done 🙂' }));
    const cut = smile.indexOf(0xf0) + 2;
    let hasThought = false;
    function* script() {
      yield ': ping\n\n';
      yield delta({ role: 'assistant', content: '' });
      yield delta({ reasoning_content: 'Let me ' });
      yield delta({ reasoning_content: 'see.' });
      yield () => hasThought;
      yield smile.subarray(0, cut);
      yield 50;
      yield smile.subarray(cut);
      yield END;
    }
    await withScript(script, async (page) => {
      await page.getByLabel('Your question').fill('?');
      await page.keyboard.press('Enter');
      await lastAnswer(page).getByText('Thinking…').waitFor();
      assert.ok(!(await lastAnswer(page).getByText('Let me see.').isVisible()));
      hasThought = true;
      await finished(page);
      assert.equal(await lastAnswer(page).locator('.prose').innerText(), 'done 🙂');
      await lastAnswer(page).getByText('Thought before answering').click();
      assert.ok(await lastAnswer(page).getByText('Let me see.').isVisible());
    });
  });

  test('shows its speed, and keeps what came when it is stopped', async () => {
    function* script() {
      for (let n = 0; n < 2000; n += 1) {
        yield delta({ content: `word${n} ` });
        yield 10;
      }
    }
    await withScript(script, async (page) => {
      await page.getByLabel('Your question').fill('?');
      await page.keyboard.press('Enter');
      await lastAnswer(page).locator('.stats', { hasText: /^\d+ tokens · \d+ tok\/s$/ }).waitFor();
      await page.keyboard.press('Escape');
      await finished(page);
      assert.equal(await lastAnswer(page).getAttribute('data-state'), 'stopped');
      const text = await lastAnswer(page).locator('.prose').innerText();
      assert.match(text, /^word0 word1 word2/);
      await page.reload();
      await page.waitForFunction(() => document.querySelector('.answer'));
      assert.equal(await lastAnswer(page).locator('.prose').innerText(), text);
    });
  });

  for (const [what, last, words] of [
    ['an error in mid-stream', `data: ${JSON.stringify({ error: { message: 'the engine failed and this request was lost', type: 'server_error', code: null } })}\n\ndata: [DONE]\n\n`, 'The engine failed and this request was lost.'],
    ['a connection that breaks', null, 'The answer broke off'],
  ]) {
    test(`tells of ${what} below what came`, async () => {
      function* script(page) {
        yield delta({ content: 'So far ' });
        // A browser drops what it has not yet handed to the page when a connection breaks.
        yield () => lastAnswer(page()).getByText('So far').isVisible();
        yield last;
      }
      await withScript(script, async (page) => {
        await ask(page, '?');
        assert.equal(await lastAnswer(page).locator('.prose').innerText(), 'So far');
        await lastAnswer(page).getByText(words).first().waitFor();
        await lastAnswer(page).getByRole('button', { name: 'Try again' }).waitFor();
      });
    });
  }
});

describe('the prompt', () => {
  /** Chooses what stands under Advanced. */
  async function choose(page, label, value) {
    await page.getByRole('button', { name: 'Settings' }).click();
    if (!(await page.getByLabel(label).isVisible())) await page.getByText('Advanced').click();
    await page.getByLabel(label).selectOption(value);
    await page.getByRole('button', { name: 'Done' }).click();
  }

  test('is composed by click and drag, in an order that can be changed', async () => {
    const page = await visit();
    await addExamples(page);
    const names = () => page.locator('#tray .chip-name').allInnerTexts();
    assert.deepEqual(await names(), ['krogaste.txt', 'nusonix.txt', 'kehujax.txt']);
    await page.getByRole('button', { name: 'Move kehujax.txt forward' }).click();
    assert.deepEqual(await names(), ['krogaste.txt', 'kehujax.txt', 'nusonix.txt']);
    await page.getByRole('button', { name: 'Take krogaste.txt out of the prompt' }).click();
    assert.deepEqual(await names(), ['kehujax.txt', 'nusonix.txt']);
    await page.locator('#chunks .chunk', { hasText: 'krogaste.txt' }).dragTo(page.locator('#tray .document').nth(1), { targetPosition: { x: 4, y: 12 } });
    assert.deepEqual(await names(), ['kehujax.txt', 'krogaste.txt', 'nusonix.txt']);
    await page.locator('#tray .document', { hasText: 'nusonix.txt' }).dragTo(page.locator('#tray .document').first(), { targetPosition: { x: 4, y: 12 } });
    assert.deepEqual(await names(), ['nusonix.txt', 'kehujax.txt', 'krogaste.txt']);
    await page.locator('#chunks .chunk-pick', { hasText: 'kehujax.txt' }).click();
    assert.deepEqual(await names(), ['nusonix.txt', 'krogaste.txt']);
    await page.locator('#preview', { hasText: /tokens, (none|\d+) kept/ }).waitFor();
  });

  test('is exact by default, and says how approximate it is where it is not', async () => {
    const page = await visit();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
    const badge = () => lastAnswer(page).locator('.badge').innerText();
    await openDetails(page);
    assert.equal(await badge(), 'exact');
    await lastAnswer(page).getByRole('button', { name: 'verify' }).click();
    await lastAnswer(page).getByText('no bit of any logit differs').waitFor();
    assert.equal(await badge(), 'exact');

    await choose(page, 'Reuse of documents', 'anchored');
    await page.getByRole('button', { name: 'Reuse: anchored · approximate' }).waitFor();
    await page.getByRole('button', { name: 'New' }).click();
    await ask(page, ...CAPTAIN);
    await page.getByRole('button', { name: 'Move kehujax.txt forward' }).click();
    await page.getByRole('button', { name: 'New' }).click();
    await ask(page, ...JOB);
    await openDetails(page);
    assert.equal(await badge(), 'approximate');
    const moved = (await segments(lastAnswer(page))).find(({ words }) => words.startsWith('kehujax.txt'));
    assert.deepEqual([moved.source, moved.approximate], ['device', true]);
    await lastAnswer(page).locator('.weave .segment').nth(2).hover();
    assert.match(await lastAnswer(page).getByRole('tooltip').innerText(), /shift\s+[+−]\d+ from where it was computed/);
    await lastAnswer(page).getByRole('button', { name: 'verify' }).click();
    await lastAnswer(page).locator('.badge', { hasText: /approximate \(KL [\d.e-]+\)/ }).waitFor();
    await shot(page, 'approximate');
    await choose(page, 'Repair', 'link:16');
    await page.getByRole('button', { name: 'New' }).click();
    await ask(page, ...RULER);
  });

  test('has a system prompt and sampling settings that are sent', async () => {
    const page = await visit();
    await addExamples(page);
    await page.locator('#tray').getByRole('button', { name: 'system' }).click();
    await page.getByLabel('System prompt').fill('Answer in a full sentence.');
    await page.getByLabel('Temperature').fill('0');
    await page.getByLabel('Longest answer').fill('40');
    await page.getByRole('button', { name: 'Done' }).click();
    const [request] = await Promise.all([page.waitForRequest('**/v1/chat/completions'), ask(page, CAPTAIN[0], 'The captain of the Krogaste is Probrosur.')]);
    const { messages, temperature, max_tokens: most } = request.postDataJSON();
    assert.deepEqual([messages[0].role, temperature, most], ['system', 0, 40]);
  });
});

describe('the shelf', () => {
  test('pins, deletes and shows how full the tiers are', async () => {
    const page = await visit();
    await addExamples(page);
    const entry = page.locator('#chunks .chunk', { hasText: 'nusonix.txt' });
    await entry.getByRole('button', { name: 'Pin nusonix.txt' }).click();
    await page.locator('#chunks .chunk', { hasText: 'nusonix.txt' }).locator('[aria-label="Pin nusonix.txt"][aria-pressed="true"]').waitFor();
    await entry.getByRole('button', { name: 'Delete nusonix.txt' }).click();
    await page.waitForFunction(() => document.querySelectorAll('#chunks .chunk').length === 2);
    assert.equal(await page.locator('#tray .document').count(), 2);
    assert.ok((await page.getByRole('meter').count()) >= 1);
  });

  test('says why a file was not added', async () => {
    const page = await visit({ expects: ['400'] });
    await addFile(page, 'picture.png', Buffer.from('\x89PNG\0\0', 'latin1'));
    await page.locator('#shelf').getByText('It is a picture, not text').waitFor();
    await addFile(page, 'huge.txt', 'The bells ring at noon. '.repeat(2000));
    await page.locator('#shelf').getByText(/maximum context length is 4096 tokens/).waitFor();
    await addFile(page, 'grohosu.txt', GROHOSU);
    await page.locator('#chunks .chunk', { hasText: 'grohosu.txt' }).waitFor();
  });
});

describe('failures are told where they happen', () => {
  test('a prompt that is too long', async () => {
    const page = await visit({ expects: ['400'] });
    const long = (word) => `${word}. The bells ring at noon. The candles burned until late. `.repeat(120);
    for (const name of ['one', 'two', 'three']) {
      await addFile(page, `${name}.txt`, long(name));
      await page.locator('#tray .document', { hasText: name }).waitFor();
    }
    await ask(page, 'What rings at noon?');
    await lastAnswer(page).getByText(/maximum context length is 4096 tokens/).waitFor();
    await lastAnswer(page).getByText('Take a document out of the prompt').waitFor();
    await shot(page, 'too-long');
  });

  test('a server that is busy', async () => {
    const page = await visit({ expects: ['429'] });
    await addExamples(page);
    let n = 0;
    await page.route('**/v1/chat/completions', (route) => (n++ === 0
      ? route.fulfill({ status: 429, headers: { 'Retry-After': '1' }, contentType: 'application/json', body: JSON.stringify({ error: { message: '64 requests are waiting already', code: 'queue_full' } }) })
      : route.continue()));
    await ask(page, CAPTAIN[0]);
    await lastAnswer(page).getByText('The server is busy').waitFor();
    await lastAnswer(page).getByRole('button', { name: 'Try again' }).click();
    await lastAnswer(page).getByText('Probrosur').waitFor();
  });

  test('a server that is still loading', async () => {
    const page = await visit({ expects: ['503'] });
    const notReady = (progress) => ({ status: 503, contentType: 'application/json', body: JSON.stringify({ status: 'loading', progress, error: { message: 'the model is loading', code: 'unavailable' } }) });
    let done = 0.42;
    await page.route('**/v1/models', (route) => (done < 1 ? route.fulfill(notReady(done)) : route.continue()));
    await page.route('**/health', (route) => (done < 1 ? route.fulfill(notReady(done)) : route.continue()));
    await page.reload();
    await page.locator('#served', { hasText: 'loading the model · 42 %' }).waitFor();
    assert.equal(await page.locator('#served progress').evaluate((bar) => bar.value), 0.42);
    await shot(page, 'loading');
    done = 0.9;
    await page.locator('#served', { hasText: '90 %' }).waitFor();
    done = 1;
    await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
  });

  test('a server that is gone, and comes back', async () => {
    await withServer([], async (own) => {
      const page = await visit({ address: own.address, expects: ['ERR_CONNECTION_REFUSED', 'ERR_CONNECTION_RESET', 'ERR_EMPTY_RESPONSE', '503'] });
      await addExamples(page);
      await ask(page, ...CAPTAIN);
      await own.stop('SIGKILL');
      await ask(page, RULER[0]);
      await lastAnswer(page).getByText('The server does not answer').waitFor();
      await page.locator('#served', { hasText: 'no server' }).waitFor();
      await shot(page, 'gone');
      await own.start();
      await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
      await lastAnswer(page).getByRole('button', { name: 'Try again' }).click();
      await lastAnswer(page).getByText('Vubegok').waitFor();
      await finished(page);
      // Rows of the documents were on disk before the kill, or are computed again; the answer is the same.
      assert.equal(await page.locator('#tray .document').count(), 3);
    });
  });

  test('a server that wants a key', async () => {
    await withServer(['--api-key', 'open sesame'], async (own) => {
      const page = await visit({ address: own.address, expects: ['401'] });
      await page.getByLabel('API key').fill('wrong');
      await page.getByRole('button', { name: 'Use it' }).click();
      await page.getByText('That is not the server’s key').waitFor();
      await page.getByLabel('API key').fill('open sesame');
      await page.getByRole('button', { name: 'Use it' }).click();
      await addExamples(page);
      assert.equal(await page.getByLabel('API key').count(), 0);
      await ask(page, ...CAPTAIN);
      assert.ok(!(await page.evaluate(() => JSON.stringify(localStorage))).includes('sesame'));
    });
  });
});

describe('everyone can use it', () => {
  test('with a keyboard alone', async () => {
    const page = await visit();
    const press = (...keys) => keys.reduce((last, key) => last.then(() => page.keyboard.press(key)), Promise.resolve());
    const focused = () => page.evaluate(() => (document.activeElement === document.body ? '' : document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()));
    const tabTo = async (words, key = 'Tab') => {
      for (let n = 0; n < 60; n += 1) {
        await press(key);
        if ((await focused()).includes(words)) return;
      }
      assert.fail(`Tab does not reach ${words}`);
    };
    await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
    await tabTo('Use three short examples');
    await press('Enter');
    await page.locator('#tray .document').nth(2).waitFor();
    await page.waitForFunction(() => document.activeElement.id === 'question');
    await page.keyboard.type(CAPTAIN[0]);
    await press('Enter');
    await lastAnswer(page).getByText('Probrosur').waitFor();
    await finished(page);
    await tabTo('tokens · ', 'Shift+Tab');
    await press('Enter');
    await tabTo('tokens,');
    await press('ArrowRight');
    assert.match(await focused(), /^krogaste\.txt: 132 tokens/);
    assert.match(await page.getByRole('tooltip').first().innerText(), /About Krogaste/);
    await press('Escape');
    assert.equal(await page.getByRole('tooltip').count(), 0);
    await tabTo('Regenerate');
    await press('Enter');
    await page.locator('#stop').waitFor({ state: 'hidden' });
    await finished(page);
    assert.match(await lastAnswer(page).innerText(), /Probrosur/);
  });

  for (const width of [360, 390]) {
    test(`on a phone of ${width} px`, async () => {
      const page = await visit({ width, height: 780, hasTouch: true, isMobile: true, colorScheme: 'dark' });
      const wide = async (when) => assert.ok((await overflow(page)) <= 0, `${when} is too wide by ${await overflow(page)} px`);
      await page.locator('#served', { hasText: 'weft-tiny' }).waitFor({ state: 'attached' });
      await wide('the empty page');
      await addExamples(page);
      await wide('the page with documents');
      await ask(page, ...CAPTAIN);
      await ask(page, ...RULER);
      await wide('the page with answers');
      await shot(page, `phone-${width}`);
      await lastAnswer(page).locator('.strip').tap();
      await lastAnswer(page).locator('.times').waitFor();
      await wide('the page with details');
      await lastAnswer(page).locator('.weave .segment').nth(2).tap();
      await lastAnswer(page).getByRole('tooltip').waitFor();
      await wide('the page with a segment’s facts');
      await page.getByRole('button', { name: /^Shelf/ }).tap();
      await page.locator('#chunks .chunk').first().waitFor();
      await wide('the shelf');
      await shot(page, `phone-${width}-shelf`);
      await page.getByRole('button', { name: 'Close the shelf' }).tap();
      await page.getByRole('button', { name: 'Settings' }).tap();
      await wide('the settings');
    });
  }

  for (const colorScheme of ['light', 'dark']) {
    test(`with enough contrast and names for everything, ${colorScheme}`, async () => {
      const page = await visit({ colorScheme });
      const check = (when) => checkAccess(page, when);
      await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
      await check('the empty page');
      await addExamples(page);
      await ask(page, ...CAPTAIN);
      await ask(page, ...RULER);
      await openDetails(page);
      await lastAnswer(page).getByRole('button', { name: 'verify' }).click();
      await lastAnswer(page).locator('.verdict-details').waitFor();
      await check('the page with answers');
      await shot(page, `desktop-${colorScheme}`);
      await page.getByRole('button', { name: 'Settings' }).click();
      await check('the settings');
    });
  }

  test('in the dark by choice', async () => {
    const page = await visit({ colorScheme: 'light' });
    const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await paper();
    await page.getByRole('button', { name: 'Theme' }).click();
    assert.notEqual(await paper(), light);
    await page.reload();
    assert.notEqual(await paper(), light);
  });
});

test('documents of an earlier run come from disk', async () => {
  await withServer([], async (own) => {
    const first = await visit({ address: own.address });
    await addExamples(first);
    await ask(first, ...CAPTAIN);
    await first.context().close();
    await own.stop();
    await own.start();
    const page = await visit({ address: own.address });
    for (const document of ['krogaste.txt', 'nusonix.txt', 'kehujax.txt']) await page.locator('#chunks .chunk-pick', { hasText: document }).click();
    await addFile(page, 'grohosu.txt', GROHOSU);
    await page.locator('#tray .document', { hasText: 'grohosu.txt' }).waitFor();
    await ask(page, ...RULER);
    const kept = await segments(lastAnswer(page));
    assert.equal(kept.find(({ words }) => words.startsWith('nusonix.txt')).source, 'disk');
    assert.equal(kept.find(({ words }) => words.startsWith('grohosu.txt')).source, 'computed');
  });
});

test('what a model writes never becomes markup', async () => {
  const page = await visit();
  const drawn = await page.evaluate(async () => {
    const { draw } = await import('/markdown.js');
    const node = document.createElement('div');
    const text = '# <img src=x onerror=alert(1)>\n\n[a](javascript:alert(1)) [b](https://example.org/) <script>alert(1)</script>\n\n- one\n- **two**\n  1. deep\n\n1. first\n\n```html\n<b>not bold</b>\n```\n\n| a | b |\n|---|---|\n| 1 | `x|y` |\n\n> quoted\n\n2 * 3 * 4 and snake_case_name';
    // As a stream brings it.
    for (let n = 1; n <= text.length; n += 1) draw(node, text.slice(0, n));
    const whole = document.createElement('div');
    draw(whole, text);
    return { tags: [...new Set([...node.querySelectorAll('*')].map(({ localName }) => localName))].sort(), links: [...node.querySelectorAll('a')].map(({ href }) => href), text: node.textContent, same: node.isEqualNode(whole) };
  });
  assert.deepEqual(drawn.links, ['https://example.org/']);
  assert.ok(!drawn.tags.some((tag) => ['img', 'script', 'b'].includes(tag)), String(drawn.tags));
  assert.match(drawn.text, /<script>alert\(1\)<\/script>/);
  assert.match(drawn.text, /2 \* 3 \* 4 and snake_case_name/);
  assert.ok(drawn.same, 'a text that came in pieces is drawn as the whole');
});
