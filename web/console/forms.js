// Forms from lists of fields, so that every policy field looks and behaves alike.
import { h } from './dom.js';

/**
 * A form for a record. fields: [{name, title, kind, hint, choices}], kind one of
 * number, whole, text, long, lines, check, choice, time, json. Empty means null where `optional` is set.
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
      const value = parse(field, inputs.get(field.name));
      if (JSON.stringify(value) !== JSON.stringify(loaded[field.name] ?? null)) changed[field.name] = value;
    }
    return changed;
  }

  function load(record) {
    loaded = record;
    for (const field of fields) write(field, inputs.get(field.name), record[field.name] ?? null);
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
      const wrong = inputs.get(problem.body?.field?.split('.')[0]);
      wrong?.setAttribute('aria-invalid', 'true');
      wrong?.focus();
    } finally {
      button.disabled = false;
    }
  });
  return { element, read, load, dirty: () => { try { return Object.keys(read()).length > 0; } catch { return true; } } };
}

function labelled(field, input) {
  if (field.kind === 'check') return h('label', { class: 'check' }, input, field.title);
  return h('label', {}, field.title, input, field.hint ? h('span', { class: 'hint' }, field.hint) : null);
}

function control(field) {
  switch (field.kind) {
    case 'number': return h('input', { type: 'number', step: 'any', min: field.min ?? 0 });
    case 'whole': return h('input', { type: 'number', step: 1, min: field.min ?? 0 });
    case 'check': return h('input', { type: 'checkbox' });
    case 'choice': return h('select', {}, field.choices.map((choice) => h('option', { value: choice }, choice)));
    case 'time': return h('input', { type: 'datetime-local', step: 1 });
    case 'lines': case 'json': case 'long': return h('textarea', { rows: field.rows ?? 3, spellcheck: 'false' });
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
  if (field.kind === 'json') {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw Object.assign(new Error(`${field.title}: ${error.message}`), { body: { field: field.name } });
    }
  }
  return text;
}

function write(field, input, value) {
  if (field.kind === 'check') input.checked = Boolean(value);
  else if (value === null) input.value = '';
  else if (field.kind === 'lines') input.value = value.join('\n');
  else if (field.kind === 'json') input.value = JSON.stringify(value, null, 2);
  else if (field.kind === 'time') input.value = local(new Date(value));
  else input.value = value;
}

function local(date) {
  const shifted = new Date(date.getTime() - date.getTimezoneOffset() * 60000);
  return shifted.toISOString().slice(0, 19);
}
