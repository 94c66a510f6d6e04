// Shows a visitor's place in line, keeps it through lost connections, and goes on to the page asked for when it is their turn.
const page = JSON.parse(document.getElementById('page').textContent);
const words = page.words;
const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat(page.lang);
const unit = (name) => new Intl.NumberFormat(page.lang, { style: 'unit', unit: name, unitDisplay: 'long' });
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

const query = new URLSearchParams({ queue: page.queue, userId: page.userId, namespace: page.namespace });
if (page.placeToken) query.set('placeToken', page.placeToken);
const key = `headgate:${page.queue}`;
const memory = recall();
let over = false;
let told = '';
let stream = null;
let streamFailures = 0;
let timer = 0;

function recall() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(key));
    if (kept && kept.userId === page.userId && kept.place === page.status.place) return kept;
  } catch { /* a browser that keeps nothing still waits */ }
  return { userId: page.userId, place: page.status.place, first: page.status.rank || 1, lowest: Infinity };
}

function remember() {
  try { sessionStorage.setItem(key, JSON.stringify(memory)); } catch { /* as above */ }
}

function length(seconds) {
  return seconds < 90 ? unit('second').format(Math.max(5, Math.ceil(seconds / 5) * 5)) : unit('minute').format(Math.round(seconds / 60));
}

function etaText({ eta, leastSeconds, paused }) {
  const opens = Date.parse(page.opensAt);
  if (opens > Date.now()) return fill(words.opens, { time: new Date(opens).toLocaleString(page.lang, { dateStyle: 'long', timeStyle: 'short' }) });
  if (paused) return words.paused;
  if (!eta) return leastSeconds >= 10 ? fill(words.eta_least, { time: length(leastSeconds) }) : words.eta_unknown;
  const low = length(eta.low);
  const high = length(eta.high);
  return low === high ? fill(words.eta_about, { time: high }) : fill(words.eta_range, { low, high });
}

// Speaks to a screen reader at milestones only; what everybody sees may change every second.
function announce(text) {
  if (text === told) return;
  told = text;
  $('announce').textContent = text;
}

function show(status) {
  connection('');
  switch (status.status) {
    case 'WAITING':
    case 'AWAY': return showLine(status);
    case 'PROMOTED':
    case 'ACTIVE': return showTurn(status.ticketId);
    default: return showOver(words[`over_${status.status.toLowerCase()}`] || words.over_reset);
  }
}

function showLine(status) {
  memory.lowest = Math.min(memory.lowest, status.rank || Infinity);
  memory.first = Math.max(memory.first, memory.lowest);
  remember();
  const rank = memory.lowest;
  const done = (memory.first - rank) / memory.first;
  $('rank').textContent = number.format(rank);
  $('progress').value = done;
  $('eta').textContent = etaText(status);
  document.title = `${number.format(rank)} · ${page.title}`;
  if (status.eta && status.eta.high < 60) announce(words.soon);
  else if (done >= 0.5) announce(words.half_way);
}

function showTurn(ticketId) {
  over = true;
  const target = new URL(page.returnUrl, location.href);
  // A site on another host has no cookie of ours; it redeems the one-time ticket instead.
  if (page.elsewhere && ticketId) target.searchParams.set('headgateTicket', ticketId);
  close();
  document.documentElement.dataset.state = 'turn';
  $('heading').textContent = words.turn;
  $('turn').textContent = words.turn_explain;
  $('explain').textContent = '';
  document.title = `${words.turn} · ${page.title}`;
  offer(words.enter, target.href);
  $('sound').hidden = $('leave').hidden = true;
  if ($('ring').checked) ring();
  setTimeout(() => location.replace(target.href), 1500);
}

function showOver(text) {
  over = true;
  close();
  document.documentElement.dataset.state = 'over';
  $('heading').textContent = words.over;
  $('turn').textContent = text;
  $('explain').textContent = '';
  offer(words.join_again, page.againUrl);
  $('sound').hidden = $('leave').hidden = true;
}

function offer(label, url) {
  const go = $('go');
  go.textContent = label;
  go.href = url;
  go.hidden = false;
}

function connection(text) {
  if ($('connection').textContent === text) return;
  $('connection').textContent = text;
  announce(text);
}

// Asks once; a problem that means the wait is over ends it, anything else is a bad moment that passes.
async function ask() {
  clearTimeout(timer);
  if (over) return;
  let wait = 3000 + Math.random() * 2000;
  try {
    const answer = await fetch(`${page.api}/status?${query}`, { cache: 'no-store', signal: AbortSignal.timeout(10000) });
    const body = await answer.json();
    if (answer.ok) {
      show(body);
      wait = body.pollAfterMs || wait;
    } else if (body.code === 'queue_unknown') {
      return showTurn();
    } else if (['queue_reset', 'not_in_line', 'ticket_expired'].includes(body.code)) {
      return showOver(words[body.code === 'ticket_expired' ? 'over_expired' : 'over_reset']);
    } else {
      connection(words.reconnecting);
      wait = Math.max(wait, (Number(answer.headers.get('Retry-After')) || 0) * 1000);
    }
  } catch {
    connection(words.reconnecting);
  }
  if (!stream && !over) timer = setTimeout(ask, wait);
}

function listen() {
  if (over || !('EventSource' in window)) return ask();
  stream = new EventSource(`${page.api}/stream?${query}`);
  stream.addEventListener('status', (message) => {
    streamFailures = 0;
    show(JSON.parse(message.data));
  });
  stream.addEventListener('error', () => {
    close();
    streamFailures += 1;
    ask();
    setTimeout(() => { if (!stream && !over) listen(); }, Math.min(60000, 2000 * 2 ** streamFailures) * (0.5 + Math.random() / 2));
  });
}

function close() {
  if (stream) stream.close();
  stream = null;
}

function ring() {
  try {
    const audio = new AudioContext();
    const tone = audio.createOscillator();
    const loudness = audio.createGain();
    loudness.gain.value = 0.15;
    tone.frequency.value = 660;
    tone.connect(loudness).connect(audio.destination);
    tone.start();
    tone.stop(audio.currentTime + 0.7);
  } catch { /* no sound is no harm */ }
}

$('sound').hidden = false;
$('leave').hidden = false;
$('leave').addEventListener('click', async (click) => {
  click.preventDefault();
  const answer = await fetch(`${page.api}/entry?${query}`, { method: 'DELETE' }).catch(() => null);
  if (answer && answer.ok) showOver(words.over_left);
  else connection(words.reconnecting);
});
// A lid that opens or a network that returns wants the truth at once, not at the next timer.
document.addEventListener('visibilitychange', () => { if (!document.hidden) ask(); });
addEventListener('online', ask);
addEventListener('offline', () => connection(words.reconnecting));

show(page.status);
listen();
