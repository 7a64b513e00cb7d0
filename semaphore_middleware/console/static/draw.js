// Numbers and names as people read them. Names are untrusted: they only become text.

const SVG = "http://www.w3.org/2000/svg";
export const POINTS = 60; // of a sparkline, one per second

const MAX_NAME_CHARS = 200; // that are shown; the title has them all
export const dash = "–";

/** Seconds, as `status` writes them: 50 ms, 0.3 s, 12 s, 3 min, 5 h, 4 d. */
export function seconds(value) {
  if (value === null) return dash;
  if (value <= 0) return "0 s";
  if (value < 0.0995) return `${Math.max(1, Math.round(1000 * value))} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (value >= 2 * size) return `${Math.round(value / size)} ${unit}`;
  }
  return `${Math.round(value)} s`;
}

/** 1 permit, 2 permits. */
export function count(value, what) {
  return `${number(value)} ${what}${value === 1 ? "" : "s"}`;
}

/** A time of today as 12:34:56, any other with its day. */
export function moment(date) {
  const time = date.toLocaleTimeString("en-GB");
  const day = date.toLocaleDateString("en-GB", { dateStyle: "medium" });
  return date.toDateString() === new Date().toDateString() ? time : `${day}, ${time}`;
}

export function number(value) {
  return value === null ? dash : value.toLocaleString("en", { maximumFractionDigits: 1 });
}

/** Starts a second, always with a decimal, so that the width does not change. */
export function starts(value) {
  return value === null ? dash : value.toFixed(value < 100 ? 1 : 0);
}

export function limit(value, unlimited) {
  return unlimited ? "∞" : number(value);
}

/** A delay, unrounded: 0.25 s; 1.5 s ±50 % if it varies. */
export function delay(value, jitter) {
  const time = value < 120 ? `${value} s` : seconds(value);
  return value && jitter ? `${time} ±${number(100 * jitter)} %` : time;
}

/** 60/m; 60/m (10) if up to ten may start at once. */
export function rate(value, burst) {
  return `${value ?? dash}${burst > 1 ? ` (${number(burst)})` : ""}`;
}

/** A node's name without the random letters added to it. */
export function withoutLetters(node) {
  return node.replace(/-[0-9a-f]{12}$/, "");
}

/** Write only what has changed: screen readers and selections are left alone. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A scope's or node's name, isolated, so that one written from right to left does not reorder other text. */
export function nameOf(text) {
  const bdi = element("bdi");
  const shown = text.length > MAX_NAME_CHARS ? `${text.slice(0, MAX_NAME_CHARS)}…` : text || "(no name)";
  for (const part of shown.split(/(?<=[.:/@])/)) bdi.append(part, element("wbr"));
  bdi.title = text;
  return bdi;
}

export function element(name, textContent = "", className = "") {
  return Object.assign(document.createElement(name), { textContent, className });
}

/** An empty sparkline, hidden from screen readers: the number beside it is enough. */
export function sparkline(className) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", `spark ${className}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(SVG, "polygon"), document.createElementNS(SVG, "polyline"));
  return svg;
}

/** Draw values, the newest at the right edge; `top` is the least value of the upper edge, `width` the number of points that fit. */
export function draw(svg, values, top, width = POINTS) {
  svg.setAttribute("viewBox", `0 0 ${width - 1} 20`);
  const most = Math.max(top, ...values);
  const left = width - values.length;
  const points = values.map((value, i) => `${left + i},${(19 - (18 * value) / most).toFixed(2)}`);
  const [area, line] = svg.children;
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", `${left},20 ${points.join(" ")} ${width - 1},20`);
}
