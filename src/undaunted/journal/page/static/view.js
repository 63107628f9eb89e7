// What part of the timeline is seen: time from left to right, rows from top to bottom.
// Nothing here draws.
"use strict";

const HEIGHT = { least: 3, label: 11, most: 26 }; // of a row, in CSS pixels

class View {
  constructor(model) {
    this.model = model;
    this.width = 1; // of the area with the spans, CSS pixels
    this.height = 1;
    this.from = 0; // the first and the last moment seen
    this.to = model.length;
    this.top = 0; // how far the rows are scrolled
    this.row = 16; // height of a row
    this.open = new Set(); // nodes whose ranks are shown
    this.point = null; // {row, at}: what the reader looks at
    this.layOut();
  }

  // The rows: {node, rank}, rank -1 for the row of the node itself.
  layOut() {
    this.rows = [];
    this.rowOf = [];
    this.model.nodes.forEach((one, node) => {
      this.rowOf.push(this.rows.length);
      this.rows.push({ node, rank: -1 });
      if (this.open.has(node)) for (const rank of one.ranks) this.rows.push({ node, rank });
    });
    this.clamp();
  }

  resize(width, height) {
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    this.clamp();
  }

  // Rows as high as they can be while all are seen.
  fitRows() {
    this.row = this.height / Math.max(1, this.rows.length);
    this.top = 0;
    this.clamp();
  }

  clamp() {
    const { length } = this.model;
    const span = Math.min(length, Math.max(1, this.to - this.from));
    this.from = Math.min(Math.max(0, this.from), length - span);
    this.to = this.from + span;
    this.row = Math.min(HEIGHT.most, Math.max(HEIGHT.least, this.row));
    const most = Math.max(0, this.rows.length * this.row - this.height);
    this.top = Math.min(Math.max(0, this.top), most);
  }

  get perPixel() {
    return (this.to - this.from) / this.width;
  }

  x(at) {
    return (at - this.from) / this.perPixel;
  }

  at(x) {
    return this.from + x * this.perPixel;
  }

  y(row) {
    return row * this.row - this.top;
  }

  rowAt(y) {
    const row = Math.floor((y + this.top) / this.row);
    return row >= 0 && row < this.rows.length ? row : -1;
  }

  // Zooms by a factor (< 1: closer) around a moment, which stays where it is.
  zoom(factor, around = (this.from + this.to) / 2) {
    const span = this.to - this.from;
    const scaled = Math.min(this.model.length, Math.max(1, span * factor));
    this.from = around - (around - this.from) * (scaled / span);
    this.to = this.from + scaled;
    this.clamp();
  }

  pan(pixels) {
    this.show(this.from + pixels * this.perPixel, this.to + pixels * this.perPixel);
  }

  show(from, to) {
    this.from = from;
    this.to = to;
    this.clamp();
  }

  scroll(pixels) {
    this.top += pixels;
    this.clamp();
  }

  // Rows become higher or lower; the one at y stays there.
  scaleRows(factor, y) {
    const row = (y + this.top) / this.row;
    const before = this.row;
    this.row = factor > 1 ? Math.ceil(this.row * factor) : Math.floor(this.row * factor);
    this.clamp();
    if (this.row !== before) this.top = row * this.row - y;
    this.clamp();
  }

  reveal(row) {
    if (this.y(row) < 0) this.top = row * this.row;
    if (this.y(row + 1) > this.height) this.top = (row + 1) * this.row - this.height;
    this.clamp();
  }

  toggle(node) {
    if (!this.open.delete(node)) {
      this.open.add(node);
      this.row = Math.max(this.row, HEIGHT.label);
    }
    this.layOut();
  }

  openAll(yes) {
    this.open = new Set(yes ? this.model.nodes.keys() : []);
    this.layOut();
  }
}

const STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500].concat(
  [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200].map(
    (seconds) => seconds * 1000,
  ),
);
const DAY_MS = 86_400_000;

// Round moments at least `gap` pixels apart.
function ticks(view, gap) {
  const least = gap * view.perPixel;
  let step = STEPS_MS.find((one) => one >= least);
  if (step === undefined) step = DAY_MS * Math.ceil(least / DAY_MS);
  const found = [];
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) found.push(at);
  return { step, found };
}

// A moment on the axis: as exact as the distance between two ticks asks for.
function clock(ms, step) {
  const sign = ms < 0 ? "-" : "";
  const whole = Math.round(Math.abs(ms));
  const seconds = Math.floor(whole / 1000);
  const digits = step >= 1000 ? 0 : step >= 100 ? 1 : step >= 10 ? 2 : 3;
  const rest = digits ? "." + String(whole % 1000).padStart(3, "0").slice(0, digits) : "";
  const pad = (value) => String(value).padStart(2, "0");
  const days = Math.floor(seconds / 86400);
  const hours = Math.floor(seconds / 3600) % 24;
  const text = `${pad(Math.floor(seconds / 60) % 60)}:${pad(seconds % 60)}${rest}`;
  return sign + (days ? `${days} d ` : "") + (days || hours ? `${hours}:` : "") + text;
}

// A duration for people: two figures that matter.
function duration(ms) {
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  if (ms < 59950) return `${(ms / 1000).toFixed(1)} s`;
  const pad = (value) => String(value).padStart(2, "0");
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`;
}
