// The page: what is chosen lives in the address, and every change of it draws the panels anew.

import * as address from "./address.js";
import * as api from "./api.js";
import { el } from "./dom.js";
import * as lecture from "./lecture.js";
import { samplePicture, shrink } from "./pictures.js";
import * as shelf from "./shelf.js";
import { readSound, threeTones } from "./sounds.js";
import * as things from "./things.js";
import { byPatch } from "./view-over.js";
import { VIEWS } from "./views.js";

const EARLY = 800; // milliseconds after which a panel is shown half drawn
const ORDER = ["first", "second", "third", "fourth"];
const $ = (id) => document.getElementById(id);
let state = { ...address.START };
let list = [];
const known = new Map(); // id -> what the model is
let picture = null; // {data: base64, url}
let sound = null; // base64 of a WAV file
let running = null;
let walking = 0;
let left = []; // models that were open before a stop that could not be shown

// Change something; `quiet` leaves the drawing to whoever asks.
export function set(changes, quiet = false) {
  Object.assign(state, changes);
  address.write(state, !quiet);
  if (!quiet) show();
}

// What is asked of the server, for the n-th panel.
export function question(more, n = 0) {
  const silence = address.mutes(state).filter((one) => one.n === n).map(({ stage, layer, part, head }) => ({ stage, layer, part, head }));
  const asked = { text: state.text, silence, ...things.asked(state), ...more };
  if (state.pair) asked.pair = state.pair;
  if (state.target) asked.target = state.target;
  if (picture) asked.picture = picture.data;
  if (sound) asked.sound = sound;
  return asked;
}

// The panels.

function chosen() { return state.models.split(",").filter((id) => list.some((one) => one.id === id)).slice(0, shelf.MOST); }

async function describe(id) {
  if (!known.has(id)) known.set(id, await api.describe(id));
  return known.get(id);
}

async function show() {
  running?.abort();
  const mine = (running = new AbortController());
  document.body.dataset.busy = "1";
  const patience = setTimeout(() => { $("stop").hidden = mine.signal.aborted; }, 1000);
  say("Looking …");
  try {
    await draw(mine.signal);
    if (!mine.signal.aborted) say("");
  } catch (error) {
    if (error.name !== "AbortError" && !mine.signal.aborted) say(error.message, true);
  }
  clearTimeout(patience);
  if (running === mine) drawn();
}

function drawn() {
  $("stop").hidden = true;
  delete document.body.dataset.busy;
  document.body.dataset.ready = String(Number(document.body.dataset.ready || 0) + 1);
}

async function draw(signal) {
  const ids = chosen();
  showFrame(ids);
  if (!ids.length) return;
  for (const id of ids) await describe(id);
  if (signal.aborted) return;
  const infos = ids.map((id) => known.get(id));
  showInput(infos);
  showTabs(infos);
  const lost = stopHere() ? lecture.astray(stopHere(), state.view, infos) : "";
  if (lost) showLecture(lost);
  if (infos.some((info) => info.pictures) && !picture) picture = await samplePicture();
  if (infos.some((info) => info.sounds) && !sound) sound = threeTones();
  showPicture();
  const panels = ids.map((id, n) => panel(id, known.get(id), n, signal));
  await placed(panels, signal);
  if (!signal.aborted) pointOut(lost);
}

// Onto the page when all is drawn, or with what there is so far where that takes long.
async function placed(panels, signal) {
  let done = false;
  const place = () => {
    if (done || signal.aborted) return;
    done = true;
    keepFocus(() => { $("main").replaceChildren(...panels.map((one) => one.box)); $("main").className = panels.length > 1 ? "two" : ""; });
  };
  const early = setTimeout(place, EARLY);
  try {
    await Promise.all(panels.map((one) => one.drawn));
  } finally {
    clearTimeout(early);
  }
  place();
}

// A box with a model's name on it, and when its view is drawn.
function panel(id, info, n, signal) {
  const { name } = list.find((one) => one.id === id);
  const box = el("section", { class: "panel", "data-model": id, "aria-label": name });
  const size = `${info.family}, ${(info.parameters / 1e6).toFixed(info.parameters > 1e7 ? 0 : 2)}M parameters`;
  box.append(el("h2", {}, name + " ", el("small", {}, size)));
  const context = { box, info, id, n, state, set, signal,
    question: (more) => question(more, n),
    toggleMute: (...place) => set({ mute: address.toggled(state, n, ...place) }),
    isMuted: (...place) => address.isMuted(state, n, ...place),
    ask: (view, more) => api.ask(id, view, question(more, n), signal) };
  return { box, drawn: fill(context) };
}

async function fill(context) {
  const { box, info } = context;
  if (!VIEWS[state.view].fits(info)) return box.append(el("p", {}, `This view is not for a ${info.family} model.`));
  try {
    await VIEWS[state.view].draw(context);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    box.append(el("p", { class: "bad", role: "alert" }, error.message));
  }
}

// Whoever had the focus keeps it, by its name or by its place in its drawing.
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

// The drawing that the address points at. A stop without its drawing would show something else than it says.
function pointOut(lost) {
  const drawing = state.see && document.querySelector(`[data-figure*="${CSS.escape(state.see)}"]`);
  if (!drawing && state.see && stopHere() && !lost) throw new Error("These models do not give the drawing that this stop is about; open others.");
  if (!drawing) return;
  drawing.classList.add("lit");
  drawing.scrollIntoView({ block: "center" });
}

export function say(words, bad = false) {
  $("words").textContent = words;
  $("status").className = bad ? "bad" : "";
}

// The frame around the panels.

function showFrame(ids) {
  $("input").hidden = $("views").hidden = !ids.length;
  keepFocus(() => $("chosen").replaceChildren(...shelf.chips(ids, list, choose)));
  showLecture();
  if (ids.length) return;
  $("muted").replaceChildren();
  $("main").className = "";
  $("main").replaceChildren(...shelf.page(list, choose));
}

const stopHere = () => lecture.STOPS[state.stop - 1];

function showLecture(lost = "") {
  $("lecture").hidden = !stopHere();
  const close = () => { set({ stop: 0, see: "" }); };
  if (stopHere()) keepFocus(() => $("lecture").replaceChildren(...lecture.bar(state.stop, lost, go, close)));
}

function showTabs(infos) {
  const fitting = Object.entries(VIEWS).filter(([, view]) => infos.some((info) => view.fits(info)));
  if (!fitting.some(([name]) => name === state.view)) set({ view: fitting[0][0] }, true);
  const tab = ([name, view]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, title: view.about, "aria-controls": "main",
    "aria-selected": String(name === state.view), tabindex: name === state.view ? 0 : -1,
    onclick: () => set({ view: name, site: "", top: 0, left: 0, see: "" }) }, view.title);
  keepFocus(() => $("views").replaceChildren(...fitting.map(tab)));
  const here = $(`tab-${state.view}`); // in sight where the row is wider than a phone
  $("views").scrollLeft = here.offsetLeft - $("views").offsetLeft - ($("views").clientWidth - here.offsetWidth) / 2;
  $("main").setAttribute("aria-label", VIEWS[state.view].title);
  $("muted").replaceChildren(...address.mutes(state).map(({ n, stage, layer, part, head }) =>
    el("button", { type: "button", title: "Let it speak again", onclick: () => set({ mute: address.toggled(state, n, stage, layer, part, head) }) },
      `silenced: ${n ? `${ORDER[n]}, ` : ""}${stage} ${part} ${layer}.${head} ✕`)));
}

// Arrow keys go from tab to tab, as everywhere.
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
  $("pair-field").hidden = !infos.some((info) => info.pairs);
  $("target-field").hidden = !infos.some((info) => info.writes);
  $("picture-field").hidden = !infos.some((info) => info.pictures);
  $("sound-field").hidden = !infos.some((info) => info.sounds);
  $("thing-field").replaceChildren(...things.fields(infos, (changes) => set(changes), say));
  const examples = text ? Object.entries(address.EXAMPLES) : [];
  $("examples").replaceChildren(...examples.map(([name, sentence]) =>
    el("button", { type: "button", title: sentence, "aria-label": `Example: ${sentence}`, onclick: () => { $("text").value = sentence; submit(); } }, name)));
  for (const name of ["text", "pair", "target"]) if (document.activeElement !== $(name)) $(name).value = state[name];
}

function showPicture() {
  $("thumb").hidden = !picture;
  if (picture) $("thumb").src = picture.url;
}

// What people do.

function choose(ids) { set({ models: ids.join(","), mute: "", site: "", layer: 0, head: "", pos: -1, to: -1, top: 0, left: 0 }); }

function submit() {
  set({ text: $("text").value, pair: $("pair").value, target: $("target").value, pos: -1, to: -1, top: 0, left: 0, step: 0, see: "" });
}

// To a stop of the lecture, with models that can show it. Whoever goes on before it is drawn leaves it out.
async function go(number, step = true) {
  const stop = lecture.STOPS[number - 1], mine = ++walking;
  if (!stop) return;
  state.stop = number;
  showFrame(chosen());
  try {
    say("Looking for a model …");
    const ids = await lecture.cast(stop, chosen().length ? chosen() : left, list, describe);
    const changes = { ...lecture.changes(number), models: ids.join(",") };
    if (stop.word) Object.assign(changes, await placesOf(ids[0], stop, { text: changes.text }));
    if (stop.patch) Object.assign(changes, await patchOf(ids[0]));
    if (mine === walking) move(changes, step);
  } catch (error) {
    if (mine === walking) refuse(number, error.message, step);
  }
}

function move(changes, step) {
  Object.assign(state, changes);
  address.write(state, step);
  show();
}

// A stop that cannot be shown says so, and nothing else is shown under its name.
function refuse(number, message, step) {
  running?.abort();
  running = null;
  if (chosen().length) left = chosen();
  Object.assign(state, lecture.changes(number), { models: "" });
  address.write(state, step);
  showFrame([]);
  $("main").replaceChildren(el("p", { class: "bad", role: "alert" }, message));
  say("");
  drawn();
}

// Where the words of a stop stand in the text, and the head in which the one looks most at the other.
async function placesOf(id, stop, asked) {
  const { words } = await api.ask(id, "tokens", asked);
  const at = (word) => (Object.values(words)[0] ?? []).findIndex((one) => one.text.trim().toLowerCase() === word);
  const found = { pos: at(stop.word), to: stop.target ? at(stop.target) : -1 };
  if (stop.target && Math.min(found.pos, found.to) < 0) throw new Error(`“${stop.word}” and “${stop.target}” are not tokens of this model, so this stop has nothing to show; open another.`);
  if (!stop.target) return found;
  const { heads: [best] } = await api.ask(id, "seek", { ...asked, position: found.pos, to: found.to });
  return { ...found, layer: best.layer, head: String(best.head) };
}

async function patchOf(id) {
  picture ??= await samplePicture();
  const found = byPatch(await api.ask(id, "picture", question()));
  if (!found) throw new Error("The patches of this model ask nothing, so this stop has nothing to show; open another.");
  return found;
}

async function takeFile(file) {
  try {
    if (await things.take(file, chosen().map((id) => known.get(id)).filter(Boolean))) set({ row: 0, pos: -1 }, true);
    else if (file.type.startsWith("audio/") || /\.(wav|flac|ogg|mp3|m4a)$/i.test(file.name)) sound = await readSound(file);
    else picture = await shrink(file);
    show();
  } catch (error) {
    say(error.message.includes(file.name) ? error.message : "That file is neither a picture nor a sound that this browser can read.", true);
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

function pressed(event) {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "d" && !typing && !event.ctrlKey && !event.metaKey) $("theme").click();
  const turn = { PageDown: 1, PageUp: -1 }[event.key]; // the keys of a presenter's clicker
  if (turn && state.stop && !typing) { event.preventDefault(); go(state.stop + turn); }
}

function listen() {
  $("input").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("input").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(); });
  $("views").addEventListener("keydown", moveTab);
  $("stop").addEventListener("click", () => { running?.abort(); $("stop").hidden = true; say("Stopped."); });
  $("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
  $("lecture-button").addEventListener("click", () => go(state.stop || 1));
  $("theme").addEventListener("click", () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); show(); });
  for (const id of ["file", "sound-file"]) $(id).addEventListener("change", async () => { if ($(id).files[0]) await takeFile($(id).files[0]); });
  $("sample").addEventListener("click", async () => { picture = await samplePicture(); show(); });
  $("tones").addEventListener("click", () => { sound = threeTones(); show(); });
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

// An address may name a stop alone: #stop=12.
function arrive() {
  if (stopHere() && !state.models) go(state.stop, false);
  else show();
}

begin().catch((error) => say(error.message, true));
