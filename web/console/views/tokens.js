// API tokens: made once, shown once, revoked within a second.
import { get, post, remove } from '../api.js';
import { card, confirm, fill, h, moment, table, tag, toast } from '../dom.js';
import { live } from '../live.js';

export function tokens(view) {
  const list = h('div');
  const secret = h('div', { role: 'status' });
  const trouble = h('p', { class: 'error', role: 'status' });
  const name = h('input', { required: true, maxlength: 128, autocomplete: 'off' });
  const role = h('select', {}, ['service', 'read', 'admin'].map((each) => h('option', {}, each)));
  const space = h('input', { maxlength: 128, placeholder: 'all namespaces', autocomplete: 'off' });
  const said = h('p', { class: 'error', role: 'alert' });
  const form = h('form', {},
    h('div', { class: 'grid' }, h('label', {}, 'Name', name), h('label', {}, 'Role', role), h('label', {}, 'Only in namespace', space)),
    said, h('p', {}, h('button', { class: 'primary' }, 'Make token')));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    said.textContent = '';
    try {
      const made = await post('/api/admin/tokens', { name: name.value, role: role.value, ...(space.value ? { namespace: space.value } : {}) });
      fill(secret, h('p', {}, 'Copy it now, it is not shown again:'), h('p', {}, h('code', {}, made.token)));
      form.reset();
      stop.now();
    } catch (problem) {
      said.textContent = problem.message;
    }
  });
  fill(view, h('div', { class: 'row between' }, h('h1', {}, 'Tokens'), trouble), card(null, list), card('New token', form, secret));

  async function revoke(row) {
    if (!await confirm(`Revoke ${row.name}? Whoever uses it is refused within a second.`, { action: 'Revoke' })) return;
    try {
      await remove(`/api/admin/tokens/${encodeURIComponent(row.name)}`);
      toast(`${row.name} is revoked.`);
      stop.now();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  const stop = live(async () => {
    const { tokens: found } = await get('/api/admin/tokens');
    fill(list, table([
      { title: 'Name', value: (row) => row.name },
      { title: 'Role', value: (row) => tag(row.role, row.role === 'admin' ? 'warn' : 'plain') },
      { title: 'Namespace', value: (row) => row.namespace || 'all' },
      { title: 'Made', value: (row) => moment(row.createdAt) },
      { title: 'By', value: (row) => row.createdBy },
      { title: '', value: (row) => h('button', { class: 'danger', onclick: () => revoke(row) }, 'Revoke') },
    ], found, 'Only the admin token of the settings is in force.'));
  }, { everyMs: 5000, onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
  return stop;
}
