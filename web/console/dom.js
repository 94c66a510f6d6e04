// Builds the page from plain functions. Text is only ever set as text, so nothing that a visitor wrote can become markup.

/** Make an element: h('button', {class: 'primary', onclick: save}, 'Save'). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked') element[name] = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Put children in place of what an element holds, unless the user is busy inside it. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A table with named columns: [{title, value: (row) => node or text, number: bool, minor: bool, short: bool}]; a phone leaves the minor ones out,
 * and a desktop keeps the short ones on one line. */
export function table(columns, rows, empty) {
  if (!rows.length) return h('p', { class: 'empty' }, empty);
  const side = (column) => [column.number && 'number', column.minor && 'minor', column.short && 'short'].filter(Boolean).join(' ') || null;
  return h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': columns.map((column) => column.title).filter(Boolean).join(', ') },
    h('table', {},
      h('thead', {}, h('tr', {}, columns.map((column) => (column.title ? h('th', { scope: 'col', class: side(column) }, column.title) : h('td'))))),
      h('tbody', {}, rows.map((row) => h('tr', {}, columns.map((column) => h('td', { class: side(column), 'data-title': column.title || null }, column.value(row))))))));
}

/** Named numbers in a row. */
export function figures(pairs) {
  return h('dl', { class: 'figures' }, pairs.map(([name, value]) => h('div', { class: typeof value === 'string' && /\d{10}/.test(value) ? 'figure long' : 'figure' }, h('dt', {}, name), h('dd', { class: typeof value === 'string' && /[a-z]{4}/.test(value) ? 'words' : null }, value))));
}

export function card(title, ...children) {
  return h('section', { class: 'card' }, title ? h('h2', {}, title) : null, children);
}

/** What there is to see and do of a thing: shown once it was read; of one that is not there, only the way back. */
export function whole(back, ...children) {
  const inside = h('div', { class: 'stack', hidden: true }, children);
  const way = h('p', { hidden: true }, back);
  return { element: [way, inside], show: (there) => { inside.hidden = !there; way.hidden = there; } };
}

export function tag(text, kind = 'plain') {
  return h('span', { class: `tag ${kind}` }, text);
}

/** Say something for a few seconds. */
export function toast(text, kind = '') {
  const box = h('div', { class: `toast ${kind}` }, text);
  document.getElementById('toasts').append(box);
  setTimeout(() => box.remove(), kind === 'bad' ? 8000 : 4000);
}

/** Ask before something that cannot be undone; with `word`, it must be typed. Resolves to true or false. */
export function confirm(question, { action, word = null } = {}) {
  return new Promise((resolve) => {
    const typed = word ? h('input', { autocomplete: 'off', 'aria-label': `Type ${word}` }) : null;
    const go = h('button', { class: 'danger', disabled: Boolean(word) }, action);
    const dialog = h('dialog', {},
      h('form', { method: 'dialog', onsubmit: (event) => { event.preventDefault(); if (!go.disabled) finish(true); } },
        h('p', {}, question),
        word ? h('p', {}, 'Type ', h('code', {}, word), ' to go on.') : null, typed,
        h('p', { class: 'row' }, go, h('button', { type: 'button', onclick: () => finish(false) }, 'Cancel'))));
    typed?.addEventListener('input', () => { go.disabled = typed.value !== word; });
    dialog.addEventListener('close', () => finish(false));
    function finish(answer) {
      dialog.remove();
      resolve(answer);
    }
    document.body.append(dialog);
    dialog.showModal();
  });
}

const plain = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const small = new Intl.NumberFormat('en', { maximumFractionDigits: 2 });
export const number = (value) => (value === null || value === undefined ? '–' : (Math.abs(value) < 1 ? small : plain).format(value));
export const moment = (text) => (text ? new Date(text).toLocaleString([], { dateStyle: 'short', timeStyle: 'medium' }) : '–');
export function ago(text) {
  if (!text) return '–';
  const seconds = Math.max(0, (Date.now() - new Date(text)) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return moment(text);
}
