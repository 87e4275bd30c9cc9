// Drafts that were accepted: how many there were, and the tint under them, on demand.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CAPTAIN, addExamples, ask, checkAccess, lastAnswer, openDetails, shot, visit, withScript } from './harness.mjs';
import { delta } from './script.mjs';

const report = { chunks: [{ kind: 'query', level: 2, tokens: 10, cached_tokens: 0, source: 'computed', reuse: 'exact', shift: 0, repaired_tokens: 0, attention: 0, ms: 1 }], answer_attention: 0, saved_ms: 0, cold_ms_estimate: 0 };

/** The end of a stream, with what was drafted. */
const end = (timings) => `data: ${JSON.stringify({ id: 'chatcmpl-1', choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], chunk_report: report, timings, usage: { completion_tokens: 9 } })}\n\ndata: [DONE]\n\n`;

/** Words, the drafted ones in brackets. */
function* script() {
  for (const part of ['The **cap', '[tain** of', '[ the `ship`', ' is\n\n```rust\n', '[let captain', ' = 1;\n```\n']) {
    const isDrafted = part.startsWith('[');
    yield delta({ content: isDrafted ? part.slice(1) : part }, isDrafted ? { weft: { accepted: 1 } } : {});
  }
  yield end({ draft_n: 48, draft_n_accepted: 34, predicted_per_second: 10, prompt_ms: 5 });
}

/** The tinted texts. */
const tinted = (page) => page.evaluate(() => [...(CSS.highlights.get('accepted') ?? [])].map(String));

describe('accepted drafts', () => {
  for (const colorScheme of ['light', 'dark']) {
    test(`are counted, and tinted if the reader wants to see them: ${colorScheme}`, async () => {
      await withScript(script, async (page) => {
        await ask(page, 'Who?');
        await openDetails(page);
        const drafts = lastAnswer(page).locator('.drafts');
        assert.match(await drafts.innerText(), /34 of 48 tokens drafted ahead were accepted/);
        assert.deepEqual(await tinted(page), [], 'nothing is tinted by itself');
        const show = drafts.getByRole('button', { name: 'show' });
        await show.click();
        assert.equal(await show.getAttribute('aria-pressed'), 'true');
        assert.deepEqual((await tinted(page)).join('|'), 'tain| of the |ship|let| captain', 'through bold, code and colours');
        await checkAccess(page, 'the details');
        await shot(page, `accepted-${colorScheme}`);
        await page.reload();
        assert.deepEqual(await tinted(page), []);
        await openDetails(page);
        await drafts.getByRole('button', { name: 'show' }).click();
        assert.equal((await tinted(page)).length, 5, 'the runs are kept with the conversation');
        await drafts.getByRole('button', { name: 'show' }).click();
        assert.deepEqual(await tinted(page), []);
      }, { colorScheme });
    });
  }

  test('are not mentioned if there were none', async () => {
    await withScript(function* nothing() {
      yield delta({ content: 'Plain.' });
      yield end({ predicted_per_second: 10, prompt_ms: 5 });
    }, async (page) => {
      await ask(page, 'Who?');
      await openDetails(page);
      assert.equal(await lastAnswer(page).locator('.drafts').isVisible(), false);
    });
  });

  test('of the real server are asked for', async () => {
    const page = await visit();
    await addExamples(page);
    const asked = page.waitForRequest((request) => request.url().endsWith('/v1/chat/completions'));
    await ask(page, ...CAPTAIN);
    assert.equal((await asked).postDataJSON().return_accepted, true);
  });
});
