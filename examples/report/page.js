"use strict";
// Pointing at a plot says what its values are there.
for (const svg of document.querySelectorAll("figure svg")) {
  const left = Number(svg.dataset.left), right = Number(svg.dataset.right);
  const step = Number(svg.dataset.step), steps = Number(svg.dataset.steps);
  const cursor = svg.querySelector(".cursor");
  const tip = svg.parentElement.querySelector(".tip");
  const series = [...svg.querySelectorAll("[data-values]")].map(
    (path) => [path.dataset.name, path.dataset.values.split(";")]);
  const pad = (n) => String(n).padStart(2, "0");
  const clock = (s) => (s < 120 ? `${Number(s.toFixed(3))} s`
    : `${Math.floor(s / 3600)}:${pad(Math.floor(s / 60) % 60)}:${pad(Math.floor(s % 60))}`);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const at = Math.floor((x - left) / (right - left) * steps);
    if (at < 0 || at >= steps) return;
    const middle = left + (at + 0.5) / steps * (right - left);
    cursor.setAttribute("x1", middle);
    cursor.setAttribute("x2", middle);
    cursor.style.visibility = "visible";
    tip.textContent = `${clock(at * step)}  ` + series.map(([name, values]) => `${name} ${values[at] ?? ""}`).join("  ·  ");
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    tip.textContent = "";
  });
}
