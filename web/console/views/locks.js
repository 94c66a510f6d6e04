// Locks: who holds what, for how long, and how many wait.
import { get, post, query } from '../api.js';
import { card, confirm, fill, h, number, table, tag, toast } from '../dom.js';
import { live } from '../live.js';

export function locks(view, session) {
  const list = h('div');
  const trouble = h('p', { class: 'error', role: 'status' });
  fill(view, h('div', { class: 'row between' }, h('h1', {}, 'Locks'), trouble), card(null, list));

  async function take(row) {
    const words = `Take ${row.name} away from its holder? The holder is told when it next renews, and its fence is refused from then on.`;
    if (!await confirm(words, { action: 'Break', word: row.name })) return;
    try {
      await post(`/lock/v1/${encodeURIComponent(row.name)}/break${query({ namespace: session.namespace })}`, { fence: row.fence, reason: 'console' });
      toast(`${row.name} is free.`);
      stop.now();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  const stop = live(async () => {
    const { locks: found } = await get('/lock/v1' + query({ namespace: session.namespace }));
    fill(list, table([
      { title: 'Lock', value: (row) => h('code', {}, row.name) },
      { title: 'State', value: (row) => (row.held ? tag('held', 'good') : tag('free', 'plain')) },
      { title: 'Holder', value: (row) => row.label || (row.held ? 'unnamed' : '–') },
      { title: 'Fence', number: true, value: (row) => h('code', {}, String(row.fence)) },
      { title: 'Held', number: true, value: (row) => (row.held ? `${number(row.heldMs / 1000)} s` : '–') },
      { title: 'Lease left', number: true, value: (row) => (row.held ? `${number(row.ttlMs / 1000)} s` : '–') },
      { title: 'Waiting', number: true, value: (row) => number(row.waiting) },
      { title: '', value: (row) => (session.role === 'admin' && row.held ? h('button', { class: 'danger', onclick: () => take(row) }, 'Break') : '') },
    ], found, 'No lock is held. “headgate lock run NAME -- command” takes one.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; } });
  return stop;
}
