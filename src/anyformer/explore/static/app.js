// The page: what is chosen lives in the address, and every change of it draws the panels anew.

import * as api from "./api.js";
import { el } from "./dom.js";
import { samplePicture, shrink } from "./pictures.js";
import { readSound, threeTones } from "./sounds.js";
import * as things from "./things.js";
import { VIEWS } from "./views.js";

const EXAMPLES = {
  "it, tired": "The animal didn't cross the street because it was too tired.",
  "it, wide": "The animal didn't cross the street because it was too wide.",
  "EEA": "The agreement on the European Economic Area was signed in August 1992.",
};
const START = { models: "", view: "", text: EXAMPLES["it, tired"], pair: "", target: "", site: "", layer: 0, head: "", pos: -1, top: 0, left: 0, mode: "matrix",
  mute: "", temp: 1, k: 0, p: 1, sample: 0, seed: 0, n: 20, beams: 3, share: 0.75, threshold: 0.5, step: 0, softness: 1, row: 0, axes: "0.1" };

const $ = (id) => document.getElementById(id);
let state = { ...START };
let list = [];
const known = new Map(); // id -> what the model is
let picture = null; // {data: base64, url}
let sound = null; // base64 of a WAV file
let running = null;

// The address.

function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const found = { ...START };
  for (const [name, value] of said) if (name in START) found[name] = typeof START[name] === "number" ? Number(value) : value;
  return found;
}

function writeAddress() {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) if (value !== START[name]) said.set(name, value);
  history.replaceState(null, "", `#${said}`);
}

// Change something; `quiet` leaves the drawing to whoever asks.
export function set(changes, quiet = false) {
  Object.assign(state, changes);
  writeAddress();
  if (!quiet) show();
}

// What is asked of the server.

export function question(more) {
  const asked = { text: state.text, silence: mutes(), ...things.asked(state), ...more };
  if (state.pair) asked.pair = state.pair;
  if (state.target) asked.target = state.target;
  if (picture) asked.picture = picture.data;
  if (sound) asked.sound = sound;
  return asked;
}

export function mutes() {
  return state.mute.split(",").filter(Boolean).map((one) => {
    const [stage, layer, part, head] = one.split(".");
    return { stage, layer: Number(layer), part, head: Number(head) };
  });
}

export function isMuted(stage, layer, part, head) { return state.mute.split(",").includes(`${stage}.${layer}.${part}.${head}`); }

export function toggleMute(stage, layer, part, head) {
  const name = `${stage}.${layer}.${part}.${head}`;
  const all = state.mute.split(",").filter(Boolean);
  set({ mute: (all.includes(name) ? all.filter((one) => one !== name) : [...all, name]).join(",") });
}

// The panels.

function chosen() { return state.models.split(",").filter((id) => list.some((one) => one.id === id)); }

async function show() {
  running?.abort();
  const mine = (running = new AbortController());
  const ids = chosen();
  if (!ids.length) return showList();
  say("Looking …");
  try {
    for (const id of ids) if (!known.has(id)) known.set(id, await api.describe(id));
    if (mine.signal.aborted) return;
    const infos = ids.map((id) => known.get(id));
    showInput(infos);
    showTabs(infos);
    if (infos.some((info) => info.pictures) && !picture) picture = await samplePicture();
    if (infos.some((info) => info.sounds) && !sound) sound = threeTones();
    showPicture();
    const panels = await Promise.all(ids.map((id, n) => panel(id, known.get(id), n, mine.signal)));
    if (mine.signal.aborted) return;
    keepFocus(() => { $("main").replaceChildren(...panels); $("main").className = ids.length > 1 ? "two" : ""; });
    say("");
  } catch (error) {
    if (error.name !== "AbortError" && !mine.signal.aborted) say(error.message, true);
  }
  document.body.dataset.ready = mine.signal.aborted ? "" : String(Number(document.body.dataset.ready || 0) + 1);
}

async function panel(id, info, n, signal) {
  const box = el("section", { class: "panel", "data-model": id, "aria-label": list.find((one) => one.id === id).name });
  const size = `${info.family}, ${(info.parameters / 1e6).toFixed(info.parameters > 1e7 ? 0 : 2)}M parameters`;
  box.append(el("h2", {}, list.find((one) => one.id === id).name + " ", el("small", {}, size)));
  const context = { box, info, id, n, state, set, question, signal, toggleMute, isMuted,
    ask: (view, more) => api.ask(id, view, question(more), signal) };
  if (!VIEWS[state.view].fits(info)) {
    box.append(el("p", {}, `This view is not for a ${info.family} model.`));
    return box;
  }
  try {
    await VIEWS[state.view].draw(context);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    box.append(el("p", { class: "bad", role: "alert" }, error.message));
  }
  return box;
}

function keepFocus(change) {
  const id = document.activeElement?.id;
  const [x, y] = [scrollX, scrollY];
  change();
  if (id && $(id) && document.activeElement === document.body) $(id).focus();
  scrollTo(x, y);
}

export function say(words, bad = false) {
  $("status").textContent = words;
  $("status").className = bad ? "bad" : "";
}

function showTabs(infos) {
  const fitting = Object.entries(VIEWS).filter(([, view]) => infos.some((info) => view.fits(info)));
  if (!fitting.some(([name]) => name === state.view)) set({ view: fitting[0][0] }, true);
  keepFocus(() => $("views").replaceChildren(...fitting.map(([name, view]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, title: view.about,
    "aria-selected": String(name === state.view), onclick: () => set({ view: name, site: "", top: 0, left: 0 }) }, view.title))));
  $("muted").replaceChildren(...mutes().map((one) => el("button", { type: "button", title: "Let it speak again", onclick: () => toggleMute(one.stage, one.layer, one.part, one.head) },
    `silenced: ${one.stage} ${one.part} ${one.layer}.${one.head} ✕`)));
}

function showInput(infos) {
  const text = infos.some((info) => info.text);
  $("text-field").hidden = !text;
  $("pair-field").hidden = !infos.some((info) => info.pairs);
  $("target-field").hidden = !infos.some((info) => info.writes);
  $("picture-field").hidden = !infos.some((info) => info.pictures);
  $("sound-field").hidden = !infos.some((info) => info.sounds);
  $("thing-field").replaceChildren(...things.fields(infos, (changes) => set(changes), say));
  const examples = text ? Object.entries(EXAMPLES) : [];
  $("examples").replaceChildren(...examples.map(([name, sentence]) => el("button", { type: "button", title: sentence, onclick: () => { $("text").value = sentence; submit(); } }, name)));
  for (const name of ["text", "pair", "target"]) if (document.activeElement !== $(name)) $(name).value = state[name];
}

function showPicture() {
  $("thumb").hidden = !picture;
  if (picture) $("thumb").src = picture.url;
}

function showList() {
  $("input").hidden = true;
  say(list.length ? "" : "No models were found here. Start with: anyformer explore --model DIR");
  $("main").replaceChildren(el("section", { class: "panel" }, el("h2", {}, "Models at hand"),
    el("div", { class: "chips" }, list.map((one) => el("button", { type: "button", class: "chip", onclick: () => choose(one.id, "") }, one.name)))));
  document.body.dataset.ready = String(Number(document.body.dataset.ready || 0) + 1);
}

function choose(first, second) {
  $("input").hidden = false;
  set({ models: [first, second].filter(Boolean).join(","), mute: "", site: "", layer: 0, head: "", pos: -1 });
  fillSelects();
}

function fillSelects() {
  const [first, second] = chosen();
  const options = (none) => [el("option", { value: "" }, none), ...list.map((one) => el("option", { value: one.id }, one.name))];
  $("first").replaceChildren(...options("choose …"));
  $("second").replaceChildren(...options("nothing"));
  $("first").value = first || "";
  $("second").value = second || "";
}

function submit() {
  set({ text: $("text").value, pair: $("pair").value, target: $("target").value, pos: -1, top: 0, left: 0, step: 0 });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

async function begin() {
  setTheme(localStorage.getItem("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  list = await api.models();
  state = readAddress();
  if (!state.models && list.length === 1) state.models = list[0].id;
  fillSelects();
  $("input").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("input").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(); });
  $("first").addEventListener("change", () => choose($("first").value, $("second").value));
  $("second").addEventListener("change", () => choose($("first").value, $("second").value));
  $("theme").addEventListener("click", () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); show(); });
  $("file").addEventListener("change", async () => { if ($("file").files[0]) await takeFile($("file").files[0]); });
  $("sample").addEventListener("click", async () => { picture = await samplePicture(); show(); });
  $("sound-file").addEventListener("change", async () => { if ($("sound-file").files[0]) await takeFile($("sound-file").files[0]); });
  $("tones").addEventListener("click", () => { sound = threeTones(); show(); });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", async (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) await takeFile(event.dataTransfer.files[0]); });
  document.addEventListener("keydown", (event) => { if (event.key === "d" && event.target === document.body) $("theme").click(); });
  addEventListener("hashchange", () => { state = readAddress(); fillSelects(); show(); });
  show();
}

async function takeFile(file) {
  try {
    if (await things.take(file, [...known.values()])) set({ row: 0, pos: -1 }, true);
    else if (file.type.startsWith("audio/")) sound = await readSound(file);
    else picture = await shrink(file);
    show();
  } catch (error) {
    say(error.message.includes(file.name) ? error.message : "That file is neither a picture nor a sound that this browser can read.", true);
  }
}

begin().catch((error) => say(error.message, true));
