// Images for the server, downscaled so that every request can contain one.

const SIDE = 512;

async function asImage(canvas) {
  const url = canvas.toDataURL("image/png");
  return { url, data: url.slice(url.indexOf(",") + 1) };
}

export async function shrink(file) {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return asImage(canvas);
}

// A sample image: a house, a sun and a tree.
export async function sampleImage() {
  const canvas = document.createElement("canvas");
  canvas.width = 320;
  canvas.height = 240;
  const pen = canvas.getContext("2d");
  const box = (color, ...place) => { pen.fillStyle = color; pen.fillRect(...place); };
  const disc = (color, x, y, r) => { pen.fillStyle = color; pen.beginPath(); pen.arc(x, y, r, 0, 7); pen.fill(); };
  box("#9cc9f0", 0, 0, 320, 240);
  box("#6ba04f", 0, 170, 320, 70);
  disc("#ffd34d", 270, 45, 26);
  box("#c9503c", 60, 110, 110, 80);
  pen.fillStyle = "#5a3a2e";
  pen.beginPath();
  pen.moveTo(48, 112); pen.lineTo(115, 60); pen.lineTo(182, 112); pen.fill();
  box("#f5ead0", 80, 128, 26, 26);
  box("#3d2a20", 125, 145, 26, 45);
  box("#6b4a2f", 232, 140, 12, 50);
  disc("#2f6b3a", 238, 122, 34);
  return asImage(canvas);
}
