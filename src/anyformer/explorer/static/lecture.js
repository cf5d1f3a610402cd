// The attention lecture: a sequence of stops, each a view with an explanation, on models that can show it.
//
// The stops are stored in stops.json, which the lectures and the tests also read. `items`: the lecture items shown;
// `needs`: a kind of model for each panel; `word`: the selected token; `target`: select the head in which the word
// attends most to this token; `patch`: select the middle patch; `see`: the figure to scroll to; `caption`: the text.

import { EXAMPLES } from "./address.js";
import { el } from "./dom.js";

// Kinds of models. `hint`: names of models to try first; `best`: names to try before these; `or`: an alternative kind.

const text = { label: "a text model with attention", hint: /embed|bert|minilm/, matches: (info) => info.text && info.attention };
const bidirectional = { label: "a bidirectional text encoder", hint: /embed|bert|minilm|fill-mask|classify-text/, matches: (info) => info.text && info.attention && !info.decoder_only && !info.encoder_decoder, or: text };
const language = { label: "a language model", hint: /generate|gpt|llama|smol|stor/, matches: (info) => info.decoder_only && info.language_head };
const causal = { label: "a decoder", hint: /generate|gpt|llama|smol/, matches: (info) => info.decoder_only && info.attention };
const pair = { label: "an encoder-decoder", hint: /translate|transformer|t5|pair/, best: /en-fr/, matches: (info) => info.text && info.encoder_decoder && info.cross_attention && !info.recurrent };
const recurrent = { label: "a recurrent encoder-decoder with attention", hint: /bahdanau|luong|recurrent|rnn/,
  make: "To train one: anyformer train translate --recipe bahdanau-small --data pairs.tsv --out bahdanau",
  matches: (info) => info.text && info.encoder_decoder && info.cross_attention && info.recurrent };
const vision = { label: "a vision transformer with patches", hint: /classify-image|vit|cifar/, matches: (info) => info.images && info.patches && info.attention && !info.reconstruction };
const NEEDS = { text, bidirectional, language, causal, pair, recurrent, vision };

const answer = await fetch("stops.json");
export const STOPS = answer.ok ? await answer.json() : [];

const MAX_TRIED = 12; // models that are opened to find one that matches
const STATE_KEYS = ["view", "text", "see", "mode", "layer", "head", "softmaxTemperature", "pad", "temp", "k", "n"];
const DEFAULTS = { raw: 0, see: "", mode: "matrix", layer: 0, head: "", softmaxTemperature: 1, pad: 0, temp: 1, k: 0, p: 1, n: 20, side: "right", site: "", pos: -1, to: -1, top: 0, left: 0, step: 0, ablate: "", pair: "", target: "" };

// The page state of a stop.
export function changes(number) {
  const stop = STOPS[number - 1];
  const values = Object.fromEntries(STATE_KEYS.filter((name) => name in stop).map((name) => [name, stop[name]]));
  return { ...DEFAULTS, text: EXAMPLES[stop.example ?? "it, tired"], ...values, stop: number };
}

// Choose models for a stop: open models if they fit, else the first models of the list that fit. `describe` loads a model,
// so only a few are tried.
export async function findModels(stop, open, list, describe) {
  const found = [];
  for (const need of stop.needs.map((name) => NEEDS[name])) {
    const rest = list.filter((one) => !open.includes(one.id)).sort((a, b) => likely(b, need) - likely(a, need));
    const ids = [...open, ...rest.slice(0, MAX_TRIED).map((one) => one.id)].filter((id) => !found.includes(id));
    const here = (await first(ids, need, describe)) || (need.or && (await first(ids, need.or, describe)));
    if (!here) throw new Error(`This stop needs ${need.label}, and none was found.${need.make ? ` ${need.make}` : ""}`);
    found.push(here);
  }
  return found;
}

async function first(ids, need, describe) {
  for (const id of ids) if (need.matches(await describe(id))) return id;
  return null;
}

// A score from the task, family and name, before the model is loaded.
function likely(one, need) {
  const text = `${one.task || ""} ${one.family || ""} ${one.name}`.toLowerCase();
  return Number(need.hint.test(text)) + Number(need.best?.test(text) ?? false);
}

// Why the page does not show the current stop; empty if it does. Users may change the view or the models at any stop.
export function mismatch(stop, view, infos) {
  if (view !== stop.view) return "The selected view does not belong to this stop.";
  const kinds = stop.needs.map((name) => NEEDS[name]);
  const fit = (need, info) => need.matches(info) || need.or?.matches(info);
  if (infos.length !== kinds.length || !kinds.every((need, n) => fit(need, infos[n]))) return `This stop needs ${kinds.map((need) => need.label).join(" and ")}; other models are open.`;
  return "";
}

// The lecture bar: previous, list of stops, next; then the caption of the stop, or a button that returns to it.
export function bar(number, problem, go, close) {
  const stop = STOPS[number - 1];
  const list = el("select", { id: "stops", "aria-label": "Stops of the lecture", onchange: () => go(Number(list.value)) },
    STOPS.map((one, i) => el("option", { value: i + 1 }, `${i + 1}. ${one.title}`)));
  list.value = number;
  return [
    el("div", { class: "row" },
      el("button", { type: "button", id: "back", disabled: number <= 1, "aria-label": "Previous stop", onclick: () => go(number - 1) }, "◀"),
      list,
      el("button", { type: "button", id: "on", disabled: number >= STOPS.length, "aria-label": "Next stop", onclick: () => go(number + 1) }, "▶"),
      el("span", { class: "of" }, `${number} of ${STOPS.length}`),
      el("button", { type: "button", id: "leave", "aria-label": "Leave the lecture", onclick: close }, "✕")),
    el("p", { id: "caption" }, problem || stop.caption, " ", problem ? el("button", { type: "button", id: "again", onclick: () => go(number) }, "Return to the stop") : items(stop)),
  ];
}

function items({ items: ids }) {
  if (!ids.length) return el("small", { class: "items" }, "on no slide");
  return el("small", { class: "items", title: `python -m lectures ${ids[0]}` }, `lecture ${ids.length > 1 ? "items" : "item"} ${ids.join(", ")}`);
}
