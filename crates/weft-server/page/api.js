// The server's routes as functions, and its answers in one shape. It owns every request that the page
// makes, and all that is known of the wire. It touches no element and remembers nothing but the key.

/** A request that failed. The page chooses its message by `kind`. */
export class ApiError extends Error {
  constructor(kind, message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.kind = kind; // gone | key | busy | long | loading | refused | fault | broken
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

export class Api {
  constructor(keyOf) {
    this.keyOf = keyOf;
    /** The model whose chunks are meant, if several are served. */
    this.model = '';
  }

  /** A route with the model in its query. */
  #of(path) {
    return this.model ? `${path}?model=${encodeURIComponent(this.model)}` : path;
  }

  /** The served models. Other names of one model (`root` is its own) are left out. */
  async models() {
    const { data } = await this.#json('GET', '/v1/models');
    const models = (data ?? []).filter(({ id, root }) => !root || root === id);
    return models.length ? models : [{ id: '' }];
  }

  /** Loads a model, and ends when it is loaded. */
  load(model) {
    return this.#json('POST', '/models/load', { model });
  }

  /** Whether the server answers: ready, loading or gone. */
  async health() {
    try {
      return (await fetch('/health', { cache: 'no-store' })).ok ? 'ready' : 'loading';
    } catch {
      return 'gone';
    }
  }

  /** The stored chunks, and what the tiers hold. */
  async chunks() {
    const body = await this.#json('GET', this.#of('/v1/chunks'));
    return { chunks: body.data ?? [], tiers: body.tiers ?? null };
  }

  /** Registers a text. The same text again is the same chunk; with a name it gets that name. */
  addChunk(kind, text, name) {
    return this.#json('POST', '/v1/chunks', { kind, text, name, model: this.model || undefined });
  }

  /** `keepalive`: also if the page is being closed. */
  deleteChunk(id, keepalive = false) {
    return this.#json('DELETE', this.#of(`/v1/chunks/${encodeURIComponent(id)}`), undefined, undefined, keepalive);
  }

  pinChunk(id, pinned) {
    return this.#json('POST', this.#of(`/v1/chunks/${encodeURIComponent(id)}/pin`), { pinned });
  }

  /** What a prompt would find: tokens, what of it is kept where. */
  preview(prompt, signal) {
    return this.#json('POST', '/v1/chunks/preview', prompt, signal);
  }

  /** Reruns one of the last answers cold and compares. */
  verify(completion) {
    return this.#json('POST', '/v1/chunks/verify', { completion });
  }

  /**
   * Answers a prompt. `on` gets {loading} while the model is loaded and {progress, report} while the
   * prompt is read, then {text} (with `accepted` if a draft had it) and {thinking} as they come. The
   * result has what the end of the stream reports: id, finish, usage, timings, report.
   */
  async chat(prompt, signal, on) {
    const body = { ...prompt, stream: true, stream_options: { include_usage: true }, return_progress: true, return_accepted: true };
    const response = await this.#send('POST', '/v1/chat/completions', body, signal);
    const end = { id: null, finish: null, usage: null, timings: null, report: null };
    for await (const data of events(response.body, signal, (loading) => on({ loading }))) {
      if (data === '[DONE]') return end;
      const event = parse(data);
      if (event.error) throw failure(event.error.code === 'context_length_exceeded' ? 400 : 500, event, null);
      const choice = event.choices?.[0];
      end.id = event.id ?? end.id;
      if (event.prompt_progress) {
        on({ progress: event.prompt_progress, report: event.chunk_report });
        continue;
      }
      if (choice?.delta?.reasoning_content) on({ thinking: choice.delta.reasoning_content });
      if (choice?.delta?.content) on({ text: choice.delta.content, accepted: event.weft?.accepted > 0 });
      if (choice?.finish_reason) end.finish = choice.finish_reason;
      end.usage = event.usage ?? end.usage;
      end.timings = event.timings ?? end.timings;
      end.report = event.chunk_report ?? end.report;
    }
    throw new ApiError('broken', 'The answer broke off: the server closed the connection before its end.');
  }

  async #json(method, path, body, signal, keepalive = false) {
    const response = await this.#send(method, path, body, signal, keepalive);
    const text = await response.text();
    return text ? parse(text) : {};
  }

  async #send(method, path, body, signal, keepalive = false) {
    const headers = {};
    const key = this.keyOf();
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    const request = { method, headers, signal, keepalive, body: body === undefined ? undefined : JSON.stringify(body) };
    let response;
    try {
      response = await fetch(path, request);
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError('gone', 'The server does not answer.');
    }
    if (response.ok) return response;
    let answer = {};
    try {
      answer = await response.json();
    } catch {
      // Without a body that can be read, the status says what failed.
    }
    throw failure(response.status, answer, response.headers.get('Retry-After'));
  }
}

function failure(status, body, retryAfter) {
  const { message = `The server answered ${status}.`, code = null } = body?.error ?? {};
  const kind =
    status === 401 ? 'key'
    : status === 429 ? 'busy'
    : status === 503 && code !== 'model_not_loaded' ? 'loading'
    : code === 'context_length_exceeded' ? 'long'
    : status >= 500 ? 'fault'
    : 'refused';
  return new ApiError(kind, message, { status, code, retryAfter: Number(retryAfter) || null });
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError('broken', 'The server sent something that is not JSON.');
  }
}

const LOADING = /^: (\w+ing the model), (\d+ %)$/;

/** The data of each event of a stream. `loading` hears how far the model is; other comments are passed over. */
async function* events(body, signal, loading) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (data.length) yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line.startsWith('data: ') ? 6 : 5));
        } else if (LOADING.test(line)) {
          loading(line.replace(LOADING, '$1 · $2'));
        }
      }
    }
  } catch (error) {
    if (signal?.aborted || error.name === 'AbortError') throw new DOMException('stopped', 'AbortError');
    throw new ApiError('broken', 'The answer broke off: the connection to the server was lost.');
  } finally {
    reader.cancel().catch(() => {});
  }
}
