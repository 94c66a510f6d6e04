// The console's frame: who is signed in, which part is shown, and the way between them.
import { address, to, visit } from './address.js';
import { Problem, get, onSignedOut, post, remove } from './api.js';
import { fill, h, toast } from './dom.js';
import { locks } from './views/locks.js';
import { queue } from './views/queue.js';
import { queues } from './views/queues.js';
import { service, services } from './views/services.js';
import { setting, settings } from './views/settings.js';
import { system } from './views/system.js';
import { tokens } from './views/tokens.js';
import { upstream, upstreams } from './views/upstreams.js';

// Each part of the console: its title, whether each namespace has its own, and the views by address (#/queues/main). A view is
// given its element, the words behind its name and who looks in which namespace, and returns a function that ends it.
const PARTS = [
  { name: 'queues', title: 'Queues', namespaced: true, list: queues, one: queue },
  { name: 'services', title: 'Services', namespaced: true, list: services, one: service },
  { name: 'config', title: 'Config', namespaced: true, list: settings, one: setting },
  { name: 'relay', title: 'Relay', list: upstreams, one: upstream },
  { name: 'locks', title: 'Locks', namespaced: true, list: locks },
  { name: 'tokens', title: 'Tokens', list: tokens, role: 'admin' },
  { name: 'system', title: 'System', list: system },
];

const view = document.getElementById('view');
const top = document.getElementById('top');
let session = null;
let end = () => {};

onSignedOut(() => {
  if (!session) return;
  session = null;
  showSignIn('Your sign-in has ended. Please sign in again.');
});

addEventListener('hashchange', show);
start();

async function start() {
  try {
    session = await get('/console/session');
  } catch (problem) {
    return showSignIn(problem.status === 401 ? '' : problem.message);
  }
  show();
}

function show() {
  if (!session) return;
  end();
  const { words: [name, ...rest], namespace } = address();
  const part = PARTS.find((each) => each.name === name) ?? PARTS[0];
  showTop(part);
  document.title = `${rest[0] ?? part.title} · Headgate`;
  fill(view);
  // A token that is limited to a namespace sees that one, whatever the address says.
  const who = { ...session, namespace: session.namespace ?? namespace };
  const stop = rest.length && part.one ? part.one(view, rest, who) : part.list(view, who);
  end = () => { stop?.(); end = () => {}; };
  view.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function showTop(current) {
  const links = PARTS.filter((part) => !part.role || part.role === session.role).map((part) =>
    h('a', { href: to([part.name]), 'aria-current': part === current ? 'page' : null }, part.title));
  fill(top,
    h('span', { class: 'brand' }, 'Headgate'),
    h('nav', { 'aria-label': 'Parts' }, links),
    current.namespaced ? chooser(current) : null,
    h('span', { class: 'who' }, `${session.name} (${session.role})`, h('button', { onclick: signOut }, 'Sign out')));
}

/** The namespace that is shown, and the way to another. */
function chooser(part) {
  const shown = session.namespace ?? address().namespace ?? 'default';
  if (session.namespace) return h('span', { class: 'space' }, 'Namespace ', h('strong', {}, shown));
  const wanted = h('input', { value: shown, maxlength: 128, pattern: '[A-Za-z0-9_.:\\-]+', autocomplete: 'off', spellcheck: 'false', autocapitalize: 'none', list: 'namespaces', placeholder: `${shown}, or any other`, title: 'Any name is a namespace: type it, or choose one that tokens were made for.' });
  const known = h('datalist', { id: 'namespaces' });
  const offer = (more) => fill(known, [...new Set(['default', 'headgate', shown, ...more])].map((each) => h('option', { value: each })));
  const form = h('form', { class: 'space' }, h('label', {}, 'Namespace', wanted), known);
  offer([]);
  // There is no list of namespaces: any name is one. Those that tokens were made for are in use.
  if (session.role === 'admin') get('/api/admin/tokens').then(({ tokens }) => offer(tokens.map((each) => each.namespace).filter(Boolean)), () => {});
  let typed = false;
  const go = () => { if (typed && wanted.value !== shown && wanted.reportValidity()) visit([part.name], wanted.value || 'default'); };
  // Browsers offer only what begins with the text in the field: an empty one offers all.
  wanted.addEventListener('focus', () => { wanted.value = ''; typed = false; });
  wanted.addEventListener('input', () => { typed = true; });
  wanted.addEventListener('blur', () => { wanted.value ||= shown; });
  form.addEventListener('submit', (event) => { event.preventDefault(); go(); });
  wanted.addEventListener('change', go);
  return form;
}

function showSignIn(words) {
  end();
  fill(top, h('span', { class: 'brand' }, 'Headgate'));
  const token = h('input', { type: 'password', name: 'token', autocomplete: 'current-password', required: true });
  const said = h('p', { class: 'error', role: 'alert' }, words);
  const form = h('form', { class: 'card signin' },
    h('h1', {}, 'Sign in'),
    h('p', { class: 'soft' }, 'With an API token. The admin token is printed by ', h('code', {}, 'headgate up'), '.'),
    h('label', {}, 'Token', token), said,
    h('button', { class: 'primary' }, 'Sign in'));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    try {
      session = await post('/console/session', { token: token.value });
      show();
    } catch (problem) {
      said.textContent = problem instanceof Problem && problem.status === 401 ? 'This token is not known here.' : problem.message;
      token.select();
    }
  });
  fill(view, form);
  token.focus();
}

async function signOut() {
  try {
    await remove('/console/session');
  } catch (problem) {
    toast(problem.message, 'bad');
    return;
  }
  session = null;
  showSignIn('');
}
