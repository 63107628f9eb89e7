// What the page holds, decoded: nodes with their spans, rounds with the milestones of each rank,
// and marks. All times are milliseconds since the beginning of the job.
"use strict";

const NONE = 255; // the class of times in which a node had no launcher

// Running sums of differences.
function summed(deltas, from = 0) {
  const out = new Float64Array(deltas.length);
  let value = from;
  for (let i = 0; i < deltas.length; i++) out[i] = value += deltas[i];
  return out;
}

// The same for columns with gaps: null stays null and does not count.
function summedWithGaps(deltas, from) {
  let value = from;
  return deltas.map((delta) => (delta === null ? null : (value += delta)));
}

// [first, count, first, count, ...] to a list of ranks.
function spread(ranges) {
  const ranks = [];
  for (let i = 0; i < ranges.length; i += 2) {
    for (let k = 0; k < ranges[i + 1]; k++) ranks.push(ranges[i] + k);
  }
  return ranks;
}

// The index of the first value that is greater than x; values ascend.
function after(values, x) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

function decodeRounds(raw, lists, begin) {
  const at = summed(raw.at, begin);
  return {
    number: raw.number,
    at,
    until: at.map((start, i) => start + raw.length[i]),
    spawned: raw.spawned.map((ms, i) => (ms === null ? null : at[i] + ms)),
    first: raw.first,
    last: raw.last,
    ranks: raw.ranks.map((index) => lists[index]),
    how: raw.how,
    raw, // milestones of ranks are decoded when they are first looked at
    marks: new Array(at.length).fill(null),
  };
}

// When each rank of round i passed its milestones: columns in the order of the round's ranks.
function milestones(rounds, i) {
  if (rounds.marks[i] === null) {
    const column = (name) => summedWithGaps(rounds.raw[name][i], rounds.at[i]);
    rounds.marks[i] = {
      line: column("line"), ready: column("ready"), step: column("step"), end: column("end"),
    };
  }
  return rounds.marks[i];
}

function decodeNode(raw, lists) {
  const ends = summed(raw.lengths, raw.from);
  return {
    name: raw.name, from: raw.from, classes: Uint8Array.from(raw.classes), ends,
    rounds: decodeRounds(raw.rounds, lists, 0),
    ranks: spread(raw.all),
    marks: [],
  };
}

function decode(raw) {
  const lists = raw.lists.map(spread);
  const nodes = raw.nodes.map((one) => decodeNode(one, lists));
  const at = summed(raw.marks.at);
  const marks = Array.from(at, (ms, i) => ({
    at: ms, kind: raw.kinds[raw.marks.kind[i]], node: raw.marks.node[i],
    rank: raw.marks.rank[i], text: raw.text[raw.marks.text[i]],
  }));
  for (const mark of marks) if (mark.node >= 0) nodes[mark.node].marks.push(mark);
  const classes = raw.classes;
  const starting = classes.map((one) => raw.starting.includes(one));
  const working = classes.map((one) => raw.working.includes(one));
  return {
    length: Math.max(1, raw.length), text: raw.text, classes, nodes, marks,
    detailed: raw.detailed_from, // milestones of ranks before are not in the page
    starting, working, class: Object.fromEntries(classes.map((name, i) => [name, i])),
    rounds: {
      number: raw.rounds.number, at: summed(raw.rounds.at), until: raw.rounds.until,
      outcome: raw.rounds.outcome,
    },
  };
}

// Calls visit(class, from, to) for what the node did between two moments, in order.
function visitNode(node, low, high, visit) {
  for (let i = after(node.ends, low); i < node.ends.length; i++) {
    const from = i ? node.ends[i - 1] : node.from;
    if (from >= high) return;
    if (node.classes[i] !== NONE) visit(node.classes[i], from, node.ends[i]);
  }
}

// The same for one rank: its own milestones, then what the node did, until the rank ended.
function visitRank(model, node, rank, low, high, visit) {
  const { rounds } = node;
  const first = Math.max(0, after(rounds.at, low) - 1);
  for (let i = first; i < rounds.at.length && rounds.at[i] < high; i++) {
    const place = rounds.ranks[i].indexOf(rank);
    if (place >= 0) visitRankRound(model, node, i, place, visit);
  }
}

const AS_NODE = -1; // a rank without a process of its own: the template imports for it, say
const WORKS = -2; // it has begun its first step

function visitRankRound(model, node, i, place, visit) {
  const { rounds } = node;
  const times = milestones(rounds, i);
  const until = rounds.until[i];
  const ended = times.end[place] ?? until; // columns of which nothing is known are empty
  const names = ["spawn", "import", "initialise", "load"];
  const passed = [rounds.spawned[i], times.line[place], times.ready[place], times.step[place]];
  let now = rounds.at[i];
  let stage = AS_NODE; // what the rank is at from `now` on
  passed.forEach((moment, k) => {
    if (moment === null || moment === undefined) return;
    if (moment > now && k > 0) visit(model.class[names[k]], now, moment);
    if (k === 0) visitNode(node, now, moment, (what, from, to) =>
      visit(what, Math.max(from, now), Math.min(to, moment)));
    now = Math.max(now, moment);
    stage = k < 3 ? model.class[names[k + 1]] : WORKS;
  });
  let work = null; // steps begin before the last rank of the node is ready: the same kind of work
  for (let k = after(node.ends, now); k < node.ends.length && now < Math.min(ended, until); k++) {
    let what = node.classes[k];
    if (stage === WORKS && model.starting[what]) what = work ??= workAfter(model, node, k);
    else if (stage >= 0 && (model.starting[what] || model.working[what])) what = stage;
    const to = Math.min(node.ends[k], ended, until);
    visit(what, now, to);
    now = to;
  }
  const next = i + 1 < rounds.at.length ? rounds.at[i + 1] : node.ends[node.ends.length - 1];
  visitNode(node, now, next, (_, from, to) => // as long as the node has a launcher
    visit(model.class.idle, Math.max(from, now), Math.min(to, next)));
}

function workAfter(model, node, from) {
  for (let k = from; k < node.ends.length; k++) {
    if (model.working[node.classes[k]]) return node.classes[k];
    if (!model.starting[node.classes[k]]) break;
  }
  return model.class.load;
}
