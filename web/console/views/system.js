// What runs here, and whether the store answers.
import { to } from '../address.js';
import { get, maybe } from '../api.js';
import { chart, Trail } from '../chart.js';
import { card, figures, fill, h, number, table, tag } from '../dom.js';
import { live } from '../live.js';

export function system(view) {
  const numbers = h('div');
  const ours = h('div');
  const trouble = h('p', { class: 'error', role: 'status' });
  const trail = new Trail({ latency: 'store latency' });
  const latency = chart('Store latency', { unit: ' ms' });
  fill(view, h('div', { class: 'row between' }, h('h1', {}, 'System'), trouble), numbers, latency.element, card('Our own processes', ours));
  return live(async () => {
    const facts = await get('/api/system');
    fill(numbers, figures([
      ['Version', facts.version], ['Store', facts.store.kind], ['Health', facts.store.healthy ? tag('up', 'good') : tag('away', 'bad')],
      ['Servers', facts.store.servers.join(', ') || '–'], ['Gateway processes', number(facts.workers)],
    ]));
    trail.add({ latency: facts.store.latencyMs });
    latency.update(trail.series('latency'));
    const found = await maybe('/sd/v1/services');
    fill(ours, table([
      { title: 'Process', value: (row) => h('a', { href: to(['services', row.type, row.group], 'default') }, row.type) },
      { title: 'Healthy', number: true, value: (row) => `${number(row.healthy)} / ${number(row.instances)}` },
    ], (found?.services ?? []).filter((row) => row.type.startsWith('headgate-')), 'None has registered itself.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
}
