// Config values: what is in force, who changed it and why, what changed, and the way back.
import { to, visit } from '../address.js';
import { create, getTagged, maybe, post, put, query, remove } from '../api.js';
import { ago, card, confirm, fill, h, moment, number, table, toast } from '../dom.js';
import { live } from '../live.js';

const path = (space, key) => `/cfg/v1/${encodeURIComponent(space)}/${key.split('/').map(encodeURIComponent).join('/')}`;

export function settings(view, session) {
  const space = session.namespace || 'default';
  const list = h('div');
  const trouble = h('p', { class: 'error', role: 'status' });
  const key = h('input', { required: true, maxlength: 128, autocomplete: 'off' });
  const open = h('form', { onsubmit: (event) => { event.preventDefault(); visit(['config', key.value]); } },
    h('label', {}, 'Key', key), h('p', {}, h('button', {}, session.role === 'read' ? 'Open' : 'Open or create')));
  fill(view, h('div', { class: 'row between' }, h('h1', {}, 'Config'), trouble), card(`Namespace ${space}`, list), card('A key', open));
  return live(async () => {
    const found = await maybe(`/cfg/v1/${encodeURIComponent(space)}`);
    fill(list, table([
      { title: 'Key', value: (row) => h('a', { href: to(['config', row.key]) }, row.key) },
      { title: 'Type', value: (row) => row.contentType },
      { title: 'Version', number: true, value: (row) => number(row.version) },
      { title: 'Changed', value: (row) => h('span', { title: moment(row.updatedAt) }, ago(row.updatedAt)) },
      { title: 'By', value: (row) => row.updatedBy },
    ], found?.values ?? found?.keys ?? [], 'Nothing is set yet.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
}

export function setting(view, [key], session) {
  const space = session.namespace || 'default';
  const home = path(space, key);
  const text = h('textarea', { rows: 14, spellcheck: 'false', 'aria-label': 'Content' });
  const kind = h('select', {}, ['text', 'json', 'toml', 'yaml', 'properties'].map((each) => h('option', {}, each)));
  const reason = h('input', { maxlength: 200, placeholder: 'why it is changed; kept in the history' });
  const said = h('p', { class: 'error', role: 'alert' });
  const trail = h('div');
  const compare = h('pre', { class: 'diff' });
  const compared = card('Compared with what is shown', compare);
  compared.hidden = true;
  const trouble = h('p', { class: 'error', role: 'status' });
  const may = session.role !== 'read';
  let etag = null;
  let loaded = null;
  text.readOnly = !may;

  async function save() {
    said.textContent = '';
    try {
      const value = { content: text.value, contentType: kind.value, ...(reason.value ? { reason: reason.value } : {}) };
      await (etag ? put(home, value, etag) : create(home, value));
      loaded = null;
      toast('Published.');
      stop.now();
    } catch (problem) {
      said.textContent = problem.code === 'version_conflict' ? 'Somebody else published meanwhile. Look at it before you publish yours.' : problem.message;
    }
  }

  function show(row) {
    fill(compare, difference(row.content ?? '', text.value));
    compared.hidden = false;
    compared.scrollIntoView({ block: 'nearest' });
  }

  async function back(row) {
    if (!await confirm(`Publish version ${row.version} of ${key} again?`, { action: 'Roll back' })) return;
    try {
      await post(`${home}/rollback`, { version: row.version, reason: reason.value || 'console' });
      loaded = null;
      toast('Rolled back.');
      stop.now();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  async function destroy() {
    if (!await confirm(`Delete ${key}? Its history stays.`, { action: 'Delete', word: key })) return;
    try {
      await remove(home, etag);
      visit(['config']);
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  fill(view,
    h('div', { class: 'row between' }, h('h1', {}, h('a', { href: to(['config']) }, 'Config'), ` / ${key}`), trouble),
    card(null, text, said, may ? h('div', { class: 'grid' }, h('label', {}, 'Type', kind), h('label', {}, 'Reason', reason)) : null,
      may ? h('p', { class: 'row' }, h('button', { class: 'primary', onclick: save }, 'Publish'), h('button', { class: 'danger', onclick: destroy }, 'Delete')) : null),
    card('History', trail), compared);

  const stop = live(async () => {
    let current = null;
    try {
      current = await getTagged(home);
    } catch (problem) {
      if (problem.status !== 404) throw problem;
    }
    if (current && (loaded === null || (current.etag !== etag && text.value === loaded))) {
      ({ etag } = current);
      loaded = current.data.content;
      text.value = loaded;
      kind.value = current.data.contentType;
    } else if (current && current.etag !== etag) {
      said.textContent = 'Somebody else published meanwhile.';
    }
    const history = await maybe(`${home}/history${query({})}`);
    fill(trail, table([
      { title: 'Version', number: true, value: (row) => number(row.version) },
      { title: 'When', value: (row) => h('span', { title: moment(row.updatedAt) }, ago(row.updatedAt)) },
      { title: 'Who', value: (row) => row.updatedBy },
      { title: 'Why', value: (row) => row.reason || '' },
      { title: '', value: (row) => h('div', { class: 'row' }, h('button', { onclick: () => show(row) }, 'Compare'), may ? h('button', { onclick: () => back(row) }, 'Roll back') : null) },
    ], history?.versions ?? [], 'Nothing was published yet.'));
  }, { everyMs: 3000, onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
  return stop;
}

/** Compare two texts line by line (longest common subsequence; texts are small). */
function difference(before, after) {
  const old = before.split('\n').slice(0, 2000);
  const now = after.split('\n').slice(0, 2000);
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) common[i][j] = old[i] === now[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  }
  const lines = [];
  for (let i = 0, j = 0; i < old.length || j < now.length;) {
    if (i < old.length && j < now.length && old[i] === now[j]) { lines.push(h('span', {}, `  ${old[i]}\n`)); i += 1; j += 1; }
    else if (j < now.length && (i === old.length || common[i][j + 1] >= common[i + 1][j])) { lines.push(h('ins', {}, `+ ${now[j]}`)); j += 1; }
    else { lines.push(h('del', {}, `- ${old[i]}`)); i += 1; }
  }
  return lines;
}
