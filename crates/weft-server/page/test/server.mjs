// Starts the real server on the bundled model, each on a port and a folder of its own, and ends it.

import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const BINARY = process.env.WEFT_BINARY ?? new URL('../../../../target/debug/weft', import.meta.url).pathname;
const START_MS = 60_000;

/** A running server: {address, stop, start}. It can be stopped and started again at the same port. */
export async function serve(...flags) {
  const folder = await mkdtemp(join(tmpdir(), 'weft-page-'));
  let child;
  let address;

  const start = async () => {
    const port = address ? new URL(address).port : '0';
    child = spawn(BINARY, ['serve', '--port', port, '--cache-dir', join(folder, 'rows'), '--chunk-dir', join(folder, 'chunks'), ...flags], { stdio: ['ignore', 'ignore', 'pipe'] });
    let said = '';
    child.stderr.setEncoding('utf8').on('data', (text) => { said += text; });
    const until = Date.now() + START_MS;
    while (Date.now() < until && child.exitCode === null) {
      address = /http:\/\/[\d.]+:\d+/.exec(said)?.[0] ?? address;
      if (address && (await isReady(address))) return;
      await sleep(50);
    }
    throw new Error(`the server did not start:\n${said}`);
  };

  const stop = async (signal = 'SIGTERM') => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => { child.once('exit', resolve); });
    child.kill(signal);
    await ended;
  };

  await start();
  return { address, start, stop, end: async () => { await stop('SIGKILL'); await rm(folder, { recursive: true, force: true }); } };
}

async function isReady(address) {
  try {
    return (await fetch(`${address}/health`)).ok;
  } catch {
    return false;
  }
}
