// What a moment in a row means, in words.
"use strict";

// The span of a row at a moment: {what, from, to}, or null.
function spanAt(painter, row, at) {
  let found = null;
  painter.visit(row, at, at + 1, (what, from, to) => {
    if (from <= at && at < to) found = { what, from, to };
  });
  return found;
}

// The mark nearest to a moment, at most `reach` milliseconds away; failures first.
function markAt(model, node, rank, at, reach) {
  let best = null;
  let least = Infinity;
  for (const mark of model.nodes[node].marks) {
    if (rank >= 0 && mark.rank !== rank) continue;
    const away = Math.abs(mark.at - at);
    const weighed = FAILURES.includes(mark.kind) ? away / 4 : away;
    if (away <= reach && weighed < least) {
      best = mark;
      least = weighed;
    }
  }
  return best;
}

// Lines of text about a point; the first is a heading.
function describe(model, view, painter, row, at) {
  const { node, rank } = view.rows[row];
  const one = model.nodes[node];
  const lines = [rank < 0 ? one.name || "a node without a name" : `rank ${rank} on ${one.name}`];
  const span = spanAt(painter, row, at);
  if (span) {
    const when = `${clock(span.from, 1)} to ${clock(span.to, 1)}`;
    lines.push(`${model.classes[span.what]}: ${duration(span.to - span.from)} (${when})`);
  } else {
    lines.push("no launcher ran here");
  }
  lines.push(...aboutRound(model, one, rank, at));
  const mark = markAt(model, node, rank, at, 8 * view.perPixel);
  if (mark) {
    lines.push(`${mark.kind} at ${clock(mark.at, 1)}: ${mark.text}`);
  }
  return lines;
}

function aboutRound(model, node, rank, at) {
  const { rounds } = node;
  const i = after(rounds.at, at) - 1;
  if (i < 0) return [];
  const steps = rounds.last[i] === null ? "" : `, iterations ${rounds.first[i]} to ${rounds.last[i]}`;
  const lines = [`round ${rounds.number[i]}${steps}`];
  if (rank < 0) {
    lines.push(rangeOf(rounds.ranks[i]));
    return lines;
  }
  if (rounds.at[i] < model.detailed) {
    lines.push("of this round, only what the whole node did is known here");
  }
  const place = rounds.ranks[i].indexOf(rank);
  if (place >= 0 && rounds.how[i][place]) {
    const end = milestones(rounds, i).end[place];
    lines.push(`its process ended at ${clock(end, 1)}: ${model.text[rounds.how[i][place] - 1]}`);
  }
  return lines;
}

function rangeOf(ranks) {
  if (ranks.length === 0) return "no rank";
  const low = Math.min(...ranks);
  const high = Math.max(...ranks);
  if (ranks.length === 1) return `rank ${low}`;
  return high - low + 1 === ranks.length ? `ranks ${low} to ${high}` : `${ranks.length} ranks`;
}
