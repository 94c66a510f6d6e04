// Services and their instances: who is up, how they are, and what an operator decides for them.
import { to } from '../address.js';
import { get, patch, post, query, remove } from '../api.js';
import { ago, card, confirm, figures, fill, h, moment, number, table, tag, toast } from '../dom.js';
import { live } from '../live.js';
import { CLOCK } from './system.js';

export function services(view, session) {
  const list = h('div');
  const trouble = h('p', { class: 'error', role: 'status' });
  fill(view, h('div', { class: 'row between' }, h('h1', {}, 'Services'), trouble), card(null, list));
  return live(async () => {
    const { services: found } = await get('/sd/v1/services' + query({ namespace: session.namespace }));
    fill(list, table([
      { title: 'Service', value: (row) => h('a', { href: to(['services', row.type, row.group]) }, `${row.type} / ${row.group}`) },
      { title: 'Healthy', number: true, value: (row) => `${number(row.healthy)} / ${number(row.instances)}` },
      { title: 'Revision', number: true, minor: true, value: (row) => h('code', {}, String(row.revision)) },
      { title: 'Protection', value: (row) => (row.protection.active ? tag(`holding ${row.protection.suspects}`, 'warn') : tag(row.protection.mode, 'plain')) },
    ], found, 'Nothing is registered yet.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
}

export function service(view, [type, group], session) {
  const space = { namespace: session.namespace };
  const where = (id) => `/sd/v1/instances/${encodeURIComponent(id)}`;
  const of = { type, group, ...space };
  const admin = session.role === 'admin';
  const numbers = h('div');
  const list = h('div');
  const trouble = h('p', { class: 'error', role: 'status' });
  fill(view,
    h('div', { class: 'row between' }, h('h1', {}, h('a', { href: to(['services']) }, 'Services'), ` / ${type} / ${group}`), trouble),
    numbers, card('Instances', list));

  async function act(words, work) {
    try {
      await work();
      toast(words);
      stop.now();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  const override = (row, change, words) => act(words, () => patch(where(row.instanceId) + query(of), change));

  function levers(row) {
    if (!admin) return '';
    return h('div', { class: 'row' },
      row.draining
        ? h('button', { onclick: () => override(row, { drain: null }, 'In use again.') }, 'Stop draining')
        : h('button', { onclick: () => override(row, { drain: true }, 'Draining.') }, 'Drain'),
      row.enabled
        ? h('button', { onclick: () => override(row, { enabled: false }, 'Disabled.') }, 'Disable')
        : h('button', { onclick: () => override(row, { enabled: null }, 'Enabled.') }, 'Enable'),
      h('button', { class: 'danger', onclick: async () => {
        if (await confirm(`Evict ${row.instanceId} and refuse it for ten minutes?`, { action: 'Evict' })) {
          act('Evicted.', () => post(`${where(row.instanceId)}/evict${query(of)}`, { forSeconds: 600 }));
        }
      } }, 'Evict'),
      h('button', { class: 'danger', onclick: async () => {
        if (await confirm(`Remove ${row.instanceId}? It comes back with its next registration.`, { action: 'Remove' })) {
          act('Removed.', () => remove(where(row.instanceId) + query(of)));
        }
      } }, 'Remove'));
  }

  const stop = live(async () => {
    const found = await get('/sd/v1/instances' + query(of));
    const healthy = found.instances.filter((row) => row.healthy).length;
    fill(numbers, figures([['Instances', number(found.instances.length)], ['Healthy', number(healthy)], ['Revision', String(found.revision)]]));
    fill(list, table([
      { title: 'Instance', value: (row) => h('code', { class: 'id' }, row.instanceId) },
      { title: 'Address', short: true, value: (row) => `${row.privateIp || row.publicIp || row.hostname}${row.port ? `:${row.port}` : ''}` },
      { title: 'State', value: health },
      { title: 'Weight', number: true, value: (row) => number(row.weight) },
      { title: 'Load', value: (row) => h('code', {}, brief(row.metrics) || '–') },
      { title: 'Seen', short: true, value: (row) => h('span', { title: moment(row.lastHeartbeat) }, ago(row.lastHeartbeat)) },
      { title: '', short: true, value: levers },
    ], found.instances, 'No instance is up.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
  return stop;
}

function health(row) {
  if (row.suspect) return tag('suspect', 'warn');
  if (!row.healthy) return tag('unhealthy', 'bad');
  if (row.draining) return tag('draining', 'warn');
  if (!row.enabled) return tag('disabled', 'warn');
  return tag('healthy', 'good');
}

/** Show the first few figures; how far a process's clock is off is shown on the System page. */
function brief(values) {
  return Object.entries(values).filter(([name]) => name !== CLOCK).slice(0, 4).map(([name, value]) => `${name} ${typeof value === 'number' ? number(value) : value}`).join(', ');
}
