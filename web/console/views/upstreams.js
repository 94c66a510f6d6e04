// Upstreams: what may be called how fast, and who waits for it.
import { to, visit } from '../address.js';
import { create as make, get, getTagged, maybe, put, remove } from '../api.js';
import { chart, Trail } from '../chart.js';
import { card, confirm, figures, fill, h, number, table, tag, toast, whole } from '../dom.js';
import { live } from '../live.js';

const HOME = '/api/admin/upstreams';

export function upstreams(view, session) {
  const list = h('div');
  const trouble = h('p', { class: 'error', role: 'status' });
  fill(view, h('div', { class: 'row between' }, h('h1', {}, 'Relay'), trouble), card('Upstreams', list), session.role === 'admin' ? create() : null);
  return live(async () => {
    const { upstreams: found } = await get(HOME);
    fill(list, table([
      { title: 'Upstream', value: (row) => h('a', { href: to(['relay', row.name]) }, row.name) },
      { title: 'Base URL', value: (row) => h('code', {}, row.policy.baseUrl) },
      { title: 'Limits', value: (row) => row.policy.limits.map(limitWords).join('; ') },
      { title: 'Version', number: true, value: (row) => number(row.version) },
    ], found, 'There is no upstream yet.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
}

function limitWords(limit) {
  // What is at its default is left out of the answer.
  const { kind = 'window', per: whom = 'user' } = limit;
  const per = whom === 'user' ? 'per user' : 'in all';
  if (kind === 'paced') return `one each ${limit.everyMs} ms ${per}`;
  if (kind === 'concurrent') return `${limit.count} at once ${per}`;
  return `${limit.count} in ${limit.seconds} s ${per} (${kind})`;
}

export function upstream(view, [name], session) {
  const home = `${HOME}/${encodeURIComponent(name)}`;
  const numbers = h('div');
  const users = h('div');
  const trail = new Trail({ waiting: 'waiting', inFlight: 'in flight', cooling: 'cooling' });
  const lines = chart('The line');
  const trouble = h('p', { class: 'error', role: 'status' });
  const text = h('textarea', { rows: 18, spellcheck: 'false', 'aria-label': 'Policy' });
  const said = h('p', { class: 'error', role: 'alert' });
  let etag = null;
  let loaded = '';
  text.disabled = session.role !== 'admin';

  async function save() {
    said.textContent = '';
    try {
      const answer = await put(home, JSON.parse(text.value), etag);
      show(answer);
      toast('In force.');
    } catch (problem) {
      said.textContent = problem.code === 'version_conflict' ? 'Somebody else changed it. Load it again before you save.' : problem.message;
    }
  }

  function show(answer) {
    etag = answer.etag;
    loaded = JSON.stringify(answer.data.policy, null, 2);
    text.value = loaded;
  }

  async function destroy() {
    if (!await confirm(`Delete the upstream ${name}? Nothing can be sent there any more.`, { action: 'Delete', word: name })) return;
    try {
      await remove(home);
      visit(['relay']);
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  const all = whole(h('a', { href: to(['relay']) }, 'All upstreams'),
    numbers, h('div', { class: 'grid' }, lines.element, card('Busiest users', users)),
    card('Policy', text, said, session.role === 'admin' ? h('p', { class: 'row' },
      h('button', { class: 'primary', onclick: save }, 'Save policy'),
      h('button', { onclick: async () => show(await getTagged(home)) }, 'Load what is in force'),
      h('button', { class: 'danger', onclick: destroy }, 'Delete')) : null));
  fill(view, h('div', { class: 'row between' }, h('h1', {}, h('a', { href: to(['relay']) }, 'Relay'), ` / ${name}`), trouble), all.element);

  return live(async () => {
    const [answer, status] = await Promise.all([getTagged(home), maybe(`${home}/status`)]);
    all.show(true);
    if (!loaded || (answer.etag !== etag && text.value === loaded)) show(answer);
    else if (answer.etag !== etag) said.textContent = 'Somebody else changed this policy meanwhile.';
    if (!status) return;
    fill(numbers, figures([['Users', number(status.users)], ['Waiting', number(status.waiting)], ['Jobs', number(status.jobs || 0)], ['In flight', number(status.inFlight)], ['Cooling', number(status.cooling)], ['Held', status.heldMs ? `${number(status.heldMs / 1000)} s` : 'no']]));
    trail.add(status);
    lines.update(trail.series('waiting', 'inFlight', 'cooling'));
    fill(users, table([
      { title: 'User', value: (row) => h('code', {}, row.user) },
      { title: 'Waiting', number: true, value: (row) => number(row.waiting) },
      { title: 'In flight', number: true, value: (row) => number(row.inFlight) },
      { title: 'Cooling', number: true, value: (row) => number(row.cooling) },
      { title: '', value: (row) => (row.heldMs ? tag('held', 'warn') : '') },
    ], status.busiest, 'Nobody waits.'));
  }, {
    onState: (problem) => {
      trouble.textContent = problem ? problem.message : '';
      if (problem?.code === 'upstream_unknown') all.show(false);
    },
  });
}

function create() {
  const name = h('input', { required: true, maxlength: 128, autocomplete: 'off' });
  const base = h('input', { required: true, type: 'url', placeholder: 'https://api.example' });
  const count = h('input', { required: true, type: 'number', min: 1, value: 10 });
  const seconds = h('input', { required: true, type: 'number', min: 1, value: 60 });
  const said = h('p', { class: 'error', role: 'alert' });
  const form = h('form', {},
    h('div', { class: 'grid' }, h('label', {}, 'Name', name), h('label', {}, 'Base URL', base), h('label', {}, 'Requests', count), h('label', {}, 'In so many seconds, per user', seconds)),
    said, h('p', {}, h('button', { class: 'primary' }, 'Create upstream')));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    try {
      await make(`${HOME}/${encodeURIComponent(name.value)}`, { baseUrl: base.value, limits: [{ per: 'user', kind: 'window', count: Number(count.value), seconds: Number(seconds.value) }] });
      visit(['relay', name.value]);
    } catch (problem) {
      said.textContent = problem.code === 'version_conflict' ? 'There is an upstream of this name already.' : problem.message;
    }
  });
  return card('New upstream', form);
}
