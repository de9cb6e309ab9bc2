// Draws the charts of a page with Plotly.js, in the colours of the page; those of a group zoom together.
"use strict";

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const printed = matchMedia("print");
  const LIGHT_COLOURS = ["#0072b2", "#c75000", "#007f5f", "#b0568c", "#2f8fc4", "#a87400", "#444444"];
  const DARK_COLOURS = ["#56b4e9", "#f5914a", "#3fcf9f", "#e09ac2", "#8fd0f7", "#e6b43c", "#c8c8c8"];
  const PHONE = 480;
  const HEIGHT = 290;
  const LEGEND = 30;
  const figures = [...document.querySelectorAll(".chart")];
  const shape = (light) => {
    const [ink, soft, line, card] = light
      ? ["#1c2330", "#5a6475", "#dde2ea", "#ffffff"]
      : ["#e4e8ef", "#9ba7b8", "#2c3542", "#171c25"];
    return { ink, soft, line, card };
  };

  const layoutOf = (given, width, light = printed.matches || !dark.matches) => {
    const { ink, soft, line, card } = shape(light);
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line };
    const font = { color: ink, family: "system-ui, sans-serif", size: 12 };
    const layout = {
      height: HEIGHT,
      hovermode: "closest",
      dragmode: width < PHONE ? false : "zoom",
      ...given,
      width,
      font,
      colorway: light ? LIGHT_COLOURS : DARK_COLOURS,
      hoverlabel: { bgcolor: card, bordercolor: line, font },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", ...given.legend },
      margin: { l: 56, r: 12, t: given.showlegend ? 34 : 12, b: 36, ...given.margin },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: { ...axis, ...given.xaxis },
      yaxis: { ...axis, ...given.yaxis },
    };
    if (given.shapes) layout.shapes = given.shapes.map((each) => ({ ...each, line: { color: soft, ...each.line } }));
    if (given.annotations) layout.annotations = given.annotations.map((each) => ({ bgcolor: `${card}cc`, ...each }));
    if (given.yaxis?.ticktext && width < PHONE) {
      const cut = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);
      layout.yaxis.ticktext = given.yaxis.ticktext.map(cut);
    }
    return layout;
  };

  const specs = new Map();
  const draw = async (figure) => {
    const target = figure.querySelector(".plot");
    if (!specs.has(figure)) specs.set(figure, JSON.parse(figure.querySelector("script").textContent));
    const { data, layout } = specs.get(figure);
    const width = Math.max(240, target.clientWidth);
    const made = layoutOf(structuredClone(layout), width);
    await Plotly.react(target, structuredClone(data), made, {
      displayModeBar: false,
      doubleClick: "reset",
      responsive: false,
      scrollZoom: false,
    });
    // On a narrow page the names of many lines would leave the lines no place.
    const legend = target.querySelector(".legend")?.getBBox().height ?? 0;
    if (legend > LEGEND) await Plotly.relayout(target, { height: made.height + legend - LEGEND });
  };

  const savable = (figure) => {
    figure.querySelector(".save")?.addEventListener("click", ({ target }) => {
      const { data, layout } = structuredClone(specs.get(figure));
      const made = layoutOf(layout, figure.clientWidth, true);
      const size = { width: made.width, height: made.height };
      Plotly.downloadImage({ data, layout: made }, { format: "svg", filename: target.dataset.file, ...size });
    });
  };

  const zoomTogether = (figure) => {
    const group = figure.dataset.group;
    if (!group) return;
    const target = figure.querySelector(".plot");
    target.on("plotly_relayout", (event) => {
      if (target.dataset.follows) return;
      const change = {};
      if (event["xaxis.autorange"]) change["xaxis.autorange"] = true;
      else if (event["xaxis.range[0]"] !== undefined) {
        change["xaxis.range"] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      } else return;
      for (const other of figures) {
        if (other === figure || other.dataset.group !== group) continue;
        const plot = other.querySelector(".plot");
        plot.dataset.follows = "1";
        Promise.resolve(Plotly.relayout(plot, change)).finally(() => delete plot.dataset.follows);
      }
    });
  };

  const all = async () => {
    for (const figure of figures) await draw(figure);
  };
  const start = async () => {
    for (const figure of figures) {
      await draw(figure);
      figure.querySelector(".plot").setAttribute("role", "img");
      figure.querySelector(".plot").setAttribute("aria-label", figure.dataset.name);
      zoomTogether(figure);
      savable(figure);
    }
    document.documentElement.dataset.drawn = "yes";
    let width = innerWidth;
    let timer = 0;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      clearTimeout(timer);
      timer = setTimeout(all, 150);
    });
    dark.addEventListener("change", all);
    printed.addEventListener("change", all);
  };
  start();
})();
