// All queues at a glance, and the way to a new one.
import { to, visit } from '../address.js';
import { create as make, get, query } from '../api.js';
import { card, fill, h, moment, number, table, tag, toast } from '../dom.js';
import { live } from '../live.js';

export function queues(view, session) {
  const list = h('div');
  const trouble = h('p', { class: 'error', role: 'status' });
  fill(view,
    h('div', { class: 'row between' }, h('h1', {}, 'Queues'), trouble),
    card(null, list),
    session.role === 'admin' ? create(session) : null);
  return live(async () => {
    const { queues: found } = await get('/api/admin/queues' + query({ namespace: session.namespace }));
    fill(list, table([
      { title: 'Queue', value: (row) => h('a', { href: to(['queues', row.queue]) }, row.queue) },
      { title: 'State', value: state },
      { title: 'Waiting', number: true, value: (row) => number(row.waiting) },
      { title: 'Inside', number: true, value: (row) => `${number(row.sessions + row.holds)} / ${seats(row.figures.capacity)}` },
      { title: 'Admitted / s', number: true, value: (row) => number(row.figures.ratePerSecond) },
      { title: 'Limit / s', number: true, minor: true, value: (row) => (row.ratePerSecond === null ? 'none' : number(row.ratePerSecond)) },
      { title: 'Admitted', number: true, minor: true, value: (row) => number(row.admittedTotal) },
    ], found, 'There is no queue yet.'));
  }, { onState: (problem) => { trouble.textContent = problem ? problem.message : ''; list.classList.toggle('stale', Boolean(problem)); } });
}

/** A number of seats; so many that there is no limit is said as such. */
/** What the API says for "no limit". */
export const NO_LIMIT = 10000000;
export const seats = (count) => (count >= NO_LIMIT ? 'no limit' : number(count));

/** How a queue stands, in a word. */
export function state(row) {
  if (row.paused) return tag('paused', 'warn');
  if (row.draining) return tag('draining', 'warn');
  if (row.active === false) return tag('off', 'plain');
  if (row.opensAt && Date.parse(row.opensAt) > Date.now()) return h('span', { title: moment(row.opensAt) }, tag('opens later', 'warn'));
  if (row.waiting) return tag('queueing', 'good');
  return tag('open', 'good');
}

function create(session) {
  const name = h('input', { name: 'queue', required: true, maxlength: 128, pattern: '[A-Za-z0-9_.:\\-]+', autocomplete: 'off' });
  const capacity = h('input', { name: 'capacity', type: 'number', min: 0, placeholder: 'the servers’ own seats' });
  const rate = h('input', { name: 'rate', type: 'number', min: 0, step: 'any', placeholder: 'no limit' });
  const said = h('p', { class: 'error', role: 'alert' });
  const form = h('form', {},
    h('div', { class: 'grid' },
      h('label', {}, 'Name', name), h('label', {}, 'Seats', capacity), h('label', {}, 'Admissions a second', rate)),
    said, h('p', {}, h('button', { class: 'primary' }, 'Create queue')));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const policy = {};
    if (capacity.value !== '') Object.assign(policy, { seats: 'fixed', capacity: Number(capacity.value) });
    if (rate.value !== '') policy.ratePerSecond = Number(rate.value);
    try {
      await make(`/api/admin/queues/${encodeURIComponent(name.value)}` + query({ namespace: session.namespace }), policy);
      toast(`Queue ${name.value} is there.`);
      visit(['queues', name.value]);
    } catch (problem) {
      said.textContent = problem.code === 'version_conflict' ? 'There is a queue of this name already.' : problem.message;
    }
  });
  return card('New queue', form);
}
