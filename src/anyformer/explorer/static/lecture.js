// The attention lecture as a walk: every stop is a view with a sentence, on models that can show it.
//
// The stops are data (stops.json), which the lectures and the tests read too: `items` of the lectures that it shows;
// `needs`: one kind of model for each panel; `word`: the token that is chosen; `target`: the head is taken in which the
// word looks most at that one; `patch`: the patch in the middle asks; `see`: the drawing that is scrolled to.

import { EXAMPLES } from "./address.js";
import { el } from "./dom.js";

// What a stop can ask of a model: `hint` at those to open first, `best` before the others; `or`: what does as well.

const reads = { says: "a model that reads text, with attention", hint: /embed|bert|minilm/, fits: (info) => info.text && info.attends };
const both = { says: "a model that sees its text both ways", hint: /embed|bert|minilm|fill-mask|classify-text/, fits: (info) => info.text && info.attends && !info.continues && !info.writes, or: reads };
const speaks = { says: "a model that says what comes next", hint: /generate|gpt|llama|smol|stor/, fits: (info) => info.continues && info.words };
const causal = { says: "a decoder", hint: /generate|gpt|llama|smol/, fits: (info) => info.continues && info.attends };
const pair = { says: "an encoder-decoder", hint: /translate|transformer|t5|pair/, best: /en-fr/, fits: (info) => info.text && info.writes && info.crosses && !info.recurs };
const recurrent = { says: "a recurrent encoder-decoder with attention", hint: /bahdanau|luong|recurrent|rnn/,
  make: "anyformer train translate --recipe bahdanau-small --data PAIRS.tsv --out bahdanau makes one.",
  fits: (info) => info.text && info.writes && info.crosses && info.recurs };
const looks = { says: "a model that looks at images", hint: /classify-image|vit|cifar/, fits: (info) => info.pictures && info.patches && info.attends && !info.hides };
const NEEDS = { reads, both, speaks, causal, pair, recurrent, looks };

const answer = await fetch("stops.json");
export const STOPS = answer.ok ? await answer.json() : [];

const TRIED = 12; // models that are opened in search of one that fits
const KEPT = ["view", "text", "see", "mode", "layer", "head", "softness", "pad", "temp", "k", "n"];
const PLAIN = { raw: 0, see: "", mode: "matrix", layer: 0, head: "", softness: 1, pad: 0, temp: 1, k: 0, p: 1, n: 20, side: "right", site: "", pos: -1, to: -1, top: 0, left: 0, step: 0, mute: "", pair: "", target: "" };

// What a stop sets: its view and the state that goes with it.
export function changes(number) {
  const stop = STOPS[number - 1];
  const said = Object.fromEntries(KEPT.filter((name) => name in stop).map((name) => [name, stop[name]]));
  return { ...PLAIN, text: EXAMPLES[stop.example ?? "it, tired"], ...said, stop: number };
}

// Models for a stop: those that are open where they fit, else the first that do. `describe` opens one, so few are tried.
export async function cast(stop, open, list, describe) {
  const found = [];
  for (const need of stop.needs.map((name) => NEEDS[name])) {
    const rest = list.filter((one) => !open.includes(one.id)).sort((a, b) => likely(b, need) - likely(a, need));
    const ids = [...open, ...rest.slice(0, TRIED).map((one) => one.id)].filter((id) => !found.includes(id));
    const here = (await first(ids, need, describe)) || (need.or && (await first(ids, need.or, describe)));
    if (!here) throw new Error(`This stop takes ${need.says}, and there is none here.${need.make ? ` ${need.make}` : ""}`);
    found.push(here);
  }
  return found;
}

async function first(ids, need, describe) {
  for (const id of ids) if (need.fits(await describe(id))) return id;
  return null;
}

// By its task, family and name, before it is opened.
function likely(one, need) {
  const about = `${one.task || ""} ${one.family || ""} ${one.name}`.toLowerCase();
  return Number(need.hint.test(about)) + Number(need.best?.test(about) ?? false);
}

// Why the page does not show what the stop says; empty where it does. People may look around from a stop.
export function astray(stop, view, infos) {
  if (view !== stop.view) return "This is another view than that of this stop.";
  const kinds = stop.needs.map((name) => NEEDS[name]);
  const fit = (need, info) => need.fits(info) || need.or?.fits(info);
  if (infos.length !== kinds.length || !kinds.every((need, n) => fit(need, infos[n]))) return `This stop takes ${kinds.map((need) => need.says).join(", and beside it ")}; other models are open.`;
  return "";
}

// The bar: back, the stops, on; the sentence of the stop, or a button back to it.
export function bar(number, lost, go, close) {
  const stop = STOPS[number - 1];
  const list = el("select", { id: "stops", "aria-label": "Stops of the lecture", onchange: () => go(Number(list.value)) },
    STOPS.map((one, i) => el("option", { value: i + 1 }, `${i + 1}. ${one.title}`)));
  list.value = number;
  return [
    el("div", { class: "row" },
      el("button", { type: "button", id: "back", disabled: number <= 1, "aria-label": "Stop before", onclick: () => go(number - 1) }, "◀"),
      list,
      el("button", { type: "button", id: "on", disabled: number >= STOPS.length, "aria-label": "Next stop", onclick: () => go(number + 1) }, "▶"),
      el("span", { class: "of" }, `${number} of ${STOPS.length}`),
      el("button", { type: "button", id: "leave", "aria-label": "Leave the lecture", onclick: close }, "✕")),
    el("p", { id: "said" }, lost || stop.say, " ", lost ? el("button", { type: "button", id: "again", onclick: () => go(number) }, "Back to the stop") : items(stop)),
  ];
}

function items({ items: ids }) {
  if (!ids.length) return el("small", { class: "items" }, "on no slide");
  return el("small", { class: "items", title: `python -m lectures ${ids[0]}` }, `lecture ${ids.length > 1 ? "items" : "item"} ${ids.join(", ")}`);
}
