// One queue: what happens in it now and lately, the levers an operator has, its policy, servers and audit trail.
import { to, visit } from '../address.js';
import { get, getTagged, maybe, post, put, query, remove } from '../api.js';
import { chart, Trail } from '../chart.js';
import { ago, card, confirm, figures, fill, h, moment, number, table, tag, toast, whole } from '../dom.js';
import { form } from '../forms.js';
import { live } from '../live.js';
import { NO_LIMIT, seats, state } from './queues.js';

const FIELDS = [
  { group: 'Admission', name: 'seats', title: 'Seats come from', kind: 'choice', choices: ['fixed', 'servers'] },
  { group: 'Admission', name: 'capacity', title: 'Seats (fixed)', kind: 'whole', none: NO_LIMIT, hint: 'With servers: the most of all together; empty: no limit.' },
  { group: 'Admission', name: 'ratePerSecond', title: 'Admissions a second', kind: 'number', hint: 'Empty: no limit. 0: nobody.' },
  { group: 'Admission', name: 'burst', title: 'Burst', kind: 'number', min: 1 },
  { group: 'Admission', name: 'batch', title: 'Most people called in a tick', kind: 'whole', min: 1, hint: 'batch' },
  { group: 'Admission', name: 'tickMs', title: 'Tick, ms', kind: 'whole', min: 100 },
  { group: 'Admission', name: 'placement', title: 'Placement', kind: 'choice', choices: ['most-free', 'packed'] },
  { group: 'Admission', name: 'maxLength', title: 'Longest line', kind: 'whole' },
  { group: 'Admission', name: 'opensAt', title: 'Opens at', kind: 'time', hint: 'In your time zone. Empty: open.' },
  { group: 'Times', name: 'ticketTtlSeconds', title: 'Ticket, s', kind: 'number', min: 1 },
  { group: 'Times', name: 'sessionTtlSeconds', title: 'Session, s', kind: 'number', min: 1 },
  { group: 'Times', name: 'graceSeconds', title: 'Grace when called, s', kind: 'number', min: 1 },
  { group: 'Times', name: 'keepSeconds', title: 'Keep the place of somebody away, s', kind: 'number', hint: 'keepSeconds' },
  { group: 'Times', name: 'reentrySeconds', title: 'Re-entry, s', kind: 'number' },
  { group: 'Times', name: 'finishedSeconds', title: 'Status can be asked after the end, s', kind: 'number', hint: 'finishedSeconds' },
  { group: 'Gate', name: 'paths', title: 'Guarded paths', kind: 'lines', hint: 'One a line: * within a segment, ** anything.' },
  { group: 'Gate', name: 'returnHosts', title: 'Hosts to return to', kind: 'lines' },
  { group: 'Gate', name: 'failMode', title: 'When the store is away', kind: 'choice', choices: ['open', 'closed'] },
  { group: 'Gate', name: 'queueAll', title: 'Queue everybody', kind: 'check' },
  { group: 'Switches itself on', name: 'auto.resource', title: 'Resource', kind: 'text', key: true, hint: 'Such as product-*, a queue for each. Empty: always on.' },
  { group: 'Switches itself on', name: 'auto.eventType', title: 'Event type', kind: 'text', hint: 'Empty: any.' },
  { group: 'Switches itself on', name: 'auto.threshold', title: 'At so many requests', kind: 'whole', min: 1 },
  { group: 'Switches itself on', name: 'auto.windowSeconds', title: 'Within, s', kind: 'number', min: 1 },
  { group: 'Switches itself on', name: 'auto.cooldownSeconds', title: 'Off when quiet for, s', kind: 'number' },
  { group: 'Switches itself on', name: 'auto.maxQueues', title: 'Most queues', kind: 'whole', min: 1 },
  { group: 'May always pass', name: 'bypass.paths', title: 'Paths', kind: 'lines', hint: 'One a line, matched literally.' },
  { group: 'May always pass', name: 'bypass.addresses', title: 'Addresses', kind: 'lines', hint: 'One a line, such as 10.0.0.0/8.' },
  { group: 'May always pass', name: 'bypass.header', title: 'Signed header', kind: 'text', hint: 'The name of a header that carries a signed value.' },
  { group: 'Page', name: 'message', title: 'Message to those who wait', kind: 'long', hint: 'At most 500 characters.' },
  { group: 'Page', name: 'theme.color', title: 'Colour', kind: 'text', optional: true, hint: 'Such as #1f5fbf. Empty: ours.' },
  { group: 'Page', name: 'theme.background', title: 'Background', kind: 'text', optional: true, hint: 'Such as #eef1f5. Empty: light or dark by the visitor.' },
  { group: 'Page', name: 'theme.logo', title: 'Logo', kind: 'text', optional: true, hint: 'An https address. Empty: none.' },
];

export function queue(view, [name], session) {
  const space = { namespace: session.namespace };
  const home = `/api/admin/queues/${encodeURIComponent(name)}`;
  const admin = session.role === 'admin';
  const heading = h('span');
  const trouble = h('p', { class: 'error', role: 'status' });
  const numbers = h('div');
  const trail = new Trail({ waiting: 'waiting', inside: 'called and inside', seats: 'seats', rate: 'admitted a second' });
  const charts = { line: chart('Waiting'), seats: chart('Seats taken'), flow: chart('Admitted a second'), minutes: chart('Wait, by minute', { unit: ' s' }) };
  const servers = h('div');
  const audit = h('div');
  const changed = h('p', { class: 'error', role: 'status' });
  let etag = null;
  let shown = null;
  let turn = 0;
  let showLevers = () => {};

  const policy = form(FIELDS, {
    submit: 'Save policy',
    onsubmit: async (values) => {
      if (!Object.keys(values).length) return toast('Nothing was changed.');
      try {
        const answer = await put(home + query(space), values, etag);
        etag = answer.etag;
        policy.load(answer.data);
        changed.textContent = '';
        toast('The policy is in force.');
      } catch (problem) {
        if (problem.code === 'version_conflict') changed.textContent = 'Somebody else changed this policy. Look at it again before you save yours.';
        throw problem;
      }
    },
  });

  const all = whole(h('a', { href: to(['queues']) }, 'All queues'),
    numbers,
    admin ? levers() : null,
    h('div', { class: 'grid charts' }, charts.line.element, charts.seats.element, charts.flow.element, charts.minutes.element),
    card('Servers', servers),
    card('Policy', changed, policy.element, admin ? h('p', {}, h('button', { type: 'button', onclick: reload }, 'Load what is in force')) : null),
    card('Audit', audit));
  fill(view,
    h('div', { class: 'row between' }, h('h1', { class: 'row' }, h('a', { href: to(['queues']) }, 'Queues'), ' / ', name, ' ', heading), trouble),
    all.element);
  if (!admin) for (const input of policy.element.querySelectorAll('input, select, textarea, button')) input.disabled = true;

  function levers() {
    const pause = h('button', { onclick: () => act('pause') }, 'Pause');
    const resume = h('button', { onclick: () => act('resume') }, 'Resume');
    // The lever that would change nothing is not offered; a drained queue takes people again by resuming.
    showLevers = (data) => {
      pause.hidden = data.paused;
      resume.hidden = !(data.paused || data.draining);
    };
    const count = h('input', { type: 'number', min: 1, value: 10, 'aria-label': 'How many to admit' });
    count.style.width = '6rem';
    return card('Levers', h('div', { class: 'row' },
      pause, resume,
      h('span', { class: 'row' }, count, h('button', { onclick: () => act('admit', { count: Number(count.value) }) }, 'Admit now')),
      h('button', { onclick: () => ask('drain', `Take nobody new into ${name} and let the line run empty?`, 'Drain') }, 'Drain'),
      h('button', { class: 'danger', onclick: () => ask('reset', `Reset ${name}? Everybody in line loses their place, and old tickets and passes are refused.`, 'Reset', name) }, 'Reset'),
      h('button', { class: 'danger', onclick: destroy }, 'Delete')));
  }

  async function act(verb, body = {}) {
    try {
      await post(`${home}/${verb}${query(space)}`, body);
      toast(`${verb}: done.`);
      stop.now();
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  async function ask(verb, question, action, word = null) {
    if (await confirm(question, { action, word })) await act(verb);
  }

  async function destroy() {
    if (!await confirm(`Delete ${name}? Those in line are let through at their next check.`, { action: 'Delete', word: name })) return;
    try {
      await remove(home + query(space));
      toast(`${name} is gone.`);
      visit(['queues']);
    } catch (problem) {
      toast(problem.message, 'bad');
    }
  }

  async function reload() {
    const answer = await getTagged(home + query(space));
    etag = answer.etag;
    policy.load(answer.data);
    changed.textContent = '';
  }

  const stop = live(async () => {
    const { data, etag: tagNow } = await getTagged(home + query(space));
    if (shown === null || (tagNow !== etag && !policy.dirty())) {
      etag = tagNow;
      policy.load(data);
    } else if (tagNow !== etag) {
      changed.textContent = 'Somebody else changed this policy meanwhile. Load what is in force before you save.';
    }
    shown = data;
    all.show(true);
    fill(heading, state(data));
    showLevers(data);
    fill(numbers, figures([
      ['Waiting', number(data.waiting)], ['Away', number(data.away)], ['Called', number(data.holds)], ['Inside', number(data.sessions)],
      ['Seats', seats(data.figures.capacity)], ['Admitted', number(data.admittedTotal)], ['Rate / s', number(data.figures.ratePerSecond)], ['Generation', number(data.generation)],
    ]));
    trail.add({ waiting: data.waiting, inside: data.sessions + data.holds, seats: data.figures.capacity < NO_LIMIT ? data.figures.capacity : null, rate: data.figures.ratePerSecond });
    charts.line.update(trail.series('waiting'));
    charts.seats.update(trail.series('inside', 'seats'));
    charts.flow.update(trail.series('rate'));
    if (turn % 5 === 0) await slower();
    turn += 1;
  }, {
    onState: (problem) => {
      trouble.textContent = problem ? problem.message : '';
      if (problem?.code !== 'queue_unknown') return;
      fill(heading);
      all.show(false);
    },
  });

  async function slower() {
    const [found, history, trailOfChanges] = await Promise.all([
      maybe('/api/queue/servers' + query({ queue: name, ...space })),
      maybe(`${home}/history${query(space)}`),
      maybe(`${home}/audit${query(space)}`),
    ]);
    fill(servers, table([
      { title: 'Server', value: (row) => h('code', {}, row.instanceId) },
      { title: 'Address', value: (row) => row.address },
      { title: 'Inside', number: true, value: (row) => number(row.sessions) },
      { title: 'Called', number: true, value: (row) => number(row.holds) },
      { title: 'Seats', number: true, value: (row) => `${number(row.capacity)} (${number(row.maxCapacity)})` },
      { title: '', value: (row) => (row.draining ? tag('draining', 'warn') : row.reported ? tag('up', 'good') : tag('reporting', 'warn')) },
    ], found?.servers ?? [], 'No server offers seats here.'));
    const minutes = untilNow(history?.minutes ?? []);
    charts.minutes.update([
      { name: 'mean wait', points: minutes.map(([time, row]) => [time, row?.meanWaitSeconds ?? null]) },
      { name: 'mean ETA error', points: minutes.map(([time, row]) => [time, row?.meanEtaErrorSeconds ?? null]) },
    ]);
    fill(audit, table([
      { title: 'When', value: (row) => h('span', { title: moment(row.at) }, ago(row.at)) },
      { title: 'Who', value: (row) => row.who },
      { title: 'What', value: (row) => row.action },
      { title: 'Changed', value: (row) => difference(row.old, row.new) },
    ], trailOfChanges?.records ?? [], 'Nothing was changed yet.'));
  }

  return stop;
}

/** Give the minutes with their times, and nothing for those without a record: between two of them, and until now. */
function untilNow(minutes) {
  const found = [];
  for (const row of minutes) {
    const time = Date.parse(row.minute);
    const before = found.at(-1)?.[0];
    if (before && time - before > 90000) found.push([before + 60000, null]);
    found.push([time, row]);
  }
  const now = Date.now();
  if (found.length && now - found.at(-1)[0] > 150000) found.push([now, null]);
  return found;
}

/** Say in a few words what a change changed: policies field by field, switches as they are. */
function difference(before, after) {
  const fields = Object.keys(after).filter((name) => JSON.stringify(after[name]) !== JSON.stringify(before[name]));
  if (Object.keys(before).length === 0 && 'seats' in after) return h('span', { class: 'soft' }, 'created');
  const said = (name) => (name in before ? `${name}: ${JSON.stringify(before[name])} → ${JSON.stringify(after[name])}` : `${name}: ${JSON.stringify(after[name])}`);
  return h('ul', { class: 'changes' }, fields.map((name) => h('li', {}, h('code', {}, said(name)))));
}
