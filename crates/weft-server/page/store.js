// What the page remembers over a reload: the conversation, the prompt's parts and the settings in
// localStorage, the API key in sessionStorage. It knows no server and no element.

const KEY = 'weft.page';
const KEY_OF_KEY = 'weft.key';

/** Sampling settings; an empty one is left to the server. */
export const SETTINGS = {
  system: '', temperature: '', top_p: '', top_k: '', min_p: '', max_tokens: '', seed: '', thinking: '',
};

const empty = () => ({
  theme: 'auto',
  settings: { ...SETTINGS },
  reuse: 'exact',
  repair: 'none',
  contexts: [], // {id, name, tokens}, in the order of the prompt
  turns: [], // {role: 'user', text} and {role: 'assistant', text, thinking, report, …}, in turn
});

/** The page's memory. `change` events say that something is different. */
export class Store extends EventTarget {
  constructor(local = localStorage, session = sessionStorage) {
    super();
    this.local = local;
    this.session = session;
    this.data = { ...empty(), ...this.#read() };
    this.data.settings = { ...SETTINGS, ...this.data.settings };
    // An answer that was cut off by a reload is not being written any more.
    for (const turn of this.data.turns) {
      if (turn.state === 'writing') turn.state = 'stopped';
    }
  }

  get key() {
    return read(() => this.session.getItem(KEY_OF_KEY)) ?? '';
  }

  set key(value) {
    read(() => this.session.setItem(KEY_OF_KEY, value));
  }

  /** Changes the data, keeps it and says so. Tells whether it could be kept. */
  update(change) {
    change(this.data);
    const kept = this.save();
    this.dispatchEvent(new Event('change'));
    return kept;
  }

  /** Keeps the data without saying so. */
  save() {
    try {
      this.local.setItem(KEY, JSON.stringify(this.data));
      return true;
    } catch {
      return false; // full, or not allowed: the page goes on without a memory
    }
  }

  #read() {
    try {
      const data = JSON.parse(this.local.getItem(KEY) ?? '{}');
      return data && Array.isArray(data.turns ?? []) && Array.isArray(data.contexts ?? []) ? data : {};
    } catch {
      return {};
    }
  }
}

function read(from) {
  try {
    return from();
  } catch {
    return undefined;
  }
}
