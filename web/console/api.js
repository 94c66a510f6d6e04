// Talks to the gateway as the signed-in admin. Problems become errors with a code; a lost sign-in leads back to its page.

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The gateway answered ${status}.`);
    this.status = status;
    this.code = body.code || '';
    this.body = body;
  }
}

let signedOut = () => {};
export function onSignedOut(callback) { signedOut = callback; }

async function call(method, path, { body, headers = {} } = {}) {
  // The extra header cannot be set by a form or a link on another site, so a request that has it was made here.
  const sent = { 'X-Headgate-Console': '1', ...headers };
  if (body !== undefined) sent['Content-Type'] = 'application/json';
  let answer;
  try {
    answer = await fetch(path, {
      method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store',
      credentials: 'same-origin', signal: AbortSignal.timeout(10000),
    });
  } catch {
    throw new Problem(0, { detail: 'The gateway cannot be reached.', code: 'unreachable' });
  }
  const text = await answer.text();
  let data = null;
  try { data = text ? JSON.parse(text) : null; } catch { data = { detail: text.slice(0, 200) }; }
  if (answer.status === 401) signedOut();
  if (!answer.ok) throw new Problem(answer.status, data || {});
  return { data, etag: answer.headers.get('ETag') };
}

/** Write a query: nothing for what is null. */
export function query(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== '');
  return kept.length ? `?${new URLSearchParams(kept)}` : '';
}

export const get = async (path) => (await call('GET', path)).data;
export const getTagged = (path) => call('GET', path);
export const post = async (path, body) => (await call('POST', path, { body })).data;
export const put = (path, body, etag = null) => call('PUT', path, { body, headers: etag ? { 'If-Match': etag } : {} });
/** Make something that must not be there yet, so that nothing of another admin's is overwritten. */
export const create = (path, body) => call('PUT', path, { body, headers: { 'If-None-Match': '*' } });
export const patch = async (path, body) => (await call('PATCH', path, { body })).data;
export const remove = async (path, etag = null) => (await call('DELETE', path, { headers: etag ? { 'If-Match': etag } : {} })).data;

/** Get something (or null if that part is not there) without stopping the rest of the page. */
export async function maybe(path) {
  try {
    return await get(path);
  } catch (problem) {
    if ([403, 404].includes(problem.status)) return null;
    throw problem;
  }
}
