"use strict";
// A slider that moves has the trace replayed with its number. Those that were not moved keep the numbers of the file.
const sliders = [...document.querySelectorAll(".sliders input")];
const result = document.getElementById("result"), replays = document.getElementById("replays");
let latest = null;
const query = () => sliders.filter((slider) => slider.dataset.moved)
  .map((slider) => `${slider.name}=${slider.value}`).join("&");
async function replay() {
  latest?.abort();
  const mine = latest = new AbortController();
  try {
    const answer = await fetch(`/replay?${query()}`, {signal: mine.signal});
    const text = await answer.text();
    if (mine !== latest) return;
    if (answer.ok) result.innerHTML = text; else result.textContent = text;
    for (const slider of sliders) {
      const rule = [...result.querySelectorAll("section:last-of-type tbody tr")]
        .find((row) => row.cells[0].textContent === slider.labels[0].textContent);
      if (rule) slider.nextElementSibling.value = rule.cells[1].textContent.replace(/^[^:]*: /, "");
    }
    replays.value = Number(replays.value) + 1;
    history.replaceState(null, "", `/?${query()}`);
  } catch (error) {
    if (error.name !== "AbortError") result.textContent = `The lab does not answer: ${error}`;
  }
}
for (const slider of sliders) {
  slider.addEventListener("input", () => {
    slider.dataset.moved = "yes";
    replay();
  });
}
