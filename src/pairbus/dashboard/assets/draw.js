// Draws the chart of the last hour and the ribbon of an entity's states. Each has a label that says the same in words.

const SVG = "http://www.w3.org/2000/svg";
export const ROUTES = [["primary", "to the primary"], ["backlog", "to the backlog"], ["spool", "to the spool"], ["failed", "failed at the primary"]];
const WIDTH = 720, HEIGHT = 150;

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const number = new Intl.NumberFormat("en");
const few = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

// Stacked areas of sends by route, and a line for the depth of the backlog, each on its own scale. The current bucket is
// left out: it is not complete and would look like a drop.
export function drawChart(svg, scale, history) {
  const count = history.primary.length - 1;
  const stacked = ROUTES.map(() => new Array(count).fill(0));
  let most = 0;
  for (let i = 0; i < count; i++) {
    let sum = 0;
    ROUTES.forEach(([route], layer) => { sum += history[route][i]; stacked[layer][i] = sum; });
    most = Math.max(most, sum);
  }
  const depth = (history.depth || []).slice(0, count), deepest = Math.max(0, ...(history.depth || []));
  const x = (i) => (i / (count - 1)) * WIDTH;
  const y = (value, top) => HEIGHT - 2 - (top ? (value / top) * (HEIGHT - 8) : 0);
  const shapes = [0.25, 0.5, 0.75, 1].map((part) => shape("line", { class: "rule", x1: 0, x2: WIDTH, y1: y(part, 1), y2: y(part, 1) }));
  ROUTES.forEach(([route], layer) => {
    const upper = stacked[layer], lower = layer ? stacked[layer - 1] : new Array(count).fill(0);
    if (upper.every((value, i) => value === lower[i])) return;
    let path = "";
    for (let i = 0; i < count; i++) path += `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(upper[i], most).toFixed(1)}`;
    for (let i = count - 1; i >= 0; i--) path += `L${x(i).toFixed(1)} ${y(lower[i], most).toFixed(1)}`;
    shapes.push(shape("path", { class: `of-${route}`, d: `${path}Z`, "fill-opacity": "0.8" }));
  });
  if (deepest) {
    const points = depth.map((value, i) => `${x(i).toFixed(1)},${y(value, deepest).toFixed(1)}`).join(" ");
    shapes.push(shape("polyline", { class: "depth", points }));
  }
  svg.replaceChildren(...shapes);
  const peak = few.format(most / history.seconds);
  const words = [`up to ${peak} sends per second`];
  if (deepest) words.push(`line: the backlog, up to ${number.format(deepest)}`);
  scale.textContent = words.join(" · ");
  const sums = ROUTES.map(([route, name]) => `${number.format(history[route].reduce((a, b) => a + b, 0))} ${name}`);
  svg.setAttribute("aria-label", `The last hour: ${sums.join(", ")}; at most ${peak} per second; ${history.depth ? `backlog of at most ${number.format(deepest)}` : "the backlog is unknown"}.`);
}

export function drawRibbon(svg, stretches, now, seconds) {
  const begin = now - seconds;
  svg.replaceChildren(...stretches.map(([from, to, state]) => shape("rect", {
    class: state.replace(" ", "-"), y: 0, height: 10,
    x: ((from - begin) / seconds * 360).toFixed(2), width: Math.max((to - from) / seconds * 360, 1).toFixed(2),
  })));
  const lasted = {};
  for (const [from, to, state] of stretches) lasted[state] = (lasted[state] || 0) + to - from;
  const words = Object.entries(lasted).map(([state, length]) => `${state} for ${duration(length)}`);
  svg.setAttribute("aria-label", `In the last hour: ${words.join(", ") || "not watched"}.`);
}

export function ribbonShape() {
  return shape("svg", { class: "ribbon", viewBox: "0 0 360 10", preserveAspectRatio: "none", role: "img" });
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole < 600 && whole % 60 ? ` ${whole % 60} s` : ""}`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h${whole % 3600 >= 60 ? ` ${Math.floor(whole % 3600 / 60)} min` : ""}`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole % 86400 / 3600)} h`;
}
