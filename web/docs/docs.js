// Draws the API's two pages, routes and problems, from /openapi.json.
import { example, fieldsOf, resolve, typeOf } from './schema.js';

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
const ROLES = { public: 'public', read: 'read token', service: 'service token', admin: 'admin token' };

const page = document.querySelector('#content');
const contents = document.querySelector('#contents');
const filter = document.querySelector('#filter');
const menu = document.querySelector('#menu');

/** Make an element; children that are text stay text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function operationsOf(api) {
  return Object.entries(api.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, ...item[method] })));
}

/** Write a text; what stands between backticks is code. */
function words(text) {
  return text.split('`').map((part, index) => (index % 2 ? make('code', {}, part) : part));
}

/** Write a path so that it breaks after a slash. */
function path(text) {
  return make('code', {}, ...text.split('/').flatMap((part, index) => (index ? ['/', make('wbr'), part] : [part])));
}

function drawFields(api, schema, { given = false } = {}) {
  const rows = fieldsOf(api, schema).map((field) => make('div', {},
    make('dt', {}, make('code', {}, field.name), ' ', field.required && !given ? make('span', { class: 'required' }, 'required') : ''),
    make('dd', {}, [field.type, field.rules].filter(Boolean).join(' · '), ...(field.text ? words(` · ${field.text}`) : []))));
  return rows.length ? make('dl', { class: 'fields' }, ...rows) : make('p', { class: 'soft' }, typeOf(api, schema));
}

function drawParameters(api, parameters) {
  const properties = {};
  const required = [];
  for (const parameter of parameters) {
    properties[parameter.name] = { ...parameter.schema, description: [parameter.in === 'query' ? '' : `in the ${parameter.in}`, parameter.description].filter(Boolean).join(', ') };
    if (parameter.required) required.push(parameter.name);
  }
  return drawFields(api, { type: 'object', properties, required });
}

function sample(api, operation) {
  const query = operation.parameters.filter((parameter) => parameter.in === 'query' && parameter.required);
  const address = location.origin + operation.path + (query.length ? `?${query.map((parameter) => `${parameter.name}=…`).join('&')}` : '');
  const body = operation.requestBody?.content['application/json'];
  return [
    `curl ${operation.method === 'get' ? '' : `-X ${operation.method.toUpperCase()} `}'${address}'`,
    operation['x-access'] === 'public' ? null : `-H "X-API-Token: $HEADGATE_TOKEN"`,
    body ? `-H 'Content-Type: application/json'` : null,
    body ? `-d '${JSON.stringify(example(api, body.schema)).replaceAll("'", "'\\''")}'` : null,
  ].filter(Boolean).join(' \\\n  ');
}

function drawSample(text) {
  const button = make('button', { type: 'button' }, 'Copy');
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
  return make('div', { class: 'sample' }, make('pre', {}, text), navigator.clipboard ? button : null);
}

function drawAnswers(api, operation) {
  const list = make('ul', { class: 'answers' });
  const shown = new Map();
  for (const [status, answer] of Object.entries(operation.responses)) {
    const codes = answer.content?.['application/problem+json']?.schema.properties?.code.enum;
    const item = make('li', {}, make('span', { class: 'status' }, status));
    if (codes) {
      codes.forEach((code, index) => item.append(index ? ', ' : '', make('a', { href: `/docs/problems#${code}` }, make('code', {}, code))));
    } else {
      const [kind, content] = Object.entries(answer.content ?? {})[0] ?? [];
      item.append(kind ?? (/^Done/.test(answer.description) ? 'nothing else' : answer.description));
      const same = JSON.stringify(content?.schema);
      if (shown.has(same)) item.append(`, as ${shown.get(same)}`);
      else if (content?.schema && resolve(api, content.schema).properties) {
        item.append(drawFields(api, content.schema, { given: true }));
        shown.set(same, status);
      }
    }
    list.append(item);
  }
  return list;
}

function drawOperation(api, operation) {
  const inside = make('div', { class: 'inside' });
  if (operation.description) inside.append(make('p', {}, ...words(operation.description)));
  if (operation.parameters.length) inside.append(make('h3', {}, 'Parameters'), drawParameters(api, operation.parameters));
  const body = operation.requestBody?.content['application/json'];
  if (body) inside.append(make('h3', {}, operation.requestBody.required ? 'Body' : 'Body (optional)'), drawFields(api, body.schema));
  inside.append(make('h3', {}, 'Answers'), drawAnswers(api, operation), make('h3', {}, 'Example'), drawSample(sample(api, operation)));
  const about = make('span', { class: 'about' }, operation.summary);
  return make('details', { class: 'operation', id: operation.operationId, 'data-words': `${operation.path} ${operation.operationId} ${operation.summary}`.toLowerCase() },
    make('summary', {}, make('span', { class: `method ${operation.method}` }, operation['x-any-method'] ? 'ANY' : operation.method.toUpperCase()), make('span', { class: 'role' }, ROLES[operation['x-access']] ?? ''),
      path(operation.path), about), inside);
}

function drawRoutes(api) {
  const operations = operationsOf(api);
  page.append(make('h1', {}, 'Routes'), make('p', {}, api.info.description.replaceAll('`', '')));
  for (const tag of api.tags.map((each) => each.name)) {
    const ours = operations.filter((operation) => operation.tags.includes(tag));
    page.append(make('section', { 'data-group': '' }, make('h2', { id: `tag-${tag}` }, tag), ...ours.map((operation) => drawOperation(api, operation))));
    contents.append(make('div', { 'data-group': '' }, make('strong', {}, tag), make('ul', {}, ...ours.map((operation) =>
      make('li', { 'data-words': `${operation.path} ${operation.operationId} ${operation.summary}`.toLowerCase() }, make('a', { href: `#${operation.operationId}` }, operation.summary))))));
  }
}

function drawProblems(api) {
  page.append(make('h1', {}, 'Problems'), make('p', {}, 'What can go wrong, by its code. A code never changes its meaning.'));
  const list = make('section', { 'data-group': '' });
  const links = make('ul');
  for (const problem of api['x-problems']) {
    const from = operationsOf(api).filter((operation) => operation.responses[problem.status]?.content?.['application/problem+json']?.schema.properties?.code.enum.includes(problem.code));
    const words = `${problem.code} ${problem.status} ${problem.detail}`.toLowerCase();
    const where = make('p', { class: 'from' }, 'From: ');
    from.forEach((operation, index) => where.append(index ? ', ' : '', make('a', { href: `/docs#${operation.operationId}` }, operation.summary)));
    list.append(make('article', { class: 'problem', id: problem.code, 'data-words': words },
      make('h2', {}, make('code', {}, problem.code), make('span', { class: 'soft' }, String(problem.status))),
      make('p', {}, problem.detail), from.length ? (from.length > 6 ? make('p', { class: 'from' }, `From ${from.length} routes.`) : where) : null));
    links.append(make('li', { 'data-words': words }, make('a', { href: `#${problem.code}` }, problem.code)));
  }
  page.append(list);
  contents.append(make('div', { 'data-group': '' }, links));
}

function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const element of document.querySelectorAll('[data-words]')) {
    element.hidden = !words.every((word) => element.dataset.words.includes(word));
  }
  for (const group of document.querySelectorAll('[data-group]')) {
    group.hidden = !group.querySelector('[data-words]:not([hidden])');
  }
  empty.hidden = Boolean(page.querySelector('[data-words]:not([hidden])'));
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (const element of document.querySelectorAll('.aimed')) element.classList.remove('aimed');
  if (!target) return;
  target.classList.add('aimed');
  if (target instanceof HTMLDetailsElement) target.open = true;
  target.scrollIntoView();
}

const empty = make('p', { class: 'empty', hidden: '' }, 'Nothing here has these words.');
const wide = matchMedia('(min-width: 60rem)');
const unfold = () => { menu.open = wide.matches; };

try {
  const answer = await fetch('/openapi.json');
  const api = await answer.json();
  const onProblems = location.pathname.endsWith('/problems');
  document.querySelector('#version').textContent = api.info.version;
  document.querySelector(`header nav a[href="${onProblems ? '/docs/problems' : '/docs'}"]`).setAttribute('aria-current', 'page');
  if (onProblems) document.title = 'Problems · Headgate API';
  (onProblems ? drawProblems : drawRoutes)(api);
  page.append(empty);
  filter.addEventListener('input', applyFilter);
  if (filter.value) applyFilter(); // typed while the page was loading
  wide.addEventListener('change', unfold);
  unfold();
  addEventListener('hashchange', openTarget);
  contents.addEventListener('click', () => { if (!wide.matches) menu.open = false; });
  openTarget();
} catch (error) {
  page.append(make('p', { class: 'empty', role: 'alert' }, `The description of the API could not be read (${error.message}). Load the page again.`));
}
