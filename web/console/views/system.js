// What runs here, and whether the store answers.
import { to } from '../address.js';
import { get, maybe, query } from '../api.js';
import { chart, Trail } from '../chart.js';
import { card, figures, fill, h, number, table, tag } from '../dom.js';
import { live } from '../live.js';

/** The figure with which our processes tell how far their clock is off the store's. */
export const CLOCK = 'clockOffsetSeconds';
const WRONG_SECONDS = 5;

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
    const found = ((await maybe('/sd/v1/services'))?.services ?? []).filter((row) => row.type.startsWith('headgate-'));
    const clocks = new Map(await Promise.all(found.map(async (row) => [row, await clock(row)])));
    fill(ours, table([
      { title: 'Process', value: (row) => h('a', { href: to(['services', row.type, row.group], 'default') }, row.type) },
      { title: 'Healthy', number: true, value: (row) => `${number(row.healthy)} / ${number(row.instances)}` },
      { title: 'Clock', value: (row) => clocks.get(row) },
    ], found, 'None has registered itself.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
}

/** Tell how far the worst clock of a service is off the store's, if that is too far. */
async function clock({ type, group }) {
  const { instances } = await maybe('/sd/v1/instances' + query({ type, group })) ?? { instances: [] };
  const offsets = instances.map((row) => row.metrics?.[CLOCK] ?? 0);
  const worst = offsets.reduce((one, other) => (Math.abs(other) > Math.abs(one) ? other : one), 0);
  return Math.abs(worst) > WRONG_SECONDS ? tag(`${number(Math.abs(worst))} s off the store’s`, 'bad') : tag('right', 'good');
}
