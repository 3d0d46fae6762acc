/* A figure in a live notebook: what the kernel sends is drawn into the figure that is there. See live.py. */
const PLOTLY = "shardlabPlotly"; // one plotly.js for all figures of a page, which the first of them asks its kernel for

function plotly(model) {
  window[PLOTLY] ??= new Promise((resolve) => {
    model.on("msg:custom", (message, [script]) => {
      const module = { exports: {} }; // else the script would look for a loader of the page, and find the wrong one
      new Function("module", new TextDecoder().decode(script))(module);
      resolve(module.exports);
    });
    model.send("plotly.js");
  });
  return window[PLOTLY];
}

async function render({ model, el }) {
  const Plotly = await plotly(model);
  let frame;
  const draw = () => {
    frame = undefined;
    const { data, layout } = structuredClone(model.get("figure")); // plotly writes into what it is given
    return Plotly.react(el, data, layout, { displaylogo: false, responsive: true });
  };
  const follow = () => (frame ??= requestAnimationFrame(draw)); // of several changes in a frame, the last is drawn
  model.on("change:figure", follow);
  await draw();
  return () => {
    model.off("change:figure", follow);
    Plotly.purge(el);
  };
}

export default { render };
