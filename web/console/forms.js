// Forms from lists of fields, so that every policy field looks and behaves alike.
import { h } from './dom.js';

/**
 * A form for a record. fields: [{name, title, kind, hint, choices}], kind one of
 * number, whole, text, long, lines, check, choice, time. Empty means null where `optional` is set. A number that is `none` or
 * more means no limit: its field is empty, and says so as its placeholder. A name with a dot is a
 * field of an object in the record; objects are sent whole, without what is empty, and as null when their `key` field is empty.
 * Returns {element, read(): {changed values}, load(record), dirty(): bool}.
 */
export function form(fields, { submit, onsubmit }) {
  const inputs = new Map(fields.map((field) => [field.name, control(field)]));
  const said = h('p', { class: 'error', role: 'alert' });
  const button = h('button', { class: 'primary' }, submit);
  const groups = [...new Set(fields.map((field) => field.group ?? ''))];
  const element = h('form', {}, groups.map((group) => h('fieldset', { class: 'plain' }, group ? h('legend', {}, group) : null,
    h('div', { class: 'grid' }, fields.filter((field) => (field.group ?? '') === group).map((field) => labelled(field, inputs.get(field.name)))))),
  said, h('p', {}, button));
  let loaded = {};

  function read() {
    const changed = {};
    for (const field of fields) {
      if (same(parse(field, inputs.get(field.name)), limited(field, valueOf(loaded, field.name)))) continue;
      const [name, inner] = field.name.split('.');
      changed[name] = inner ? whole(name) : parse(field, inputs.get(name));
    }
    return changed;
  }

  function whole(name) {
    const parts = fields.filter((field) => field.name.startsWith(`${name}.`));
    const filled = parts.map((field) => [field.name.split('.')[1], parse(field, inputs.get(field.name))]).filter(([, value]) => !empty(value));
    const key = parts.find((field) => field.key);
    return key && !parse(key, inputs.get(key.name)) ? null : Object.fromEntries(filled);
  }

  function load(record) {
    loaded = record;
    for (const field of fields) write(field, inputs.get(field.name), limited(field, valueOf(record, field.name)) ?? null);
  }

  element.addEventListener('submit', async (event) => {
    event.preventDefault();
    said.textContent = '';
    for (const input of inputs.values()) input.removeAttribute('aria-invalid');
    button.disabled = true;
    try {
      await onsubmit(read());
    } catch (problem) {
      said.textContent = problem.message;
      const named = problem.body?.field ?? '';
      const wrong = inputs.get(named) ?? inputs.get(named.split('.')[0]) ?? inputs.get(fields.find((field) => field.name.startsWith(`${named}.`))?.name);
      wrong?.setAttribute('aria-invalid', 'true');
      wrong?.focus();
    } finally {
      button.disabled = false;
    }
  });
  return { element, read, load, dirty: () => Object.keys(read()).length > 0 };
}

const empty = (value) => value === null || value === undefined || value === '' || (Array.isArray(value) && !value.length);
const same = (one, other) => (empty(one) && empty(other)) || JSON.stringify(one) === JSON.stringify(other ?? null);
const valueOf = (record, name) => name.split('.').reduce((value, part) => value?.[part], record);

const limited = (field, value) => (field.none && value >= field.none ? null : value);

function labelled(field, input) {
  if (field.kind === 'check') return h('label', { class: 'check' }, input, field.title);
  return h('label', {}, field.title, input, field.hint ? h('span', { class: 'hint' }, field.hint) : null);
}

function control(field) {
  switch (field.kind) {
    case 'number': return h('input', { type: 'number', step: 'any', min: field.min ?? 0 });
    case 'whole': return h('input', { type: 'number', step: 1, min: field.min ?? 0, placeholder: field.none ? 'no limit' : null });
    case 'check': return h('input', { type: 'checkbox' });
    case 'choice': return h('select', {}, field.choices.map((choice) => h('option', { value: choice }, choice)));
    case 'time': return h('input', { type: 'datetime-local', step: 1 });
    case 'lines': case 'long': return h('textarea', { rows: field.rows ?? 3, spellcheck: 'false' });
    default: return h('input', { type: 'text', maxlength: field.maxlength ?? 200 });
  }
}

function parse(field, input) {
  if (field.kind === 'check') return input.checked;
  const text = input.value;
  if (field.kind === 'lines') return text.split('\n').map((line) => line.trim()).filter(Boolean);
  if (text.trim() === '') return field.kind === 'text' || field.kind === 'long' ? (field.optional ? null : '') : null;
  if (field.kind === 'number' || field.kind === 'whole') return Number(text);
  if (field.kind === 'time') return new Date(text).toISOString().replace('.000Z', 'Z');
  return text;
}

function write(field, input, value) {
  if (field.kind === 'check') input.checked = Boolean(value);
  else if (value === null) input.value = '';
  else if (field.kind === 'lines') input.value = value.join('\n');
  else if (field.kind === 'time') input.value = local(new Date(value));
  else input.value = value;
}

function local(date) {
  const shifted = new Date(date.getTime() - date.getTimezoneOffset() * 60000);
  return shifted.toISOString().slice(0, 19);
}
