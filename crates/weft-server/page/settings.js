// The settings dialog: the system prompt, sampling, thinking, and under Advanced how documents are
// reused. It writes what the user sets into the store.

import { SETTINGS } from './store.js';

/** What each way of reuse means. */
const REUSE = {
  exact: 'Answers are equal to those of a plain prompt.',
  anchored: 'Documents see only the system prompt, so they can stand anywhere. Answers are approximate.',
  isolated: 'Documents see only themselves, so they can stand anywhere. Answers are approximate.',
};

export class Settings {
  constructor({ dialog, form, reset, store }) {
    Object.assign(this, { dialog, form, store });
    this.advanced = form.querySelector('.advanced');
    for (const name of ['reuse', 'repair']) {
      form.elements[name].addEventListener('change', ({ target }) => {
        store.update((data) => { data[name] = target.value; });
        this.#read();
      });
    }
    form.addEventListener('input', () => this.#write());
    reset.addEventListener('click', () => {
      store.update((data) => { Object.assign(data, { settings: { ...SETTINGS }, reuse: 'exact', repair: 'none' }); });
      this.#read();
    });
    dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
  }

  open(field = null) {
    this.#read();
    this.dialog.showModal();
    if (field === 'reuse') this.advanced.open = true;
    if (field) this.form.elements[field].focus();
  }

  /** Shows the values that hold where a field is empty: the model's own. */
  describe({ meta = {}, max_model_len: context }) {
    const shown = (name, value) => { if (value !== undefined) this.form.elements[name].placeholder = value; };
    const { temperature, top_p: topP, top_k: topK, min_p: minP } = meta.sampling ?? {};
    shown('temperature', temperature);
    shown('top_p', topP);
    shown('top_k', topK === 0 ? 'off' : topK);
    shown('min_p', minP === 0 ? 'off' : minP);
    shown('max_tokens', context ? `up to ${context.toLocaleString('en')}` : undefined);
  }

  #read() {
    for (const name of Object.keys(SETTINGS)) this.form.elements[name].value = this.store.data.settings[name];
    const { reuse, repair } = this.store.data;
    this.form.elements.reuse.value = reuse;
    this.form.elements.repair.value = repair;
    this.form.querySelector('#repair-option').hidden = reuse === 'exact';
    this.form.querySelector('#reuse-note').textContent = REUSE[reuse];
  }

  #write() {
    this.store.update((data) => {
      for (const name of Object.keys(SETTINGS)) {
        const field = this.form.elements[name];
        // A number that is out of range stays in its field, and is not sent.
        if (field.validity.valid) data.settings[name] = field.value;
      }
    });
  }
}
