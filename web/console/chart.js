// A small line chart: time along the bottom, one or more series, a cursor that reads them out.
import { h, number } from './dom.js';

const HEIGHT = 180;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;
const NS = 'http://www.w3.org/2000/svg';
// Beside the plot there is room for five signs, and less than a hundredth is as good as nothing.
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 3 });
const LEAST = 0.01;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Choose steps that people can read: 1, 2 or 5 times a power of ten. */
export function ticks(most, wanted = 4) {
  if (!(most > 0)) return [0, 1];
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let value = 0; value < most + step; value += step) found.push(value);
  return found;
}

/**
 * A chart that can be updated in place.
 * series: [{name, points: [[ms, value or null], …]}], all over the same times; a null breaks the line.
 */
export function chart(title, { unit = '' } = {}) {
  const plot = svg('svg', { class: 'chart', height: HEIGHT, role: 'img' });
  const legend = h('ul', { class: 'legend' });
  const box = h('section', { class: 'card' }, h('h2', {}, title), plot, legend);
  let current = [];
  let width = 560;
  // Drawn in the pixels that there are, so that words have one size on a phone and on a wall.
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (!now || now === width) return;
    width = now;
    draw(null);
  }).observe(box);

  function update(series) {
    current = series;
    draw(null);
  }

  function draw(at) {
    const points = current.flatMap((line) => line.points.filter(([, value]) => value !== null));
    if (!points.length) {
      plot.replaceChildren(svg('text', { x: width / 2, y: HEIGHT / 2, 'text-anchor': 'middle' }, 'Nothing measured yet'));
      plot.setAttribute('aria-label', `${title}: nothing measured yet`);
      legend.replaceChildren();
      return;
    }
    const times = current.flatMap((line) => line.points.map(([time]) => time));
    const first = Math.min(...times);
    const last = Math.max(...times, first + 1);
    const most = Math.max(...points.map(([, value]) => value));
    const steps = ticks(most && Math.max(most, LEAST));
    const top = steps.at(-1);
    const x = (time) => LEFT + ((time - first) / (last - first)) * (width - LEFT - 4);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - BOTTOM - TOP);
    const parts = steps.map((value) => svg('g', {},
      svg('line', { class: 'grid-line', x1: LEFT, x2: width - 4, y1: y(value), y2: y(value) }),
      svg('text', { x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end' }, short.format(value))));
    for (const [time, anchor] of [[first, 'start'], [last, 'end']]) {
      parts.push(svg('text', { x: x(time), y: HEIGHT - 4, 'text-anchor': anchor }, new Date(time).toLocaleTimeString()));
    }
    current.forEach((line, index) => {
      const series = `series series-${(index % 4) + 1}`;
      parts.push(svg('path', { d: path(line.points, x, y), class: series }));
      // One value by itself makes no line, so it is a dot.
      const alone = line.points.filter(([, value]) => value !== null);
      if (alone.length === 1) parts.push(svg('circle', { cx: x(alone[0][0]), cy: y(alone[0][1]), r: 3, class: series }));
    });
    if (at !== null) parts.push(svg('line', { class: 'cursor', x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
    plot.replaceChildren(...parts);
    const said = current.map((line) => {
      const latest = line.points.findLast(([, value]) => value !== null);
      const point = at === null ? latest : line.points.reduce((best, next) => (Math.abs(next[0] - at) < Math.abs(best[0] - at) ? next : best), line.points[0] || [0, null]);
      // What is read out is the latest that was measured; where nothing was since, it says when that was.
      const since = at === null && latest && latest !== line.points.at(-1) ? ` at ${new Date(latest[0]).toLocaleTimeString([], { timeStyle: 'short' })}, nothing since` : '';
      return point?.[1] === null || !point ? `${line.name}: –` : `${line.name}: ${number(point[1])}${unit}${since}`;
    });
    legend.replaceChildren(...said.map((text, index) => h('li', {}, swatch(index), text)));
    plot.setAttribute('aria-label', `${title}. ${said.join(', ')}`);
    plot.onpointermove = (event) => {
      const inside = plot.getBoundingClientRect();
      const wanted = first + ((event.clientX - inside.left - LEFT) / (width - LEFT - 4)) * (last - first);
      draw(Math.min(last, Math.max(first, wanted)));
    };
    plot.onpointerleave = () => draw(null);
  }

  return { element: box, update };
}

function swatch(index) {
  const mark = h('i');
  mark.style.background = `var(--line-${(index % 4) + 1})`;
  return mark;
}

/** Draw a line through the points, broken where nothing was measured. */
function path(points, x, y) {
  let open = false;
  return points.map(([time, value]) => {
    if (value === null) {
      open = false;
      return '';
    }
    // A point between two breaks is a line of no length, which is drawn as a dot.
    const move = `${open ? 'L' : 'M'}${x(time).toFixed(1)} ${y(value).toFixed(1)}${open ? '' : 'h0'}`;
    open = true;
    return move;
  }).join('');
}

/** Remember the last minutes of some numbers, for charts of what is happening now. */
export class Trail {
  constructor(names, minutes = 10) {
    this.names = names;
    this.keepMs = minutes * 60000;
    this.rows = [];
  }

  add(values, time = Date.now()) {
    this.rows.push([time, values]);
    while (this.rows.length && this.rows[0][0] < time - this.keepMs) this.rows.shift();
  }

  series(...names) {
    return names.map((name) => ({ name: this.names[name], points: this.rows.map(([time, values]) => [time, values[name] ?? null]) }));
  }
}
