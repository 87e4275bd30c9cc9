// What the page remembers, and what can be undone: deleted chunks, removed turns, conversations, and
// the memory of the version before.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CAPTAIN, GROHOSU, JOB, RULER, addExamples, addFile, answers, ask, checkAccess, finished, lastAnswer, server, shot, visit } from './harness.mjs';

const stored = async () => (await (await fetch(`${server.address}/v1/chunks`)).json()).data.map(({ name }) => name).sort();
const until = async (what, is) => {
  for (let n = 0; n < 400; n += 1) {
    if (await is()) return;
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
  assert.fail(`never: ${what}`);
};
const undo = (page) => page.locator('#toast').getByRole('button', { name: 'Undo' }).click();

describe('deleting from the shelf', () => {
  test('can be undone: chunks, their rows and their places come back', async () => {
    const page = await visit();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
    for (const name of ['nusonix.txt', 'krogaste.txt']) await page.getByRole('button', { name: `Delete ${name}` }).click();
    assert.equal(await page.locator('#chunks .chunk').count(), 1);
    assert.deepEqual(await page.locator('#tray .chip-name').allInnerTexts(), ['kehujax.txt']);
    await page.getByText('2 chunks were deleted.').waitFor();
    await shot(page, 'deleted');
    await undo(page);
    assert.equal(await page.locator('#chunks .chunk').count(), 3);
    assert.deepEqual(await page.locator('#tray .chip-name').allInnerTexts(), ['krogaste.txt', 'nusonix.txt', 'kehujax.txt']);
    await ask(page, ...RULER);
    assert.match(await lastAnswer(page).locator('.summary').innerText(), /9\d % kept/, 'nothing is computed again');
  });

  test('is final when the message goes, and when the page is left', async () => {
    const page = await visit();
    await addExamples(page);
    await page.getByRole('button', { name: 'Delete nusonix.txt' }).click();
    assert.equal((await stored()).length, 3, 'not yet');
    await until('the message goes', async () => !(await page.locator('#toast').isVisible()) && (await stored()).length === 2);
    await page.getByRole('button', { name: 'Delete kehujax.txt' }).click();
    await page.goto('about:blank');
    await until('it is deleted', async () => (await stored()).length === 1);
  });
});

describe('the same text under a new name', () => {
  test('asks, and keeps or changes the name', async () => {
    const page = await visit();
    await addFile(page, 'one.txt', GROHOSU);
    await page.locator('#tray .document', { hasText: 'one.txt' }).waitFor();
    await addFile(page, 'two.txt', GROHOSU);
    await page.getByText('two.txt is on the shelf as one.txt').waitFor();
    assert.deepEqual(await stored(), ['one.txt'], 'nothing is renamed before it is asked');
    await page.getByRole('button', { name: 'Keep one.txt' }).click();
    assert.equal(await page.locator('#chunks .chunk').count(), 1);
    await addFile(page, 'two.txt', GROHOSU);
    await page.getByRole('button', { name: 'Rename to two.txt' }).click();
    await page.locator('#chunks .chunk', { hasText: 'two.txt' }).waitFor();
    await page.locator('#tray .document', { hasText: 'two.txt' }).waitFor();
    assert.deepEqual(await stored(), ['two.txt']);
    // A text of the same length is another one.
    await addFile(page, 'three.txt', GROHOSU.replace('noon', 'dawn'));
    await page.locator('#chunks .chunk', { hasText: 'three.txt' }).waitFor();
    assert.deepEqual(await stored(), ['three.txt', 'two.txt']);
  });

  test('is one word, and has a number if another text has it', async () => {
    const page = await visit();
    for (const when of ['noon', 'dawn']) {
      await addFile(page, 'the bells.txt', GROHOSU.replace('noon', when));
      await page.locator('#chunks .chunk', { hasText: 'the-bells.txt' }).nth(when === 'noon' ? 0 : 1).waitFor();
    }
    assert.deepEqual(await stored(), ['the-bells.txt', 'the-bells.txt-2']);
    await addFile(page, 'the bells.txt', GROHOSU.replace('noon', 'dawn'));
    await page.getByText('the-bells.txt is on the shelf as the-bells.txt-2').waitFor();
  });

  test('asks for what the server counts as the same text, also if it came after the page was opened', async () => {
    const page = await visit();
    await page.locator('#served', { hasText: 'weft-tiny' }).waitFor();
    // `weft chunk add` stores a file without its last line break.
    const body = JSON.stringify({ kind: 'context', name: 'cli.txt', text: GROHOSU });
    await fetch(`${server.address}/v1/chunks`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
    await addFile(page, 'page.txt', `${GROHOSU}\n`);
    await page.getByText('page.txt is on the shelf as cli.txt').waitFor();
    assert.deepEqual(await stored(), ['cli.txt'], 'nothing is renamed before it is asked');
    await page.getByRole('button', { name: 'Rename to page.txt' }).click();
    await page.locator('#chunks .chunk', { hasText: 'page.txt' }).waitFor();
    assert.deepEqual(await stored(), ['page.txt']);
  });
});

describe('editing a question', () => {
  test('says what it removes, and can be undone', async () => {
    const page = await visit();
    await addExamples(page);
    await ask(page, ...CAPTAIN);
    await ask(page, ...RULER);
    await ask(page, ...JOB);
    const first = page.getByRole('article', { name: 'Question' }).first();
    await first.hover();
    await first.getByRole('button', { name: 'Edit' }).click();
    await page.getByText('This removes 2 later questions and 3 answers. You can undo it.').waitFor();
    await page.getByLabel('Edit the question').fill(RULER[0]);
    await page.getByRole('button', { name: 'Ask again' }).click();
    await finished(page);
    assert.equal(await answers(page).count(), 1);
    await page.getByText('Edited: removed 2 later questions and 3 answers.').waitFor();
    await undo(page);
    assert.equal(await answers(page).count(), 3);
    assert.match(await lastAnswer(page).innerText(), /carpenter/);
    await page.reload();
    await lastAnswer(page).waitFor();
    assert.equal(await answers(page).count(), 3);
    // An answer that is asked for again can come back too, until the conversation goes on.
    await answers(page).first().getByRole('button', { name: 'Regenerate' }).click();
    await finished(page);
    await undo(page);
    assert.equal(await answers(page).count(), 3);
    await answers(page).first().getByRole('button', { name: 'Regenerate' }).click();
    await finished(page);
    await ask(page, ...JOB);
    assert.ok(!(await page.locator('#toast').isVisible()));
  });
});

describe('conversations', () => {
  for (const [name, size] of [['phone', { width: 390, height: 844 }], ['desktop', {}]]) {
    for (const colorScheme of ['light', 'dark']) {
      test(`are listed, found, renamed and deleted: ${name}, ${colorScheme}`, async () => {
        const page = await visit({ ...size, colorScheme });
        const shelf = async () => { if (name === 'phone') await page.getByRole('button', { name: /^Shelf/ }).click(); };
        const titles = () => page.locator('#conversations .chunk-name').allInnerTexts();
        await addExamples(page);
        await ask(page, ...CAPTAIN);
        await page.getByRole('button', { name: 'New' }).click();
        await ask(page, ...RULER);
        await page.reload();
        await lastAnswer(page).waitFor();
        assert.match(await lastAnswer(page).innerText(), /Vubegok/);
        await shelf();
        assert.deepEqual(await titles(), [RULER[0], CAPTAIN[0]]);
        await page.getByLabel('Search the conversations').fill('probrosur');
        assert.deepEqual(await titles(), [CAPTAIN[0]], 'answers are searched too');
        await page.getByLabel('Search the conversations').fill('');
        await page.locator('#conversations .chunk-pick').nth(1).click();
        assert.match(await lastAnswer(page).innerText(), /Probrosur/);
        await shelf();
        await page.getByRole('button', { name: `Rename ${CAPTAIN[0]}` }).click();
        await page.getByLabel('Name of the conversation').fill('Ships');
        await page.keyboard.press('Enter');
        assert.deepEqual(await titles(), [RULER[0], 'Ships']);
        await checkAccess(page, 'the list');
        await shot(page, `conversations-${name}-${colorScheme}`);
        await page.getByRole('button', { name: 'Delete Ships' }).click();
        assert.deepEqual(await titles(), [RULER[0]]);
        assert.equal(await answers(page).count(), 0);
        await undo(page);
        assert.deepEqual(await titles(), [RULER[0], 'Ships']);
        assert.match(await lastAnswer(page).innerText(), /Probrosur/);
      });
    }
  }

  test('of two tabs do not overwrite each other', async () => {
    const page = await visit();
    const other = await page.context().newPage();
    await other.goto(server.address);
    await ask(page, 'first tab');
    await other.getByRole('button', { name: 'New' }).click();
    await ask(other, 'second tab');
    await page.locator('#conversations .chunk-name', { hasText: 'second tab' }).waitFor();
    await page.reload();
    await page.locator('#conversations .chunk-name', { hasText: 'second tab' }).waitFor();
    await page.locator('#conversations .chunk-name', { hasText: 'first tab' }).waitFor();
  });

  test('of version 0.2.0 open, with their reports', async () => {
    const page = await visit();
    await page.evaluate(() => {
      const chunk = (kind, level, tokens, more) => ({ id: null, kind, level, tokens, cached_tokens: 0, source: 'computed', reuse: 'exact', shift: 0, repaired_tokens: 0, attention: 0.2, ms: 12, ...more });
      localStorage.clear();
      localStorage.setItem('weft.page', JSON.stringify({
        theme: 'dark', settings: { system: '', temperature: '0.5' }, reuse: 'exact', repair: 'none',
        contexts: [],
        turns: [
          { role: 'user', text: 'Who rules?' },
          {
            role: 'assistant', text: 'Vubegok', thinking: '', state: 'done', id: 'chatcmpl-1', finish: 'stop', firstMs: 31,
            sent: [{ name: 'nusonix.txt', text: 'Nusonix', id: 'ab12' }, { name: 'this question', text: 'Who rules?' }],
            usage: { completion_tokens: 3 }, timings: { prompt_ms: 30, predicted_per_second: 100 },
            report: { chunks: [chunk('system', 0, 3), chunk('context', 1, 113, { id: 'ab12', source: 'device', cached_tokens: 113 }), chunk('query', 2, 15)], answer_attention: 0.1, saved_ms: 90, cold_ms_estimate: 120 },
          },
          { role: 'user', text: 'And now?' },
          { role: 'assistant', text: 'So far', thinking: '', state: 'writing', sent: [] },
        ],
      }));
    });
    await page.reload();
    assert.equal(await answers(page).count(), 2);
    assert.equal(await answers(page).first().locator('.summary').innerText(), '131 tokens · 86 % kept · 90 ms saved');
    await answers(page).first().locator('.summary').click();
    assert.deepEqual(await answers(page).first().locator('.segment-name').allInnerTexts(), ['nusonix.txt']);
    assert.equal(await lastAnswer(page).getAttribute('data-state'), 'stopped');
    assert.deepEqual(await page.locator('#conversations .chunk-name').allInnerTexts(), ['Who rules?']);
    await page.getByRole('button', { name: 'Settings' }).click();
    assert.equal(await page.getByLabel('Temperature').inputValue(), '0.5');
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
  });
});
