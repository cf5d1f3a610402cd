// The colors of the charts, for the light and the dark theme.

export const dark = () => document.documentElement.dataset.theme === "dark";
export const ink = () => (dark() ? "#e6ecf5" : "#1b2a41");
export const soft = () => (dark() ? "#9fb0c6" : "#5b6b82");
export const blue = () => (dark() ? "#7fb4f5" : "#1b4f8f");
export const warm = () => (dark() ? "#ff9d73" : "#b4451f");
export const paper = () => (dark() ? "#171f2a" : "#ffffff");

const ENDS = { light: [[255, 255, 255], [19, 70, 138]], dark: [[23, 31, 42], [150, 200, 255]] };
const BELOW = { light: [180, 69, 31], dark: [255, 157, 115] };

// Values 0…1 go from the background to blue, negative values from the background to orange.
export function color(share) {
  const theme = dark() ? "dark" : "light";
  const [from, up] = ENDS[theme];
  const to = share < 0 ? BELOW[theme] : up;
  const s = Math.min(Math.abs(share), 1);
  return from.map((value, i) => Math.round(value + (to[i] - value) * s));
}

// A text color with enough contrast on `color(share)`.
export function readable(share) { return (Math.abs(share) > 0.5) !== dark() ? "#ffffff" : "#1b2a41"; }
