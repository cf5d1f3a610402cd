// Step-by-step generation with the key/value cache, and beam search as a tree.

import { bytes, choice, el, number, short, slider, svg, visible } from "./dom.js";
import { bars, blue, figure, ink, sheet, soft, text, warm } from "./draw.js";

const MAX_TREE_STEPS = 12; // steps of the beam search tree
const STEP_MILLISECONDS = 900; // milliseconds per token during playback

export async function generation(context) {
  const { state, set, box, n } = context;
  const some = (numbers) => numbers.map((one) => [one, one]);
  box.append(el("div", { class: "controls" },
    choice("Decoding", `sample-${n}`, [["0", "greedy"], ["1", "sampling"]], String(state.sample), (value) => set({ sample: Number(value) })),
    choice("New tokens", `new-${n}`, some([5, 10, 20, 40, 80]), state.n, (value) => set({ n: Number(value) })),
    choice("Beams", `beams-${n}`, some([2, 3, 4, 5]), state.beams, (value) => set({ beams: Number(value) })),
    state.sample ? el("button", { type: "button", onclick: () => set({ seed: state.seed + 1 }) }, "Sample again") : ""));
  const sampling = { temperature: state.temp, top_k: state.k, top_p: state.p, sample: Boolean(state.sample), seed: state.seed };
  const got = await context.ask("generation", { new_tokens: state.n, ...sampling });
  written(context, got);
  const tree = await context.ask("beams", { beams: state.beams, new_tokens: Math.min(state.n, MAX_TREE_STEPS) });
  const title = `Beam search with ${tree.beams} beams: best sequence "${tree.result.map(visible).join(" ")}", score ${number(tree.score)}`;
  box.append(figure(title, drawTree(tree), tree,
    el("p", {}, "Scores are summed log-probabilities. Lines connect each kept beam to its continuations. Dropped candidates are pale, ■ marks the end of a sequence, and the best sequence is bold.")));
}

function written(context, got) {
  const holder = el("div", {}), last = got.steps.length - 1, n = context.n;
  let at = Math.min(context.state.step, last), timer = null;
  const moving = slider("Step", `step-${n}`, { min: 0, max: last, step: 1, value: at, show: (x) => String(x + 1) }, (value) => draw(value));
  const input = moving.querySelector("input");
  const move = (to) => { input.value = to; input.dispatchEvent(new Event("input")); };
  const draw = (to) => {
    at = to;
    context.set({ step: at }, true);
    holder.replaceChildren(...oneStep(got, at));
  };
  const halt = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  const tick = () => { if (at < last && play.isConnected) move(at + 1); else halt(); };
  const play = el("button", { type: "button", id: `play-${n}`, onclick: () => {
    if (timer) return halt();
    if (at >= last) move(0);
    timer = setInterval(tick, STEP_MILLISECONDS);
    play.textContent = "Pause";
  } }, "Play");
  const one = el("button", { type: "button", id: `one-${n}`, onclick: () => move(Math.min(at + 1, last)) }, "Next token");
  context.box.append(el("div", { class: "controls" }, moving, one, play), holder);
  draw(at);
}

function oneStep(got, n) {
  const at = got.steps[n];
  const generated = got.steps.slice(0, n + 1).map((one, i) =>
    el("span", { class: i === n ? "chip new" : "chip" }, visible(one.text), el("small", {}, number(one.probability, 3))));
  const chips = [...got.read.slice(-60).map((word) => el("span", { class: "chip" }, visible(word))), ...generated];
  return [
    figure(`Step ${n + 1} of ${got.steps.length}`, el("div", { class: "chips" }, chips), got),
    figure("Candidates at this step",
      bars({ names: at.best.map((one) => one.text), values: at.best.map((one) => one.probability), scale: 1, digits: 4, label: "candidates" }), at.best),
    figure("Key/value cache", cache(got, n), got.steps.map((one) => one.cache),
      el("p", { class: "cache" }, `${at.cache.tokens} tokens cached, ${bytes(at.cache.bytes)}`)),
  ];
}

// One column per cached token; tokens that are not cached yet are pale.
function cache(got, n) {
  const first = got.steps[0].cache.tokens, all = first + got.steps.length - 1, now = got.steps[n].cache.tokens;
  const wide = Math.max(2, Math.min(26, 760 / all)), high = 34;
  const names = [...got.read.slice(-first), ...got.steps.map((one) => one.text)];
  const drawing = sheet(30 + wide * all + 40, 2 * high + 74, `${now} of ${all} cache columns are filled`);
  drawing.append(text(0, high - 10, "keys"), text(0, 2 * high - 6, "values"));
  for (let i = 0; i < all; i++) {
    const shade = { fill: i === now - 1 && n ? warm() : i < first ? soft() : blue(), "fill-opacity": i < now ? 0.9 : 0.12 };
    const x = 44 + i * wide;
    for (const y of [4, 6 + high]) drawing.append(svg("rect", { x, y, width: wide - 1, height: high, ...shade }));
    if (wide < 12 || names.length < all) continue; // no room for names
    const turn = `translate(${x + wide / 2},${2 * high + 18}) rotate(50)`;
    drawing.append(text(0, 0, short(names[i], 9), { transform: turn, "fill-opacity": i < now ? 1 : 0.35 }));
  }
  return drawing;
}

// Levels from left to right, each as wide as its longest token.
function drawTree(tree) {
  const step = 20, label = (one) => `${short(one.text, 12)} ${one.score.toFixed(2)}${one.ended ? " ■" : ""}`;
  const widths = tree.levels.map((level) => 6.4 * Math.max(...level.map((one) => label(one).length)) + 46);
  const max = Math.max(...tree.levels.map((level) => level.length));
  const drawing = sheet(60 + widths.reduce((a, b) => a + b, 0), max * step + 24, "beam search");
  let before = new Map([[0, [36, 20]]]), path = new Set([0]), left = 66; // path: the beams of the best sequence so far
  drawing.append(text(2, 20, "start", { fill: soft() }));
  tree.levels.forEach((level, n) => {
    const now = new Map(), best = level.filter((one) => path.has(one.from) && one.id === tree.ids[n]);
    level.forEach((one, i) => {
      const y = 20 + i * step, kept = one.beam !== null || one.ended, from = before.get(one.from);
      const line = kept ? { stroke: blue(), "stroke-opacity": 0.9, "stroke-width": 1.6 } : { stroke: soft(), "stroke-opacity": 0.2, "stroke-width": 1 };
      if (from) drawing.append(svg("line", { x1: from[0], y1: from[1] - 4, x2: left - 4, y2: y - 4, ...line }));
      const bold = best.includes(one) ? { "font-weight": 700, class: "candidate best" } : { class: "candidate" };
      drawing.append(text(left, y, label(one), { fill: kept ? ink() : soft(), "fill-opacity": kept ? 1 : 0.6, ...bold }));
      if (one.beam !== null) now.set(one.beam, [left + 6.4 * label(one).length + 4, y]);
    });
    before = now;
    path = new Set(best.map((one) => one.beam));
    left += widths[n];
  });
  return drawing;
}
