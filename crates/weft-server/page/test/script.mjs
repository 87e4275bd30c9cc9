// A server in front of the real one that answers chats from a script: what the bundled model never
// says (thoughts, long answers, failures in mid-stream). Everything else is passed on.

import { createServer, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

const POLL_MS = 20;

/**
 * `script` yields bytes to send, milliseconds to wait, or a condition to wait for: a function that is
 * asked again and again. Returning ends the answer.
 */
export async function scripted(address, script) {
  const { hostname, port } = new URL(address);
  const server = createServer(async (asked, answer) => {
    if (asked.url !== '/v1/chat/completions') {
      const { origin, ...headers } = asked.headers;
      const passed = request({ hostname, port, path: asked.url, method: asked.method, headers: { ...headers, host: `${hostname}:${port}` } }, (got) => {
        answer.writeHead(got.statusCode, got.headers);
        got.pipe(answer);
      });
      passed.on('error', () => answer.destroy());
      asked.pipe(passed);
      return;
    }
    asked.resume();
    answer.writeHead(200, { 'Content-Type': 'text/event-stream' });
    for (const part of script()) {
      if (answer.destroyed) return;
      if (part === null) {
        answer.destroy();
        return;
      }
      if (typeof part === 'number') await sleep(part);
      else if (typeof part === 'function') while (!answer.destroyed && !(await part())) await sleep(POLL_MS);
      else answer.write(part);
    }
    answer.end();
  });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  return {
    address: `http://127.0.0.1:${server.address().port}`,
    end: () => { server.closeAllConnections(); server.close(); },
  };
}

/** An event with a delta. */
export const delta = (of, more = {}) => `data: ${JSON.stringify({ id: 'chatcmpl-1', choices: [{ index: 0, delta: of, finish_reason: null }], ...more })}\n\n`;

/** The end of a stream. */
export const END = `data: ${JSON.stringify({ id: 'chatcmpl-1', choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })}\n\ndata: [DONE]\n\n`;
