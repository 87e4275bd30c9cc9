// The settings dialog: the system prompt, sampling, thinking. It writes what it is told into the store.

import { SETTINGS } from './store.js';

export class Settings {
  constructor({ dialog, form, reset, store }) {
    Object.assign(this, { dialog, form, store });
    form.addEventListener('input', () => this.#write());
    reset.addEventListener('click', () => {
      store.update((data) => { data.settings = { ...SETTINGS }; });
      this.#read();
    });
    dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
  }

  open(field = null) {
    this.#read();
    this.dialog.showModal();
    if (field) this.form.elements[field].focus();
  }

  #read() {
    for (const name of Object.keys(SETTINGS)) this.form.elements[name].value = this.store.data.settings[name];
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
