// The whole job in one strip: for each moment, the share of nodes in each class; failures below.
"use strict";

const STRIP = { high: 56, foot: 10 };

class Overview {
  constructor(canvas, model, view) {
    this.canvas = canvas;
    this.model = model;
    this.view = view;
    this.kept = null; // the strip without the frame
  }

  resize(width, ratio) {
    this.ratio = ratio;
    this.width = width;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round((STRIP.high + STRIP.foot) * ratio);
    this.kept = null;
  }

  x(at) {
    return (at / this.model.length) * this.width;
  }

  draw(colours) {
    if (this.canvas.width === 0) return; // a page that nobody sees yet has no size
    const context = this.canvas.getContext("2d", { alpha: false });
    if (this.kept === null) this.paint(context, colours);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.putImageData(this.kept, 0, 0);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const x0 = this.x(this.view.from);
    const x1 = Math.max(x0 + 2, this.x(this.view.to));
    context.globalAlpha = 0.6;
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, x0, STRIP.high);
    context.fillRect(x1, 0, this.width - x1, STRIP.high);
    context.globalAlpha = 1;
    context.strokeStyle = colours.text;
    context.lineWidth = 1;
    context.strokeRect(Math.round(x0) + 0.5, 0.5, Math.max(1, x1 - x0 - 1), STRIP.high - 1);
  }

  paint(context, colours) {
    const { model, ratio } = this;
    const width = this.canvas.width;
    const high = Math.round(STRIP.high * ratio);
    const counts = this.count(width);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, width, this.canvas.height);
    const image = context.createImageData(width, high);
    const pixels = new Uint32Array(image.data.buffer).fill(colours.none);
    const each = high / Math.max(1, model.nodes.length);
    for (let x = 0; x < width; x++) {
      let sum = 0;
      let y = high;
      model.classes.forEach((_, what) => {
        sum += counts[what * width + x];
        const top = high - Math.round(sum * each);
        while (y > top) pixels[--y * width + x] = colours.words[what];
      });
    }
    context.putImageData(image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colours.failure;
    for (const mark of model.marks) {
      if (!FAILURES.includes(mark.kind)) continue;
      context.beginPath();
      context.moveTo(this.x(mark.at), STRIP.high + 1);
      context.lineTo(this.x(mark.at) + 4, STRIP.high + STRIP.foot - 1);
      context.lineTo(this.x(mark.at) - 4, STRIP.high + STRIP.foot - 1);
      context.fill();
    }
    this.kept = context.getImageData(0, 0, width, this.canvas.height);
  }

  // How many nodes are in each class, column by column.
  count(width) {
    const { model } = this;
    const counts = new Uint32Array(model.classes.length * width);
    const columns = new Columns(model.classes.length);
    for (const node of model.nodes) {
      columns.begin(width, 0, model.length / width);
      visitNode(node, 0, model.length, (what, from, to) => columns.span(what, from, to));
      columns.flush();
      for (let x = 0; x < width; x++) {
        if (columns.out[x] !== NONE) counts[columns.out[x] * width + x]++;
      }
    }
    return counts;
  }
}
