// The line and the ribbon above an answer: there before the first token, filling as the prompt is read,
// never moving the answer, and saying one thing in one way.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CAPTAIN, RULER, addExamples, addFile, answers, ask, checkAccess, finished, lastAnswer, openDetails, segments, shot, visit, withScript } from './harness.mjs';
import { delta } from './script.mjs';

const chunk = (kind, level, tokens, more = {}) => ({ id: null, kind, level, tokens, cached_tokens: 0, source: 'computed', reuse: 'exact', shift: 0, repaired_tokens: 0, attention: 0, ms: 0, ...more });

/** A report of a prompt with a document of 900 tokens. */
const report = (more = {}, document = {}) => ({
  chunks: [chunk('system', 0, 50, { cached_tokens: 50, source: 'device' }), chunk('context', 1, 900, document), chunk('query', 2, 50)],
  answer_attention: 0, saved_ms: 0, cold_ms_estimate: 0, ...more,
});

const progress = (processed, ms) => delta({}, { prompt_progress: { total: 1000, cache: 50, processed, time_ms: ms }, chunk_report: report() });

/** Whether `follow` has seen something, and drawn it. */
const hasSeen = (page, does, of) => page().evaluate(does, of).then(async (is) => is && page().evaluate(() => new Promise((resolve) => { requestAnimationFrame(() => requestAnimationFrame(() => resolve(true))); })));

/** A prompt that is read in four steps, then an answer in two words: each when the one before was seen. */
function* slow(page) {
  yield delta({ role: 'assistant', content: null });
  yield () => hasSeen(page, () => Boolean(document.querySelector('.answer')));
  let n = 0;
  for (const [processed, ms] of [[50, 0], [275, 1000], [500, 2000], [725, 3000], [1000, 4000]]) {
    yield progress(processed, ms);
    n += 1;
    const number = n;
    yield () => hasSeen(page, (least) => window.reads?.size >= least, number);
  }
  for (const word of ['Hello', 'world.']) {
    yield delta({ content: `${word} ` });
    yield () => hasSeen(page, (text) => [...document.querySelectorAll('.prose')].at(-1).textContent.includes(text), word);
  }
  const whole = report({ answer_attention: 0.1 }, { attention: 0.6 });
  yield `data: ${JSON.stringify({ id: 'chatcmpl-1', choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], chunk_report: whole, timings: { prompt_ms: 4100, predicted_per_second: 12 }, usage: { completion_tokens: 2 } })}\n\n`;
  yield 'data: [DONE]\n\n';
}

/** Where the answer's text stands below the top of its turn, and how high the context is, frame by frame. */
const follow = (page) => page.evaluate(() => {
  window.seen = new Set();
  window.fills = new Set();
  window.reads = new Set();
  window.lines = new Set();
  const look = () => {
    const answer = [...document.querySelectorAll('.answer')].at(-1);
    if (answer) {
      const top = answer.getBoundingClientRect().top;
      const { height } = answer.querySelector('.context').getBoundingClientRect();
      const prose = answer.querySelector('.prose');
      const parts = [...answer.querySelectorAll('.strip .segment')];
      const segment = parts[1];
      if (segment && !prose.textContent) {
        window.reads.add(parts.map((part) => part.style.getPropertyValue('--done')).join());
        window.fills.add(Number(segment.style.getPropertyValue('--done')).toFixed(2));
        window.lines.add(answer.querySelector('.summary').textContent);
      }
      window.seen.add(`context ${height.toFixed(1)}`);
      if (prose.textContent) window.seen.add(`text ${(prose.getBoundingClientRect().top - top).toFixed(1)}`);
    }
    requestAnimationFrame(look);
  };
  look();
});

describe('the ribbon', () => {
  for (const [name, size] of [['phone', { width: 390, height: 844, hasTouch: true, isMobile: true }], ['desktop', { width: 1280, height: 860 }]]) {
    for (const colorScheme of ['light', 'dark']) {
      test(`is there before the first token, fills, and does not move the answer: ${name}, ${colorScheme}`, async () => {
        await withScript(slow, async (page) => {
          await follow(page);
          await page.getByLabel('Your question').fill('What is this?');
          await page.keyboard.press('Enter');
          const answer = lastAnswer(page);
          const line = answer.locator('.summary');
          await answer.locator('.strip .segment').nth(2).waitFor({ state: 'attached' });
          await shot(page, `reading-${name}-${colorScheme}`);
          await finished(page);
          assert.match(await line.innerText(), /^1,000 tokens · 5 % kept/);
          const [seen, fills, lines] = await page.evaluate(() => [[...window.seen], [...window.fills], [...window.lines]]);
          assert.deepEqual(fills, ['0.00', '0.25', '0.50', '0.75', '1.00'], 'filled before the first token');
          assert.ok(lines.some((words) => /^Reading context · 50 % · about 2\.\d s left/.test(words)), lines.join(' | '));
          assert.equal(seen.filter((one) => one.startsWith('context')).length, 1, `the context changed its height: ${seen}`);
          assert.equal(seen.filter((one) => one.startsWith('text')).length, 1, `the answer was pushed: ${seen}`);
        }, { ...size, colorScheme });
      });
    }
  }

  for (const width of [390, 1280]) {
    test(`does not move the answer while its details are open: ${width} px`, async () => {
      // With two documents there is more to say at the end.
      const two = (text) => text.replace(/("kind":"context",.*?"tokens":)900(.*?)(\},\{"id":null,"kind":"query")/, '$1450$2},{"id":"b","kind":"context","level":1,"tokens":450,"cached_tokens":0,"source":"computed","reuse":"exact","shift":0,"repaired_tokens":0,"attention":0.05,"ms":0$3').replace('{"id":null,"kind":"context"', '{"id":"a","kind":"context"');
      function* script(at) {
        for (const part of slow(at)) yield typeof part === 'string' ? two(part) : part;
      }
      await withScript(script, async (page) => {
        await page.getByLabel('Your question').fill('What is this?');
        await page.keyboard.press('Enter');
        await lastAnswer(page).locator('.strip .segment').nth(2).waitFor({ state: 'attached' });
        await openDetails(page);
        await follow(page);
        await finished(page);
        const seen = await page.evaluate(() => [...window.seen]);
        assert.equal(seen.length, 2, String(seen));
        assert.match(await lastAnswer(page).locator('.looked-at').innerText(), /looked most at/);
      }, { width });
    });
  }

  test('stays with an answer that was stopped, also after a reload', async () => {
    function* half() {
      yield progress(50, 0);
      yield progress(500, 2000);
      yield () => false;
    }
    await withScript(half, async (page) => {
      await page.getByLabel('Your question').fill('What is this?');
      await page.keyboard.press('Enter');
      await lastAnswer(page).locator('.summary', { hasText: '50 %' }).waitFor();
      await page.getByRole('button', { name: 'Stop' }).click();
      await finished(page);
      const check = async () => {
        assert.equal(await lastAnswer(page).getAttribute('data-state'), 'stopped');
        assert.match(await lastAnswer(page).locator('.summary').innerText(), /^1,000 tokens · stopped at 50 %/);
        assert.equal(await lastAnswer(page).locator('.strip .segment').nth(1).evaluate((node) => node.style.getPropertyValue('--done')), '0.5');
      };
      await check();
      await page.reload();
      await lastAnswer(page).waitFor();
      await check();
    });
  });

  test('is there while the prompt waits for a lane, and is read when its turn comes', async () => {
    let hasWaited = false;
    function* queued(at) {
      yield () => hasWaited;
      yield* slow(at);
    }
    await withScript(queued, async (page) => {
      await addExamples(page);
      await follow(page);
      await page.getByLabel('Your question').fill(CAPTAIN[0]);
      await page.keyboard.press('Enter');
      const answer = lastAnswer(page);
      await answer.locator('.summary', { hasText: 'Waiting for its turn' }).waitFor();
      assert.match(await answer.locator('.summary').innerText(), /^Waiting for its turn · \d+ tokens/);
      const names = await answer.locator('.strip .segment').evaluateAll((nodes) => nodes.map((node) => node.dataset.name));
      assert.deepEqual(names.slice(-4), ['krogaste.txt', 'nusonix.txt', 'kehujax.txt', 'this question']);
      assert.equal(await answer.locator('.strip .segment').last().evaluate((node) => node.style.getPropertyValue('--done')), '0');
      await shot(page, 'waiting');
      hasWaited = true;
      await finished(page);
      assert.match(await answer.locator('.summary').innerText(), /^1,000 tokens · 5 % kept/);
      const seen = await page.evaluate(() => [...window.seen]);
      assert.equal(seen.filter((one) => one.startsWith('context')).length, 1, `the context changed its height: ${seen}`);
    });
  });

  test('is filled by the real server, block by block', async () => {
    const page = await visit();
    await addFile(page, 'long.txt', 'The bells ring at noon. The candles burned until late. Old songs tell of it. '.repeat(150));
    await page.locator('#tray .document').waitFor();
    await page.evaluate(() => {
      window.parts = new Set();
      const look = () => {
        const segment = [...document.querySelectorAll('.strip .segment')].find((one) => one.dataset.name === 'long.txt');
        if (segment) window.parts.add(segment.style.getPropertyValue('--done'));
        requestAnimationFrame(look);
      };
      look();
    });
    await ask(page, 'Who rings the bells?');
    const parts = await page.evaluate(() => [...window.parts].map(Number));
    assert.ok(parts.some((part) => part > 0 && part < 1), `filled ${parts}`);
    assert.equal(parts.at(-1), 1);
  });
});

describe('the details', () => {
  test('name documents, tell turns from documents, and have a scale', async () => {
    const page = await visit();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
    await ask(page, ...RULER);
    assert.ok(!(await answers(page).first().locator('.details').isVisible()));
    assert.ok(!(await lastAnswer(page).locator('.details').isVisible()), 'the answer comes first');
    await openDetails(page);
    const names = await lastAnswer(page).locator('.segment-name').allInnerTexts();
    assert.deepEqual(names, ['krogaste.txt', 'nusonix.txt', 'kehujax.txt']);
    const colour = (of) => lastAnswer(page).locator(`.weave ${of}`).first().evaluate((node) => getComputedStyle(node).backgroundColor);
    assert.notEqual(await colour('.is-turn.from-device'), await colour('.is-document.from-device'));
    assert.deepEqual(await lastAnswer(page).locator('.weave .level').allInnerTexts(), ['system', 'documents', 'earlier turns', 'question', 'attention']);
    assert.match(await lastAnswer(page).locator('.axis').innerText(), /^(5|10|25|50|100) %\s+0 %$/);
    // A bar is as high as its share on the scale.
    const [top] = (await lastAnswer(page).locator('.axis').innerText()).match(/\d+/);
    const shares = await lastAnswer(page).locator('.share').evaluateAll((nodes) => nodes.map((node) => ({ height: node.firstChild.getBoundingClientRect().height / node.getBoundingClientRect().height, figure: node.textContent })));
    for (const { height, figure } of shares.filter(({ figure: text }) => /^\d+ %$/.test(text))) {
      assert.ok(Math.abs(height * Number(top) - Number.parseInt(figure, 10)) < 2, `${figure} is ${height} of ${top} %`);
    }
    await checkAccess(page, 'the details');
    await shot(page, 'details');
  });

  test('tell one time to the first token', async () => {
    const page = await visit();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
    await ask(page, ...RULER);
    await openDetails(page);
    const [cold, run] = await lastAnswer(page).locator('.times .figure').allInnerTexts();
    const [, first] = /first token after ([\d.]+ m?s)/.exec(await lastAnswer(page).locator('.stats').innerText());
    assert.equal(run, first);
    const [, saved] = /([\d.]+ m?s) saved/.exec(await lastAnswer(page).locator('.summary').innerText());
    // On a slow machine these are seconds, to a tenth.
    const ms = (text) => Number.parseFloat(text.replace('≈ ', '')) * (/ s$/.test(text) ? 1000 : 1);
    const rounding = [cold, run, saved].some((text) => / s$/.test(text)) ? 200 : 2;
    assert.ok(Math.abs(ms(cold) - ms(run) - ms(saved)) <= rounding, `${cold} is not ${run} and ${saved} saved`);
    assert.equal((await segments(lastAnswer(page))).length, await lastAnswer(page).locator('.share').count());
  });
});
