// What the page remembers over a reload: conversations and settings in localStorage, each conversation
// under a key of its own, so that two tabs do not overwrite each other's; the API key in sessionStorage.
// It knows no server and no element.

import { head } from './dom.js';

const KEY = 'weft.page';
const KEY_OF_CONVERSATION = 'weft.conversation.';
const KEY_OF_KEY = 'weft.key';

/** Sampling settings; an empty one is left to the server. */
export const SETTINGS = {
  system: '', temperature: '', top_p: '', top_k: '', min_p: '', max_tokens: '', seed: '', thinking: '',
};

const PAGE = { theme: 'auto', reuse: 'exact', repair: 'none', model: '', current: '' };

const newConversation = (contexts = []) => ({
  id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`,
  title: '', // given by the reader; without one the first question is shown
  updated: Date.now(),
  contexts, // {id, name, tokens}, in the order of the prompt
  turns: [], // {role: 'user', text} and {role: 'assistant', text, thinking, report, …}, in turn
});

/** What a conversation is called. */
export const titleOf = ({ title, turns }) => title || head(turns[0]?.text ?? '', 60) || 'New conversation';

/** The page's memory. `change` events say that something is different, `full` that it could not be kept. */
export class Store extends EventTarget {
  constructor(local = localStorage, session = sessionStorage) {
    super();
    this.local = local;
    this.session = session;
    this.conversations = new Map();
    this.#readConversations();
    const { turns, contexts, ...page } = this.#read(KEY);
    this.data = { ...PAGE, ...page, settings: { ...SETTINGS, ...page.settings } };
    // The turns and documents of the conversation that is open, as if they were the page's own.
    for (const name of ['turns', 'contexts']) {
      Object.defineProperty(this.data, name, { get: () => this.conversation[name], set: (value) => { this.conversation[name] = value; } });
    }
    // Version 0.2.0 kept one conversation, beside the settings.
    if (Array.isArray(turns) || Array.isArray(contexts)) this.#add({ ...newConversation(), turns: settled(turns ?? []), contexts: contexts ?? [] });
    if (!this.conversations.has(this.data.current)) this.#add(this.list()[0] ?? newConversation());
    this.save();
    addEventListener('storage', ({ key }) => {
      if (!key?.startsWith(KEY_OF_CONVERSATION)) return;
      if (key.endsWith(this.data.current)) {
        // Another tab went on with it. If nothing was said here, this tab begins one of its own.
        const { turns: said, contexts: documents } = this.conversation;
        if (said.length) return;
        this.#add(newConversation(documents));
      }
      this.#readConversations();
      this.dispatchEvent(new Event('change'));
    });
  }

  /** The conversation that is open. */
  get conversation() {
    return this.conversations.get(this.data.current);
  }

  /** All conversations in which something was said, the latest first. */
  list() {
    return [...this.conversations.values()].filter(({ turns }) => turns.length > 0).sort((a, b) => b.updated - a.updated);
  }

  /** Begins another conversation with the same documents. */
  begin() {
    if (!this.conversation.turns.length) return;
    this.update(() => this.#add(newConversation(structuredClone(this.conversation.contexts))));
  }

  open(id) {
    if (this.conversations.has(id)) this.update((data) => { data.current = id; });
  }

  rename(id, title) {
    const conversation = this.conversations.get(id);
    conversation.title = title.trim();
    this.#keep(conversation);
    this.dispatchEvent(new Event('change'));
  }

  /** Forgets a conversation; returns what undoes that. */
  remove(id) {
    const gone = this.conversations.get(id);
    const wasOpen = id === this.data.current;
    read(() => this.local.removeItem(KEY_OF_CONVERSATION + id));
    this.conversations.delete(id);
    if (wasOpen) this.#add(newConversation(structuredClone(gone.contexts)));
    this.update(() => {});
    return () => {
      this.conversations.set(id, gone);
      this.#keep(gone);
      if (wasOpen) this.open(id);
      else this.dispatchEvent(new Event('change'));
    };
  }

  get key() {
    return read(() => this.session.getItem(KEY_OF_KEY)) ?? '';
  }

  set key(value) {
    read(() => this.session.setItem(KEY_OF_KEY, value));
  }

  /** Changes the data, keeps it and says so. */
  update(change) {
    change(this.data);
    this.save();
    this.dispatchEvent(new Event('change'));
  }

  /** Keeps the data without saying so. */
  save() {
    this.#write(KEY, this.data);
    this.#keep(this.conversation);
  }

  /** Notes that something was said. */
  touch() {
    this.conversation.updated = Date.now();
  }

  #add(conversation) {
    this.conversations.set(conversation.id, conversation);
    this.data.current = conversation.id;
  }

  #keep(conversation) {
    this.#write(KEY_OF_CONVERSATION + conversation.id, conversation);
  }

  #write(key, value) {
    try {
      this.local.setItem(key, JSON.stringify(value));
    } catch {
      // Full, or not allowed: the page goes on without a memory.
      this.dispatchEvent(new Event('full'));
    }
  }

  #readConversations() {
    const keys = read(() => Object.keys(this.local)) ?? [];
    const found = keys.filter((key) => key.startsWith(KEY_OF_CONVERSATION)).map((key) => this.#read(key));
    const open = this.conversations.get(this.data?.current);
    this.conversations.clear();
    for (const conversation of found) {
      const { id, turns, contexts } = conversation;
      if (!id || !Array.isArray(turns) || !Array.isArray(contexts)) continue;
      this.conversations.set(id, { ...conversation, turns: settled(turns) });
    }
    if (open) this.conversations.set(open.id, open);
  }

  #read(key) {
    try {
      const value = JSON.parse(this.local.getItem(key) ?? '{}');
      return value && typeof value === 'object' ? value : {};
    } catch {
      return {};
    }
  }
}

/** An answer that was cut off by a reload is not being written any more. */
const settled = (turns) => turns.map((turn) => (turn.state === 'writing' ? { ...turn, state: 'stopped' } : turn));

function read(from) {
  try {
    return from();
  } catch {
    return undefined;
  }
}
