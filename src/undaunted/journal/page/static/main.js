// Joins the parts: input of mouse, touch and keyboard to the view, and a frame when it has changed.
"use strict";

function start() {
  const model = decode(JSON.parse(document.getElementById("data").textContent));
  if (model.nodes.length === 0) return; // there is nothing to draw: the tables say so
  const box = document.getElementById("timeline");
  const canvas = document.getElementById("rows");
  const strip = document.getElementById("overview");
  const view = new View(model);
  const painter = new Painter(canvas, model, view);
  const overview = new Overview(strip, model, view);
  const tip = document.getElementById("tip");
  const words = document.getElementById("said");
  let waiting = 0;

  function redraw() {
    if (!waiting) waiting = requestAnimationFrame(frame);
  }

  function frame() {
    waiting = 0;
    const began = performance.now();
    painter.draw();
    overview.draw(painter.palette);
    report(began);
  }

  // For tests and for whoever wants to know: how long frames take, what is seen.
  function report(began) {
    const { dataset } = box;
    dataset.frame = (performance.now() - began).toFixed(2);
    dataset.frames = Number(dataset.frames ?? 0) + 1;
    dataset.from = view.from.toFixed(3);
    dataset.to = view.to.toFixed(3);
    dataset.rows = view.rows.length;
    if (dataset.first === undefined) dataset.first = performance.now().toFixed(1);
  }

  let fitted = false; // rows are fitted once, when the size is known
  function resize() {
    const ratio = window.devicePixelRatio || 1;
    const width = box.clientWidth;
    if (width === 0) return; // not laid out yet: the observer below tells when it is
    const room = Math.max(220, Math.round(window.innerHeight * 0.62));
    const wanted = HEAD + view.rows.length * (fitted ? view.row : HEIGHT.most);
    const height = Math.min(room, Math.max(HEAD + 60, wanted));
    canvas.style.height = `${height}px`;
    painter.resize(width, height, ratio);
    overview.resize(strip.clientWidth, ratio);
    if (!fitted) view.fitRows();
    fitted = true;
    redraw();
  }

  function place(event) {
    const edge = canvas.getBoundingClientRect();
    return { x: event.clientX - edge.left - GUTTER, y: event.clientY - edge.top - HEAD };
  }

  function say(row, at, event) {
    const lines = describe(model, view, painter, row, at);
    const heading = document.createElement("strong");
    heading.textContent = lines[0];
    const rest = lines.slice(1).map((line) => {
      const one = document.createElement("div");
      one.textContent = line;
      return one;
    });
    tip.replaceChildren(heading, ...rest);
    if (!event) words.textContent = lines.join("; ");
    tip.hidden = false;
    const edge = box.getBoundingClientRect();
    const x = event ? event.clientX - edge.left : GUTTER + view.x(at);
    const top = canvas.offsetTop + HEAD + view.y(row + 1) + 12;
    const y = event ? event.clientY - edge.top + 18 : top;
    tip.style.left = `${Math.max(4, Math.min(x + 14, edge.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y}px`;
  }

  function toggle(node) {
    view.toggle(node);
    resize();
  }

  // --- mouse and touch

  const held = { on: false, moved: false, x: 0, y: 0 };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    Object.assign(held, { on: true, moved: false, x: event.clientX, y: event.clientY });
    canvas.setPointerCapture(event.pointerId);
  });

  canvas.addEventListener("pointermove", (event) => {
    if (held.on) {
      const dx = event.clientX - held.x;
      const dy = event.clientY - held.y;
      if (!held.moved && Math.hypot(dx, dy) < 4) return;
      Object.assign(held, { moved: true, x: event.clientX, y: event.clientY });
      tip.hidden = true;
      view.pan(-dx);
      view.scroll(-dy);
      redraw();
      return;
    }
    const { x, y } = place(event);
    const row = y < 0 ? -1 : view.rowAt(y);
    if (row < 0 || x < 0) {
      tip.hidden = true;
      return;
    }
    say(row, view.at(x), event);
  });

  canvas.addEventListener("pointerup", (event) => {
    if (held.on && !held.moved) {
      const { x, y } = place(event);
      const row = y < 0 ? -1 : view.rowAt(y);
      if (row >= 0) {
        view.point = { row, at: view.at(Math.max(0, x)) };
        if (view.rows[row].rank < 0) toggle(view.rows[row].node);
        redraw();
      }
    }
    held.on = false;
  });
  canvas.addEventListener("pointercancel", () => (held.on = false));
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));

  canvas.addEventListener("wheel", (event) => {
    // Until it was clicked (or with Ctrl) the page scrolls, so that nobody gets stuck here.
    if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    tip.hidden = true;
    const { x, y } = place(event);
    const amount = event.deltaY * (event.deltaMode === 1 ? 20 : 1);
    if (event.shiftKey) view.scroll(amount || event.deltaX);
    else if (event.altKey) view.scaleRows(amount > 0 ? 0.8 : 1.25, y);
    else {
      if (event.deltaX) view.pan(event.deltaX);
      view.zoom(Math.exp(amount * 0.002), view.at(Math.max(0, x)));
    }
    redraw();
  }, { passive: false });

  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    centre(event);
  });
  strip.addEventListener("pointermove", (event) => {
    if (strip.hasPointerCapture(event.pointerId)) centre(event);
  });

  function centre(event) {
    const edge = strip.getBoundingClientRect();
    const at = ((event.clientX - edge.left) / edge.width) * model.length;
    const half = (view.to - view.from) / 2;
    view.show(at - half, at + half);
    redraw();
  }

  // --- keyboard

  function point() {
    if (view.point === null || view.point.row >= view.rows.length) {
      view.point = { row: Math.max(0, view.rowAt(0)), at: (view.from + view.to) / 2 };
    }
    return view.point;
  }

  function move(rows) {
    const here = point();
    here.row = Math.min(view.rows.length - 1, Math.max(0, here.row + rows));
    view.reveal(here.row);
  }

  // Moves what is looked at by a part of the view; the view follows.
  function walk(part) {
    const here = point();
    const span = view.to - view.from;
    here.at = Math.min(model.length, Math.max(0, here.at + part * span));
    if (here.at < view.from) view.show(here.at, here.at + span);
    if (here.at > view.to) view.show(here.at - span, here.at);
  }

  const failures = model.marks.filter((mark) => FAILURES.includes(mark.kind) && mark.node >= 0);

  function leap(step) {
    const at = view.point === null ? -1 : view.point.at; // the first one, to begin with
    const later = failures.filter((mark) => (mark.at - at) * step > 0.001);
    const next = step > 0 ? later[0] : later[later.length - 1];
    if (next) look(next.at, next.node, next.rank);
  }

  // Shows a failure: half a minute or a tenth of what is seen now, around it.
  function look(at, node, rank) {
    const half = Math.min(30_000, (view.to - view.from) / 20, model.length / 2);
    if (rank >= 0 && model.nodes[node].ranks.includes(rank) && !view.open.has(node)) toggle(node);
    const row = view.rows.findIndex((one) => one.node === node && one.rank === rank);
    view.show(at - Math.max(half, 2000), at + Math.max(half, 2000));
    view.point = { row: row < 0 ? view.rowOf[node] : row, at };
    view.top = (view.point.row + 0.5) * view.row - view.height / 2;
    view.clamp();
  }

  function fit() {
    view.show(0, model.length);
    view.fitRows();
  }

  const keys = {
    ArrowLeft: () => walk(-0.05),
    ArrowRight: () => walk(0.05),
    ArrowUp: () => move(-1),
    ArrowDown: () => move(1),
    PageUp: () => move(-Math.max(1, Math.floor(view.height / view.row) - 1)),
    PageDown: () => move(Math.max(1, Math.floor(view.height / view.row) - 1)),
    Home: () => walk(-1e9),
    End: () => walk(1e9),
    "+": () => view.zoom(0.7, point().at),
    "=": () => view.zoom(0.7, point().at),
    "-": () => view.zoom(1 / 0.7, point().at),
    "0": fit,
    "]": () => view.scaleRows(1.25, 0),
    "[": () => view.scaleRows(0.8, 0),
    n: () => leap(1),
    p: () => leap(-1),
    Enter: () => toggle(view.rows[point().row].node),
    " ": () => toggle(view.rows[point().row].node),
  };

  canvas.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    const here = point();
    say(here.row, here.at, null);
    redraw();
  });
  canvas.addEventListener("blur", () => (tip.hidden = true));

  // --- buttons and links

  const buttons = {
    closer: () => view.zoom(0.5),
    farther: () => view.zoom(2),
    all: fit,
    next: () => leap(1),
    previous: () => leap(-1),
    ranks: () => view.openAll(view.open.size < model.nodes.length),
  };
  for (const [name, act] of Object.entries(buttons)) {
    document.getElementById(`do-${name}`).addEventListener("click", () => {
      act();
      if (name === "ranks") view.row = Math.max(view.row, HEIGHT.label);
      resize();
    });
  }
  for (const link of document.querySelectorAll("[data-at]")) {
    link.addEventListener("click", () => {
      const { at, node, rank } = link.dataset;
      look(Number(at), Number(node), Number(rank));
      resize();
      box.scrollIntoView({ block: "start" });
      canvas.focus({ preventScroll: true });
      say(view.point.row, view.point.at, null);
    });
    link.disabled = false;
  }

  window.addEventListener("resize", resize);
  new ResizeObserver(() => box.clientWidth === painter.width || resize()).observe(box);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    painter.recolour();
    overview.kept = null;
    redraw();
  });
  document.body.classList.add("drawn");
  resize();
}

start();
