// Makes the pictures of README.md and docs/server.md: the page with a model of a real shape, so that
// they show seconds. `WEFT_BINARY=target/release/weft node pictures.mjs MODEL`, where MODEL is a folder
// of `weft bench export --shape qwen3-0.6b` with a tokenizer.json and a chat_template.jinja beside the
// weights. Its weights are random, so what it writes means nothing; what it computes is what it would
// compute with others. Takes about three minutes on two cores.

import { readFileSync } from 'node:fs';
import { chromium } from 'playwright-core';
import { serve } from './server.mjs';

const ROOT = new URL('../../../../', import.meta.url).pathname;
const MINUTES = 60_000;
// About 3,000 tokens.
const DOCUMENT = readFileSync(`${ROOT}docs/server.md`, 'utf8').slice(0, 11_500);
const SETTINGS = { settings: { max_tokens: '16', temperature: '0', thinking: 'off' } };

const server = await serve(process.argv[2], '--ctx-size', '8k');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });

async function open(options) {
  const context = await browser.newContext({ reducedMotion: 'reduce', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(10 * MINUTES);
  await page.goto(server.address);
  await page.evaluate((data) => localStorage.setItem('weft.page', JSON.stringify(data)), SETTINGS);
  await page.reload();
  await page.locator('#file').setInputFiles({ name: 'server.md', mimeType: 'text/markdown', buffer: Buffer.from(DOCUMENT) });
  await page.locator('#tray .document').waitFor();
  return page;
}

async function ask(page, question) {
  await page.getByLabel('Your question').fill(question);
  await page.keyboard.press('Enter');
}

const finished = (page) => page.waitForFunction(() => document.querySelector('.answer') && !document.querySelector('.answer[data-state="writing"]'));

// On a phone, while the document is read for the first time; then the whole of it.
const phone = await open({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, colorScheme: 'dark', hasTouch: true, isMobile: true });
await ask(phone, 'What port does the server listen on?');
await phone.waitForFunction(() => /Reading server\.md · [456]\d %/.test(document.querySelector('.summary')?.textContent ?? ''));
await phone.evaluate(() => document.activeElement.blur());
await phone.screenshot({ path: `${ROOT}docs/page-phone.png` });
await finished(phone);
await phone.close();

// On a desktop, the second question about it.
const desktop = await open({ viewport: { width: 1280, height: 860 }, deviceScaleFactor: 1.5, colorScheme: 'light' });
await ask(desktop, 'What port does the server listen on?');
await finished(desktop);
await ask(desktop, 'And which flag changes it?');
await desktop.locator('.answer').nth(1).waitFor();
await finished(desktop);
await desktop.locator('.summary').last().click();
await desktop.evaluate(() => { document.activeElement.blur(); document.getElementById('scroll').scrollTop = 1e6; });
await desktop.mouse.move(0, 0);
await desktop.waitForTimeout(800);
await desktop.screenshot({ path: `${ROOT}docs/page-desktop.png` });
console.log(await desktop.locator('.summary').allInnerTexts());

await browser.close();
await server.end();
