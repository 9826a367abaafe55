"use strict";
// Shows the values under the pointer. Everything else on the page works without scripts.
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const short = (value, digits) => String(Number(value.toPrecision(digits)));
  const amount = (value) => {
    const unit = units.find(([size]) => value >= size * 0.9995);
    return unit ? `${short(value / unit[0], 3)} ${unit[1]}B` : `${Math.round(value)} B`;
  };
  const number = (value) => {
    const size = Math.abs(value);
    return size >= 1000 && size < 1e15 ? Math.round(value).toLocaleString("en-US") : short(value, 5);
  };
  const formats = { number, amount, share: (value) => `${(100 * value).toFixed(1)}%` };
  const duration = (seconds) => {
    const whole = Math.round(seconds);
    const pad = (part) => String(part).padStart(2, "0");
    return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
  };

  const nearest = (places, at) => {
    let low = 0;
    let high = places.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (places[middle] < at) low = middle + 1;
      else high = middle;
    }
    return low > 0 && at - places[low - 1] < places[low] - at ? low - 1 : low;
  };

  const lines = (view, at) => {
    const format = formats[view.f];
    let place = null;
    const words = [];
    for (const group of view.g) {
      if (group.x.length === 0) continue;
      const i = nearest(group.x, at);
      place = place === null ? group.x[i] : place;
      const range = group.l && group.l[i] !== group.h[i] ? ` (${format(group.l[i])} \u2013 ${format(group.h[i])})` : "";
      words.push(`${group.n}: ${format(group.m[i])}${range}`);
    }
    if (place === null) return null;
    words.unshift(view.x === "step" ? `step ${number(place)}` : `${duration(place)} after the start`);
    return { place, text: words.join("\n") };
  };

  const follow = (plot, view) => {
    const cross = document.createElement("div");
    const tip = document.createElement("div");
    cross.className = "cross";
    tip.className = "tip";
    const hide = () => { cross.remove(); tip.remove(); };
    const show = (event) => {
      const box = plot.getBoundingClientRect();
      const [low, high] = view.a;
      const found = lines(view, low + ((event.clientX - box.left) / box.width) * (high - low));
      if (found === null) return;
      const left = (found.place - low) / (high - low);
      tip.textContent = found.text;
      cross.style.left = `${100 * left}%`;
      tip.style.left = left > 0.5 ? "auto" : `calc(${100 * left}% + 8px)`;
      tip.style.right = left > 0.5 ? `calc(${100 - 100 * left}% + 8px)` : "auto";
      plot.append(cross, tip);
    };
    plot.addEventListener("pointermove", show);
    plot.addEventListener("pointerdown", show);
    plot.addEventListener("pointerleave", hide);
  };

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const views = charts[Number(figure.dataset.chart)].filter((view) => view !== null);
    figure.querySelectorAll(".plot").forEach((plot, i) => follow(plot, views[i]));
  }

  const closed = [];
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details:not([open])")) { one.open = true; closed.push(one); }
  });
  addEventListener("afterprint", () => { for (const one of closed.splice(0)) one.open = false; });
})();
