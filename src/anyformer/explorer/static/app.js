// The page. Its state is stored in the URL; every change redraws the panels.

import * as address from "./address.js";
import * as api from "./api.js";
import { el } from "./dom.js";
import * as lecture from "./lecture.js";
import { sampleImage, shrink } from "./images.js";
import * as modelList from "./model-list.js";
import { readAudio, sampleTones } from "./audio.js";
import * as uploads from "./uploads.js";
import { byPatch } from "./view-input.js";
import { VIEWS } from "./views.js";

const PARTIAL_DELAY = 800; // milliseconds after which a partially drawn panel is shown
const ORDER = ["first", "second", "third", "fourth"];
const $ = (id) => document.getElementById(id);
let state = { ...address.START };
let list = [];
const known = new Map(); // id -> description of the model
let image = null; // {data: base64, url}
let audio = null; // base64 of a WAV file
let running = null;
let navigation = 0;
let previous = []; // models that were open before a stop that could not be shown

// Change the state; with `quiet`, the caller redraws.
export function set(changes, quiet = false) {
  Object.assign(state, changes);
  address.write(state, !quiet);
  if (!quiet) show();
}

// The request to the server for the n-th panel.
export function question(more, n = 0) {
  const ablate = address.ablatedHeads(state).filter((one) => one.n === n).map(({ stage, layer, part, head }) => ({ stage, layer, part, head }));
  const request = { text: state.text, ablate, ...uploads.request(state), ...more };
  if (state.pair) request.pair = state.pair;
  if (state.target) request.target = state.target;
  if (image) request.image = image.data;
  if (audio) request.audio = audio;
  return request;
}

// The panels.

function openModels() { return state.models.split(",").filter((id) => list.some((one) => one.id === id)).slice(0, modelList.MAX); }

async function describe(id) {
  if (!known.has(id)) known.set(id, await api.describe(id));
  return known.get(id);
}

async function show() {
  running?.abort();
  const current = (running = new AbortController());
  document.body.dataset.busy = "1";
  const stopTimer = setTimeout(() => { $("stop").hidden = current.signal.aborted; }, 1000);
  showStatus("Loading …");
  try {
    await draw(current.signal);
    if (!current.signal.aborted) showStatus("");
  } catch (error) {
    if (error.name !== "AbortError" && !current.signal.aborted) showStatus(error.message, true);
  }
  clearTimeout(stopTimer);
  if (running === current) drawn();
}

function drawn() {
  $("stop").hidden = true;
  delete document.body.dataset.busy;
  document.body.dataset.ready = String(Number(document.body.dataset.ready || 0) + 1);
}

async function draw(signal) {
  const ids = openModels();
  showFrame(ids);
  if (!ids.length) return;
  for (const id of ids) await describe(id);
  if (signal.aborted) return;
  const infos = ids.map((id) => known.get(id));
  showInput(infos);
  showTabs(infos);
  const problem = stopHere() ? lecture.mismatch(stopHere(), state.view, infos) : "";
  if (problem) showLecture(problem);
  if (infos.some((info) => info.images) && !image) image = await sampleImage();
  if (infos.some((info) => info.audio) && !audio) audio = sampleTones();
  showImage();
  const panels = ids.map((id, n) => panel(id, known.get(id), n, signal));
  await placed(panels, signal);
  if (!signal.aborted) highlight(problem);
}

// Show the panels when all of them are drawn, or after PARTIAL_DELAY with the charts that are ready.
async function placed(panels, signal) {
  let done = false;
  const place = () => {
    if (done || signal.aborted) return;
    done = true;
    keepFocus(() => { $("main").replaceChildren(...panels.map((one) => one.box)); $("main").className = panels.length > 1 ? "two" : ""; });
  };
  const early = setTimeout(place, PARTIAL_DELAY);
  try {
    await Promise.all(panels.map((one) => one.drawn));
  } finally {
    clearTimeout(early);
  }
  place();
}

// A panel with the name of the model, and a promise that resolves when its view is drawn.
function panel(id, info, n, signal) {
  const { name } = list.find((one) => one.id === id);
  const box = el("section", { class: "panel", "data-model": id, "aria-label": name });
  const size = `${info.family}, ${(info.parameters / 1e6).toFixed(info.parameters > 1e7 ? 0 : 2)}M parameters`;
  box.append(el("h2", {}, name + " ", el("small", {}, size)));
  const context = { box, info, id, n, state, set, signal,
    question: (more) => question(more, n),
    toggleAblation: (...place) => set({ ablate: address.toggled(state, n, ...place) }),
    isAblated: (...place) => address.isAblated(state, n, ...place),
    ask: (view, more) => api.ask(id, view, question(more, n), signal) };
  return { box, drawn: fill(context) };
}

async function fill(context) {
  const { box, info } = context;
  if (!VIEWS[state.view].applies(info)) return box.append(el("p", {}, `This view does not apply to ${info.family} models.`));
  try {
    await VIEWS[state.view].draw(context);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    box.append(el("p", { class: "bad", role: "alert" }, error.message));
  }
}

// Keep the keyboard focus across a redraw, by the id of the element or by its index in its figure.
function keepFocus(change) {
  const had = document.activeElement;
  const id = had?.id, figure = had?.closest("figure")?.dataset.figure, n = [...document.querySelectorAll(".panel")].indexOf(had?.closest(".panel"));
  const inside = () => [...(document.querySelectorAll(".panel")[n]?.querySelectorAll(`[data-figure="${figure}"] :is(button, select, input, [tabindex])`) ?? [])];
  const at = figure ? inside().indexOf(had) : -1;
  const [x, y] = [scrollX, scrollY];
  change();
  const now = id ? $(id) : at >= 0 ? inside()[at] : null;
  if (now && document.activeElement === document.body) now.focus({ preventScroll: true });
  scrollTo(x, y);
}

// Scroll to the figure that the URL names. A stop whose figure is missing is an error.
function highlight(problem) {
  const drawing = state.see && document.querySelector(`[data-figure*="${CSS.escape(state.see)}"]`);
  if (!drawing && state.see && stopHere() && !problem) throw new Error("These models do not have the figure of this stop; open other models.");
  if (!drawing) return;
  drawing.classList.add("lit");
  drawing.scrollIntoView({ block: "center" });
}

export function showStatus(words, bad = false) {
  $("message").textContent = words;
  $("status").className = bad ? "bad" : "";
}

// The frame around the panels.

function showFrame(ids) {
  $("input").hidden = $("views").hidden = !ids.length;
  keepFocus(() => $("open-models").replaceChildren(...modelList.chips(ids, list, choose)));
  showLecture();
  if (ids.length) return;
  $("ablated").replaceChildren();
  $("main").className = "";
  $("main").replaceChildren(...modelList.page(list, choose));
}

const stopHere = () => lecture.STOPS[state.stop - 1];

function showLecture(problem = "") {
  $("lecture").hidden = !stopHere();
  const close = () => { set({ stop: 0, see: "" }); };
  if (stopHere()) keepFocus(() => $("lecture").replaceChildren(...lecture.bar(state.stop, problem, go, close)));
}

function showTabs(infos) {
  const fitting = Object.entries(VIEWS).filter(([, view]) => infos.some((info) => view.applies(info)));
  if (!fitting.some(([name]) => name === state.view)) set({ view: fitting[0][0] }, true);
  const tab = ([name, view]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, title: view.description, "aria-controls": "main",
    "aria-selected": String(name === state.view), tabindex: name === state.view ? 0 : -1,
    onclick: () => set({ view: name, site: "", top: 0, left: 0, see: "" }) }, view.title);
  keepFocus(() => $("views").replaceChildren(...fitting.map(tab)));
  const here = $(`tab-${state.view}`); // scroll the selected tab into view on narrow screens
  $("views").scrollLeft = here.offsetLeft - $("views").offsetLeft - ($("views").clientWidth - here.offsetWidth) / 2;
  $("main").setAttribute("aria-label", VIEWS[state.view].title);
  $("ablated").replaceChildren(...address.ablatedHeads(state).map(({ n, stage, layer, part, head }) =>
    el("button", { type: "button", title: "Restore this head", onclick: () => set({ ablate: address.toggled(state, n, stage, layer, part, head) }) },
      `ablated: ${n ? `${ORDER[n]}, ` : ""}${stage} ${part} ${layer}.${head} ✕`)));
}

// Arrow keys move between tabs.
function moveTab(event) {
  const tabs = [...$("views").children], at = tabs.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (to === undefined || at < 0) return;
  event.preventDefault();
  const tab = tabs[(to + tabs.length) % tabs.length];
  tab.focus();
  tab.click();
}

function showInput(infos) {
  const text = infos.some((info) => info.text);
  $("text-field").hidden = !text;
  $("pair-field").hidden = !infos.some((info) => info.text_pairs);
  $("target-field").hidden = !infos.some((info) => info.encoder_decoder);
  $("image-field").hidden = !infos.some((info) => info.images);
  $("audio-field").hidden = !infos.some((info) => info.audio);
  $("upload-fields").replaceChildren(...uploads.fields(infos, (changes) => set(changes), showStatus));
  const examples = text ? Object.entries(address.EXAMPLES) : [];
  $("examples").replaceChildren(text ? "Examples: " : "", ...examples.map(([name, sentence]) =>
    el("button", { type: "button", title: sentence, "aria-label": `Example: ${sentence}`, onclick: () => { $("text").value = sentence; submit(); } }, name)));
  for (const name of ["text", "pair", "target"]) if (document.activeElement !== $(name)) $(name).value = state[name];
}

function showImage() {
  $("thumb").hidden = !image;
  if (image) $("thumb").src = image.url;
}

// User actions.

function choose(ids) { set({ models: ids.join(","), ablate: "", site: "", layer: 0, head: "", pos: -1, to: -1, top: 0, left: 0 }); }

function submit() {
  set({ text: $("text").value, pair: $("pair").value, target: $("target").value, pos: -1, to: -1, top: 0, left: 0, step: 0, see: "" });
}

// Go to a stop of the lecture and open models that can show it. A later call cancels an earlier one.
async function go(number, step = true) {
  const stop = lecture.STOPS[number - 1], current = ++navigation;
  if (!stop) return;
  state.stop = number;
  showFrame(openModels());
  try {
    showStatus("Looking for a model …");
    const ids = await lecture.findModels(stop, openModels().length ? openModels() : previous, list, describe);
    const changes = { ...lecture.changes(number), models: ids.join(",") };
    if (stop.word) Object.assign(changes, await positionsOf(ids[0], stop, { text: changes.text }));
    if (stop.patch) Object.assign(changes, await patchOf(ids[0]));
    if (current === navigation) move(changes, step);
  } catch (error) {
    if (current === navigation) refuse(number, error.message, step);
  }
}

function move(changes, step) {
  Object.assign(state, changes);
  address.write(state, step);
  show();
}

// Show an error for a stop that cannot be shown, instead of an unrelated view.
function refuse(number, message, step) {
  running?.abort();
  running = null;
  if (openModels().length) previous = openModels();
  Object.assign(state, lecture.changes(number), { models: "" });
  address.write(state, step);
  showFrame([]);
  $("main").replaceChildren(el("p", { class: "bad", role: "alert" }, message));
  showStatus("");
  drawn();
}

// The positions of a stop's words in the text, and the head in which the first attends most to the second.
async function positionsOf(id, stop, request) {
  const { words } = await api.ask(id, "tokens", request);
  const at = (word) => (Object.values(words)[0] ?? []).findIndex((one) => one.text.trim().toLowerCase() === word);
  const found = { pos: at(stop.word), to: stop.target ? at(stop.target) : -1 };
  if (stop.target && Math.min(found.pos, found.to) < 0) throw new Error(`“${stop.word}” and “${stop.target}” are not tokens of this model; open another model for this stop.`);
  if (!stop.target) return found;
  const { heads: [best] } = await api.ask(id, "find_heads", { ...request, position: found.pos, to: found.to });
  return { ...found, layer: best.layer, head: String(best.head) };
}

async function patchOf(id) {
  image ??= await sampleImage();
  const found = byPatch(await api.ask(id, "input", question()));
  if (!found) throw new Error("The patches of this model are not queries; open another model for this stop.");
  return found;
}

async function takeFile(file) {
  try {
    if (await uploads.store(file, openModels().map((id) => known.get(id)).filter(Boolean))) set({ row: 0, pos: -1 }, true);
    else if (file.type.startsWith("audio/") || /\.(wav|flac|ogg|mp3|m4a)$/i.test(file.name)) audio = await readAudio(file);
    else image = await shrink(file);
    show();
  } catch (error) {
    showStatus(error.message.includes(file.name) ? error.message : "This browser cannot read the file as an image or as audio.", true);
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

function pressed(event) {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "d" && !typing && !event.ctrlKey && !event.metaKey) $("theme").click();
  const turn = { PageDown: 1, PageUp: -1 }[event.key]; // the keys that presenter remotes send
  if (turn && state.stop && !typing) { event.preventDefault(); go(state.stop + turn); }
}

function listen() {
  $("input").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("input").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(); });
  $("views").addEventListener("keydown", moveTab);
  $("stop").addEventListener("click", () => { running?.abort(); $("stop").hidden = true; showStatus("Stopped."); });
  $("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
  $("lecture-button").addEventListener("click", () => go(state.stop || 1));
  $("theme").addEventListener("click", () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); show(); });
  for (const id of ["file", "audio-file"]) $(id).addEventListener("change", async () => { if ($(id).files[0]) await takeFile($(id).files[0]); });
  $("sample").addEventListener("click", async () => { image = await sampleImage(); show(); });
  $("tones").addEventListener("click", () => { audio = sampleTones(); show(); });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", async (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) await takeFile(event.dataTransfer.files[0]); });
  document.addEventListener("keydown", pressed);
  addEventListener("hashchange", () => { state = address.read(); arrive(); });
}

async function begin() {
  setTheme(localStorage.getItem("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  list = await api.models();
  state = address.read();
  if (!state.models && !state.stop && list.length === 1) state.models = list[0].id;
  listen();
  arrive();
}

// The URL may name only a stop: #stop=12.
function arrive() {
  if (stopHere() && !state.models) go(state.stop, false);
  else show();
}

begin().catch((error) => showStatus(error.message, true));
