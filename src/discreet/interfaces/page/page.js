"use strict";
(() => {
  const get = (id) => document.getElementById(id);
  const root = document.documentElement;

  // --- light and dark -------------------------------------------------------
  const button = get("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  system.addEventListener("change", name);
  name();
  button.hidden = false;

  // --- on paper, everything is open ------------------------------------------
  const folded = [];
  addEventListener("beforeprint", () => {
    for (const x of document.querySelectorAll("details:not([open]):not(.no-print)")) { x.open = true; folded.push(x); }
  });
  addEventListener("afterprint", () => { while (folded.length) folded.pop().open = false; });

  // --- the trade-off ------------------------------------------------------------
  const data = get("trade-off-data");
  if (!data) return;
  const { lines, factor, rates, priors, frame } = JSON.parse(data.textContent);

  // Every line lies above what any attacker reaches, so the least of them does.
  const caught = (rate) => Math.min(1, Math.max(rate, Math.min(...lines.map(([slope, start]) => slope * rate + start))));
  const right = (prior, rate) => prior * caught(rate) / (prior * caught(rate) + (1 - prior) * rate);
  const after = (prior) => (factor === null ? 1 : prior * factor / (prior * factor + 1 - prior));

  // Three digits, rounded up: a bound stays one.
  const percent = (share) => {
    const value = Math.min(100, 100 * share);
    let shown = Number(value.toPrecision(3));
    if (shown < value) {
      shown = Number((shown + 10 ** (Math.floor(Math.log10(value)) - 2)).toPrecision(3));
    }
    return `${Math.min(100, shown)}\u00a0%`;
  };
  const plain = (share) => `${Number((100 * share).toPrecision(6))}\u00a0%`;

  const place = (figure, x, y) => {
    const across = (frame.left + x * (frame.right - frame.left)).toFixed(2);
    const down = (frame.bottom - y * (frame.bottom - frame.top)).toFixed(2);
    const point = get(`${figure}-point`);
    point.setAttribute("cx", across);
    point.setAttribute("cy", down);
    get(`${figure}-guide`).setAttribute("d", `M${across} ${frame.bottom}V${down}H${frame.left}`);
  };
  const say = (id, text) => { if (get(id).textContent !== text) get(id).textContent = text; };

  const rateInput = get("rate");
  const priorInput = get("prior");
  const update = () => {
    const rate = rates[rateInput.valueAsNumber];
    const prior = priors[priorInput.valueAsNumber];
    place("caught", rate, caught(rate));
    place("belief", prior, after(prior));
    say("rate-value", plain(rate));
    say("prior-value", plain(prior));
    say("caught-value", percent(caught(rate)));
    say("right-value", percent(right(prior, rate)));
    say("after-value", percent(after(prior)));
    say("caught-rate", plain(rate));
    say("right-rate", plain(rate));
    say("right-prior", plain(prior));
    say("after-prior", plain(prior));
    rateInput.setAttribute("aria-valuetext", plain(rate));
    priorInput.setAttribute("aria-valuetext", plain(prior));
  };
  rateInput.addEventListener("input", update);
  priorInput.addEventListener("input", update);
  get("controls").hidden = false;
  update();
})();
