// Audio for the server: mono, 16 kHz, at most 30 seconds, as base64 of a WAV file.

const RATE = 16000, SECONDS = 30;

export async function readAudio(file) {
  const length = RATE * SECONDS;
  const whole = await new OfflineAudioContext(1, length, RATE).decodeAudioData(await file.arrayBuffer());
  return asWav(whole.getChannelData(0).subarray(0, length));
}

// Sample audio: a low tone, a high tone and a rising tone.
export function sampleTones() {
  const samples = new Float32Array(RATE * 2);
  let phase = 0;
  for (let i = 0; i < samples.length; i++) {
    const t = i / RATE;
    const pitch = t < 0.6 ? 300 : t < 1.2 ? 1800 : 600 + 4000 * (t - 1.2);
    phase += (2 * Math.PI * pitch) / RATE;
    samples[i] = 0.4 * Math.sin(phase) * Math.min(1, 20 * (t % 0.6), 20 * (0.6 - (t % 0.6)));
  }
  return asWav(samples);
}

function asWav(samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const letters = (at, word) => [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  letters(0, "RIFF"); view.setUint32(4, 36 + 2 * samples.length, true); letters(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true); view.setUint32(28, 2 * RATE, true); view.setUint16(32, 2, true); view.setUint16(34, 16, true);
  letters(36, "data"); view.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, i) => view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, value))), true));
  const bytes = new Uint8Array(view.buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}
