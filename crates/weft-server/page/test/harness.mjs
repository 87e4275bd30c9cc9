// What all tests of the page share: a browser, a server with the bundled model, and what a person does.
// With WEFT_PAGE_FILES=1 the page's files come from this folder and not from the binary, so that the
// page can be edited without building.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, afterEach, before, beforeEach } from 'node:test';
import { chromium } from 'playwright-core';
import { scripted } from './script.mjs';
import { serve } from './server.mjs';

const FILES = new URL('../', import.meta.url).pathname;
const SHOTS = new URL('./shots/', import.meta.url).pathname;
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

export const CAPTAIN = ['Who is the captain of the Krogaste?', 'Probrosur'];
export const RULER = ['Who is the ruler of Nusonix?', 'Vubegok'];
export const JOB = ['What is the job of Kehujax?', 'carpenter'];
export const GROHOSU = 'Person: Grohosu\nThe pet of Grohosu is a fox. Young people often move away. Grohosu is a close friend of Gukehut. The candles burned until late. The age of Grohosu is 58. The home of Grohosu is in Vetremu. The bells ring at noon.';

let browser;
export let server;
let open = []; // what a test opened: {context, page, troubles, foreign}

before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
  server = await serve();
});

after(async () => {
  await browser?.close();
  await server?.end();
});

beforeEach(async () => {
  await fetch(`${server.address}/v1/chunks`, { method: 'DELETE' });
});

afterEach(async () => {
  const seen = open;
  open = [];
  for (const { context } of seen) await context.close();
  for (const { troubles, foreign } of seen) {
    assert.deepEqual(troubles, [], 'the console has no errors');
    assert.deepEqual(foreign, [], 'nothing is asked of another origin');
  }
});

/** A page as a person opens it. Refusals that a test provokes are named in `expects`. */
export async function visit({ width = 1280, height = 860, expects = [], address = server.address, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, reducedMotion: 'reduce', acceptDownloads: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const troubles = [];
  const foreign = [];
  page.on('console', (message) => {
    const text = message.text();
    if (['error', 'warning'].includes(message.type()) && !expects.some((word) => text.includes(word))) troubles.push(text);
  });
  page.on('pageerror', (error) => troubles.push(String(error)));
  page.on('request', (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== address && protocol !== 'blob:') foreign.push(request.url());
  });
  open.push({ context, page, troubles, foreign });
  if (process.env.WEFT_PAGE_FILES) await context.route((url) => url.origin === address && isFile(url), (route) => fromFolder(route, address));
  await page.goto(address);
  return page;
}

const fileOf = ({ pathname }) => `${FILES}${pathname === '/' ? 'index.html' : pathname.slice(1)}`;
const isFile = (url) => /^\/([\w-]+\.(js|css|svg)|vendor\/[\w.]+)?$/.test(url.pathname) && existsSync(fileOf(url));

async function fromFolder(route, address) {
  const url = new URL(route.request().url());
  const policy = (await fetch(address)).headers.get('content-security-policy');
  await route.fulfill({ path: fileOf(url), headers: { 'content-security-policy': policy, 'cache-control': 'no-cache' } });
}

/** A page whose answers are scripted; see script.mjs. The script is given a function that returns the page. */
export async function withScript(script, does, options = {}) {
  let page;
  const front = await scripted(server.address, () => script(() => page));
  try {
    page = await visit({ address: front.address, expects: ['ERR_INCOMPLETE_CHUNKED_ENCODING', 'ERR_CONNECTION_RESET', 'ERR_EMPTY_RESPONSE'], ...options });
    await page.locator('#served', { hasText: 'weft-tiny' }).waitFor({ state: 'attached' });
    await does(page);
    for (const { context } of open) await context.close();
  } finally {
    front.end();
  }
}

/** A server of a test's own; its pages are closed before it ends, so that they do not miss it. */
export async function withServer(flags, does) {
  const own = await serve(...flags);
  try {
    await does(own);
    for (const { context } of open) await context.close();
  } finally {
    await own.end();
  }
}

export const answers = (page) => page.getByRole('article', { name: 'Answer' });
export const lastAnswer = (page) => answers(page).last();

export async function finished(page) {
  await page.locator('#send').waitFor();
  await page.waitForFunction(() => !document.querySelector('.answer[data-state="writing"]'));
}

export async function ask(page, question, answer) {
  await page.getByLabel('Your question').fill(question);
  await page.keyboard.press('Enter');
  await page.locator('.question-text', { hasText: question }).last().waitFor();
  await finished(page);
  if (answer) assert.match(await lastAnswer(page).locator('.prose').innerText(), new RegExp(answer, 'i'));
}

export async function addExamples(page) {
  await page.getByRole('button', { name: 'Use three short examples' }).click();
  await page.locator('#tray .document').nth(2).waitFor();
}

export const addFile = (page, name, text) => page.locator('#file').setInputFiles({ name, mimeType: 'text/plain', buffer: Buffer.from(text) });

/** Drops files on the page, as from a desktop. */
export async function dropFile(page, name, text) {
  const data = await page.evaluateHandle(([fileName, content]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([content], fileName, { type: 'text/plain' }));
    return transfer;
  }, [name, text]);
  await page.dispatchEvent('#log', 'dragenter', { dataTransfer: data });
  assert.ok(await page.getByText('Drop to put it on the shelf').isVisible());
  await page.dispatchEvent('#log', 'drop', { dataTransfer: data });
}

export const segments = (answer) => answer.locator('.weave .segment').evaluateAll((nodes) => nodes.map((node) => ({
  source: /from-(\w+)/.exec(node.className)[1], approximate: node.classList.contains('approximate'), words: node.getAttribute('aria-label'),
})));

export const overflow = (page) => page.evaluate(() => Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) - innerWidth);

export const shot = (page, name) => page.screenshot({ path: `${SHOTS}${name}.png` });

/** Fails if anything on the page breaks a rule of accessibility. */
export async function checkAccess(page, when) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`), [], when);
}

/** Opens the details of the last answer's context. */
export async function openDetails(page) {
  const line = lastAnswer(page).locator('.summary');
  if ((await line.getAttribute('aria-expanded')) === 'false') await line.click();
  await lastAnswer(page).locator('.details').waitFor();
}
