// Uploaded clips, sets and tables, and several images for the query-box view. Without an upload, the server uses a
// generated example.

import { el } from "./dom.js";
import { shrink } from "./images.js";

const MAX_BYTES = 5.5 * 2 ** 20; // bytes; encoded as base64 the request stays below the limit of the server
const KINDS = {
  clip: { title: "Clip", reads: (info) => info.clips, accept: "video/*,image/gif,.npz,.zip", ends: /\.(npz|zip|mp4|mkv|avi|mov|webm|mpe?g|m4v|gif)$/i, description: "a video, a zip of frames, or an npz [frames, rows, columns, 3]" },
  items: { title: "Set or table", reads: (info) => info.sets || info.tables, accept: ".csv,.tsv,.txt,.npz", ends: /\.(npz|csv|tsv|txt)$/i, description: "a CSV with one item (or table row) per line, or an npz" },
};
const files = {}; // kind -> {name, data}
let gallery = []; // images {data, mark}

export const images = () => gallery;

export function request(state) {
  const found = { row: state.row };
  for (const kind of Object.keys(KINDS)) if (files[kind]) found[kind] = files[kind].data;
  return found;
}

// Store a clip, set or table. Return false if the models read none of these.
export async function store(file, infos) {
  const kind = Object.keys(KINDS).find((name) => infos.some(KINDS[name].reads) && KINDS[name].ends.test(file.name));
  if (!kind) return false;
  if (file.size > MAX_BYTES) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MB; the maximum is ${(MAX_BYTES / 2 ** 20).toFixed(1)} MB.`);
  files[kind] = { name: file.name, data: base64(new Uint8Array(await file.arrayBuffer())) };
  return true;
}

function base64(bytes) {
  let letters = "";
  for (let i = 0; i < bytes.length; i += 8192) letters += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(letters);
}

// File inputs for the modalities of these models. `changed` redraws the page, `showStatus` shows an error.
export function fields(infos, changed, showStatus) {
  const rows = Object.keys(KINDS).filter((name) => infos.some(KINDS[name].reads)).map((name) => field(name, infos, changed, showStatus));
  if (infos.some((info) => info.boxes)) rows.push(galleryField(changed, showStatus));
  return rows;
}

function field(name, infos, changed, showStatus) {
  const { title, accept, description } = KINDS[name];
  const input = el("input", { id: `${name}-file`, type: "file", accept, onchange: async () => {
    try {
      if (!input.files[0]) return;
      if (!(await store(input.files[0], infos))) throw new Error(`${input.files[0].name} is not a supported file; expected ${description}.`);
      changed({ row: 0, pos: -1 });
    } catch (error) { showStatus(error.message, true); }
  } });
  return el("div", { class: "row" }, el("label", { title: description }, `${title} `, input),
    el("button", { type: "button", id: `${name}-example`, onclick: () => { delete files[name]; changed({ row: 0, pos: -1 }); } }, "Use the example"), el("span", { class: "file-name" }, files[name] ? files[name].name : `generated example; or upload ${description}`));
}

function galleryField(changed, showStatus) {
  const input = el("input", { id: "many-files", type: "file", accept: "image/*", multiple: true, onchange: async () => {
    const some = [...input.files].slice(0, 400);
    try {
      gallery = await Promise.all(some.map(async (file) => ({ data: (await shrink(file)).data, mark: `${file.name}:${file.size}` })));
      changed({});
    } catch { showStatus("This browser cannot read one of the files as an image.", true); }
  } });
  return el("div", { class: "row" }, el("label", { title: "Several images for the view of query boxes" }, "Images for the query boxes ", input), el("span", { class: "file-name" }, gallery.length ? `${gallery.length} images` : ""));
}
