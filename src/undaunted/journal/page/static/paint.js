// Draws what a view shows. Spans go into pixels directly: the time of a frame depends on the pixels
// and on the spans in sight, not on how much the job has of them.
"use strict";

const GUTTER = 132; // names of nodes and ranks, CSS pixels
const AXIS = 22;
const BANDS = 20; // rounds
const HEAD = AXIS + BANDS;
const FAILURES = ["crash", "hang", "spawn", "lost"];

// Colours of the style sheet, so that light and dark are decided there.
function palette(model) {
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(`--${name}`).trim();
  const word = (hex) => {
    const rgb = parseInt(hex.slice(1), 16);
    return (0xff000000 | ((rgb & 255) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
  };
  const colours = model.classes.map((name) => css(name));
  const words = new Uint32Array(256).fill(word(css("none")));
  colours.forEach((colour, i) => (words[i] = word(colour)));
  return {
    colours, words, css,
    none: word(css("none")), text: css("text"), dim: css("dim"), line: css("line"),
    panel: css("panel"), band: css("band"), accent: css("accent"), failure: css("failure"),
    onSpan: model.classes.map((name) => css(`on-${name}`) || css("on-span")),
  };
}

// For each column of pixels the class that has most of it.
class Columns {
  constructor(classes) {
    this.weights = new Float64Array(classes);
    this.out = new Uint8Array(0);
  }

  begin(width, from, perPixel) {
    if (this.out.length !== width) this.out = new Uint8Array(width);
    this.out.fill(NONE);
    this.width = width;
    this.from = from;
    this.perPixel = perPixel;
    this.column = -1;
  }

  span(what, from, to) {
    const x0 = Math.max(0, (from - this.from) / this.perPixel);
    const x1 = Math.min(this.width, (to - this.from) / this.perPixel);
    if (x1 <= x0) return;
    const first = Math.floor(x0);
    const last = Math.floor(x1);
    if (first === last) {
      this.add(first, what, x1 - x0);
      return;
    }
    this.add(first, what, first + 1 - x0);
    if (last > first + 1) {
      this.flush();
      this.out.fill(what, first + 1, last);
    }
    if (last < this.width) this.add(last, what, x1 - last);
  }

  add(column, what, weight) {
    if (column !== this.column) {
      this.flush();
      this.column = column;
    }
    this.weights[what] += weight;
  }

  flush() {
    if (this.column < 0) return;
    let best = 0;
    const { weights } = this;
    for (let k = 1; k < weights.length; k++) if (weights[k] > weights[best]) best = k;
    this.out[this.column] = best;
    weights.fill(0);
    this.column = -1;
  }
}

class Painter {
  constructor(canvas, model, view) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.model = model;
    this.view = view;
    this.columns = new Columns(model.classes.length);
    this.lines = document.createElement("canvas"); // a line of pixels for each row that is seen
    this.recolour();
  }

  recolour() {
    this.palette = palette(this.model);
  }

  resize(width, height, ratio) {
    this.ratio = ratio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.width = width;
    this.height = height;
    this.view.resize(width - GUTTER, height - HEAD);
    const wide = this.canvas.width - Math.round(GUTTER * ratio);
    const most = Math.ceil(this.view.height / HEIGHT.least) + 1; // rows that are seen at once
    this.image = wide > 0 && height > HEAD ? this.context.createImageData(wide, most) : null;
    if (!this.image) return;
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.lines.width = wide;
    this.lines.height = most;
  }

  draw() {
    if (!this.image) return;
    const { context, palette: colours, ratio } = this;
    this.labels = [];
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.spans();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.axis();
    this.rounds();
    this.names();
    this.clipped(() => {
      this.words();
      this.marks();
      this.crosshair();
      this.thumb();
    });
  }

  clipped(draw) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(GUTTER, HEAD, this.width - GUTTER, this.height - HEAD);
    context.clip();
    draw();
    context.restore();
  }

  // Each row that is seen: one line of pixels, drawn as high as the row is.
  spans() {
    const { context, view, ratio } = this;
    const first = Math.max(0, view.rowAt(0));
    let row = first;
    for (; row < view.rows.length && view.y(row) < view.height; row++) this.line(row, row - first);
    const { width } = this.image;
    const into = this.lines.getContext("2d");
    into.putImageData(this.image, 0, 0, 0, 0, width, row - first);
    context.imageSmoothingEnabled = false;
    const gap = view.row >= 7 ? Math.round(ratio) : 0;
    for (let k = 0; k < row - first; k++) {
      const top = Math.max(0, Math.round(view.y(first + k) * ratio));
      const high = Math.round(view.y(first + k + 1) * ratio) - gap - top;
      const [x, y] = [Math.round(GUTTER * ratio), Math.round(HEAD * ratio) + top];
      if (high > 0) context.drawImage(this.lines, 0, k, width, 1, x, y, width, high);
    }
  }

  line(row, place) {
    const { columns, labels, palette: colours, pixels, ratio, view } = this;
    const { width } = this.image;
    columns.begin(width, view.from, view.perPixel / ratio);
    this.visit(row, view.from, view.to, (what, from, to) => {
      columns.span(what, from, to);
      if (view.row >= 14 && (to - from) / view.perPixel > 70) labels.push([what, from, to, row]);
    });
    columns.flush();
    const start = place * width;
    for (let x = 0; x < width; x++) pixels[start + x] = colours.words[columns.out[x]];
  }

  visit(row, low, high, visitor) {
    const { node, rank } = this.view.rows[row];
    const one = this.model.nodes[node];
    if (rank < 0) visitNode(one, low, high, visitor);
    else visitRank(this.model, one, rank, low, high, visitor);
  }

  axis() {
    const { context, view, palette: colours } = this;
    const { step, found } = ticks(view, 90);
    context.textAlign = "center";
    let free = 0; // where the text before ends
    for (const at of found) {
      const x = GUTTER + view.x(at);
      context.fillStyle = colours.line;
      context.fillRect(Math.round(x), AXIS - 5, 1, 5);
      const half = context.measureText(clock(at, step)).width / 2;
      const middle = Math.min(x, this.width - half - 2);
      if (middle - half < free) continue;
      free = middle + half + 8;
      context.fillStyle = colours.dim;
      context.fillText(clock(at, step), middle, AXIS / 2 - 1);
    }
  }

  rounds() {
    const { context, view, model, palette: colours } = this;
    const { at, until, number } = model.rounds;
    context.textAlign = "center";
    const left = Math.max(0, after(at, view.from) - 1);
    let drawn = -Infinity;
    for (let i = left; i < at.length && at[i] < view.to; i++) {
      const x0 = Math.max(0, view.x(at[i]));
      const end = Math.min(until[i], i + 1 < at.length ? at[i + 1] : model.length);
      const x1 = Math.min(view.width, view.x(end)); // a gap follows where no launcher ran
      if (x1 < 0 || x1 - drawn < 1) continue; // out of sight, or several on one pixel
      drawn = x1;
      context.fillStyle = i % 2 ? colours.band : colours.line;
      context.fillRect(GUTTER + x0, AXIS, Math.max(1, x1 - x0 - 1), BANDS - 3);
      const long = `round ${number[i]}`;
      const text = x1 - x0 > 70 ? long : x1 - x0 > 22 ? String(number[i]) : "";
      context.fillStyle = colours.text;
      context.fillText(text, GUTTER + (x0 + x1) / 2, AXIS + (BANDS - 3) / 2 + 1);
    }
  }

  names() {
    const { context, view, model, palette: colours } = this;
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(0, HEAD, GUTTER - 4, this.height - HEAD);
    context.clip();
    let below = -Infinity;
    for (let row = Math.max(0, view.rowAt(0)); row < view.rows.length; row++) {
      if (view.y(row) > view.height) break;
      const y = Math.min(view.height - 6, Math.max(7, view.y(row) + view.row / 2));
      const chosen = view.point?.row === row;
      if (!chosen && y - below < 12) continue; // names would lie on each other
      below = y;
      const { node, rank } = view.rows[row];
      const name = model.nodes[node].name || "?";
      const sign = view.open.has(node) ? "\u25be " : "\u25b8 ";
      if (chosen) {
        context.fillStyle = colours.band;
        context.fillRect(0, HEAD + y - 7, GUTTER, 14);
      }
      context.fillStyle = rank < 0 ? colours.text : colours.dim;
      context.fillText(rank < 0 ? sign + name : `    rank ${rank}`, 6, HEAD + y);
    }
    context.restore();
  }

  // What a long span is, written into it.
  words() {
    const { context, view, palette: colours } = this;
    context.textAlign = "left";
    for (const [what, from, to, row] of this.labels) {
      const x0 = Math.max(0, view.x(from));
      const x1 = Math.min(view.width, view.x(to));
      if (x1 - x0 < 70) continue;
      context.fillStyle = colours.onSpan[what];
      const y = HEAD + view.y(row) + view.row / 2;
      context.fillText(this.model.classes[what], GUTTER + x0 + 6, y);
    }
  }

  marks() {
    const { view, model } = this;
    for (let row = Math.max(0, view.rowAt(0)); row < view.rows.length; row++) {
      const y = view.y(row) + view.row / 2;
      if (y > view.height + 8) break;
      const { node, rank } = view.rows[row];
      const before = { checkpoint: -Infinity, other: -Infinity };
      for (const mark of model.nodes[node].marks) {
        const x = view.x(mark.at);
        if (x < -8 || x > view.width + 8 || (rank >= 0 && mark.rank !== rank)) continue;
        if (mark.kind === "checkpoint" && view.row < HEIGHT.label - 2) continue;
        if (!FAILURES.includes(mark.kind)) {
          const like = mark.kind === "checkpoint" ? "checkpoint" : "other";
          const apart = x - before[like];
          before[like] = x;
          if (apart < 8) continue; // a row of signs would hide what is below
        }
        this.mark(mark.kind, GUTTER + x, HEAD + y);
      }
    }
  }

  // One sign per kind: shapes differ, not only colours.
  mark(kind, x, y) {
    const { context, palette: colours } = this;
    const size = 4.5;
    context.lineWidth = 2;
    context.beginPath();
    if (kind === "crash" || kind === "spawn" || kind === "lost") {
      context.arc(x, y, size + 2, 0, 2 * Math.PI);
      context.fillStyle = colours.failure;
      context.fill();
      context.beginPath();
      context.moveTo(x - 2.5, y - 2.5);
      context.lineTo(x + 2.5, y + 2.5);
      context.moveTo(x + 2.5, y - 2.5);
      context.lineTo(x - 2.5, y + 2.5);
      context.strokeStyle = "#ffffff";
      context.stroke();
    } else if (kind === "hang") {
      context.rect(x - size - 1.5, y - size - 1.5, 2 * size + 3, 2 * size + 3);
      context.fillStyle = colours.failure;
      context.fill();
      context.fillStyle = "#ffffff";
      context.fillRect(x - 3, y - 3, 2, 6);
      context.fillRect(x + 1, y - 3, 2, 6);
    } else if (kind === "checkpoint") {
      const high = Math.min(5, this.view.row / 2);
      context.fillStyle = colours.text;
      context.fillRect(Math.round(x) - 1, y + this.view.row / 2 - high - 1, 2, high);
    } else {
      context.moveTo(x, y - 4);
      context.lineTo(x + 4, y);
      context.lineTo(x, y + 4);
      context.lineTo(x - 4, y);
      context.closePath();
      context.fillStyle = colours.accent;
      context.fill();
      context.lineWidth = 1;
      context.strokeStyle = colours.text;
      context.stroke();
    }
  }

  crosshair() {
    const { context, view, palette: colours } = this;
    if (view.point === null) return;
    const x = Math.round(GUTTER + view.x(view.point.at));
    context.fillStyle = colours.text;
    context.globalAlpha = 0.55;
    context.fillRect(x, HEAD, 1, this.height - HEAD);
    context.globalAlpha = 1;
    context.strokeStyle = colours.text;
    context.lineWidth = 1;
    const y = HEAD + view.y(view.point.row);
    context.strokeRect(GUTTER + 0.5, Math.round(y) - 0.5, view.width - 1, view.row);
  }

  // Where among the rows this is, if not all are seen.
  thumb() {
    const { context, view } = this;
    const whole = view.rows.length * view.row;
    if (whole <= view.height + 1) return;
    const high = Math.max(16, (view.height * view.height) / whole);
    const y = (view.top / (whole - view.height)) * (view.height - high);
    context.globalAlpha = 0.6;
    context.fillStyle = this.palette.text;
    context.fillRect(this.width - 5, HEAD + y, 4, high);
    context.globalAlpha = 1;
  }
}
